//! Ten million callers against the store in process: its bound is kept, who is in debt stays so, and those who are
//! known are decided as if they were alone.

use std::num::NonZeroUsize;

use tollgate::check::{Check, Policy};
use tollgate::clock::{Clock, ManualClock};
use tollgate::decide::{Rule, SlidingLog, Timestamp, TokenBucket, Verdict};
use tollgate::store::StoreError;
use tollgate::store::local::LocalStore;

use crate::support::policies::{check, policy};
use crate::support::traces::{limit, whole};

const START_US: u64 = 1_700_000_000_000_000;
const SECOND_US: u64 = 1_000_000;
const MINUTE_US: u64 = 60 * SECOND_US;
const DAY_US: u64 = 86_400 * SECOND_US;

const STRANGERS: u64 = 10_000_000;
const LASTING_US: u64 = 10 * MINUTE_US;
const MAX_KEYS: usize = 100_000;
const DEBTORS: u64 = 1_000;
const KNOWN: u64 = 100;

fn log(name: &str, count: u64, window_us: u64) -> Policy {
    policy(
        name,
        Rule::SlidingLog(SlidingLog::new(limit(count, window_us)).unwrap()),
    )
}

fn allows(store: &LocalStore, check: Check<'_>) -> bool {
    store.decide_now(&[check]).unwrap().1[0].verdict == Verdict::Allow
}

/// What became of the strangers.
#[derive(Default)]
struct Strangers {
    allowed: u64,
    without_room: u64,
}

/// Lets ten million strangers call within ten minutes, each once, under this policy.
fn flood(strangers: &Policy) -> Strangers {
    let clock = ManualClock::default();
    clock.set(Timestamp::from_micros(START_US));
    let store = |max| {
        LocalStore::new(
            NonZeroUsize::new(max).unwrap(),
            Clock::Manual(clock.clone()),
        )
    };
    let (crowded, alone) = (store(MAX_KEYS), store(MAX_KEYS));
    let (debt, known) = (log("debt", 2, 300 * DAY_US), log("known", 10, MINUTE_US));
    for debtor in 0..DEBTORS {
        assert!(allows(&crowded, check(&debt, debtor, 2)));
    }
    let both = |who: u64| {
        let asked = [check(&known, who, 1)];
        let decided = crowded.decide_now(&asked).unwrap();
        assert_eq!(decided, alone.decide_now(&asked).unwrap(), "client {who}");
        decided.1[0].verdict == Verdict::Allow
    };
    let mut outcome = Strangers::default();
    let (mut passed, mut held) = (0, 0);
    for who in 0..KNOWN {
        passed += u64::from(both(who));
    }
    for number in 0..STRANGERS {
        let now = START_US + number * (LASTING_US / STRANGERS);
        clock.set(Timestamp::from_micros(now));
        match crowded.decide_now(&[check(strangers, 1 << 32 | number, 1)]) {
            Ok((_, decisions)) => {
                outcome.allowed += u64::from(decisions[0].verdict == Verdict::Allow);
            }
            Err(StoreError::Full) => outcome.without_room += 1,
            Err(error) => panic!("{error}"),
        }
        // Each of the known calls every three seconds: twice as often as it may.
        if number % 500 == 0 {
            passed += u64::from(both(number / 500 % KNOWN));
        }
        if number % 10_000 == 0 {
            crowded.sweep(1_000);
            assert!(crowded.len() <= MAX_KEYS, "{}", crowded.len());
            held = held.max(crowded.len());
        }
    }
    assert!(passed >= KNOWN * 10 * 9, "{passed} of the known passed");
    for debtor in 0..DEBTORS {
        assert!(
            !allows(&crowded, check(&debt, debtor, 1)),
            "debtor {debtor} was forgiven"
        );
    }
    assert_eq!(outcome.allowed + outcome.without_room, STRANGERS);
    eprintln!(
        "{}: at most {held} keys, {} without room",
        strangers.name, outcome.without_room
    );

    // Once nothing of it counts, nothing of it is kept.
    clock.set(Timestamp::from_micros(START_US + 2 * LASTING_US));
    crowded.sweep(2 * MAX_KEYS);
    assert_eq!(u64::try_from(crowded.len()).unwrap(), DEBTORS);
    outcome
}

#[test]
fn ten_million_callers_who_soon_owe_nothing_all_have_room() {
    // A unit is earned in 600 ms: about ten thousand owe something at any time.
    let bucket = TokenBucket::new(limit(100, MINUTE_US), whole(100)).unwrap();
    let outcome = flood(&policy("soon", Rule::TokenBucket(bucket)));
    assert_eq!(outcome.without_room, 0);
}

#[test]
fn ten_million_callers_who_owe_longer_than_there_is_room_cost_nobody_else() {
    // A million of them owe something at any time, ten times as many as there is room for.
    let outcome = flood(&log("long", 10, MINUTE_US));
    let room = u64::try_from(MAX_KEYS).unwrap() - DEBTORS - KNOWN;
    // The room is filled anew each minute.
    assert!(outcome.allowed >= 9 * room, "{}", outcome.allowed);
    assert!(outcome.allowed <= 11 * room, "{}", outcome.allowed);
}
