//! A million clients in the store in process: bytes a key, the longest decision while they come and while they go, and
//! what a second thread adds. Compare within one run.
//!
//! `cargo bench --bench crowd`
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a bench that cannot go on should stop loudly"
)]

#[path = "../support/policies.rs"]
mod policies;

use std::env;
use std::fs;
use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use tollgate::check::Policy;
use tollgate::clock::{Clock, ManualClock, monotonic_now};
use tollgate::decide::Timestamp;
use tollgate::store::local::LocalStore;

use policies::{check, policy, rule};

const KEYS: u64 = 1_000_000;
const MAX_KEYS: usize = 2_000_000;
const START_US: u64 = 1_700_000_000_000_000;
const HOUR_US: u64 = 3_600_000_000;

/// What a task in the background sweeps at once, as the gateway does.
const SWEEP_STEPS: usize = 20_000;

/// Each decision is timed in so many runs: what is long in all of them was not the machine's doing.
const RUNS: usize = 5;

/// How long two threads are measured against one, and how often: the best of them counts.
const SPAN: Duration = Duration::from_millis(700);
const TRIES: usize = 5;

const KINDS: [&str; 5] = [
    "fixed-window",
    "sliding-log",
    "sliding-counter",
    "token-bucket",
    "leaky-bucket",
];

fn main() {
    let args: Vec<_> = env::args().collect();
    if args.get(1).map(String::as_str) == Some("--bytes-of") {
        return bytes(&args[2], args[3].parse().unwrap());
    }
    println!("| kind | requests of each key | bytes a key | once they are gone |");
    println!("|---|---|---|---|");
    // Each in a process of its own: what an allocator keeps of one would be the next one's gain.
    for (kind, requests) in KINDS
        .map(|kind| (kind, "1"))
        .into_iter()
        .chain([("sliding-log", "2"), ("sliding-log", "10")])
    {
        let mut measured = Command::new(env::current_exe().unwrap());
        measured.args(["--bytes-of", kind, requests]);
        assert!(measured.status().unwrap().success());
    }
    println!("\n| ns | median | 99.99 % | longest |");
    println!("|---|---|---|---|");
    stalls();
    println!("\n| kind | clients | one thread, million/s | two, million/s | ratio |");
    println!("|---|---|---|---|---|");
    for kind in ["token-bucket", "sliding-log"] {
        for clients in [100_000, 1] {
            threads(kind, clients);
        }
    }
}

/// A policy of the kind, `count` an hour.
fn policy_of(kind: &str, count: u64) -> Policy {
    policy(kind, rule(kind, count, HOUR_US, count))
}

fn empty() -> (LocalStore, ManualClock) {
    let clock = ManualClock::default();
    clock.set(Timestamp::from_micros(START_US));
    let max_keys = NonZeroUsize::new(MAX_KEYS).unwrap();
    (
        LocalStore::new(max_keys, Clock::Manual(clock.clone())),
        clock,
    )
}

/// The memory that this process holds, in bytes.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next());
    kib.unwrap().parse::<u64>().unwrap() * 1024
}

/// What a key takes after so many requests, and what of it is left once nothing counts.
fn bytes(kind: &str, requests: u64) {
    let before = resident();
    let policy = policy_of(kind, 1_000);
    let (store, clock) = empty();
    for request in 0..requests {
        clock.set(Timestamp::from_micros(START_US + request));
        for entity in 0..KEYS {
            store.decide_now(&[check(&policy, entity, 1)]).unwrap();
        }
    }
    let full = resident();
    clock.set(Timestamp::from_micros(START_US + 3 * HOUR_US));
    while !store.is_empty() {
        store.sweep(SWEEP_STEPS);
    }
    let a_key = |resident: u64| resident.saturating_sub(before) / KEYS;
    println!(
        "| `{kind}` | {requests} | {} | {} |",
        a_key(full),
        a_key(resident())
    );
}

/// The longest decisions: each of the first million keys, and of as many again while the first ones go.
fn stalls() {
    let steps = usize::try_from(KEYS).unwrap();
    let policy = policy_of("token-bucket", 1_000);
    let mut coming = vec![u64::MAX; steps];
    let mut going = coming.clone();
    let mut sweeping = vec![u64::MAX; steps];
    for _ in 0..RUNS {
        let (store, clock) = empty();
        for (entity, least) in (0..KEYS).zip(&mut coming) {
            *least = timed(|| _ = store.decide_now(&[check(&policy, entity, 1)])).min(*least);
        }
        clock.set(Timestamp::from_micros(START_US + 3 * HOUR_US));
        let mut sweeps = sweeping.iter_mut();
        for (entity, least) in (0..KEYS / 4).zip(&mut going) {
            *least =
                timed(|| _ = store.decide_now(&[check(&policy, KEYS + entity, 1)])).min(*least);
            if entity % 5_000 == 0 {
                let least = sweeps.next().unwrap();
                *least = timed(|| _ = store.sweep(SWEEP_STEPS)).min(*least);
            }
        }
    }
    for (name, mut took) in [
        ("a million come", coming),
        ("others come while they go", going),
        ("a sweep of 20,000", sweeping),
    ] {
        took.retain(|ns| *ns < u64::MAX);
        took.sort_unstable();
        let at = |share: usize| took[(took.len() - 1) * share / 10_000];
        println!(
            "| {name} | {} | {} | {} |",
            at(5_000),
            at(9_999),
            at(10_000)
        );
    }
}

fn timed(work: impl FnOnce()) -> u64 {
    let began = monotonic_now();
    work();
    let took = monotonic_now().saturating_duration_since(began);
    u64::try_from(took.as_nanos()).unwrap()
}

/// What one thread decides, and two, of so many clients.
fn threads(kind: &str, clients: u64) {
    let (mut one, mut two) = (0, 0);
    for _ in 0..TRIES {
        one = decided(kind, clients, 1).max(one);
        two = decided(kind, clients, 2).max(two);
    }
    let per_second = |decided: u32| f64::from(decided) / SPAN.as_secs_f64() / 1e6;
    println!(
        "| `{kind}` | {clients} | {:.2} | {:.2} | {:.2} |",
        per_second(one),
        per_second(two),
        f64::from(two) / f64::from(one)
    );
}

/// How much so many threads decide together.
fn decided(kind: &str, clients: u64, threads: usize) -> u32 {
    let policy = policy_of(kind, 1_000);
    let store = LocalStore::new(NonZeroUsize::new(MAX_KEYS).unwrap(), Clock::steady());
    for entity in 0..clients {
        store.decide_now(&[check(&policy, entity, 1)]).unwrap();
    }
    let together = Barrier::new(threads);
    let decide = || {
        together.wait();
        let mut done = 0;
        let ends_at = monotonic_now() + SPAN;
        while monotonic_now() < ends_at {
            for _ in 0..1_000 {
                let asked = check(&policy, fastrand::u64(..clients), 1);
                store.decide_now(&[asked]).unwrap();
            }
            done += 1_000;
        }
        done
    };
    thread::scope(|scope| {
        let working: Vec<_> = (0..threads).map(|_| scope.spawn(decide)).collect();
        working
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    })
}
