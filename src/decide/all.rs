//! All checks of a request at one instant: every one is charged, or none.
//!
//! Lua twin: `lua/decide.lua`.

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
}

/// Decides all of `asks` at `now`. The changes and decisions come in their order.
///
/// If an enforced check denies, nothing is charged: a check that would have allowed then answers as if it had only
/// looked. A check in shadow is charged if it allows by itself and no enforced check denies. The one change that a
/// denial makes is to a state from the future, which it moves to now.
#[must_use]
pub fn decide_all(asks: &[Ask<'_>], now: Timestamp) -> Vec<(Change, Decision)> {
    let mut steps: Vec<_> = asks
        .iter()
        .map(|a| a.rule.decide(a.kept, now, a.cost))
        .collect();
    let denied = asks
        .iter()
        .zip(&steps)
        .any(|(ask, (_, decision))| !ask.shadow && is_denial(decision));
    if denied {
        for (ask, step) in asks.iter().zip(&mut steps) {
            if !is_denial(&step.1) {
                let looked = ask.rule.decide(ask.kept, now, Cost::new(0));
                *step = (Change::None, looked.1);
            }
        }
    }
    steps
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
            })
            .collect();
        let steps = decide_all(&asks, Timestamp::from_micros(0));
        steps
            .into_iter()
            .map(|(change, d)| {
                (
                    d.verdict == Verdict::Allow,
                    d.remaining,
                    change != Change::None,
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
