//! Policies that count by the answer, on two gateways that share a store.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;

use crate::support::gateway::{Gateway, secret_file};
use crate::support::http::{Connection, get};
use crate::support::origin::Origin;
use crate::support::valkey::Valkey;

/// A login that counts five failures, forgets them after a success if it is to, and a quota that is not charged for
/// errors.
fn config(valkey: &Valkey, upstream: SocketAddr, kind: &str, count: &str) -> String {
    format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"5s\"\non_failure = \"deny\"\n\
         key_secret_file = \"{}\"\n\
         [upstreams.app]\nservers = [\"{upstream}\"]\n\
         [policies.failures]\nkind = \"{kind}\"\nlimit = \"5/d\"\nkey = \"header:x-user\"\n\
         on_missing_key = \"deny\"\ncount = {count}\n\
         [routes.login]\nmatch = {{ path = \"/*\" }}\nupstream = \"app\"\npolicies = [\"failures\"]\n",
        valkey.address(),
        secret_file().display()
    )
}

/// Two gateways with this configuration.
fn two(config: &str) -> [Gateway; 2] {
    let gateways = [config; 2].map(Gateway::start);
    for gateway in &gateways {
        gateway.await_metric("tollgate_store_up", 1.0);
    }
    gateways
}

/// Tries to log in: the path says what the upstream answers.
fn try_in(address: SocketAddr, user: &str, status: u16) -> u16 {
    let mut connection = Connection::open(address);
    let target = format!("/status/{status}");
    connection.ask("POST", &target, &[("x-user", user)]).status
}

const KINDS: [&str; 4] = [
    "fixed-window",
    "sliding-log",
    "sliding-counter",
    "token-bucket",
];

#[test]
fn of_fifty_wrong_passwords_at_once_five_reach_the_upstream() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    for kind in KINDS {
        let gateways = two(&config(
            &valkey,
            origin.address,
            kind,
            "{ status = [401, 403] }",
        ));
        // Right ones are not charged, before or in between.
        for round in 0..12 {
            assert_eq!(
                try_in(gateways[round % 2].address, kind, 200),
                200,
                "{kind}"
            );
        }
        origin.take();
        let together = Arc::new(Barrier::new(50));
        let tries: Vec<_> = (0..50)
            .map(|number: usize| {
                let (address, together) = (gateways[number % 2].address, Arc::clone(&together));
                thread::spawn(move || {
                    let mut connection = Connection::open(address);
                    together.wait();
                    connection
                        .ask("POST", "/status/401", &[("x-user", kind)])
                        .status
                })
            })
            .collect();
        let answers: Vec<_> = tries.into_iter().map(|one| one.join().unwrap()).collect();
        let count = |status| answers.iter().filter(|found| **found == status).count();
        assert_eq!((count(401), count(429)), (5, 45), "{kind}");
        assert_eq!(origin.count(), 5, "{kind}");
        assert_eq!(try_in(gateways[0].address, kind, 200), 429, "{kind}");
        // Nobody else is in the way.
        assert_eq!(try_in(gateways[1].address, "another", 200), 200, "{kind}");
    }
}

/// stefanprodan/AspNetCoreRateLimit #188, xuqingfeng/caddy-rate-limit #32, benwis/tower-governor #34.
#[test]
fn four_wrong_one_right_four_wrong_are_refused_at_the_sixth_failure() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    let gateways = two(&config(
        &valkey,
        origin.address,
        "sliding-log",
        "{ status = [401, 403] }",
    ));
    let told: Vec<_> = [401, 401, 403, 401, 200, 401, 401, 401, 401]
        .into_iter()
        .enumerate()
        .map(|(round, status)| try_in(gateways[round % 2].address, "a", status))
        .collect();
    assert_eq!(told, [401, 401, 403, 401, 200, 401, 429, 429, 429]);

    let resetting = "{ status = [401, 403], reset_on = [200] }";
    let gateways = two(&config(&valkey, origin.address, "sliding-log", resetting));
    let told: Vec<_> = [401, 401, 403, 401, 200, 401, 401, 401, 401, 401, 401]
        .into_iter()
        .enumerate()
        .map(|(round, status)| try_in(gateways[round % 2].address, "b", status))
        .collect();
    assert_eq!(
        told,
        [401, 401, 403, 401, 200, 401, 401, 401, 401, 401, 429]
    );
    for (gateway, units) in gateways.iter().zip([4.0, 5.0]) {
        gateway.await_metric("tollgate_policy_units_total{policy=\"failures\"}", units);
    }
}

/// Kong/kong #510, sourcegraph/sourcegraph-public-snapshot #51879.
#[test]
fn an_upstream_that_fails_costs_nothing() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    let [gateway, other] = two(&config(
        &valkey,
        origin.address,
        "sliding-log",
        "{ not_on = [\"5xx\"] }",
    ));
    for _ in 0..10 {
        assert_eq!(try_in(gateway.address, "a", 503), 503);
    }
    let mut connection = Connection::open(other.address);
    let answer = connection.ask("GET", "/status/503", &[("x-user", "a")]);
    // What is told is what is left once it is given back.
    assert_eq!(
        answer.header("ratelimit").unwrap().split(';').nth(1),
        Some("r=5")
    );
    for left in (0..5).rev() {
        let answer = connection.ask("GET", "/status/200", &[("x-user", "a")]);
        let told = answer.header("ratelimit").unwrap();
        assert_eq!(
            told.split(';').nth(1),
            Some(format!("r={left}").as_str()),
            "{told}"
        );
    }
    assert_eq!(
        connection
            .ask("GET", "/status/200", &[("x-user", "a")])
            .status,
        429
    );

    // Nor does one that is not there.
    let nowhere = crate::support::gateway::free_address();
    let gateway = Gateway::start(&config(
        &valkey,
        nowhere,
        "fixed-window",
        "{ not_on = [\"5xx\"] }",
    ));
    gateway.await_metric("tollgate_store_up", 1.0);
    for _ in 0..10 {
        assert_eq!(try_in(gateway.address, "b", 200), 502);
    }
}

/// Kuadrant/kuadrant-operator #1674.
#[test]
fn what_is_not_found_eats_quota_by_the_policy_and_never_without_a_route() {
    let origin = Origin::start();
    let config = |count: &str| {
        format!(
            "[upstreams.app]\nservers = [\"{}\"]\n\
             [policies.p]\nkind = \"fixed-window\"\nlimit = \"5/d\"\nkey = \"ip\"\ncount = {count}\n\
             [routes.r]\nmatch = {{ path = \"/status/*\" }}\nupstream = \"app\"\npolicies = [\"p\"]\n",
            origin.address
        )
    };
    for (count, refused) in [("\"all\"", true), ("{ not_on = [404] }", false)] {
        let gateway = Gateway::start(&config(count));
        for _ in 0..50 {
            assert_eq!(get(gateway.address, "/elsewhere").status, 404);
        }
        for _ in 0..5 {
            assert_eq!(get(gateway.address, "/status/404").status, 404);
        }
        let expected = if refused { 429 } else { 200 };
        assert_eq!(
            get(gateway.address, "/status/200").status,
            expected,
            "{count}"
        );
    }
}

#[test]
fn who_leaves_before_the_answer_stays_charged_and_who_is_not_handed_on_does_not() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    let gateways = two(&config(
        &valkey,
        origin.address,
        "fixed-window",
        "{ status = [401] }",
    ));
    for number in 1..=5 {
        let mut connection = Connection::open(gateways[0].address);
        let head = "GET /slow/60000 HTTP/1.1\r\nHost: api\r\nx-user: a\r\n\r\n";
        connection.send(head).unwrap();
        origin.await_count(number);
        drop(connection);
    }
    gateways[0].await_metric("tollgate_http_in_flight_requests", 0.0);
    gateways[0].await_metric("tollgate_policy_units_total{policy=\"failures\"}", 5.0);
    assert_eq!(try_in(gateways[1].address, "a", 200), 429);
}

/// The upstream decides by the head, and the client spoils what follows: its own fault is no answer to what it asked.
#[test]
fn a_body_that_is_spoilt_once_the_upstream_has_the_head_is_charged() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    let gateways = two(&config(
        &valkey,
        origin.address,
        "sliding-log",
        "{ status = [401] }",
    ));
    let limited = |gateway: &Gateway| {
        let head = "POST /slow/60000 HTTP/1.1\r\nHost: api\r\nx-user: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n";
        let mut connection = Connection::open(gateway.address);
        connection.send(head).unwrap();
        // It is under way, or denied.
        let mut asked = 0.0;
        for _ in 0..4_000 {
            asked = gateway.metric("tollgate_http_in_flight_requests");
            if asked > 0.0 || connection.is_readable_within(std::time::Duration::from_millis(10)) {
                break;
            }
        }
        assert!(asked > 0.0 || connection.is_readable_within(std::time::Duration::from_millis(10)));
        let _ = connection.send("ZZ\r\n");
        let status = connection.receive(false).map_or(0, |answer| answer.status);
        gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
        status == 429
    };
    let told: Vec<_> = (0..8).map(|round| limited(&gateways[round % 2])).collect();
    assert_eq!(told, [false, false, false, false, false, true, true, true]);
}
