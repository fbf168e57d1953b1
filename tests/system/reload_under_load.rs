//! A configuration that is read again while clients ask: no request fails, no use is lost, nothing is held for ever.

use std::thread;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::{ADMIN, Gateway, secret_file};
use crate::support::http::{Connection, get_with};
use crate::support::load::{Habit, Load};
use crate::support::valkey::Valkey;

const LIMIT: usize = 2_000;

/// How much more memory may be held at the end: room for the allocator, not for fifty configurations and their counts.
const GROWTH_MAX_KIB: u64 = 48 * 1024;

fn shared(valkey: &Valkey) -> String {
    format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"10s\"\nkey_secret_file = \"{}\"\n",
        valkey.address(),
        secret_file().display()
    )
}

/// So many for everybody together, and one for each user.
fn config(store: &str, limit: usize, more: &str) -> String {
    format!(
        "{store}[admin]\naddress = \"{ADMIN}\"\n[upstreams.demo]\nbuiltin = \"echo\"\n\
         [policies.limit]\nkind = \"sliding-log\"\nkey = \"global\"\nlimit = \"{limit}/300d\"\n\
         [policies.one]\nkind = \"token-bucket\"\nkey = \"header:x-user\"\nlimit = \"1/300d\"\non_missing_key = \"skip\"\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"limit\", \"one\"]\n{more}"
    )
}

/// How many of so many requests, one after the other, pass.
fn passed(gateway: &Gateway, requests: usize) -> usize {
    let mut connection = Connection::open(gateway.address);
    (0..requests)
        .filter(|_| connection.ask("GET", "/", &[]).status == 200)
        .count()
}

/// Series of all kinds.
fn series(gateway: &Gateway) -> usize {
    let scrape = gateway.scrape();
    scrape.lines().filter(|line| !line.starts_with('#')).count()
}

/// Rewrites the configuration and has it read by the command. Returns whether it was taken.
fn commanded(gateway: &Gateway, config: &str) -> bool {
    gateway.rewrite(config);
    let output = gateway.command_reload(&[]);
    match output.status.code() {
        Some(0) => true,
        Some(78) => false,
        other => panic!("{other:?}: {output:?}"),
    }
}

/// haproxy/haproxy #1497: counters exploded after a reload.
#[test]
fn a_hundred_reloads_fail_no_request_lose_no_use_and_leak_nothing() {
    let valkey = Valkey::start();
    // Watched, it also reads by itself what the command makes it read: then and there as often as it likes.
    let ways: [(_, &[&str]); 2] = [(String::new(), &[]), (shared(&valkey), &["--watch"])];
    for (store, arguments) in ways {
        let gateway = Gateway::start_with(&config(&store, LIMIT, ""), arguments);
        gateway.await_metric("tollgate_store_up", 1.0);
        // Every series that the load will make is there from the start.
        for status in [200, 429] {
            let response = get_with(gateway.address, "/", &[("x-user", "ann")]);
            assert_eq!(response.status, status);
        }
        let habits = [Habit::Keep, Habit::Fresh];
        let load = Load::start(&[gateway.address], &habits, 4, Duration::from_millis(2));
        let mut warm = None;
        for number in 0..50 {
            let route = format!(
                "[routes.r{number}]\nmatch = {{ path = \"/r{number}\" }}\nupstream = \"demo\"\npolicies = [\"limit\"]\n"
            );
            let good = config(&store, LIMIT, &route);
            let bad = config(&store, LIMIT, "[policies.bad]\n");
            let signalled = arguments.is_empty() && number % 2 == 0;
            if signalled {
                assert!(gateway.reload(&good));
                assert!(!commanded(&gateway, &bad));
            } else {
                assert!(commanded(&gateway, &good));
                assert!(!commanded(&gateway, &bad));
            }
            if number == 9 {
                warm = Some((gateway.held(), series(&gateway)));
            }
        }
        let (held, made) = warm.unwrap();
        assert_eq!(series(&gateway), made, "{}", gateway.scrape());
        let deadline = monotonic_now() + Duration::from_secs(20);
        loop {
            let now = gateway.held();
            if now.descriptors <= held.descriptors + 4
                && now.threads <= held.threads + 2
                && now.resident_kib <= held.resident_kib + GROWTH_MAX_KIB
            {
                break;
            }
            assert!(monotonic_now() < deadline, "{held:?} has become {now:?}");
            thread::park_timeout(Duration::from_millis(100));
        }
        let (allowed, _) = load.end();
        assert!(allowed < LIMIT, "{allowed}");
        assert_eq!(1 + allowed + passed(&gateway, LIMIT), LIMIT);
        gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
        if arguments.is_empty() {
            assert_eq!(gateway.reloads(), (50, 50));
        }
        // One of the fifty routes is left.
        let scrape = gateway.scrape();
        assert!(scrape.contains("route=\"r49\""));
        assert!(!scrape.contains("route=\"r48\""), "{scrape}");
    }
}

/// Kong/kong #3175: an edited limit needed a restart. 3scale/APIcast #667: the store kept the limit with the state.
/// envoyproxy/ratelimit #1077: who was over the old limit was remembered as such.
#[test]
fn an_edited_limit_is_in_force_at_once_on_every_gateway_and_keeps_what_was_used() {
    let valkey = Valkey::start();
    let with = |limit| config(&shared(&valkey), limit, "");
    let gateways = [(); 2].map(|()| Gateway::start(&with(50)));
    for gateway in &gateways {
        gateway.await_metric("tollgate_store_up", 1.0);
    }
    let addresses = gateways.each_ref().map(|gateway| gateway.address);
    let load = Load::start(&addresses, &[Habit::Keep], 4, Duration::from_millis(5));
    let mut extra = 0;
    // What has been used by then: lowered, a limit lets nobody pass, and takes nothing back.
    for (limit, expected) in [(50, 50), (80, 80), (60, 80)] {
        for gateway in &gateways {
            assert!(commanded(gateway, &with(limit)));
            // The very next answer is by the new one.
            let response = gateway.get("/");
            extra += usize::from(response.status == 200);
            let told = response.header("ratelimit-policy").unwrap();
            assert!(told.contains(&format!("\"limit\";q={limit};")), "{told}");
        }
        let deadline = monotonic_now() + Duration::from_secs(20);
        let used = || -> f64 {
            let units = "tollgate_policy_units_total{policy=\"limit\"}";
            gateways.iter().map(|gateway| gateway.metric(units)).sum()
        };
        while format!("{:.0}", used()) != expected.to_string() {
            assert!(monotonic_now() < deadline, "{} of {expected}", used());
            thread::park_timeout(Duration::from_millis(20));
        }
    }
    let (allowed, denied) = load.end();
    assert_eq!(allowed + extra, 80);
    assert!(denied > 0);
}
