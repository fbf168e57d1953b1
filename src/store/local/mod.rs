//! Usage in process.
//!
//! A bounded map in shards, a mutex each. All shards that a request touches are locked in their order, so that its
//! checks are decided at one instant and two requests never wait for each other in a ring. The clock is read under
//! the locks: what a state was stamped with is never later than the next reading.

mod chains;
mod key;
mod pages;
mod shard;
mod snapshot;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use self::chains::STATES_MAX;
use self::key::Key;
pub use self::key::Outage;
use self::shard::Shard;
use self::snapshot::Kept;
pub use self::snapshot::SnapshotError;
use super::{Settlement, StoreError};
use crate::check::{Check, KeySecret};
use crate::clock::Clock;
use crate::decide::{Ask, Change, Cost, Decision, Settled, State, Timestamp, decide_all, penalty};

/// How many shards there are: more than threads, so that these seldom meet.
const SHARDS: usize = 64;

/// The most keys there are, whatever is asked for: half of what the shards have places for, if these fill evenly.
const KEYS_MAX: usize = SHARDS * STATES_MAX / 2;

/// How many states of a shard are swept at a time, so that nobody waits long for its lock.
const SWEEP_AT_ONCE: usize = 64;

/// How many states are looked at, for one that is fresh, to make room for a stranger.
const SEARCH: usize = 64;

/// How many states of its shard each new key looks at: more than one, so that fresh ones get fewer.
const LOOK: usize = 2;

/// Keeps usage in memory, at most `max_keys` states.
///
/// What is dropped to make room is what equals a fresh state. A key in debt is never dropped: full of those, a
/// stranger's request has no decision, [`StoreError::Full`].
#[derive(Debug)]
pub struct LocalStore {
    shards: Box<[Apart]>,
    max_keys: usize,
    keys: AtomicUsize,
    /// The shard that is swept next.
    next_swept: AtomicUsize,
    /// The number of the outage that is on, or that comes next.
    outage: AtomicU16,
    clock: Clock,
}

/// A shard in lines of the cache that are its own: whoever locks another one does not slow it down.
#[derive(Debug)]
#[repr(align(128))]
struct Apart(Mutex<Shard>);

impl Apart {
    /// What a thread that panicked left is whole: a change is made at once.
    fn lock(&self) -> MutexGuard<'_, Shard> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LocalStore {
    /// An empty store of at most `max_keys` states. A state takes 72 bytes, and a sliding log of several requests 16 to
    /// 32 more for each.
    #[must_use]
    pub fn new(max_keys: NonZeroUsize, clock: Clock) -> Self {
        let max_keys = max_keys.get().min(KEYS_MAX);
        // Keys spread unevenly: a fifth more than there are of them on average.
        let expected = (max_keys / SHARDS).saturating_mul(6) / 5;
        let shard = || Apart(Mutex::new(Shard::new(expected)));
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
            max_keys,
            keys: AtomicUsize::new(0),
            next_swept: AtomicUsize::new(0),
            outage: AtomicU16::new(Outage::after(0).number()),
            clock,
        }
    }

    /// Decides all of `checks` at one instant, and says which: charges every one of them or none. Waits for nothing but
    /// other threads.
    ///
    /// The policies of `checks` must be distinct: one that stands there twice is charged once.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`] when a state would have to be added and no other is fresh. Nothing is charged then.
    pub fn decide_now(
        &self,
        checks: &[Check<'_>],
    ) -> Result<(Timestamp, Vec<Decision>), StoreError> {
        self.decide_in(Outage::default(), checks)
    }

    /// The same while the shared store is out. What is counted in one outage does not count in another: it is
    /// forgotten with [`LocalStore::set_outage`].
    ///
    /// # Errors
    ///
    /// As [`LocalStore::decide_now`].
    pub fn decide_in(
        &self,
        outage: Outage,
        checks: &[Check<'_>],
    ) -> Result<(Timestamp, Vec<Decision>), StoreError> {
        if let [check] = checks
            && check.policy.penalty.is_none()
        {
            let (now, decision) = self.decide_alone(check, outage)?;
            return Ok((now, vec![decision]));
        }
        let keys: Vec<_> = checks.iter().map(|check| Key::of(check, outage)).collect();
        let mut held = self.lock(&keys);
        let now = self.clock.now();
        let asks: Vec<_> = checks
            .iter()
            .zip(&keys)
            .map(|(check, key)| Ask {
                rule: check.rule,
                kept: held.shard(key).and_then(|shard| shard.get(key)),
                cost: check.cost,
                shadow: check.shadow,
                beside: check.beside(held.penalty(check, outage)),
            })
            .collect();
        let added = asks.iter().map(|ask| usize::from(ask.kept.is_none()));
        let steps = decide_all(&asks, now);
        let added = added
            .zip(&steps)
            .filter(|(_, step)| step.change != Change::None)
            .map(|(added, _)| added)
            .sum();
        self.reserve(added, &keys, &mut held, now)?;
        let mut decisions = Vec::with_capacity(steps.len());
        for ((check, key), step) in checks.iter().zip(&keys).zip(steps) {
            if let Some(shard) = held.shard_mut(key) {
                shard.apply(*key, step.change, step.fresh_at);
            }
            if let Some(punished) = step.penalty {
                self.punish(check, outage, punished, &keys, &mut held, now);
            }
            decisions.push(step.decision);
        }
        Ok((now, decisions))
    }

    /// Keeps a penalty. In a store that is full of others it finds no place: who was to be punished is then denied this
    /// once.
    fn punish(
        &self,
        check: &Check<'_>,
        outage: Outage,
        punished: penalty::State,
        keys: &[Key],
        held: &mut Held<'_>,
        now: Timestamp,
    ) {
        let (Some(penalty), Some(key)) = (&check.policy.penalty, Key::of_penalty(check, outage))
        else {
            return;
        };
        let is_known = held.penalty(check, outage).is_some();
        let spared: Vec<_> = keys.iter().copied().chain([key]).collect();
        if (is_known || self.reserve(1, &spared, held, now).is_ok())
            && let Some(shard) = held.shard_mut(&key)
        {
            let change = Change::Keep(State::Penalty(punished));
            shard.apply(key, change, penalty.fresh_at(punished));
        }
    }

    /// What [`decide_all`] comes to for one check, without the lists: most requests have no more.
    fn decide_alone(
        &self,
        check: &Check<'_>,
        outage: Outage,
    ) -> Result<(Timestamp, Decision), StoreError> {
        let key = Key::of(check, outage);
        let Some((index, mut shard)) = self.lock_shard(key.shard(SHARDS)) else {
            return Err(StoreError::Full);
        };
        let now = self.clock.now();
        let slot = shard.slot_mut(&key);
        let kept = slot.as_ref().map(|slot| slot.state());
        let (change, decision) = check.rule.decide(kept, now, check.cost);
        if change != Change::None {
            let fresh_at = check.rule.fresh_at(now, &decision);
            if let Some(slot) = slot {
                slot.apply(change, fresh_at);
            } else {
                let mut held = Held(vec![(index, shard)]);
                self.reserve(1, &[key], &mut held, now)?;
                if let Some(shard) = held.shard_mut(&key) {
                    shard.apply(key, change, fresh_at);
                }
            }
        }
        Ok((now, decision))
    }

    /// The outage that is on, or that comes next: states of others may go, in debt or not.
    pub fn set_outage(&self, outage: Outage) {
        if self.outage.load(Ordering::Relaxed) != outage.number() {
            self.outage.store(outage.number(), Ordering::Relaxed);
        }
    }

    fn outage(&self) -> Outage {
        Outage::from_number(self.outage.load(Ordering::Relaxed))
    }

    /// Settles these charges, made in this outage if it is one. Give it only those that were made: not one in shadow
    /// that denied, and none of a request that was denied.
    ///
    /// What is charged late to a key that is gone finds no place in a store that is full of others, and is then not
    /// counted.
    pub fn settle(&self, outage: Outage, settlements: &[Settlement<'_>]) {
        let keys: Vec<_> = settlements
            .iter()
            .map(|settlement| Key::of(&settlement.check, outage))
            .collect();
        let mut held = self.lock(&keys);
        let now = self.clock.now();
        for (settlement, key) in settlements.iter().zip(&keys) {
            let Settlement {
                check,
                charge,
                settled,
            } = settlement;
            if *settled == Settled::Forgotten
                && let Some(key) = Key::of_penalty(check, outage)
                && let Some(shard) = held.shard_mut(&key)
            {
                let gone = shard.replace(&key, |_| None);
                self.keys.fetch_sub(usize::from(gone), Ordering::Relaxed);
            }
            let known = held
                .shard(key)
                .is_some_and(|shard| shard.get(key).is_some());
            let fresh_at = |state: &State| {
                let found = check.rule.decide(Some(state), now, Cost::NONE).1;
                check.rule.fresh_at(now, &found)
            };
            if known {
                let Some(shard) = held.shard_mut(key) else {
                    continue;
                };
                let gone = shard.replace(key, |kept| {
                    let left = check.rule.settle(Some(kept), *charge, *settled, now)?;
                    let fresh_at = fresh_at(&left);
                    Some((left, fresh_at))
                });
                self.keys.fetch_sub(usize::from(gone), Ordering::Relaxed);
            } else if let Some(state) = check.rule.settle(None, *charge, *settled, now)
                && self.reserve(1, &keys, &mut held, now).is_ok()
                && let Some(shard) = held.shard_mut(key)
            {
                shard.add(Kept {
                    key: *key,
                    fresh_at: fresh_at(&state),
                    state,
                });
            }
        }
    }

    /// Drops fresh states, and says how many went: all there are, if `limit` is twice as many as there are states, and
    /// it looks at no more than that. For a task in the background: each call goes on where the last one stopped, and
    /// holds one lock at a time.
    pub fn sweep(&self, limit: usize) -> usize {
        let now = self.clock.now();
        let (mut swept, mut left) = (0, limit);
        // How many looks at each shard are left: two a state, since one may take the place of another that goes. Where
        // there are few, that is soon all.
        let mut unseen = [usize::MAX; SHARDS];
        let mut done = 0;
        while left > 0 && done < SHARDS {
            let index = self.next_swept.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let (Some(shard), Some(unseen)) = (self.shards.get(index), unseen.get_mut(index))
            else {
                break;
            };
            let mut shard = shard.lock();
            *unseen = shard.len().saturating_mul(2).min(*unseen);
            let looked_at = left.min(*unseen).min(shard.len()).min(SWEEP_AT_ONCE);
            done = if looked_at == 0 { done + 1 } else { 0 };
            *unseen -= looked_at;
            left -= looked_at;
            let gone = shard.sweep(looked_at, now, self.outage(), &[]);
            self.keys.fetch_sub(gone, Ordering::Relaxed);
            swept += gone;
        }
        swept
    }

    /// The shards in turn.
    fn next_swept(&self) -> Option<&Apart> {
        let next = self.next_swept.fetch_add(1, Ordering::Relaxed) % SHARDS;
        self.shards.get(next)
    }

    /// Writes all that counts into a file, to be taken over by [`LocalStore::restore`] after a restart. Returns how
    /// many states that were.
    ///
    /// # Errors
    ///
    /// Those of the file system. The file that was there is then still there.
    pub fn save(&self, path: &Path, secret: &KeySecret) -> Result<usize, SnapshotError> {
        let kept = self.kept();
        snapshot::write(path, &snapshot::packed(secret, &kept)?)?;
        Ok(kept.len())
    }

    /// All that counts, as the bytes that [`LocalStore::save`] writes.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Foreign`] for states that cannot be written, of which there are none.
    pub fn snapshot(&self, secret: &KeySecret) -> Result<Vec<u8>, SnapshotError> {
        snapshot::packed(secret, &self.kept())
    }

    fn kept(&self) -> Vec<Kept> {
        let now = self.clock.now();
        let mut kept = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            kept.extend(shard.kept(now, self.outage()));
        }
        kept
    }

    /// Takes over what [`LocalStore::save`] wrote, as far as it still counts, there is room, and nothing is known of
    /// its key. Returns how many states that are.
    ///
    /// # Errors
    ///
    /// Those of the file system, and [`SnapshotError::Foreign`]. Nothing is taken over then.
    pub fn restore(&self, path: &Path, secret: &KeySecret) -> Result<usize, SnapshotError> {
        self.take_over(&snapshot::read(path)?, secret)
    }

    /// The same with the bytes of a snapshot.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::Foreign`].
    pub fn take_over(&self, bytes: &[u8], secret: &KeySecret) -> Result<usize, SnapshotError> {
        let now = self.clock.now();
        let mut taken = 0;
        for mut kept in snapshot::unpacked(secret, bytes)? {
            // An outage that goes on over a restart is the first one after it.
            kept.key = kept.key.in_outage(Outage::after(0));
            let Some((_, mut shard)) = self.lock_shard(kept.key.shard(SHARDS)) else {
                continue;
            };
            let is_full = self.keys.load(Ordering::Relaxed) >= self.max_keys;
            if kept.fresh_at > now && !is_full && shard.get(&kept.key).is_none() {
                shard.add(kept);
                self.keys.fetch_add(1, Ordering::Relaxed);
                taken += 1;
            }
        }
        Ok(taken)
    }

    /// How many states there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Whether there is no state.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most states there may be.
    #[must_use]
    pub const fn max_keys(&self) -> usize {
        self.max_keys
    }

    /// Locks the shards of these keys, in their order.
    fn lock(&self, keys: &[Key]) -> Held<'_> {
        let mut indexes: Vec<_> = keys.iter().map(|key| key.shard(SHARDS)).collect();
        indexes.sort_unstable();
        indexes.dedup();
        Held(
            indexes
                .into_iter()
                .filter_map(|index| self.lock_shard(index))
                .collect(),
        )
    }

    fn lock_shard(&self, index: usize) -> Option<(usize, MutexGuard<'_, Shard>)> {
        Some((index, self.shards.get(index)?.lock()))
    }

    /// Makes room for `added` states, if need be by dropping fresh ones: not those of `keys`, which are being decided.
    fn reserve(
        &self,
        added: usize,
        keys: &[Key],
        held: &mut Held<'_>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        if added == 0 {
            return Ok(());
        }
        for (_, shard) in &mut held.0 {
            self.keys.fetch_sub(
                shard.sweep(LOOK, now, self.outage(), keys),
                Ordering::Relaxed,
            );
        }
        let room = |keys: usize| keys.checked_add(added).filter(|sum| *sum <= self.max_keys);
        let take = || {
            self.keys
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room)
                .is_ok()
        };
        if take() {
            return Ok(());
        }
        for (_, shard) in &mut held.0 {
            self.keys.fetch_sub(
                shard.sweep(SEARCH, now, self.outage(), keys),
                Ordering::Relaxed,
            );
        }
        if take() {
            return Ok(());
        }
        // Elsewhere, too, but without waiting for a lock: others may be waiting for those that are held here.
        let mut left = SEARCH;
        for _ in 0..SHARDS {
            let Some(Ok(mut shard)) = self.next_swept().map(|shard| shard.0.try_lock()) else {
                continue;
            };
            let looked_at = left.min(shard.len());
            left -= looked_at;
            self.keys.fetch_sub(
                shard.sweep(looked_at, now, self.outage(), keys),
                Ordering::Relaxed,
            );
            if take() {
                return Ok(());
            }
            if left == 0 {
                break;
            }
        }
        Err(StoreError::Full)
    }
}

/// The locked shards of one request, by their indexes.
struct Held<'a>(Vec<(usize, MutexGuard<'a, Shard>)>);

impl Held<'_> {
    /// What is kept of the penalty beside a check, whose shard is one of them.
    fn penalty(&self, check: &Check<'_>, outage: Outage) -> Option<penalty::State> {
        let key = Key::of_penalty(check, outage)?;
        self.shard(&key)?.get(&key)?.as_penalty()
    }

    fn shard(&self, key: &Key) -> Option<&Shard> {
        let index = key.shard(SHARDS);
        self.0
            .iter()
            .find(|(i, _)| *i == index)
            .map(|(_, shard)| &**shard)
    }

    fn shard_mut(&mut self, key: &Key) -> Option<&mut Shard> {
        let index = key.shard(SHARDS);
        self.0
            .iter_mut()
            .find(|(i, _)| *i == index)
            .map(|(_, shard)| &mut **shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::decide::{State, fixed_window};

    #[test]
    fn a_million_states_take_at_most_80_bytes_each() {
        const STATES: usize = 1_000_000;
        let max_keys = NonZeroUsize::new(STATES).unwrap();
        let store = LocalStore::new(max_keys, Clock::Manual(ManualClock::default()));
        for number in 0..1_000_000_u64 {
            let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let key = Key::numbered(spread, spread.rotate_left(17));
            let (_, mut shard) = store.lock_shard(key.shard(SHARDS)).unwrap();
            shard.add(Kept {
                key,
                state: State::FixedWindow(fixed_window::State {
                    start: Timestamp::default(),
                    used: number,
                }),
                fresh_at: Timestamp::default(),
            });
        }
        let held: usize = store.shards.iter().map(|shard| shard.lock().len()).sum();
        assert_eq!(held, STATES);
        let bytes: usize = store.shards.iter().map(|shard| shard.lock().bytes()).sum();
        assert!(bytes <= STATES * 80, "{bytes}");
    }
}
