//! What this gateway holds of concurrency: the units of its requests in flight, and what the shared store was told of
//! them. It does no I/O, and is told the time.
//!
//! Units are charged by the call that decides. All else is told: that units were given back, that the rest is still
//! held, and what the store does not know since it was away or lost it. What is told is the difference to what was told
//! before, by one call at a time for each key. Calls that decide come between, and both are right in either order.
//!
//! Where nobody knows whether a call was made, another field takes the place of the one that it was about ([`Holder`]):
//! from then on calls are about the new one. Once no call is under way that is about an old one, the new one is told
//! all that is held, and the same call takes out the old ones. What still comes late to one of those counts until its
//! lease ends, as nobody renews it.

mod held;

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use super::key::key;
use crate::check::{Check, EntityKey};
use crate::decide::{Concurrency, Decision, Rule, concurrency};
pub use held::RENEWALS;
use held::{Asked, Held};

/// How many shards there are, a lock each.
const SHARDS: usize = 16;

/// The most keys of a shard. Each has a request in flight, or had one that the store is still to be told of.
const KEYS_MAX: usize = 1 << 16;

/// Whose field it is of the hash at a key: a gateway, a number made at its start, and which of its fields.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub struct Holder {
    gateway: u64,
    field: u32,
}

impl Holder {
    /// The field of this number of a gateway. A later one has a larger number.
    #[must_use]
    pub const fn new(gateway: u64, field: u32) -> Self {
        Self { gateway, field }
    }

    /// As `lua/concurrency.lua` has it.
    pub(super) fn as_bytes(self) -> [u8; 12] {
        let mut bytes = [0; 12];
        let (gateway, field) = bytes.split_at_mut(8);
        gateway.copy_from_slice(&self.gateway.to_be_bytes());
        field.copy_from_slice(&self.field.to_be_bytes());
        bytes
    }
}

/// What this gateway holds of each key.
#[derive(Debug)]
pub struct Slots {
    gateway: u64,
    /// What keys begin with.
    prefix: Arc<str>,
    shards: [Mutex<Shard>; SHARDS],
    /// Who waits for something to be told, by shard.
    told: [Notify; SHARDS],
    /// Keys about which there is something to tell.
    due: Mutex<VecDeque<(EntityKey, Arc<str>)>>,
    told_of_due: Notify,
    /// The number of the last field, of whatever key. It comes round after as many outcomes that nobody knows.
    field: AtomicU32,
    /// How often units were given back.
    releases: AtomicU64,
    units: AtomicU64,
    restored: AtomicU64,
}

type Shard = HashMap<Arc<str>, Held>;

/// What is to be told of one key.
#[derive(Clone, Debug)]
pub struct Tell {
    /// The key.
    pub key: Arc<str>,
    /// Whose it is.
    pub entity: EntityKey,
    /// What it is held by.
    pub rule: Rule,
    /// Who holds it.
    pub holder: Holder,
    /// Units more than were told before, or less if that is below 0.
    pub more: i64,
}

/// What became of a call that told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Heard {
    /// The store has so many units of the field now.
    Units(u64),
    /// It certainly was not made.
    NotMade,
    /// Nobody knows.
    Unknown,
}

/// The units that a call asks for. Dropped before its end, nobody knows what became of it.
#[derive(Debug)]
pub struct Asking<'s> {
    slots: &'s Slots,
    asked: Vec<AskedOf>,
}

/// Units of one key that a call asks for.
#[derive(Debug)]
struct AskedOf {
    /// The policy's index.
    policy: usize,
    entity: EntityKey,
    key: Arc<str>,
    asked: Asked,
}

impl Slots {
    /// Nothing is held yet. `gateway` is a number that no other gateway has, and not this one after a restart.
    #[must_use]
    pub fn new(gateway: u64, prefix: Arc<str>) -> Self {
        Self {
            gateway,
            prefix,
            shards: Default::default(),
            told: Default::default(),
            due: Mutex::default(),
            told_of_due: Notify::new(),
            field: AtomicU32::new(0),
            releases: AtomicU64::new(0),
            units: AtomicU64::new(0),
            restored: AtomicU64::new(0),
        }
    }

    /// Units in flight.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.units.load(Ordering::Relaxed)
    }

    /// Units that were told anew, since the store had lost them.
    #[must_use]
    pub fn restored(&self) -> u64 {
        self.restored.load(Ordering::Relaxed)
    }

    /// How many keys something is known of.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| locked(shard).len()).sum()
    }

    /// Whether nothing is known of any key: nothing is held, and the store knows that.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A call is made that decides `checks`. `None` if there is no room to remember what it takes.
    #[must_use]
    pub fn ask(&self, checks: &[Check<'_>], now: Instant) -> Option<Asking<'_>> {
        let mut asking = Asking {
            slots: self,
            asked: Vec::new(),
        };
        for (check, rule) in lending(checks) {
            let key = self.key(check);
            let mut shard = self.shard(check.entity);
            let Some(held) = self.held(&mut shard, check.entity, &key, rule, now) else {
                drop(shard);
                // Nothing was sent.
                asking.end(|_| false);
                return None;
            };
            asking.asked.push(AskedOf {
                policy: check.policy.index,
                entity: check.entity,
                asked: held.ask(check.cost.units(), now),
                key,
            });
        }
        Some(asking)
    }

    /// Takes units by this gateway's own share of the limit, while the store gives no decision: all that it holds
    /// counts. The store hears of them when it is back. `None` if there is no room to remember it.
    #[must_use]
    pub fn take_alone(&self, check: &Check<'_>, now: Instant) -> Option<Decision> {
        let Rule::Concurrency(rule) = check.rule else {
            return None;
        };
        let key = self.key(check);
        let mut shard = self.shard(check.entity);
        let in_flight = shard.get(&key).map_or(0, |held| held.units);
        let (keep, decision) = rule.decide(Some(concurrency::State { in_flight }), check.cost);
        if let Some(keep) = keep {
            let held = self.held(&mut shard, check.entity, &key, rule, now)?;
            held.units = keep.in_flight;
            let more = keep.in_flight.saturating_sub(in_flight);
            self.units.fetch_add(more, Ordering::Relaxed);
            self.look_after(&mut shard, &key, now);
        }
        Some(decision)
    }

    /// The units of `check` are not in flight any more.
    pub fn release(&self, check: &Check<'_>, now: Instant) {
        let key = self.key(check);
        let mut shard = self.shard(check.entity);
        if let Some(held) = shard.get_mut(&key) {
            let before = self.releases.fetch_add(1, Ordering::Relaxed);
            let units = held.release(check.cost.units(), before.wrapping_add(1));
            self.units.fetch_sub(units, Ordering::Relaxed);
        }
        self.look_after(&mut shard, &key, now);
    }

    /// Nothing is in flight any more: the process ends.
    pub fn release_all(&self, now: Instant) {
        for shard in &self.shards {
            let mut shard = locked(shard);
            let keys: Vec<_> = shard.keys().cloned().collect();
            for key in keys {
                if let Some(held) = shard.get_mut(&key) {
                    let units = mem::take(&mut held.units);
                    self.units.fetch_sub(units, Ordering::Relaxed);
                }
                self.look_after(&mut shard, &key, now);
            }
        }
    }

    /// Waits until it is told what was given back before of what `checks` ask for: whoever has seen a request end finds
    /// its units free, by this gateway. Once is enough, whatever becomes of the call that tells.
    pub async fn tell_first(&self, checks: &[Check<'_>], now: Instant) {
        for (check, _) in lending(checks) {
            let (key, mut release) = (self.key(check), None);
            let Some(told) = self.told.get(shard_of(check.entity)) else {
                continue;
            };
            loop {
                // Before it looks: what is told meanwhile is not missed.
                let told = told.notified();
                if self.is_told_of(check.entity, &key, &mut release, now) {
                    break;
                }
                told.await;
            }
        }
    }

    fn is_told_of(
        &self,
        entity: EntityKey,
        key: &Arc<str>,
        release: &mut Option<u64>,
        now: Instant,
    ) -> bool {
        let mut shard = self.shard(entity);
        let Some(held) = shard.get_mut(key) else {
            return true;
        };
        let is_told = held.is_told_of(release);
        if !is_told && held.wants(now) {
            self.put_due(held, key);
        }
        is_told
    }

    /// Finds what is to be told without having changed: what was held for a third of its lease without a word of it, or
    /// all if `all` is doubtful.
    pub fn renew(&self, all: bool, now: Instant) {
        for shard in &self.shards {
            locked(shard).retain(|key, held| {
                if all && held.units > 0 || held.wants(now) {
                    self.put_due(held, key);
                }
                !held.is_over(now)
            });
        }
    }

    /// Waits until there is something to tell; there may be none.
    pub async fn changed(&self) {
        self.told_of_due.notified().await;
    }

    /// What is to be told, of so many keys at most. [`Slots::heard`] is to follow for each.
    #[must_use]
    pub fn due(&self, most: usize, now: Instant) -> Vec<Tell> {
        let mut tells = Vec::new();
        while tells.len() < most {
            let Some((entity, key)) = locked(&self.due).pop_front() else {
                break;
            };
            let mut shard = self.shard(entity);
            if let Some(held) = shard.get_mut(&key)
                && let Some(more) = held.tell(now)
            {
                tells.push(Tell {
                    key,
                    entity,
                    rule: Rule::Concurrency(held.rule),
                    holder: Holder::new(self.gateway, held.field),
                    more,
                });
            }
        }
        tells
    }

    /// What became of a call that told.
    pub fn heard(&self, tell: &Tell, heard: Heard, now: Instant) {
        let mut shard = self.shard(tell.entity);
        if let Some(held) = shard.get_mut(&tell.key) {
            let (is_torn, lost) = held.heard(heard);
            self.restored.fetch_add(lost, Ordering::Relaxed);
            if is_torn {
                held.tear(self.next_field());
            }
        }
        // What was not made is told again when it is looked for what to renew.
        if heard != Heard::NotMade {
            self.look_after(&mut shard, &tell.key, now);
        }
        drop(shard);
        if let Some(told) = self.told.get(shard_of(tell.entity)) {
            told.notify_waiters();
        }
    }

    fn answered(&self, of: &AskedOf, charged: Option<bool>) {
        let mut shard = self.shard(of.entity);
        let Some(held) = shard.get_mut(&of.key) else {
            return;
        };
        if held.answered(of.asked, charged) {
            held.tear(self.next_field());
        }
        if charged == Some(true) {
            self.units.fetch_add(of.asked.units, Ordering::Relaxed);
        }
        self.look_after(&mut shard, &of.key, of.asked.sent_at);
    }

    fn key(&self, check: &Check<'_>) -> Arc<str> {
        Arc::from(key(&self.prefix, check))
    }

    fn next_field(&self) -> u32 {
        self.field.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    fn shard(&self, entity: EntityKey) -> MutexGuard<'_, Shard> {
        let [first, ..] = &self.shards;
        locked(self.shards.get(shard_of(entity)).unwrap_or(first))
    }

    fn held<'h>(
        &self,
        shard: &'h mut Shard,
        entity: EntityKey,
        key: &Arc<str>,
        rule: &Concurrency,
        now: Instant,
    ) -> Option<&'h mut Held> {
        if shard.len() >= KEYS_MAX && !shard.contains_key(key) {
            return None;
        }
        let field = self.field.load(Ordering::Relaxed);
        let release = self.releases.load(Ordering::Relaxed);
        let fresh = || Held::new(entity, *rule, field, release, now);
        let held = shard.entry(Arc::clone(key)).or_insert_with(fresh);
        // A reload may have changed it.
        held.rule = *rule;
        Some(held)
    }

    /// Has told what is to be told; forgets the key if there is nothing more to know.
    fn look_after(&self, shard: &mut Shard, key: &Arc<str>, now: Instant) {
        let Some(held) = shard.get_mut(key) else {
            return;
        };
        if held.is_over(now) {
            shard.remove(key);
        } else if held.wants(now) {
            self.put_due(held, key);
        }
    }

    fn put_due(&self, held: &mut Held, key: &Arc<str>) {
        if !mem::replace(&mut held.is_due, true) {
            locked(&self.due).push_back((held.entity, Arc::clone(key)));
            self.told_of_due.notify_one();
        }
    }
}

impl Asking<'_> {
    /// Who holds what `check` takes.
    #[must_use]
    pub fn holder_of(&self, check: &Check<'_>) -> Holder {
        let mut asked = self.asked.iter();
        let of = asked.find(|of| of.policy == check.policy.index);
        of.map_or_else(Holder::default, |of| {
            Holder::new(self.slots.gateway, of.asked.field)
        })
    }

    /// It was answered: of which policies it charged something, if of any.
    pub fn end(mut self, charged: impl Fn(usize) -> bool) {
        for of in mem::take(&mut self.asked) {
            self.slots.answered(&of, Some(charged(of.policy)));
        }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        for of in &self.asked {
            self.slots.answered(of, None);
        }
    }
}

/// The checks that are lent something, and their rules.
fn lending<'c, 'a>(
    checks: &'c [Check<'a>],
) -> impl Iterator<Item = (&'c Check<'a>, &'a Concurrency)> {
    checks.iter().filter_map(|check| match check.rule {
        Rule::Concurrency(rule) if check.cost.units() > 0 => Some((check, rule)),
        _ => None,
    })
}

/// Other bits than the local store's shards go by.
fn shard_of(entity: EntityKey) -> usize {
    let [first, ..] = entity.0;
    usize::from(first) % SHARDS
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
