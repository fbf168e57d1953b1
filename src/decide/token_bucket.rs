//! Token bucket: refills steadily, lets a burst through.
//!
//! In any span it allows at most `burst` units and what is refilled meanwhile.
//!
//! Lua twin: `lua/token_bucket.lua`, line for line; what both buckets share is in [`super::bucket`].

use std::num::NonZeroU64;

use super::bucket::{Meter, Owed, State};
use super::{Charge, Cost, Decision, Limit, Penalised, Timestamp, TooLarge, Verdict};

/// `limit` units per window, `burst` of them at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TokenBucket {
    meter: Meter,
}

impl TokenBucket {
    /// Builds the rule.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn new(limit: Limit, burst: NonZeroU64) -> Result<Self, TooLarge> {
        Meter::new(limit, burst).map(|meter| Self { meter })
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
        if cost.units() == 0 {
            return (None, self.answer(Verdict::Allow, owed, now, Some(0)));
        }
        let never = cost.units() > meter.burst();
        let price = meter.price(cost);
        let excess = owed
            .debt
            .saturating_add(price)
            .saturating_sub(meter.capacity());

        if !never && excess == 0 {
            let charged = meter.charge(owed, price, now);
            return (
                Some(meter.keep(charged)),
                self.answer(Verdict::Allow, charged, now, Some(0)),
            );
        }
        let retry_after = (!never).then(|| meter.micros_to_earn(excess, owed, now));
        let repaired = owed.stepped_back.then(|| meter.keep(owed));
        (repaired, self.answer(Verdict::Deny, owed, now, retry_after))
    }

    fn answer(
        &self,
        verdict: Verdict,
        owed: Owed,
        now: Timestamp,
        retry_after_us: Option<u64>,
    ) -> Decision {
        Decision {
            verdict,
            remaining: self.meter.room(owed),
            retry_after_us,
            reset_after_us: self.meter.paid_after(owed, now),
            delay_us: 0,
            penalised: Penalised::No,
        }
    }

    /// Charges `cost` whatever the burst.
    #[must_use]
    pub fn charge_late(&self, kept: Option<State>, cost: Cost, now: Timestamp) -> State {
        self.meter.charge_late(kept, cost, now)
    }

    /// Gives back what `charge` took, but for what has been refilled since; `None` if no debt is left.
    #[must_use]
    pub fn refund(&self, kept: State, charge: Charge, now: Timestamp) -> Option<State> {
        self.meter.refund(kept, charge, now)
    }

    /// What the script takes: burst (units), unit and refill (credit), tick (µs), most debt (credit).
    #[must_use]
    pub const fn script_numbers(&self) -> [u64; 5] {
        self.meter.script_numbers()
    }

    pub(super) fn share(&self, instances: NonZeroU64) -> Option<Self> {
        self.meter.share(instances).map(|meter| Self { meter })
    }
}
