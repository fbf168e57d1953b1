//! Minutes of mixed load with faults injected at random moments, and an account of every request at the end.
//!
//! `cargo test --test soak -- --seconds 600 --seed 7`; without a seed, one is made up and printed. Three gateways share
//! one Valkey, each through a relay that spoils what passes. The account says what became of each request by three
//! witnesses that know nothing of each other: the client, the gateway's access log, and its metrics. It exits with 1
//! where anything happened that `README.md` does not allow at that moment.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should stop loudly"
)]

#[path = "../support/mod.rs"]
mod support;

mod account;
mod bounds;
mod faults;
mod fleet;
mod load;
mod logs;
mod plan;
mod routes;
mod table;
mod vitals;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::clock::{monotonic_now, wall_now_us};

use fleet::Fleet;
use load::Load;
use vitals::Watch;

/// No faults at the end, so that all heals while requests still come.
const CALM: Duration = Duration::from_secs(8);

/// How often it says that it lives.
const NEWS: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let Some((seconds, seed)) = arguments() else {
        eprintln!(
            "usage: cargo test --test soak -- [--seconds N] [--seed N]; N from 20 to 3600 seconds"
        );
        return ExitCode::from(2);
    };
    println!("seed {seed}, {seconds} s");
    let fleet = Arc::new(Fleet::start());
    let watch = Watch::begin(&fleet);
    let began = monotonic_now();
    let span = Duration::from_secs(seconds);
    let load = Load::begin(&fleet, seed);
    let stop = Arc::new(AtomicBool::new(false));
    let tracks = faults::begin(&fleet, seed, span.saturating_sub(CALM), &stop);
    let mut next = NEWS;
    while monotonic_now() - began < span && !tracks.iter().any(faults::Track::has_failed) {
        let passed = monotonic_now() - began;
        if passed >= next {
            next += NEWS;
            println!(
                "{:>5} s: {}; {}",
                passed.as_secs(),
                load.so_far(),
                watch.now()
            );
        }
        thread::park_timeout(Duration::from_millis(100));
    }
    stop.store(true, Ordering::SeqCst);
    let spans: Vec<_> = tracks.into_iter().flat_map(faults::Track::end).collect();
    let sent = load.end();
    let mut violations = watch.end(&fleet);
    let fleet = Arc::into_inner(fleet).expect("nobody else holds the gateways any more");
    let lifetimes = fleet.end(&mut violations);
    let account = account::Account::of(&sent, &lifetimes, &spans);
    violations.extend(account.violations());
    println!("{}", table::of(&account, &spans));
    for violation in &violations {
        println!("VIOLATION {violation}");
    }
    println!(
        "seed {seed}: {} requests, {} faults, {}",
        sent.len(),
        spans.len(),
        if violations.is_empty() {
            "all accounted for"
        } else {
            "NOT as specified"
        }
    );
    if violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// How long, and from which seed; `None` where they cannot be read.
fn arguments() -> Option<(u64, u64)> {
    let (mut seconds, mut seed) = (600, wall_now_us() % 1_000_000);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let number = words.next()?.parse().ok()?;
        match word.as_str() {
            "--seconds" => seconds = number,
            "--seed" => seed = number,
            _ => return None,
        }
    }
    (20..=3600).contains(&seconds).then_some((seconds, seed))
}
