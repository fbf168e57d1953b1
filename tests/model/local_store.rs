//! The store in process: bounded, exact under threads, and never at the cost of who is in debt.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::check::{Check, Generation, KeySecret, Policy};
use tollgate::clock::{Clock, ManualClock};
use tollgate::decide::{
    Anchor, Charge, FixedWindow, Rule, SlidingLog, Timestamp, TokenBucket, Verdict,
};
use tollgate::store::local::{LocalStore, Outage};
use tollgate::store::{Settlement, StoreError};

use crate::support::policies::{check, policy, rule};
use crate::support::traces::{limit, whole};

const START_US: u64 = 1_700_000_000_000_000;
const SECOND_US: u64 = 1_000_000;

fn store(max_keys: usize) -> (LocalStore, ManualClock) {
    let clock = ManualClock::default();
    clock.set(Timestamp::from_micros(START_US));
    (
        LocalStore::new(
            NonZeroUsize::new(max_keys).unwrap(),
            Clock::Manual(clock.clone()),
        ),
        clock,
    )
}

/// Ten a second.
fn ten(name: &str) -> Policy {
    policy(
        name,
        Rule::TokenBucket(TokenBucket::new(limit(10, SECOND_US), whole(10)).unwrap()),
    )
}

fn allows(store: &LocalStore, checks: &[Check<'_>]) -> bool {
    let (_, decisions) = store.decide_now(checks).unwrap();
    decisions.iter().all(|d| d.verdict == Verdict::Allow)
}

#[test]
fn a_full_store_denies_strangers_a_decision_and_nobody_their_debt() {
    let (store, clock) = store(3);
    let policy = ten("ten");
    for entity in 0..3 {
        assert!(allows(&store, &[check(&policy, entity, 10)]));
    }
    assert!(matches!(
        store.decide_now(&[check(&policy, 3, 1)]),
        Err(StoreError::Full)
    ));
    assert_eq!(store.len(), 3);
    // Those who are known are decided as before, and so is a look.
    assert!(!allows(&store, &[check(&policy, 0, 1)]));
    assert!(allows(&store, &[check(&policy, 3, 0)]));
    // Once they owe nothing, there is room.
    clock.set(Timestamp::from_micros(START_US + SECOND_US));
    assert!(allows(&store, &[check(&policy, 3, 1)]));
    assert!(store.len() <= 3);
}

#[test]
fn a_full_store_charges_no_check_of_the_request() {
    let (store, _) = store(1);
    let (known, stranger) = (ten("known"), ten("stranger"));
    assert!(allows(&store, &[check(&known, 0, 1)]));
    let both = [check(&known, 0, 1), check(&stranger, 0, 1)];
    assert!(matches!(store.decide_now(&both), Err(StoreError::Full)));
    let (_, decisions) = store.decide_now(&[check(&known, 0, 0)]).unwrap();
    assert_eq!(decisions[0].remaining, 9);
}

#[test]
fn what_is_fresh_goes_by_itself_as_others_come() {
    let (store, clock) = store(1_000);
    let policy = ten("ten");
    for entity in 0..20_000 {
        clock.set(Timestamp::from_micros(START_US + entity * 1_000));
        assert!(allows(&store, &[check(&policy, entity, 1)]));
    }
    // A hundred milliseconds is what a unit takes to be earned: about a hundred owe something.
    assert!(store.len() < 1_000, "{}", store.len());
    clock.set(Timestamp::from_micros(START_US + 100 * SECOND_US));
    let before = store.len();
    let mut swept = 0;
    for _ in 0..1_000 {
        swept += store.sweep(10);
    }
    assert_eq!((swept, store.len()), (before, 0));
    assert!(store.is_empty());
}

#[test]
fn each_of_a_crowd_has_what_it_used_while_others_come_and_go() {
    let (store, clock) = store(100_000);
    let hour = |name| {
        let rule = FixedWindow::new(limit(100, 3_600 * SECOND_US), Anchor::FirstRequest);
        policy(name, Rule::FixedWindow(rule.unwrap()))
    };
    let (staying, going) = (hour("staying"), ten("going"));
    let used = |entity: u64| 1 + entity % 90;
    let is_as_used = |entities: std::ops::Range<u64>| {
        for entity in entities {
            let (_, decisions) = store.decide_now(&[check(&staying, entity, 0)]).unwrap();
            assert_eq!(decisions[0].remaining, 100 - used(entity), "{entity}");
        }
    };
    // Each comes with one that soon goes. Two at a time are looked at, so that these stay for a while.
    for entity in 0..30_000 {
        let both = [
            check(&going, entity, 10),
            check(&staying, entity, used(entity)),
        ];
        assert!(allows(&store, &both));
        if [5, 100, 5_000].contains(&entity) {
            is_as_used(0..entity + 1);
        }
    }
    assert_eq!(store.len(), 60_000);
    clock.set(Timestamp::from_micros(START_US + 2 * SECOND_US));
    assert_eq!(store.sweep(200_000), 30_000);
    assert_eq!(store.len(), 30_000);
    is_as_used(0..30_000);
    // All of them go, and the first ones are as new.
    clock.set(Timestamp::from_micros(START_US + 3_600 * SECOND_US));
    assert_eq!(store.sweep(200_000), 30_000);
    assert!(store.is_empty());
    assert!(allows(&store, &[check(&staying, 0, 100)]));
}

#[test]
fn a_sweep_spares_who_is_in_debt() {
    let (store, _) = store(1_000);
    let policy = ten("ten");
    for entity in 0..500 {
        assert!(allows(&store, &[check(&policy, entity, 1)]));
    }
    assert_eq!(store.sweep(10_000), 0);
    assert_eq!(store.len(), 500);
}

#[test]
fn the_room_that_is_made_never_takes_what_is_being_decided() {
    // The log of the first is fresh and yet kept: its running total goes on.
    let (store, clock) = store(2);
    let log = policy(
        "log",
        Rule::SlidingLog(SlidingLog::new(limit(5, SECOND_US)).unwrap()),
    );
    let (a, b) = (ten("a"), ten("b"));
    assert!(allows(&store, &[check(&log, 0, 5)]));
    assert!(allows(&store, &[check(&a, 0, 1)]));
    clock.set(Timestamp::from_micros(START_US + 2 * SECOND_US));
    let (_, decisions) = store
        .decide_now(&[check(&log, 0, 2), check(&b, 0, 1)])
        .unwrap();
    assert_eq!((decisions[0].remaining, decisions[1].remaining), (3, 9));
    let (_, decisions) = store.decide_now(&[check(&log, 0, 1)]).unwrap();
    assert_eq!(decisions[0].remaining, 2);
    assert_eq!(store.len(), 2);
}

#[test]
fn a_refund_gives_back_what_the_request_took() {
    let (store, _) = store(10);
    let (a, b) = (ten("a"), ten("b"));
    let both = [check(&a, 0, 4), check(&b, 0, 10)];
    let (charged_at, decisions) = store.decide_now(&both).unwrap();
    assert_eq!(store.len(), 2);
    let charged: Vec<_> = both
        .into_iter()
        .zip(decisions)
        .map(|(check, decision)| {
            let charge = Charge {
                at: charged_at,
                cost: check.cost,
                reset_after_us: decision.reset_after_us,
            };
            Settlement::given_back((check, charge))
        })
        .collect();
    store.settle(Outage::default(), &charged);
    assert_eq!(store.len(), 0);
    assert!(allows(&store, &[check(&a, 0, 10), check(&b, 0, 10)]));
}

#[test]
fn another_generation_of_a_policy_starts_afresh() {
    let (store, _) = store(10);
    let old = ten("ten");
    let new = Policy {
        generation: Generation(7),
        ..ten("ten")
    };
    assert!(allows(&store, &[check(&old, 0, 10)]));
    assert!(!allows(&store, &[check(&old, 0, 1)]));
    assert!(allows(&store, &[check(&new, 0, 10)]));
}

#[test]
fn what_was_counted_in_an_outage_is_forgotten_with_it_and_nothing_else_is() {
    let (store, _) = store(3);
    let ten = ten("ten");
    let allows_in = |outage, entity, cost| {
        let (_, decisions) = store
            .decide_in(outage, &[check(&ten, entity, cost)])
            .unwrap();
        decisions[0].verdict == Verdict::Allow
    };
    let (first, second) = (Outage::after(1), Outage::after(2));
    store.set_outage(first);
    assert!(allows(&store, &[check(&ten, 0, 10)]));
    for entity in [0, 1] {
        assert!(allows_in(first, entity, 10));
        assert!(!allows_in(first, entity, 1));
    }
    // Full of debtors, and the outage goes on.
    let stranger = [check(&ten, 2, 1)];
    let full = store.decide_in(first, &stranger);
    assert!(matches!(full, Err(StoreError::Full)));
    store.set_outage(second);
    assert!(allows_in(second, 0, 10));
    assert!(allows_in(second, 1, 10));
    assert_eq!(store.len(), 3);
    assert!(!allows_in(second, 1, 1));
    // What does not count in an outage is in debt as before.
    assert!(!allows(&store, &[check(&ten, 0, 1)]));
    assert_eq!(store.sweep(10), 0);
    store.set_outage(Outage::after(3));
    assert_eq!(store.sweep(1000), 2);
    assert!(!allows(&store, &[check(&ten, 0, 1)]));
}

#[test]
fn an_outage_goes_on_over_a_restart_and_one_that_is_over_is_not_written_down() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("outage");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("usage");
    let secret = KeySecret::new([7; 32]);
    let ten = ten("ten");
    let allows_in = |store: &LocalStore, outage, entity| {
        let (_, decisions) = store.decide_in(outage, &[check(&ten, entity, 10)]).unwrap();
        decisions[0].verdict == Verdict::Allow
    };
    let (old, _) = store(10);
    assert!(allows_in(&old, Outage::after(3), 0));
    old.set_outage(Outage::after(4));
    assert!(allows_in(&old, Outage::after(4), 1));
    assert_eq!(old.save(&file, &secret).unwrap(), 1);
    let (new, _) = store(10);
    assert_eq!(new.restore(&file, &secret).unwrap(), 1);
    assert_eq!(new.sweep(1000), 0);
    assert!(!allows_in(&new, Outage::after(0), 1));
    assert!(allows_in(&new, Outage::after(1), 1));
    assert!(allows(&new, &[check(&ten, 1, 10)]));
}

#[test]
fn many_threads_pass_exactly_the_limit() {
    let (store, _) = store(1_000);
    let rule = |count| {
        Rule::FixedWindow(FixedWindow::new(limit(count, SECOND_US), Anchor::Epoch).unwrap())
    };
    // Each thread asks for a shared policy together with ones of other shards, in another order each time.
    let shared = policy("shared", rule(1_000));
    let wide = policy("wide", rule(1_000_000));
    let passed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (store, shared, wide, passed) = (&store, &shared, &wide, &passed);
            scope.spawn(move || {
                for n in 0..1_000_u64 {
                    let mut checks = [
                        check(shared, 0, 1),
                        check(wide, n % 7, 1),
                        check(wide, 100 + thread, 1),
                    ];
                    checks.rotate_left(usize::try_from(n % 3).unwrap());
                    if allows(store, &checks) {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(passed.load(Ordering::Relaxed), 1_000);
    // Nothing was charged for those who were denied.
    let used: u64 = (0..7)
        .map(|entity| {
            1_000_000 - store.decide_now(&[check(&wide, entity, 0)]).unwrap().1[0].remaining
        })
        .sum();
    assert_eq!(used, 1_000);
}

#[test]
fn a_snapshot_carries_usage_over_and_a_foreign_or_damaged_one_is_refused() {
    let folder = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("snapshot");
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("usage");
    let secret = KeySecret::new([7; 32]);
    let (old, clock) = store(10);
    let (a, b) = (ten("a"), ten("b"));
    let log = policy(
        "log",
        Rule::SlidingLog(SlidingLog::new(limit(10, SECOND_US)).unwrap()),
    );
    assert!(allows(&old, &[check(&a, 0, 4), check(&log, 1, 10)]));
    assert!(allows(&old, &[check(&b, 0, 1)]));
    clock.set(Timestamp::from_micros(START_US + 1));
    assert_eq!(old.save(&file, &secret).unwrap(), 3);

    let (new, clock) = store(10);
    clock.set(Timestamp::from_micros(START_US + 2));
    assert_eq!(new.restore(&file, &secret).unwrap(), 3);
    assert!(!allows(&new, &[check(&log, 1, 1)]));
    assert!(!allows(&new, &[check(&a, 0, 7)]));
    assert!(allows(&new, &[check(&a, 0, 6)]));
    // What is known already stays as it is.
    assert_eq!(new.restore(&file, &secret).unwrap(), 0);

    // Nothing of it counts any more.
    let (late, clock) = store(10);
    clock.set(Timestamp::from_micros(START_US + 1_000_000 * SECOND_US));
    assert_eq!(late.restore(&file, &secret).unwrap(), 0);
    // There is no room for all of it.
    let (small, clock) = store(2);
    clock.set(Timestamp::from_micros(START_US + 2));
    assert_eq!(small.restore(&file, &secret).unwrap(), 2);

    let whole = std::fs::read(&file).unwrap();
    assert!(late.restore(&file, &KeySecret::new([8; 32])).is_err());
    for damage in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[damage] ^= 1;
        std::fs::write(&file, &damaged).unwrap();
        assert!(late.restore(&file, &secret).is_err(), "byte {damage}");
        std::fs::write(&file, &whole[..damage]).unwrap();
        assert!(late.restore(&file, &secret).is_err(), "cut at {damage}");
    }
    assert!(late.restore(&folder.join("none"), &secret).is_err());
    std::fs::remove_dir_all(folder).unwrap();
}

/// So many at once.
fn slots(count: u64) -> Policy {
    policy("slots", rule("concurrency", count, SECOND_US, 1))
}

#[test]
fn what_is_in_flight_is_neither_swept_nor_written_down_and_goes_once_it_is_given_back() {
    let (store, clock) = store(2);
    let policy = slots(2);
    let charged = |entity| {
        let check = check(&policy, entity, 1);
        let (at, decisions) = store.decide_now(&[check]).unwrap();
        let charge = Charge {
            at,
            cost: check.cost,
            reset_after_us: decisions[0].reset_after_us,
        };
        Settlement::given_back((check, charge))
    };
    let held = [charged(1), charged(1), charged(2)];
    // A lease is nothing here, and neither is a day.
    clock.set(Timestamp::from_micros(START_US + 86_400 * SECOND_US));
    assert_eq!(store.sweep(100), 0);
    assert!(!allows(&store, &[check(&policy, 1, 1)]));
    assert!(matches!(
        store.decide_now(&[check(&policy, 3, 1)]),
        Err(StoreError::Full)
    ));
    let secret = KeySecret::new([7; 32]);
    let bytes = store.snapshot(&secret).unwrap();
    let (other, _) = self::store(10);
    assert_eq!(other.take_over(&bytes, &secret).unwrap(), 0);
    for settlement in held {
        store.settle(Outage::default(), &[settlement]);
    }
    assert!(store.is_empty());
    // Once more is once too often, and takes nothing from anybody.
    store.settle(Outage::default(), &held[..1]);
    let (_, decisions) = store.decide_now(&[check(&policy, 1, 0)]).unwrap();
    assert_eq!(decisions[0].remaining, 2);
}

#[test]
fn many_threads_are_never_more_at_once_than_the_limit() {
    let store = LocalStore::new(NonZeroUsize::new(100).unwrap(), Clock::steady());
    let policy = slots(7);
    let (in_flight, passed) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for number in 0..20_000 {
                    let check = check(&policy, 1, number % 3);
                    let (at, decisions) = store.decide_now(&[check]).unwrap();
                    if decisions[0].verdict == Verdict::Deny {
                        continue;
                    }
                    let now = in_flight.fetch_add(check.cost.units(), Ordering::SeqCst);
                    assert!(now + check.cost.units() <= 7);
                    passed.fetch_add(1, Ordering::Relaxed);
                    in_flight.fetch_sub(check.cost.units(), Ordering::SeqCst);
                    let charge = Charge {
                        at,
                        cost: check.cost,
                        reset_after_us: decisions[0].reset_after_us,
                    };
                    if check.cost.units() > 0 {
                        store.settle(
                            Outage::default(),
                            &[Settlement::given_back((check, charge))],
                        );
                    }
                }
            });
        }
    });
    assert!(passed.load(Ordering::Relaxed) > 0);
    assert!(store.is_empty());
}
