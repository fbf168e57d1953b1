//! From a request's head to what becomes of it. The way of a request, in order: client, route, identity, check, decide.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{ACCEPT, FORWARDED, HeaderName, ORIGIN};
use http::{StatusCode, request};
use tracing::warn;

use super::context::{Context, Denied, Ruled};
use super::gateway::Gateway;
use super::slot::Slot;
use super::wait::Place;
use super::{head, tally};
use crate::answer::{self, Answer, Asked, Refusal};
use crate::check::cost::Body;
use crate::check::demand::demand;
use crate::check::entity::Caller;
use crate::check::tier::Terms;
use crate::check::{Check, Demand, Demanded, Ruling};
use crate::client;
use crate::clock;
use crate::config::Route;
use crate::decide::Rule;
use crate::record::metrics::Fault;
use crate::route::path::Normalised;
use crate::shed;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// What becomes of a request.
#[derive(Debug)]
pub enum Admission {
    /// It is answered with this.
    Refuse(Box<Answer>),
    /// It is served, after this wait.
    Serve(Duration),
}

/// Whether a cost of this request stands in its body, as far as its head tells. Then it is known from now on who calls,
/// and for which route.
pub fn reads_body(
    gateway: &Gateway,
    head: &request::Parts,
    raw_target: &[u8],
    ctx: &mut Context,
) -> bool {
    let config = &gateway.config;
    if !config.reads_bodies {
        return false;
    }
    let Ok(view) = head::view(&config.server, head, raw_target) else {
        return false;
    };
    let Ok(path) = Normalised::new(view.path) else {
        return false;
    };
    let matched = config.routes.find(view, &path);
    let Some(matched) = matched.filter(|matched| matched.route.reads_bodies) else {
        return false;
    };
    ctx.route = Some(Arc::clone(matched.route));
    identify(gateway, head, ctx).is_ok()
}

/// Decides what becomes of a request; `raw_target` is its target as it came, `body` what was read of its body.
pub async fn admit(
    gateway: &Gateway,
    head: &request::Parts,
    raw_target: &[u8],
    body: Body<'_>,
    ctx: &mut Context,
) -> Admission {
    match decide(gateway, head, raw_target, body, ctx).await {
        Ok(delay) => Admission::Serve(delay),
        Err(refusal) => {
            // Its answer is no load on anything; a client that takes it slowly must not keep others out.
            ctx.load = None;
            Admission::Refuse(Box::new(refuse(gateway, head, ctx, refusal)))
        }
    }
}

async fn decide<'g>(
    gateway: &'g Gateway,
    head: &request::Parts,
    raw_target: &[u8],
    body: Body<'_>,
    ctx: &mut Context,
) -> Result<Duration, Refusal<'g>> {
    let config = &gateway.config;
    identify(gateway, head, ctx)?;
    let view = head::view(&config.server, head, raw_target)?;
    let path = Normalised::new(view.path).map_err(|_| malformed("The path is malformed."))?;
    let matched = config
        .routes
        .find(view, &path)
        .ok_or(Refusal::Unmatched(config.server.unmatched))?;
    ctx.route = Some(Arc::clone(matched.route));
    // Before anything is charged.
    ctx.load = Some(take_place(gateway, matched.route)?);
    let identity = gateway.callers.identify(
        &view,
        ctx.client,
        clock::wall_now_us() / 1_000_000,
        gateway.metrics.families(),
    );
    ctx.identity = identity.clone();
    let caller = Caller {
        request: view,
        client_ip: ctx.client.ip,
        prefixes: config.client_ip.prefixes,
        identity: &identity,
        route: &matched.route.name,
        params: &matched.params,
    };
    let granted = gateway.limiter.granted();
    let terms = Terms {
        plans: &config.plans,
        granted: granted
            .as_ref()
            .map(|it| (&it.granted, it.now(clock::monotonic_now()))),
    };
    let secret = &config.store.key_secret;
    let mut demanded = demand(&matched.route.demands, &caller, body, secret, terms);
    tally::not_asked(gateway, ctx, &demanded);
    tally::missing_costs(gateway, &demanded.unpriced);
    refuse_without_key(gateway, &demanded)?;
    ctx.place = place(gateway, &mut demanded);
    let outcome = gateway.limiter.decide(&demanded.checks).await;
    ctx.settling
        .hold(config, &outcome.charged, &demanded.awaited);
    let lent = outcome.charged.iter();
    ctx.slots = lent
        .filter_map(|charged| Slot::new(&ctx.gateway, charged))
        .collect();
    tally::decisions(gateway, ctx, &demanded, &outcome);
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
    let waits = outcome
        .rulings
        .iter()
        .filter(|ruling| queues(&ruling.check));
    let delay_us = waits
        .map(|ruling| ruling.decision.delay_us)
        .max()
        .unwrap_or(0);
    if delay_us == 0 {
        ctx.place = None;
    }
    Ok(Duration::from_micros(delay_us))
}

/// Who calls, and what the request is called.
fn identify(
    gateway: &Gateway,
    head: &request::Parts,
    ctx: &mut Context,
) -> Result<(), Refusal<'static>> {
    let client = client::resolve(&gateway.config.client_ip, ctx.peer_ip, &head.headers);
    if let Ok(client) = client {
        ctx.client = client;
    }
    let keep = gateway.config.server.keep_request_id && ctx.client.through_trusted;
    ctx.request_id = head::request_id(head, keep, ctx.started_at_us);
    tell_of_forwarding(gateway, head);
    client
        .map(|_| ())
        .map_err(|_| malformed("The forwarding header has too many entries."))
}

/// A place among the requests in flight.
fn take_place(gateway: &Gateway, route: &Route) -> Result<shed::Place, Refusal<'static>> {
    gateway.load.take(route.priority).map_err(|reason| {
        gateway.metrics.families().shed(route.priority, reason);
        let first = route.demands.iter().flat_map(Demand::uses).next();
        Refusal::Shed(first.map_or(0, |a_use| a_use.policy.reject))
    })
}

/// Refuses a request whose caller cannot be told, where a policy has to.
fn refuse_without_key<'g>(
    gateway: &'g Gateway,
    demanded: &Demanded<'_>,
) -> Result<(), Refusal<'g>> {
    if demanded.ambiguous.is_some() {
        return Err(malformed(
            "What tells callers apart here stands in the request twice, with different values.",
        ));
    }
    let missing = demanded.missing.first();
    match missing.and_then(|policy| gateway.config.policies.get(policy.index)) {
        Some(policy) => Err(Refusal::MissingKey(policy)),
        None => Ok(()),
    }
}

/// A place to wait in, for a request that may have to. Without one it may pass if it need not wait: its leaky buckets
/// then decide as if nobody might.
fn place<'g>(gateway: &'g Gateway, demanded: &mut Demanded<'g>) -> Option<Place> {
    if !demanded.checks.iter().any(queues) {
        return None;
    }
    let place = gateway.room.take();
    if place.is_none() {
        for check in demanded.checks.iter_mut().filter(|check| queues(check)) {
            check.rule = check.limits.unqueued.as_ref().unwrap_or(check.rule);
        }
    }
    place
}

/// Whether what this check allows may have to wait. One that takes nothing has no turn to wait for.
fn queues(check: &Check<'_>) -> bool {
    !check.shadow && check.cost.units() > 0 && matches!(check.rule, Rule::LeakyBucket(_))
}

const fn malformed(why: &'static str) -> Refusal<'static> {
    Refusal::Refused(StatusCode::BAD_REQUEST, why)
}

/// Says once that a forwarding header is not read since nobody is trusted: where a proxy stands in front, all who come
/// through it are counted as one, and that is seldom meant.
fn tell_of_forwarding(gateway: &Gateway, head: &request::Parts) {
    let told = &gateway.told_of_forwarding;
    if !gateway.config.client_ip.trust.is_nobody() || told.load(Ordering::Relaxed) {
        return;
    }
    let forwarded = [&X_FORWARDED_FOR, &FORWARDED]
        .into_iter()
        .find(|name| head.headers.contains_key(*name));
    if let Some(header) = forwarded.map(HeaderName::as_str)
        && !told.swap(true, Ordering::Relaxed)
    {
        warn!(
            header,
            "requests are counted by the peer's address, and this header is not read: if it comes from a proxy of \
             yours, name that in client_ip.trusted_proxies"
        );
    }
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
    if let Some(fault) = fault(&refusal) {
        gateway.metrics.families().bad_request(fault);
    }
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
            request_id: ctx.request_id(),
            now_epoch_s: clock::wall_now_us() / 1_000_000,
        },
    );
    let denies = matches!(
        refusal,
        Refusal::Quota | Refusal::MissingKey(_) | Refusal::StoreUnavailable | Refusal::Shed(_)
    );
    ctx.denied = denies.then(|| Denied {
        is_shed: matches!(refusal, Refusal::Shed(_)),
        retry_after_s: answer
            .headers
            .get(http::header::RETRY_AFTER)
            .and_then(|wait| wait.to_str().ok()?.parse().ok()),
    });
    answer
}

/// What the client did wrong, where its request is refused for that.
fn fault(refusal: &Refusal<'_>) -> Option<Fault> {
    match *refusal {
        Refusal::Refused(StatusCode::BAD_REQUEST, _) => Some(Fault::Malformed),
        Refusal::Refused(StatusCode::PAYLOAD_TOO_LARGE, _) => Some(Fault::BodySize),
        Refusal::Refused(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, _) => Some(Fault::HeaderSize),
        _ => None,
    }
}
