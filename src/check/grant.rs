//! Limits that single callers were granted for a while.

use std::collections::HashMap;
use std::sync::Arc;

use super::entity::EntityKey;
use super::limits::Limits;
use crate::decide::Timestamp;

/// The grants in force: for one entity of one policy, other limits until an instant of the store's clock.
#[derive(Debug, Default)]
pub struct Granted(HashMap<(EntityKey, usize), Grant>);

/// One of them.
#[derive(Clone, Debug)]
pub struct Grant {
    /// What stands in for the policy's limits.
    pub limits: Arc<Limits>,
    /// When it ends.
    pub ends_at: Timestamp,
}

impl Granted {
    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// What this entity is granted of the policy at this position, if that has not ended.
    #[must_use]
    pub fn find(&self, entity: EntityKey, policy: usize, now: Timestamp) -> Option<&Grant> {
        let grant = self.0.get(&(entity, policy))?;
        (grant.ends_at > now).then_some(grant)
    }
}

impl FromIterator<((EntityKey, usize), Grant)> for Granted {
    fn from_iter<I: IntoIterator<Item = ((EntityKey, usize), Grant)>>(grants: I) -> Self {
        Self(grants.into_iter().collect())
    }
}
