//! A leaky bucket's request truly waits, and nothing is lost of those who leave.

use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::crowd::{at_once, count};
use crate::support::gateway::Gateway;
use crate::support::http::Connection;
use crate::support::origin::Origin;

fn config(origin: &Origin, policy: &str, server: &str) -> String {
    format!(
        r#"
[server]
{server}
[upstreams.api]
servers = ["{}"]
[policies.smooth]
kind = "leaky-bucket"
key = "global"
{policy}
[routes.all]
match = {{ path = "/*" }}
upstream = "api"
policies = ["smooth"]
"#,
        origin.address
    )
}

#[test]
fn requests_reach_the_upstream_one_after_the_other() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, "limit = \"20/s\"\nburst = 10", ""));
    let responses = at_once(&[gateway.address], 30, "/");
    let allowed = count(&responses, 200);
    // 10 at once, and what drained while the 30 came.
    assert!((10..30).contains(&allowed), "{allowed}");
    assert_eq!(count(&responses, 429), 30 - allowed);
    let mut arrivals: Vec<_> = origin.seen().iter().map(|seen| seen.at).collect();
    arrivals.sort();
    let first_to_last = arrivals[allowed - 1].saturating_duration_since(arrivals[0]);
    let gaps = u32::try_from(allowed - 1).unwrap();
    // 50 ms each; the first may have been a little late on its way.
    assert!(
        first_to_last > Duration::from_millis(50) * gaps - Duration::from_millis(45),
        "{allowed} in {first_to_last:?}"
    );
    assert!(gateway.metric("tollgate_queue_wait_seconds_count{policy=\"smooth\"}") >= 1.0);
    gateway.await_metric("tollgate_queue_depth{policy=\"smooth\"}", 0.0);
}

#[test]
fn who_would_wait_longer_than_max_wait_is_denied() {
    let origin = Origin::start();
    let policy = "limit = \"1/min\"\nburst = 10\nmax_wait = \"5s\"";
    let gateway = Gateway::start(&config(&origin, policy, ""));
    assert_eq!(gateway.get("/").status, 200);
    let denied = gateway.get("/");
    assert_eq!(denied.status, 429);
    // 60 s until the first has drained, of which 5 s may be waited.
    let wait = denied.retry_after().unwrap();
    assert!((54..=61).contains(&wait), "{wait}");
}

#[test]
fn a_client_that_leaves_the_queue_is_noticed_and_never_reaches_the_upstream() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, "limit = \"1/h\"\nburst = 10", ""));
    assert_eq!(gateway.get("/first").status, 200);
    for request in [
        "GET /gone HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /gone HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
    ] {
        let mut leaving = Connection::open(gateway.address);
        leaving.send(request).unwrap();
        gateway.await_metric("tollgate_queue_depth{policy=\"smooth\"}", 1.0);
        drop(leaving);
        gateway.await_metric("tollgate_queue_depth{policy=\"smooth\"}", 0.0);
    }
    gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_body_that_came_while_its_request_waited_is_sent_on() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, "limit = \"5/s\"\nburst = 10", ""));
    for body in [
        String::new(),
        "x".repeat(5),
        "y".repeat(60_000),
        "z".repeat(300_000),
    ] {
        for _ in 0..2 {
            let mut connection = Connection::open(gateway.address);
            let head = format!(
                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            connection.send(head).unwrap();
            connection.send(&body).unwrap();
            assert_eq!(connection.receive(false).unwrap().status, 200);
            assert_eq!(origin.seen().last().unwrap().body, body.as_bytes());
        }
    }
}

#[test]
fn what_the_shared_store_denies_takes_no_place_in_a_queue_of_this_process() {
    let valkey = crate::support::valkey::Valkey::start();
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        r#"
[store]
kind = "valkey"
url = "valkey://{}"
timeout = "10s"
key_secret_file = "{}"
[upstreams.api]
servers = ["{}"]
[policies.smooth]
kind = "leaky-bucket"
limit = "1/h"
burst = 50
key = "global"
store = "local"
[policies.user]
kind = "token-bucket"
limit = "1/300d"
key = "header:x-user"
on_missing_key = "deny"
[routes.all]
match = {{ path = "/*" }}
upstream = "api"
policies = ["smooth", "user"]
"#,
        valkey.address(),
        crate::support::gateway::secret_file().display(),
        origin.address
    ));
    gateway.await_metric("tollgate_store_up", 1.0);
    let ask =
        |user: &str| crate::support::http::get_with(gateway.address, "/", &[("x-user", user)]);
    assert_eq!(ask("attacker").status, 200);
    let address = gateway.address;
    let attackers: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                let mut connection = Connection::open(address);
                for _ in 0..30 {
                    let denied = connection.ask("GET", "/", &[("x-user", "attacker")]);
                    assert_eq!(denied.status, 429);
                }
            })
        })
        .collect();
    for attacker in attackers {
        attacker.join().unwrap();
    }
    // One place is taken, by the one that passed: the next one waits for it, and nobody else does.
    let mut victim = Connection::open(gateway.address);
    victim
        .send("GET / HTTP/1.1\r\nHost: a\r\nx-user: victim\r\n\r\n")
        .unwrap();
    gateway.await_metric("tollgate_queue_depth{policy=\"smooth\"}", 1.0);
    let units = gateway.metric("tollgate_policy_units_total{policy=\"smooth\"}");
    assert!((units - 2.0).abs() < f64::EPSILON, "{units}");
    let left = ask("attacker");
    let field = left.header("ratelimit").unwrap();
    assert!(field.contains("\"smooth\";r=48"), "{field}");
}

#[test]
fn what_takes_nothing_waits_for_nobody() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        r#"
[upstreams.api]
servers = ["{}"]
[policies.smooth]
kind = "leaky-bucket"
limit = "1/h"
burst = 10
key = "global"
[routes.look]
match = {{ path = "/look" }}
upstream = "api"
policies = [{{ use = "smooth", cost = 0 }}]
[routes.all]
match = {{ path = "/*" }}
upstream = "api"
policies = ["smooth"]
"#,
        origin.address
    ));
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(gateway.get("/look").status, 200);
}

#[test]
fn the_fields_invite_no_more_than_may_wait() {
    let origin = Origin::start();
    let policy = "limit = \"1/min\"\nburst = 60\nmax_wait = \"3s\"";
    let gateway = Gateway::start(&config(&origin, policy, ""));
    let first = gateway.get("/");
    assert_eq!(first.status, 200);
    assert!(
        first.header("ratelimit").unwrap().contains(";r=0"),
        "{first:?}"
    );
    assert_eq!(gateway.get("/").status, 429);
}

#[test]
fn no_more_may_wait_than_there_is_room_for_and_the_rest_is_not_charged() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(
        &origin,
        "limit = \"1/h\"\nburst = 10",
        "max_waiting = 1",
    ));
    assert_eq!(gateway.get("/").status, 200);
    let mut waiting = Connection::open(gateway.address);
    waiting.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    gateway.await_metric("tollgate_queue_depth{policy=\"smooth\"}", 1.0);
    let began = monotonic_now();
    for _ in 0..20 {
        let denied = gateway.get("/");
        assert_eq!(denied.status, 429);
        assert_eq!(
            denied.json()["violated-policies"],
            serde_json::json!(["smooth"])
        );
        // Nobody may wait: it may pass when it need not, once both have drained.
        let wait = denied.retry_after().unwrap();
        assert!((7100..=7300).contains(&wait), "{wait}");
    }
    assert!(monotonic_now().saturating_duration_since(began) < Duration::from_secs(10));
    let units = gateway.metric("tollgate_policy_units_total{policy=\"smooth\"}");
    assert!((units - 2.0).abs() < f64::EPSILON, "{units}");
}
