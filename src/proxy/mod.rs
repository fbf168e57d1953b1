//! The server. [`Gateway`] is what Pingora calls; each phase hands over to one module, in the order of a request:
//! [`listen`], [`admit`], [`wait`], [`forward`] or [`respond`], and at last [`log`].

pub mod admit;
mod again;
mod bind;
mod body;
pub mod callers;
mod condition;
pub mod connections;
pub mod context;
pub mod files;
pub mod forward;
pub mod gateway;
mod guarded;
mod handshake;
pub mod head;
mod health;
pub mod listen;
pub mod log;
mod pace;
mod peer;
pub mod pool;
pub mod reload;
pub mod respond;
pub mod serve;
pub mod settle;
pub mod slot;
mod stop;
pub mod tally;
mod unread;
pub mod wait;
mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::modules::http::HttpModules;
use pingora::prelude::HttpPeer;
use pingora::proxy::{FailToProxy, ProxyHttp, Session};
use pingora::{Error, ErrorSource, ErrorType};

use crate::clock::monotonic_now;
use crate::config::{Action, Target};
use crate::record::metrics::Fault;
use admit::Admission;
use context::Context;
use gateway::{Current, Gateway};
use wait::Turn;

/// What Pingora calls: the gateway in force when a request begins serves it to its end.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// The gateway in force.
    pub current: Current,
    /// Whether this process is on its way out: then each connection serves one more request, and says so.
    pub leaving: Arc<AtomicBool>,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = Context;

    fn new_ctx(&self) -> Context {
        Context::new(self.current.get())
    }

    fn init_downstream_modules(&self, _modules: &mut HttpModules) {
        // No compression: bodies pass as they are.
    }

    async fn early_request_filter(
        &self,
        session: &mut Session,
        ctx: &mut Context,
    ) -> pingora::Result<()> {
        listen::head_is_read(session, self.leaving.load(Ordering::Relaxed));
        ctx.peer_ip = forward::ip_of(session.client_addr());
        let admitted = guarded::admitted(session.downstream_session.stream());
        // What was decided of one head is not for another.
        if let Some(admitted) =
            admitted.filter(|admitted| admitted.head == listen::raw_head(session))
        {
            *ctx = admitted.ctx;
            ctx.admitted = Some(admitted.delay);
        }
        ctx.encrypted = listen::is_encrypted(session);
        Ok(())
    }

    async fn request_filter(
        &self,
        session: &mut Session,
        ctx: &mut Context,
    ) -> pingora::Result<bool> {
        let gateway = &Arc::clone(&ctx.gateway);
        let admission = match ctx.admitted.take() {
            Some(delay) => Admission::Serve(delay),
            None => {
                let early = body::read(gateway, session, ctx).await?;
                let head = session.req_header();
                let admission =
                    admit::admit(gateway, head.as_ref(), head.raw_path(), early.body(), ctx).await;
                ctx.body_begun = early.into_begun();
                admission
            }
        };
        let delay = match admission {
            Admission::Refuse(answer) => {
                ctx.stop_own_time();
                if ctx.denied.is_some() {
                    listen::is_denied(session);
                }
                respond::send(session, *answer).await?;
                return Ok(true);
            }
            Admission::Serve(delay) => delay,
        };
        if !delay.is_zero() && wait_turn(gateway, session, ctx, delay).await == Turn::ClientGone {
            ctx.error = Some("the client left while it waited for its turn");
            return Error::e_explain(ErrorType::ConnectionClosed, "client left the queue")
                .map_err(Error::into_down);
        }
        ctx.stop_own_time();
        serve_here(gateway, session, ctx).await
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Context,
    ) -> pingora::Result<()> {
        if end_of_stream {
            guarded::body_is_read(session.downstream_session.stream());
            forward::has_sent(ctx);
        }
        body::put_begun(&mut ctx.body_begun, body);
        // A tunnel's bytes are no body.
        let body = body.as_ref().filter(|_| !session.was_upgraded());
        forward::request_body(ctx, body)
    }

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        ctx: &mut Context,
    ) -> pingora::Result<Box<HttpPeer>> {
        forward::peer(ctx)
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        head: &mut RequestHeader,
        ctx: &mut Context,
    ) -> pingora::Result<()> {
        // The server is connected to, and is told next.
        ctx.settling.hand_on();
        forward::request_head(session.req_header(), head, ctx)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        ctx: &mut Context,
        mut error: Box<Error>,
    ) -> Box<Error> {
        forward::tell_of_tls(ctx, &error);
        error.set_retry(forward::may_retry(ctx));
        error
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        head: &mut ResponseHeader,
        ctx: &mut Context,
    ) -> pingora::Result<()> {
        if self.leaving.load(Ordering::Relaxed) {
            // Told to stop meanwhile.
            session.set_keepalive(None);
        }
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            // What comes from now on is no body of a request.
            guarded::body_is_read(session.downstream_session.stream());
            // A tunnel may lie idle for hours: it counts among the connections, and keeps no request out.
            ctx.load = None;
        }
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            settle::by_head(ctx, head.status, None).await;
        } else if !head.status.is_informational() {
            settle::by_head(ctx, head.status, Some(&head.headers)).await;
        }
        let client_version = session.req_header().version;
        if client_version == http::Version::HTTP_10
            && !head.headers.contains_key(http::header::CONTENT_LENGTH)
        {
            session.set_keepalive(None);
        }
        forward::response_head(head, client_version, ctx)
    }

    fn upstream_response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Context,
    ) -> pingora::Result<Option<Duration>> {
        ctx.settling.feed(body.as_deref(), end_of_stream);
        Ok(None)
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        _body: &mut Option<Bytes>,
        end_of_stream: bool,
        ctx: &mut Context,
    ) -> pingora::Result<Option<Duration>> {
        if end_of_stream {
            // The upstream is done with it. Whoever has read the answer finds it so.
            ctx.slots.clear();
        }
        if forward::out_of_time(ctx) {
            return Error::e_explain(ErrorType::ReadTimedout, "the route's time is over");
        }
        Ok(None)
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        ctx: &mut Context,
    ) -> FailToProxy {
        let fault = guarded::fault(session.downstream_session.stream());
        ctx.error
            .get_or_insert(fault.map_or(error.etype().as_str(), Fault::as_str));
        if ctx.upstream.status.is_none()
            && *error.esource() == ErrorSource::Upstream
            && *error.etype() == ErrorType::ReadTimedout
        {
            // As slow as that, at least.
            forward::has_answered(ctx);
        }
        let status = match fault {
            Some(Fault::BodyTimeout) => Some(StatusCode::REQUEST_TIMEOUT),
            _ => forward::status_of(error),
        };
        if let Some(status) = status
            && respond::sent(session).is_none()
        {
            session.set_keepalive(None);
            let head = session.req_header().as_ref().clone();
            // What a client spoils once its request was handed on is no answer to that: it stays charged.
            if !(status.is_client_error() && ctx.settling.is_handed_on()) {
                settle::by_head(ctx, status, None).await;
            }
            let answer = admit::failed(&Arc::clone(&ctx.gateway), &head, ctx, status);
            // Who cannot be told is gone.
            let _ = respond::send(session, answer).await;
        }
        FailToProxy {
            error_code: status.map_or(0, |status| status.as_u16()),
            can_reuse_downstream: false,
        }
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, ctx: &mut Context) {
        if let Some(error) = error {
            ctx.error.get_or_insert(error.etype().as_str());
        }
        // The answer is over: it is no load any more while its charges are settled.
        ctx.load = None;
        ctx.slots.clear();
        settle::at_end(ctx, error.is_none()).await;
        let gateway = Arc::clone(&ctx.gateway);
        log::record(&gateway, &log::Served::of(session, ctx), ctx);
    }

    fn suppress_error_log(&self, _session: &Session, _ctx: &Context, _error: &Error) -> bool {
        // The access log has it.
        true
    }
}

/// Answers a request that is served here; `false` where it is to be forwarded.
async fn serve_here(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut Context,
) -> pingora::Result<bool> {
    let Some(route) = ctx.route.clone() else {
        return Ok(false);
    };
    let (status, body, content_type) = match &route.action {
        Action::Respond(status, body) => (*status, body.clone(), "text/plain; charset=utf-8"),
        Action::Forward(index) => match gateway.config.upstreams.get(*index).map(|up| &up.target) {
            Some(Target::Echo) => {
                let body = respond::echo(session, ctx, &route);
                (StatusCode::OK, body, "application/json")
            }
            _ => return Ok(false),
        },
    };
    let content_type = HeaderValue::from_static(content_type);
    let fields = HeaderMap::from_iter([(http::header::CONTENT_TYPE, content_type.clone())]);
    settle::by_head(ctx, status, Some(&fields)).await;
    ctx.settling.feed(Some(&body), true);
    let answer = respond::fixed(gateway, session, ctx, status, body, content_type);
    respond::send(session, answer).await?;
    Ok(true)
}

/// Waits for the request's turn, and counts it among those that do.
async fn wait_turn(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut Context,
    delay: Duration,
) -> Turn {
    let slowest = ctx
        .rulings()
        .iter()
        .filter(|ruling| !ruling.check.shadow)
        .max_by_key(|ruling| ruling.decision.delay_us)
        .and_then(|ruling| gateway.metrics.policy(ruling.check.policy.index));
    let _depth = slowest.map(|policy| context::Gauged::new(&policy.queue_depth));
    // Meanwhile it asks nothing of an upstream.
    if let Some(place) = &mut ctx.load {
        place.rest();
    }
    let began = monotonic_now();
    let turn = wait::turn(session, delay).await;
    if let Some(place) = &mut ctx.load {
        place.wake();
    }
    ctx.queued = monotonic_now().saturating_duration_since(began);
    ctx.place = None;
    if let Some(policy) = slowest {
        policy.queue_wait.observe(ctx.queued.as_secs_f64());
    }
    turn
}
