//! Told to stop, the gateway finishes what it began.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::Gateway;
use crate::support::http::Connection;
use crate::support::origin::Origin;

const IN_FLIGHT: &str = "tollgate_http_in_flight_requests";

fn config(origin: &Origin, grace: &str, policy: &str) -> String {
    format!(
        "[server]\ngrace_period = \"{grace}\"\n[upstreams.api]\nservers = [\"{}\"]\n\
         [policies.all]\nkey = \"global\"\n{policy}\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"api\"\npolicies = [\"all\"]\n",
        origin.address
    )
}

const WIDE: &str = "kind = \"token-bucket\"\nlimit = \"100000/s\"";

/// A client that asks for this in a thread of its own; the status of what is answered.
fn asks(gateway: &Gateway, target: &str) -> thread::JoinHandle<u16> {
    let (address, target) = (gateway.address, target.to_owned());
    thread::spawn(move || {
        let response = Connection::open(address).ask("GET", &target, &[]);
        assert!(!response.body.is_empty());
        response.status
    })
}

#[test]
fn requests_in_flight_finish_and_readiness_says_no_before_a_connection_is_refused() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, "25s", WIDE));
    let clients: Vec<_> = (0..50).map(|_| asks(&gateway, "/slow/2500")).collect();
    gateway.await_metric(IN_FLIGHT, 50.0);
    let mut probe = Connection::open(gateway.metrics);
    assert_eq!(probe.ask("GET", "/readyz", &[]).status, 200);
    gateway.signal("-TERM");
    let deadline = monotonic_now() + Duration::from_secs(20);
    while Connection::try_open(gateway.address).is_ok() {
        assert!(monotonic_now() < deadline, "it still accepts connections");
        thread::park_timeout(Duration::from_millis(2));
    }
    let refused = probe.ask("GET", "/readyz", &[]);
    assert_eq!(
        (refused.status, refused.text().as_str()),
        (503, "draining\n")
    );
    for client in clients {
        assert_eq!(client.join().unwrap(), 200);
    }
    assert_eq!(gateway.await_exit(), Some(0), "{}", gateway.errors());
    assert_eq!(origin.count(), 50);
    assert_eq!(gateway.access_log().matches("/slow/2500").count(), 50);
}

#[test]
fn requests_that_wait_in_a_queue_get_their_turn() {
    let origin = Origin::start();
    let policy = "kind = \"leaky-bucket\"\nlimit = \"2/s\"\nburst = 10";
    let mut gateway = Gateway::start(&config(&origin, "25s", policy));
    let clients: Vec<_> = (0..6).map(|_| asks(&gateway, "/")).collect();
    let deadline = monotonic_now() + Duration::from_secs(20);
    while gateway.metric("tollgate_policy_units_total{policy=\"all\"}") < 6.0 {
        assert!(monotonic_now() < deadline, "{}", gateway.scrape());
    }
    let waiting = gateway.metric("tollgate_queue_depth{policy=\"all\"}");
    assert!(waiting >= 1.0, "{waiting}");
    gateway.signal("-TERM");
    for client in clients {
        assert_eq!(client.join().unwrap(), 200);
    }
    assert_eq!(gateway.await_exit(), Some(0), "{}", gateway.errors());
    let mut arrivals: Vec<_> = origin.seen().iter().map(|seen| seen.at).collect();
    arrivals.sort();
    // Half a second each, if none is late on its way.
    let all = arrivals[5].saturating_duration_since(arrivals[0]);
    assert!(all > Duration::from_millis(1_500), "{all:?}");
}

#[test]
fn a_websocket_and_a_long_answer_have_the_grace_period() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, "25s", WIDE));
    let mut socket = websocket(&gateway);
    let stream = asks(&gateway, "/stream/30");
    gateway.await_metric(IN_FLIGHT, 2.0);
    gateway.signal("-TERM");
    gateway.await_said("draining");
    let status = stream.join().unwrap();
    assert_eq!(status, 200);
    for word in ["still", "there"] {
        socket.send(word).unwrap();
        assert_eq!(socket.bytes(word.len()).unwrap(), word.as_bytes());
    }
    assert_eq!(gateway.exited(), None);
    drop(socket);
    assert_eq!(gateway.await_exit(), Some(0), "{}", gateway.errors());
    assert!(!gateway.errors().contains("cut off"));
}

#[test]
fn what_lasts_longer_than_the_grace_period_is_cut_off() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, "3s", WIDE));
    let mut socket = websocket(&gateway);
    let began = monotonic_now();
    gateway.signal("-TERM");
    assert!(socket.is_closed_within(Duration::from_secs(18)));
    let lasted = monotonic_now().saturating_duration_since(began);
    assert!(lasted >= Duration::from_secs(3), "{lasted:?}");
    assert_eq!(gateway.await_exit(), Some(0), "{}", gateway.errors());
    gateway.await_said("grace period over, requests cut off");
}

/// A connection that has become a WebSocket.
fn websocket(gateway: &Gateway) -> Connection {
    let mut socket = Connection::open(gateway.address);
    let head = "GET /websocket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket.send(head).unwrap();
    let switched = socket.receive(false).unwrap();
    assert_eq!(switched.status, 101, "{switched:?}");
    socket.send("hello").unwrap();
    assert_eq!(socket.bytes(5).unwrap(), b"hello");
    socket
}

#[test]
fn a_kept_connection_is_told_before_it_is_closed() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, "25s", WIDE));
    let told = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let address = gateway.address;
            let told = Arc::clone(&told);
            thread::spawn(move || {
                let mut connection = Connection::open(address);
                // No request fails up to the one whose answer says that it is the last.
                let deadline = monotonic_now() + Duration::from_secs(20);
                while !connection.ask("GET", "/", &[]).is_last() {
                    assert!(monotonic_now() < deadline, "nothing was said");
                    thread::park_timeout(Duration::from_millis(5));
                }
                assert!(told.load(Ordering::SeqCst), "nobody stopped it");
            })
        })
        .collect();
    // One that lies idle does not hold it up for long.
    let mut idle = Connection::open(gateway.address);
    assert_eq!(idle.ask("GET", "/", &[]).status, 200);
    gateway.await_metric("tollgate_connections", 9.0);
    told.store(true, Ordering::SeqCst);
    gateway.signal("-TERM");
    for client in clients {
        client.join().unwrap();
    }
    assert!(idle.is_closed_within(Duration::from_secs(15)));
    assert_eq!(gateway.await_exit(), Some(0), "{}", gateway.errors());
}

#[test]
fn a_request_that_is_served_when_the_gateway_is_told_to_stop_is_served_to_its_end() {
    for signal in ["-TERM", "-INT"] {
        is_served_to_its_end(signal);
    }
}

fn is_served_to_its_end(signal: &str) {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, "25s", WIDE));
    let mut connection = Connection::open(gateway.address);
    connection
        .send("GET /slow/800 HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    gateway.await_metric("tollgate_http_in_flight_requests", 1.0);
    gateway.signal(signal);
    assert_eq!(connection.receive(false).unwrap().status, 200);
    assert_eq!(gateway.await_exit(), Some(0));
    let log = gateway.access_log();
    assert!(log.contains("/slow/800"), "{log}");
}

#[test]
fn a_second_interrupt_does_not_wait_for_requests_but_records_what_is_over() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&config(&origin, "25s", WIDE));
    gateway.get("/over");
    let mut connection = Connection::open(gateway.address);
    connection
        .send("GET /slow/20000 HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    gateway.await_metric("tollgate_http_in_flight_requests", 1.0);
    let deadline = monotonic_now() + Duration::from_secs(15);
    // The first may still be on its way when the second is sent: then they are one.
    let code = loop {
        gateway.signal("-INT");
        thread::park_timeout(Duration::from_millis(50));
        if let Some(code) = gateway.exited() {
            break code;
        }
        assert!(monotonic_now() < deadline);
    };
    assert_eq!(code, Some(1));
    assert!(gateway.access_log().contains("/over"));
}
