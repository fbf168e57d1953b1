//! Clients that were denied and call again on the same connection: they are answered by other code than those who call
//! for the first time, and must not be able to tell.

use crate::support::gateway::Gateway;
use crate::support::http::{Connection, Response};
use crate::support::origin::Origin;

/// One request an hour for each `x-key`.
fn gateway(origin: &Origin) -> Gateway {
    Gateway::start(&format!(
        "[upstreams.app]\nservers = [\"{}\"]\n[policies.each]\nkind = \"token-bucket\"\nlimit = \"1/h\"\n\
         key = \"header:x-key\"\non_missing_key = \"empty\"\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"app\"\npolicies = [\"each\"]\n\
         [routes.fixed]\nmatch = {{ path = \"/fixed\" }}\nrespond = {{ status = 204 }}\n",
        origin.address
    ))
}

/// A connection whose client was denied.
fn denied(gateway: &Gateway) -> Connection {
    let mut connection = Connection::open(gateway.address);
    for status in [200, 429] {
        let answer = connection.ask("GET", "/", &[("x-key", "denied")]);
        assert_eq!(answer.status, status);
    }
    connection
}

/// An answer but for what differs from one to the next.
fn shape(answer: &Response) -> (u16, Vec<&str>, Vec<String>) {
    let names = answer.headers.iter().map(|(name, _)| name.as_str());
    let body = answer.json();
    let members = body.as_object().unwrap().keys().cloned().collect();
    (answer.status, names.collect(), members)
}

#[test]
fn a_denial_looks_the_same_however_often_a_connection_is_denied() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    let mut connection = denied(&gateway);
    let ask = |connection: &mut Connection, method, accept| {
        connection.ask(method, "/", &[("x-key", "denied"), ("accept", accept)])
    };
    let first = ask(&mut Connection::open(gateway.address), "GET", "*/*");
    for _ in 0..3 {
        let again = ask(&mut connection, "GET", "*/*");
        assert_eq!(shape(&again), shape(&first));
        let id = again.header("x-request-id").unwrap();
        assert_ne!(Some(id), first.header("x-request-id"));
        assert_eq!(again.json()["instance"], format!("urn:uuid:{id}"));
    }
    let page = ask(&mut connection, "GET", "text/html");
    assert!(
        page.header("content-type")
            .unwrap()
            .starts_with("text/html")
    );
    // Whether a head's answer has a body, the next answer on the connection tells.
    let empty = ask(&mut connection, "HEAD", "*/*");
    assert_eq!((empty.status, empty.body.len()), (429, 0));
    assert_ne!(empty.header("content-length"), Some("0"));
    assert_eq!(ask(&mut connection, "GET", "*/*").status, 429);
    assert_eq!(origin.count(), 1);
}

#[test]
fn everything_else_on_such_a_connection_is_served_as_ever_and_counted_once() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    let mut connection = denied(&gateway);
    let key = |key| [("x-key", key)];
    // Allowed, denied again, answered here, malformed.
    assert_eq!(connection.ask("GET", "/other", &key("one")).status, 200);
    assert_eq!(connection.ask("GET", "/", &key("denied")).status, 429);
    assert_eq!(connection.ask("GET", "/fixed", &key("denied")).status, 204);
    assert_eq!(connection.ask("GET", "/", &key("denied")).status, 429);
    let body =
        "POST /body HTTP/1.1\r\nHost: a.example\r\nx-key: two\r\nContent-Length: 3\r\n\r\nabc";
    connection.send(body).unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 200);
    assert_eq!(connection.ask("GET", "/", &key("denied")).status, 429);
    assert_eq!(connection.ask("GET", "/%zz", &key("denied")).status, 400);
    assert_eq!(connection.ask("GET", "/", &key("denied")).status, 429);
    connection
        .send("GET / HTTP/1.1\r\nHost: a.example\r\nx-key: denied\r\nConnection: close\r\n\r\n")
        .unwrap();
    let last = connection.receive(false).unwrap();
    assert!(last.status == 429 && last.is_last(), "{last:?}");

    let seen = origin.seen();
    let targets: Vec<_> = seen.iter().map(|seen| seen.target.as_str()).collect();
    assert_eq!(targets, ["/", "/other", "/body"]);
    assert_eq!(seen[1].lines("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen[2].body, b"abc");
    let decisions = |decision: &str| {
        format!(
            "tollgate_policy_decisions_total{{decision=\"{decision}\",policy=\"each\",route=\"all\",source=\"local\"}}"
        )
    };
    gateway.await_metric(&decisions("allow"), 3.0);
    gateway.await_metric(&decisions("deny"), 6.0);
    gateway.await_metric(
        "tollgate_http_requests_total{code=\"429\",method=\"GET\",route=\"all\"}",
        6.0,
    );
    gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
}

#[test]
fn requests_that_come_together_are_answered_in_their_order() {
    let origin = Origin::start();
    let gateway = gateway(&origin);
    let mut connection = denied(&gateway);
    let ask = |key: &str| format!("GET /{key} HTTP/1.1\r\nHost: a.example\r\nx-key: {key}\r\n\r\n");
    let keys = [
        "denied", "denied", "one", "denied", "two", "denied", "denied",
    ];
    let together: String = keys.iter().map(|key| ask(key)).collect();
    // Cut anywhere, a head's middle included.
    let (now, later) = together.split_at(together.len() - 20);
    connection.send(now).unwrap();
    let mut statuses = vec![connection.receive(false).unwrap().status];
    connection.send(later).unwrap();
    for _ in 1..keys.len() {
        statuses.push(connection.receive(false).unwrap().status);
    }
    assert_eq!(statuses, [429, 429, 200, 429, 200, 429, 429]);
    let targets: Vec<_> = origin.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(targets, ["/", "/one", "/two"]);
}

#[test]
fn a_head_that_drips_after_a_denial_has_its_deadline_as_ever() {
    let gateway = Gateway::start(
        "[server]\nlimits = { header_timeout = \"1s\" }\n\
         [policies.each]\nkind = \"token-bucket\"\nlimit = \"1/h\"\nkey = \"ip\"\n\
         [routes.all]\nmatch = { path = \"/*\" }\nrespond = { status = 204 }\npolicies = [\"each\"]\n",
    );
    let mut connection = Connection::open(gateway.address);
    for status in [204, 429, 429] {
        assert_eq!(connection.ask("GET", "/", &[]).status, status);
    }
    connection.send("GET / HTTP/1.1\r\nHost: a").unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 408);
}

#[test]
fn a_head_of_any_length_after_a_denial_is_taken_or_refused_as_ever() {
    let origin = Origin::start();
    let head = |length: usize| {
        let long = "y".repeat(length);
        format!("GET / HTTP/1.1\r\nHost: api.example\r\nx-key: other\r\nx-long: {long}\r\n\r\n")
    };
    let gateways = [gateway(&origin), gateway(&origin), gateway(&origin)];
    let [mut kept, mut refused, mut endless] = gateways.each_ref().map(denied);
    kept.send(head(20_000)).unwrap();
    assert_eq!(kept.receive(false).unwrap().status, 200);
    refused.send(head(100_000)).unwrap();
    assert_eq!(refused.receive(false).unwrap().status, 431);
    // One that does not end is not kept for as long as it goes on.
    let before = gateways[2].memory();
    let part = "z".repeat(1 << 20);
    endless
        .send("GET / HTTP/1.1\r\nHost: a\r\nx-long: ")
        .unwrap();
    let sent = (0..64).take_while(|_| endless.send(&part).is_ok()).count();
    assert!(sent < 64, "it takes in all of it");
    assert!(gateways[2].memory() < before + (32 << 20));
}

/// A part of a request that was read with the one before it is not taken for a request of its own.
#[test]
fn a_head_that_was_cut_anywhere_is_one_request_still() {
    let origin = Origin::start();
    let head = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    let (limited, free) = (head("/limited"), head("/free"));
    // Its end, from the second line on, could be a head by itself.
    let nested = format!("GET /limited HTTP/1.1\r\nx-nested: {free}");
    let begun = nested.len() - free.len();
    for cut in 1..limited.len() {
        let gateway = Gateway::start(&format!(
            "[upstreams.app]\nservers = [\"{}\"]\n[policies.each]\nkind = \"token-bucket\"\nlimit = \"1/h\"\nkey = \"ip\"\n\
             [routes.limited]\nmatch = {{ path = \"/limited\" }}\nupstream = \"app\"\npolicies = [\"each\"]\n\
             [routes.free]\nmatch = {{ path = \"/free\" }}\nrespond = {{ status = 204 }}\n",
            origin.address
        ));
        let seen = origin.count();
        let mut connection = Connection::open(gateway.address);
        let status = |connection: &mut Connection| connection.receive(false).unwrap().status;
        connection
            .send(format!("{limited}{}", &limited[..cut]))
            .unwrap();
        assert_eq!(status(&mut connection), 200);
        let rest = format!("{}{}", &limited[cut..], &nested[..begun]);
        connection.send(rest).unwrap();
        assert_eq!(status(&mut connection), 429, "{cut}");
        connection.send(&nested[begun..]).unwrap();
        assert_eq!(status(&mut connection), 429, "{cut}");
        assert_eq!(origin.count() - seen, 1, "{cut}");
    }
}
