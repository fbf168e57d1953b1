//! The recorded decisions, field by field.

use std::num::NonZeroUsize;

use tollgate::check::Check;
use tollgate::clock::{Clock, ManualClock};
use tollgate::decide::{Cost, Timestamp, Verdict};
use tollgate::store::local::LocalStore;

use crate::support::policies::{check, policy};
use crate::support::traces::{Case, cases};

#[test]
fn there_are_as_many_cases_as_were_recorded() {
    let cases = cases();
    assert_eq!(cases.len(), 190);
    assert_eq!(cases.iter().map(|c| c.steps.len()).sum::<usize>(), 11_464);
}

#[test]
fn the_function_decides_as_recorded() {
    for case in cases() {
        let rule = case.rule();
        let mut kept = None;
        for (index, step) in case.steps.iter().enumerate() {
            let now = Timestamp::from_micros(step.time_ms * 1_000);
            let (change, decision) = rule.decide(kept.as_ref(), now, Cost::new(step.cost));
            change.apply(&mut kept);
            case.compare(index, &decision);
        }
    }
}

#[test]
fn the_local_store_decides_as_recorded() {
    let clock = ManualClock::default();
    let store = LocalStore::new(
        NonZeroUsize::new(1_000).unwrap(),
        Clock::Manual(clock.clone()),
    );
    for (number, case) in (0..).zip(cases()) {
        let policy = policy("recorded", case.rule());
        for (index, step) in case.steps.iter().enumerate() {
            let now = Timestamp::from_micros(step.time_ms * 1_000);
            clock.set(now);
            let check = Check {
                cost: Cost::new(step.cost),
                ..check(&policy, number, 0)
            };
            let (stood_at, decisions) = store.decide_now(&[check]).unwrap();
            assert_eq!(stood_at, now);
            case.compare(index, &decisions[0]);
        }
    }
    assert!(store.len() <= 190);
}

#[test]
fn the_traces_of_the_article_come_out_as_measured() {
    let allowed = |algorithm: &str, trace: &str| {
        let is_it =
            |c: &&Case| c.algorithm == algorithm && c.title == format!("article trace: {trace}");
        let cases = cases();
        let case = cases.iter().find(is_it).unwrap();
        let rule = case.rule();
        let mut kept = None;
        let decide = |step: &crate::support::traces::Step| {
            let now = Timestamp::from_micros(step.time_ms * 1_000);
            let (change, decision) = rule.decide(kept.as_ref(), now, Cost::new(step.cost));
            change.apply(&mut kept);
            decision
        };
        let decisions: Vec<_> = case.steps.iter().map(decide).collect();
        let longest_wait_ms = decisions
            .iter()
            .map(|d| d.delay_us.div_ceil(1_000))
            .max()
            .unwrap();
        (
            decisions
                .iter()
                .filter(|d| d.verdict == Verdict::Allow)
                .count(),
            longest_wait_ms,
        )
    };
    // kind, after an edge, three a second for a minute, thirty in a second; longest waits
    let table = [
        ("fixed_window", [20, 60, 10]),
        ("sliding_log", [10, 60, 10]),
        ("sliding_counter", [11, 60, 10]),
        ("token_bucket", [10, 69, 10]),
        ("leaky_bucket", [10, 69, 10]),
    ];
    for (kind, counts) in table {
        let found = ["edge", "steady", "after-idle"].map(|trace| allowed(kind, trace).0);
        assert_eq!(found, counts, "{kind}");
    }
    let waits = ["edge", "steady", "after-idle"].map(|trace| allowed("leaky_bucket", trace).1);
    assert_eq!(waits.map(|ms| (ms + 50) / 100), [86, 87, 87]);
}
