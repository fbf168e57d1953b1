//! TLS to clients: which certificate they see, and that what holds in the clear holds for them.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use rustls::version::{TLS12, TLS13};

use crate::support::gateway::{Gateway, LISTENER, scratch, tollgate};
use crate::support::http::{Connection, Encrypted};
use crate::support::origin::Origin;
use crate::support::raw::{self, Asked};
use crate::support::tls::{Authority, Identity};

const HANDSHAKES: &str = "tollgate_bad_requests_total{reason=\"tls_handshake\"}";

/// The files that a gateway shows, as those of one identity after the other.
struct Shown {
    cert: PathBuf,
    key: PathBuf,
}

impl Shown {
    fn new(identity: &Identity) -> Self {
        let folder = scratch();
        let shown = Self {
            cert: folder.join("tls.crt"),
            key: folder.join("tls.key"),
        };
        shown.put(identity);
        shown
    }

    fn put(&self, identity: &Identity) {
        fs::copy(&identity.cert, &self.cert).unwrap();
        fs::copy(&identity.key, &self.key).unwrap();
    }

    fn line(&self) -> String {
        format!(
            "tls = {{ cert = \"{}\", key = \"{}\" }}",
            self.cert.display(),
            self.key.display()
        )
    }
}

/// The same, over TLS by this line of the listener's.
fn over_tls(config: &str, line: &str) -> String {
    format!("{config}{LISTENER}{line}\n")
}

fn config(origin: &Origin, server: &str) -> String {
    config_to(origin.address, server)
}

fn config_to(upstream: SocketAddr, server: &str) -> String {
    format!(
        "[server]\n{server}\n[upstreams.app]\nservers = [\"{upstream}\"]\n\
         [policies.few]\nkind = \"fixed-window\"\nlimit = \"3/300d\"\nanchor = \"first-request\"\nkey = \"ip\"\n\
         [routes.few]\nmatch = {{ path = \"/few\" }}\nupstream = \"app\"\npolicies = [\"few\"]\n\
         [policies.p]\nkind = \"fixed-window\"\nlimit = \"100000/d\"\nkey = \"ip\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"app\"\npolicies = [\"p\"]\n"
    )
}

#[test]
fn a_client_is_served_over_tls_as_in_the_clear() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let identity = authority.issue("gateway.example");
    let shown = Shown::new(&identity);
    let mut gateway = Gateway::start(&over_tls(&config(&origin, ""), &shown.line()));
    let mut client = Encrypted::over_tls(gateway.address, "gateway.example", &authority).unwrap();
    assert_eq!(client.shown(), identity.der());
    assert_eq!(client.alpn(), Some("http/1.1".to_owned()));
    for _ in 0..2 {
        let answer = client.ask("GET", "/", &[("x-forwarded-proto", "http")]);
        assert_eq!((answer.status, &*answer.body), (200, &b"ok"[..]));
    }
    let seen = origin.take();
    assert_eq!(seen.len(), 2);
    for seen in seen {
        assert_eq!(seen.lines("x-forwarded-proto"), ["https"]);
        assert_eq!(
            seen.lines("x-forwarded-for"),
            [Ipv4Addr::LOCALHOST.to_string()]
        );
    }
    // Denied again and again, and then served, all on one connection: some without Pingora.
    let few: Vec<u16> = (0..8)
        .map(|_| client.ask("GET", "/few", &[]).status)
        .collect();
    assert_eq!(few, [200, 200, 200, 429, 429, 429, 429, 429]);
    assert_eq!(client.ask("GET", "/after", &[]).status, 200);
    let after = origin.take().pop().unwrap();
    assert_eq!(
        (&*after.target, after.lines("x-forwarded-proto")),
        ("/after", vec!["https"])
    );
    let body = "x".repeat(300_000);
    client
        .send(format!(
            "POST /large HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
        .unwrap();
    assert_eq!(client.receive(false).unwrap().status, 200);
    assert_eq!(origin.take().pop().unwrap().body.len(), body.len());
    assert!(gateway.metric(HANDSHAKES) < 1.0);
    drop(client);
    assert_eq!(gateway.stop(), Some(0));
}

#[test]
fn the_oldest_version_is_the_one_that_is_set() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let shown = Shown::new(&authority.issue("gateway.example"));
    let strict = shown.line().replace(" }", ", min = \"1.3\" }");
    for (line, version, is_served) in [
        (shown.line(), &TLS12, true),
        (shown.line(), &TLS13, true),
        (strict.clone(), &TLS12, false),
        (strict, &TLS13, true),
    ] {
        let gateway = Gateway::start(&over_tls(&config(&origin, ""), &line));
        let client =
            Encrypted::over_tls_with(gateway.address, "gateway.example", &authority, version);
        assert_eq!(client.is_ok(), is_served, "{line}");
        if is_served {
            assert_eq!(client.unwrap().ask("GET", "/", &[]).status, 200);
        } else {
            gateway.await_metric(HANDSHAKES, 1.0);
        }
    }
}

#[test]
fn another_certificate_is_taken_over_and_no_connection_is_closed() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let (first, second) = (
        authority.issue("gateway.example"),
        authority.issue("gateway.example"),
    );
    let third = authority.issue_until("gateway.example", 2096);
    let shown = Shown::new(&first);
    let config = config(&origin, "");
    let gateway = Gateway::start_with(&over_tls(&config, &shown.line()), &["--watch"]);
    let open = || Encrypted::over_tls(gateway.address, "gateway.example", &authority).unwrap();
    let mut early = open();
    assert_eq!(early.shown(), first.der());

    // Noticed by itself.
    let before = gateway.reloads();
    fs::copy(&second.cert, &shown.cert).unwrap();
    assert!(
        !gateway.await_reload(before),
        "a key of another certificate"
    );
    gateway.await_said("is not the key of the certificate");
    assert_eq!(open().shown(), first.der());
    let before = gateway.reloads();
    fs::copy(&second.key, &shown.key).unwrap();
    assert!(gateway.await_reload(before));
    assert_eq!(open().shown(), second.der());

    // From other files.
    let elsewhere = Shown::new(&third);
    assert!(gateway.reload(&over_tls(&config, &elsewhere.line())));
    assert_eq!(open().shown(), third.der());
    gateway.await_metric(
        "tollgate_tls_certificate_expiry_timestamp_seconds{listener=\"test\"}",
        3_976_214_400.0,
    );
    gateway.await_said("another certificate is shown");
    assert_eq!(early.ask("GET", "/", &[]).status, 200);
}

#[test]
fn who_speaks_in_the_clear_is_told_and_who_says_nothing_is_cut_off() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let shown = Shown::new(&authority.issue("gateway.example"));
    let gateway = Gateway::start(&over_tls(
        &config(&origin, "limits = { header_timeout = \"1s\" }"),
        &shown.line(),
    ));
    let answer = gateway.get("/");
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("https://"), "{}", answer.text());
    gateway.await_metric(HANDSHAKES, 1.0);
    // A look whether somebody listens is no mistake.
    drop(Connection::open(gateway.address));
    // The beginning of a handshake, and no more.
    let mut partial = Connection::open(gateway.address);
    partial.send([22, 3, 1, 2, 0, 1]).unwrap();
    let mut silent = Connection::open(gateway.address);
    assert!(partial.is_closed_or_answered() && silent.is_closed_or_answered());
    gateway.await_metric("tollgate_connections", 0.0);
    gateway.await_metric(HANDSHAKES, 3.0);
    // Garbage that looks like a handshake.
    let mut garbage = Connection::open(gateway.address);
    garbage.send([22; 600]).unwrap();
    assert!(garbage.is_closed_or_answered());
    gateway.await_metric(HANDSHAKES, 4.0);
    assert_eq!(origin.count(), 0);
}

#[test]
fn connections_are_counted_before_they_shake_hands() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let shown = Shown::new(&authority.issue("gateway.example"));
    let gateway = Gateway::start(&over_tls(
        &config(
            &origin,
            "max_connections = 2\nlimits = { header_timeout = \"10m\" }",
        ),
        &shown.line(),
    ));
    gateway.await_metric("tollgate_connections", 0.0);
    let held = [(); 2].map(|()| Connection::open(gateway.address));
    gateway.await_metric("tollgate_connections", 2.0);
    assert!(Encrypted::over_tls(gateway.address, "gateway.example", &authority).is_err());
    gateway.await_metric("tollgate_connections_refused_total{reason=\"total\"}", 1.0);
    drop(held);
    gateway.await_metric("tollgate_connections", 0.0);
    let mut client = Encrypted::over_tls(gateway.address, "gateway.example", &authority).unwrap();
    assert_eq!(client.ask("GET", "/", &[]).status, 200);
}

#[test]
fn a_slow_or_large_head_and_a_slow_body_are_answered_over_tls_too() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let shown = Shown::new(&authority.issue("gateway.example"));
    let gateway = Gateway::start(&over_tls(
        &config(
            &origin,
            "limits = { header_timeout = \"1s\", body_timeout = \"1s\", max_header = \"4KiB\" }",
        ),
        &shown.line(),
    ));
    let open = || Encrypted::over_tls(gateway.address, "gateway.example", &authority).unwrap();
    let mut slow = open();
    slow.send("GET / HTTP/1.1\r\nHost: ").unwrap();
    assert_eq!(slow.receive(false).unwrap().status, 408);
    let mut large = open();
    large
        .send(format!(
            "GET / HTTP/1.1\r\nHost: a\r\nX: {}",
            "x".repeat(9_000)
        ))
        .unwrap();
    assert_eq!(large.receive(false).unwrap().status, 431);
    let mut body = open();
    body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx")
        .unwrap();
    assert_eq!(body.receive(false).unwrap().status, 408);
    assert_eq!(origin.count(), 0);
}

#[test]
fn who_does_not_take_its_answer_is_cut_off_over_tls_too() {
    let (told, ends) = mpsc::channel();
    let upstream = raw::server(1, move |mut asked: Asked| {
        let stream = asked.stream.get_mut();
        let length = 256 << 20;
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes())?;
        let piece = vec![b'x'; 1 << 16];
        let all = (0..length >> 16).all(|_| stream.write_all(&piece).is_ok());
        let _ = told.send(all);
        Ok(())
    });
    let authority = Authority::new();
    let shown = Shown::new(&authority.issue("gateway.example"));
    let limits = "limits = { body_timeout = \"2s\", body_min_rate = \"1KiB\" }";
    let gateway = Gateway::start(&over_tls(&config_to(upstream, limits), &shown.line()));
    let mut client = Encrypted::over_tls(gateway.address, "gateway.example", &authority).unwrap();
    client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(!ends.recv_timeout(Duration::from_secs(40)).unwrap());
    gateway.await_metric("tollgate_bad_requests_total{reason=\"write_timeout\"}", 1.0);
    gateway.await_metric("tollgate_connections", 0.0);
}

#[test]
fn a_tunnel_goes_through_tls() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let shown = Shown::new(&authority.issue("gateway.example"));
    let gateway = Gateway::start(&over_tls(&config(&origin, ""), &shown.line()));
    let mut client = Encrypted::over_tls(gateway.address, "gateway.example", &authority).unwrap();
    client
        .send("GET /websocket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
        .unwrap();
    assert_eq!(client.receive(false).unwrap().status, 101);
    for word in ["one", "two"] {
        client.send(word).unwrap();
        assert_eq!(client.bytes(3).unwrap(), word.as_bytes());
    }
}

#[test]
fn a_client_that_comes_back_is_known_after_a_reload_of_something_else() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let shown = Shown::new(&authority.issue("gateway.example"));
    let before = over_tls(&config(&origin, ""), &shown.line());
    let gateway = Gateway::start(&before);
    let knows = authority.client(&[&TLS13]);
    let mut resumed = Vec::new();
    for text in [None, None, Some(before.replace("100000/d", "200000/d"))] {
        if let Some(text) = text {
            assert!(gateway.reload(&text));
        }
        let mut client =
            Encrypted::shaken(gateway.address, "gateway.example", knows.clone()).unwrap();
        assert_eq!(client.ask("GET", "/", &[]).status, 200);
        resumed.push(client.is_resumed());
    }
    assert_eq!(resumed, [false, true, true]);
}

#[test]
fn a_request_is_finished_when_the_gateway_stops() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let shown = Shown::new(&authority.issue("gateway.example"));
    let mut gateway = Gateway::start(&over_tls(
        &config(&origin, "limits = { header_timeout = \"10m\" }"),
        &shown.line(),
    ));
    let open = || Encrypted::over_tls(gateway.address, "gateway.example", &authority).unwrap();
    let (mut busy, mut idle) = (open(), open());
    assert_eq!(idle.ask("GET", "/", &[]).status, 200);
    // Neither holds anything up.
    let silent = Connection::open(gateway.address);
    let mut partial = Connection::open(gateway.address);
    partial.send([22, 3, 1]).unwrap();
    busy.send("GET /slow/1500 HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    origin.await_count(2);
    gateway.signal("-TERM");
    let answer = busy.receive(false).unwrap();
    assert!(answer.status == 200 && answer.is_last(), "{answer:?}");
    assert_eq!(gateway.await_exit(), Some(0));
    drop((silent, partial, idle));
}

#[test]
fn a_newer_process_takes_over_and_tls_goes_on() {
    let (origin, authority) = (Origin::start(), Authority::new());
    let shown = Shown::new(&authority.issue("gateway.example"));
    let folder = scratch();
    let sock = folder.join("upgrade.sock");
    let sock = sock.to_str().unwrap();
    let mut old = Gateway::start_with(
        &over_tls(&config(&origin, ""), &shown.line()),
        &["--upgrade-sock", sock],
    );
    let address = old.address;
    let open = || Encrypted::over_tls(address, "gateway.example", &authority).unwrap();
    let mut client = open();
    assert_eq!(client.ask("GET", "/", &[]).status, 200);
    let new = old.successor(&["--upgrade-sock", sock, "--upgrade"]);
    while !std::path::Path::new(sock).exists() {
        std::thread::park_timeout(Duration::from_millis(10));
    }
    old.signal("-QUIT");
    // One more, and it is told to go.
    assert_eq!(old.await_exit(), Some(0), "{}", old.errors());
    assert_eq!(open().ask("GET", "/", &[]).status, 200);
    new.await_metric(
        "tollgate_http_requests_total{code=\"200\",method=\"GET\",route=\"r\"}",
        1.0,
    );
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_gateway_does_not_start_with_what_it_cannot_show() {
    let authority = Authority::new();
    let (one, other) = (authority.issue("a.example"), authority.issue("b.example"));
    let file = scratch().join("tollgate.toml");
    fs::write(
        &file,
        format!(
            "[listeners.main]\naddress = \"127.0.0.1:1\"\ntls = {{ cert = \"{}\", key = \"{}\" }}\n",
            one.cert.display(),
            other.key.display()
        ),
    )
    .unwrap();
    let output = tollgate(&["run", "--config"]).arg(&file).output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("E122"), "{said}");
}
