//! The record of a request: its metrics and its line in the access log. Always, once.

use std::net::IpAddr;
use std::time::Duration;

use http::request;
use pingora::proxy::Session;

use super::context::Context;
use super::forward;
use super::gateway::Gateway;
use super::respond;
use crate::check::Ruling;
use crate::check::entity::hashed_address;
use crate::client::address;
use crate::clock::{monotonic_now, wall_now_us};
use crate::config::ClientIpInLogs;
use crate::decide::{Penalised, Verdict};
use crate::record::access_log::Entry;
use crate::record::metrics::Fault;

/// A request, and what was answered.
#[derive(Debug)]
pub struct Served<'s> {
    /// Its head.
    pub head: &'s request::Parts,
    /// The status that was sent.
    pub status: u16,
    /// Bytes of its body.
    pub bytes_in: usize,
    /// Bytes of the answer's body.
    pub bytes_out: usize,
}

impl<'s> Served<'s> {
    /// What Pingora served.
    #[must_use]
    pub fn of(session: &'s Session, ctx: &Context) -> Self {
        let downstream = session.as_downstream();
        Self {
            head: session.req_header().as_ref(),
            status: respond::sent(session).map_or(ctx.unsent_status, |head| head.status.as_u16()),
            bytes_in: downstream.body_bytes_read(),
            bytes_out: downstream.body_bytes_sent(),
        }
    }
}

/// Records a request that is over.
pub fn record(gateway: &Gateway, served: &Served<'_>, ctx: &mut Context) {
    ctx.stop_own_time();
    let now = monotonic_now();
    let took = now.saturating_duration_since(ctx.started);
    let own_time = ctx.own_time.unwrap_or_default();
    gateway
        .metrics
        .families()
        .overhead
        .observe(own_time.as_secs_f64());
    let route = ctx.route.as_deref();
    gateway
        .metrics
        .route(route.map(|route| route.index))
        .request(
            served.head.method.as_str(),
            served.status,
            took.as_secs_f64(),
        );
    forward::count(gateway, ctx, now);
    if is_logged(gateway, ctx) {
        append(gateway, served, ctx, took, own_time);
    }
}

/// Records a request whose head was not read: nothing is known of it but who sent it, and why not.
pub fn record_unread(
    gateway: &Gateway,
    peer_ip: Option<IpAddr>,
    status: u16,
    fault: Fault,
    error: &'static str,
) {
    gateway.metrics.families().bad_request(fault);
    gateway.metrics.route(None).request("", status, 0.0);
    let told = told(gateway, peer_ip);
    let entry = Entry {
        ts: &timestamp(wall_now_us()),
        client_ip: &told,
        peer_ip: &told,
        status,
        decision: "none",
        error: Some(error),
        ..Entry::default()
    };
    if !gateway.access_log.append(&entry) {
        gateway.metrics.families().access_log_suppressed.inc();
    }
}

/// Denials and errors always are; of the rest so many percent.
fn is_logged(gateway: &Gateway, ctx: &Context) -> bool {
    let wanted = ctx.route.as_ref().is_none_or(|route| route.access_log);
    let percent = gateway.config.logs.access_sample_percent;
    wanted
        && (ctx.denied.is_some()
            || ctx.error.is_some()
            || percent >= 100
            || fastrand::u8(..100) < percent)
}

fn append(
    gateway: &Gateway,
    served: &Served<'_>,
    ctx: &Context,
    took: Duration,
    own_time: Duration,
) {
    let head = served.head;
    let rulings = ctx.rulings();
    let telling = telling(&rulings);
    let ts = timestamp(ctx.started_at_us);
    let field = |name: http::HeaderName| {
        head.headers
            .get(name)
            .map(|value| String::from_utf8_lossy(value.as_bytes()))
            .unwrap_or_default()
    };
    let host = field(http::header::HOST);
    let user_agent = field(http::header::USER_AGENT);
    let entry = Entry {
        ts: &ts,
        request_id: ctx.request_id(),
        client_ip: &told(gateway, ctx.client.ip),
        peer_ip: &told(gateway, ctx.peer_ip),
        method: head.method.as_str(),
        host: &host,
        path: head.uri.path(),
        route: ctx.route.as_ref().map(|route| &*route.name),
        protocol: match head.version {
            http::Version::HTTP_10 => "HTTP/1.0",
            http::Version::HTTP_2 => "HTTP/2",
            _ => "HTTP/1.1",
        },
        status: served.status,
        bytes_in: served.bytes_in,
        bytes_out: served.bytes_out,
        duration_ms: millis(took),
        tollgate_ms: millis(own_time),
        queue_ms: (!ctx.queued.is_zero()).then(|| millis(ctx.queued)),
        upstream: forward::upstream(gateway, ctx)
            .filter(|_| ctx.upstream.started.is_some())
            .map(|(_, upstream)| &*upstream.name),
        upstream_addr: ctx.upstream.server.map(|server| server.to_string()),
        upstream_status: ctx.upstream.status.map(|status| status.as_u16()),
        upstream_ms: ctx
            .upstream
            .started
            .map(|started| millis(monotonic_now().saturating_duration_since(started))),
        retries: ctx.upstream.retries,
        decision: match (&ctx.denied, rulings.is_empty()) {
            (Some(denied), _) if denied.is_shed => "shed",
            (Some(_), _) => "deny",
            (None, false) => "allow",
            (None, true) => "none",
        },
        source: telling.map(|ruling| ruling.source.as_str()),
        policy: telling.map(|ruling| &*ruling.check.policy.name),
        limit: telling.map(|ruling| ruling.check.rule.count().get()),
        remaining: telling.map(|ruling| ruling.decision.remaining),
        penalty: telling
            .is_some_and(|ruling| ruling.denies() && ruling.decision.penalised != Penalised::No),
        retry_after_s: ctx.denied.and_then(|denied| denied.retry_after_s),
        shadow_denied: rulings
            .iter()
            .filter(|ruling| ruling.check.shadow && ruling.decision.verdict == Verdict::Deny)
            .map(|ruling| &*ruling.check.policy.name)
            .collect(),
        missing_key: ctx.missing_key.iter().map(|policy| &*policy.name).collect(),
        cost: telling.map(|ruling| {
            let spent = ctx.spent(ruling.check.policy);
            spent.unwrap_or(ruling.check.cost).units()
        }),
        tier: ctx.identity.tier.as_deref(),
        key_hash: telling.map(|ruling| ruling.check.entity.short_hash()),
        user_agent: &user_agent,
        error: ctx.error,
    };
    if !gateway.access_log.append(&entry) {
        gateway.metrics.families().access_log_suppressed.inc();
    }
}

/// The ruling that tells most: the one that denied, else the enforced one with the least left.
fn telling<'r, 'a>(rulings: &'r [Ruling<'a>]) -> Option<&'r Ruling<'a>> {
    rulings.iter().find(|ruling| ruling.denies()).or_else(|| {
        rulings
            .iter()
            .min_by_key(|ruling| (ruling.check.shadow, ruling.decision.remaining))
    })
}

/// An address as the log tells it.
fn told(gateway: &Gateway, ip: Option<IpAddr>) -> String {
    ip.map_or_else(String::new, |ip| match gateway.config.logs.client_ip {
        ClientIpInLogs::Full => ip.to_string(),
        ClientIpInLogs::Masked => address::masked(ip).to_string(),
        ClientIpInLogs::Hash => hashed_address(&gateway.config.store.key_secret, ip),
    })
}

/// RFC 3339 in UTC, to the millisecond.
fn timestamp(since_epoch_us: u64) -> String {
    i64::try_from(since_epoch_us)
        .ok()
        .and_then(|micros| jiff::Timestamp::from_microsecond(micros).ok())
        .map_or_else(String::new, |time| format!("{time:.3}"))
}

/// Milliseconds, to the microsecond.
fn millis(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}
