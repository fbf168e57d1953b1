//! Where the state of a key stands: states with hashes of one remainder hang together in a chain, and a row says where
//! each chain begins.
//!
//! The row grows by one chain as a state comes, which takes apart the one chain it was part of, and shrinks by putting
//! two together. So no request pays for all that are there, as one does when a table grows by doubling. It takes eight
//! bytes a state, apart from the states: more of it stays in the cache.

use std::mem;

use super::key::Key;
use super::pages::Pages;
use super::shard::Slot;

/// States in a row. A page is 128 KiB.
pub(super) type Slots = Pages<Slot, 2048>;

type Links = Pages<Link, 2048>;

/// Chains of states.
#[derive(Debug)]
pub(super) struct Chains {
    /// Where each chain begins.
    heads: Links,
    /// Where the chain goes on after the state of the same place.
    links: Links,
}

/// Where a state stands, and some bits of its hash: those of another key are mostly passed by without a look at them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Link(u32);

/// The bits of a link that are a place, and those that are of the hash.
const PLACE: u32 = (1 << 26) - 1;
const HASH: u32 = !PLACE;

impl Link {
    /// The end of a chain.
    const END: Self = Self(u32::MAX);

    const fn to(place: u32, hash: u64) -> Self {
        Self(place & PLACE | high(hash) & HASH)
    }

    const fn place(self) -> u32 {
        self.0 & PLACE
    }

    const fn may_be_of(self, hash: u64) -> bool {
        (self.0 ^ high(hash)) & HASH == 0
    }
}

/// How many states may stand in chains.
pub(super) const STATES_MAX: usize = (1 << 26) - 1;

impl Chains {
    /// None yet; so many are expected.
    pub(super) fn new(expected: usize) -> Self {
        Self {
            heads: Links::new(expected),
            links: Links::new(expected),
        }
    }

    /// Where the state of this key stands.
    pub(super) fn find(&self, slots: &Slots, key: &Key) -> Option<u32> {
        let hash = key.hash();
        let mut link = *self.heads.get(self.chain(hash))?;
        loop {
            let place = link.place();
            if link.may_be_of(hash) && slots.get(place)?.is_of(key) {
                return Some(place);
            }
            link = *self.links.get(place)?;
        }
    }

    /// Takes in the state that was put at the end of the row.
    pub(super) fn add(&mut self, slots: &Slots) {
        let place = u32::try_from(self.links.len()).unwrap_or(PLACE);
        let Some(slot) = slots.get(place) else {
            return;
        };
        self.links.push(Link::END);
        if self.heads.len() < self.links.len() {
            self.grow(slots);
        }
        self.link(place, slot.hash());
    }

    /// Takes out the state at this place, of the chains and of the row. The last of the row takes its place.
    pub(super) fn remove(&mut self, slots: &mut Slots, place: u32) -> Option<Slot> {
        let last = u32::try_from(slots.len().checked_sub(1)?).ok()?;
        let next = *self.links.get(place)?;
        self.redirect(slots.get(place)?.hash(), place, next);
        if last != place {
            let hash = slots.get(last)?.hash();
            self.redirect(hash, last, Link::to(place, hash));
        }
        self.links.swap_remove(place);
        while self.heads.len() > self.links.len().saturating_mul(2) {
            self.shrink();
        }
        slots.swap_remove(place)
    }

    /// Which chain a hash belongs to: its remainder by the next power of two, or by that before if there is no such
    /// chain yet.
    fn chain(&self, hash: u64) -> u32 {
        let chains = u32::try_from(self.heads.len()).unwrap_or(u32::MAX);
        let mask = chains.next_power_of_two().wrapping_sub(1);
        let chain = high(hash) & mask;
        if chain < chains {
            chain
        } else {
            chain & mask >> 1
        }
    }

    /// Puts the state at this place before its chain.
    fn link(&mut self, place: u32, hash: u64) {
        let chain = self.chain(hash);
        if let Some(head) = self.heads.get_mut(chain)
            && let Some(link) = self.links.get_mut(place)
        {
            *link = mem::replace(head, Link::to(place, hash));
        }
    }

    /// Has what leads to this place, in the chain of this hash, be another link.
    fn redirect(&mut self, hash: u64, place: u32, other: Link) {
        let chain = self.chain(hash);
        let mut link = self.heads.get_mut(chain);
        while let Some(found) = link {
            if found.place() == place {
                *found = other;
                return;
            }
            let next = found.place();
            link = self.links.get_mut(next);
        }
    }

    /// One chain more: some of those in the one that it was part of belong to it.
    fn grow(&mut self, slots: &Slots) {
        let Ok(new) = u32::try_from(self.heads.len()) else {
            return;
        };
        let whole = self.heads.get_mut(sibling(new));
        let mut link = whole.map_or(Link::END, |head| mem::replace(head, Link::END));
        self.heads.push(Link::END);
        while let Some(next) = self.links.get(link.place()).copied() {
            let hash = slots.get(link.place()).map_or(0, Slot::hash);
            self.link(link.place(), hash);
            link = next;
        }
    }

    /// One chain less: the last one goes to the end of the one that it was part of.
    fn shrink(&mut self) {
        let Some(chain) = self.heads.pop() else {
            return;
        };
        let Ok(old) = u32::try_from(self.heads.len()) else {
            return;
        };
        let mut link = self.heads.get_mut(sibling(old));
        while let Some(found) = link {
            if *found == Link::END {
                *found = chain;
                return;
            }
            let next = found.place();
            link = self.links.get_mut(next);
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.heads.bytes() + self.links.bytes()
    }
}

/// The half of a hash that is used.
const fn high(hash: u64) -> u32 {
    let [_, _, _, _, a, b, c, d] = hash.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The chain that `chain` is part of while it is not there: its number without the first digit.
fn sibling(chain: u32) -> u32 {
    chain.checked_ilog2().map_or(0, |digit| chain ^ 1 << digit)
}
