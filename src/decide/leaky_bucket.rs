//! Leaky bucket: drains steadily, makes what is allowed wait its turn.
//!
//! What is owed is the level: what has been allowed and has not drained yet. The application sees requests at the
//! pace of the limit, however they came.
//!
//! Lua twin: `lua/leaky_bucket.lua`, line for line; what both buckets share is in [`super::bucket`].

use std::num::NonZeroU64;

use super::bucket::{Meter, Owed, State};
use super::{Charge, Cost, Decision, Limit, Penalised, Timestamp, TooLarge, Verdict};

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

    /// The bucket that counts the same and lets nobody wait.
    pub(super) const fn without_waiting(&self) -> Self {
        Self {
            max_wait_us: Some(0),
            ..*self
        }
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
        let delay = meter.paid_after(owed, now);
        if cost.units() == 0 {
            return (None, self.answer(Verdict::Allow, owed, now, Some(0), delay));
        }
        let never = cost.units() > meter.burst();
        let price = meter.price(cost);
        let excess = owed
            .debt
            .saturating_add(price)
            .saturating_sub(meter.capacity());
        let too_long = self.too_long_by(delay);

        if !never && excess == 0 && too_long == 0 {
            let charged = meter.charge(owed, price, now);
            return (
                Some(meter.keep(charged)),
                self.answer(Verdict::Allow, charged, now, Some(0), delay),
            );
        }
        let wait = if excess > 0 {
            meter.micros_to_earn(excess, owed, now)
        } else {
            0
        };
        let retry_after = (!never).then_some(wait.max(too_long));
        let repaired = owed.stepped_back.then(|| meter.keep(owed));
        (
            repaired,
            self.answer(Verdict::Deny, owed, now, retry_after, 0),
        )
    }

    fn answer(
        &self,
        verdict: Verdict,
        owed: Owed,
        now: Timestamp,
        retry_after_us: Option<u64>,
        delay_us: u64,
    ) -> Decision {
        let drained_after = self.meter.paid_after(owed, now);
        let is_patient = self.too_long_by(drained_after) == 0;
        Decision {
            verdict,
            remaining: if is_patient { self.meter.room(owed) } else { 0 },
            retry_after_us,
            reset_after_us: drained_after,
            delay_us,
            penalised: Penalised::No,
        }
    }

    /// How much longer than it may a wait would be.
    fn too_long_by(&self, wait: u64) -> u64 {
        self.max_wait_us
            .map_or(0, |max_wait| wait.saturating_sub(max_wait))
    }

    /// Charges `cost` whatever the burst.
    #[must_use]
    pub fn charge_late(&self, kept: Option<State>, cost: Cost, now: Timestamp) -> State {
        self.meter.charge_late(kept, cost, now)
    }

    /// Gives back what `charge` took, if nobody has come after it, so that the queue still ends where it ended then:
    /// the turns of those who wait stand.
    #[must_use]
    pub fn refund(&self, kept: State, charge: Charge, now: Timestamp) -> Option<State> {
        let drained_after = self.meter.paid_after(self.meter.owed(Some(kept), now), now);
        let drained = now.as_micros().saturating_add(drained_after);
        if drained != charge.at.as_micros().saturating_add(charge.reset_after_us) {
            return Some(kept);
        }
        self.meter.refund(kept, charge, now)
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
