//! Clients that are slow on purpose are cut off; those who wait for somebody else are not.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver};
use std::thread::park_timeout;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::Gateway;
use crate::support::http::Connection;
use crate::support::origin::Origin;
use crate::support::raw::{self, Asked};

/// Longer than a client of [`gateway`] may lag.
const LONG: Duration = Duration::from_secs(4);

fn gateway(upstream: SocketAddr) -> Gateway {
    gateway_with(upstream, "")
}

/// The same with more limits.
fn gateway_with(upstream: SocketAddr, more: &str) -> Gateway {
    Gateway::start(&format!(
        "[server]\nlimits = {{ header_timeout = \"1s\", body_timeout = \"2s\", body_min_rate = \"1KiB\", max_header = \"8KiB\"{more} }}\n\
         [upstreams.api]\nservers = [\"{upstream}\"]\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"api\"\n\
         [routes.here]\nmatch = {{ path = \"/here\" }}\nrespond = {{ status = 204 }}\n",
    ))
}

fn bad_requests(gateway: &Gateway, reason: &str) -> f64 {
    gateway.metric(&format!(
        "tollgate_bad_requests_total{{reason=\"{reason}\"}}"
    ))
}

fn is(value: f64, expected: f64) {
    assert!(
        (value - expected).abs() < f64::EPSILON,
        "{value}, not {expected}"
    );
}

/// Reads until the other end is done, and says how much that was.
fn rest(stream: &mut impl Read) -> usize {
    let mut bytes = [0; 65_536];
    let mut sum = 0;
    loop {
        match stream.read(&mut bytes) {
            Ok(0) | Err(_) => return sum,
            Ok(read) => sum += read,
        }
    }
}

/// A server that takes whatever comes, and tells of each connection how much it was once that has ended.
fn taker() -> (SocketAddr, Receiver<usize>) {
    let (told, ends) = mpsc::channel();
    let address = raw::server(8, move |mut asked: Asked| {
        let _ = told.send(rest(&mut asked.stream));
        Ok(())
    });
    (address, ends)
}

#[test]
fn a_body_that_drips_or_stops_is_answered_and_its_upstream_let_go() {
    let (upstream, ends) = taker();
    let gateway = gateway(upstream);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let whole = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n";
    for (n, (head, drip)) in [
        (whole, "x"),
        (chunked, "1\r\nx\r\n"),
        (whole, ""),
        (chunked, "5"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut connection = Connection::open(gateway.address);
        connection.send(head).unwrap();
        // What was quick at first is no credit for later.
        if head == whole {
            connection.send("x".repeat(50_000)).unwrap();
        }
        let deadline = monotonic_now() + Duration::from_secs(20);
        while !connection.is_readable_within(Duration::from_millis(50)) {
            assert!(
                monotonic_now() < deadline,
                "a body may take for ever: {drip:?}"
            );
            if drip.len() != 1 || head == whole {
                connection.send(drip).unwrap();
            }
        }
        let answer = connection.receive(false).unwrap();
        assert_eq!(answer.status, 408, "{answer:?}");
        assert!(connection.is_closed_within(Duration::from_secs(10)));
        let taken = ends.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(taken < 60_000, "{taken}");
        let counted = f64::from(u32::try_from(n + 1).unwrap());
        is(bad_requests(&gateway, "body_timeout"), counted);
        assert_eq!(gateway.get("/here").status, 204);
    }
    gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
}

#[test]
fn a_head_that_is_slow_or_large_is_answered_counted_and_logged() {
    let origin = Origin::start();
    let mut gateway = gateway(origin.address);
    let mut slow = Connection::open(gateway.address);
    slow.send("GET /a HTTP/1.1\r\nHost: a\r\n").unwrap();
    assert_eq!(slow.receive(false).unwrap().status, 408);
    // Never complete, so that nobody waits for the rest of it; and on a connection that has served one before.
    let mut large = Connection::open(gateway.address);
    assert_eq!(large.ask("GET", "/here", &[]).status, 204);
    large.send("GET /a HTTP/1.1\r\nHost: a\r\nx: ").unwrap();
    let filler = "y".repeat(1024);
    let sent = (0..4096)
        .take_while(|_| large.send(&filler).is_ok())
        .count();
    assert!(sent < 4096, "a head may be as large as it likes");
    let mut large = Connection::open(gateway.address);
    large
        .send(format!(
            "GET /a HTTP/1.1\r\nHost: a\r\nx: {}",
            "y".repeat(9000)
        ))
        .unwrap();
    assert_eq!(large.receive(false).unwrap().status, 431);
    gateway.await_metric("tollgate_bad_requests_total{reason=\"header_size\"}", 2.0);
    is(bad_requests(&gateway, "header_timeout"), 1.0);
    assert_eq!(gateway.get("/here").status, 204);
    assert_eq!(origin.count(), 0);
    gateway.stop();
    let log = gateway.access_log();
    assert_eq!(log.matches("head took too long").count(), 1, "{log}");
    assert_eq!(log.matches("head is too large").count(), 2, "{log}");
}

#[test]
fn an_upload_that_its_upstream_is_slow_to_take_is_not_the_clients_fault() {
    let length = 16 << 20;
    let upstream = raw::server(8, move |mut asked: Asked| {
        // Nothing is taken for longer than a client may lag; then all.
        park_timeout(LONG);
        io::copy(&mut (&mut asked.stream).take(length), &mut io::sink())?;
        park_timeout(LONG);
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        asked.stream.get_mut().write_all(answer)
    });
    let gateway = gateway(upstream);
    let mut connection = Connection::open(gateway.address);
    connection
        .send(format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n"
        ))
        .unwrap();
    connection
        .send("x".repeat(usize::try_from(length).unwrap()))
        .unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 200);
    is(bad_requests(&gateway, "body_timeout"), 0.0);
}

#[test]
fn a_slow_upload_above_the_pace_arrives() {
    let origin = Origin::start();
    let gateway = gateway(origin.address);
    let mut connection = Connection::open(gateway.address);
    connection
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 49152\r\n\r\n")
        .unwrap();
    for _ in 0..24 {
        park_timeout(Duration::from_millis(250));
        connection.send("x".repeat(2048)).unwrap();
    }
    assert_eq!(connection.receive(false).unwrap().status, 200);
    assert_eq!(origin.seen()[0].body.len(), 49_152);
}

#[test]
fn who_waits_to_be_asked_for_a_body_is_not_late_with_it() {
    let upstream = raw::server(8, |mut asked: Asked| {
        park_timeout(LONG);
        asked
            .stream
            .get_mut()
            .write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        let mut body = [0; 4];
        asked.stream.read_exact(&mut body)?;
        // Or else the next request may go the way of this connection, which ends here.
        let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
        asked.stream.get_mut().write_all(answer)
    });
    let gateway = gateway(upstream);
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n";
    let mut connection = Connection::open(gateway.address);
    connection.send(head).unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 100);
    connection.send("body").unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 200);
    // Once asked, it is.
    let mut connection = Connection::open(gateway.address);
    connection.send(head).unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 100);
    assert_eq!(connection.receive(false).unwrap().status, 408);
    is(bad_requests(&gateway, "body_timeout"), 1.0);
}

#[test]
fn a_tunnel_may_be_silent_and_its_bytes_are_no_body() {
    let upstream = raw::server(8, |mut asked: Asked| {
        assert!(
            asked
                .head
                .to_ascii_lowercase()
                .contains("upgrade: websocket")
        );
        let answer = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        asked.stream.get_mut().write_all(answer)?;
        loop {
            let mut bytes = [0; 64];
            let read = asked.stream.read(&mut bytes)?;
            if read == 0 {
                return Ok(());
            }
            asked.stream.get_mut().write_all(&bytes[..read])?;
        }
    });
    let gateway = gateway_with(upstream, ", max_body = \"4B\"");
    let mut connection = Connection::open(gateway.address);
    connection
        .send("GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
        .unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 101);
    for word in ["one", "two"] {
        park_timeout(LONG);
        connection.send(word).unwrap();
        assert_eq!(connection.take(64).unwrap(), 3);
    }
    is(bad_requests(&gateway, "body_timeout"), 0.0);
}

/// A server that answers with more than a connection's buffers hold, and tells how much of it was taken.
fn giver(length: usize) -> (SocketAddr, Receiver<bool>) {
    let (told, ends) = mpsc::channel();
    let address = raw::server(8, move |mut asked: Asked| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
        let stream = asked.stream.get_mut();
        stream.write_all(head.as_bytes())?;
        let piece = vec![b'x'; 1 << 16];
        let all = (0..length >> 16).all(|_| stream.write_all(&piece).is_ok());
        let _ = told.send(all);
        Ok(())
    });
    (address, ends)
}

#[test]
fn who_does_not_take_its_answer_is_cut_off_and_the_upstream_let_go() {
    let (upstream, ends) = giver(256 << 20);
    let mut gateway = gateway(upstream);
    let mut connection = Connection::open(gateway.address);
    connection
        .send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    assert!(!ends.recv_timeout(Duration::from_secs(20)).unwrap());
    gateway.await_metric("tollgate_bad_requests_total{reason=\"write_timeout\"}", 1.0);
    gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
    gateway.await_metric("tollgate_connections", 0.0);
    assert_eq!(gateway.get("/here").status, 204);
    drop(connection);
    gateway.stop();
    let log = gateway.access_log();
    assert!(log.contains("\"error\":\"write_timeout\""), "{log}");
}

#[test]
fn who_takes_its_answer_slowly_gets_all_of_it() {
    let length = 16 << 20;
    let (upstream, ends) = giver(length);
    let gateway = gateway(upstream);
    let mut connection = Connection::open(gateway.address);
    connection
        .send("GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    // Much less than the buffers hold in the time that a client may lag, so that nothing fits in for long.
    let mut taken = 0;
    for _ in 0..40 {
        park_timeout(Duration::from_millis(130));
        taken += connection.take(1 << 16).unwrap();
    }
    while taken < length {
        let more = connection.take(1 << 20).unwrap();
        assert!(more > 0, "cut off after {taken}");
        taken += more;
    }
    assert!(ends.recv_timeout(Duration::from_secs(20)).unwrap());
    is(bad_requests(&gateway, "write_timeout"), 0.0);
}
