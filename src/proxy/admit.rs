//! From a request's head to what becomes of it. The way of a request, in order: client, route, check, decide.

use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{ACCEPT, CONTENT_LENGTH, HOST, ORIGIN};
use http::{StatusCode, Version, request};
use tracing::warn;

use super::Gateway;
use super::context::{Context, Denied, Ruled};
use crate::answer::{self, Answer, Asked, Refusal};
use crate::check::demand::demand;
use crate::check::entity::Caller;
use crate::check::{Demanded, Ruling, Source};
use crate::client;
use crate::clock;
use crate::decide::{Rule, Verdict};
use crate::record::metrics;
use crate::request::RequestView;
use crate::route::path::Normalised;
use crate::store::limiter::Outcome;
use crate::store::{Cause, StoreError};

/// The longest request id that is kept.
const REQUEST_ID_MAX: usize = 128;

/// What becomes of a request.
#[derive(Debug)]
pub enum Admission {
    /// It is answered with this.
    Refuse(Box<Answer>),
    /// It is served, after this wait.
    Serve(Duration),
}

/// Decides what becomes of a request; `raw_target` is its target as it came.
pub async fn admit(
    gateway: &Gateway,
    head: &request::Parts,
    raw_target: &[u8],
    ctx: &mut Context,
) -> Admission {
    match decide(gateway, head, raw_target, ctx).await {
        Ok(delay) => Admission::Serve(delay),
        Err(refusal) => Admission::Refuse(Box::new(refuse(gateway, head, ctx, refusal))),
    }
}

async fn decide<'g>(
    gateway: &'g Gateway,
    head: &request::Parts,
    raw_target: &[u8],
    ctx: &mut Context,
) -> Result<Duration, Refusal<'g>> {
    let config = &gateway.config;
    let client = client::resolve(&config.client_ip, ctx.peer_ip, &head.headers);
    if let Ok(client) = client {
        ctx.client = client;
    }
    ctx.request_id = request_id(gateway, head, ctx);
    client.map_err(|_| {
        Refusal::Refused(
            StatusCode::BAD_REQUEST,
            "The forwarding header has too many entries.",
        )
    })?;
    tell_of_forwarding(gateway, head);
    let view = view(gateway, head, raw_target)?;
    let path = Normalised::new(view.path)
        .map_err(|_| Refusal::Refused(StatusCode::BAD_REQUEST, "The path is malformed."))?;
    let matched = config
        .routes
        .find(view, &path)
        .ok_or(Refusal::Unmatched(config.server.unmatched))?;
    ctx.route = Some(matched.route.clone());
    let caller = Caller {
        request: view,
        client_ip: ctx.client.ip,
        prefixes: config.client_ip.prefixes,
        route: &matched.route.name,
        params: &matched.params,
    };
    let demanded = demand(&matched.route.demands, &caller, &config.store.key_secret);
    count_missing(gateway, ctx, &demanded);
    if demanded.ambiguous.is_some() {
        return Err(Refusal::Refused(
            StatusCode::BAD_REQUEST,
            "What tells callers apart here stands in the request twice, with different values.",
        ));
    }
    if let Some(policy) = demanded.missing.first() {
        return Err(Refusal::MissingKey(policy));
    }
    let queued = demanded
        .checks
        .iter()
        .find(|check| !check.shadow && matches!(check.rule, Rule::LeakyBucket(_)));
    if let Some(check) = queued {
        // Taken before anything is charged: a request that may not wait costs its client nothing.
        ctx.place = gateway.room.take();
        if ctx.place.is_none() {
            return Err(Refusal::QueueFull(check.policy));
        }
    }
    let outcome = gateway.limiter.decide(&demanded.checks).await;
    count(gateway, ctx, &demanded, &outcome);
    ctx.rulings = outcome
        .rulings
        .iter()
        .filter_map(|ruling| Ruled::new(ruling, &config.policies))
        .collect();
    if outcome.rulings.iter().any(Ruling::denies) {
        return Err(Refusal::Quota);
    }
    if outcome.unavailable.is_some() {
        return Err(Refusal::StoreUnavailable);
    }
    let delay = outcome
        .rulings
        .iter()
        .filter(|ruling| !ruling.check.shadow && matches!(ruling.check.rule, Rule::LeakyBucket(_)))
        .map(|ruling| ruling.decision.delay_us)
        .max()
        .unwrap_or(0);
    if delay == 0 {
        ctx.place = None;
    }
    Ok(Duration::from_micros(delay))
}

/// Says once that a forwarding header is not read since nobody is trusted: where a proxy stands in front, all who come
/// through it are counted as one, and that is seldom meant.
fn tell_of_forwarding(gateway: &Gateway, head: &request::Parts) {
    let told = &gateway.told_of_forwarding;
    if !gateway.config.client_ip.trust.is_nobody() || told.load(Ordering::Relaxed) {
        return;
    }
    let forwarded = ["x-forwarded-for", "forwarded"]
        .into_iter()
        .find(|name| head.headers.contains_key(*name));
    if let Some(header) = forwarded
        && !told.swap(true, Ordering::Relaxed)
    {
        warn!(
            header,
            "requests are counted by the peer's address, and this header is not read: if it comes from a proxy of \
             yours, name that in client_ip.trusted_proxies"
        );
    }
}

/// What we look at; refused where it makes no sense or is too large.
fn view<'h>(
    gateway: &Gateway,
    head: &'h request::Parts,
    raw_target: &[u8],
) -> Result<RequestView<'h>, Refusal<'static>> {
    let server = &gateway.config.server;
    let size: usize = head
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    let target = head
        .uri
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    if size.saturating_add(target) > server.max_header {
        return Err(Refusal::Refused(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "The request's head is too large.",
        ));
    }
    let length = head
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if let (Some(length), Some(max)) = (length, server.max_body)
        && length > max
    {
        return Err(Refusal::Refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            "The request's body is too large.",
        ));
    }
    let malformed = |why| Refusal::Refused(StatusCode::BAD_REQUEST, why);
    if !is_target(head, raw_target) {
        return Err(malformed("The request's target is malformed."));
    }
    let host = match head.headers.get(HOST) {
        Some(host) => host.to_str().ok().filter(|host| is_host(host)),
        None if head.version == Version::HTTP_10 => Some(""),
        None => head.uri.authority().map(http::uri::Authority::as_str),
    };
    let host = host.ok_or_else(|| malformed("The request names no host, or a malformed one."))?;
    Ok(RequestView {
        method: head.method.as_str(),
        host,
        path: head.uri.path(),
        query: head.uri.query(),
        headers: &head.headers,
    })
}

/// Whether the target is one that a proxy is sent: a path; `*` of OPTIONS; or a whole URI, whose authority is then
/// the Host field's (Pingora refuses another) and is not believed without one.
fn is_target(head: &request::Parts, raw_target: &[u8]) -> bool {
    if raw_target == b"*" {
        return head.method == http::Method::OPTIONS;
    }
    let is_uri = |scheme: &[u8]| {
        raw_target
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    raw_target.starts_with(b"/")
        || (head.headers.contains_key(HOST) && (is_uri(b"http://") || is_uri(b"https://")))
}

/// Whether a Host field is a name or an address with an optional port: whatever else an upstream may make of it, it
/// will not make another host of it than we did.
fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port),
        _ => (host, ""),
    };
    let is_name = |name: &str| {
        let name = name.strip_suffix('.').unwrap_or(name);
        !name.is_empty()
            && name.split('.').all(|label| {
                !label.is_empty()
                    && label
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            })
    };
    let is_literal = |name: &str| {
        name.strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .is_some_and(|literal| literal.parse::<std::net::Ipv6Addr>().is_ok())
    };
    port.bytes().all(|byte| byte.is_ascii_digit()) && (is_name(name) || is_literal(name))
}

/// The id of a trusted peer if it is to be kept and looks like one; else a new one.
fn request_id(gateway: &Gateway, head: &request::Parts, ctx: &Context) -> String {
    let kept = (gateway.config.server.keep_request_id && ctx.client.through_trusted)
        .then(|| head.headers.get("x-request-id"))
        .flatten()
        .and_then(|id| id.to_str().ok())
        .filter(|id| {
            (1..=REQUEST_ID_MAX).contains(&id.len())
                && id.bytes().all(|byte| byte.is_ascii_graphic())
        });
    kept.map_or_else(|| uuid::Uuid::now_v7().to_string(), str::to_owned)
}

/// The answer to a request that could not be served after all.
pub fn failed(
    gateway: &Gateway,
    head: &request::Parts,
    ctx: &mut Context,
    status: StatusCode,
) -> Answer {
    let refusal = match status {
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            Refusal::Upstream(status)
        }
        StatusCode::PAYLOAD_TOO_LARGE => {
            Refusal::Refused(status, "The request's body is too large.")
        }
        StatusCode::REQUEST_TIMEOUT => Refusal::Refused(status, "The request took too long."),
        StatusCode::BAD_REQUEST => Refusal::Refused(status, "The request is malformed."),
        _ => Refusal::Refused(status, "The request could not be served."),
    };
    refuse(gateway, head, ctx, refusal)
}

/// Puts a refusal into words.
fn refuse(
    gateway: &Gateway,
    head: &request::Parts,
    ctx: &mut Context,
    refusal: Refusal<'_>,
) -> Answer {
    let rulings = ctx.rulings();
    let field = |name| {
        head.headers
            .get(name)
            .and_then(|value: &http::HeaderValue| value.to_str().ok())
    };
    let answer = answer::refuse(
        &gateway.config.headers,
        &gateway.config.rejects,
        refusal,
        &rulings,
        Asked {
            head: head.method == http::Method::HEAD,
            accept: field(ACCEPT),
            origin: field(ORIGIN),
            request_id: &ctx.request_id,
            now_epoch_s: clock::wall_now_us() / 1_000_000,
        },
    );
    let denies = matches!(
        refusal,
        Refusal::Quota | Refusal::QueueFull(_) | Refusal::MissingKey(_) | Refusal::StoreUnavailable
    );
    ctx.denied = denies.then(|| Denied {
        retry_after_s: answer
            .headers
            .get(http::header::RETRY_AFTER)
            .and_then(|wait| wait.to_str().ok()?.parse().ok()),
    });
    answer
}

fn count_missing(gateway: &Gateway, ctx: &mut Context, demanded: &Demanded<'_>) {
    let route = gateway
        .metrics
        .route(ctx.route.as_ref().map(|route| route.index));
    for policy in &demanded.skipped {
        route.decision(policy.index, metrics::Verdict::Skip, None);
    }
    for policy in &demanded.missing {
        route.decision(policy.index, metrics::Verdict::Deny, None);
    }
    ctx.missing_key = demanded
        .skipped
        .iter()
        .chain(&demanded.missing)
        .filter_map(|policy| gateway.config.policies.get(policy.index).cloned())
        .collect();
}

/// Counts what every policy did.
fn count(gateway: &Gateway, ctx: &Context, demanded: &Demanded<'_>, outcome: &Outcome<'_>) {
    let allows = outcome.allows();
    let route = gateway
        .metrics
        .route(ctx.route.as_ref().map(|route| route.index));
    for ruling in &outcome.rulings {
        let policy = ruling.check.policy;
        let verdict = match (ruling.decision.verdict, ruling.check.shadow) {
            (Verdict::Allow, _) => metrics::Verdict::Allow,
            (Verdict::Deny, true) => metrics::Verdict::ShadowDeny,
            (Verdict::Deny, false) => metrics::Verdict::Deny,
        };
        route.decision(policy.index, verdict, Some(ruling.source));
        let Some(series) = gateway.metrics.policy(policy.index) else {
            continue;
        };
        if allows && ruling.decision.verdict == Verdict::Allow {
            series.units.inc_by(ruling.check.cost.units());
        }
        if ruling.decision.remaining.saturating_mul(5) <= ruling.check.rule.capacity() {
            series.near_limit.inc();
        }
    }
    if let Some(took) = outcome.store_took {
        gateway.metrics.store_check.observe(took.as_secs_f64());
    }
    if let Some(failure) = &outcome.failure {
        count_failure(gateway, ctx, demanded, outcome, failure);
    }
}

/// Counts a failure of a store, and what the policies without a decision did then.
fn count_failure(
    gateway: &Gateway,
    ctx: &Context,
    demanded: &Demanded<'_>,
    outcome: &Outcome<'_>,
    failure: &StoreError,
) {
    let cause = failure.cause();
    let position = Cause::ALL.iter().position(|known| *known == cause);
    gateway.metrics.store_failed(position.unwrap_or(0));
    let route = gateway
        .metrics
        .route(ctx.route.as_ref().map(|route| route.index));
    let undecided = demanded.checks.iter().filter(|check| {
        !outcome
            .rulings
            .iter()
            .any(|ruling| ruling.check.policy.index == check.policy.index)
    });
    for check in undecided {
        let denies = outcome
            .unavailable
            .is_some_and(|policy| policy.index == check.policy.index);
        let verdict = if denies {
            metrics::Verdict::Deny
        } else {
            metrics::Verdict::Allow
        };
        route.decision(check.policy.index, verdict, Some(Source::Fallback));
    }
}
