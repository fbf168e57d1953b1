//! All checks of a request at one instant: every one is charged, or none.
//!
//! Lua twin: `lua/decide.lua`.

use super::penalty::{self, Beside};
use super::{Change, Cost, Decision, Rule, State, Timestamp, Verdict};

/// One check, and what is kept for it.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The rule to decide by.
    pub rule: &'a Rule,
    /// What is kept; `None` is never seen.
    pub kept: Option<&'a State>,
    /// What the request takes.
    pub cost: Cost,
    /// Counted, but denies nothing.
    pub shadow: bool,
    /// The penalty beside it, if there is one.
    pub beside: Option<Beside<'a>>,
}

/// What one check comes to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Step {
    /// What becomes of the kind's state.
    pub change: Change,
    /// From when on what is kept then equals a fresh state.
    pub fresh_at: Timestamp,
    /// What to keep of the penalty from now on; `None` is what was kept.
    pub penalty: Option<penalty::State>,
    /// The answer.
    pub decision: Decision,
}

/// Decides all of `asks` at `now`. What they come to stands in their order.
///
/// If an enforced check denies, nothing is charged: a check that would have allowed then answers as if it had only
/// looked. A check in shadow is charged if it allows by itself and no enforced check denies. A denial makes two changes
/// at most: a state from the future it moves to now, and a penalty beside it may begin.
#[must_use]
pub fn decide_all(asks: &[Ask<'_>], now: Timestamp) -> Vec<Step> {
    let mut steps: Vec<_> = asks.iter().map(|ask| ask.decide(now)).collect();
    let denied = asks
        .iter()
        .zip(&steps)
        .any(|(ask, step)| !ask.shadow && is_denial(&step.decision));
    if denied {
        for (ask, step) in asks.iter().zip(&mut steps) {
            if !is_denial(&step.decision) {
                *step = ask.looking().decide(now);
            }
        }
    }
    steps
}

impl Ask<'_> {
    /// The same, taking nothing.
    const fn looking(&self) -> Self {
        Self {
            cost: Cost::NONE,
            ..*self
        }
    }

    /// Decides it alone.
    fn decide(&self, now: Timestamp) -> Step {
        let (change, decision) = self.rule.decide(self.kept, now, self.cost);
        let fresh_at = self.rule.fresh_at(now, &decision);
        let Some(beside) = &self.beside else {
            return Step {
                change,
                fresh_at,
                penalty: None,
                decision,
            };
        };
        let look = || self.rule.decide(self.kept, now, Cost::NONE).1;
        let (penalty, weighed) = beside.weigh(now, self.cost, decision, look);
        // What a penalty alone denies is not charged.
        let is_charged = is_denial(&decision) || !is_denial(&weighed);
        Step {
            change: if is_charged { change } else { Change::None },
            fresh_at,
            penalty,
            decision: weighed,
        }
    }
}

fn is_denial(decision: &Decision) -> bool {
    decision.verdict == Verdict::Deny
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::super::{Anchor, FixedWindow, Limit};
    use super::*;

    fn rule(count: u64) -> Rule {
        let limit = Limit {
            count: NonZeroU64::new(count).unwrap(),
            window_us: NonZeroU64::new(1_000_000).unwrap(),
        };
        Rule::FixedWindow(FixedWindow::new(limit, Anchor::Epoch).unwrap())
    }

    fn decide(limits_costs_shadows: &[(u64, u64, bool)]) -> Vec<(bool, u64, bool)> {
        let rules: Vec<_> = limits_costs_shadows
            .iter()
            .map(|&(limit, ..)| rule(limit))
            .collect();
        let asks: Vec<_> = limits_costs_shadows
            .iter()
            .zip(&rules)
            .map(|(&(_, cost, shadow), rule)| Ask {
                rule,
                kept: None,
                cost: Cost::new(cost),
                shadow,
                beside: None,
            })
            .collect();
        let steps = decide_all(&asks, Timestamp::from_micros(0));
        steps
            .into_iter()
            .map(|step| {
                (
                    step.decision.verdict == Verdict::Allow,
                    step.decision.remaining,
                    step.change != Change::None,
                )
            })
            .collect()
    }

    #[test]
    fn an_enforced_denial_charges_nobody() {
        let steps = decide(&[(5, 1, false), (1, 2, false), (5, 1, true)]);
        assert_eq!(
            steps,
            [(true, 5, false), (false, 1, false), (true, 5, false)]
        );
    }

    #[test]
    fn a_shadow_denial_spares_nobody() {
        let steps = decide(&[(5, 1, false), (1, 2, true), (5, 1, true)]);
        assert_eq!(steps, [(true, 4, true), (false, 1, false), (true, 4, true)]);
    }
}
