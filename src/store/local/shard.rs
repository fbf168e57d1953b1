//! One shard: states stand in a row, so that a sweep can go on where the last one stopped, and chains say where each
//! of them stands. Nothing that it does takes longer for the number of states in it.

use std::mem;

use super::chains::{Chains, STATES_MAX, Slots};
use super::key::{Key, Outage};
use super::snapshot::Kept;
use crate::decide::{Change, State, Timestamp, sliding_log};

/// States by key.
#[derive(Debug)]
pub(super) struct Shard {
    slots: Slots,
    chains: Chains,
    /// Where the next sweep goes on: towards the front, from the one before.
    swept_to: usize,
}

/// A state, and whose it is: one line of the cache.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    key: Key,
    state: State,
    /// From when on it equals a fresh state.
    fresh_at: Timestamp,
}

const _: () = assert!(size_of::<Slot>() == 64, "a slot is a line of the cache");

impl Slot {
    pub(super) fn is_of(&self, key: &Key) -> bool {
        self.key == *key
    }

    pub(super) fn hash(&self) -> u64 {
        self.key.hash()
    }

    pub(super) const fn state(&self) -> &State {
        &self.state
    }

    /// Makes the change; the state then equals a fresh one from `fresh_at` on.
    pub(super) fn apply(&mut self, change: Change, fresh_at: Timestamp) {
        self.fresh_at = fresh_at;
        change.apply_to(&mut self.state);
    }

    /// Whether it counts at `now`, in this outage if it was counted in one.
    fn counts(&self, now: Timestamp, outage: Outage) -> bool {
        self.fresh_at > now && !self.key.is_over(outage)
    }
}

impl Shard {
    /// An empty one; so many states are expected.
    pub(super) fn new(expected: usize) -> Self {
        Self {
            slots: Slots::new(expected),
            chains: Chains::new(expected),
            swept_to: 0,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&State> {
        let place = self.chains.find(&self.slots, key)?;
        self.slots.get(place).map(Slot::state)
    }

    pub(super) fn slot_mut(&mut self, key: &Key) -> Option<&mut Slot> {
        let place = self.chains.find(&self.slots, key)?;
        self.slots.get_mut(place)
    }

    /// Every state that counts at `now`, in this outage if it was counted in one, and would after a restart.
    pub(super) fn kept(&self, now: Timestamp, outage: Outage) -> impl Iterator<Item = Kept> {
        self.slots
            .iter()
            .filter(move |slot| slot.counts(now, outage) && slot.state.outlives_process())
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
        if self.len() >= STATES_MAX {
            return;
        }
        self.slots.push(Slot {
            key: kept.key,
            state: kept.state,
            fresh_at: kept.fresh_at,
        });
        self.chains.add(&self.slots);
    }

    /// Lets `change` make another state of the one that is kept, and say from when on it equals a fresh one; or
    /// nothing: then it says true.
    pub(super) fn replace(
        &mut self,
        key: &Key,
        change: impl FnOnce(State) -> Option<(State, Timestamp)>,
    ) -> bool {
        let Some(place) = self.chains.find(&self.slots, key) else {
            return false;
        };
        let Some(slot) = self.slots.get_mut(place) else {
            return false;
        };
        let kept = mem::replace(
            &mut slot.state,
            State::SlidingLog(sliding_log::State::default()),
        );
        if let Some((state, fresh_at)) = change(kept) {
            slot.state = state;
            slot.fresh_at = fresh_at;
            return false;
        }
        self.chains.remove(&mut self.slots, place).is_some()
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
        for _ in 0..limit.min(self.len()) {
            // Towards the front: what takes the place of one that goes has been looked at, and where all go nothing
            // moves.
            let next = match self.swept_to.min(self.len()) {
                0 => self.len(),
                next => next,
            };
            self.swept_to = next - 1;
            let Ok(place) = u32::try_from(self.swept_to) else {
                continue;
            };
            let is_droppable =
                |slot: &Slot| !slot.counts(now, outage) && !spared.contains(&slot.key);
            if self.slots.get(place).is_some_and(is_droppable) {
                self.chains.remove(&mut self.slots, place);
                dropped += 1;
            }
        }
        dropped
    }

    /// The bytes that it takes, but for the logs of several requests.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.slots.bytes() + self.chains.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::fixed_window;

    const NOW: Timestamp = Timestamp::from_micros(1_000);
    const LATER: Timestamp = Timestamp::from_micros(2_000);

    /// The state of a key, which tells whose it is.
    fn state(number: u64) -> State {
        State::FixedWindow(fixed_window::State {
            start: NOW,
            used: number,
        })
    }

    fn kept(key: Key, number: u64, fresh_at: Timestamp) -> Kept {
        Kept {
            key,
            state: state(number),
            fresh_at,
        }
    }

    /// Spread like hashes.
    fn key(number: u64) -> Key {
        Key::numbered(number.wrapping_mul(0x2545_f491_4f6c_dd1d), number)
    }

    /// A shard of these numbers.
    fn of(numbers: impl IntoIterator<Item = u64>) -> Shard {
        let mut shard = Shard::new(1);
        for number in numbers {
            shard.add(kept(key(number), number, LATER));
        }
        shard
    }

    fn has_only(shard: &Shard, all: u64, holds: impl Fn(u64) -> bool) {
        for number in 0..all {
            let expected = holds(number).then(|| state(number));
            assert_eq!(shard.get(&key(number)), expected.as_ref(), "{number}");
        }
        let held = (0..all).filter(|number| holds(*number)).count();
        assert_eq!(shard.len(), held);
    }

    #[test]
    fn every_key_is_found_however_many_have_come_and_gone() {
        const ALL: u64 = 9_000;
        let mut shard = Shard::new(1);
        for number in 0..ALL {
            shard.add(kept(key(number), number, LATER));
            let len = number + 1;
            // On both sides of the edges of pages and of powers of two, and amid them.
            if len < 40 || (len + 1) % 1_024 < 3 || len.is_multiple_of(1_500) {
                has_only(&shard, ALL, |n| n < len);
            }
        }
        // They go in an order of their own: 4,001 is no divisor of 9,000.
        let mut gone = vec![false; usize::try_from(ALL).unwrap()];
        let is_gone = |gone: &[bool], n: u64| gone[usize::try_from(n).unwrap()];
        for step in 0..ALL {
            let number = step * 4_001 % ALL;
            assert!(shard.replace(&key(number), |_| None));
            assert!(!shard.replace(&key(number), |_| None));
            gone[usize::try_from(number).unwrap()] = true;
            let left = ALL - step - 1;
            if left < 40 || (left + 1) % 1_024 < 3 || left.is_multiple_of(1_500) {
                has_only(&shard, ALL, |n| !is_gone(&gone, n));
            }
        }
    }

    #[test]
    fn keys_of_one_hash_are_told_apart() {
        let mut shard = Shard::new(1);
        let same = |number| Key::numbered(7, number);
        for number in 0..100 {
            shard.add(kept(same(number), number, LATER));
        }
        for number in (0..100).step_by(3) {
            assert!(shard.replace(&same(number), |_| None));
        }
        for number in 0..100 {
            let expected = (number % 3 > 0).then(|| state(number));
            assert_eq!(shard.get(&same(number)), expected.as_ref());
        }
    }

    #[test]
    fn a_sweep_finds_all_that_is_fresh_and_takes_nothing_else() {
        const ALL: u64 = 5_000;
        let mut shard = of([]);
        for number in 0..ALL {
            let fresh_at = if number.is_multiple_of(3) { LATER } else { NOW };
            shard.add(kept(key(number), number, fresh_at));
        }
        let spared = [key(1), key(4_999)];
        let stays = |number: u64| number.is_multiple_of(3) || number == 1 || number == 4_999;
        let (mut swept, mut steps) = (0, 0);
        while steps < ALL {
            swept += shard.sweep(7, NOW, Outage::default(), &spared);
            steps += 7;
        }
        has_only(&shard, ALL, stays);
        assert_eq!(u64::try_from(swept + shard.len()).unwrap(), ALL);
        let steps = usize::try_from(ALL).unwrap();
        shard.sweep(steps, LATER, Outage::default(), &[]);
        has_only(&shard, ALL, |_| false);
    }

    #[test]
    fn what_comes_while_a_sweep_goes_round_is_swept_when_its_turn_comes() {
        let mut shard = of(0..10);
        assert_eq!(shard.sweep(4, NOW, Outage::default(), &[]), 0);
        for number in 10..3_000 {
            shard.add(kept(key(number), number, NOW));
            shard.sweep(2, NOW, Outage::default(), &[]);
            // At most those that came since the sweep began a round, and as many again in the next.
            assert!(shard.len() <= 30, "{}", shard.len());
        }
    }

    #[test]
    fn memory_follows_the_number_of_states_up_and_down() {
        let mut shard = Shard::new(100_000);
        let empty = shard.bytes();
        for number in 0..100_000 {
            shard.add(kept(key(number), number, LATER));
        }
        assert!(shard.bytes() < 100_000 * 75, "{}", shard.bytes());
        for number in 10_000..100_000 {
            shard.replace(&key(number), |_| None);
        }
        // Twice as many chains as states, and two pages, may stay.
        assert!(
            shard.bytes() < 10_000 * 76 + 3 * (128 << 10),
            "{}",
            shard.bytes()
        );
        for number in 0..10_000 {
            shard.replace(&key(number), |_| None);
        }
        assert_eq!(shard.bytes(), empty);
    }
}
