//! Fixed window: counts from one edge to the next.
//!
//! Never more than `limit` from edge to edge; up to twice that in a span of one window that has an edge in it.
//!
//! Lua twin: `lua/fixed_window.lua`, line for line.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::bucket::share_of;
use super::{Charge, Cost, Decision, Limit, Timestamp, TooLarge, UNITS_MAX, USED_MAX, Verdict};

/// What the windows are aligned to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Anchor {
    /// The epoch: all entities' windows begin together.
    Epoch,
    /// An entity's first request after its last window.
    FirstRequest,
}

/// `limit` units from edge to edge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FixedWindow {
    limit: Limit,
    anchor: Anchor,
}

/// What a store keeps for each entity.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct State {
    /// When the window began.
    pub start: Timestamp,
    /// Units used in it.
    pub used: u64,
}

impl FixedWindow {
    /// Builds the rule.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn new(limit: Limit, anchor: Anchor) -> Result<Self, TooLarge> {
        if limit.count.get() > UNITS_MAX {
            return Err(TooLarge {
                found: limit.count.get(),
                largest: UNITS_MAX,
            });
        }
        Ok(Self { limit, anchor })
    }

    /// Units per window.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// What the windows are aligned to.
    #[must_use]
    pub const fn anchor(&self) -> Anchor {
        self.anchor
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
        let window = self.window_at(kept, now);
        if cost.units() == 0 {
            return (None, self.answer(Verdict::Allow, window, now, Some(0)));
        }
        let charged = State {
            used: window.used.saturating_add(cost.units()),
            ..window
        };

        if charged.used <= limit {
            return (
                Some(charged),
                self.answer(Verdict::Allow, charged, now, Some(0)),
            );
        }
        let retry_after = (cost.units() <= limit).then(|| self.ends_after(window, now));
        // A window that begins later means that the clock stepped back: what it counted counts in this one.
        let stepped_back = kept.is_some_and(|k| k.start > now);
        (
            stepped_back.then_some(window),
            self.answer(Verdict::Deny, window, now, retry_after),
        )
    }

    fn answer(
        &self,
        verdict: Verdict,
        window: State,
        now: Timestamp,
        retry_after_us: Option<u64>,
    ) -> Decision {
        let begun = window.used > 0 || self.anchor == Anchor::Epoch;
        Decision {
            verdict,
            remaining: self.limit.count.get().saturating_sub(window.used),
            retry_after_us,
            reset_after_us: if begun {
                self.ends_after(window, now)
            } else {
                0
            },
            delay_us: 0,
        }
    }

    /// The window that `now` is in, and what is used of it.
    fn window_at(&self, kept: Option<State>, now: Timestamp) -> State {
        let start = match (self.anchor, kept) {
            (Anchor::Epoch, _) => {
                let into = now.as_micros() % self.limit.window_us;
                Timestamp::from_micros(now.as_micros().saturating_sub(into))
            }
            (Anchor::FirstRequest, Some(kept)) if self.is_open(kept, now) => kept.start.min(now),
            (Anchor::FirstRequest, _) => now,
        };
        let used = match (self.anchor, kept) {
            (Anchor::Epoch, Some(kept)) if kept.start >= start => kept.used,
            (Anchor::FirstRequest, Some(kept)) if self.is_open(kept, now) => kept.used,
            _ => 0,
        };
        State {
            start,
            used: used.min(USED_MAX),
        }
    }

    fn is_open(&self, kept: State, now: Timestamp) -> bool {
        now.micros_since(kept.start) < self.limit.window_us.get()
    }

    fn ends_after(&self, window: State, now: Timestamp) -> u64 {
        self.limit
            .window_us
            .get()
            .saturating_sub(now.micros_since(window.start))
    }

    /// Charges `cost` whatever the limit.
    #[must_use]
    pub fn charge_late(&self, kept: Option<State>, cost: Cost, now: Timestamp) -> State {
        let window = self.window_at(kept, now);
        State {
            used: window.used.saturating_add(cost.units()).min(USED_MAX),
            ..window
        }
    }

    /// Gives back what `charge` took, if that was in this window and it has not ended; `None` if nothing is used any more.
    #[must_use]
    pub fn refund(&self, kept: State, charge: Charge, now: Timestamp) -> Option<State> {
        let is_over = !self.is_open(kept, now);
        if charge.at < kept.start || is_over || !self.is_open(kept, charge.at) {
            return Some(kept);
        }
        let used = kept.used.saturating_sub(charge.cost.units());
        (used > 0).then_some(State { used, ..kept })
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
