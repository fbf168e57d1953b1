//! A request's body that is read before the decision, since a cost stands in it. What was read reaches the upstream
//! unharmed, whatever its length.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http::header::{CONTENT_LENGTH, EXPECT};
use pingora::proxy::Session;
use pingora::{Error, ErrorType};
use tokio::time::timeout;

use super::context::Context;
use super::gateway::Gateway;
use super::{admit, forward, guarded};
use crate::check::cost::Body;
use crate::check::cost::request::{BODY_MAX, Reading};
use crate::clock::monotonic_now;

/// What was read of a body before the decision.
#[derive(Debug, Default)]
pub(super) enum Early {
    /// Nothing: there is no body, none that is looked at, or nobody wants to know.
    #[default]
    None,
    /// All of it. Pingora keeps it, and sends it on.
    All(Bytes),
    /// There is more than is looked at. So much was read, and Pingora does not keep it.
    Begun(Bytes),
}

impl Early {
    /// What of it a cost can be read from.
    pub(super) fn body(&self) -> Body<'_> {
        match self {
            Self::None => Body::None,
            Self::All(body) => Body::Json(body),
            Self::Begun(_) => Body::Unread,
        }
    }

    /// What is to be sent on before what is still to come.
    pub(super) fn into_begun(self) -> Option<Bytes> {
        match self {
            Self::Begun(begun) if !begun.is_empty() => Some(begun),
            _ => None,
        }
    }
}

/// Reads the body where a cost stands in it, and the head does not say that it is too large to be looked at.
///
/// # Errors
///
/// When the client breaks off or takes too long, or the body is larger than bodies may be. Nothing is charged then.
pub(super) async fn read(
    gateway: &Gateway,
    session: &mut Session,
    ctx: &mut Context,
) -> pingora::Result<Early> {
    let head = session.req_header();
    if !admit::reads_body(gateway, head.as_ref(), head.raw_path(), ctx) {
        return Ok(Early::None);
    }
    match Reading::of(&head.headers) {
        Reading::No => return Ok(Early::None),
        Reading::Encoded => return Ok(Early::Begun(Bytes::new())),
        Reading::Yes => {}
    }
    let length = head
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > BODY_MAX) {
        return Ok(Early::Begun(Bytes::new()));
    }
    let is_asked_for = head.headers.contains_key(EXPECT);
    let downstream = session.as_downstream_mut();
    if downstream.is_body_done() {
        return Ok(Early::None);
    }
    let began = monotonic_now();
    if is_asked_for {
        // Pingora takes it for an answer that comes too early, and would close the connection after the request.
        downstream.set_close_on_response_before_downstream_finish(false);
        let asked = downstream.write_continue_response().await;
        downstream.set_close_on_response_before_downstream_finish(true);
        asked.map_err(Error::into_down)?;
    }
    let left = forward::time_left(ctx).unwrap_or(Duration::MAX);
    let read = timeout(left, read_all(session, gateway.config.server.max_body)).await;
    ctx.awaited_body = Some(monotonic_now().saturating_duration_since(began));
    let Ok(early) = read else {
        return fail(StatusCode::REQUEST_TIMEOUT, "the route's time is over");
    };
    early
}

async fn read_all(session: &mut Session, max_body: Option<u64>) -> pingora::Result<Early> {
    let downstream = session.as_downstream_mut();
    downstream.enable_retry_buffering();
    let mut body = BytesMut::new();
    while !downstream.is_body_done() {
        let piece = downstream.read_request_body().await;
        let Some(piece) = piece.map_err(Error::into_down)? else {
            break;
        };
        body.extend_from_slice(&piece);
        let length = u64::try_from(body.len()).unwrap_or(u64::MAX);
        if max_body.is_some_and(|max| length > max) {
            return fail(
                StatusCode::PAYLOAD_TOO_LARGE,
                "request body over server.limits.max_body",
            );
        }
        if body.len() > BODY_MAX {
            if downstream.is_body_done() {
                // Nothing of it would be sent on: Pingora sends what it reads later, or what it kept.
                return fail(StatusCode::PAYLOAD_TOO_LARGE, "request body cannot be kept");
            }
            return Ok(Early::Begun(body.freeze()));
        }
    }
    guarded::body_is_read(downstream.stream());
    Ok(Early::All(body.freeze()))
}

/// Puts what was read early before what comes now.
pub(super) fn put_begun(begun: &mut Option<Bytes>, body: &mut Option<Bytes>) {
    let Some(begun) = begun.take() else { return };
    *body = Some(match body.take() {
        Some(now) if !now.is_empty() => {
            let mut both = BytesMut::with_capacity(begun.len().saturating_add(now.len()));
            both.extend_from_slice(&begun);
            both.extend_from_slice(&now);
            both.freeze()
        }
        _ => begun,
    });
}

fn fail<T>(status: StatusCode, why: &'static str) -> pingora::Result<T> {
    Error::e_explain(ErrorType::HTTPStatus(status.as_u16()), why)
}
