//! TLS to an upstream: what is encrypted is also who it says it is.

use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::gateway::Gateway;
use crate::support::origin::Origin;
use crate::support::raw::{self, Asked};
use crate::support::tls::{Authority, in_front_of};

fn config(upstreams: &[(&str, &str, &str)]) -> String {
    let mut text = String::new();
    for (name, server, more) in upstreams {
        text.push_str(&format!(
            "[upstreams.{name}]\nservers = [\"{server}\"]\nretries = 0\n{more}\n\
             [routes.{name}]\nmatch = {{ path = \"/{name}/*\" }}\nupstream = \"{name}\"\npolicies = [\"p\"]\n"
        ));
    }
    text + "[policies.p]\nkind = \"fixed-window\"\nlimit = \"100000/d\"\nkey = \"ip\"\n"
}

fn at(host: &str, address: SocketAddr) -> String {
    format!("{host}:{}", address.port())
}

fn believes(authority: &Authority, more: &str) -> String {
    format!("tls = {{ ca = \"{}\"{more} }}", authority.file().display())
}

#[test]
fn a_server_with_a_certificate_of_the_authority_gets_requests() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let server = |name: &str| in_front_of(origin.address.to_string(), authority.issue(name), None);
    let (by_address, by_name, other) = (
        server("127.0.0.1"),
        server("localhost"),
        server("a.example"),
    );
    let tls = believes(&authority, "");
    let named = believes(&authority, ", sni = \"a.example\"");
    let gateway = Gateway::start(&config(&[
        ("address", &at("127.0.0.1", by_address), &tls),
        ("name", &at("localhost", by_name), &tls),
        ("sni", &at("127.0.0.1", other), &named),
    ]));
    for path in ["/address/", "/name/", "/sni/", "/address/again"] {
        assert_eq!(gateway.get(path).status, 200, "{path}");
    }
    let seen = origin.seen();
    // What the client did, not what we do.
    assert!(
        seen.iter()
            .all(|seen| seen.lines("x-forwarded-proto") == ["http"])
    );
}

#[test]
fn one_connection_serves_request_after_request() {
    const REQUESTS: usize = 20;
    let connections = Arc::new(AtomicUsize::new(0));
    let opened = Arc::clone(&connections);
    let upstream = raw::server(REQUESTS, move |mut asked: Asked| {
        opened.fetch_add(1, Ordering::SeqCst);
        loop {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            asked.stream.get_mut().write_all(answer)?;
            let mut line = String::new();
            while line != "\r\n" {
                line.clear();
                if asked.stream.read_line(&mut line)? == 0 {
                    return Ok(());
                }
            }
        }
    });
    let authority = Authority::new();
    let server = in_front_of(upstream.to_string(), authority.issue("127.0.0.1"), None);
    let gateway = Gateway::start(&config(&[(
        "app",
        &server.to_string(),
        &believes(&authority, ""),
    )]));
    for _ in 0..REQUESTS {
        assert_eq!(gateway.get("/app/").status, 200);
    }
    // One that is not back in time is not waited for.
    let opened = connections.load(Ordering::SeqCst);
    assert!(opened < REQUESTS / 2, "{opened} connections");
}

#[test]
fn another_authority_another_name_and_no_tls_at_all_are_told_and_are_502() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let server = |name: &str| in_front_of(origin.address.to_string(), authority.issue(name), None);
    let (good, misnamed) = (server("127.0.0.1"), server("a.example"));
    let believed = believes(&authority, "");
    for (address, tls, complaint) in [
        (good, believes(&Authority::new(), ""), "BadSignature"),
        (misnamed, believed.clone(), "not valid for name"),
        (origin.address, believed, "no TLS to the upstream"),
    ] {
        let gateway = Gateway::start(&config(&[("app", &address.to_string(), &tls)]));
        for _ in 0..3 {
            assert_eq!(gateway.get("/app/").status, 502, "{complaint}");
        }
        let said = gateway.await_said(complaint);
        assert_eq!(said.matches("no TLS to the upstream").count(), 1, "{said}");
        let log = gateway.access_log();
        assert!(!log.contains("500"), "{log}");
    }
    assert_eq!(origin.count(), 0);
}

#[test]
fn whom_the_machine_believes_is_believed_without_a_file_of_our_own() {
    let (origin, authority, other) = (Origin::start(), Authority::new(), Authority::new());
    let server = in_front_of(
        origin.address.to_string(),
        authority.issue("127.0.0.1"),
        None,
    );
    let config = config(&[("app", &server.to_string(), "tls = {}")]);
    let status = |believed: &Authority| {
        let gateway = Gateway::start_believing(&config, &believed.file());
        gateway.get("/app/").status
    };
    assert_eq!([status(&authority), status(&other)], [200, 502]);
}

#[test]
fn a_connection_that_was_made_unverified_serves_no_upstream_that_verifies() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let server = in_front_of(
        origin.address.to_string(),
        authority.issue("a.example"),
        None,
    );
    let server = server.to_string();
    let lax = believes(&authority, ", verify = false");
    let strict = believes(&authority, "");
    let gateway = Gateway::start(&config(&[
        ("lax", &server, &lax),
        ("strict", &server, &strict),
    ]));
    for _ in 0..3 {
        assert_eq!(gateway.get("/lax/").status, 200);
        assert_eq!(gateway.get("/strict/").status, 502);
    }
    // Nor does one of before: the same upstream verifies from now on.
    assert!(gateway.reload(&config(&[("lax", &server, &strict)])));
    assert_eq!(gateway.get("/lax/").status, 502);
    assert!(gateway.reload(&config(&[("lax", &server, &lax)])));
    assert_eq!(gateway.get("/lax/").status, 200);
}

#[test]
fn a_reload_takes_over_another_authority() {
    let (origin, authority, other) = (Origin::start(), Authority::new(), Authority::new());
    let server = in_front_of(
        origin.address.to_string(),
        authority.issue("127.0.0.1"),
        None,
    );
    let server = server.to_string();
    let with = |authority: &Authority| config(&[("app", &server, &believes(authority, ""))]);
    let gateway = Gateway::start(&with(&authority));
    assert_eq!(gateway.get("/app/").status, 200);
    assert!(gateway.reload(&with(&other)));
    assert_eq!(gateway.get("/app/").status, 502);
    assert!(gateway.reload(&with(&authority)));
    assert_eq!(gateway.get("/app/").status, 200);
}

#[test]
fn checks_speak_tls_as_requests_do() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let server = |name: &str| in_front_of(origin.address.to_string(), authority.issue(name), None);
    let (good, misnamed) = (server("127.0.0.1"), server("a.example"));
    let health = format!(
        "{}\nhealth = {{ path = \"/healthz\", interval = \"100ms\", timeout = \"10s\" }}",
        believes(&authority, "")
    );
    let connect = health.replace("path = \"/healthz\"", "tcp = true");
    let gateway = Gateway::start(&config(&[
        ("good", &good.to_string(), &health),
        ("misnamed", &misnamed.to_string(), &connect),
    ]));
    gateway.await_metric(
        &format!("tollgate_upstream_healthy{{server=\"{misnamed}\",upstream=\"misnamed\"}}"),
        0.0,
    );
    let said = gateway.await_said("not valid for name");
    assert!(said.contains("the server fails its checks"), "{said}");
    origin.await_count(2);
    assert!(origin.seen().iter().all(|seen| seen.target == "/healthz"));
    gateway.await_metric(
        &format!("tollgate_upstream_healthy{{server=\"{good}\",upstream=\"good\"}}"),
        1.0,
    );
}
