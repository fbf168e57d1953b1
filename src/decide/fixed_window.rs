//! Fixed window: counts from one edge to the next.
//!
//! Never more than `limit` from edge to edge; up to twice that in a span of one window that has an edge in it. The
//! edges are a window apart, or those of a calendar.
//!
//! Lua twin: `lua/fixed_window.lua`, line for line.

use std::num::NonZeroU64;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::bucket::share_of;
use super::calendar::{Calendar, Within};
use super::{
    Charge, Cost, Decision, Limit, Penalised, Timestamp, TooLarge, UNITS_MAX, USED_MAX, Verdict,
};

/// What the windows are aligned to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Anchor {
    /// The epoch: all entities' windows begin together.
    Epoch,
    /// An entity's first request after its last window.
    FirstRequest,
    /// The days, weeks or months of a time zone.
    Calendar(Arc<Calendar>),
}

/// `limit` units from edge to edge.
#[derive(Clone, Debug, Eq, PartialEq)]
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

/// The window that a moment is in, and how long until it ends.
#[derive(Clone, Copy)]
struct Window {
    state: State,
    left_us: u64,
}

impl FixedWindow {
    /// Builds the rule. A calendar's windows are said to be as long as its unit, whatever `limit` says.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn new(mut limit: Limit, anchor: Anchor) -> Result<Self, TooLarge> {
        if limit.count.get() > UNITS_MAX {
            return Err(TooLarge {
                found: limit.count.get(),
                largest: UNITS_MAX,
            });
        }
        if let Anchor::Calendar(calendar) = &anchor {
            let nominal = NonZeroU64::new(calendar.unit().nominal_us());
            limit.window_us = nominal.unwrap_or(limit.window_us);
        }
        Ok(Self { limit, anchor })
    }

    /// Units per window; of a calendar, per window of its nominal length.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// What the windows are aligned to.
    #[must_use]
    pub const fn anchor(&self) -> &Anchor {
        &self.anchor
    }

    /// The calendar that they are aligned to, if they are to one.
    #[must_use]
    pub fn calendar(&self) -> Option<&Calendar> {
        match &self.anchor {
            Anchor::Calendar(calendar) => Some(calendar),
            Anchor::Epoch | Anchor::FirstRequest => None,
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
        let limit = self.limit.count.get();
        let window = self.window_at(kept, now);
        if cost.units() == 0 {
            return (None, self.answer(Verdict::Allow, window, Some(0)));
        }
        let mut charged = window;
        charged.state.used = window.state.used.saturating_add(cost.units());

        if charged.state.used <= limit {
            return (
                Some(charged.state),
                self.answer(Verdict::Allow, charged, Some(0)),
            );
        }
        let retry_after = (cost.units() <= limit).then_some(window.left_us);
        // A window that begins later means that the clock stepped back: what it counted counts in this one.
        let stepped_back = kept.is_some_and(|k| k.start > now);
        (
            stepped_back.then_some(window.state),
            self.answer(Verdict::Deny, window, retry_after),
        )
    }

    fn answer(&self, verdict: Verdict, window: Window, retry_after_us: Option<u64>) -> Decision {
        let used = window.state.used;
        let begun = used > 0 || self.anchor != Anchor::FirstRequest;
        Decision {
            verdict,
            remaining: self.limit.count.get().saturating_sub(used),
            retry_after_us,
            reset_after_us: if begun { window.left_us } else { 0 },
            delay_us: 0,
            penalised: Penalised::No,
        }
    }

    /// The window that `now` is in, and what is used of it.
    fn window_at(&self, kept: Option<State>, now: Timestamp) -> Window {
        let within = self.within(kept, now);
        let used = kept.map_or(0, |kept| match self.anchor {
            Anchor::FirstRequest if !self.is_open(kept, now) => 0,
            Anchor::Epoch | Anchor::Calendar(_) if kept.start < within.start => 0,
            _ => kept.used.min(USED_MAX),
        });
        Window {
            state: State {
                start: within.start,
                used,
            },
            left_us: within.left_us,
        }
    }

    /// From which edge to which `now` is.
    fn within(&self, kept: Option<State>, now: Timestamp) -> Within {
        let window_us = self.limit.window_us.get();
        let into = match (&self.anchor, kept) {
            (Anchor::Calendar(calendar), _) => return calendar.window_at(now),
            (Anchor::Epoch, _) => now.as_micros() % self.limit.window_us,
            (Anchor::FirstRequest, Some(kept)) if self.is_open(kept, now) => {
                now.micros_since(kept.start)
            }
            (Anchor::FirstRequest, _) => 0,
        };
        Within {
            start: Timestamp::from_micros(now.as_micros().saturating_sub(into)),
            left_us: window_us.saturating_sub(into),
        }
    }

    /// Whether the kept window, which is none of a calendar, has not ended at `now`.
    fn is_open(&self, kept: State, now: Timestamp) -> bool {
        now.micros_since(kept.start) < self.limit.window_us.get()
    }

    /// Whether what was charged at `at` counts in the kept window, and that has not ended at `now`.
    fn counts(&self, kept: State, at: Timestamp, now: Timestamp) -> bool {
        if at < kept.start {
            return false;
        }
        let Anchor::Calendar(calendar) = &self.anchor else {
            return self.is_open(kept, now) && self.is_open(kept, at);
        };
        let window = calendar.window_at(now);
        // One that begins later means that the clock stepped back: it counts in that of now.
        let is_this = kept.start >= window.start && at.micros_since(now) < window.left_us;
        kept.start > now || is_this
    }

    /// Charges `cost` whatever the limit.
    #[must_use]
    pub fn charge_late(&self, kept: Option<State>, cost: Cost, now: Timestamp) -> State {
        let window = self.window_at(kept, now).state;
        State {
            used: window.used.saturating_add(cost.units()).min(USED_MAX),
            ..window
        }
    }

    /// Gives back what `charge` took, if that was in this window and it has not ended; `None` if nothing is used any
    /// more.
    #[must_use]
    pub fn refund(&self, kept: State, charge: Charge, now: Timestamp) -> Option<State> {
        if !self.counts(kept, charge.at, now) {
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
            ..self.clone()
        }
    }
}
