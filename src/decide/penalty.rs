//! Penalty: whoever is denied stays denied for a while, however little is used then, and longer each time.
//!
//! It stands beside a kind, not in it, with a state of its own. A denial by the kind begins it, and while it runs
//! nothing is charged: what is denied then makes it neither longer nor harder. The first denial after its end begins
//! the next step; who has not been denied for as long as the last step, counted from the end, begins with the first
//! again.
//!
//! Lua twin: `lua/penalty.lua`, line for line.

use std::num::NonZeroU64;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Cost, Decision, Penalised, Timestamp, Verdict};

/// The most steps that a penalty has.
pub const STEPS_MAX: usize = 8;

/// How long denials last: the first, the next, and so on up to the last.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Penalty(Arc<[NonZeroU64]>);

/// What a store keeps for each entity that was punished.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct State {
    /// When it ends, or ended.
    pub until: Timestamp,
    /// Which of the steps it is, from 0.
    pub step: u8,
}

/// A penalty beside a check, and what is kept of it.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// How long it lasts.
    pub penalty: &'a Penalty,
    /// What is kept; `None` is never seen.
    pub kept: Option<State>,
    /// Whether a denial begins it. One that runs denies all the same.
    pub begins: bool,
}

impl Penalty {
    /// Of these steps, in microseconds; `None` if there are none, or too many, or one is no longer than the one before.
    #[must_use]
    pub fn new(steps_us: &[NonZeroU64]) -> Option<Self> {
        let rises = steps_us.is_sorted_by(|earlier, later| earlier < later);
        let fits = (1..=STEPS_MAX).contains(&steps_us.len());
        (rises && fits).then(|| Self(steps_us.into()))
    }

    /// Its steps, in microseconds.
    #[must_use]
    pub fn steps_us(&self) -> &[NonZeroU64] {
        &self.0
    }

    /// When what is kept means nothing any more.
    #[must_use]
    pub fn fresh_at(&self, kept: State) -> Timestamp {
        let quiet_us = self.quiet_us();
        Timestamp::from_micros(kept.until.as_micros().saturating_add(quiet_us))
    }

    /// How long after its end it is forgotten: as long as the last step. Of a single step there is nothing to remember.
    fn quiet_us(&self) -> u64 {
        let last = self.0.get(1..).and_then(<[_]>::last);
        last.map_or(0, |last| last.get())
    }

    fn last(&self) -> u8 {
        u8::try_from(self.0.len().saturating_sub(1)).unwrap_or(u8::MAX)
    }

    fn length_us(&self, step: u8) -> u64 {
        let step = usize::from(step.min(self.last()));
        self.0.get(step).map_or(0, |length| length.get())
    }

    /// What is left of the one that runs at `now`, if one does.
    fn left_us(&self, kept: Option<State>, now: Timestamp) -> Option<u64> {
        let kept = kept?;
        // One that is longer than it can be means that the clock stepped back, or that it was made shorter.
        let left = kept.until.micros_since(now).min(self.length_us(kept.step));
        (left > 0).then_some(left)
    }

    /// The one that begins at `now`, where none runs.
    fn begin(&self, kept: Option<State>, now: Timestamp) -> State {
        let step = match kept {
            Some(kept) if now.micros_since(kept.until) < self.quiet_us() => {
                kept.step.saturating_add(1).min(self.last())
            }
            _ => 0,
        };
        let until = now.as_micros().saturating_add(self.length_us(step));
        State {
            until: Timestamp::from_micros(until),
            step,
        }
    }
}

impl Beside<'_> {
    /// Whether the check is denied, where its kind has decided so of `cost`; `look` is what that says to nothing.
    ///
    /// Returns what to keep of the penalty from now on, `None` if that is what was kept, and the answer.
    pub(super) fn weigh(
        &self,
        now: Timestamp,
        cost: Cost,
        decision: Decision,
        look: impl FnOnce() -> Decision,
    ) -> (Option<State>, Decision) {
        let denies = decision.verdict == Verdict::Deny;
        let Some(left) = self.penalty.left_us(self.kept, now) else {
            if !denies || !self.begins {
                return (None, decision);
            }
            let begun = self.penalty.begin(self.kept, now);
            let left = begun.until.micros_since(now);
            let retry_after_us = decision.retry_after_us.map(|wait| wait.max(left));
            let answer = denial(decision, retry_after_us, left, Penalised::Begins);
            return (Some(begun), answer);
        };
        if cost == Cost::NONE {
            let mut answer = denial(decision, decision.retry_after_us, left, Penalised::Runs);
            answer.verdict = Verdict::Allow;
            return (None, answer);
        }
        let until = Timestamp::from_micros(now.as_micros().saturating_add(left));
        let repaired = self.kept.map(|kept| State { until, ..kept });
        let repaired = repaired.filter(|_| self.kept.is_some_and(|kept| kept.until > until));
        let answer = if denies {
            let retry_after_us = decision.retry_after_us.map(|wait| wait.max(left));
            denial(decision, retry_after_us, left, Penalised::Runs)
        } else {
            denial(look(), Some(left), left, Penalised::Runs)
        };
        (repaired, answer)
    }
}

/// What is told while a penalty has so much left.
fn denial(
    found: Decision,
    retry_after_us: Option<u64>,
    left: u64,
    penalised: Penalised,
) -> Decision {
    Decision {
        verdict: Verdict::Deny,
        remaining: 0,
        retry_after_us,
        reset_after_us: found.reset_after_us.max(left),
        delay_us: 0,
        penalised,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(n: u64) -> NonZeroU64 {
        NonZeroU64::new(n).unwrap()
    }

    fn decision(verdict: Verdict, retry_after_us: Option<u64>) -> Decision {
        Decision {
            verdict,
            remaining: 7,
            retry_after_us,
            reset_after_us: 50,
            delay_us: 0,
            penalised: Penalised::No,
        }
    }

    #[test]
    fn steps_rise() {
        let of = |steps: &[u64]| {
            let steps: Vec<_> = steps.iter().map(|n| whole(*n)).collect();
            Penalty::new(&steps)
        };
        assert!(of(&[]).is_none());
        assert!(of(&[2, 2]).is_none());
        assert!(of(&[3, 2]).is_none());
        assert!(of(&[1, 2, 3, 4, 5, 6, 7, 8]).is_some());
        assert!(of(&[1, 2, 3, 4, 5, 6, 7, 8, 9]).is_none());
    }

    #[test]
    fn it_grows_by_denials_after_its_end_alone_and_is_forgotten_after_a_quiet_time() {
        let penalty = Penalty::new(&[whole(10), whole(100), whole(1_000)]).unwrap();
        let mut kept = None;
        let mut deny = |now: u64| {
            let beside = Beside {
                penalty: &penalty,
                kept,
                begins: true,
            };
            let denied = decision(Verdict::Deny, Some(1));
            let now = Timestamp::from_micros(now);
            let (keep, answer) = beside.weigh(now, Cost::ONE, denied, || denied);
            kept = keep.or(kept);
            (answer.retry_after_us.unwrap(), answer.penalised)
        };
        assert_eq!(deny(5), (10, Penalised::Begins));
        assert_eq!(deny(5), (10, Penalised::Runs));
        assert_eq!(deny(14), (1, Penalised::Runs));
        assert_eq!(deny(15), (100, Penalised::Begins));
        assert_eq!(deny(114), (1, Penalised::Runs));
        assert_eq!(deny(115 + 999), (1_000, Penalised::Begins));
        // It stays at the last ...
        assert_eq!(deny(2_114), (1_000, Penalised::Begins));
        // ... until nobody was denied for a thousand after the end.
        assert_eq!(deny(3_114 + 1_000), (10, Penalised::Begins));
        // A clock that stepped back freezes nobody for longer than the penalty.
        assert_eq!(deny(1_000), (10, Penalised::Runs));
        assert_eq!(deny(1_009), (1, Penalised::Runs));
        assert_eq!(deny(1_010), (100, Penalised::Begins));
    }

    #[test]
    fn while_it_runs_all_is_denied_but_looks_and_the_wait_is_the_longer_one() {
        let penalty = Penalty::new(&[whole(10)]).unwrap();
        let kept = Some(State {
            until: Timestamp::from_micros(10),
            step: 0,
        });
        let weigh = |cost: u64, decision: Decision, begins| {
            let beside = Beside {
                penalty: &penalty,
                kept,
                begins,
            };
            let now = Timestamp::from_micros(4);
            let looked = || self::decision(Verdict::Allow, Some(0));
            let (keep, answer) = beside.weigh(now, Cost::new(cost), decision, looked);
            assert_eq!(keep, None);
            assert_eq!((answer.remaining, answer.penalised), (0, Penalised::Runs));
            (answer.verdict, answer.retry_after_us)
        };
        let (allow, deny) = (Verdict::Allow, Verdict::Deny);
        assert_eq!(weigh(1, decision(allow, Some(0)), true), (deny, Some(6)));
        assert_eq!(weigh(1, decision(deny, Some(3)), true), (deny, Some(6)));
        assert_eq!(weigh(1, decision(deny, Some(30)), false), (deny, Some(30)));
        assert_eq!(weigh(1, decision(deny, None), true), (deny, None));
        assert_eq!(weigh(0, decision(allow, Some(0)), true), (allow, Some(0)));
    }
}
