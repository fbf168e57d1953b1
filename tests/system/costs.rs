//! What requests cost: as they say, or as their answers do.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;

use crate::support::gateway::{Gateway, free_address, secret_file};
use crate::support::http::{Connection, Response};
use crate::support::origin::Origin;
use crate::support::valkey::Valkey;

/// A gateway with one policy, `p`, of 1,000 units a day, and this cost.
fn config(store: &str, upstream: SocketAddr, cost: &str) -> String {
    format!(
        "{store}\n\
         [upstreams.app]\nservers = [\"{upstream}\"]\ntimeouts = {{ read = \"5s\" }}\n\
         [policies.p]\nkind = \"fixed-window\"\nlimit = \"1000/d\"\nanchor = \"first-request\"\n\
         key = \"header:x-user\"\non_missing_key = \"empty\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"app\"\npolicies = [{{ use = \"p\", cost = {cost} }}]\n"
    )
}

/// Usage in this Valkey.
fn in_valkey(valkey: &Valkey) -> String {
    format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"5s\"\non_failure = \"deny\"\n\
         key_secret_file = \"{}\"\n",
        valkey.address(),
        secret_file().display()
    )
}

fn start(config: &str) -> Gateway {
    let gateway = Gateway::start(config);
    if config.contains("kind = \"valkey\"") {
        gateway.await_metric("tollgate_store_up", 1.0);
    }
    gateway
}

const JSON: (&str, &str) = ("content-type", "application/json");

/// A POST with this body.
fn post(
    connection: &mut Connection,
    target: &str,
    fields: &[(&str, &str)],
    body: &[u8],
) -> Response {
    let mut request = format!(
        "POST {target} HTTP/1.1\r\nHost: api.example\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in fields {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut request = (request + "\r\n").into_bytes();
    request.extend_from_slice(body);
    connection.send(request).unwrap();
    connection.receive(false).unwrap()
}

/// What is left of the policy, as the answer tells.
fn left(answer: &Response) -> u64 {
    let told = answer.header("ratelimit").unwrap();
    let left = told.split(";r=").nth(1).unwrap().split(';').next().unwrap();
    left.parse().unwrap()
}

/// What a user has spent of the thousand: a request that costs nothing finds it.
fn spent(gateway: &Gateway, user: &str) -> u64 {
    let mut connection = Connection::open(gateway.address);
    let answer = connection.ask("GET", "/look", &[("x-user", user)]);
    1000 - left(&answer)
}

/// A route on which requests cost nothing.
const LOOK: &str = "[routes.look]\nmatch = { path = \"/look\" }\nrespond = { status = 204 }\npolicies = [{ use = \"p\", cost = 0 }]\n";

const UNITS: &str = "tollgate_policy_units_total{policy=\"p\"}";

const MISSING: &str = "tollgate_cost_missing_total{policy=\"p\"}";

/// Target, header field and body of a request; and what it costs.
type Asked<'a> = (&'a str, &'a str, &'a str, u64);

#[test]
fn a_request_costs_what_it_says() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    let listed =
        "{ from = \"request.query:type\", values = { search = 100, list = 1 }, default = 50 }";
    let number = |from: &str| format!("{{ from = \"{from}\", default = 7, max = 40 }}");
    for store in [String::new(), in_valkey(&valkey)] {
        let cases: [(&str, &[Asked<'_>]); 5] = [
            (
                listed,
                &[
                    ("/?type=search", "", "", 100),
                    ("/?type=list", "", "", 1),
                    ("/?type=other", "", "", 50),
                    ("/", "", "", 50),
                ],
            ),
            (
                &number("request.header:x-cost"),
                // fastly/js-compute-runtime PR #1566.
                &[
                    ("/", "5", "", 5),
                    ("/", "4294967296", "", 40),
                    ("/", "1e9", "", 40),
                    ("/", "1.5", "", 2),
                    ("/", "-1", "", 7),
                    ("/", "", "", 7),
                    ("/", "0", "", 1),
                ],
            ),
            (
                &number("request.json:/options/n"),
                &[
                    ("/", "", "{\"options\":{\"n\":3}}", 3),
                    ("/", "", "{\"options\":{\"n\":1e9}}", 40),
                    ("/", "", "{\"options\":{}}", 7),
                    ("/", "", "{\"options\":", 40),
                    ("/", "", "", 7),
                ],
            ),
            (
                &number("request.json-array-length"),
                &[
                    ("/", "", "[{},{},{}]", 3),
                    ("/", "", "{\"a\":[1,2]}", 1),
                    (
                        "/",
                        "",
                        "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]",
                        40,
                    ),
                ],
            ),
            (
                &number("request.graphql-depth"),
                &[
                    ("/", "", "{\"query\":\"{ a { b { c } } }\"}", 3),
                    (
                        "/",
                        "",
                        "{\"query\":\"{ ...F } fragment F on T { b { c } }\"}",
                        2,
                    ),
                    ("/?query=%7Ba%7Bb%7D%7D", "", "", 2),
                ],
            ),
        ];
        for (cost, requests) in cases {
            let gateway = start(&(config(&store, origin.address, cost) + LOOK));
            let mut connection = Connection::open(gateway.address);
            let mut before = spent(&gateway, cost);
            for (target, field, body, expected) in requests {
                let fields = [JSON, ("x-user", cost), ("x-cost", field)];
                let answer = post(&mut connection, target, &fields, body.as_bytes());
                assert_eq!(answer.status, 200);
                let now = 1000 - left(&answer);
                assert_eq!(now - before, *expected, "{cost} {target} {field} {body}");
                before = now;
            }
        }
    }
}

#[test]
fn a_default_that_was_taken_is_counted() {
    let origin = Origin::start();
    let cost = "{ from = \"request.header:x-cost\" }";
    let gateway = start(&config("", origin.address, cost));
    let mut connection = Connection::open(gateway.address);
    for value in ["5", "x", "6", ""] {
        assert_eq!(connection.ask("GET", "/", &[("x-cost", value)]).status, 200);
    }
    gateway.await_metric(UNITS, 13.0);
    gateway.await_metric(MISSING, 2.0);
}

/// A body of JSON of so many bytes, that costs 3.
fn body_of(length: usize) -> Vec<u8> {
    let mut body = b"{\"n\":3,\"x\":\"".to_vec();
    if length < body.len() + 2 {
        return vec![b' '; length];
    }
    body.resize(length - 2, b'y');
    body.extend_from_slice(b"\"}");
    body
}

/// The chunks of a body, each of so many bytes.
fn chunked(body: &[u8], size: usize) -> Vec<u8> {
    let mut wire = Vec::new();
    for chunk in body.chunks(size) {
        wire.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
        wire.extend_from_slice(chunk);
        wire.extend_from_slice(b"\r\n");
    }
    wire.extend_from_slice(b"0\r\n\r\n");
    wire
}

const KIB: usize = 1024;

#[test]
fn a_body_that_was_looked_at_reaches_the_upstream_whole_whatever_its_length() {
    let origin = Origin::start();
    let cost = "{ from = \"request.json:/n\", default = 7, max = 40 }";
    let gateway = start(&config("", origin.address, cost));
    // The same connection for all: each request ends where it should.
    let mut connection = Connection::open(gateway.address);
    for (length, expected) in [
        (0, 7),
        // Not JSON: an upstream may make something of it.
        (1, 40),
        (20, 3),
        (64 * KIB - 1, 3),
        (64 * KIB, 3),
        (64 * KIB + 1, 40),
        (KIB * KIB, 40),
    ] {
        let body = body_of(length);
        for size in [0, 1000, 16 * KIB, 100 * KIB] {
            for is_asked_for in [false, true] {
                let (framing, sent) = if size == 0 {
                    (format!("Content-Length: {length}"), body.clone())
                } else {
                    (
                        "Transfer-Encoding: chunked".to_owned(),
                        chunked(&body, size),
                    )
                };
                let what = format!("{length} by {size}, {is_asked_for}");
                let expect = if is_asked_for {
                    "Expect: 100-continue\r\n"
                } else {
                    ""
                };
                connection
                    .send(format!(
                        "POST / HTTP/1.1\r\nHost: a\r\nX-User: {what}\r\nContent-Type: application/json\r\n\
                         {expect}{framing}\r\n\r\n"
                    ))
                    .unwrap();
                // A client that asks waits, if the gateway looks at its body.
                let waits = is_asked_for && (size > 0 || (1..=64 * KIB).contains(&length));
                if waits {
                    let go_on = connection.receive(true).unwrap();
                    assert_eq!(go_on.status, 100, "{what}");
                }
                let answer = connection
                    .send(&sent)
                    .and_then(|()| connection.receive(false))
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(!answer.is_last(), "{what}");
                assert_eq!(answer.status, 200, "{what}");
                assert_eq!(1000 - left(&answer), expected, "{what}");
                let seen = origin.take().pop().unwrap();
                assert!(seen.body == body, "{what}: {} came", seen.body.len());
                if waits {
                    assert!(seen.lines("expect").is_empty(), "{what}");
                }
            }
        }
    }
}

#[test]
fn only_json_is_looked_at_and_only_where_a_cost_stands_in_it() {
    let origin = Origin::start();
    let cost = "{ from = \"request.json:/n\", default = 7, max = 40 }";
    let gateway = start(&config("", origin.address, cost));
    let mut connection = Connection::open(gateway.address);
    let body = body_of(20);
    let mut cost_of = |user: &str, fields: &[(&str, &str)]| {
        let mut all = vec![("x-user", user)];
        all.extend_from_slice(fields);
        1000 - left(&post(&mut connection, "/", &all, &body))
    };
    assert_eq!(
        cost_of(
            "a",
            &[("content-type", "application/vnd.api+json; charset=utf-8")]
        ),
        3
    );
    assert_eq!(cost_of("b", &[("content-type", "text/plain")]), 7);
    assert_eq!(cost_of("c", &[]), 7);
    assert_eq!(cost_of("d", &[JSON, ("content-encoding", "gzip")]), 40);
    assert!(origin.seen().iter().all(|seen| seen.body == body));
}

#[test]
fn a_denial_of_a_body_that_was_looked_at_keeps_the_connection() {
    let origin = Origin::start();
    let cost = "{ from = \"request.json:/n\", max = 900 }";
    let gateway = start(&config("", origin.address, cost));
    let mut connection = Connection::open(gateway.address);
    let statuses: Vec<_> = [600, 600, 300, 200, 100]
        .into_iter()
        .map(|units| {
            let body = format!("{{\"n\":{units}}}");
            post(&mut connection, "/", &[JSON], body.as_bytes()).status
        })
        .collect();
    assert_eq!(statuses, [200, 429, 200, 429, 200]);
    // Larger than is looked at, and denied: what is still to come is read, too.
    let long = chunked(&body_of(300 * KIB), 10_000);
    for _ in 0..2 {
        connection
            .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
            .unwrap();
        connection.send(&long).unwrap();
        assert_eq!(connection.receive(false).unwrap().status, 429);
    }
    assert_eq!(origin.count(), 3);
}

#[test]
fn who_does_not_send_the_body_is_charged_nothing() {
    let origin = Origin::start();
    let cost = "{ from = \"request.json:/n\" }";
    let slow = "[server]\nlimits = { body_timeout = \"1s\", body_min_rate = \"1KiB\", max_body = \"40KiB\" }\n";
    let gateway = start(&(config(slow, origin.address, cost) + LOOK));
    let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{\"n\":5,";
    // One that leaves, and one that is too slow.
    let mut connection = Connection::open(gateway.address);
    connection.send(head).unwrap();
    drop(connection);
    let mut connection = Connection::open(gateway.address);
    connection.send(head).unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 408);
    // One that is larger than bodies may be, and says so or not.
    let body = body_of(50 * KIB);
    let mut connection = Connection::open(gateway.address);
    assert_eq!(post(&mut connection, "/", &[JSON], &body).status, 413);
    let mut connection = Connection::open(gateway.address);
    connection
        .send("POST / HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        .unwrap();
    connection.send(chunked(&body, 4000)).unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 413);
    gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
    assert_eq!(spent(&gateway, ""), 0);
    gateway.await_metric(
        "tollgate_http_requests_total{code=\"408\",method=\"POST\",route=\"r\"}",
        1.0,
    );
    // A route has no more time than it has.
    let brief = config("", origin.address, cost).replace(
        "upstream = \"app\"\n",
        "upstream = \"app\"\ntimeout = \"300ms\"\n",
    );
    let gateway = start(&(brief + LOOK));
    let mut connection = Connection::open(gateway.address);
    connection.send(head).unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 408);
    assert_eq!(spent(&gateway, ""), 0);
    assert_eq!(origin.count(), 0);
}

const USAGE: &str = "{ from = \"response.json:/usage/total\", reserve = 100, max = 400 }";

/// Asks for an answer of this type with this body.
fn answered(
    connection: &mut Connection,
    user: &str,
    path: &str,
    fields: &[&str],
    body: &str,
) -> Response {
    let mut all = vec![("x-user", user)];
    all.extend(fields.iter().map(|field| ("x-answer", *field)));
    post(connection, path, &all, body.as_bytes())
}

/// Path, fields and body of an answer; what it costs, and how often nobody said so.
type Answered<'a> = (&'a str, &'a [&'a str], &'a str, u64, u8);

#[test]
fn an_answer_costs_what_it_says() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    let json = "content-type: application/json";
    let events = "content-type: text/event-stream";
    let usage = "{\"usage\":{\"total\":30}}";
    let stream = "data: {\"usage\":null}\n\ndata: {\"usage\":{\"total\":30}}\n\ndata: [DONE]\n\n";
    let by_json: &[Answered<'_>] = &[
        ("/answer", &[json], usage, 30, 0),
        ("/answer", &[json], "{\"usage\":{\"total\":0}}", 0, 0),
        ("/answer", &[json], "{\"usage\":{\"total\":300}}", 300, 0),
        ("/answer", &[json], "{\"usage\":{\"total\":1e12}}", 400, 0),
        ("/answer", &[json], "{\"usage\":{\"total\":-5}}", 100, 1),
        ("/answer", &[json], "{\"usage\":{}}", 100, 1),
        ("/answer", &[json], "", 100, 1),
        ("/answer", &["content-type: text/plain"], usage, 100, 1),
        ("/answer", &[json, "content-encoding: gzip"], usage, 100, 1),
        ("/trickle/10", &[json], usage, 30, 0),
        ("/trickle/10", &[events], stream, 30, 0),
        ("/trickle/0", &[events], "data: [DONE]\n\n", 100, 1),
        ("/status/204", &[json], "", 100, 1),
        ("/status/304", &[json], "", 100, 1),
    ];
    let by_field: &[Answered<'_>] = &[
        ("/answer", &["x-cost: 25"], "x", 25, 0),
        ("/answer", &["x-cost: 1e9"], "x", 400, 0),
        ("/answer", &["x-cost: 0"], "x", 0, 0),
        ("/answer", &["x-cost: x"], "x", 100, 1),
        ("/answer", &[], "x", 100, 1),
    ];
    let by_bytes: &[Answered<'_>] = &[
        ("/answer", &["content-encoding: gzip"], "0123456789", 10, 0),
        ("/answer", &[], "", 0, 0),
        ("/trickle/5", &[], "a\n\nb\n\ncd", 8, 0),
        ("/until-close", &[], "", 2, 0),
        ("/status/304", &[], "", 0, 0),
    ];
    for store in [String::new(), in_valkey(&valkey)] {
        for (from, cases) in [
            ("response.json:/usage/total", by_json),
            ("response.header:x-cost", by_field),
            ("response.bytes", by_bytes),
        ] {
            let cost = USAGE.replace("response.json:/usage/total", from);
            let gateway = start(&(config(&store, origin.address, &cost) + LOOK));
            let mut connection = Connection::open(gateway.address);
            let (mut units, mut missing) = (0, 0);
            for (number, (path, fields, body, expected, unsaid)) in cases.iter().enumerate() {
                let user = format!("{from} {number}");
                let answer = answered(&mut connection, &user, path, fields, body);
                let what = format!("{from} {path} {fields:?} {body}");
                if from == "response.header:x-cost" {
                    // Known before it is sent.
                    assert_eq!(left(&answer), 1000 - expected, "{what}");
                } else if answer.status != 304 {
                    assert_eq!(left(&answer), 900, "{what}");
                }
                missing += u64::from(*unsaid);
                units += expected;
                // The connection's next request finds it settled.
                let look = connection.ask("GET", "/look", &[("x-user", &user)]);
                assert_eq!(1000 - left(&look), *expected, "{what}");
            }
            let as_metric = |number: u64| number.to_string().parse::<f64>().unwrap();
            gateway.await_metric(UNITS, as_metric(units));
            gateway.await_metric(MISSING, as_metric(missing));
        }
    }
}

/// envoyproxy/ai-gateway #1754, wso2/api-platform #2932.
#[test]
fn remaining_falls_by_what_each_answer_cost() {
    let origin = Origin::start();
    let mut gateway = start(&config("", origin.address, USAGE));
    let mut connection = Connection::open(gateway.address);
    let told: Vec<_> = [30, 200, 0, 10]
        .into_iter()
        .map(|units| {
            let body = format!("{{\"usage\":{{\"total\":{units}}}}}");
            let answer = answered(
                &mut connection,
                "a",
                "/answer",
                &["content-type: application/json"],
                &body,
            );
            left(&answer)
        })
        .collect();
    // Each after its own reserve, and what those before it came to.
    assert_eq!(told, [900, 870, 670, 670]);
    drop(connection);
    assert_eq!(gateway.stop(), Some(0));
    let log = gateway.access_log();
    let costs = log.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["cost"].as_u64().unwrap()
    });
    // Lines stand in no order.
    let mut costs: Vec<_> = costs.collect();
    costs.sort_unstable();
    assert_eq!(costs, [0, 10, 30, 200]);
}

#[test]
fn an_upstream_is_not_asked_to_compress_what_is_to_be_read() {
    let origin = Origin::start();
    for (cost, kept) in [
        (USAGE, 0),
        ("{ from = \"response.bytes\", reserve = 1 }", 1),
    ] {
        let gateway = start(&config("", origin.address, cost));
        let mut connection = Connection::open(gateway.address);
        connection.ask("GET", "/", &[("accept-encoding", "gzip, br")]);
        let seen = origin.take().pop().unwrap();
        assert_eq!(seen.lines("accept-encoding").len(), kept, "{cost}");
    }
}

#[test]
fn a_head_and_a_tunnel_say_nothing() {
    let origin = Origin::start();
    let gateway = start(&(config("", origin.address, USAGE) + LOOK));
    let mut connection = Connection::open(gateway.address);
    let fields = [
        ("x-user", "head"),
        ("x-answer", "content-type: application/json"),
    ];
    assert_eq!(connection.ask("HEAD", "/answer", &fields).status, 200);
    assert_eq!(spent(&gateway, "head"), 100);
    let mut tunnel = Connection::open(gateway.address);
    tunnel
        .send("GET /websocket HTTP/1.1\r\nHost: a\r\nx-user: tunnel\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n")
        .unwrap();
    assert_eq!(tunnel.receive(false).unwrap().status, 101);
    tunnel.send("{\"usage\":{\"total\":3}}").unwrap();
    assert_eq!(tunnel.bytes(21).unwrap().len(), 21);
    drop(tunnel);
    drop(connection);
    gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
    assert_eq!(spent(&gateway, "tunnel"), 100);
}

#[test]
fn whatever_ends_a_request_settles_it() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    let events = "content-type: text/event-stream";
    for store in [String::new(), in_valkey(&valkey)] {
        let gateway = start(&(config(&store, origin.address, USAGE) + LOOK));
        // A client that leaves in the middle: what was said so far, and what was reserved at least.
        for (said, expected) in [(30, 100), (250, 250)] {
            let user = format!("leaves {said}");
            let mut connection = Connection::open(gateway.address);
            let more = "data: {}\n\n".repeat(500);
            let body = format!("data: {{\"usage\":{{\"total\":{said}}}}}\n\n{more}");
            connection
                .send(format!(
                    "POST /trickle/20 HTTP/1.1\r\nHost: a\r\nx-user: {user}\r\nx-answer: {events}\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                ))
                .unwrap();
            // Some of it is there.
            let mut seen = Vec::new();
            while !String::from_utf8_lossy(&seen).contains("data: {}") {
                seen.extend(connection.bytes(1).unwrap());
            }
            drop(connection);
            gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
            assert_eq!(spent(&gateway, &user), expected, "{store} {user}");
        }
        // An upstream that breaks off.
        for (said, expected) in [(30, 100), (250, 250)] {
            let user = format!("breaks off {said}");
            let mut connection = Connection::open(gateway.address);
            let body = format!("data: {{\"usage\":{{\"total\":{said}}}}}\n\n");
            connection
                .send(format!(
                    "POST /cut HTTP/1.1\r\nHost: a\r\nx-user: {user}\r\nx-answer: {events}\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                ))
                .unwrap();
            assert!(connection.receive(false).is_err());
            gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
            assert_eq!(spent(&gateway, &user), expected, "{store} {user}");
        }
        // One that does not answer in time.
        let short =
            config(&store, origin.address, USAGE).replace("read = \"5s\"", "read = \"300ms\"");
        let gateway = start(&(short + LOOK));
        let mut connection = Connection::open(gateway.address);
        let answer = connection.ask("GET", "/slow/5000", &[("x-user", "timeout")]);
        assert_eq!(answer.status, 504);
        gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
        assert_eq!(spent(&gateway, "timeout"), 100);
        // One that is not there was not asked for anything.
        let gateway = start(&(config(&store, free_address(), USAGE) + LOOK));
        let mut connection = Connection::open(gateway.address);
        let answer = connection.ask("GET", "/", &[("x-user", "nowhere")]);
        assert_eq!(answer.status, 502);
        gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
        assert_eq!(spent(&gateway, "nowhere"), 0);
    }
}

#[test]
fn what_does_not_count_by_its_status_costs_nothing_whatever_it_says() {
    let origin = Origin::start();
    let text = config("", origin.address, USAGE).replace(
        "on_missing_key = \"empty\"\n",
        "on_missing_key = \"empty\"\ncount = { not_on = [204, \"5xx\"] }\n",
    ) + LOOK;
    let gateway = start(&text);
    let mut connection = Connection::open(gateway.address);
    for (path, expected) in [("/status/503", 0), ("/status/404", 100), ("/answer", 30)] {
        let body = "{\"usage\":{\"total\":30}}";
        answered(
            &mut connection,
            path,
            path,
            &["content-type: application/json"],
            body,
        );
        let look = connection.ask("GET", "/look", &[("x-user", path)]);
        assert_eq!(1000 - left(&look), expected, "{path}");
    }
}

/// A tokens budget of 2,000, of which each stream reserves 500 and takes 300.
fn model(valkey: &Valkey, upstream: SocketAddr) -> String {
    config(
        &in_valkey(valkey),
        upstream,
        "{ from = \"response.json:/usage/total\", reserve = 500 }",
    )
    .replace("1000/d", "2000/d")
        + LOOK
}

/// An upstream of event streams that end when they are told to, and say then that they took 300.
struct Model {
    address: SocketAddr,
    open: Arc<std::sync::Mutex<Vec<std::net::TcpStream>>>,
}

impl Model {
    fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let model = Self {
            address: listener.local_addr().unwrap(),
            open: Arc::default(),
        };
        let open = Arc::clone(&model.open);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { continue };
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                    head.push(byte[0]);
                }
                let begun = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\ndata: {\"text\":\"a\"}\n\n";
                if stream.write_all(begun.as_bytes()).is_ok() {
                    open.lock().unwrap().push(stream);
                }
            }
        });
        model
    }

    /// Ends all streams that are open, and says how many these were.
    fn end(&self) -> usize {
        let open = std::mem::take(&mut *self.open.lock().unwrap());
        for mut stream in &open {
            // A gateway whose client has left is gone, too.
            let _ = stream.write_all(b"data: {\"usage\":{\"total\":300}}\n\ndata: [DONE]\n\n");
        }
        open.len()
    }
}

/// Ten clients ask at once, on two gateways in turn. Returns the connections of those whose stream has begun.
fn ten_streams(addresses: [SocketAddr; 2]) -> Vec<Connection> {
    let together = Arc::new(Barrier::new(10));
    let clients: Vec<_> = (0..10)
        .map(|number: usize| {
            let (address, together) = (addresses[number % 2], Arc::clone(&together));
            thread::spawn(move || {
                let mut connection = Connection::open(address);
                together.wait();
                connection
                    .send("GET /v1/chat HTTP/1.1\r\nHost: a\r\nx-user: ann\r\n\r\n")
                    .unwrap();
                let line = connection.bytes(12).unwrap();
                (line == b"HTTP/1.1 200").then_some(connection)
            })
        })
        .collect();
    clients
        .into_iter()
        .filter_map(|client| client.join().unwrap())
        .collect()
}

/// envoyproxy/ai-gateway #2394.
#[test]
fn ten_streams_at_once_never_exceed_the_budget_and_the_account_is_exact() {
    let (valkey, upstream) = (Valkey::start(), Model::start());
    let gateways = [(); 2].map(|()| start(&model(&valkey, upstream.address)));
    let addresses = gateways.each_ref().map(|gateway| gateway.address);
    let account = |gateway: &Gateway| {
        let mut connection = Connection::open(gateway.address);
        2000 - left(&connection.ask("GET", "/look", &[("x-user", "ann")]))
    };
    let settled = || {
        for gateway in &gateways {
            gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
        }
    };

    // Four reserves are all there is.
    let streams = ten_streams(addresses);
    assert_eq!(streams.len(), 4);
    assert_eq!(account(&gateways[0]), 2000);
    assert_eq!(upstream.end(), 4);
    for mut stream in streams {
        let mut rest = Vec::new();
        while !rest.ends_with(b"[DONE]\n\n\r\n0\r\n\r\n") {
            rest.extend(stream.bytes(1).unwrap());
        }
    }
    settled();
    assert_eq!(account(&gateways[1]), 1200);

    // 800 are left: one reserve. Its client leaves before it is said what it took: the reserve is what it costs.
    let streams = ten_streams(addresses);
    assert_eq!(streams.len(), 1);
    drop(streams);
    settled();
    upstream.end();
    assert_eq!(account(&gateways[0]), 1700);
    assert_eq!(ten_streams(addresses).len(), 0);
    assert_eq!(account(&gateways[1]), 1700);
    let units: f64 = gateways.iter().map(|gateway| gateway.metric(UNITS)).sum();
    assert!((units - 1700.0).abs() < f64::EPSILON, "{units}");
}

/// An example without its listeners, in front of this server.
fn example(name: &str, upstream: &str) -> String {
    let file = format!("{}/config/examples/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(file)
        .unwrap()
        .replace("[listeners.main]\naddress = \"127.0.0.1:8080\"\n", "")
        .replace("127.0.0.1:9000\"]", &format!("{upstream}\"]"))
}

#[test]
fn the_example_of_a_third_partys_quota_does_what_it_says() {
    let gateway = Gateway::start(&example("third-party-quota", ""));
    let ask = |target: &str| gateway.get(target);
    assert_eq!(left(&ask("/v1/items?type=search")), 9900);
    assert_eq!(left(&ask("/v1/items?type=list")), 9899);
    assert_eq!(left(&ask("/v1/items")), 9799);
    for _ in 0..97 {
        assert_eq!(ask("/v1/items?type=search").status, 200);
    }
    assert_eq!(ask("/v1/items?type=search").status, 429);
    let listing = ask("/v1/items?type=list");
    assert_eq!((listing.status, left(&listing)), (200, 98));
}

#[test]
fn the_example_of_a_language_model_does_what_it_says() {
    let origin = Origin::start();
    let gateway =
        Gateway::start(&example("llm", &origin.address.to_string()).replace("/v1/chat", "/answer"));
    let mut connection = Connection::open(gateway.address);
    let mut ask = |user: &str| {
        let body = "{\"text\": \"hello\", \"usage\": {\"total_tokens\": 300}}";
        let answer = answered(
            &mut connection,
            user,
            "/answer",
            &["content-type: application/json"],
            body,
        );
        (
            answer.status,
            answer.lines("ratelimit").collect::<Vec<_>>().concat(),
        )
    };
    let told = |text: &str| {
        text.split("\"tokens\";r=")
            .nth(1)
            .unwrap()
            .split(';')
            .next()
            .unwrap()
            .to_owned()
    };
    for expected in ["1500", "1200", "900", "600", "300", "0"] {
        let (status, fields) = ask("ann");
        assert_eq!(
            (status, told(&fields).as_str()),
            (200, expected),
            "{fields}"
        );
    }
    assert_eq!(ask("ann").0, 429);
    assert_eq!(ask("bob").0, 200);
}
