//! Sliding log: remembers each request, and is exact.
//!
//! In any span of one window it allows at most `limit`. It keeps one record for each allowed request of the last
//! window, whatever that cost, and none for a denied one.
//!
//! Lua twin: `lua/sliding_log.lua`, line for line.

use std::num::NonZeroU64;

use super::bucket::share_of;
use super::log::span;
pub use super::log::{Entry, State};
use super::{
    Charge, Cost, Decision, Limit, Penalised, Timestamp, TooLarge, UNITS_MAX, USED_MAX, Verdict,
};

/// The most records that a refund rewrites, those after its own; with more of them nothing is given back.
const REFUND_REACH: usize = 1000;

/// `limit` units in any window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlidingLog {
    limit: Limit,
}

impl SlidingLog {
    /// Builds the rule.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn new(limit: Limit) -> Result<Self, TooLarge> {
        if limit.count.get() > UNITS_MAX {
            return Err(TooLarge {
                found: limit.count.get(),
                largest: UNITS_MAX,
            });
        }
        Ok(Self { limit })
    }

    /// Units per window.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// Decides one request at `now`, charging `cost` or nothing.
    ///
    /// Returns the entry to write, `None` if the log stays as it is, and the answer.
    #[must_use]
    pub fn decide(
        &self,
        kept: Option<&State>,
        now: Timestamp,
        cost: Cost,
    ) -> (Option<Entry>, Decision) {
        let limit = self.limit.count.get();
        let fresh = State::default();
        let log = kept.unwrap_or(&fresh);
        let first = log.first_inside(now, self.limit.window_us);
        let total = log.last_total();
        let base = log.total_before(first);
        let used = span(base, total);
        let last = log.last().map_or(now, |r| r.stamp.min(now));
        if cost.units() == 0 {
            return (None, self.answer(Verdict::Allow, used, last, now, Some(0)));
        }
        let charged = used.saturating_add(cost.units());

        if charged <= limit {
            let entry = self.entry(now, total.saturating_add(cost.units()));
            return (
                Some(entry),
                self.answer(Verdict::Allow, charged, now, now, Some(0)),
            );
        }
        let retry_after = (cost.units() <= limit).then(|| {
            // Allowed again once so much of the oldest has left.
            let excess = charged.saturating_sub(limit);
            let freeing = log.first_from(first, |r| span(base, r.total) >= excess);
            let stamp = log.get(freeing).map_or(now, |r| r.stamp.min(now));
            self.leaves_after(stamp, now)
        });
        // A stamp from the future means that the clock stepped back: read it as if it were now.
        let stepped_back = log.last().is_some_and(|r| r.stamp > now);
        let repaired = stepped_back.then(|| self.entry(now, total));
        (
            repaired,
            self.answer(Verdict::Deny, used, last, now, retry_after),
        )
    }

    fn answer(
        &self,
        verdict: Verdict,
        used: u64,
        last: Timestamp,
        now: Timestamp,
        retry_after_us: Option<u64>,
    ) -> Decision {
        Decision {
            verdict,
            remaining: self.limit.count.get().saturating_sub(used),
            retry_after_us,
            reset_after_us: if used > 0 {
                self.leaves_after(last, now)
            } else {
                0
            },
            delay_us: 0,
            penalised: Penalised::No,
        }
    }

    fn entry(&self, now: Timestamp, total: u64) -> Entry {
        Entry {
            now,
            total: total & USED_MAX,
            window_us: self.limit.window_us,
        }
    }

    /// How long until what was stamped then is out of the window.
    fn leaves_after(&self, stamp: Timestamp, now: Timestamp) -> u64 {
        self.limit
            .window_us
            .get()
            .saturating_sub(now.micros_since(stamp))
    }

    /// The entry that charges `cost` whatever the limit, as far as it can be told from what left long ago.
    #[must_use]
    pub fn late_entry(&self, log: &State, cost: Cost, now: Timestamp) -> Entry {
        let base = log.total_before(log.first_inside(now, self.limit.window_us));
        let total = log.last_total();
        let room = USED_MAX.saturating_sub(span(base, total));
        self.entry(now, total.saturating_add(cost.units().min(room)))
    }

    /// Gives back what `charge` took, as if it had never been, unless too many have come after it; `None` if no record
    /// is left.
    #[must_use]
    pub fn refund(&self, mut kept: State, charge: Charge, _now: Timestamp) -> Option<State> {
        let place = kept.first_from(0, |r| r.stamp >= charge.at);
        let before = kept.total_before(place);
        let taken = match kept.get(place) {
            Some(record) if record.stamp == charge.at => span(before, record.total),
            // Out of the window, or stamped anew by a clock that stepped back: nothing is known of it any more.
            _ => return Some(kept),
        };
        if kept.len().saturating_sub(place) > REFUND_REACH.saturating_add(1) {
            return Some(kept);
        }
        let given = taken.min(charge.cost.units());
        kept.change_from(place, |record| {
            record.total = record.total.wrapping_sub(given) & USED_MAX;
        });
        if given == taken {
            kept.remove(place);
        }
        (!kept.is_empty()).then_some(kept)
    }

    pub(super) fn share(&self, instances: NonZeroU64) -> Self {
        let count = share_of(self.limit.count, instances);
        Self {
            limit: Limit {
                count,
                ..self.limit
            },
        }
    }
}
