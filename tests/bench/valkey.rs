//! What a decision costs a Valkey server, what a call costs the gateway, and what is kept for each client.
//!
//! `cargo bench --bench valkey`. Times are the server's own, of `INFO commandstats`, the best of rounds that take
//! turns: compare them within one run.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a bench that cannot go on should stop loudly"
)]

#[path = "../support/mod.rs"]
mod support;

use std::hint::black_box;
use std::num::NonZeroU64;
use std::process::Command;

use redis::{Connection, ConnectionLike as _, Value};
use support::policies::{check, policy};
use support::valkey::Valkey;
use tollgate::check::{Check, Policy};
use tollgate::clock::monotonic_now;
use tollgate::decide::{
    Anchor, FixedWindow, LeakyBucket, Limit, Rule, SlidingCounter, SlidingLog, TokenBucket,
};
use tollgate::store::valkey::script;

/// Decisions of each sort in a round.
const DECISIONS: u64 = 6_400;

/// How often each sort has its turn.
const ROUNDS: usize = 5;

/// Clients that take turns.
const CLIENTS: u64 = 1_000;

/// A sort of calls.
struct Sort {
    policies: Vec<Policy>,
    clients: u64,
    cost: u64,
    /// Requests in a call.
    batch: u64,
    /// Whether those are of one client.
    same: bool,
}

impl Sort {
    fn of(policies: &[Policy], batch: u64, same: bool) -> Self {
        Self {
            policies: policies.to_vec(),
            clients: CLIENTS,
            cost: 1,
            batch,
            same,
        }
    }

    fn requests(&self, number: u64) -> Vec<Vec<Check<'_>>> {
        let request = |place: u64| {
            let client = match self.same {
                true => number,
                false => number * self.batch + place,
            };
            let checks = self.policies.iter();
            checks
                .map(|policy| check(policy, client % self.clients, self.cost))
                .collect()
        };
        (0..self.batch).map(request).collect()
    }

    fn command(&self, sha: &str, number: u64) -> redis::Cmd {
        let requests = self.requests(number);
        let slices: Vec<_> = requests.iter().map(Vec::as_slice).collect();
        script::call_all(sha, "bench", &slices, None, 60_000)
    }

    /// Server time for a request, in µs.
    fn round(&self, connection: &mut Connection, sha: &str) -> f64 {
        redis::cmd("CONFIG")
            .arg("RESETSTAT")
            .exec(connection)
            .unwrap();
        for number in 0..DECISIONS / self.batch {
            let _: Value = self.command(sha, number).query(connection).unwrap();
        }
        let stats: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(connection)
            .unwrap();
        let per_call: f64 = stats
            .lines()
            .find(|line| line.starts_with("cmdstat_evalsha:"))
            .and_then(|line| line.split("usec_per_call=").nth(1)?.split(',').next())
            .and_then(|per_call| per_call.parse().ok())
            .unwrap();
        per_call / f64::from(u32::try_from(self.batch).unwrap())
    }
}

fn main() {
    let valkey = Valkey::start();
    let mut connection = valkey.connect();
    let sha: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script::source())
        .query(&mut connection)
        .unwrap();
    println!("µs of the server for a request, {CLIENTS} clients, by requests in a call:\n");
    println!("|                        | 1     | 16    | 64    | 16 of one client | 64    |");
    println!("| ---                    | ---   | ---   | ---   | ---              | ---   |");
    for kind in 0..5 {
        let name = rule(kind, 1).kind();
        for (verdict, count) in [("allow", 1_000_000), ("deny", 1)] {
            let policies = [policy(&format!("{name}-{verdict}"), rule(kind, count))];
            row(
                &mut connection,
                &sha,
                &format!("{name}, {verdict}"),
                &policies,
            );
        }
    }
    for (verdict, count) in [("allow", 1_000_000), ("deny", 1)] {
        let three = ["one", "two", "three"]
            .map(|name| policy(&format!("{name}-{verdict}"), rule(3, count)));
        row(
            &mut connection,
            &sha,
            &format!("three buckets, {verdict}"),
            &three,
        );
    }
    costs(&mut connection, &sha);
    gateway(&mut connection, &sha);

    let url = format!("valkey://{}", valkey.address());
    let measured = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["simulate", "--memory", "--store", &url])
        .status()
        .unwrap();
    assert!(measured.success());
}

fn row(connection: &mut Connection, sha: &str, name: &str, policies: &[Policy]) {
    let shapes = [(1, false), (16, false), (64, false), (16, true), (64, true)];
    let sorts = shapes.map(|(batch, same)| Sort::of(policies, batch, same));
    let best = best_of(connection, sha, &sorts);
    let [one, few, many, few_same, many_same] = best[..] else {
        panic!("a figure for each")
    };
    println!(
        "| {name:<22} | {one:>5.1} | {few:>5.1} | {many:>5.1} | {few_same:>16.1} | {many_same:>5.1} |"
    );
}

/// The best of each sort in rounds that take turns.
fn best_of(connection: &mut Connection, sha: &str, sorts: &[Sort]) -> Vec<f64> {
    // Once around, so that every client has a state.
    for sort in sorts {
        sort.round(connection, sha);
    }
    let mut best = vec![f64::INFINITY; sorts.len()];
    for _ in 0..ROUNDS {
        for (sort, best) in sorts.iter().zip(&mut best) {
            *best = best.min(sort.round(connection, sha));
        }
    }
    best
}

/// A sliding log decides a large cost as it does a small one.
fn costs(connection: &mut Connection, sha: &str) {
    println!("\n| sliding-log            | cost 1 | cost 100 |");
    println!("| ---                    | ---    | ---      |");
    for (verdict, count) in [("allow", 1_000_000_000), ("deny, 1,000 requests", 1_000)] {
        let policies = [policy(&format!("costs-{count}"), rule(1, count))];
        let sorts = [1, 100].map(|cost| Sort {
            clients: 10,
            cost,
            ..Sort::of(&policies, 1, false)
        });
        // A thousand requests of each client.
        for number in 0..10_000 {
            let _: Value = sorts[0].command(sha, number).query(connection).unwrap();
        }
        let best = best_of(connection, sha, &sorts);
        println!("| {verdict:<22} | {:>6.1} | {:>8.1} |", best[0], best[1]);
    }
}

/// What a call costs the gateway: to write it, and to read what the server answers.
fn gateway(connection: &mut Connection, sha: &str) {
    println!("\n| ns of the gateway for a request | 1     | 64    |");
    println!("| ---                             | ---   | ---   |");
    let policies = [policy("gateway", rule(3, 1_000_000))];
    let sorts = [1, 64].map(|batch| Sort::of(&policies, batch, false));
    let per_request = |sort: &Sort, mut work: Box<dyn FnMut() + '_>| {
        let calls = 20_000 / u32::try_from(sort.batch).unwrap();
        let begun = monotonic_now();
        (0..calls).for_each(|_| work());
        begun.elapsed().as_nanos() / u128::from(calls) / u128::from(sort.batch)
    };
    let written = sorts.each_ref().map(|sort| {
        let requests = sort.requests(0);
        let slices: Vec<_> = requests.iter().map(Vec::as_slice).collect();
        let write = || {
            let call = script::call_all(sha, "bench", &slices, None, 1_000);
            black_box(call.get_packed_command());
        };
        per_request(sort, Box::new(write))
    });
    println!(
        "| call                            | {:>5} | {:>5} |",
        written[0], written[1]
    );
    let read = sorts.each_ref().map(|sort| {
        let answer = connection
            .req_packed_command(&sort.command(sha, 0).get_packed_command())
            .unwrap();
        let sent = as_sent(&answer);
        let checks = usize::try_from(sort.batch).unwrap();
        let read = || {
            let value = redis::parse_redis_value(&sent).unwrap();
            black_box(script::read_reply(&value, checks).unwrap());
        };
        per_request(sort, Box::new(read))
    });
    println!(
        "| reply                           | {:>5} | {:>5} |\n",
        read[0], read[1]
    );
}

/// A reply as it came.
fn as_sent(reply: &Value) -> Vec<u8> {
    let Value::BulkString(bytes) = reply else {
        panic!("{reply:?}")
    };
    let mut sent = format!("${}\r\n", bytes.len()).into_bytes();
    sent.extend(bytes);
    sent.extend(b"\r\n");
    sent
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
