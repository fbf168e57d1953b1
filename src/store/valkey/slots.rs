//! What this gateway holds of concurrency: the units of its requests in flight, and what the shared store was told of
//! them. It does no I/O, and is told the time.
//!
//! Units are charged by the call that decides. All else is told: that units were given back, that the rest is still
//! held, and what the store does not know since it was away or lost it. What is told is the difference to what was told
//! before, by one call at a time for each key. Calls that decide come between, and both are right in either order.
//!
//! Where nobody knows whether a call was made, another field takes the place of the one that it was about ([`Holder`]):
//! from then on calls are about the new one. Once no call is under way that is about an old one, the new one is told all
//! that is held, and the same call takes out the old ones. What still comes late to one of those counts until its lease
//! ends, as nobody renews it.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::key::key;
use crate::check::{Check, EntityKey};
use crate::decide::{Concurrency, Decision, Rule, concurrency};

/// What is held is said this often in a lease.
const RENEWALS: u32 = 3;

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
    /// The field of this number of a gateway.
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
    /// The number of the field that the next new key has.
    field: AtomicU32,
    /// How often units were given back.
    releases: AtomicU64,
    shards: Box<[Mutex<Shard>]>,
    /// Who waits for something to be told, by shard.
    told: [Notify; SHARDS],
    /// Keys about which there is something to tell.
    due: Mutex<VecDeque<(EntityKey, Arc<str>)>>,
    told_of_due: Notify,
    units: AtomicU64,
    restored: AtomicU64,
}

type Shard = HashMap<Arc<str>, Held>;

/// What is held of one key, and known of it.
#[derive(Debug)]
struct Held {
    entity: EntityKey,
    rule: Concurrency,
    /// Which field of this gateway is in force.
    field: u32,
    /// Units of requests in flight.
    units: u64,
    /// Units that the store has in that field, as far as is known.
    told: u64,
    /// Units that calls ask for which are under way about that field, how many calls that are ...
    asked: u64,
    asking: usize,
    /// ... and how many about earlier ones.
    asking_before: usize,
    /// Whether the store may have earlier fields.
    is_torn: bool,
    /// The call that tells, if one is under way.
    telling: Option<Telling>,
    is_due: bool,
    /// The number of the last time that units were given back, and of the last one that was told of.
    release: u64,
    release_told: u64,
    /// When the last call was sent that the store heard.
    heard_at: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Telling {
    field: u32,
    more: i64,
    /// The least that the store can have after it ...
    least: u64,
    /// ... and how much more, by calls that were under way at the same time.
    more_at_most: u64,
    release: u64,
    sent_at: Instant,
}

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

/// The units that a call asks for, by the policies' indexes. Dropped before its end, nobody knows what became of it.
#[derive(Debug, Default)]
pub struct Asking<'s>(Vec<(usize, Asked<'s>)>);

/// Units of one key that a call asks for which is under way.
#[derive(Debug)]
struct Asked<'s> {
    slots: &'s Slots,
    entity: EntityKey,
    key: Arc<str>,
    field: u32,
    units: u64,
    sent_at: Instant,
    charged: Option<bool>,
}

impl Slots {
    /// Nothing is held yet. `gateway` is a number that no other gateway has, and not this one after a restart.
    #[must_use]
    pub fn new(gateway: u64) -> Self {
        Self {
            gateway,
            field: AtomicU32::new(0),
            releases: AtomicU64::new(0),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            told: [const { Notify::const_new() }; SHARDS],
            due: Mutex::default(),
            told_of_due: Notify::new(),
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
    pub fn ask(&self, prefix: &str, checks: &[Check<'_>], now: Instant) -> Option<Asking<'_>> {
        let mut asking = Asking::default();
        for check in checks.iter().filter(|check| check.cost.units() > 0) {
            if let Rule::Concurrency(rule) = check.rule {
                let asked = self.ask_of(prefix, check, rule, now)?;
                asking.0.push((check.policy.index, asked));
            }
        }
        Some(asking)
    }

    fn ask_of(
        &self,
        prefix: &str,
        check: &Check<'_>,
        rule: &Concurrency,
        now: Instant,
    ) -> Option<Asked<'_>> {
        let (entity, key) = (check.entity, Arc::from(key(prefix, check)));
        let mut shard = self.shard(entity)?;
        let held = self.held(&mut shard, entity, &key, rule, now)?;
        let units = check.cost.units();
        held.asked = held.asked.saturating_add(units);
        held.asking = held.asking.saturating_add(1);
        if let Some(telling) = &mut held.telling {
            telling.more_at_most = telling.more_at_most.saturating_add(units);
        }
        let field = held.field;
        drop(shard);
        Some(Asked {
            slots: self,
            entity,
            key,
            field,
            units,
            sent_at: now,
            charged: None,
        })
    }

    /// Takes units by this gateway's own share of the limit, while the store gives no decision: all that it holds counts.
    /// The store hears of them when it is back.
    #[must_use]
    pub fn take_alone(&self, prefix: &str, check: &Check<'_>, now: Instant) -> Option<Decision> {
        let Rule::Concurrency(rule) = check.rule else {
            return None;
        };
        let (entity, key) = (check.entity, Arc::from(key(prefix, check)));
        let mut shard = self.shard(entity)?;
        let (keep, decision) = rule.decide(
            shard.get(&key).map(|held| concurrency::State {
                in_flight: held.units,
            }),
            check.cost,
        );
        if let Some(keep) = keep {
            let held = self.held(&mut shard, entity, &key, rule, now)?;
            let more = keep.in_flight.saturating_sub(held.units);
            held.units = keep.in_flight;
            self.units.fetch_add(more, Ordering::Relaxed);
            self.look_after(&mut shard, &key, now);
        }
        Some(decision)
    }

    /// The units of `check` are not in flight any more.
    pub fn release(&self, prefix: &str, check: &Check<'_>, now: Instant) {
        let key = Arc::from(key(prefix, check));
        let Some(mut shard) = self.shard(check.entity) else {
            return;
        };
        if let Some(held) = shard.get_mut(&key) {
            let units = check.cost.units().min(held.units);
            held.units -= units;
            held.release = self
                .releases
                .fetch_add(1, Ordering::Relaxed)
                .wrapping_add(1);
            self.units.fetch_sub(units, Ordering::Relaxed);
        }
        self.look_after(&mut shard, &key, now);
    }

    /// Waits until what was given back before, of what `checks` ask for, is told: whoever has seen a request end finds its
    /// units free, by this gateway. It is waited for once, whatever becomes of the call that tells.
    pub async fn settled(&self, prefix: &str, checks: &[Check<'_>], now: Instant) {
        for check in checks {
            if !check.rule.lends() || check.cost.units() == 0 {
                continue;
            }
            let key = Arc::from(key(prefix, check));
            let mut until = None;
            while let Some(told) = self.told_in(check.entity).map(Notify::notified) {
                if self.is_settled(check.entity, &key, &mut until, now) {
                    break;
                }
                told.await;
            }
        }
    }

    /// Whether as much was told of as had been given back when this was asked first.
    fn is_settled(
        &self,
        entity: EntityKey,
        key: &Arc<str>,
        until: &mut Option<u64>,
        now: Instant,
    ) -> bool {
        let Some(mut shard) = self.shard(entity) else {
            return true;
        };
        let Some(held) = shard.get_mut(key) else {
            return true;
        };
        let until = *until.get_or_insert(held.release);
        let is_settled = held.release_told >= until || held.asking_before > 0;
        if !is_settled && held.wants(now) {
            self.put_due(held, key);
        }
        is_settled
    }

    /// Nothing is in flight any more: the process ends.
    pub fn release_all(&self, now: Instant) {
        for shard in &self.shards {
            let mut shard = locked(shard);
            let keys: Vec<_> = shard.keys().cloned().collect();
            for key in keys {
                if let Some(held) = shard.get_mut(&key) {
                    self.units.fetch_sub(held.units, Ordering::Relaxed);
                    held.units = 0;
                }
                self.look_after(&mut shard, &key, now);
            }
        }
    }

    /// Finds what is to be told without having changed: what is held for a third of its lease without a word of it, or
    /// all if `all` is doubtful.
    pub fn renew(&self, all: bool, now: Instant) {
        for shard in &self.shards {
            let mut shard = locked(shard);
            let keys: Vec<_> = shard
                .iter()
                .filter(|(_, held)| all && held.units > 0 || held.wants(now))
                .map(|(key, _)| Arc::clone(key))
                .collect();
            for key in keys {
                if let Some(held) = shard.get_mut(&key) {
                    self.put_due(held, &key);
                }
            }
            shard.retain(|_, held| !held.is_over(now));
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
            let Some(mut shard) = self.shard(entity) else {
                continue;
            };
            if let Some(held) = shard.get_mut(&key) {
                tells.extend(held.tell(self.gateway, key, now));
            }
        }
        tells
    }

    /// What became of a call that told.
    pub fn heard(&self, tell: &Tell, heard: Heard, now: Instant) {
        self.note(tell, heard, now);
        if let Some(told) = self.told_in(tell.entity) {
            told.notify_waiters();
        }
    }

    fn note(&self, tell: &Tell, heard: Heard, now: Instant) {
        let Some(mut shard) = self.shard(tell.entity) else {
            return;
        };
        if let Some(held) = shard.get_mut(&tell.key)
            && let Some(telling) = held.telling.take()
        {
            held.release_told = held.release_told.max(telling.release);
            match heard {
                Heard::NotMade => {}
                // It was about a field that another has taken the place of since.
                _ if telling.field != held.field => {}
                // Told twice that it is still held it is as if told once.
                Heard::Unknown if telling.more == 0 && !held.is_torn => {}
                Heard::Unknown => held.tear(self.next_field()),
                Heard::Units(units) => {
                    held.heard_at = held.heard_at.max(telling.sent_at);
                    held.told = held.told.saturating_add_signed(telling.more);
                    held.is_torn = false;
                    let most = telling.least.saturating_add(telling.more_at_most);
                    if !(telling.least..=most).contains(&units) {
                        let lost = telling.least.saturating_sub(units);
                        self.restored.fetch_add(lost, Ordering::Relaxed);
                        held.tear(self.next_field());
                    }
                }
            }
            // What was not made is told again when the store is looked for again.
            if heard == Heard::NotMade {
                return;
            }
        }
        self.look_after(&mut shard, &tell.key, now);
    }

    fn next_field(&self) -> u32 {
        self.field.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    fn shard(&self, entity: EntityKey) -> Option<MutexGuard<'_, Shard>> {
        self.shards.get(shard_of(entity)).map(locked)
    }

    /// Who waits for what is told of a shard.
    fn told_in(&self, entity: EntityKey) -> Option<&Notify> {
        self.told.get(shard_of(entity))
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
        let held = shard.entry(Arc::clone(key)).or_insert_with(|| Held {
            entity,
            rule: *rule,
            field,
            units: 0,
            told: 0,
            asked: 0,
            asking: 0,
            asking_before: 0,
            is_torn: false,
            telling: None,
            is_due: false,
            release,
            release_told: release,
            heard_at: now,
        });
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

    fn answered(&self, asked: &Asked<'_>) {
        let Some(mut shard) = self.shard(asked.entity) else {
            return;
        };
        let Some(held) = shard.get_mut(&asked.key) else {
            return;
        };
        let is_current = held.field == asked.field;
        if is_current {
            held.asked = held.asked.saturating_sub(asked.units);
            held.asking = held.asking.saturating_sub(1);
        } else {
            held.asking_before = held.asking_before.saturating_sub(1);
        }
        match asked.charged {
            Some(true) => {
                held.units = held.units.saturating_add(asked.units);
                self.units.fetch_add(asked.units, Ordering::Relaxed);
                if is_current {
                    held.told = held.told.saturating_add(asked.units);
                    held.heard_at = held.heard_at.max(asked.sent_at);
                }
            }
            Some(false) => {}
            None if is_current => held.tear(self.next_field()),
            // What that field has goes anyway.
            None => {}
        }
        self.look_after(&mut shard, &asked.key, asked.sent_at);
    }
}

impl Held {
    /// Goes on with another field, since nobody knows what the store has in this one.
    fn tear(&mut self, field: u32) {
        self.field = field;
        self.told = 0;
        self.asked = 0;
        self.asking_before = self
            .asking_before
            .saturating_add(mem::take(&mut self.asking));
        self.is_torn = true;
    }

    /// Whether there is something to tell, and may be told.
    fn wants(&self, now: Instant) -> bool {
        let every = lease(&self.rule) / RENEWALS;
        let is_silent = now.saturating_duration_since(self.heard_at) >= every;
        let may = self.asking_before == 0 && self.telling.is_none();
        may && (self.is_torn || self.units != self.told || self.units > 0 && is_silent)
    }

    /// Whether there is nothing to know of it: nothing is held or asked for, and the store knows or has let its lease
    /// end.
    fn is_over(&self, now: Instant) -> bool {
        let is_idle = self.units == 0
            && self.asking == 0
            && self.asking_before == 0
            && self.telling.is_none();
        let is_told = self.told == 0 && !self.is_torn;
        let has_ended = now.saturating_duration_since(self.heard_at) >= lease(&self.rule);
        is_idle && (is_told || has_ended)
    }

    fn tell(&mut self, gateway: u64, key: Arc<str>, now: Instant) -> Option<Tell> {
        self.is_due = false;
        if self.asking_before > 0 || self.telling.is_some() {
            return None;
        }
        let more = signed(self.units).saturating_sub(signed(self.told));
        self.telling = Some(Telling {
            field: self.field,
            more,
            least: self.units,
            more_at_most: self.asked,
            release: self.release,
            sent_at: now,
        });
        Some(Tell {
            key,
            entity: self.entity,
            rule: Rule::Concurrency(self.rule),
            holder: Holder::new(gateway, self.field),
            more,
        })
    }
}

impl Asking<'_> {
    /// Who holds what `check` takes.
    #[must_use]
    pub fn holder_of(&self, check: &Check<'_>) -> Holder {
        let asked = self.0.iter().find(|(of, _)| *of == check.policy.index);
        asked.map_or_else(Holder::default, |(_, asked)| {
            Holder::new(asked.slots.gateway, asked.field)
        })
    }

    /// It was answered: of which policies it charged something, if of any.
    pub fn end(mut self, charged: impl Fn(usize) -> bool) {
        for (of, asked) in &mut self.0 {
            asked.charged = Some(charged(*of));
        }
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.slots.answered(self);
    }
}

/// Other bits than the local store's shards go by.
fn shard_of(entity: EntityKey) -> usize {
    let [first, ..] = entity.0;
    usize::from(first) % SHARDS
}

/// How long what is held counts after it was last heard of.
fn lease(rule: &Concurrency) -> Duration {
    Duration::from_micros(rule.lease_us().get())
}

fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
