//! Policies that can never deny, since another one that counts the same callers always denies first.

use std::sync::Arc;

use super::Builder;
use super::policies::Policies;
use crate::check::{Demand, Mode, Plans, Policy, Price, Scope};
use crate::config::Route;
use crate::config::error::{Code, Finding};
use crate::decide::{Limit, Rule};
use crate::route::Table;

impl Builder<'_> {
    /// Warns of each policy that stands on no route without one that denies before it could.
    pub(super) fn warn_of_idle(
        &self,
        policies: &Policies<'_>,
        routes: &Table<Arc<Route>>,
        plans: &Plans,
    ) {
        for built in policies.0.values() {
            let Some(idle) = built.policy.as_ref().filter(|it| it.mode == Mode::Enforce) else {
                continue;
            };
            let guard = policies
                .0
                .values()
                .filter_map(|built| built.policy.as_ref())
                .find(|guard| {
                    let is_even = [guard.index, idle.index].map(|index| !plans.speak_of(index));
                    is_even == [true; 2]
                        && guards(guard, idle)
                        && stands_wherever(guard, idle, routes)
                });
            if let Some(guard) = guard {
                self.findings.add(
                    Finding::new(
                        Code::W215,
                        built.place,
                        format!(
                            "policy `{}` can never deny: wherever it stands, `{}` counts the same callers and denies first",
                            idle.name, guard.name
                        ),
                    )
                    .help("take it out, or correct the numbers of one of them"),
                );
            }
        }
    }
}

/// Whether a caller that `guard` allows is one that `idle` does.
fn guards(guard: &Policy, idle: &Policy) -> bool {
    guard.index != idle.index
        && guard.mode == Mode::Enforce
        && guard.key == idle.key
        && (guard.scope == Scope::Shared || guard.scope == idle.scope)
        && never_more(&guard.limits.rule, &idle.limits.rule)
        // Of two that are alike, one stays.
        && (guard.index < idle.index || !never_more(&idle.limits.rule, &guard.limits.rule))
}

/// Whether there is a use of `guard`, at no lesser cost, beside each use of `idle`.
fn stands_wherever(guard: &Policy, idle: &Policy, routes: &Table<Arc<Route>>) -> bool {
    let mut used = false;
    for route in routes.iter() {
        let uses = route.demands.iter().flat_map(Demand::uses);
        let mut of_idle = uses
            .filter(|it| it.policy.index == idle.index)
            .map(|it| &it.price);
        let Some(price) = of_idle.next() else {
            continue;
        };
        used = true;
        let is_guarded = route.demands.iter().any(|demand| {
            matches!(demand, Demand::One(it) if it.policy.index == guard.index && costs_no_less(&it.price, price))
        });
        if !is_guarded {
            return false;
        }
    }
    used
}

/// Whether a request never takes less of one than of the other.
fn costs_no_less(one: &Price, other: &Price) -> bool {
    match (one, other) {
        (Price::Fixed(one), Price::Fixed(other)) => one >= other,
        _ => one == other,
    }
}

/// Whether what `guard` allows in any span of time is no more than what `idle` does.
fn never_more(guard: &Rule, idle: &Rule) -> bool {
    // Days and months are not all as long as they are said to be.
    if guard.calendar().or(idle.calendar()).is_some() {
        return false;
    }
    let (Some(limit), Some(guards)) = (idle.limit(), guard.limit()) else {
        // What is let through in a time says nothing of how much is in flight, nor the other way.
        return guard.lends() && idle.lends() && guard.count() <= idle.count();
    };
    let window_us = u128::from(limit.window_us.get());
    match idle {
        Rule::FixedWindow(_) | Rule::SlidingLog(_) => {
            most_in(guard, guards, window_us) <= u128::from(limit.count.get())
        }
        // Its estimate looks at two windows.
        Rule::SlidingCounter(_) => {
            most_in(guard, guards, window_us.saturating_mul(2)) <= u128::from(limit.count.get())
        }
        Rule::TokenBucket(_) => {
            most_at_once(guard) <= u128::from(idle.capacity()) && is_no_faster(guards, limit)
        }
        // What it allows it makes wait, too.
        Rule::LeakyBucket(_) | Rule::Concurrency(_) => false,
    }
}

/// The most that a rule allows in any span of this length, or somewhat more.
fn most_in(rule: &Rule, limit: Limit, span_us: u128) -> u128 {
    let (count, window_us) = (
        u128::from(limit.count.get()),
        u128::from(limit.window_us.get()),
    );
    let windows = span_us.div_ceil(window_us);
    match rule {
        Rule::SlidingLog(_) => windows.saturating_mul(count),
        Rule::FixedWindow(_) | Rule::SlidingCounter(_) => {
            windows.saturating_add(1).saturating_mul(count)
        }
        Rule::TokenBucket(_) | Rule::LeakyBucket(_) => {
            let refilled = count.saturating_mul(span_us) / window_us;
            u128::from(rule.capacity()).saturating_add(refilled)
        }
        Rule::Concurrency(_) => u128::MAX,
    }
}

/// The most that a rule allows in no time.
fn most_at_once(rule: &Rule) -> u128 {
    match rule {
        Rule::FixedWindow(_) | Rule::SlidingCounter(_) => 2 * u128::from(rule.capacity()),
        Rule::SlidingLog(_)
        | Rule::TokenBucket(_)
        | Rule::LeakyBucket(_)
        | Rule::Concurrency(_) => u128::from(rule.capacity()),
    }
}

fn is_no_faster(one: Limit, other: Limit) -> bool {
    let scaled = |count: u64, window: u64| u128::from(count) * u128::from(window);
    scaled(one.count.get(), other.window_us.get()) <= scaled(other.count.get(), one.window_us.get())
}
