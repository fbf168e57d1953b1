//! Histories to decide: the recorded ones, and random ones that aim at the edges.

use std::num::NonZeroU64;
use std::path::Path;

use serde::Deserialize;
use tollgate::decide::{
    Anchor, Decision, FixedWindow, LeakyBucket, Limit, Rule, SlidingCounter, SlidingLog,
    TokenBucket, Verdict,
};

/// One policy, one client, and what must be decided for it.
#[derive(Debug, Deserialize)]
pub(crate) struct Case {
    pub title: String,
    pub algorithm: String,
    pub limit: u64,
    #[serde(rename = "window")]
    pub window_ms: u64,
    pub burst: Option<u64>,
    #[serde(default)]
    pub time_tolerance_ms: u64,
    pub steps: Vec<Step>,
}

/// One request, and its decision.
#[derive(Debug, Deserialize)]
pub(crate) struct Step {
    pub time_ms: u64,
    pub cost: u64,
    pub allowed: bool,
    pub remaining: u64,
    pub retry_after_ms: Option<u64>,
    pub reset_after_ms: u64,
    #[serde(default)]
    pub delay_ms: u64,
}

/// All recorded cases.
pub(crate) fn cases() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let kinds = [
        "fixed_window",
        "leaky_bucket",
        "sliding_counter",
        "sliding_log",
        "token_bucket",
    ];
    let read = |kind| {
        let text = std::fs::read_to_string(folder.join(format!("{kind}.json"))).unwrap();
        serde_json::from_str::<Vec<Case>>(&text).unwrap()
    };
    kinds.into_iter().flat_map(read).collect()
}

pub(crate) fn whole(n: u64) -> NonZeroU64 {
    NonZeroU64::new(n).unwrap()
}

pub(crate) fn limit(count: u64, window_us: u64) -> Limit {
    Limit {
        count: whole(count),
        window_us: whole(window_us),
    }
}

impl Case {
    /// The policy that it is about.
    pub(crate) fn rule(&self) -> Rule {
        let limit = limit(self.limit, self.window_ms * 1_000);
        let burst = whole(self.burst.unwrap_or(self.limit));
        match self.algorithm.as_str() {
            "fixed_window" => Rule::FixedWindow(FixedWindow::new(limit, Anchor::Epoch).unwrap()),
            "sliding_log" => Rule::SlidingLog(SlidingLog::new(limit).unwrap()),
            "sliding_counter" => Rule::SlidingCounter(SlidingCounter::new(limit, false).unwrap()),
            "token_bucket" => Rule::TokenBucket(TokenBucket::new(limit, burst).unwrap()),
            "leaky_bucket" => Rule::LeakyBucket(LeakyBucket::new(limit, burst, None).unwrap()),
            other => panic!("no such kind: {other}"),
        }
    }

    /// Panics unless the decision is the recorded one: every field, times late by the tolerance at most.
    pub(crate) fn compare(&self, index: usize, decision: &Decision) {
        let step = &self.steps[index];
        let tolerance = self.time_tolerance_ms;
        let near = |found: u64, expected: u64| (expected..=expected + tolerance).contains(&found);
        let found = (
            decision.verdict == Verdict::Allow,
            decision.remaining,
            decision.retry_after_us.map(ms),
            ms(decision.reset_after_us),
            ms(decision.delay_us),
        );
        let retry_agrees = match (found.2, step.retry_after_ms) {
            (Some(found), Some(expected)) => near(found, expected),
            (found, expected) => found == expected,
        };
        let agrees = found.0 == step.allowed
            && found.1 == step.remaining
            && retry_agrees
            && near(found.3, step.reset_after_ms)
            && near(found.4, step.delay_ms);
        assert!(
            agrees,
            "{} \"{}\" step {index}: found {found:?}, expected {step:?}",
            self.algorithm, self.title
        );
    }
}

/// Milliseconds, rounded up.
pub(crate) fn ms(us: u64) -> u64 {
    us.div_ceil(1_000)
}
