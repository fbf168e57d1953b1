//! Sliding counter: estimates the last window from two fixed ones.
//!
//! What was used in the previous window counts by the share of it that is still inside. That is an estimate: in some
//! span of one window it can allow just under twice the limit. A strict one counts the whole previous window, and
//! never allows more than the limit.
//!
//! Lua twin: `lua/sliding_counter.lua`, line for line.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::bucket::share_of;
use super::exact::{Tick, ticks_of};
use super::{
    Charge, Cost, Decision, EXACT_MAX, Limit, Penalised, Timestamp, TooLarge, UNITS_MAX, USED_MAX,
    Verdict,
};

/// About `limit` units in any window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlidingCounter {
    limit: Limit,
    strict: bool,
    /// Time is counted in these. A strict counter's is the whole window: all of the previous one is always inside.
    tick: Tick,
}

/// What a store keeps for each entity.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct State {
    /// Which window since the epoch `current` counts.
    pub id: u64,
    /// Units used in it.
    pub current: u64,
    /// Units used in the one before.
    pub previous: u64,
}

impl SlidingCounter {
    /// Builds the rule.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn new(limit: Limit, strict: bool) -> Result<Self, TooLarge> {
        let count = limit.count.get();
        let whole = Tick {
            us: limit.window_us,
            per_window: NonZeroU64::MIN,
        };
        let ticks: Vec<_> = if strict {
            vec![whole]
        } else {
            ticks_of(limit.window_us).collect()
        };
        let largest = |tick: &Tick| count_max(*tick).min(UNITS_MAX);
        match ticks.iter().find(|tick| count <= largest(tick)) {
            Some(&tick) => Ok(Self {
                limit,
                strict,
                tick,
            }),
            None => Err(TooLarge {
                found: count,
                largest: ticks.iter().map(largest).max().unwrap_or(0),
            }),
        }
    }

    /// Units per window.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// Whether the whole previous window counts.
    #[must_use]
    pub const fn strict(&self) -> bool {
        self.strict
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
        let limit = self.limit.count.get();
        let counts = self.counts_at(kept, now);
        if cost.units() == 0 {
            return (None, self.answer(Verdict::Allow, counts, now, Some(0)));
        }
        let charged = State {
            current: counts.current.saturating_add(cost.units()),
            ..counts
        };

        if self.estimate(charged, now) <= limit {
            return (
                Some(charged),
                self.answer(Verdict::Allow, charged, now, Some(0)),
            );
        }
        let retry_after = (cost.units() <= limit).then(|| self.wait(counts, now, cost));
        // A window that begins later means that the clock stepped back: what it counted counts in this one.
        let stepped_back = kept.is_some_and(|k| k.id > counts.id);
        (
            stepped_back.then_some(counts),
            self.answer(Verdict::Deny, counts, now, retry_after),
        )
    }

    fn answer(
        &self,
        verdict: Verdict,
        counts: State,
        now: Timestamp,
        retry_after_us: Option<u64>,
    ) -> Decision {
        let window_us = self.limit.window_us.get();
        let ends_after = window_us.saturating_sub(self.since_start(now));
        Decision {
            verdict,
            remaining: self
                .limit
                .count
                .get()
                .saturating_sub(self.estimate(counts, now)),
            retry_after_us,
            reset_after_us: match counts {
                State { current: 1.., .. } => ends_after.saturating_add(window_us),
                State { previous: 1.., .. } => ends_after,
                _ => 0,
            },
            delay_us: 0,
            penalised: Penalised::No,
        }
    }

    /// The counts as of the window that `now` is in.
    fn counts_at(&self, kept: Option<State>, now: Timestamp) -> State {
        let id = now.as_micros() / self.limit.window_us;
        let count_max = count_max(self.tick);
        let (current, previous) = match kept {
            Some(kept) if kept.id >= id => (kept.current, kept.previous),
            Some(kept) if kept.id.saturating_add(1) == id => (0, kept.current),
            _ => (0, 0),
        };
        State {
            id,
            current: current.min(count_max),
            previous: previous.min(count_max),
        }
    }

    /// What counts now: all of the current window, and the share of the previous one that is inside.
    fn estimate(&self, counts: State, now: Timestamp) -> u64 {
        let ticks = self.tick.per_window.get();
        let elapsed = self.since_start(now) / self.tick.us;
        let inside = counts
            .previous
            .saturating_mul(ticks.saturating_sub(elapsed))
            / ticks;
        counts.current.saturating_add(inside)
    }

    fn since_start(&self, now: Timestamp) -> u64 {
        now.as_micros() % self.limit.window_us
    }

    /// How long until `cost` is allowed, in this window or in the next, where the current count is the previous one.
    fn wait(&self, counts: State, now: Timestamp, cost: Cost) -> u64 {
        let since_start = self.since_start(now);
        let room = self.limit.count.get().saturating_sub(cost.units());
        if let Some(left) = room.checked_sub(counts.current) {
            let elapsed = self.fades_at(counts.previous, left);
            if elapsed < self.tick.per_window.get() {
                return elapsed
                    .saturating_mul(self.tick.us.get())
                    .saturating_sub(since_start);
            }
        }
        let elapsed = self.fades_at(counts.current, room);
        let ends_after = self.limit.window_us.get().saturating_sub(since_start);
        ends_after.saturating_add(elapsed.saturating_mul(self.tick.us.get()))
    }

    /// The first tick of a window at which no more than `room` of the `previous` one is inside.
    fn fades_at(&self, previous: u64, room: u64) -> u64 {
        if previous <= room {
            return 0;
        }
        let ticks = self.tick.per_window.get();
        let too_many = room
            .saturating_add(1)
            .saturating_mul(ticks)
            .div_ceil(previous);
        ticks.saturating_sub(too_many).saturating_add(1)
    }

    /// Charges `cost` whatever the limit.
    #[must_use]
    pub fn charge_late(&self, kept: Option<State>, cost: Cost, now: Timestamp) -> State {
        let counts = self.counts_at(kept, now);
        let current = counts.current.saturating_add(cost.units());
        State {
            current: current.min(count_max(self.tick)),
            ..counts
        }
    }

    /// Gives back what `charge` took, from the window that it was in; `None` if nothing is left.
    #[must_use]
    pub fn refund(&self, kept: State, charge: Charge, _now: Timestamp) -> Option<State> {
        let charged_id = charge.at.as_micros() / self.limit.window_us;
        let mut state = kept;
        if charged_id == kept.id {
            state.current = kept.current.saturating_sub(charge.cost.units());
        } else if charged_id.saturating_add(1) == kept.id {
            state.previous = kept.previous.saturating_sub(charge.cost.units());
        }
        (state.current > 0 || state.previous > 0).then_some(state)
    }

    /// What the script takes: the tick (µs), and the largest count that is told apart.
    #[must_use]
    pub fn script_numbers(&self) -> [u64; 2] {
        [self.tick.us.get(), count_max(self.tick)]
    }

    pub(super) fn share(&self, instances: NonZeroU64) -> Self {
        let count = share_of(self.limit.count, instances);
        Self {
            limit: Limit {
                count,
                ..self.limit
            },
            ..*self
        }
    }
}

/// The most that is told apart. Times the ticks of a window it is exact, and so is that divided by either of them.
fn count_max(tick: Tick) -> u64 {
    let ticks = tick.per_window.get();
    (EXACT_MAX.saturating_sub(ticks) / ticks.saturating_add(1)).min(USED_MAX)
}
