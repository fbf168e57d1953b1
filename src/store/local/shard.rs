//! One shard: states stand in a row, so that a sweep can go on where the last one stopped, and a table says where
//! each of them stands. The table holds places alone: four bytes a key, so that more of it stays in the cache.

use std::mem;

use hashbrown::HashTable;
use serde::{Deserialize, Serialize};

use super::snapshot::Kept;
use crate::check::Check;
use crate::decide::{Change, State, Timestamp, sliding_log};

/// Of whom and by what: an entity and a policy's generation.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Key {
    entity: [u8; 16],
    policy: u64,
}

/// Of a key's policy, what says which it is. The rest says in which outage it counted.
const POLICY: u64 = 0x0000_ffff_ffff_ffff;

/// The outage of the shared store in which a state was counted, if it was in one. They are told apart by their
/// numbers; after 65,535 of them these come round.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outage(u16);

impl Outage {
    /// The outage after so many recoveries.
    #[must_use]
    pub fn after(recoveries: u32) -> Self {
        Self(u16::try_from(recoveries % 0xffff + 1).unwrap_or(u16::MAX))
    }

    pub(super) const fn from_number(number: u16) -> Self {
        Self(number)
    }

    pub(super) const fn number(self) -> u16 {
        self.0
    }

    fn tag(self) -> u64 {
        u64::from(self.0) << 48
    }
}

/// States by key.
#[derive(Debug, Default)]
pub(super) struct Shard {
    places: HashTable<u32>,
    slots: Vec<Slot>,
    /// Where the next sweep goes on.
    next: usize,
}

/// A state, and whose it is.
#[derive(Debug)]
pub(super) struct Slot {
    key: Key,
    state: State,
    /// From when on it equals a fresh state.
    fresh_at: Timestamp,
}

impl Key {
    /// The key of what `check`'s policy has counted for its entity, in this outage.
    pub(super) fn of(check: &Check<'_>, outage: Outage) -> Self {
        // FNV-1a: names are few, short, and the operator's own.
        let start = 0xcbf2_9ce4_8422_2325 ^ u64::from(check.policy.generation.0);
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self {
            entity: check.entity.0,
            policy: check.policy.name.bytes().fold(start, fold) & POLICY | outage.tag(),
        }
    }

    /// Which of `shards` it belongs to. An entity's states may lie in several.
    pub(super) fn shard(&self, shards: usize) -> usize {
        // Other bits than the map's own hash uses first.
        let [.., a, b] = self.entity;
        let policy = usize::try_from(self.policy >> 32 & 0xffff).unwrap_or_default();
        (usize::from(a) << 8 | usize::from(b)).wrapping_add(policy) % shards
    }

    /// The same in this outage, if it was counted in one.
    pub(super) fn in_outage(self, outage: Outage) -> Self {
        let in_one = self.policy & !POLICY != 0;
        let tag = if in_one { outage.tag() } else { 0 };
        Self {
            policy: self.policy & POLICY | tag,
            ..self
        }
    }

    /// Whether it was counted in an outage that is over.
    fn is_over(&self, current: Outage) -> bool {
        let tag = self.policy & !POLICY;
        tag != 0 && tag != current.tag()
    }

    /// Eight bytes of the entity are enough: it is a keyed hash, which nobody outside can aim.
    fn hash(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.entity;
        let spread = u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ self.policy;
        spread.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

impl Slot {
    pub(super) const fn state(&self) -> &State {
        &self.state
    }

    /// Makes the change; the state then equals a fresh one from `fresh_at` on.
    pub(super) fn apply(&mut self, change: Change, fresh_at: Timestamp) {
        self.fresh_at = fresh_at;
        change.apply_to(&mut self.state);
    }
}

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    fn place(&self, key: &Key) -> Option<usize> {
        let is_its = |place: &u32| self.slot_at(*place).is_some_and(|slot| slot.key == *key);
        self.places
            .find(key.hash(), is_its)
            .map(|place| index(*place))
    }

    fn slot_at(&self, place: u32) -> Option<&Slot> {
        self.slots.get(index(place))
    }

    pub(super) fn get(&self, key: &Key) -> Option<&State> {
        let place = self.place(key)?;
        self.slots.get(place).map(|slot| &slot.state)
    }

    pub(super) fn slot_mut(&mut self, key: &Key) -> Option<&mut Slot> {
        let place = self.place(key)?;
        self.slots.get_mut(place)
    }

    /// Every state that counts at `now`, in this outage if it was counted in one.
    pub(super) fn kept(&self, now: Timestamp, outage: Outage) -> impl Iterator<Item = Kept> {
        self.slots
            .iter()
            .filter(move |slot| slot.fresh_at > now && !slot.key.is_over(outage))
            .map(|slot| Kept {
                key: slot.key,
                state: slot.state.clone(),
                fresh_at: slot.fresh_at,
            })
    }

    /// Makes the change; the state then equals a fresh one from `fresh_at` on.
    pub(super) fn apply(&mut self, key: Key, change: Change, fresh_at: Timestamp) {
        if change == Change::None {
            return;
        }
        if let Some(slot) = self.slot_mut(&key) {
            slot.apply(change, fresh_at);
            return;
        }
        let mut state = None;
        change.apply(&mut state);
        if let Some(state) = state {
            self.add(Kept {
                key,
                state,
                fresh_at,
            });
        }
    }

    /// Puts in the state of a key that has none.
    pub(super) fn add(&mut self, kept: Kept) {
        let Ok(place) = u32::try_from(self.slots.len()) else {
            return;
        };
        let key = kept.key;
        self.slots.push(Slot {
            key,
            state: kept.state,
            fresh_at: kept.fresh_at,
        });
        let slots = &self.slots;
        self.places
            .insert_unique(key.hash(), place, |place| hash_at(slots, *place));
    }

    /// Lets `change` make another state of the one that is kept, or nothing: then it says true.
    pub(super) fn replace(
        &mut self,
        key: &Key,
        change: impl FnOnce(State) -> Option<State>,
    ) -> bool {
        let Some(place) = self.place(key) else {
            return false;
        };
        let Some(slot) = self.slots.get_mut(place) else {
            return false;
        };
        let kept = mem::replace(
            &mut slot.state,
            State::SlidingLog(sliding_log::State::default()),
        );
        if let Some(state) = change(kept) {
            slot.state = state;
            return false;
        }
        self.remove(place);
        true
    }

    /// Looks at the next `limit` states, drops those that are fresh or of an outage that is over, but for `spared`, and
    /// says how many went.
    pub(super) fn sweep(
        &mut self,
        limit: usize,
        now: Timestamp,
        outage: Outage,
        spared: &[Key],
    ) -> usize {
        let mut dropped = 0;
        for _ in 0..limit.min(self.slots.len()) {
            if self.next >= self.slots.len() {
                self.next = 0;
            }
            let is_droppable = |slot: &Slot| {
                (slot.fresh_at <= now || slot.key.is_over(outage)) && !spared.contains(&slot.key)
            };
            if self.slots.get(self.next).is_some_and(is_droppable) {
                self.remove(self.next);
                dropped += 1;
            } else {
                self.next += 1;
            }
        }
        dropped
    }

    /// Removes the state at this place; the last one takes it.
    fn remove(&mut self, place: usize) {
        if place >= self.slots.len() {
            return;
        }
        let last = self.slots.len() - 1;
        let gone = self.slots.swap_remove(place);
        if let Ok(entry) = self
            .places
            .find_entry(gone.key.hash(), |known| index(*known) == place)
        {
            entry.remove();
        }
        if let (Some(moved), Ok(place)) = (self.slots.get(place), u32::try_from(place))
            && let Some(known) = self
                .places
                .find_mut(moved.key.hash(), |known| index(*known) == last)
        {
            *known = place;
        }
        if self.slots.capacity() > 64 && self.slots.len() < self.slots.capacity() / 4 {
            self.slots.shrink_to(self.slots.len() * 2);
            let slots = &self.slots;
            self.places
                .shrink_to(slots.len() * 2, |place| hash_at(slots, *place));
        }
    }
}

/// A place as an index. A shard holds fewer than 2^32 states, by far.
fn index(place: u32) -> usize {
    usize::try_from(place).unwrap_or(usize::MAX)
}

fn hash_at(slots: &[Slot], place: u32) -> u64 {
    slots.get(index(place)).map_or(0, |slot| slot.key.hash())
}
