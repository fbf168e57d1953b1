//! Answers a client that was just denied and calls again on the same connection, without Pingora: a flood of requests
//! then costs its sender more than us.
//!
//! Only a head that can be read in one way, and that has no body and asks for nothing of the connection, is answered
//! here. Every other one goes to Pingora, as it came, and with what was decided of it.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header, request};
use pingora::http::ResponseHeader;
use pingora::protocols::http::date::get_cached_date;
use pingora::protocols::{GetSocketDigest, Shutdown, Stream};
use pingora::server::ShutdownWatch;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::Proxy;
use super::admit::{self, Admission};
use super::context::Context;
use super::forward;
use super::guarded::{Guarded, Phase};
use super::log::{self, Served};
use crate::answer::Answer;
use crate::check::cost::Body;

/// Heads are seldom longer.
const READ: usize = 4096;

/// Room for the next read, at least.
const READ_MIN: usize = 1024;

/// The longest head, with what follows it, that is looked at here.
const READ_MAX: usize = 16_384;

/// The most fields of a head that is answered here.
const FIELDS_MAX: usize = 64;

/// The fields that say where a request ends, or ask for more than an answer.
const NOT_HERE: [HeaderName; 4] = [
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::EXPECT,
    header::UPGRADE,
];

/// Answers what comes on a connection whose client was just denied, for as long as it is denied. Returns the connection
/// with what is to be served otherwise; `None` once it is over.
pub(super) async fn serve(
    stream: Stream,
    proxy: &Proxy,
    shutdown: &ShutdownWatch,
) -> Option<Stream> {
    let mut guarded = stream.into_any().downcast::<Guarded>().ok()?;
    let mut shutdown = shutdown.clone();
    // Pingora knows what becomes of connections then.
    let mut stopping = pin!(async move { shutdown.wait_for(|stopping| *stopping).await.is_ok() });
    let mut heads = Heads::new();
    // Whether what there is came with an earlier head, whose time is over.
    let mut is_left_over = false;
    loop {
        let head = loop {
            match heads.next() {
                Next::Head(head) => break head,
                Next::Other => {
                    guarded.replay(heads.rest());
                    return Some(guarded);
                }
                // Pingora knows how long a head may be, and take.
                Next::Partial
                    if heads.read.len() >= READ_MAX || (is_left_over && !heads.read.is_empty()) =>
                {
                    guarded.replay(heads.rest());
                    return Some(guarded);
                }
                Next::Partial => {}
            }
            heads.read.reserve(READ_MIN);
            tokio::select! {
                biased;
                read = guarded.read_buf(&mut heads.read) => match read {
                    Ok(0) => return None,
                    Ok(_) => is_left_over = false,
                    Err(_) => {
                        Shutdown::shutdown(&mut *guarded).await;
                        return None;
                    }
                },
                _ = &mut stopping => {
                    guarded.replay(heads.rest());
                    return Some(guarded);
                }
            }
        };
        is_left_over = true;
        guarded.turn(Phase::Rest);
        let mut ctx = Context::new(proxy.current.get());
        let digest = guarded.get_socket_digest();
        ctx.peer_ip = forward::ip_of(digest.as_ref().and_then(|digest| digest.peer_addr()));
        let gateway = Arc::clone(&ctx.gateway);
        let admission =
            admit::admit(&gateway, &head.parts, &head.target, Body::None, &mut ctx).await;
        let answer = match admission {
            Admission::Refuse(answer) => *answer,
            Admission::Serve(delay) => {
                guarded.turn(Phase::Head);
                guarded.replay(heads.rest_after(&head));
                guarded.admit(Admitted {
                    head: head.raw,
                    ctx,
                    delay,
                });
                return Some(guarded);
            }
        };
        guarded.took(head.raw.len());
        ctx.stop_own_time();
        let last = proxy.leaving.load(Ordering::Relaxed);
        let (status, bytes_out) = (answer.status.as_u16(), answer.body.len());
        let is_sent = send(&mut guarded, answer, last).await;
        if !is_sent {
            ctx.error = Some("the client left before the answer was sent");
        }
        let served = Served {
            head: &head.parts,
            status: if is_sent { status } else { ctx.unsent_status },
            bytes_in: 0,
            bytes_out: if is_sent { bytes_out } else { 0 },
        };
        log::record(&gateway, &served, &mut ctx);
        if !is_sent || last {
            Shutdown::shutdown(&mut *guarded).await;
            return None;
        }
        guarded.turn(Phase::Head);
        if ctx.denied.is_none() {
            guarded.replay(heads.rest());
            return Some(guarded);
        }
    }
}

/// What was decided of a request that Pingora is to serve.
#[derive(Debug)]
pub(super) struct Admitted {
    /// The request's head, as it came.
    pub(super) head: Bytes,
    pub(super) ctx: Context,
    pub(super) delay: Duration,
}

/// Sends an answer, at one go. Returns whether the client took it.
async fn send(guarded: &mut Guarded, answer: Answer, last: bool) -> bool {
    let mut wire = BytesMut::with_capacity(1024);
    write(answer, last, &mut wire);
    guarded.write_all(&wire).await.is_ok() && guarded.flush().await.is_ok()
}

/// The answer as it is sent, with the fields that Pingora adds to every answer.
fn write(answer: Answer, last: bool, wire: &mut BytesMut) {
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = answer.status;
    parts.headers = answer.headers;
    wire.extend_from_slice(b"HTTP/1.1 ");
    wire.extend_from_slice(answer.status.as_str().as_bytes());
    wire.extend_from_slice(b" ");
    let reason = answer.status.canonical_reason().unwrap_or_default();
    wire.extend_from_slice(reason.as_bytes());
    wire.extend_from_slice(b"\r\n");
    ResponseHeader::from(parts).header_to_h1_wire(wire);
    wire.extend_from_slice(b"Date: ");
    wire.extend_from_slice(get_cached_date().as_bytes());
    wire.extend_from_slice(if last {
        b"\r\nConnection: close\r\n\r\n"
    } else {
        b"\r\nConnection: keep-alive\r\n\r\n"
    });
    wire.extend_from_slice(&answer.body);
}

/// The heads that come on a connection.
struct Heads {
    read: BytesMut,
    /// Where the line begins that is still to end.
    line: usize,
    /// How far its end was looked for.
    looked: usize,
}

enum Next {
    /// More is to come.
    Partial,
    /// A head that can be read in one way.
    Head(Box<Head>),
    /// Anything else.
    Other,
}

struct Head {
    parts: request::Parts,
    /// The target as it came.
    target: Bytes,
    /// All of it as it came.
    raw: Bytes,
}

impl Heads {
    fn new() -> Self {
        Self {
            read: BytesMut::with_capacity(READ),
            line: 0,
            looked: 0,
        }
    }

    fn next(&mut self) -> Next {
        let end = loop {
            let mut unseen = self.read.iter().skip(self.looked);
            let Some(feed) = unseen.position(|byte| *byte == b'\n') else {
                self.looked = self.read.len();
                return Next::Partial;
            };
            let feed = self.looked + feed;
            match self.read.get(self.line..feed) {
                Some(b"\r") => break feed + 1,
                // A line that ends in another way, some read and some do not.
                Some(line) if line.ends_with(b"\r") => {
                    (self.line, self.looked) = (feed + 1, feed + 1);
                }
                _ => return Next::Other,
            }
        };
        let raw = self.read.split_to(end).freeze();
        (self.line, self.looked) = (0, 0);
        match parse(&raw) {
            Some((parts, target)) => Next::Head(Box::new(Head { parts, target, raw })),
            None => {
                self.put_back(&raw);
                Next::Other
            }
        }
    }

    fn put_back(&mut self, raw: &[u8]) {
        let mut all = BytesMut::with_capacity(raw.len() + self.read.len());
        all.extend_from_slice(raw);
        all.extend_from_slice(&self.read);
        self.read = all;
    }

    /// What was read and not served.
    fn rest(self) -> Bytes {
        self.read.freeze()
    }

    /// The same, and a head that is not served either.
    fn rest_after(mut self, head: &Head) -> Bytes {
        self.put_back(&head.raw);
        self.rest()
    }
}

/// A head that can be read in one way, and is all of its request; every line of `raw` ends in CR and LF.
fn parse(raw: &Bytes) -> Option<(request::Parts, Bytes)> {
    if !raw.first()?.is_ascii_uppercase() {
        return None;
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let whole = request.parse(raw).ok()? == httparse::Status::Complete(raw.len());
    if !whole || request.version != Some(1) {
        return None;
    }
    let method = Method::from_bytes(request.method?.as_bytes()).ok()?;
    let target = raw.slice_ref(request.path?.as_bytes());
    if method == Method::CONNECT || !is_plain(&target) {
        return None;
    }
    let mut headers = HeaderMap::with_capacity(request.headers.len());
    for field in request.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes()).ok()?;
        let is_kept = field.value.eq_ignore_ascii_case(b"keep-alive");
        if NOT_HERE.contains(&name) || (name == header::CONNECTION && !is_kept) {
            return None;
        }
        let value = HeaderValue::from_maybe_shared(raw.slice_ref(field.value)).ok()?;
        headers.append(name, value);
    }
    if headers.get_all(header::HOST).iter().count() != 1 {
        return None;
    }
    let uri = Uri::from(PathAndQuery::from_maybe_shared(target.clone()).ok()?);
    let (mut parts, ()) = http::Request::new(()).into_parts();
    parts.method = method;
    parts.uri = uri;
    parts.headers = headers;
    Some((parts, target))
}

/// Whether a target is a path of bytes that everybody leaves as they are.
fn is_plain(target: &[u8]) -> bool {
    target.starts_with(b"/")
        && target
            .iter()
            .all(|byte| byte.is_ascii_graphic() && !b"\"#<>\\^`{|}".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(text: &str) -> (Next, Bytes) {
        let mut heads = Heads::new();
        heads.read.extend_from_slice(text.as_bytes());
        (heads.next(), heads.rest())
    }

    #[test]
    fn a_plain_head_is_read_and_what_follows_it_is_kept() {
        let head = "GET /v1/a%20b?c=d HTTP/1.1\r\nHost: a.example\r\nX-Key: b\r\nconnection: Keep-Alive\r\n\r\n";
        let (Next::Head(read), rest) = next(&format!("{head}GET /next")) else {
            panic!("not read");
        };
        assert_eq!(&*read.target, b"/v1/a%20b?c=d");
        assert_eq!(read.parts.uri.path(), "/v1/a%20b");
        assert_eq!(read.parts.uri.query(), Some("c=d"));
        assert_eq!(read.parts.headers.get("x-key").unwrap(), "b");
        assert_eq!(&*read.raw, head.as_bytes());
        assert_eq!(&*rest, b"GET /next");
    }

    #[test]
    fn a_head_that_comes_byte_by_byte_is_read_at_its_end() {
        let text = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let mut heads = Heads::new();
        let (last, before) = text.as_bytes().split_last().unwrap();
        for byte in before {
            heads.read.extend_from_slice(&[*byte]);
            assert!(matches!(heads.next(), Next::Partial));
        }
        heads.read.extend_from_slice(&[*last]);
        assert!(matches!(heads.next(), Next::Head(_)));
    }

    #[test]
    fn whatever_else_may_be_meant_is_left_to_pingora_as_it_came() {
        for head in [
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\ntransfer-encoding: chunked\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, x\r\n\r\n",
            "GET / HTTP/1.0\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /#a HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /\\a HTTP/1.1\r\nHost: a\r\n\r\n",
            "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n",
            "\u{16}\u{3}\u{1}\n",
        ] {
            let (next, rest) = next(head);
            assert!(matches!(next, Next::Other), "{head:?}");
            assert_eq!(&*rest, head.as_bytes(), "{head:?}");
        }
    }
}
