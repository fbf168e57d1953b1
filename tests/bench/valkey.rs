//! What a decision costs a Valkey server, and what it keeps for each client.
//!
//! `cargo bench --bench valkey`. Times are the server's own, of `INFO commandstats`: compare them within one run.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a bench that cannot go on should stop loudly"
)]

#[path = "../support/mod.rs"]
mod support;

use std::num::NonZeroU64;
use std::process::Command;

use support::policies::{check, policy};
use support::valkey::Valkey;
use tollgate::check::Policy;
use tollgate::decide::{
    Anchor, FixedWindow, LeakyBucket, Limit, Rule, SlidingCounter, SlidingLog, TokenBucket,
};
use tollgate::store::valkey::script;

/// Decisions of each sort.
const CALLS: u64 = 20_000;

/// Clients that take turns.
const CLIENTS: u64 = 1_000;

fn main() {
    let valkey = Valkey::start();
    let mut connection = valkey.connect();
    let sha: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script::source())
        .query(&mut connection)
        .unwrap();
    println!("µs of the server for a call, {CLIENTS} clients:\n");
    println!("| kind            | allow | deny |");
    println!("| ---             | ---   | ---  |");
    for kind in 0..5 {
        let plenty = rule(kind, 1_000_000);
        let none_left = rule(kind, 1);
        let allow = cost_of(&mut connection, &sha, &[policy("plenty", plenty)]);
        let deny = cost_of(
            &mut connection,
            &sha,
            &[policy("scarce", none_left.clone())],
        );
        println!("| {:<15} | {allow:>5} | {deny:>4} |", none_left.kind());
    }
    let three: Vec<_> = ["one", "two", "three"]
        .map(|name| policy(name, rule(3, 1_000_000)))
        .into();
    let allow = cost_of(&mut connection, &sha, &three);
    println!("| three buckets   | {allow:>5} |      |\n");

    let url = format!("valkey://{}", valkey.address());
    let measured = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["simulate", "--memory", "--store", &url])
        .status()
        .unwrap();
    assert!(measured.success());
}

/// The kind by its number, at so many an hour.
fn rule(kind: usize, count: u64) -> Rule {
    let limit = Limit {
        count: NonZeroU64::new(count).unwrap(),
        window_us: NonZeroU64::new(3_600_000_000).unwrap(),
    };
    match kind {
        0 => Rule::FixedWindow(FixedWindow::new(limit, Anchor::Epoch).unwrap()),
        1 => Rule::SlidingLog(SlidingLog::new(limit).unwrap()),
        2 => Rule::SlidingCounter(SlidingCounter::new(limit, false).unwrap()),
        3 => Rule::TokenBucket(TokenBucket::new(limit, limit.count).unwrap()),
        _ => Rule::LeakyBucket(LeakyBucket::new(limit, limit.count, None).unwrap()),
    }
}

/// Server time for a call, in µs with one decimal.
fn cost_of(connection: &mut redis::Connection, sha: &str, policies: &[Policy]) -> String {
    let call = |connection: &mut redis::Connection, number: u64| {
        let checks: Vec<_> = policies
            .iter()
            .map(|policy| check(policy, number % CLIENTS, 1))
            .collect();
        let call = script::call(sha, "bench", &checks, None, 1_000);
        let _: redis::Value = call.query(connection).unwrap();
    };
    // Once around, so that every client has a state.
    for number in 0..CLIENTS {
        call(connection, number);
    }
    redis::cmd("CONFIG")
        .arg("RESETSTAT")
        .exec(connection)
        .unwrap();
    for number in 0..CALLS {
        call(connection, number);
    }
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(connection)
        .unwrap();
    stats
        .lines()
        .find(|line| line.starts_with("cmdstat_evalsha:"))
        .and_then(|line| line.split("usec_per_call=").nth(1)?.split(',').next())
        .and_then(|per_call| per_call.parse::<f64>().ok())
        .map(|per_call| format!("{per_call:.1}"))
        .unwrap()
}
