//! Concurrency: so many units in flight at once, however long they stay.
//!
//! Never more than `limit` at any moment. A unit is in flight from the decision that lets its request pass until it is
//! given back. In the shared store each gateway says again and again what it holds, since one that is gone gives
//! nothing back: what was not said for a lease does not count any more.
//!
//! Lua twin: `lua/concurrency.lua`, which adds up what all gateways hold. In process there is one who holds, and what
//! it holds ends with it.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::bucket::share_of;
use super::{Cost, Decision, Penalised, TooLarge, UNITS_MAX, USED_MAX, Verdict};

/// What a denial tells to wait: when a unit comes free nobody can say.
const RETRY_US: u64 = 1_000_000;

/// At most `limit` units in flight.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Concurrency {
    limit: NonZeroU64,
    lease_us: NonZeroU64,
}

/// What a store in process keeps for each entity.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct State {
    /// Units in flight.
    pub in_flight: u64,
}

impl Concurrency {
    /// Builds the rule: so many units, and how long what a gateway holds counts after it was last heard of.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn new(limit: NonZeroU64, lease_us: NonZeroU64) -> Result<Self, TooLarge> {
        if limit.get() > UNITS_MAX {
            return Err(TooLarge {
                found: limit.get(),
                largest: UNITS_MAX,
            });
        }
        Ok(Self { limit, lease_us })
    }

    /// Units at once.
    #[must_use]
    pub const fn limit(&self) -> NonZeroU64 {
        self.limit
    }

    /// How long what a gateway holds counts after it was last heard of.
    #[must_use]
    pub const fn lease_us(&self) -> NonZeroU64 {
        self.lease_us
    }

    /// Decides one request, taking `cost` units or nothing.
    ///
    /// Returns what to keep from now on, `None` if that is what was kept, and the answer.
    #[must_use]
    pub fn decide(&self, kept: Option<State>, cost: Cost) -> (Option<State>, Decision) {
        let limit = self.limit.get();
        let used = kept.map_or(0, |kept| kept.in_flight.min(USED_MAX));
        if cost.units() == 0 {
            return (None, self.answer(Verdict::Allow, used, Some(0)));
        }
        let charged = used.saturating_add(cost.units());

        if charged <= limit {
            let keep = State { in_flight: charged };
            return (Some(keep), self.answer(Verdict::Allow, charged, Some(0)));
        }
        let retry_after = (cost.units() <= limit).then_some(RETRY_US);
        (None, self.answer(Verdict::Deny, used, retry_after))
    }

    /// `reset_after` is how long units can stay that nobody gives back: a lease.
    fn answer(&self, verdict: Verdict, used: u64, retry_after_us: Option<u64>) -> Decision {
        Decision {
            verdict,
            remaining: self.limit.get().saturating_sub(used),
            retry_after_us,
            reset_after_us: if used > 0 { self.lease_us.get() } else { 0 },
            delay_us: 0,
            penalised: Penalised::No,
        }
    }

    /// Gives back so many units; `None` if none is in flight any more.
    #[must_use]
    pub fn release(kept: State, cost: Cost) -> Option<State> {
        let in_flight = kept.in_flight.saturating_sub(cost.units());
        (in_flight > 0).then_some(State { in_flight })
    }

    pub(super) fn share(&self, instances: NonZeroU64) -> Self {
        Self {
            limit: share_of(self.limit, instances),
            ..*self
        }
    }
}
