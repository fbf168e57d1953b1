//! What went wrong in other limiters does not here: public reports, each with its smallest history.

mod settings;

use std::num::NonZeroUsize;
use std::sync::Arc;

use http::HeaderMap;
use tollgate::check::entity::{Caller, entity};
use tollgate::check::{Check, Identity, KeySecret, KeySource, Policy};
use tollgate::client::address::Prefixes;
use tollgate::clock::{Clock, ManualClock};
use tollgate::decide::{
    Anchor, Calendar, CalendarUnit, Cost, FixedWindow, Rule, State, Timestamp, Verdict,
};
use tollgate::request::RequestView;
use tollgate::store::local::LocalStore;
use tollgate::store::valkey::key::key;

use crate::support::policies::{check, policy};
use crate::support::reports::{read_rule, reports};
use crate::support::traces::limit;

/// One of each kind, five a minute.
const KINDS: [&str; 6] = [
    "fixed-window 5/1min",
    "fixed-window 5/1min first-request",
    "sliding-log 5/1min",
    "sliding-counter 5/1min",
    "token-bucket 5/1min",
    "leaky-bucket 5/1min",
];

const START_US: u64 = 1_700_000_000_000_000;

fn store() -> (LocalStore, ManualClock) {
    let clock = ManualClock::default();
    clock.set(Timestamp::from_micros(START_US));
    let max_keys = NonZeroUsize::new(1_000_000).unwrap();
    let store = LocalStore::new(max_keys, Clock::Manual(clock.clone()));
    (store, clock)
}

fn allows(store: &LocalStore, checks: &[Check<'_>]) -> bool {
    let (_, decisions) = store.decide_now(checks).unwrap();
    decisions.iter().all(|d| d.verdict == Verdict::Allow)
}

fn left(store: &LocalStore, policy: &Policy, entity: u64) -> u64 {
    store.decide_now(&[check(policy, entity, 0)]).unwrap().1[0].remaining
}

#[test]
fn no_reported_fault_is_one_of_the_functions() {
    for report in reports() {
        let mut kept: Option<State> = None;
        report.play(0, |check, now| {
            let (change, decision) = check.rule.decide(kept.as_ref(), now, check.cost);
            change.apply(&mut kept);
            decision
        });
    }
}

#[test]
fn no_reported_fault_is_one_of_the_local_store() {
    let (store, clock) = store();
    for (number, report) in (0..).zip(reports()) {
        report.play(number, |check, now| {
            clock.set(now);
            store.decide_now(&[*check]).unwrap().1[0]
        });
    }
}

/// Kong/kong #2669: near the edge of a window answers went 429, 200, 429.
#[test]
fn who_is_denied_stays_denied_until_the_moment_that_was_told() {
    for kind in KINDS {
        let rule = read_rule(kind);
        let mut kept: Option<State> = None;
        let mut denied_until = 0;
        let mut denials = 0;
        for n in 0..3_000 {
            let now = START_US + n * 100_000;
            let at = Timestamp::from_micros(now);
            let (change, decision) = rule.decide(kept.as_ref(), at, Cost::ONE);
            change.apply(&mut kept);
            if decision.verdict == Verdict::Allow {
                assert!(now >= denied_until, "{kind}: {now} before {denied_until}");
            } else {
                let until = now + decision.retry_after_us.unwrap();
                // Told once, the moment does not move.
                let was_over = denied_until <= now;
                assert!(was_over || denied_until == until, "{kind} at {now}");
                denied_until = until;
                denials += 1;
            }
        }
        assert!(denials > 2_900, "{kind}: {denials}");
    }
}

/// cloudflare/pingora's pingora-limits: keys that share the slots of a sketch were denied together.
#[test]
fn fifty_thousand_callers_are_counted_apart() {
    let (store, _) = store();
    let policy = policy("two", read_rule("fixed-window 2/1h"));
    for expected in [true, true, false] {
        for entity in 0..50_000 {
            assert_eq!(allows(&store, &[check(&policy, entity, 1)]), expected);
        }
    }
}

/// What is denied by one limit is charged by none. Each row: the limits, how many ask for one of each, what is left.
#[test]
fn a_limit_that_denies_spends_no_other() {
    let rows: [(&str, &[&str], usize, &[u64]); 4] = [
        (
            "envoyproxy/ratelimit #427",
            &["fixed-window 10/1min", "fixed-window 3/1min"],
            5,
            &[7, 0],
        ),
        (
            "mholt/caddy-ratelimit #10",
            &["sliding-log 100/1min", "sliding-log 5/1min"],
            50,
            &[95, 0],
        ),
        (
            "coveooss/spillway #33",
            &["fixed-window 60/1h", "fixed-window 5/1min"],
            20,
            &[55, 0],
        ),
        (
            "envoyproxy/envoy #40430: a narrow bucket was capped by the wide one",
            &["token-bucket 100/1h", "token-bucket 2/1h"],
            10,
            &[98, 0],
        ),
    ];
    for (report, rules, asking, expected) in rows {
        let (store, _) = store();
        let policies: Vec<_> = (0..)
            .zip(rules)
            .map(|(n, rule)| policy(&format!("p{n}"), read_rule(rule)))
            .collect();
        let checks: Vec<_> = policies.iter().map(|policy| check(policy, 0, 1)).collect();
        let passed = (0..asking).filter(|_| allows(&store, &checks)).count();
        let found: Vec<_> = policies.iter().map(|p| left(&store, p, 0)).collect();
        assert_eq!(found, expected, "{report}");
        let tight = policies.last().unwrap().limits.rule.capacity();
        assert_eq!(u64::try_from(passed).unwrap(), tight, "{report}");
    }
}

/// traefik/traefik #9721 and many more: a caller walks through the addresses of its own /64.
#[test]
fn two_thousand_addresses_of_one_network_are_one_caller() {
    for (source, expected) in [("ip", 20), ("ip/128", 2_000), ("ip/48", 20)] {
        let (store, _) = store();
        let policy = policy("address", read_rule("sliding-log 20/1h"));
        let key: [KeySource; 1] = [source.parse().unwrap()];
        let secret = KeySecret::from_bytes(b"sixteen bytes or more").unwrap();
        let headers = HeaderMap::new();
        let passed = (1..=2_000)
            .filter(|n| {
                let caller = Caller {
                    request: RequestView {
                        method: "GET",
                        host: "api.example",
                        path: "/",
                        query: None,
                        headers: &headers,
                    },
                    client_ip: format!("2001:db8:0:7::{n:x}").parse().ok(),
                    prefixes: Prefixes::default(),
                    identity: &Identity::default(),
                    route: "all",
                    params: &[(Arc::from("id"), n.to_string())],
                };
                let entity = entity(&key, &caller, &secret).key;
                let asked = Check {
                    entity,
                    ..check(&policy, 0, 1)
                };
                allows(&store, &[asked])
            })
            .count();
        assert_eq!(passed, expected, "{source}");
    }
}

/// spring-cloud/spring-cloud-gateway #248, apache/shenyu #2808: the keys of one script lay in two slots of a cluster.
#[test]
fn all_keys_of_a_caller_share_one_hash_tag_and_no_two_callers_do() {
    /// What a cluster hashes: between the first brace and the next closing one.
    fn tag(key: &str) -> &str {
        let (_, rest) = key.split_once('{').unwrap();
        let (tag, _) = rest.split_once('}').unwrap();
        assert!(!tag.is_empty(), "{key}");
        tag
    }
    let policies: Vec<_> = (0..)
        .zip(KINDS)
        .map(|(n, kind)| policy(&format!("p{n}"), read_rule(kind)))
        .collect();
    let mut tags = Vec::new();
    for entity in 0..1_000 {
        let keys: Vec<_> = policies
            .iter()
            .map(|policy| key("tollgate", &check(policy, entity, 1)))
            .collect();
        assert!(keys.iter().all(|key| tag(key) == tag(&keys[0])), "{keys:?}");
        tags.push(tag(&keys[0]).to_owned());
    }
    tags.sort();
    tags.dedup();
    assert_eq!(tags.len(), 1_000);
}

/// A store, its clock, and a policy of so many a calendar window.
fn by_the_calendar(unit: CalendarUnit, zone: &str) -> (LocalStore, ManualClock, Policy) {
    let (store, clock) = store();
    let calendar = Arc::new(Calendar::of_zone(unit, zone).unwrap());
    let rule = FixedWindow::new(limit(5, 1_000), Anchor::Calendar(calendar)).unwrap();
    (store, clock, policy("quota", Rule::FixedWindow(rule)))
}

/// Kong, month counters: they ended after 30 days, in a month of 31; and the reset was told as if it had 30.
#[test]
fn a_month_of_31_days_is_counted_to_its_end() {
    let (store, clock, policy) = by_the_calendar(CalendarUnit::Month, "UTC");
    const DAY_US: u64 = 86_400_000_000;
    // 1 October 2026.
    let first = 1_790_812_800_000_000;
    clock.set(Timestamp::from_micros(first));
    assert!(allows(&store, &[check(&policy, 0, 5)]));
    let last_day = first + 30 * DAY_US + DAY_US / 2;
    clock.set(Timestamp::from_micros(last_day));
    store.sweep(100);
    let denied = store.decide_now(&[check(&policy, 0, 1)]).unwrap().1[0];
    assert_eq!(denied.verdict, Verdict::Deny);
    assert_eq!(
        denied.retry_after_us,
        Some(DAY_US / 2),
        "to the end of the 31st"
    );
    assert_eq!(denied.reset_after_us, DAY_US / 2);
    clock.set(Timestamp::from_micros(first + 31 * DAY_US));
    assert!(allows(&store, &[check(&policy, 0, 5)]));
}

/// epam/ai-dial-core #1951, Kong docs PR #6507: quotas that end at midnight where the callers are.
#[test]
fn a_day_in_berlin_has_23_or_25_hours_when_clocks_change() {
    let (store, clock, policy) = by_the_calendar(CalendarUnit::Day, "Europe/Berlin");
    const HOUR_US: u64 = 3_600_000_000;
    // The midnights of 29 March and 25 October 2026.
    for (midnight, hours) in [(1_774_738_800_000_000, 23), (1_792_879_200_000_000, 25)] {
        for (at, left, expected) in [
            (midnight - 1, 1, true),
            (midnight - 1, 1, false),
            (midnight, hours * HOUR_US, true),
            (midnight + hours * HOUR_US - 1, 1, false),
            (midnight + hours * HOUR_US, 24 * HOUR_US, true),
        ] {
            clock.set(Timestamp::from_micros(at));
            let decision = store.decide_now(&[check(&policy, 0, 5)]).unwrap().1[0];
            assert_eq!(decision.verdict == Verdict::Allow, expected, "{at}");
            assert_eq!(decision.reset_after_us, left, "{at}");
        }
    }
}
