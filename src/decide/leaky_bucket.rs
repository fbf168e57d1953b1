//! Leaky bucket: drains steadily, makes what is allowed wait its turn.
//!
//! What is owed is the level: what has been allowed and has not drained yet. The application sees requests at the
//! pace of the limit, however they came.
//!
//! Lua twin: `lua/leaky_bucket.lua`, line for line; what both buckets share is in [`super::bucket`].

use std::num::NonZeroU64;

use super::bucket::{Meter, Owed, State};
use super::{Cost, Decision, Limit, Timestamp, TooLarge, Verdict};

/// `limit` units per window leave, `burst` of them fit in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct LeakyBucket {
    meter: Meter,
    max_wait_us: Option<u64>,
}

impl LeakyBucket {
    /// Builds the rule. What would wait longer than `max_wait_us` is denied.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn new(
        limit: Limit,
        burst: NonZeroU64,
        max_wait_us: Option<u64>,
    ) -> Result<Self, TooLarge> {
        Meter::new(limit, burst).map(|meter| Self { meter, max_wait_us })
    }

    /// Units per window.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.meter.limit()
    }

    /// The most units at once.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.meter.burst()
    }

    /// The longest that an allowed request waits.
    #[must_use]
    pub const fn max_wait_us(&self) -> Option<u64> {
        self.max_wait_us
    }

    /// Decides one request at `now`, charging `cost` or nothing.
    ///
    /// Returns what to keep from now on, `None` if that is what was kept, and the answer.
    #[must_use]
    pub fn decide(
        &self,
        kept: Option<State>,
        now: Timestamp,
        cost: Cost,
    ) -> (Option<State>, Decision) {
        let meter = &self.meter;
        let owed = meter.owed(kept, now);
        let delay = meter.micros_to_earn(owed.debt, owed, now);
        if cost.units() == 0 {
            let answer = self.answer(Verdict::Allow, owed.debt, owed, now, Some(0));
            return (
                None,
                Decision {
                    delay_us: delay,
                    ..answer
                },
            );
        }
        let never = cost.units() > meter.burst();
        let charged = owed.debt.saturating_add(meter.price(cost));
        let too_long = self
            .max_wait_us
            .map_or(0, |max_wait| delay.saturating_sub(max_wait));

        if !never && charged <= meter.capacity() && too_long == 0 {
            let keep = meter.keep(charged, owed);
            let answer = self.answer(Verdict::Allow, charged, owed, now, Some(0));
            return (
                Some(keep),
                Decision {
                    delay_us: delay,
                    ..answer
                },
            );
        }
        let excess = charged.saturating_sub(meter.capacity());
        let wait = if excess > 0 {
            meter.micros_to_earn(excess, owed, now)
        } else {
            0
        };
        let retry_after = (!never).then_some(wait.max(too_long));
        let repaired = owed.stepped_back.then(|| meter.keep(owed.debt, owed));
        (
            repaired,
            self.answer(Verdict::Deny, owed.debt, owed, now, retry_after),
        )
    }

    fn answer(
        &self,
        verdict: Verdict,
        debt: u64,
        owed: Owed,
        now: Timestamp,
        retry_after_us: Option<u64>,
    ) -> Decision {
        let drained_after = self.meter.micros_to_earn(debt, owed, now);
        let too_long = self
            .max_wait_us
            .is_some_and(|max_wait| drained_after > max_wait);
        Decision {
            verdict,
            remaining: if too_long { 0 } else { self.meter.room(debt) },
            retry_after_us,
            reset_after_us: drained_after,
            delay_us: 0,
        }
    }

    /// Gives back what `cost` took at `charged_at`, if nobody has come after it: the turns of those who wait stand.
    #[must_use]
    pub fn refund(
        &self,
        kept: State,
        charged_at: Timestamp,
        now: Timestamp,
        cost: Cost,
    ) -> Option<State> {
        if kept.stamp != charged_at {
            return Some(kept);
        }
        self.meter.refund(kept, charged_at, now, cost)
    }

    /// What the script takes: as a token bucket's.
    #[must_use]
    pub const fn script_numbers(&self) -> [u64; 5] {
        self.meter.script_numbers()
    }

    pub(super) fn share(&self, instances: NonZeroU64) -> Option<Self> {
        let max_wait_us = self.max_wait_us;
        self.meter
            .share(instances)
            .map(|meter| Self { meter, max_wait_us })
    }
}
