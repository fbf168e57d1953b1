//! Penalties beside policies of every kind: what must hold whatever the history.

use std::num::{NonZeroU64, NonZeroUsize};

use proptest::prelude::*;
use tollgate::check::{Check, KeySecret, Policy};
use tollgate::clock::{Clock, ManualClock};
use tollgate::decide::{
    Anchor, Ask, Change, Cost, Decision, EXACT_MAX, FixedWindow, LeakyBucket, Penalised, Penalty,
    Rule, State, Timestamp, Verdict, decide_all,
};
use tollgate::store::local::LocalStore;

use crate::support::policies::{check, policy};
use crate::support::traces::{
    Gap, KINDS, limit, random_cost, random_penalty, random_rule, random_window, whole,
};

const START_US: u64 = 1_700_000_000_000_000;
const SECOND_US: u64 = 1_000_000;

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn punishing(rule: Rule, penalty: Penalty) -> Policy {
    Policy {
        penalty: Some(penalty),
        ..policy("punishing", rule)
    }
}

fn seconds(steps: &[u64]) -> Penalty {
    let steps: Vec<NonZeroU64> = steps.iter().map(|s| whole(s * SECOND_US)).collect();
    Penalty::new(&steps).unwrap()
}

/// Two a second.
fn two() -> Rule {
    Rule::FixedWindow(FixedWindow::new(limit(2, SECOND_US), Anchor::Epoch).unwrap())
}

fn ask_of<'a>(check: &Check<'a>, kept: Option<&'a State>, penalty: Option<&State>) -> Ask<'a> {
    Ask {
        rule: check.rule,
        kept,
        cost: check.cost,
        shadow: check.shadow,
        beside: check.beside(penalty.and_then(State::as_penalty)),
    }
}

/// What a policy and its penalty keep, decided by the pure function.
#[derive(Clone, Default)]
struct Kept {
    usage: Option<State>,
    penalty: Option<State>,
}

impl Kept {
    fn decide(&mut self, check: &Check<'_>, now: u64) -> Decision {
        let ask = ask_of(check, self.usage.as_ref(), self.penalty.as_ref());
        let step = decide_all(&[ask], at(now)).remove(0);
        step.change.apply(&mut self.usage);
        self.penalty = step.penalty.map(State::Penalty).or(self.penalty.take());
        step.decision
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn who_waits_out_a_penalty_is_allowed_and_who_comes_a_tick_earlier_is_not(
        seed in any::<u64>(), kind in 0..KINDS,
    ) {
        let mut random = fastrand::Rng::with_seed(seed);
        let window_us = random_window(&mut random);
        let rule = random_rule(&mut random, kind, window_us);
        let policy = punishing(rule, random_penalty(&mut random, window_us));
        let (mut kept, mut now, mut last) = (Kept::default(), START_US, None);
        for _ in 0..40 {
            now = match Gap::random(&mut random, window_us) {
                Gap::Back(us) => Gap::Forward(us),
                gap => gap,
            }.after(now, last.as_ref());
            // Where time ends, nothing lasts.
            if now > EXACT_MAX / 2 {
                break;
            }
            let cost = random_cost(&mut random, policy.limits.rule.capacity(), last.as_ref());
            let asked = check(&policy, 0, cost);
            let before = kept.clone();
            let decision = kept.decide(&asked, now);
            if decision.verdict == Verdict::Deny {
                prop_assert_eq!(&kept.usage, &before.usage, "a denial charges nothing");
                prop_assert!(decision.penalised != Penalised::No);
                prop_assert_eq!(decision.remaining, 0);
                if decision.penalised == Penalised::Runs {
                    prop_assert_eq!(&kept.penalty, &before.penalty, "a penalty that runs stays as it is");
                }
                // Nobody else calls: what was begun is what there is.
                let mut later = kept.clone();
                prop_assert_eq!(later.decide(&check(&policy, 0, 0), now).remaining, 0);
                if let Some(wait) = decision.retry_after_us {
                    prop_assert_eq!(later.decide(&asked, now + wait - 1).verdict, Verdict::Deny);
                    if now + wait <= EXACT_MAX {
                        let mut later = kept.clone();
                        prop_assert_eq!(later.decide(&asked, now + wait).verdict, Verdict::Allow);
                    }
                } else {
                    prop_assert!(cost > policy.limits.rule.capacity());
                }
            } else {
                prop_assert!(cost == 0 || decision.penalised == Penalised::No);
                prop_assert_eq!(&kept.penalty, &before.penalty);
            }
            last = Some(decision);
        }
    }
}

#[test]
fn what_another_policy_denies_begins_no_penalty_and_what_a_penalty_denies_charges_nobody() {
    let (a, b) = (punishing(two(), seconds(&[10])), policy("other", two()));
    let used_up = |rule: &Rule| {
        let (change, _) = rule.decide(None, at(START_US), Cost::new(2));
        let mut kept = None;
        change.apply(&mut kept);
        kept
    };
    let full = used_up(&two());
    let decide = |kept_a: Option<&State>, penalty: Option<&State>, kept_b: Option<&State>| {
        let (first, second) = (check(&a, 0, 1), check(&b, 0, 1));
        let asks = [
            ask_of(&first, kept_a, penalty),
            ask_of(&second, kept_b, None),
        ];
        decide_all(&asks, at(START_US))
    };
    // The other one denies: no penalty, no charge.
    let steps = decide(None, None, full.as_ref());
    assert_eq!((&steps[0].change, steps[0].penalty), (&Change::None, None));
    assert_eq!(steps[0].decision.verdict, Verdict::Allow);
    // Both deny: it begins.
    let steps = decide(full.as_ref(), None, full.as_ref());
    assert!(steps[0].penalty.is_some());
    assert_eq!(steps[0].decision.penalised, Penalised::Begins);
    // It runs, and there is room: nothing is charged anywhere.
    let running = steps[0].penalty.map(State::Penalty);
    let steps = decide(None, running.as_ref(), None);
    assert_eq!(steps[0].decision.verdict, Verdict::Deny);
    assert_eq!(steps[0].decision.penalised, Penalised::Runs);
    assert_eq!(steps[0].decision.retry_after_us, Some(10 * SECOND_US));
    assert_eq!(steps[1].decision.verdict, Verdict::Allow);
    assert!(
        steps
            .iter()
            .all(|step| step.change == Change::None && step.penalty.is_none())
    );
}

#[test]
fn who_finds_no_place_to_wait_in_is_not_punished_for_it() {
    let rule = LeakyBucket::new(limit(1, SECOND_US), whole(5), None).unwrap();
    let policy = punishing(Rule::LeakyBucket(rule), seconds(&[60]));
    let impatient = policy.limits.rule.without_waiting().unwrap();
    let mut kept = Kept::default();
    let hurried = Check {
        rule: &impatient,
        ..check(&policy, 0, 1)
    };
    assert_eq!(kept.decide(&hurried, START_US).verdict, Verdict::Allow);
    let denied = kept.decide(&hurried, START_US);
    assert_eq!(
        (denied.verdict, denied.penalised),
        (Verdict::Deny, Penalised::No)
    );
    // But one that runs denies them too.
    assert_eq!(
        kept.decide(&check(&policy, 0, 9), START_US).penalised,
        Penalised::Begins
    );
    let denied = kept.decide(&hurried, START_US + 30 * SECOND_US);
    assert_eq!(
        (denied.verdict, denied.penalised),
        (Verdict::Deny, Penalised::Runs)
    );
}

fn store(max_keys: usize) -> (LocalStore, ManualClock) {
    let clock = ManualClock::default();
    clock.set(at(START_US));
    let max_keys = NonZeroUsize::new(max_keys).unwrap();
    (
        LocalStore::new(max_keys, Clock::Manual(clock.clone())),
        clock,
    )
}

fn ask(store: &LocalStore, check: Check<'_>) -> Decision {
    store.decide_now(&[check]).unwrap().1[0]
}

#[test]
fn a_penalty_outlives_a_restart_and_what_was_used() {
    let policy = punishing(two(), seconds(&[10, 100]));
    let (before, clock) = store(100);
    assert_eq!(
        ask(&before, check(&policy, 0, 3)).penalised,
        Penalised::Begins,
        "a denial for good is one, too"
    );
    assert_eq!(ask(&before, check(&policy, 1, 1)).verdict, Verdict::Allow);
    assert_eq!(before.len(), 2, "a penalty, and a window of another caller");
    clock.set(at(START_US + 5 * SECOND_US));
    let secret = KeySecret::generate();
    let bytes = before.snapshot(&secret).unwrap();
    let (after, clock) = store(100);
    clock.set(at(START_US + 6 * SECOND_US));
    assert_eq!(after.take_over(&bytes, &secret).unwrap(), 1);
    let denied = ask(&after, check(&policy, 0, 1));
    assert_eq!(denied.penalised, Penalised::Runs);
    assert_eq!(denied.retry_after_us, Some(4 * SECOND_US));
    clock.set(at(START_US + 10 * SECOND_US));
    assert_eq!(ask(&after, check(&policy, 0, 1)).verdict, Verdict::Allow);
    // It is remembered for as long as its last step, and swept then.
    let denied = ask(&after, check(&policy, 0, 2));
    assert_eq!(denied.retry_after_us, Some(100 * SECOND_US));
    clock.set(at(START_US + 209 * SECOND_US));
    after.sweep(10);
    assert_eq!(after.len(), 1);
    clock.set(at(START_US + 210 * SECOND_US));
    after.sweep(10);
    assert!(after.is_empty());
}

#[test]
fn a_full_store_denies_without_a_penalty_rather_than_let_pass() {
    let policy = punishing(two(), seconds(&[10]));
    let (store, _) = store(1);
    assert_eq!(ask(&store, check(&policy, 0, 1)).verdict, Verdict::Allow);
    let denied = ask(&store, check(&policy, 0, 2));
    assert_eq!(denied.verdict, Verdict::Deny);
    assert_eq!(store.len(), 1);
    assert_eq!(ask(&store, check(&policy, 0, 1)).verdict, Verdict::Allow);
}
