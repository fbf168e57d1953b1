//! Sliding log: remembers each request, and is exact.
//!
//! In any span of one window it allows at most `limit`. It keeps one record for each allowed request of the last
//! window, whatever that cost, and none for a denied one.
//!
//! Lua twin: `lua/sliding_log.lua`, line for line.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::bucket::share_of;
use super::{Charge, Cost, Decision, Limit, Timestamp, TooLarge, UNITS_MAX, USED_MAX, Verdict};

/// The most records that a refund rewrites, those after its own; with more of them nothing is given back.
const REFUND_REACH: usize = 1000;

/// `limit` units in any window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlidingLog {
    limit: Limit,
}

/// What a store keeps for each entity. Stamps never fall from one record to the next.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct State {
    /// Units charged before the first record, since ever and modulo [`USED_MAX`] + 1.
    before: u64,
    records: VecDeque<Record>,
}

/// An allowed request, or all of the same microsecond.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Record {
    stamp: Timestamp,
    /// Units charged up to and with this one, since ever and modulo [`USED_MAX`] + 1.
    total: u64,
}

/// What to put at the end of a log, in place of all that is not older.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    now: Timestamp,
    total: u64,
    window_us: NonZeroU64,
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
        let last = log.records.back().map_or(now, |r| r.stamp.min(now));
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
            let stamp = log.records.get(freeing).map_or(now, |r| r.stamp.min(now));
            self.leaves_after(stamp, now)
        });
        // A stamp from the future means that the clock stepped back: read it as if it were now.
        let stepped_back = log.records.back().is_some_and(|r| r.stamp > now);
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

    /// Gives back what `charge` took, as if it had never been, unless too many have come after it; `None` if no record
    /// is left.
    #[must_use]
    pub fn refund(&self, mut kept: State, charge: Charge, _now: Timestamp) -> Option<State> {
        let place = kept.records.partition_point(|r| r.stamp < charge.at);
        let before = kept.total_before(place);
        let taken = match kept.records.get(place) {
            Some(record) if record.stamp == charge.at => span(before, record.total),
            // Out of the window, or stamped anew by a clock that stepped back: nothing is known of it any more.
            _ => return Some(kept),
        };
        if kept.records.len().saturating_sub(place) > REFUND_REACH.saturating_add(1) {
            return Some(kept);
        }
        let given = taken.min(charge.cost.units());
        for record in kept.records.iter_mut().skip(place) {
            record.total = record.total.wrapping_sub(given) & USED_MAX;
        }
        if given == taken {
            kept.records.remove(place);
        }
        (!kept.records.is_empty()).then_some(kept)
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

impl State {
    /// The log that has this entry only.
    #[must_use]
    pub fn of(entry: Entry) -> Self {
        let mut log = Self::default();
        log.write(entry);
        log
    }

    /// Writes the entry: what has left the window goes, and so does what is not older than the entry.
    pub fn write(&mut self, entry: Entry) {
        let Entry {
            now,
            total,
            window_us,
        } = entry;
        let expired = self.first_inside(now, window_us);
        self.before = self.total_before(expired);
        self.records.drain(..expired);
        if self.records.back().is_some_and(|r| r.stamp >= now) {
            let older = self.first_from(0, |r| r.stamp >= now);
            self.records.truncate(older);
        }
        self.records.push_back(Record { stamp: now, total });
        if self.records.capacity() > 16 && self.records.len() < self.records.capacity() / 4 {
            self.records.shrink_to(self.records.len().saturating_mul(2));
        }
    }

    /// How many requests it remembers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it remembers none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The first record that is inside the window that ends now.
    fn first_inside(&self, now: Timestamp, window_us: NonZeroU64) -> usize {
        self.first_from(0, |r| now.micros_since(r.stamp) < window_us.get())
    }

    /// The first record from `first` on of which `holds` is true, as it is of all after it. Gallops, since that is
    /// mostly near the front, then halves.
    fn first_from(&self, first: usize, holds: impl Fn(&Record) -> bool) -> usize {
        let mut low = first;
        let mut step = 1_usize;
        let mut high = loop {
            let probe = low.saturating_add(step).saturating_sub(1);
            match self.records.get(probe) {
                None => break self.records.len(),
                Some(record) if holds(record) => break probe,
                Some(_) => {
                    low = probe.saturating_add(1);
                    step = step.saturating_mul(2);
                }
            }
        };
        while low < high {
            let middle = low.midpoint(high);
            if self.records.get(middle).is_some_and(&holds) {
                high = middle;
            } else {
                low = middle.saturating_add(1);
            }
        }
        low
    }

    fn total_before(&self, index: usize) -> u64 {
        let newest = index.checked_sub(1).and_then(|i| self.records.get(i));
        newest.map_or(self.before, |r| r.total)
    }

    fn last_total(&self) -> u64 {
        self.total_before(self.records.len())
    }
}

/// Units charged from one running total to a later one. Totals run round at [`USED_MAX`].
fn span(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) & USED_MAX
}
