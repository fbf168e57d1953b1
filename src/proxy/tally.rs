//! Counts what the policies did with a request.

use super::context::Context;
use super::gateway::Gateway;
use crate::check::{Demanded, Policy, Source};
use crate::decide::{Penalised, Verdict};
use crate::record::metrics;
use crate::store::limiter::Outcome;
use crate::store::{Cause, StoreError};

/// Counts the policies that do not apply, or deny since their key is missing; and remembers those whose key is.
pub fn not_asked(gateway: &Gateway, ctx: &mut Context, demanded: &Demanded<'_>) {
    let route = gateway
        .metrics
        .route(ctx.route.as_ref().map(|route| route.index));
    for policy in &demanded.exempt {
        route.decision(policy.index, metrics::Verdict::Exempt, None);
    }
    for policy in demanded.skipped.iter().chain(&demanded.uncounted) {
        route.decision(policy.index, metrics::Verdict::Skip, None);
    }
    for policy in &demanded.missing {
        route.decision(policy.index, metrics::Verdict::Deny, None);
    }
    ctx.missing_key = demanded
        .skipped
        .iter()
        .chain(&demanded.missing)
        .filter_map(|policy| gateway.config.policies.get(policy.index).cloned())
        .collect();
}

/// Counts the policies whose cost nobody said: their default is taken, or what was reserved stays taken.
pub fn missing_costs(gateway: &Gateway, policies: &[&Policy]) {
    for policy in policies {
        if let Some(series) = gateway.metrics.policy(policy.index) {
            series.cost_missing.inc();
        }
    }
}

/// Counts what every policy did.
pub fn decisions(gateway: &Gateway, ctx: &Context, demanded: &Demanded<'_>, outcome: &Outcome<'_>) {
    let allows = outcome.allows();
    let route = gateway
        .metrics
        .route(ctx.route.as_ref().map(|route| route.index));
    for ruling in &outcome.rulings {
        let policy = ruling.check.policy;
        let verdict = match (ruling.decision.verdict, ruling.check.shadow) {
            (Verdict::Allow, _) => metrics::Verdict::Allow,
            (Verdict::Deny, true) => metrics::Verdict::ShadowDeny,
            (Verdict::Deny, false) => metrics::Verdict::Deny,
        };
        route.decision(policy.index, verdict, Some(ruling.source));
        let Some(series) = gateway.metrics.policy(policy.index) else {
            continue;
        };
        if allows && ruling.decision.verdict == Verdict::Allow && !ctx.settling.holds(policy) {
            series.units.inc_by(ruling.check.cost.units());
        }
        if ruling.decision.remaining.saturating_mul(5) <= ruling.check.rule.capacity() {
            series.near_limit.inc();
        }
        if ruling.decision.penalised == Penalised::Begins {
            series.penalties.inc();
        }
    }
    if let Some(took) = outcome.store_took {
        gateway
            .metrics
            .families()
            .store_check
            .observe(took.as_secs_f64());
    }
    if let Some(by) = outcome.spared_by {
        gateway.metrics.families().store_spared(by as usize);
    }
    if let Some(failure) = &outcome.failure {
        count_failure(gateway, ctx, demanded, outcome, failure);
    }
}

/// Counts a failure of a store.
pub fn store_failed(gateway: &Gateway, failure: &StoreError) {
    let cause = failure.cause();
    let position = Cause::ALL.iter().position(|known| *known == cause);
    gateway
        .metrics
        .families()
        .store_failed(position.unwrap_or(0));
}

/// Counts a failure of a store, and what the policies without a decision did then.
fn count_failure(
    gateway: &Gateway,
    ctx: &Context,
    demanded: &Demanded<'_>,
    outcome: &Outcome<'_>,
    failure: &StoreError,
) {
    store_failed(gateway, failure);
    let route = gateway
        .metrics
        .route(ctx.route.as_ref().map(|route| route.index));
    let undecided = demanded.checks.iter().filter(|check| {
        !outcome
            .rulings
            .iter()
            .any(|ruling| ruling.check.policy.index == check.policy.index)
    });
    for check in undecided {
        let denies = outcome
            .unavailable
            .is_some_and(|policy| policy.index == check.policy.index);
        let verdict = if denies {
            metrics::Verdict::Deny
        } else {
            metrics::Verdict::Allow
        };
        route.decision(check.policy.index, verdict, Some(Source::Fallback));
    }
}
