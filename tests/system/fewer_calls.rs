//! What spares Valkey calls, and changes no decision: group commit, the deny cache, leases. Each of them holds switched
//! off, too, as `TOLLGATE__STORE__GROUP_COMMIT=false` and `TOLLGATE__STORE__DENY_CACHE=false` have it for a whole run.

use std::thread;
use std::time::Duration;

use crate::support::crowd::{at_once, count};
use crate::support::gateway::{Gateway, secret_file};
use crate::support::valkey::Valkey;

const CHECKS: &str = "tollgate_store_request_duration_seconds_count{op=\"check\"}";
const BY_CACHE: &str = "tollgate_store_spared_total{by=\"deny_cache\"}";
const BY_LEASE: &str = "tollgate_store_spared_total{by=\"lease\"}";

/// Whether this run has it switched on, as it is by default.
fn is_on(variable: &str) -> bool {
    std::env::var(variable).as_deref() != Ok("false")
}

/// A gateway with these policies, which stand on its one route in this order.
fn gateway(valkey: &Valkey, policies: &[(&str, &str)]) -> Gateway {
    let names: Vec<_> = policies
        .iter()
        .map(|(name, _)| format!("\"{name}\""))
        .collect();
    let tables: Vec<_> = policies
        .iter()
        .map(|(name, policy)| format!("[policies.{name}]\n{policy}\n"))
        .collect();
    let gateway = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"10s\"\ninstances = 2\nkey_secret_file = \"{}\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nrespond = {{ status = 204 }}\npolicies = [{}]\n{}",
        valkey.address(),
        secret_file().display(),
        names.join(", "),
        tables.concat()
    ));
    gateway.await_metric("tollgate_store_up", 1.0);
    gateway
}

/// How often the server was asked to run a script so far.
fn script_calls(valkey: &Valkey) -> u64 {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut valkey.connect())
        .unwrap();
    let calls = info.lines().find_map(|line| {
        line.strip_prefix("cmdstat_evalsha:calls=")?
            .split(',')
            .next()
    });
    calls.map_or(0, |calls| calls.parse().unwrap())
}

#[test]
fn requests_that_come_during_a_call_go_together_in_the_next() {
    let valkey = Valkey::start();
    let policy = "kind = \"token-bucket\"\nlimit = \"60/d\"\nkey = \"global\"";
    let gateway = gateway(&valkey, &[("all", policy)]);
    assert_eq!(gateway.get("/").status, 204);
    let before = script_calls(&valkey);
    // The first call is under way for as long as the server stands still, and the others wait for it.
    valkey.pause();
    let responses = thread::scope(|scope| {
        let clients = scope.spawn(|| at_once(&[gateway.address], 120, "/"));
        thread::park_timeout(Duration::from_secs(2));
        valkey.resume();
        clients.join().unwrap()
    });
    assert_eq!((count(&responses, 204), count(&responses, 429)), (59, 61));
    // Gateways announce themselves by scripts, too, but seldom.
    let calls = script_calls(&valkey) - before;
    if is_on("TOLLGATE__STORE__GROUP_COMMIT") {
        assert!(calls < 20, "{calls} calls");
    } else {
        assert!(calls >= 120, "{calls} calls");
    }
}

#[test]
fn a_denial_is_told_again_without_a_call_until_it_ends_or_a_second_is_over() {
    let valkey = Valkey::start();
    let policies = [
        (
            "day",
            "kind = \"fixed-window\"\nlimit = \"3/d\"\nkey = \"ip\"",
        ),
        (
            "log",
            "kind = \"sliding-log\"\nlimit = \"100/d\"\nkey = \"global\"",
        ),
    ];
    let gateway = gateway(&valkey, &policies);
    let responses: Vec<_> = (0..103).map(|_| gateway.get("/")).collect();
    assert_eq!((count(&responses, 204), count(&responses, 429)), (3, 100));
    let (first, last) = (&responses[3], &responses[102]);
    for name in ["ratelimit-policy", "content-type", "cache-control"] {
        assert_eq!(first.header(name), last.header(name));
    }
    assert_eq!(
        first.json()["violated-policies"],
        last.json()["violated-policies"]
    );
    let spared = gateway.metric(BY_CACHE);
    assert!((gateway.metric(CHECKS) + spared - 103.0).abs() < 0.5);
    let denied = "tollgate_policy_decisions_total{decision=\"deny\",policy=\"day\",route=\"r\",source=\"store\"}";
    gateway.await_metric(denied, 100.0);
    if is_on("TOLLGATE__STORE__DENY_CACHE") {
        assert!(spared > 50.0, "{spared} were spared");
    } else {
        assert!(spared < 0.5, "{spared} were spared");
    }
    // Whoever is forgiven in the store passes here within a second, whatever the wait was.
    let mut admin = valkey.connect();
    redis::cmd("FLUSHDB").exec(&mut admin).unwrap();
    thread::park_timeout(Duration::from_millis(1_100));
    assert_eq!(gateway.get("/").status, 204);
}

#[test]
fn a_denial_that_may_be_undone_is_not_remembered() {
    let valkey = Valkey::start();
    // What is charged beside a policy of each gateway's own may be given back.
    let policies = [
        (
            "day",
            "kind = \"fixed-window\"\nlimit = \"3/d\"\nkey = \"ip\"",
        ),
        (
            "own",
            "kind = \"token-bucket\"\nlimit = \"1000/s\"\nkey = \"ip\"\nstore = \"local\"",
        ),
    ];
    let gateway = gateway(&valkey, &policies);
    let responses: Vec<_> = (0..20).map(|_| gateway.get("/")).collect();
    assert_eq!((count(&responses, 204), count(&responses, 429)), (3, 17));
    gateway.await_metric(CHECKS, 20.0);
    assert!(gateway.metric(BY_CACHE) < 0.5);
}

#[test]
fn a_busy_key_is_leased_within_the_bound_and_what_is_left_is_returned() {
    let valkey = Valkey::start();
    let (limit, lease) = (4_000, 200);
    let policy = format!(
        "kind = \"fixed-window\"\nlimit = \"{limit}/d\"\nanchor = \"first-request\"\nkey = \"global\"\nlease = {lease}"
    );
    let mut gateways = [
        gateway(&valkey, &[("leased", &policy)]),
        gateway(&valkey, &[("leased", &policy)]),
    ];
    let addresses = gateways.each_ref().map(|gateway| gateway.address);
    let passed = |responses: &[_]| u64::try_from(count(responses, 204)).unwrap();
    let mut allowed = 0;
    for _ in 0..10 {
        allowed += passed(&at_once(&addresses, 200, "/"));
    }
    assert_eq!(allowed, 2_000);
    let spared: f64 = gateways
        .iter()
        .map(|gateway| gateway.metric(BY_LEASE))
        .sum();
    assert!(spared > 100.0, "{spared} were spent from a lease");
    // One stops, and gives back what it has not spent: it is not lost to the other, but for what was held too long.
    let stopped = &mut gateways[0];
    assert_eq!(stopped.stop(), Some(0));
    let last = &addresses[1..];
    for _ in 0..20 {
        allowed += passed(&at_once(last, 200, "/"));
    }
    assert!(allowed <= limit + 2 * lease, "{allowed} passed");
    assert!(allowed > limit * 8 / 10, "only {allowed} passed");
    assert_eq!(gateways[1].get("/").status, 429);
}
