//! Which server of a cluster is asked for which slot.

use std::sync::Arc;

use super::node::Node;

/// Nobody has this slot.
pub(super) const NOBODY: u16 = u16::MAX;

/// Who has which slot, at one time.
#[derive(Debug)]
pub(super) struct Map {
    /// For each slot the index of its server.
    pub(super) owners: Vec<u16>,
    pub(super) nodes: Vec<Arc<Node>>,
    /// Those of them that have slots.
    pub(super) serving: Vec<Arc<Node>>,
    /// Whether every slot has a server.
    pub(super) is_whole: bool,
}

impl Map {
    pub(super) fn new(owners: Vec<u16>, nodes: Vec<Arc<Node>>) -> Self {
        let mut serves = vec![false; nodes.len()];
        let mut is_whole = true;
        for owner in &owners {
            match serves.get_mut(usize::from(*owner)) {
                Some(serves) => *serves = true,
                None => is_whole = false,
            }
        }
        let serving = nodes.iter().zip(serves).filter(|(_, serves)| *serves);
        Self {
            serving: serving.map(|(node, _)| Arc::clone(node)).collect(),
            is_whole,
            owners,
            nodes,
        }
    }

    pub(super) fn node_of(&self, slot: u16) -> Option<&Arc<Node>> {
        let owner = *self.owners.get(usize::from(slot))?;
        self.nodes.get(usize::from(owner))
    }

    pub(super) fn node_at(&self, address: &str) -> Option<(usize, &Arc<Node>)> {
        let mut numbered = self.nodes.iter().enumerate();
        numbered.find(|(_, node)| node.is_at(address))
    }

    /// Whether every slot has a server that is asked.
    pub(super) fn is_up(&self) -> bool {
        self.is_whole && self.serving.iter().all(|node| node.is_up())
    }
}
