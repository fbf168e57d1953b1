//! What is held of one key, and what the store was told of it.

use std::mem;
use std::time::{Duration, Instant};

use super::Heard;
use crate::check::EntityKey;
use crate::decide::Concurrency;

/// What is held is said this often in a lease.
pub const RENEWALS: u32 = 3;

/// What is held of one key, and known of it.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) entity: EntityKey,
    pub(super) rule: Concurrency,
    /// Which field of this gateway is in force.
    pub(super) field: u32,
    /// Units of requests in flight.
    pub(super) units: u64,
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
    /// Whether it stands among those that are to be told of.
    pub(super) is_due: bool,
    /// The number of the last time that units were given back, and of the last one that was told of.
    release: u64,
    release_told: u64,
    /// When the last call was sent that the store heard.
    heard_at: Instant,
}

/// A call that tells, as it was when it was sent.
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

/// A call that asked, as it was when it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) field: u32,
    pub(super) units: u64,
    pub(super) sent_at: Instant,
}

impl Held {
    /// Nothing so far. `release` is the last one of all keys.
    pub(super) const fn new(
        entity: EntityKey,
        rule: Concurrency,
        field: u32,
        release: u64,
        now: Instant,
    ) -> Self {
        Self {
            entity,
            rule,
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
        }
    }

    /// A call is made that asks for so many units.
    pub(super) fn ask(&mut self, units: u64, now: Instant) -> Asked {
        self.asked = self.asked.saturating_add(units);
        self.asking = self.asking.saturating_add(1);
        if let Some(telling) = &mut self.telling {
            telling.more_at_most = telling.more_at_most.saturating_add(units);
        }
        Asked {
            field: self.field,
            units,
            sent_at: now,
        }
    }

    /// The call was answered, and charged the units or not; `None` if nobody knows. Says whether another field is to
    /// take this one's place.
    pub(super) fn answered(&mut self, asked: Asked, charged: Option<bool>) -> bool {
        let is_current = self.field == asked.field;
        if is_current {
            self.asked = self.asked.saturating_sub(asked.units);
            self.asking = self.asking.saturating_sub(1);
        } else {
            self.asking_before = self.asking_before.saturating_sub(1);
        }
        if charged == Some(true) {
            self.units = self.units.saturating_add(asked.units);
            if is_current {
                self.told = self.told.saturating_add(asked.units);
                self.heard_at = self.heard_at.max(asked.sent_at);
            }
        }
        // What an earlier field has goes anyway.
        charged.is_none() && is_current
    }

    /// So many units are not in flight any more, or as many as there are; returns how many. `release` is its number.
    pub(super) fn release(&mut self, units: u64, release: u64) -> u64 {
        let units = units.min(self.units);
        self.units -= units;
        self.release = release;
        units
    }

    /// Whether all is told that was given back up to `release`. Before the first question that is the last one.
    pub(super) fn is_told_of(&self, release: &mut Option<u64>) -> bool {
        let until = *release.get_or_insert(self.release);
        // Where the field is torn nothing is told before all is known: that may take longer than anybody waits.
        self.release_told >= until || self.asking_before > 0
    }

    /// Goes on with another field, since nobody knows what the store has in this one.
    pub(super) fn tear(&mut self, field: u32) {
        self.field = field;
        self.told = 0;
        self.asked = 0;
        let asking = mem::take(&mut self.asking);
        self.asking_before = self.asking_before.saturating_add(asking);
        self.is_torn = true;
    }

    /// Begins to tell, if it may: how many units more than were told before, or less if that is below 0.
    pub(super) fn tell(&mut self, now: Instant) -> Option<i64> {
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
        Some(more)
    }

    /// What became of the call that told. Says whether another field is to take this one's place, and how many units
    /// the store had lost.
    pub(super) fn heard(&mut self, heard: Heard) -> (bool, u64) {
        let Some(telling) = self.telling.take() else {
            return (false, 0);
        };
        self.release_told = self.release_told.max(telling.release);
        // If another field has taken its place since, it says nothing of that.
        if telling.field != self.field {
            return (false, 0);
        }
        match heard {
            Heard::NotMade => (false, 0),
            // To say twice that so much is still held is as good as once.
            Heard::Unknown => (telling.more != 0 || self.is_torn, 0),
            Heard::Units(units) => {
                self.heard_at = self.heard_at.max(telling.sent_at);
                self.told = self.told.saturating_add_signed(telling.more);
                self.is_torn = false;
                let most = telling.least.saturating_add(telling.more_at_most);
                let is_right = (telling.least..=most).contains(&units);
                (!is_right, telling.least.saturating_sub(units))
            }
        }
    }

    /// Whether there is something to tell, and may be told.
    pub(super) fn wants(&self, now: Instant) -> bool {
        let is_silent =
            now.saturating_duration_since(self.heard_at) >= lease(&self.rule) / RENEWALS;
        let may = self.asking_before == 0 && self.telling.is_none();
        may && (self.is_torn || self.units != self.told || self.units > 0 && is_silent)
    }

    /// Whether there is nothing to know of it: nothing is held or asked for, and the store knows or has let its lease
    /// end.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let is_idle = self.units == 0
            && self.asking == 0
            && self.asking_before == 0
            && self.telling.is_none();
        let is_told = self.told == 0 && !self.is_torn;
        let has_ended = now.saturating_duration_since(self.heard_at) >= lease(&self.rule);
        is_idle && (is_told || has_ended)
    }
}

/// How long what is held counts after it was last heard of.
fn lease(rule: &Concurrency) -> Duration {
    Duration::from_micros(rule.lease_us().get())
}

fn signed(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}
