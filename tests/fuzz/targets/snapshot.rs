//! Any bytes as a file of usage, and any usage as such a file. The first byte says which.

use std::num::NonZeroUsize;

use tollgate::check::{KeySecret, Policy};
use tollgate::clock::{Clock, ManualClock};
use tollgate::decide::{Decision, Timestamp, Verdict};
use tollgate::store::local::LocalStore;

use super::{Choices, rules};
use crate::support::policies::{check, policy};

const START_US: u64 = 1_700_000_000_000_000;
const MARK_LENGTH: usize = 32;
const KEYS_MAX: usize = 16;

/// A file is taken over whole or refused, whatever is in it, and nobody has more after a restart than before.
pub(super) fn snapshot(data: &[u8]) {
    let Some((&kind, data)) = data.split_first() else {
        return;
    };
    match kind % 4 {
        0 => taken(data),
        1 => taken(&marked(data)),
        2 => taken(&marked(&of_one(data))),
        _ => carried_over(data),
    }
}

fn secret() -> KeySecret {
    KeySecret::new([7; 32])
}

fn store(now_us: u64) -> (LocalStore, ManualClock) {
    let clock = ManualClock::default();
    clock.set(Timestamp::from_micros(now_us));
    let max_keys = NonZeroUsize::new(KEYS_MAX).unwrap();
    (
        LocalStore::new(max_keys, Clock::Manual(clock.clone())),
        clock,
    )
}

/// One of each kind, under one name: whatever is kept of it, each of them may meet it, as after a careless edit.
fn policies() -> Vec<Policy> {
    rules()
        .into_iter()
        .map(|rule| policy("one", rule))
        .collect()
}

/// These states as if we had written them.
fn marked(states: &[u8]) -> Vec<u8> {
    let (empty, _) = store(START_US);
    let file = empty.snapshot(&secret()).unwrap();
    // What stands before mark and states: that there are none takes a byte.
    let head = &file[..file.len() - MARK_LENGTH - 1];
    [head, &secret().mark(states), states].concat()
}

/// One state, that of a key which is known.
fn of_one(state: &[u8]) -> Vec<u8> {
    let (known, _) = store(START_US);
    known.decide_now(&[check(&policies()[0], 0, 1)]).unwrap();
    let file = known.snapshot(&secret()).unwrap();
    // The states begin with their number, the entity's 16 bytes, and which policy it is: seven bits in each byte.
    let states = &file[marked(&[]).len()..];
    let last = states[17..].iter().position(|byte| *byte < 0x80).unwrap();
    [&states[..=17 + last], state].concat()
}

fn taken(file: &[u8]) {
    let (store, clock) = store(START_US);
    let Ok(taken) = store.take_over(file, &secret()) else {
        assert!(store.is_empty());
        return;
    };
    assert_eq!(store.len(), taken);
    assert!(taken <= KEYS_MAX);
    let policies = policies();
    for policy in policies.iter().cycle().take(policies.len() * 3) {
        for cost in [0, 1, 10, 0] {
            let now_us = clock.now().as_micros() + 1_000;
            clock.set(Timestamp::from_micros(now_us));
            let (_, decisions) = store.decide_now(&[check(policy, 0, cost)]).unwrap();
            sound(policy, &decisions[0]);
        }
    }
    let again = store.snapshot(&secret()).unwrap();
    let (next, _) = self::store(clock.now().as_micros());
    assert_eq!(next.take_over(&again, &secret()).unwrap(), next.len());
}

fn sound(policy: &Policy, decision: &Decision) {
    assert!(
        decision.remaining <= policy.limits.rule.capacity(),
        "{decision:?}"
    );
    match decision.verdict {
        Verdict::Allow => assert_eq!(decision.retry_after_us, Some(0)),
        Verdict::Deny => assert_ne!(decision.retry_after_us, Some(0)),
    }
}

/// Some usage, written, read, and gone on with.
fn carried_over(data: &[u8]) {
    let mut policies: Vec<_> = rules().into_iter().map(|rule| policy("", rule)).collect();
    for (policy, name) in policies.iter_mut().zip(["a", "b", "c", "d", "e", "f", "g"]) {
        policy.name = name.into();
    }
    let (old, clock) = store(START_US);
    let (mut choices, used) = (Choices::of(data), data.len().saturating_sub(4));
    let ask = |store: &LocalStore, choices: &mut Choices<'_>| {
        let (which, entity) = (choices.next(), choices.next() % 3);
        let policy = &policies[usize::from(which) % policies.len()];
        let cost = u64::from(choices.next() % 12);
        let asked = store.decide_now(&[check(policy, u64::from(entity), cost)]);
        asked.map(|(_, decisions)| decisions[0]).ok()
    };
    for _ in 0..used / 4 {
        let later = u64::from(choices.next()).pow(2) * 500;
        clock.set(Timestamp::from_micros(clock.now().as_micros() + later));
        ask(&old, &mut choices);
    }
    let file = old.snapshot(&secret()).unwrap();
    let (new, _) = store(clock.now().as_micros());
    assert_eq!(new.take_over(&file, &secret()).unwrap(), new.len());
    for policy in &policies {
        for entity in 0..3 {
            let look = [check(policy, entity, 0)];
            let (before, after) = (old.decide_now(&look), new.decide_now(&look));
            assert_eq!(before.unwrap(), after.unwrap());
        }
    }
    let mut other = choices;
    let mut damaged = file.clone();
    let at = usize::from(other.next()) << 8 | usize::from(other.next());
    damaged[at % file.len()] ^= 1 << (other.next() % 8);
    assert!(new.take_over(&damaged, &secret()).is_err(), "bit at {at}");
    assert!(new.take_over(&file[..at % file.len()], &secret()).is_err());
    assert!(new.take_over(&file, &KeySecret::new([8; 32])).is_err());
    assert_eq!(new.take_over(&file, &secret()).unwrap(), 0);
}
