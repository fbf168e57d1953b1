//! Policies and checks made by hand.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;

use tollgate::check::{
    Check, EntityKey, Generation, KeySource, Limits, Mode, OnMissingKey, OnStoreFailure, Policy,
    Scope, Unit,
};
use tollgate::decide::{
    Anchor, Concurrency, Cost, FixedWindow, LeakyBucket, Limit, Rule, SlidingCounter, SlidingLog,
    TokenBucket,
};

/// An enforced policy with this rule.
pub(crate) fn policy(name: &str, rule: Rule) -> Policy {
    Policy {
        name: Arc::from(name),
        index: 0,
        generation: Generation(0x00c0_ffee),
        limits: limits(rule),
        uneven: Arc::default(),
        key: Box::new([KeySource::Ip]),
        on_missing_key: OnMissingKey::Skip,
        preflights: false,
        on_store_failure: OnStoreFailure::Local,
        scope: Scope::Shared,
        penalty: None,
        lease: None,
        outcomes: None,
        given_back: false,
        mode: Mode::Enforce,
        unit: Unit::Requests,
        reject: 0,
        advertise: true,
    }
}

/// Limits of one gateway, by this rule.
pub(crate) fn limits(rule: Rule) -> Arc<Limits> {
    Arc::new(Limits::new(rule, NonZeroU32::MIN))
}

/// A rule of this kind, `count` a window; buckets hold `burst`. Of concurrency the window is the lease.
pub(crate) fn rule(kind: &str, count: u64, window_us: u64, burst: u64) -> Rule {
    let whole = |number| NonZeroU64::new(number).unwrap();
    let limit = Limit {
        count: whole(count),
        window_us: whole(window_us),
    };
    match kind {
        "fixed-window" => Rule::FixedWindow(FixedWindow::new(limit, Anchor::Epoch).unwrap()),
        "first-request" => {
            Rule::FixedWindow(FixedWindow::new(limit, Anchor::FirstRequest).unwrap())
        }
        "sliding-log" => Rule::SlidingLog(SlidingLog::new(limit).unwrap()),
        "sliding-counter" => Rule::SlidingCounter(SlidingCounter::new(limit, false).unwrap()),
        "strict" => Rule::SlidingCounter(SlidingCounter::new(limit, true).unwrap()),
        "token-bucket" => Rule::TokenBucket(TokenBucket::new(limit, whole(burst)).unwrap()),
        "concurrency" => Rule::Concurrency(Concurrency::new(limit.count, limit.window_us).unwrap()),
        "leaky-bucket" => Rule::LeakyBucket(LeakyBucket::new(limit, whole(burst), None).unwrap()),
        other => panic!("no such kind: {other}"),
    }
}

/// A check of the policy, enforced.
pub(crate) fn check(policy: &Policy, entity: u64, cost: u64) -> Check<'_> {
    Check {
        policy,
        limits: &policy.limits,
        rule: &policy.limits.rule,
        entity: self::entity(entity),
        cost: Cost::new(cost),
        shadow: false,
    }
}

/// An entity with this number, spread like a hash.
pub(crate) fn entity(number: u64) -> EntityKey {
    let spread = |salt: u64| {
        (number ^ salt)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .to_be_bytes()
    };
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&spread(0));
    bytes[8..].copy_from_slice(&spread(0x5555));
    EntityKey(bytes)
}
