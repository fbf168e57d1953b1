//! What went wrong in other limiters: `tests/reports/decisions.txt`, read and played.

use tollgate::check::{Check, Policy};
use tollgate::decide::{
    Anchor, Decision, FixedWindow, LeakyBucket, Rule, SlidingCounter, SlidingLog, Timestamp,
    TokenBucket, Verdict,
};

use super::policies::{check, limits, policy};
use super::traces::{limit, whole};

const TABLE: &str = include_str!("../reports/decisions.txt");

/// Where time begins: a whole number of days, and of 30 days, since the epoch.
const START_US: u64 = 20_010 * 86_400_000_000;

/// One history that would show a report's fault.
#[derive(Debug)]
pub(crate) struct Report {
    /// Where it stands, the symptom, and the history, to be found in the table.
    pub(crate) title: String,
    rule: Rule,
    steps: Vec<(u64, Step)>,
}

#[derive(Debug)]
enum Step {
    /// So many requests, so far apart; so many pass.
    Pass {
        passing: usize,
        asking: u64,
        cost: u64,
        every_us: u64,
    },
    /// One request is denied for so long; `None` is for good.
    Deny {
        cost: u64,
        wait_us: Option<u64>,
    },
    Left(u64),
    Reset(u64),
    Edit(Rule),
}

/// The whole table.
pub(crate) fn reports() -> Vec<Report> {
    let mut reports = Vec::new();
    let mut symptom = "";
    for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
        let Some(history) = line.strip_prefix("    ") else {
            symptom = line;
            continue;
        };
        let (rule, steps) = history.split_once(" | ").expect("a policy, then steps");
        reports.push(Report {
            title: format!("{symptom}\n    {history}"),
            rule: read_rule(rule),
            steps: steps.split(" | ").map(read_step).collect(),
        });
    }
    reports
}

impl Report {
    /// Plays the history, and panics where an answer is not the right one.
    pub(crate) fn play(
        &self,
        number: u64,
        mut decide: impl FnMut(&Check<'_>, Timestamp) -> Decision,
    ) {
        let mut policy = policy("reported", self.rule.clone());
        for (at_us, step) in &self.steps {
            let ask = |policy: &Policy, cost: u64, after_us: u64| {
                let now = Timestamp::from_micros(START_US + at_us + after_us);
                decide(&check(policy, number, cost), now)
            };
            self.take(step, &mut policy, ask);
        }
    }

    fn take(
        &self,
        step: &Step,
        policy: &mut Policy,
        mut ask: impl FnMut(&Policy, u64, u64) -> Decision,
    ) {
        match step {
            Step::Pass {
                passing,
                asking,
                cost,
                every_us,
            } => {
                let passed = (0..*asking)
                    .filter(|n| ask(policy, *cost, n * every_us).verdict == Verdict::Allow)
                    .count();
                assert_eq!(passed, *passing, "{}\n{step:?}", self.title);
            }
            Step::Deny { cost, wait_us } => {
                let decision = ask(policy, *cost, 0);
                let found = (decision.verdict, decision.retry_after_us);
                assert_eq!(found, (Verdict::Deny, *wait_us), "{}", self.title);
            }
            Step::Left(units) => {
                assert_eq!(ask(policy, 0, 0).remaining, *units, "{}", self.title);
            }
            Step::Reset(us) => {
                assert_eq!(ask(policy, 0, 0).reset_after_us, *us, "{}", self.title);
            }
            Step::Edit(rule) => policy.limits = limits(rule.clone()),
        }
    }
}

/// `KIND LIMIT/WINDOW [burst N] [first-request]`
pub(crate) fn read_rule(text: &str) -> Rule {
    let words: Vec<_> = text.split(' ').collect();
    let (count, window) = words[1].split_once('/').expect("LIMIT/WINDOW");
    let limit = limit(count.parse().unwrap(), read_span(window));
    let burst = match words.get(2..) {
        Some(["burst", burst]) => whole(burst.parse().unwrap()),
        _ => limit.count,
    };
    let anchor = match words.get(2) {
        Some(&"first-request") => Anchor::FirstRequest,
        _ => Anchor::Epoch,
    };
    match words[0] {
        "fixed-window" => Rule::FixedWindow(FixedWindow::new(limit, anchor).unwrap()),
        "sliding-log" => Rule::SlidingLog(SlidingLog::new(limit).unwrap()),
        "sliding-counter" => Rule::SlidingCounter(SlidingCounter::new(limit, false).unwrap()),
        "token-bucket" => Rule::TokenBucket(TokenBucket::new(limit, burst).unwrap()),
        "leaky-bucket" => Rule::LeakyBucket(LeakyBucket::new(limit, burst, None).unwrap()),
        other => panic!("no such kind: {other}"),
    }
}

fn read_step(text: &str) -> (u64, Step) {
    let (at, what) = text.split_once(' ').expect("a time, then a step");
    if let Some(rule) = what.strip_prefix("edit ") {
        return (read_span(at), Step::Edit(read_rule(rule)));
    }
    let words: Vec<_> = what.split(' ').collect();
    let (cost, words) = match words.iter().find_map(|word| word.strip_prefix('x')) {
        Some(cost) => {
            let rest = words.iter().filter(|word| !word.starts_with('x'));
            (cost.parse().unwrap(), rest.copied().collect())
        }
        None => (1, words),
    };
    let step = match words[..] {
        ["deny", "never"] => Step::Deny {
            cost,
            wait_us: None,
        },
        ["deny", wait] => Step::Deny {
            cost,
            wait_us: Some(read_span(wait)),
        },
        ["left", units] => Step::Left(units.parse().unwrap()),
        ["reset", span] => Step::Reset(read_span(span)),
        [counts] => pass(counts, cost, 0),
        [counts, "every", span] => pass(counts, cost, read_span(span)),
        _ => panic!("no such step: {text}"),
    };
    (read_span(at), step)
}

fn pass(counts: &str, cost: u64, every_us: u64) -> Step {
    let (passing, asking) = counts.split_once("of").expect("5of6");
    Step::Pass {
        passing: passing.parse().unwrap(),
        asking: asking.parse().unwrap(),
        cost,
        every_us,
    }
}

/// `1s300ms` in microseconds.
fn read_span(text: &str) -> u64 {
    let mut sum = 0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).expect("a unit");
        let (number, after) = rest.split_at(digits);
        let end = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let us: u64 = match unit {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            "min" => 60_000_000,
            "h" => 3_600_000_000,
            "d" => 86_400_000_000,
            other => panic!("no such unit: {other} in {text}"),
        };
        sum += number.parse::<u64>().unwrap() * us;
        rest = next;
    }
    sum
}
