//! Odd and hostile requests: a clear answer, and the gateway lives on.

use std::time::Duration;

use crate::support::gateway::Gateway;
use crate::support::http::Connection;
use crate::support::origin::Origin;

fn gateway(origin: &Origin) -> Gateway {
    Gateway::start(&format!(
        r#"
[server]
limits = {{ max_header = "8KiB", max_body = "1KiB", header_timeout = "1s" }}
[upstreams.api]
servers = ["{}"]
[policies.login]
kind = "fixed-window"
limit = "2/d"
anchor = "first-request"
key = "ip"
[routes.login]
match = {{ host = "api.example", path = "/v1/login", methods = ["POST"] }}
upstream = "api"
policies = ["login"]
[routes.v1]
match = {{ host = "api.example", path = "/v1/*" }}
upstream = "api"
"#,
        origin.address
    ))
}

/// The status of what is answered to these very bytes; `None` where the connection is closed without an answer.
fn status_of(gateway: &Gateway, bytes: &[u8]) -> Option<u16> {
    let mut connection = Connection::open(gateway.address);
    connection.send(bytes).unwrap();
    connection
        .receive(false)
        .ok()
        .map(|response| response.status)
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    let long = format!(
        "GET /v1/a HTTP/1.1\r\nHost: api.example\r\nx: {}\r\n\r\n",
        "y".repeat(9000)
    );
    let cases: [(&[u8], Option<u16>); 11] = [
        (b"GET /v1/a HTTP/1.1\r\nHost: api.example\r\n\r\n", Some(200)),
        (b"GET /v1/a HTTP/1.1\r\n\r\n", Some(400)),
        (b"GET /v1/%zz HTTP/1.1\r\nHost: api.example\r\n\r\n", Some(400)),
        (b"GET /v1/%00 HTTP/1.1\r\nHost: api.example\r\n\r\n", Some(400)),
        (b"GET /v1/a HTTP/1.1\r\nHost: \xff\r\n\r\n", Some(400)),
        (b"GET /other HTTP/1.1\r\nHost: api.example\r\n\r\n", Some(404)),
        (b"GET /v1/a HTTP/1.1\r\nHost: other.example\r\n\r\n", Some(404)),
        (long.as_bytes(), Some(431)),
        (b"POST /v1/a HTTP/1.1\r\nHost: api.example\r\nContent-Length: 2000\r\n\r\n", Some(413)),
        (b"POST /v1/a HTTP/1.1\r\nHost: api.example\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", Some(400)),
        (b"garbage\r\n\r\n", Some(400)),
    ];
    for (bytes, expected) in cases {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
        assert_eq!(status_of(&gateway, bytes), expected, "{shown:?}");
    }
    assert_eq!(origin.count(), 1);
}

#[test]
fn what_cannot_be_parsed_is_refused_in_our_name_and_recorded() {
    let origin = Origin::start();
    let mut gateway = gateway(&origin);
    for (bytes, status) in [
        (&b"garbage\r\n\r\n"[..], 400),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ] {
        let mut connection = Connection::open(gateway.address);
        // On a connection that has served one before, too.
        assert_eq!(connection.ask("GET", "/v1/a", &[]).status, 200);
        connection.send(bytes).unwrap();
        let response = connection.receive(false).unwrap();
        assert_eq!(response.status, status);
        assert!(response.header("server").is_none(), "{response:?}");
        assert_eq!(response.json()["status"], status);
        assert!(connection.is_closed_within(Duration::from_secs(10)));
    }
    let refused = gateway.metric(
        "tollgate_http_requests_total{code=\"400\",method=\"_OTHER\",route=\"_unmatched\"}",
    );
    assert!((refused - 2.0).abs() < f64::EPSILON, "{refused}");
    gateway.stop();
    let log = gateway.access_log();
    assert_eq!(log.matches("cannot be parsed").count(), 3, "{log}");
}

#[test]
fn a_connection_outlives_the_deadline_of_its_heads_whoever_answers() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    // A head may take a second here; all three are answered without the upstream, or with it.
    for (target, status) in [("/v1/a", 200), ("/none", 404), ("/v1/%zz", 400)] {
        let mut connection = Connection::open(gateway.address);
        let until = tollgate::clock::monotonic_now() + Duration::from_millis(2500);
        while tollgate::clock::monotonic_now() < until {
            assert_eq!(
                connection.ask("GET", target, &[]).status,
                status,
                "{target}"
            );
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_target_or_a_host_that_could_be_read_otherwise_is_refused() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        r#"
[upstreams.api]
servers = ["{}"]
[routes.secret]
match = {{ host = "secret.example", path = "/*" }}
respond = {{ status = 403 }}
[routes.rest]
match = {{ path = "/*" }}
upstream = "api"
"#,
        origin.address
    ));
    for (request, status) in [
        ("GET http://secret.example/z HTTP/1.0\r\n\r\n", 400),
        (
            "GET http://secret.example/z HTTP/1.0\r\nHost: secret.example\r\n\r\n",
            403,
        ),
        (
            "GET http://secret.example/z HTTP/1.1\r\nHost: secret.example\r\n\r\n",
            403,
        ),
        (
            "GET http://open.example/z HTTP/1.1\r\nHost: open.example\r\n\r\n",
            200,
        ),
        ("GET v1/login HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("get /z HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("PURGE /z HTTP/1.1\r\nHost: a\r\n\r\n", 200),
        ("GET x:/v1/login HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        ("GET /z HTTP/1.0\r\n\r\n", 200),
        ("GET /z HTTP/1.1\r\nHost: SECRET.example.:80\r\n\r\n", 403),
        ("GET /z HTTP/1.1\r\nHost: secret.example/\r\n\r\n", 400),
        ("GET /z HTTP/1.1\r\nHost: secret.example, x\r\n\r\n", 400),
        ("GET /z HTTP/1.1\r\nHost: secret.example..\r\n\r\n", 400),
        ("GET /z HTTP/1.1\r\nHost: secret%2eexample\r\n\r\n", 400),
        ("GET /z HTTP/1.1\r\nHost: secret.example:x\r\n\r\n", 400),
        ("GET /z HTTP/1.1\r\nHost: [2001:db8::1]:8080\r\n\r\n", 200),
        ("GET /z HTTP/1.1\r\nHost: [junk]\r\n\r\n", 400),
    ] {
        assert_eq!(
            status_of(&gateway, request.as_bytes()),
            Some(status),
            "{request:?}"
        );
    }
    // An origin is sent a path, whatever form the target came in.
    for seen in origin.seen() {
        assert_eq!(seen.target, "/z");
    }
}

#[test]
fn a_routes_time_bounds_a_body_that_drips() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "[upstreams.api]\nservers = [\"{}\"]\n[routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"api\"\ntimeout = \"1s\"\n",
        origin.address
    ));
    let mut connection = Connection::open(gateway.address);
    connection
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        .unwrap();
    let cut = (0..200).any(|_| {
        connection.send("x").is_err() || connection.is_readable_within(Duration::from_millis(50))
    });
    assert!(cut, "a body may take for ever");
    gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
}

#[test]
fn an_old_client_gets_no_chunks_and_its_connection_closed() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    let mut connection = Connection::open(gateway.address);
    connection
        .send("GET /v1/until-close HTTP/1.0\r\nHost: api.example\r\n\r\n")
        .unwrap();
    let response = connection.receive(false).unwrap();
    assert!(
        response.header("transfer-encoding").is_none(),
        "{response:?}"
    );
    assert_eq!(response.text(), "ok");
    // A new one gets them, and keeps its connection.
    let mut connection = Connection::open(gateway.address);
    for _ in 0..2 {
        assert_eq!(connection.ask("GET", "/v1/until-close", &[]).text(), "ok");
    }
    // Who asks for an end gets it.
    let response = connection.ask("GET", "/v1/a", &[("connection", "close")]);
    assert_eq!(response.header("connection"), Some("close"));
    assert!(connection.is_closed_within(Duration::from_secs(10)));
}

#[test]
fn a_body_that_grows_past_its_limit_is_cut_off() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    let chunk = format!("400\r\n{}\r\n", "x".repeat(0x400));
    let request = format!(
        "POST /v1/a HTTP/1.1\r\nHost: api.example\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}{chunk}0\r\n\r\n"
    );
    assert_eq!(status_of(&gateway, request.as_bytes()), Some(413));
    assert_eq!(
        status_of(&gateway, b"GET /v1/a HTTP/1.1\r\nHost: api.example\r\n\r\n"),
        Some(200)
    );
}

#[test]
fn no_spelling_of_a_path_evades_its_limit() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    let spellings = [
        "/v1/login",
        "/v1//login",
        "/v1/login/",
        "/v1/./login",
        "/v1/x/../login",
        "/v1/%6Cogin",
        "/v1/%6cogin",
        "//v1/login",
        "/v1/x/%2e%2e/login",
        "/V1/LOGIN",
        "/v1/login?x=1",
    ];
    let mut allowed = 0;
    for spelling in spellings {
        for _ in 0..2 {
            let mut connection = Connection::open(gateway.address);
            let response = connection.ask("POST", spelling, &[("content-length", "0")]);
            assert!(
                matches!(response.status, 200 | 429),
                "{spelling}: {response:?}"
            );
            allowed += usize::from(response.status == 200);
        }
    }
    assert_eq!(allowed, 2);
    assert_eq!(origin.count(), 2);
}

#[test]
fn a_head_that_drips_is_cut_off_and_a_silent_connection_too() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    let mut silent = Connection::open(gateway.address);
    let mut dripping = Connection::open(gateway.address);
    let cut = b"GET /v1/a HTTP/1.1\r\nHost: api.example\r\nx-slow: yes\r\n"
        .iter()
        .cycle()
        .take(400)
        .any(|byte| {
            dripping.send([*byte]).is_err()
                || dripping.is_readable_within(Duration::from_millis(50))
        });
    assert!(cut, "a head may take for ever");
    assert!(dripping.is_closed_within(Duration::from_secs(10)));
    assert!(silent.is_closed_within(Duration::from_secs(10)));
    // A connection that was served keeps its deadline for the next head.
    let mut kept = Connection::open(gateway.address);
    assert_eq!(kept.ask("GET", "/v1/a", &[]).status, 200);
    kept.send("GET /v1/a HT").unwrap();
    assert_eq!(kept.receive(false).unwrap().status, 408);
    assert!(kept.is_closed_within(Duration::from_secs(10)));
}

#[test]
fn a_flood_of_connections_is_cut_off_counted_and_leaves_those_who_were_there_alone() {
    for (caps, trusted, reason) in [
        ("max_connections = 8", "", "total"),
        ("max_connections_per_ip = 8", "", "address"),
        // Behind a proxy that is trusted, everybody has its address: only the whole is capped.
        (
            "max_connections = 8\nmax_connections_per_ip = 1",
            "[client_ip]\ntrusted_proxies = [\"127.0.0.0/8\"]",
            "total",
        ),
    ] {
        let gateway = Gateway::start(&format!(
            "[server]\n{caps}\n{trusted}\n[routes.all]\nmatch = {{ path = \"/*\" }}\nrespond = {{ status = 204 }}\n"
        ));
        gateway.await_metric("tollgate_connections", 0.0);
        let mut held: Vec<_> = (0..8).map(|_| Connection::open(gateway.address)).collect();
        for connection in &mut held {
            assert_eq!(connection.ask("GET", "/", &[]).status, 204);
        }
        for _ in 0..50 {
            let mut refused = Connection::open(gateway.address);
            assert!(refused.try_ask("GET", "/", &[]).is_err());
        }
        for connection in &mut held {
            assert_eq!(connection.ask("GET", "/", &[]).status, 204);
        }
        let series = format!("tollgate_connections_refused_total{{reason=\"{reason}\"}}");
        // The probe that found the gateway ready may have been one of them.
        assert!(gateway.metric(&series) >= 50.0);
        held.clear();
        gateway.await_metric("tollgate_connections", 0.0);
        assert_eq!(gateway.get("/").status, 204);
    }
}

#[test]
fn requests_in_one_packet_are_answered_in_order() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    let mut connection = Connection::open(gateway.address);
    let one = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: api.example\r\n\r\n");
    connection
        .send([one("/v1/status/201"), one("/none"), one("/v1/a")].concat())
        .unwrap();
    for expected in [200, 404, 200] {
        assert_eq!(connection.receive(false).unwrap().status, expected);
    }
}

#[test]
fn a_flood_of_nonsense_leaves_nothing_behind() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    for seed in 0..200_u64 {
        let mut bytes = Vec::new();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for _ in 0..(seed % 64) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes.push(state.to_be_bytes()[3]);
        }
        bytes.extend_from_slice(b"\r\n\r\n");
        let mut connection = Connection::open(gateway.address);
        let _ = connection.send(&bytes);
    }
    gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
    assert_eq!(
        status_of(&gateway, b"GET /v1/a HTTP/1.1\r\nHost: api.example\r\n\r\n"),
        Some(200)
    );
}
