//! Histories to decide: the recorded ones, and random ones that aim at the edges.

use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use tollgate::decide::{
    Anchor, Calendar, CalendarUnit, Decision, EXACT_MAX, FixedWindow, LeakyBucket, Limit, Penalty,
    Rule, SlidingCounter, SlidingLog, TokenBucket, TooLarge, UNITS_MAX, Verdict,
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

/// How far the next request is from the last one: mostly on an edge, where `<` and `<=` differ.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gap {
    None,
    UntilRetry,
    JustBeforeRetry,
    UntilReset,
    JustBeforeReset,
    Forward(u64),
    Back(u64),
}

impl Gap {
    /// A random one; spans are about as long as the window.
    pub(crate) fn random(random: &mut fastrand::Rng, window_us: u64) -> Self {
        let span = |random: &mut fastrand::Rng| match random.u8(0..4) {
            0 => random.u64(0..=3),
            1 => random.u64(0..=window_us / 10),
            2 => random.u64(0..=window_us),
            _ => random.u64(0..=window_us.saturating_mul(3)),
        };
        match random.u8(0..16) {
            0..=4 => Self::None,
            5..=7 => Self::UntilRetry,
            8 | 9 => Self::JustBeforeRetry,
            10 => Self::UntilReset,
            11 => Self::JustBeforeReset,
            12..=14 => Self::Forward(span(random)),
            _ => Self::Back(span(random)),
        }
    }

    /// The moment that is this far from `now`, where the last decision was made.
    pub(crate) fn after(self, now: u64, last: Option<&Decision>) -> u64 {
        let retry = last.and_then(|d| d.retry_after_us).unwrap_or(0);
        let reset = last.map_or(0, |d| d.reset_after_us);
        let moved = match self {
            Self::None => now,
            Self::UntilRetry => now.saturating_add(retry),
            Self::JustBeforeRetry => now.saturating_add(retry.saturating_sub(1)),
            Self::UntilReset => now.saturating_add(reset),
            Self::JustBeforeReset => now.saturating_add(reset.saturating_sub(1)),
            Self::Forward(us) => now.saturating_add(us),
            Self::Back(us) => now.saturating_sub(us),
        };
        moved.min(EXACT_MAX)
    }
}

/// Costs at the edges: 0, 1, all that is left, one more, all that there is, one more.
pub(crate) fn random_cost(
    random: &mut fastrand::Rng,
    capacity: u64,
    last: Option<&Decision>,
) -> u64 {
    let left = last.map_or(capacity, |d| d.remaining);
    match random.u8(0..12) {
        0 => 0,
        1..=5 => 1,
        6 => left,
        7 => left + 1,
        8 => capacity,
        9 => capacity + 1,
        10 => UNITS_MAX + 1,
        _ => random.u64(1..=capacity),
    }
}

/// A whole number up to `max` whose length is as likely as any other.
pub(crate) fn random_size(random: &mut fastrand::Rng, max: u64) -> u64 {
    let bits = random.u32(1..=64 - max.leading_zeros());
    let size = random.u64(0..=u64::MAX) >> (64 - bits);
    match random.u8(0..4) {
        // Round ones, as people write them.
        0 => 10_u64.pow(random.u32(0..=max.ilog10())),
        1 => 1,
        _ => size.clamp(1, max),
    }
}

const DAY_US: u64 = 86_400_000_000;

/// A random window: 1 ms to 366 days.
pub(crate) fn random_window(random: &mut fastrand::Rng) -> u64 {
    let usual = [
        1_000,
        7_000,
        999_000,
        1_000_000,
        3_333_000,
        60_000_000,
        3_600_000_000,
        DAY_US,
        366 * DAY_US,
    ];
    if random.bool() {
        usual[random.usize(..usual.len())]
    } else {
        random_size(random, 366 * DAY_US / 1_000) * 1_000
    }
}

/// Zones whose clocks change in as many ways: by an hour, by half an hour, never, and once by a day.
pub(crate) const ZONES: [&str; 6] = [
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "UTC",
];

/// The days, weeks and months of these zones: a table is made once.
pub(crate) static CALENDARS: LazyLock<Vec<Arc<Calendar>>> = LazyLock::new(|| {
    let of = |zone| {
        let units = CalendarUnit::ALL.into_iter();
        units.map(move |unit| Arc::new(Calendar::of_zone(unit, zone).unwrap()))
    };
    ZONES.into_iter().flat_map(of).collect()
});

/// A random penalty of up to four steps, from a millisecond to three windows long.
pub(crate) fn random_penalty(random: &mut fastrand::Rng, window_us: u64) -> Penalty {
    let count = random.usize(1..=4);
    let longest = window_us.saturating_mul(3).min(31 * DAY_US);
    let mut steps: Vec<_> = (0..count)
        .map(|_| whole(random_size(random, longest).max(1_000)))
        .collect();
    steps.sort_unstable();
    steps.dedup();
    Penalty::new(&steps).unwrap()
}

/// How many kinds [`random_rule`] knows.
pub(crate) const KINDS: usize = 8;

/// A random policy of this kind and window, of numbers that fit; what does not fit is cut to the largest that does.
pub(crate) fn random_rule(random: &mut fastrand::Rng, kind: usize, window_us: u64) -> Rule {
    let most = if random.bool() { 20 } else { UNITS_MAX };
    let count = random_size(random, most);
    let burst = if random.bool() {
        count
    } else {
        random_size(random, most)
    };
    let max_wait_us = random
        .bool()
        .then(|| random.u64(0..=window_us.saturating_mul(2)));
    let calendar = &CALENDARS[random.usize(..CALENDARS.len())];
    let kind = kind % KINDS;
    let made = |count: u64, burst: u64| {
        let limit = limit(count, window_us);
        Ok(match kind {
            0 => Rule::FixedWindow(FixedWindow::new(limit, Anchor::Epoch)?),
            1 => Rule::FixedWindow(FixedWindow::new(limit, Anchor::FirstRequest)?),
            2 => Rule::SlidingLog(SlidingLog::new(limit)?),
            3 => Rule::SlidingCounter(SlidingCounter::new(limit, false)?),
            4 => Rule::SlidingCounter(SlidingCounter::new(limit, true)?),
            5 => Rule::TokenBucket(TokenBucket::new(limit, whole(burst))?),
            7 => {
                let anchor = Anchor::Calendar(Arc::clone(calendar));
                Rule::FixedWindow(FixedWindow::new(limit, anchor)?)
            }
            _ => Rule::LeakyBucket(LeakyBucket::new(limit, whole(burst), max_wait_us)?),
        })
    };
    match made(count, burst) {
        Ok(rule) => rule,
        Err(TooLarge { largest, .. }) if kind >= 5 => {
            made(count, largest.max(1)).unwrap_or_else(|_| made(1, 1).unwrap())
        }
        Err(TooLarge { largest, .. }) => made(largest, burst).unwrap(),
    }
}
