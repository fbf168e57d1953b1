//! May it pass? Pure arithmetic: what was kept, when it is, what is asked; what to keep, and the answer.
//!
//! Whole numbers only: microseconds, and units of cost. Every number stays below [`EXACT_MAX`], since the Lua
//! twin of each kind holds its numbers in doubles; constructors prove it for their policy.

pub mod all;
pub mod bucket;
pub mod calendar;
pub mod concurrency;
mod exact;
pub mod fixed_window;
mod leaky_bucket;
mod log;
pub mod penalty;
pub mod sliding_counter;
pub mod sliding_log;
mod token_bucket;

use std::num::{NonZeroU32, NonZeroU64};

pub use all::{Ask, Step, decide_all};
pub use calendar::{Calendar, CalendarUnit};
pub use concurrency::Concurrency;
pub use fixed_window::{Anchor, FixedWindow};
pub use leaky_bucket::LeakyBucket;
pub use penalty::Penalty;
pub use sliding_counter::SlidingCounter;
pub use sliding_log::SlidingLog;
pub use token_bucket::TokenBucket;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The largest whole number that a double holds together with all below it: 2^53 - 1.
pub const EXACT_MAX: u64 = (1 << 53) - 1;

/// The largest limit, burst and cost there may be: 10^12 units.
pub const UNITS_MAX: u64 = 1_000_000_000_000;

/// The most that a count can come to, of a kind that counts units: 2^48 - 1, six bytes.
const USED_MAX: u64 = (1 << 48) - 1;

/// A moment of the store's clock: microseconds since the epoch.
#[derive(
    Clone, Copy, Debug, Default, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize,
)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The moment `micros` after the epoch; past [`EXACT_MAX`] (the year 2255) it stands still there.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        if micros > EXACT_MAX {
            Self(EXACT_MAX)
        } else {
            Self(micros)
        }
    }

    /// Microseconds since the epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Microseconds since `earlier`; 0 if that is later.
    #[must_use]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Units that a request takes; 0 only looks.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Cost(u64);

impl Cost {
    /// Nothing: it only looks.
    pub const NONE: Self = Self(0);

    /// One unit.
    pub const ONE: Self = Self(1);

    /// `units`, at most [`UNITS_MAX`]: more never passes any limit, and neither does that.
    #[must_use]
    pub const fn new(units: u64) -> Self {
        if units > UNITS_MAX + 1 {
            Self(UNITS_MAX + 1)
        } else {
            Self(units)
        }
    }

    /// The units.
    #[must_use]
    pub const fn units(self) -> u64 {
        self.0
    }
}

/// Allowed or denied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Within the limit.
    Allow,
    /// Over it.
    Deny,
}

/// The answer of one check.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision {
    /// Whether this check lets the request pass.
    pub verdict: Verdict,
    /// The largest cost that would be allowed at this instant, after this decision.
    pub remaining: u64,
    /// The least wait after which this cost is allowed if nobody else calls: 0 when allowed, `None` is never. Of
    /// concurrency, where that hangs on others, when to try again.
    pub retry_after_us: Option<u64>,
    /// How long until nothing of what was used counts any more; of units in flight, how long if they are not given
    /// back.
    pub reset_after_us: u64,
    /// How long an allowed request waits for its turn; 0 but in a leaky bucket.
    pub delay_us: u64,
    /// Whether a penalty denies.
    pub penalised: Penalised,
}

/// Whether a penalty denies whom a check is about.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Penalised {
    /// None does.
    #[default]
    No,
    /// One begins with this denial.
    Begins,
    /// One runs.
    Runs,
}

impl Decision {
    /// Has it tell what is left once `cost`, which `rule` lent, is given back.
    pub(crate) fn give_back(&mut self, rule: &Rule, cost: Cost) {
        let left = self.remaining.saturating_add(cost.units());
        self.remaining = left.min(rule.capacity());
        if self.remaining == rule.capacity() {
            self.reset_after_us = 0;
        }
    }

    /// Has it tell what `found`, a look at cost 0, finds once what this decision charged is given back.
    pub const fn tell_of(&mut self, found: &Self) {
        self.remaining = found.remaining;
        self.reset_after_us = found.reset_after_us;
        self.delay_us = 0;
    }
}

/// What an allowed request was charged, as it takes to give it back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Charge {
    /// When.
    pub at: Timestamp,
    /// What it took.
    pub cost: Cost,
    /// [`Decision::reset_after_us`] of the decision that took it.
    pub reset_after_us: u64,
}

/// What becomes of a charge once it is known what the request was worth.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Settled {
    /// It took so much. What was charged above that is given back; what it took above the charge is charged now,
    /// whatever the limit.
    Spent(Cost),
    /// All that is kept of whom it was charged to is forgotten.
    Forgotten,
}

/// So many units a window, as a policy's `limit` says it.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Limit {
    /// Units per window, at most [`UNITS_MAX`].
    pub count: NonZeroU64,
    /// Length of the window.
    pub window_us: NonZeroU64,
}

/// A number too large, over its window, to be counted exactly in both stores.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error(
    "{found} over this window is too large to count exactly; the largest that fits is {largest}"
)]
pub struct TooLarge {
    /// What was asked for.
    pub found: u64,
    /// The largest limit (of a bucket: burst) over this window that fits.
    pub largest: u64,
}

/// A policy's kind and numbers: one of the algorithms.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Rule {
    /// Counts per window.
    FixedWindow(FixedWindow),
    /// Remembers each request.
    SlidingLog(SlidingLog),
    /// Estimates from two windows.
    SlidingCounter(SlidingCounter),
    /// Refills steadily, lets a burst through.
    TokenBucket(TokenBucket),
    /// Drains steadily, makes what is allowed wait its turn.
    LeakyBucket(LeakyBucket),
    /// Counts what is in flight.
    Concurrency(Concurrency),
}

impl Rule {
    /// The kind's name, as `kind` in the configuration has it.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::FixedWindow(_) => "fixed-window",
            Self::SlidingLog(_) => "sliding-log",
            Self::SlidingCounter(_) => "sliding-counter",
            Self::TokenBucket(_) => "token-bucket",
            Self::LeakyBucket(_) => "leaky-bucket",
            Self::Concurrency(_) => "concurrency",
        }
    }

    /// Units per window; `None` of a kind that has no window.
    #[must_use]
    pub const fn limit(&self) -> Option<Limit> {
        Some(match self {
            Self::FixedWindow(rule) => rule.limit(),
            Self::SlidingLog(rule) => rule.limit(),
            Self::SlidingCounter(rule) => rule.limit(),
            Self::TokenBucket(rule) => rule.limit(),
            Self::LeakyBucket(rule) => rule.limit(),
            Self::Concurrency(_) => return None,
        })
    }

    /// The units of its limit: per window, or at once where there is no window.
    #[must_use]
    pub const fn count(&self) -> NonZeroU64 {
        match (self, self.limit()) {
            (Self::Concurrency(rule), _) => rule.limit(),
            (_, Some(limit)) => limit.count,
            (_, None) => NonZeroU64::MIN,
        }
    }

    /// Whether what it charges is only lent: it counts until it is given back.
    #[must_use]
    pub const fn lends(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }

    /// The most units at once: a bucket's burst, else the limit. A larger cost is never allowed.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match self {
            Self::TokenBucket(rule) => rule.burst(),
            Self::LeakyBucket(rule) => rule.burst(),
            _ => self.count().get(),
        }
    }

    /// Whether it is a bucket: then what is used is no count of a window.
    #[must_use]
    pub const fn is_bucket(&self) -> bool {
        matches!(self, Self::TokenBucket(_) | Self::LeakyBucket(_))
    }

    /// The calendar that its windows are aligned to, if they are to one.
    #[must_use]
    pub fn calendar(&self) -> Option<&Calendar> {
        match self {
            Self::FixedWindow(rule) => rule.calendar(),
            _ => None,
        }
    }

    /// The same with another limit. A bucket's burst grows and shrinks with the count, rounded up. What has no window
    /// stays as it is.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn with_limit(&self, limit: Limit) -> Result<Self, TooLarge> {
        match self {
            Self::FixedWindow(rule) => {
                FixedWindow::new(limit, rule.anchor().clone()).map(Self::FixedWindow)
            }
            Self::SlidingLog(_) => SlidingLog::new(limit).map(Self::SlidingLog),
            Self::SlidingCounter(rule) => {
                SlidingCounter::new(limit, rule.strict()).map(Self::SlidingCounter)
            }
            Self::TokenBucket(_) => {
                TokenBucket::new(limit, self.burst_with(limit.count)).map(Self::TokenBucket)
            }
            Self::LeakyBucket(rule) => {
                LeakyBucket::new(limit, self.burst_with(limit.count), rule.max_wait_us())
                    .map(Self::LeakyBucket)
            }
            Self::Concurrency(_) => Ok(self.clone()),
        }
    }

    /// The same with another number of units at once. What has a window stays as it is, and so does what may have none.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn with_count(&self, count: u64) -> Result<Self, TooLarge> {
        match (self, NonZeroU64::new(count)) {
            (Self::Concurrency(rule), Some(count)) => {
                Concurrency::new(count, rule.lease_us()).map(Self::Concurrency)
            }
            _ => Ok(self.clone()),
        }
    }

    /// As many times `count` as the burst is of this rule's, rounded up.
    fn burst_with(&self, count: NonZeroU64) -> NonZeroU64 {
        let grown = u128::from(self.capacity()).saturating_mul(u128::from(count.get()));
        let burst = grown.div_ceil(u128::from(self.count().get()));
        let burst = u64::try_from(burst).unwrap_or(u64::MAX);
        NonZeroU64::new(burst).unwrap_or(NonZeroU64::MIN)
    }

    /// From when on what is kept equals a fresh state, where `decision` was made at `now`. In process what is lent
    /// counts until it is given back.
    #[must_use]
    pub const fn fresh_at(&self, now: Timestamp, decision: &Decision) -> Timestamp {
        if self.lends() && decision.reset_after_us > 0 {
            return Timestamp::from_micros(EXACT_MAX);
        }
        Timestamp::from_micros(now.as_micros().saturating_add(decision.reset_after_us))
    }

    /// Decides one request at `now`, charging `cost` or nothing.
    ///
    /// Returns what becomes of the state, and the answer. What another kind kept counts as nothing.
    #[must_use]
    pub fn decide(&self, kept: Option<&State>, now: Timestamp, cost: Cost) -> (Change, Decision) {
        let (change, decision) = match self {
            Self::FixedWindow(rule) => {
                let kept = kept.and_then(State::as_fixed_window);
                let (keep, decision) = rule.decide(kept, now, cost);
                (keep.map(|k| Change::Keep(State::FixedWindow(k))), decision)
            }
            Self::SlidingLog(rule) => {
                let (entry, decision) =
                    rule.decide(kept.and_then(State::as_sliding_log), now, cost);
                (entry.map(Change::Log), decision)
            }
            Self::SlidingCounter(rule) => {
                let kept = kept.and_then(State::as_sliding_counter);
                let (keep, decision) = rule.decide(kept, now, cost);
                (
                    keep.map(|k| Change::Keep(State::SlidingCounter(k))),
                    decision,
                )
            }
            Self::TokenBucket(rule) => {
                let (keep, decision) = rule.decide(kept.and_then(State::as_bucket), now, cost);
                (keep.map(|k| Change::Keep(State::Bucket(k))), decision)
            }
            Self::LeakyBucket(rule) => {
                let (keep, decision) = rule.decide(kept.and_then(State::as_bucket), now, cost);
                (keep.map(|k| Change::Keep(State::Bucket(k))), decision)
            }
            Self::Concurrency(rule) => {
                let (keep, decision) = rule.decide(kept.and_then(State::as_concurrency), cost);
                (keep.map(|k| Change::Keep(State::Concurrency(k))), decision)
            }
        };
        (change.unwrap_or(Change::None), decision)
    }

    /// Corrects what `charge` took to what the request was worth.
    ///
    /// Less is given back as far as nobody gains by it: less than that if a bucket has refilled some of it since,
    /// nothing if it does not count any more, or if others wait behind it in a leaky bucket. More is charged at `now`,
    /// up to what can be counted: usage may then stand above the limit.
    ///
    /// Returns what is kept from now on; `None` is the same as never seen.
    #[must_use]
    pub fn settle(
        &self,
        kept: Option<State>,
        charge: Charge,
        settled: Settled,
        now: Timestamp,
    ) -> Option<State> {
        let Settled::Spent(spent) = settled else {
            return None;
        };
        match spent.units().checked_sub(charge.cost.units()) {
            Some(0) => kept,
            Some(more) => self.charge_late(kept, Cost::new(more), now),
            None => {
                let less = charge.cost.units().saturating_sub(spent.units());
                let charge = Charge {
                    cost: Cost::new(less),
                    ..charge
                };
                self.refund(kept?, charge, now)
            }
        }
    }

    fn charge_late(&self, kept: Option<State>, cost: Cost, now: Timestamp) -> Option<State> {
        Some(match self {
            Self::FixedWindow(rule) => {
                let kept = kept.as_ref().and_then(State::as_fixed_window);
                State::FixedWindow(rule.charge_late(kept, cost, now))
            }
            Self::SlidingLog(rule) => {
                let mut log = match kept {
                    Some(State::SlidingLog(log)) => log,
                    _ => sliding_log::State::default(),
                };
                log.write(rule.late_entry(&log, cost, now));
                State::SlidingLog(log)
            }
            Self::SlidingCounter(rule) => {
                let kept = kept.as_ref().and_then(State::as_sliding_counter);
                State::SlidingCounter(rule.charge_late(kept, cost, now))
            }
            Self::TokenBucket(rule) => {
                let kept = kept.as_ref().and_then(State::as_bucket);
                State::Bucket(rule.charge_late(kept, cost, now))
            }
            Self::LeakyBucket(rule) => {
                let kept = kept.as_ref().and_then(State::as_bucket);
                State::Bucket(rule.charge_late(kept, cost, now))
            }
            // What is lent is given back, and never charged late.
            Self::Concurrency(_) => return kept,
        })
    }

    fn refund(&self, kept: State, charge: Charge, now: Timestamp) -> Option<State> {
        match (self, kept) {
            (Self::FixedWindow(rule), State::FixedWindow(kept)) => {
                rule.refund(kept, charge, now).map(State::FixedWindow)
            }
            (Self::SlidingLog(rule), State::SlidingLog(kept)) => {
                rule.refund(kept, charge, now).map(State::SlidingLog)
            }
            (Self::SlidingCounter(rule), State::SlidingCounter(kept)) => {
                rule.refund(kept, charge, now).map(State::SlidingCounter)
            }
            (Self::TokenBucket(rule), State::Bucket(kept)) => {
                rule.refund(kept, charge, now).map(State::Bucket)
            }
            (Self::LeakyBucket(rule), State::Bucket(kept)) => {
                rule.refund(kept, charge, now).map(State::Bucket)
            }
            (Self::Concurrency(_), State::Concurrency(kept)) => {
                Concurrency::release(kept, charge.cost).map(State::Concurrency)
            }
            (_, kept) => Some(kept),
        }
    }

    /// Of a leaky bucket, the one that counts the same and lets nobody wait.
    #[must_use]
    pub fn without_waiting(&self) -> Option<Self> {
        match self {
            Self::LeakyBucket(rule) => Some(Self::LeakyBucket(rule.without_waiting())),
            _ => None,
        }
    }

    /// The rule by which one of `instances` counts alone: together they allow at most one unit an instance more.
    #[must_use]
    pub fn share(&self, instances: NonZeroU32) -> Self {
        let instances = NonZeroU64::from(instances);
        if instances == NonZeroU64::MIN {
            return self.clone();
        }
        match self {
            Self::FixedWindow(rule) => Self::FixedWindow(rule.share(instances)),
            Self::SlidingLog(rule) => Self::SlidingLog(rule.share(instances)),
            Self::SlidingCounter(rule) => Self::SlidingCounter(rule.share(instances)),
            Self::TokenBucket(rule) => rule
                .share(instances)
                .map_or_else(|| self.clone(), Self::TokenBucket),
            Self::LeakyBucket(rule) => rule
                .share(instances)
                .map_or_else(|| self.clone(), Self::LeakyBucket),
            Self::Concurrency(rule) => Self::Concurrency(rule.share(instances)),
        }
    }
}

/// What a store keeps of one policy for one entity. None of it is the same as never seen.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum State {
    /// Of a fixed window.
    FixedWindow(fixed_window::State),
    /// Of a sliding log.
    SlidingLog(sliding_log::State),
    /// Of a sliding counter.
    SlidingCounter(sliding_counter::State),
    /// Of a token bucket or a leaky bucket.
    Bucket(bucket::State),
    /// Of concurrency.
    Concurrency(concurrency::State),
    /// Of a penalty.
    Penalty(penalty::State),
}

impl State {
    const fn as_fixed_window(&self) -> Option<fixed_window::State> {
        if let Self::FixedWindow(state) = self {
            Some(*state)
        } else {
            None
        }
    }

    const fn as_sliding_log(&self) -> Option<&sliding_log::State> {
        if let Self::SlidingLog(state) = self {
            Some(state)
        } else {
            None
        }
    }

    const fn as_sliding_counter(&self) -> Option<sliding_counter::State> {
        if let Self::SlidingCounter(state) = self {
            Some(*state)
        } else {
            None
        }
    }

    /// That of a penalty, if it is one.
    #[must_use]
    pub const fn as_penalty(&self) -> Option<penalty::State> {
        if let Self::Penalty(state) = self {
            Some(*state)
        } else {
            None
        }
    }

    const fn as_bucket(&self) -> Option<bucket::State> {
        if let Self::Bucket(state) = self {
            Some(*state)
        } else {
            None
        }
    }

    const fn as_concurrency(&self) -> Option<concurrency::State> {
        if let Self::Concurrency(state) = self {
            Some(*state)
        } else {
            None
        }
    }

    /// Whether it outlives the process: what is in flight ends with it.
    #[must_use]
    pub const fn outlives_process(&self) -> bool {
        !matches!(self, Self::Concurrency(_))
    }
}

/// What becomes of a state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// It stays as it is.
    None,
    /// This takes its place.
    Keep(State),
    /// This is written at the end of a log, in place.
    Log(sliding_log::Entry),
}

impl Change {
    /// Makes the change to what may be kept.
    pub fn apply(self, kept: &mut Option<State>) {
        match (self, kept) {
            (Self::None, _) => {}
            (change, Some(kept)) => change.apply_to(kept),
            (Self::Keep(state), kept) => *kept = Some(state),
            (Self::Log(entry), kept) => {
                *kept = Some(State::SlidingLog(sliding_log::State::of(entry)));
            }
        }
    }

    /// Makes the change to what is kept.
    pub fn apply_to(self, kept: &mut State) {
        match (self, kept) {
            (Self::None, _) => {}
            (Self::Keep(state), kept) => *kept = state,
            (Self::Log(entry), State::SlidingLog(log)) => log.write(entry),
            (Self::Log(entry), kept) => *kept = State::SlidingLog(sliding_log::State::of(entry)),
        }
    }
}
