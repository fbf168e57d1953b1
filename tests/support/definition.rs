//! Each kind as its definition has it: a sum over all that was allowed, in fractions, by brute force.

use tollgate::decide::{Anchor, Rule, Timestamp};

/// Units times the window in microseconds: fractions of a unit without rounding.
pub(crate) struct Fraction;

impl Fraction {
    pub(crate) fn units(units: u64, rule: &Rule) -> u128 {
        Self::units_wide(u128::from(units), rule)
    }

    pub(crate) fn units_wide(units: u128, rule: &Rule) -> u128 {
        units * u128::from(rule.limit().unwrap().window_us.get())
    }
}

/// A kind as `used` defines it, from nothing but the list of what it allowed.
pub(crate) struct Definition<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) allowed: &'a [(u64, u64)],
}

impl Definition<'_> {
    /// What counts at `now`, as a [`Fraction`].
    pub(crate) fn used(&self, now: u64) -> u128 {
        let window = self.rule.limit().unwrap().window_us.get();
        let sum = |counts: &dyn Fn(u64) -> bool| {
            self.allowed
                .iter()
                .filter(|(t, _)| counts(*t))
                .map(|(_, c)| u128::from(*c))
                .sum::<u128>()
        };
        let wide = u128::from(window);
        match self.rule {
            Rule::FixedWindow(rule) if rule.calendar().is_some() => {
                let start = |t| {
                    let window = rule
                        .calendar()
                        .map(|it| it.window_at(Timestamp::from_micros(t)));
                    window.map(|it| it.start)
                };
                sum(&|t| start(t) == start(now)) * wide
            }
            Rule::FixedWindow(rule) if *rule.anchor() == Anchor::Epoch => {
                sum(&|t| t / window == now / window) * wide
            }
            Rule::FixedWindow(_) => {
                let (mut start, mut used) = (None, 0);
                for &(t, c) in self.allowed {
                    match start {
                        Some(s) if t < s + window => used += u128::from(c),
                        _ => (start, used) = (Some(t), u128::from(c)),
                    }
                }
                if start.is_some_and(|s| now < s + window) {
                    used * wide
                } else {
                    0
                }
            }
            Rule::SlidingLog(_) => sum(&|t| t + window > now) * wide,
            Rule::SlidingCounter(rule) => {
                let tick = rule.script_numbers()[0];
                let elapsed = u128::from(now % window / tick * tick);
                let previous = sum(&|t| t / window + 1 == now / window);
                let inside = previous * (wide - elapsed) / wide;
                (sum(&|t| t / window == now / window) + inside) * wide
            }
            Rule::TokenBucket(_) | Rule::LeakyBucket(_) => {
                let count = u128::from(self.rule.count().get());
                let (mut debt, mut stamp) = (0_u128, 0);
                let drain = |debt: u128, from: u64, to: u64| {
                    debt.saturating_sub(u128::from(to - from) * count)
                };
                for &(t, c) in self.allowed {
                    debt = drain(debt, stamp, t) + u128::from(c) * wide;
                    stamp = t;
                }
                drain(debt, stamp, now)
            }
            Rule::Concurrency(_) => unreachable!("it has no window"),
        }
    }

    /// Whether a leaky bucket's next request would wait no longer than it may.
    pub(crate) fn is_patient(&self, now: u64) -> bool {
        let Rule::LeakyBucket(rule) = self.rule else {
            return true;
        };
        let delay = self
            .used(now)
            .div_ceil(u128::from(rule.limit().count.get()));
        rule.max_wait_us()
            .is_none_or(|max_wait| delay <= u128::from(max_wait))
    }
}
