//! Towards the upstream: which server, which header fields, and what its failures mean.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, EXPECT, HOST, HeaderName};
use http::{HeaderMap, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::prelude::HttpPeer;
use pingora::{Error, ErrorSource, ErrorType};
use tracing::warn;

use super::context::Context;
use super::gateway::Gateway;
use crate::answer;
use crate::check::KeySource;
use crate::client::forwarded;
use crate::clock::monotonic_now;
use crate::config::{Action, Config, Upstream};
use crate::record::metrics::CodeClass;
use crate::route::path;

/// The fields by which an upstream knows who calls.
const TOLD_BY_US: [&str; 6] = [
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
    "x-request-id",
];

/// The field of a request's id.
pub static X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The server that this request goes to.
pub fn peer(ctx: &mut Context) -> pingora::Result<Box<HttpPeer>> {
    let gateway = Arc::clone(&ctx.gateway);
    let (index, upstream) = upstream(&gateway, ctx).ok_or_else(no_server)?;
    let pool = gateway.pools.get(index).ok_or_else(no_server)?;
    let stop = pool.next(ctx.upstream.server).ok_or_else(no_server)?;
    ctx.upstream.server = Some(stop.address);
    ctx.upstream.started.get_or_insert_with(monotonic_now);
    let mut peer = pool.peer(stop);
    let times = upstream.timeouts;
    let left = |time: Duration| time_left(ctx).map_or(time, |left| left.min(time));
    peer.options.connection_timeout = Some(left(times.connect));
    peer.options.total_connection_timeout = Some(left(times.connect));
    peer.options.read_timeout = Some(left(times.read));
    peer.options.write_timeout = Some(left(times.write));
    peer.options.idle_timeout = Some(times.idle);
    Ok(Box::new(peer))
}

/// What is left of the route's time; `None` without a limit.
pub fn time_left(ctx: &Context) -> Option<Duration> {
    let limit = ctx.route.as_ref()?.timeout?;
    let spent = monotonic_now()
        .saturating_duration_since(ctx.started)
        .saturating_sub(ctx.queued);
    // At least something: a timeout of nothing is never told from no timeout.
    Some(limit.saturating_sub(spent).max(Duration::from_millis(1)))
}

/// Whether the route's time is over.
pub fn out_of_time(ctx: &Context) -> bool {
    time_left(ctx).is_some_and(|left| left <= Duration::from_millis(1))
}

/// The upstream of the request's route, and its position.
pub fn upstream<'g>(gateway: &'g Gateway, ctx: &Context) -> Option<(usize, &'g Upstream)> {
    match ctx.route.as_ref()?.action {
        Action::Forward(index) => Some((index, gateway.config.upstreams.get(index)?)),
        Action::Respond(..) => None,
    }
}

fn no_server() -> Box<Error> {
    Error::explain(
        ErrorType::HTTPStatus(StatusCode::SERVICE_UNAVAILABLE.as_u16()),
        "the upstream has no server",
    )
}

/// Fits the request's head to its upstream. Runs again for each server that is tried: it sets, and does not add.
pub fn request_head(
    original: &RequestHeader,
    forwarded_head: &mut RequestHeader,
    ctx: &Context,
) -> pingora::Result<()> {
    let Some(route) = &ctx.route else {
        return Ok(());
    };
    let host = original
        .headers
        .get(HOST)
        .and_then(|host| host.to_str().ok())
        .unwrap_or_default();
    let fields = forwarded::outgoing(
        &ctx.gateway.config.client_ip,
        ctx.client,
        ctx.peer_ip,
        host,
        ctx.encrypted,
        &original.headers,
    );
    for (name, value) in fields {
        let Some(value) = value else {
            forwarded_head.remove_header(&name);
            continue;
        };
        // A name that lives for ever is not copied.
        match TOLD_BY_US.iter().find(|known| **known == name.as_str()) {
            Some(known) => forwarded_head.insert_header(*known, value)?,
            None => forwarded_head.insert_header(name, value)?,
        }
    }
    if ctx.awaited_body.is_some() {
        // The client was asked already, and the body is there.
        forwarded_head.remove_header(&EXPECT);
    }
    if route.reads_answers {
        // Nobody reads a cost in what is compressed.
        forwarded_head.remove_header(&ACCEPT_ENCODING);
    }
    drop_look_alikes(forwarded_head, &ctx.gateway.config);
    forwarded_head.insert_header(X_REQUEST_ID.as_str(), ctx.request_id.clone())?;
    if let Some(host) =
        upstream(&ctx.gateway, ctx).and_then(|(_, upstream)| upstream.host_header.as_ref())
    {
        forwarded_head.insert_header(HOST, host)?;
    }
    for (name, value) in &route.add_headers {
        forwarded_head.insert_header(name, value)?;
    }
    fit_path(forwarded_head, route.strip_prefix.as_deref());
    Ok(())
}

/// Takes away what an application behind CGI or WSGI could not tell from the fields that say who calls, or that
/// policies count by: there an underscore is a hyphen.
fn drop_look_alikes(head: &mut RequestHeader, config: &Config) {
    let counts_by = |read: &str| {
        let mut sources = config.policies.iter().flat_map(|policy| &policy.key);
        sources.any(|source| matches!(source, KeySource::Header(name) if name.as_str() == read))
    };
    let settings = &config.client_ip;
    let look_alikes: Vec<_> = head
        .headers
        .keys()
        .filter(|name| name.as_str().as_bytes().contains(&b'_'))
        .filter(|name| {
            let read = name.as_str().replace('_', "-");
            let tier = settings.tier_header.as_ref();
            TOLD_BY_US.contains(&read.as_str())
                || tier.is_some_and(|tier| tier.as_str() == read)
                || counts_by(&read)
        })
        .cloned()
        .collect();
    for name in look_alikes {
        head.remove_header(&name);
    }
}

/// Resolves dot segments, so that the upstream serves the path that was limited, and takes the prefix off.
fn fit_path(head: &mut RequestHeader, prefix: Option<&str>) {
    let sent = head.uri.path();
    let resolved = path::resolved(sent);
    let fitted = prefix
        .and_then(|prefix| path::without_prefix(&resolved, prefix))
        .unwrap_or(&resolved);
    // A target that is a whole URI goes to a proxy; an origin is sent its path.
    if fitted == sent && head.raw_path().starts_with(b"/") {
        return;
    }
    let query = head
        .uri
        .query()
        .map_or_else(String::new, |query| format!("?{query}"));
    if let Ok(uri) = format!("{fitted}{query}").parse() {
        head.set_uri(uri);
    }
}

/// Counts a piece of the request's body, and ends it where it is too large or too slow.
pub fn request_body(ctx: &mut Context, body: Option<&Bytes>) -> pingora::Result<()> {
    let length = u64::try_from(body.map_or(0, Bytes::len)).unwrap_or(u64::MAX);
    ctx.upstream.body_bytes = ctx.upstream.body_bytes.saturating_add(length);
    let max_body = ctx.gateway.config.server.max_body;
    let (status, why) = if max_body.is_some_and(|max| ctx.upstream.body_bytes > max) {
        (
            StatusCode::PAYLOAD_TOO_LARGE,
            "request body over server.limits.max_body",
        )
    } else if out_of_time(ctx) {
        (StatusCode::REQUEST_TIMEOUT, "the route's time is over")
    } else {
        return Ok(());
    };
    Error::e_explain(ErrorType::HTTPStatus(status.as_u16()), why)
}

/// Adds our fields to the upstream's answer, and remembers what it was.
pub fn response_head(
    head: &mut ResponseHeader,
    client_version: http::Version,
    ctx: &mut Context,
) -> pingora::Result<()> {
    if head.status.is_informational() {
        return Ok(());
    }
    ctx.upstream.status = Some(head.status);
    has_answered(ctx);
    if head.version < http::Version::HTTP_11 {
        // The version is ours: that of the upstream says nothing of this connection.
        head.set_version(http::Version::HTTP_11);
    }
    if client_version == http::Version::HTTP_10 {
        // Such a client knows no chunks: the body ends with the connection.
        head.remove_header(&http::header::TRANSFER_ENCODING);
    }
    let malformed = !ctx.rulings.is_empty() && put_fields(head, ctx)?;
    if !head.headers.contains_key(&X_REQUEST_ID) {
        head.insert_header(X_REQUEST_ID.as_str(), ctx.request_id.clone())?;
    }
    if let Some(series) =
        upstream(&ctx.gateway, ctx).and_then(|(index, _)| ctx.gateway.metrics.upstream(index))
    {
        if malformed {
            series.header_malformed.inc();
        }
        if matches!(
            head.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        ) {
            series.throttled.inc();
        }
    }
    Ok(())
}

/// All of the request was handed on.
pub fn has_sent(ctx: &mut Context) {
    ctx.upstream.sent.get_or_insert_with(monotonic_now);
}

/// The upstream began its answer, or was given up: from here on it is not asked anything. What it took to get the
/// request from the client is not its time.
pub fn has_answered(ctx: &mut Context) {
    if let Some(place) = &mut ctx.load {
        place.rest();
    }
    if let Some(since) = ctx.upstream.sent.or(ctx.upstream.started) {
        let now = monotonic_now();
        let took = now.saturating_duration_since(since);
        ctx.gateway.load.answered(now, took);
    }
}

/// Puts our fields beside those of the upstream. Returns whether its own were malformed.
fn put_fields(head: &mut ResponseHeader, ctx: &Context) -> pingora::Result<bool> {
    let mut fields = HeaderMap::new();
    for (name, value) in &head.headers {
        if answer::FIELDS.contains(name) {
            fields.append(name.clone(), value.clone());
        }
    }
    let before = fields.clone();
    let malformed = ctx.gateway.annotate(ctx, head.status, &mut fields);
    if fields == before {
        return Ok(malformed);
    }
    for name in before.keys() {
        head.remove_header(name);
    }
    let mut last = None;
    for (name, value) in fields {
        // A name comes once for all its lines; one that lives for ever is not copied.
        let known = name.and_then(|name| answer::FIELDS.iter().find(|known| **known == name));
        last = known.or(last);
        if let Some(name) = last {
            head.append_header(name.as_str(), value)?;
        }
    }
    Ok(malformed)
}

/// Whether another server is tried: nothing was sent yet, so that nothing happens twice.
pub fn may_retry(ctx: &mut Context) -> bool {
    let retries = upstream(&ctx.gateway, ctx).map_or(0, |(_, upstream)| upstream.retries);
    let again = ctx.upstream.retries < retries && !out_of_time(ctx);
    ctx.upstream.retries += usize::from(again);
    again
}

/// Says in the log why TLS to an upstream does not come about: once in a while, however many requests it fails.
pub fn tell_of_tls(ctx: &Context, error: &Error) {
    let is_of_tls = is_tls(error.etype());
    if let Some((index, upstream)) = upstream(&ctx.gateway, ctx).filter(|_| is_of_tls)
        && let Some(pool) = ctx.gateway.pools.get(index)
        && pool.may_tell(monotonic_now())
    {
        let address = ctx.upstream.server.map(|address| address.to_string());
        warn!(upstream = %upstream.name, address, %error, "no TLS to the upstream");
    }
}

/// Whether it is about TLS.
const fn is_tls(error: &ErrorType) -> bool {
    matches!(
        error,
        ErrorType::TLSHandshakeFailure | ErrorType::TLSHandshakeTimedout | ErrorType::InvalidCert
    )
}

/// The status that tells of a failure; `None` when there is nobody left to tell.
pub fn status_of(error: &Error) -> Option<StatusCode> {
    match (error.etype(), error.esource()) {
        (ErrorType::HTTPStatus(code), _) => StatusCode::from_u16(*code).ok(),
        (
            ErrorType::ConnectionClosed | ErrorType::ReadError | ErrorType::WriteError,
            ErrorSource::Downstream,
        ) => None,
        (ErrorType::ReadTimedout | ErrorType::WriteTimedout, ErrorSource::Downstream) => {
            Some(StatusCode::REQUEST_TIMEOUT)
        }
        (_, ErrorSource::Downstream) => Some(StatusCode::BAD_REQUEST),
        (
            ErrorType::ConnectTimedout | ErrorType::ReadTimedout | ErrorType::WriteTimedout,
            ErrorSource::Upstream,
        ) => Some(StatusCode::GATEWAY_TIMEOUT),
        (_, ErrorSource::Upstream) => Some(StatusCode::BAD_GATEWAY),
        (ErrorType::ConnectTimedout, _) => Some(StatusCode::GATEWAY_TIMEOUT),
        (ErrorType::ConnectRefused | ErrorType::ConnectError | ErrorType::ConnectNoRoute, _) => {
            Some(StatusCode::BAD_GATEWAY)
        }
        (error, _) if is_tls(error) => Some(StatusCode::BAD_GATEWAY),
        // The route's time is over.
        (ErrorType::ReadTimedout, _) => Some(StatusCode::GATEWAY_TIMEOUT),
        _ => Some(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// Counts what became of the request upstream.
pub fn count(gateway: &Gateway, ctx: &Context, now: Instant) {
    let Some(started) = ctx.upstream.started else {
        return;
    };
    if let Some(series) =
        upstream(gateway, ctx).and_then(|(index, _)| gateway.metrics.upstream(index))
    {
        let class = ctx.upstream.status.map_or(CodeClass::None, CodeClass::of);
        let took = now.saturating_duration_since(started);
        series.answered(class, took.as_secs_f64());
    }
}

/// The address of a peer of any kind of socket.
pub fn ip_of(address: Option<&pingora::protocols::l4::socket::SocketAddr>) -> Option<IpAddr> {
    address
        .and_then(|address| address.as_inet())
        .map(SocketAddr::ip)
        .map(crate::client::address::canonical)
}
