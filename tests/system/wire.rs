//! The gateway's answers as bytes on a connection.

use std::time::Duration;

use crate::support::gateway::Gateway;
use crate::support::http::{Connection, get_with};
use crate::support::origin::Origin;

fn gateway(origin: &Origin, more: &str) -> Gateway {
    Gateway::start(&format!(
        r#"
[upstreams.api]
servers = ["{}"]
[policies.two]
kind = "token-bucket"
limit = "2/h"
key = "header:x-user"
on_missing_key = "skip"
[routes.all]
match = {{ path = "/*" }}
upstream = "api"
policies = ["two"]
{more}
"#,
        origin.address
    ))
}

const ANN: [(&str, &str); 1] = [("x-user", "ann")];

#[test]
fn allowed_and_denied_answers_tell_the_limit_and_what_is_left() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "[headers]\nretry_after_jitter = \"0%\"");
    let mut connection = Connection::open(gateway.address);
    let mut left = Vec::new();
    for _ in 0..4 {
        let response = connection.ask("GET", "/", &ANN);
        assert_eq!(
            response.header("ratelimit-policy"),
            Some("\"two\";q=2;w=3600")
        );
        let field = response.header("ratelimit").unwrap();
        let item = field.strip_prefix("\"two\";r=").unwrap();
        left.push(item.split(';').next().unwrap().to_owned());
        assert!(response.header("x-request-id").is_some());
    }
    assert_eq!(left, ["1", "0", "0", "0"]);
    // The same connection served them all, and two reached the upstream.
    assert_eq!(origin.count(), 2);

    let denied = connection.ask("GET", "/", &ANN);
    assert_eq!(denied.status, 429);
    assert_eq!(
        denied.header("content-type"),
        Some("application/problem+json")
    );
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert!(denied.header("server").is_none());
    let wait = denied.retry_after().unwrap();
    assert!((1790..=1800).contains(&wait), "{wait}");
    let problem = denied.json();
    assert_eq!(
        problem["type"],
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    );
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], serde_json::json!(["two"]));
    assert_eq!(problem["retry_after_seconds"], wait);
}

#[test]
fn a_denied_head_has_no_body_and_the_connection_goes_on() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "");
    let mut connection = Connection::open(gateway.address);
    for _ in 0..2 {
        assert_eq!(connection.ask("HEAD", "/", &ANN).status, 200);
    }
    let denied = connection.ask("HEAD", "/", &ANN);
    assert_eq!(denied.status, 429);
    assert!(denied.retry_after().is_some());
    // Were there a body, this would read it as an answer.
    assert_eq!(connection.ask("GET", "/", &[]).status, 200);
}

#[test]
fn a_body_that_nobody_read_breaks_neither_the_denial_nor_the_connection() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "");
    for _ in 0..2 {
        get_with(gateway.address, "/", &ANN);
    }
    let mut connection = Connection::open(gateway.address);
    for length in [0, 10, 100_000] {
        let head = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nx-user: ann\r\nContent-Length: {length}\r\n\r\n"
        );
        connection.send(head).unwrap();
        connection.send("x".repeat(length)).unwrap();
        assert_eq!(connection.receive(false).unwrap().status, 429, "{length}");
    }
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nx-user: ann\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    connection.send(chunked).unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 429);
    assert_eq!(connection.ask("GET", "/", &[]).status, 200);
}

#[test]
fn who_expects_a_continue_gets_the_denial_instead() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "");
    for _ in 0..2 {
        get_with(gateway.address, "/", &ANN);
    }
    let mut connection = Connection::open(gateway.address);
    connection
        .send("POST / HTTP/1.1\r\nHost: a\r\nx-user: ann\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n")
        .unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 429);
    assert!(connection.is_closed_within(Duration::from_secs(10)));
}

#[test]
fn the_upstreams_own_fields_stay_and_ours_follow() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "");
    let merged = get_with(
        gateway.address,
        "/fields",
        &[
            ("x-user", "ann"),
            ("x-answer", "RateLimit-Policy: \"theirs\";q=7;w=60"),
            ("x-answer", "RateLimit: \"theirs\";r=3;t=9"),
        ],
    );
    let both = |name: &str| merged.lines(name).collect::<Vec<_>>().join(", ");
    assert_eq!(
        both("ratelimit-policy"),
        "\"theirs\";q=7;w=60, \"two\";q=2;w=3600"
    );
    assert!(
        both("ratelimit").starts_with("\"theirs\";r=3;t=9, \"two\";r=1"),
        "{merged:?}"
    );

    let dropped = get_with(
        gateway.address,
        "/fields",
        &[("x-user", "ann"), ("x-answer", "RateLimit: limit=10, <<<")],
    );
    assert!(
        dropped
            .header("ratelimit")
            .unwrap()
            .starts_with("\"two\";r=0")
    );
    gateway.await_metric(
        "tollgate_upstream_header_malformed_total{upstream=\"api\"}",
        1.0,
    );
}

#[test]
fn an_upstreams_own_429_passes_through() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "");
    let response = get_with(gateway.address, "/status/429", &[]);
    assert_eq!((response.status, response.text().as_str()), (429, "ok"));
    gateway.await_metric("tollgate_upstream_throttled_total{upstream=\"api\"}", 1.0);
}

#[test]
fn a_reject_puts_the_denial_in_the_operators_words() {
    let origin = Origin::start();
    let more = r#"
[policies.login]
kind = "fixed-window"
limit = "1/h"
anchor = "first-request"
key = "ip"
reject = "login"
[routes.login]
match = { path = "/login" }
upstream = "api"
policies = ["login"]
[rejects.login]
status = 420
title = "Slow down"
detail = "{policy}: {limit} per {window}, wait {retry_after} s"
headers = { x-hint = "later" }
cors = ["https://shop.example"]
[headers]
legacy = "seconds"
retry_after_jitter = "0%"
"#;
    let gateway = gateway(&origin, more);
    assert_eq!(gateway.get("/login").status, 200);
    let denied = get_with(
        gateway.address,
        "/login",
        &[("origin", "https://shop.example")],
    );
    assert_eq!(denied.status, 420);
    assert_eq!(denied.header("x-hint"), Some("later"));
    assert_eq!(
        denied.header("access-control-allow-origin"),
        Some("https://shop.example")
    );
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    let problem = denied.json();
    assert_eq!(problem["title"], "Slow down");
    let wait = denied.retry_after().unwrap();
    assert_eq!(
        problem["detail"],
        format!("login: 1 per 1 h, wait {wait} s")
    );
}

#[test]
fn headers_off_sends_none() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "[headers]\nratelimit = \"off\"");
    for expected in [200, 200, 429] {
        let response = get_with(gateway.address, "/", &ANN);
        assert_eq!(response.status, expected);
        assert!(response.header("ratelimit").is_none());
        assert!(response.header("ratelimit-policy").is_none());
    }
}

#[test]
fn an_upstream_that_is_not_there_is_a_502_and_one_that_is_slow_a_504() {
    let origin = Origin::start();
    let dead = crate::support::gateway::free_address();
    let more = format!(
        r#"
[upstreams.dead]
servers = ["{dead}"]
[upstreams.slow]
servers = ["{}"]
timeouts = {{ read = "100ms" }}
[upstreams.half]
servers = ["{dead}", "{}"]
[routes.dead]
match = {{ path = "/dead" }}
upstream = "dead"
[routes.slow]
match = {{ path = "/slow/3000" }}
upstream = "slow"
[routes.half]
match = {{ path = "/half" }}
upstream = "half"
"#,
        origin.address, origin.address
    );
    let gateway = gateway(&origin, &more);
    let dead = gateway.get("/dead");
    assert_eq!(dead.status, 502);
    assert_eq!(dead.json()["status"], 502);
    assert!(!dead.text().contains("127.0.0.1"), "{}", dead.text());
    assert_eq!(gateway.get("/slow/3000").status, 504);
    // Another server is tried where one cannot be connected to: a POST too, since nothing was sent.
    for _ in 0..4 {
        assert_eq!(gateway.get("/half").status, 200);
        let mut connection = Connection::open(gateway.address);
        connection
            .send("POST /half HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc")
            .unwrap();
        assert_eq!(connection.receive(false).unwrap().status, 200);
        assert_eq!(origin.seen().last().unwrap().body, b"abc");
    }
}
