//! What a decision costs in the local store, with many keys live. Compare within one run, as ratios.
//!
//! `cargo bench --bench decide`
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a bench that cannot go on should stop loudly"
)]

#[path = "../support/policies.rs"]
mod policies;

use std::num::NonZeroUsize;

use divan::Bencher;
use tollgate::check::Policy;
use tollgate::clock::Clock;
use tollgate::store::local::LocalStore;

use policies::{check, policy, rule};

const KEYS: u64 = 100_000;

fn main() {
    divan::main();
}

/// A policy of the kind, 1,000 an hour.
fn policy_of(kind: &str) -> Policy {
    policy(kind, rule(kind, 1_000, 3_600_000_000, 1_000))
}

/// A store in which `KEYS` entities owe something to each of the policies.
fn filled(policies: &[Policy]) -> LocalStore {
    let store = LocalStore::new(NonZeroUsize::new(1_000_000).unwrap(), Clock::steady());
    for entity in 0..KEYS {
        let checks: Vec<_> = policies.iter().map(|p| check(p, entity, 1)).collect();
        store.decide_now(&checks).unwrap();
    }
    store
}

const KINDS: [&str; 5] = [
    "fixed-window",
    "sliding-log",
    "sliding-counter",
    "token-bucket",
    "leaky-bucket",
];

#[divan::bench(args = KINDS, threads = [1, 2], sample_count = 100, sample_size = 2_000)]
fn one_check(bencher: Bencher<'_, '_>, kind: &str) {
    let policies = [policy_of(kind)];
    let store = filled(&policies);
    bencher.bench(|| {
        let entity = fastrand::u64(..KEYS);
        store.decide_now(&[check(&policies[0], entity, 1)])
    });
}

#[divan::bench(threads = [1, 2], sample_count = 100, sample_size = 2_000)]
fn three_checks(bencher: Bencher<'_, '_>) {
    let policies = ["fixed-window", "sliding-counter", "token-bucket"].map(policy_of);
    let store = filled(&policies);
    bencher.bench(|| {
        let entity = fastrand::u64(..KEYS);
        let [a, b, c] = &policies;
        store.decide_now(&[
            check(a, entity, 1),
            check(b, entity, 1),
            check(c, entity, 1),
        ])
    });
}
