//! What a stalled Valkey costs a request: SIGSTOP under 500 requests a second, and how soon shared limits rule again.
//!
//! `cargo bench --bench outage`. The load is open-loop: a request is due at its time, whether or not those before it
//! were answered, and what a slow answer holds up counts as its delay. Compare within one run.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a bench that cannot go on should stop loudly"
)]

#[path = "../support/mod.rs"]
mod support;

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use support::gateway::{Gateway, secret_file};
use support::load::paced;
use support::valkey::Valkey;
use tollgate::clock::monotonic_now;

/// Requests a second, all routes together.
const RATE: u32 = 500;

/// Connections; each asks one route, in turn with the others.
const CLIENTS: u32 = 50;

const PHASE: Duration = Duration::from_secs(20);

/// Stalls of which only the end is measured, of so many ms: any moment of a probe's pause may be the last one.
const RECOVERIES: usize = 12;
const STALL_MS: std::ops::RangeInclusive<u64> = 500..=3_500;

/// A route without policy, one that counts in process, and one for each answer to a failed store.
const ROUTES: [&str; 5] = ["plain", "unshared", "local", "allow", "deny"];

const UP: &str = "tollgate_store_up";

fn main() {
    let valkey = Valkey::start();
    let gateway = Gateway::start(&config(&valkey));
    gateway.await_metric(UP, 1.0);
    // Once around, so that no phase pays for first times.
    load(gateway.address, &ROUTES, Duration::from_secs(3));

    let quiet = Phase::run(&gateway, &["plain"; 5]);
    let healthy = Phase::run(&gateway, &ROUTES);
    // Those who find out that the store has stalled wait for its deadline; the phase begins once it is left alone.
    let finding_out = thread::scope(|scope| {
        let load = scope.spawn(|| load(gateway.address, &ROUTES, Duration::from_secs(2)));
        valkey.pause();
        let began = monotonic_now();
        await_that(|| gateway.metric(UP) < 0.5);
        let took = monotonic_now().saturating_duration_since(began);
        load.join().unwrap();
        took
    });
    let stalled = Phase::run(&gateway, &ROUTES);
    assert_eq!(gateway.metric(UP), 0.0, "it was stalled all the time");
    valkey.resume();
    gateway.await_metric(UP, 1.0);
    let mut recoveries = recoveries(&gateway, &valkey);
    recoveries.sort_unstable();

    let baseline = quiet.of("plain");
    println!(
        "{RATE} requests a second over {CLIENTS} connections, {PHASE:?} a phase; µs from when a request was due"
    );
    println!(
        "quiet, without any policy: p50 {}, p99 {}; our own time: {}\n",
        baseline.at(50),
        baseline.at(99),
        quiet.own_time
    );
    println!("| route | phase | requests | p50 | p99 | max | p50 - plain's | p99 - plain's |");
    println!("|---|---|---|---|---|---|---|---|");
    for route in ROUTES {
        for (name, phase) in [("healthy", &healthy), ("stalled", &stalled)] {
            let (own, plain) = (phase.of(route), phase.of("plain"));
            println!(
                "| {route} | {name} | {} | {} | {} | {} | {:+} | {:+} |",
                own.0.len(),
                own.at(50),
                own.at(99),
                own.at(100),
                own.at(50) - plain.at(50),
                own.at(99) - plain.at(99),
            );
        }
    }
    println!("\nour own time, all routes: healthy {}", healthy.own_time);
    println!("                          stalled {}", stalled.own_time);
    println!("left alone {finding_out:?} after SIGSTOP");
    println!(
        "first shared decision after SIGCONT, of {RECOVERIES}: {:?} at best, {:?} in the middle, {:?} at worst",
        recoveries[0],
        recoveries[RECOVERIES / 2],
        recoveries[RECOVERIES - 1]
    );
}

fn config(valkey: &Valkey) -> String {
    let policies: String = ["allow", "deny", "local"]
        .iter()
        .map(|name| policy(name, &format!("on_store_failure = \"{name}\"")))
        .chain([policy("unshared", "store = \"local\"")])
        .collect();
    format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\nkey_secret_file = \"{}\"\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n{policies}\
         [routes.plain]\nmatch = {{ path = \"/plain\" }}\nupstream = \"demo\"\n",
        valkey.address(),
        secret_file().display()
    )
}

/// One that denies nobody here.
fn policy(name: &str, rest: &str) -> String {
    format!(
        "[policies.{name}]\nkind = \"token-bucket\"\nlimit = \"100_000/s\"\nkey = \"ip\"\n{rest}\n\
         [routes.{name}]\nmatch = {{ path = \"/{name}\" }}\nupstream = \"demo\"\npolicies = [\"{name}\"]\n"
    )
}

/// Latencies in µs, the least first.
#[derive(Default)]
struct Latencies(Vec<i64>);

impl Latencies {
    /// What so many of a hundred stay within.
    fn at(&self, percent: usize) -> i64 {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0[rank - 1]
    }
}

/// What was measured in one span of time.
struct Phase {
    by_route: Vec<(&'static str, Latencies)>,
    own_time: String,
}

impl Phase {
    fn run(gateway: &Gateway, routes: &[&'static str; 5]) -> Self {
        let before = OwnTime::of(gateway);
        let by_route = load(gateway.address, routes, PHASE);
        Self {
            by_route,
            own_time: OwnTime::of(gateway).since(&before),
        }
    }

    fn of(&self, route: &str) -> &Latencies {
        let found = self.by_route.iter().find(|(name, _)| *name == route);
        &found.unwrap().1
    }
}

/// The histogram of the gateway's own time: upper edges in seconds, and how many lie below.
struct OwnTime(Vec<(String, f64)>);

impl OwnTime {
    fn of(gateway: &Gateway) -> Self {
        let edge = |line: &str| {
            let rest = line.strip_prefix("tollgate_overhead_seconds_bucket{le=\"")?;
            let (edge, count) = rest.split_once("\"} ")?;
            Some((edge.to_owned(), count.parse().ok()?))
        };
        Self(gateway.scrape().lines().filter_map(edge).collect())
    }

    /// The edges below which a half, and 99 of 100, lie.
    fn since(&self, before: &Self) -> String {
        let counts: Vec<_> = self
            .0
            .iter()
            .zip(&before.0)
            .map(|((edge, now), (_, then))| (edge, now - then))
            .collect();
        let all = counts.last().unwrap().1;
        let below = |part: f64| {
            let found = counts.iter().find(|(_, count)| *count >= all * part);
            found.unwrap().0
        };
        format!("half within {} s, 99% within {} s", below(0.5), below(0.99))
    }
}

/// Asks for `span`, and says how long each answer took. All of them are expected ones.
fn load(
    gateway: SocketAddr,
    routes: &[&'static str; 5],
    span: Duration,
) -> Vec<(&'static str, Latencies)> {
    let began = monotonic_now() + Duration::from_millis(50);
    let apart = Duration::from_secs(1) * CLIENTS / RATE;
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let route = routes[number as usize % routes.len()];
            // A client's turn lies evenly between those of the others.
            let first = began + Duration::from_secs(1) * number / RATE;
            thread::spawn(move || (route, ask(gateway, route, first, apart, span)))
        })
        .collect();
    let mut by_route: Vec<(&str, Latencies)> = Vec::new();
    for client in clients {
        let (route, mut took) = client.join().unwrap();
        match by_route.iter_mut().find(|(known, _)| *known == route) {
            Some((_, latencies)) => latencies.0.append(&mut took),
            None => by_route.push((route, Latencies(took))),
        }
    }
    for (_, latencies) in &mut by_route {
        latencies.0.sort_unstable();
    }
    by_route
}

/// One connection's requests, each at its time.
fn ask(
    gateway: SocketAddr,
    route: &str,
    first: Instant,
    apart: Duration,
    span: Duration,
) -> Vec<i64> {
    let mut took = Vec::new();
    let times = (first, apart, span);
    paced(
        gateway,
        &format!("/{route}"),
        &[],
        times,
        |response, span| {
            took.push(i64::try_from(span.as_micros()).unwrap());
            let expected = response.status == 200 || (route == "deny" && response.status == 503);
            assert!(expected, "{route}: {response:?}");
        },
    );
    took
}

/// Stalls the server under load, and lets it go on: the times until a decision is its own again.
fn recoveries(gateway: &Gateway, valkey: &Valkey) -> Vec<Duration> {
    let longest = Duration::from_millis(*STALL_MS.end()) + Duration::from_secs(1);
    let decided = || {
        gateway.metric(
            "tollgate_policy_decisions_total{decision=\"allow\",policy=\"deny\",route=\"deny\",source=\"store\"}",
        )
    };
    let once = || {
        thread::scope(|scope| {
            let load = scope.spawn(|| load(gateway.address, &ROUTES, longest));
            valkey.pause();
            await_that(|| gateway.metric(UP) < 0.5);
            thread::park_timeout(Duration::from_millis(fastrand::u64(STALL_MS)));
            let before = decided();
            valkey.resume();
            let began = monotonic_now();
            await_that(|| decided() > before);
            let took = monotonic_now().saturating_duration_since(began);
            load.join().unwrap();
            took
        })
    };
    (0..RECOVERIES).map(|_| once()).collect()
}

/// Waits until it is so.
fn await_that(holds: impl Fn() -> bool) {
    let deadline = monotonic_now() + Duration::from_secs(20);
    while !holds() {
        assert!(monotonic_now() < deadline, "it does not come about");
        thread::park_timeout(Duration::from_millis(2));
    }
}
