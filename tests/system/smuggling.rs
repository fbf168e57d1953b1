//! Requests that two readers may read as different ones: the upstream sees what was counted, and nothing else.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::gateway::Gateway;
use crate::support::http::Connection;
use crate::support::origin::Origin;

/// What is hidden in a body or behind it.
const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";

/// What is sent on a connection, what is answered on it, and the targets that the upstream then sees.
struct Case {
    name: String,
    sent: Vec<u8>,
    answers: Vec<u16>,
    seen: Vec<&'static str>,
}

impl Case {
    /// Whether its body is none to us, though it looks like one.
    fn loses_body(&self) -> bool {
        self.name == "a chunk of no size"
    }
}

fn case(name: &str, sent: impl Into<Vec<u8>>, answers: &[u16], seen: &[&'static str]) -> Case {
    Case {
        name: name.to_owned(),
        sent: sent.into(),
        answers: answers.to_vec(),
        seen: seen.to_vec(),
    }
}

/// A POST with these fields and this body, and the hidden request behind it.
fn post(fields: &str, body: &str) -> String {
    format!("POST /a HTTP/1.1\r\nHost: a\r\n{fields}\r\n{body}{HIDDEN}")
}

fn get(fields: &str) -> String {
    format!("GET /a HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

/// Each is refused, and what stands behind it is not read.
fn refused() -> Vec<Case> {
    let chunked = |body: &str| post("Transfer-Encoding: chunked\r\n", body);
    let bodies = [
        (
            "lengths that differ",
            post("Content-Length: 4\r\nContent-Length: 5\r\n", "body"),
        ),
        (
            "lengths that differ in a line",
            post("Content-Length: 4, 5\r\n", "body"),
        ),
        (
            "one length twice",
            post("Content-Length: 4\r\nContent-Length: 4\r\n", "body"),
        ),
        (
            "one length twice in a line",
            post("Content-Length: 4, 4\r\n", "body"),
        ),
        (
            "a length with a sign",
            post("Content-Length: +4\r\n", "body"),
        ),
        ("a negative length", post("Content-Length: -1\r\n", "")),
        (
            "a hexadecimal length",
            post("Content-Length: 0x4\r\n", "body"),
        ),
        ("an empty length", post("Content-Length:\r\n", "")),
        (
            "a length beyond numbers",
            post("Content-Length: 99999999999999999999\r\n", ""),
        ),
        (
            "a space before the colon",
            post("Content-Length : 4\r\n", "body"),
        ),
        (
            "a coding that is none",
            post("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n"),
        ),
        (
            "chunked, but not at last",
            post("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n"),
        ),
        (
            "chunked, and then another",
            post(
                "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n",
                "0\r\n\r\n",
            ),
        ),
        (
            "identity",
            post("Transfer-Encoding: identity\r\n", "0\r\n\r\n"),
        ),
        (
            "a vertical tab",
            post("Transfer-Encoding: \x0bchunked\r\n", "0\r\n\r\n"),
        ),
        (
            "a coding with a space",
            post("Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        ),
        (
            "a coding of an old client",
            format!(
                "POST /a HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"
            ),
        ),
        (
            "a chunk whose size is no number",
            chunked("zz\r\nbody\r\n0\r\n\r\n"),
        ),
        (
            "a chunk of negative size",
            chunked("-4\r\nbody\r\n0\r\n\r\n"),
        ),
        (
            "a chunk size with a prefix",
            chunked("0x4\r\nbody\r\n0\r\n\r\n"),
        ),
        (
            "a chunk size beyond numbers",
            chunked("10000000000000004\r\nbody\r\n0\r\n\r\n"),
        ),
        (
            "more in a chunk than its size",
            chunked("4\r\nbody!!\r\n0\r\n\r\n"),
        ),
        (
            "less in a chunk than its size",
            chunked("6\r\nbody\r\n0\r\n\r\n"),
        ),
        (
            "a chunk extension without end",
            chunked(&format!("4;x={}\r\nbody\r\n0\r\n\r\n", "y".repeat(100_000))),
        ),
        (
            "trailers without end",
            chunked(&format!("0\r\nx: {}\r\n\r\n", "y".repeat(100_000))),
        ),
    ];
    let heads = [
        ("two hosts", get("Host: b\r\n")),
        ("a folded field", get("X: y\r\n z\r\n")),
        (
            "a folded coding",
            post("Transfer-Encoding:\r\n chunked\r\n", "0\r\n\r\n"),
        ),
        ("a NUL in a value", get("X: a\0b\r\n")),
        ("a NUL in a name", get("X\0: a\r\n")),
        ("a lone carriage return", get("X: a\rY: b\r\n")),
        ("a field without a colon", get("nonsense\r\n")),
        ("a field without a name", get(": x\r\n")),
        ("a name with a space", get("X Y: z\r\n")),
        ("a request of HTTP/0.9", "GET /a\r\n\r\n".to_owned()),
        (
            "a version that is none",
            "GET /a HTTP/1.2\r\nHost: a\r\n\r\n".to_owned(),
        ),
        (
            "a version to come",
            "GET /a HTTP/2.0\r\nHost: a\r\n\r\n".to_owned(),
        ),
        (
            "the preface of HTTP/2",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        ),
        ("no host", "GET /a HTTP/1.1\r\n\r\n".to_owned()),
        (
            "a target of another host",
            "GET http://b/a HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        ),
        (
            "a target with a user",
            "GET http://a@b/a HTTP/1.1\r\nHost: b\r\n\r\n".to_owned(),
        ),
        (
            "a host with a user",
            "GET /a HTTP/1.1\r\nHost: a@b\r\n\r\n".to_owned(),
        ),
        (
            "a connection that takes the host away",
            get("Connection: Host\r\n"),
        ),
        (
            "a connection that takes the caller away",
            get("Connection: close, X-Forwarded-For\r\n"),
        ),
        (
            "a connection with a quoted name",
            get("Connection: \"x\"\r\n"),
        ),
        (
            "a connection of many names",
            get(&format!("Connection: {}\r\n", "x, ".repeat(20))),
        ),
        (
            "more fields than there may be",
            get(&"X: y\r\n".repeat(300)),
        ),
    ];
    let large = [
        (
            "a large field",
            get(&format!("X: {}\r\n", "y".repeat(100_000))),
        ),
        (
            "many large fields",
            get(&format!("X: {}\r\n", "y".repeat(1000)).repeat(100)),
        ),
        (
            "a long target",
            format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", "a".repeat(100_000)),
        ),
        (
            "a first line without end",
            format!("GET /{}", "a".repeat(100_000)),
        ),
    ];
    let bad = bodies.into_iter().chain(heads);
    let bad = bad.map(|(name, sent)| case(name, sent, &[400], &[]));
    let large = large
        .into_iter()
        .map(|(name, sent)| case(name, sent, &[431], &[]));
    bad.chain(large).collect()
}

/// Each is one request to whoever reads it, and what stands behind it is another.
fn served() -> Vec<Case> {
    let both = ["/a", "/hidden"];
    let chunks = "4\r\nbody\r\n0\r\n\r\n";
    let chunked = |body: &str| post("Transfer-Encoding: chunked\r\n", body);
    let pairs = [
        ("a body", post("Content-Length: 4\r\n", "body")),
        ("chunks", chunked(chunks)),
        (
            "chunks in capitals",
            post("TRANSFER-ENCODING: CHUNKED\r\n", chunks),
        ),
        (
            "a chunk extension",
            chunked("4;x=\"y\"\r\nbody\r\n0;z\r\n\r\n"),
        ),
        ("leading zeros", chunked("0000004\r\nbody\r\n000\r\n\r\n")),
        (
            "trailers that frame",
            chunked("4\r\nbody\r\n0\r\nContent-Length: 50\r\nTransfer-Encoding: x\r\n\r\n"),
        ),
        // As good as zero; what follows are trailers, and nobody is sent them.
        ("a chunk of no size", chunked("\r\nbody: x\r\n0: x\r\n\r\n")),
        (
            "a name that only looks like one",
            post(
                "Content-Length: 4\r\nTransfer_Encoding: chunked\r\n",
                "body",
            ),
        ),
        (
            "a length that is the connection's",
            post(
                "Content-Length: 4\r\nConnection: keep-alive, Content-Length\r\n",
                "body",
            ),
        ),
        (
            "a coding that is the connection's",
            post(
                "Transfer-Encoding: chunked\r\nConnection: Transfer-Encoding\r\n",
                chunks,
            ),
        ),
        ("no body", format!("{}{HIDDEN}", get(""))),
        (
            "bare line feeds",
            format!("GET /a HTTP/1.1\nHost: a\n\n{HIDDEN}"),
        ),
        (
            "empty lines first",
            format!("\r\n\r\n{}\r\n{HIDDEN}", get("")),
        ),
        (
            "an upgrade to HTTP/2",
            format!(
                "{}{HIDDEN}",
                get(
                    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
                )
            ),
        ),
        (
            "an upgrade that is not taken",
            format!(
                "{}{HIDDEN}",
                get(
                    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
                )
            ),
        ),
        (
            "a GET with a body",
            format!("GET /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody{HIDDEN}"),
        ),
    ];
    let mut cases: Vec<_> = pairs
        .into_iter()
        .map(|(name, sent)| case(name, sent, &[200, 200], &both))
        .collect();
    cases.extend([
        // The connection ends: nobody knows where the next request begins.
        case(
            "a length and chunks",
            post(
                "Content-Length: 60\r\nTransfer-Encoding: chunked\r\n",
                "0\r\n\r\n",
            ),
            &[200],
            &["/a"],
        ),
        case(
            "an old client's body",
            format!("POST /a HTTP/1.0\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody{HIDDEN}"),
            &[200],
            &["/a"],
        ),
        case(
            "many in one packet",
            get("").repeat(100),
            &[200; 100],
            &["/a"; 100],
        ),
        case(
            "nonsense behind a good one",
            format!("{}\0\0\0\r\n\r\n{HIDDEN}", get("")),
            &[200, 400],
            &["/a"],
        ),
    ]);
    cases
}

/// The answers that come on the connection: as many as are expected, and any more.
fn answers(connection: &mut Connection, expected: usize) -> Vec<u16> {
    let mut statuses = Vec::new();
    while statuses.len() < expected || connection.is_readable_within(Duration::from_millis(50)) {
        match connection.receive(false) {
            Ok(answer) => statuses.push(answer.status),
            Err(_) => break,
        }
    }
    statuses
}

#[test]
fn the_upstream_sees_what_was_counted_and_nothing_else() {
    let origin = Origin::start();
    let mut gateway = Gateway::start(&format!(
        "[server]\nlimits = {{ max_header = \"16KiB\", header_timeout = \"2s\", body_timeout = \"2s\" }}\n\
         [upstreams.api]\nservers = [\"{}\"]\n\
         [policies.all]\nkind = \"fixed-window\"\nlimit = \"100000/d\"\nanchor = \"first-request\"\nkey = \"ip\"\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"api\"\npolicies = [\"all\"]\n",
        origin.address
    ));
    let mut wrong = Vec::new();
    let mut seen = Vec::new();
    for case in refused().into_iter().chain(served()) {
        let mut connection = Connection::open(gateway.address);
        // Who is refused before the last byte need not take the rest.
        let _ = connection.send(&case.sent);
        let found = answers(&mut connection, case.answers.len());
        // Those who mean no harm are served at once.
        assert_eq!(gateway.get("/good").status, 200, "after {}", case.name);
        let mut new = origin.take();
        new.retain(|request| request.target != "/good");
        let targets: Vec<_> = new.iter().map(|request| request.target.as_str()).collect();
        let has_body = case.sent.windows(4).any(|bytes| bytes == b"body") && !case.loses_body();
        let whole = new.iter().all(|request| {
            let is_first = request.target == "/a";
            request.body == if is_first && has_body { "body" } else { "" }.as_bytes()
        });
        let upgraded = new
            .iter()
            .any(|request| request.lines("upgrade").contains(&"h2c"));
        if found != case.answers || targets != case.seen || !whole || upgraded {
            wrong.push(format!("{}: {found:?} {new:?}", case.name));
        }
        seen.append(&mut new);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");

    // What the upstream saw is what the log says that it was sent: each of them once.
    gateway.stop();
    let mut logged: HashMap<String, serde_json::Value> = HashMap::new();
    for line in gateway.access_log().lines() {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap();
        if entry["upstream_status"] == 200 && entry["path"] != "/good" {
            let id = entry["request_id"].as_str().unwrap().to_owned();
            assert!(logged.insert(id, entry).is_none(), "{line}");
        }
    }
    for request in &seen {
        let ids = request.lines("x-request-id");
        assert_eq!(ids.len(), 1, "{request:?}");
        let entry = logged.remove(ids[0]);
        let entry = entry.unwrap_or_else(|| panic!("not in the log: {request:?}"));
        assert_eq!(
            (&entry["method"], &entry["path"]),
            (
                &request.method.as_str().into(),
                &request.target.as_str().into()
            )
        );
        assert_eq!(entry["decision"], "allow");
    }
    assert!(logged.is_empty(), "the upstream has not seen {logged:?}");
}

#[test]
fn who_is_refused_for_the_form_of_the_request_is_not_charged() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        "[upstreams.api]\nservers = [\"{}\"]\n\
         [policies.few]\nkind = \"fixed-window\"\nlimit = \"3/d\"\nanchor = \"first-request\"\nkey = \"ip\"\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"api\"\npolicies = [\"few\"]\n",
        origin.address
    ));
    for case in refused() {
        // A body is read once its request has been let pass.
        if case.sent.starts_with(b"POST") {
            continue;
        }
        let mut connection = Connection::open(gateway.address);
        let _ = connection.send(&case.sent);
        if case.name != "a first line without end" {
            answers(&mut connection, 1);
        }
    }
    for status in [200, 200, 200, 429] {
        assert_eq!(gateway.get("/good").status, status);
    }
}
