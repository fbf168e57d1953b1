//! Sends the answers that are ours.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use http::{HeaderValue, StatusCode};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;

use super::context::Context;
use super::forward::X_REQUEST_ID;
use super::gateway::Gateway;
use crate::answer::Answer;
use crate::config::Route;

/// How long the rest of a body that nobody wants is read, so that the client gets to read the answer and the
/// connection can serve its next request.
const DRAIN: Duration = Duration::from_secs(2);

/// Sends `answer`, and keeps the connection if it can be kept.
pub async fn send(session: &mut Session, answer: Answer) -> pingora::Result<()> {
    let status = answer.status;
    let (mut parts, ()) = http::Response::new(()).into_parts();
    parts.status = status;
    parts.headers = answer.headers;
    let header = ResponseHeader::from(parts);
    let body = answer.body;
    let downstream = session.as_downstream_mut();
    if !downstream.is_body_done() {
        if downstream.get_header(EXPECT).is_some() || status == StatusCode::BAD_REQUEST {
            // Nobody knows whether the body will come, or where it ends: the connection cannot serve another request.
            downstream.set_keepalive(None);
        } else {
            downstream.set_close_on_response_before_downstream_finish(false);
            downstream.set_total_drain_timeout(Some(DRAIN));
        }
    }
    let bodiless = body.is_empty();
    session
        .write_response_header(Box::new(header), bodiless)
        .await?;
    if !bodiless {
        session.write_response_body(Some(body), true).await?;
    }
    Ok(())
}

/// The head of the answer that was sent, if one was: not one that tells the client to go on.
pub fn sent(session: &Session) -> Option<&ResponseHeader> {
    session.response_written().filter(|head| {
        !head.status.is_informational() || head.status == StatusCode::SWITCHING_PROTOCOLS
    })
}

/// The answer of a route that is answered here.
pub fn fixed(
    gateway: &Gateway,
    session: &Session,
    ctx: &Context,
    status: StatusCode,
    body: Bytes,
    content_type: HeaderValue,
) -> Answer {
    let mut headers = http::HeaderMap::new();
    headers.insert(CONTENT_TYPE, content_type);
    // An answer without content says nothing of its length.
    if !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED) {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    headers.insert(&X_REQUEST_ID, ctx.request_id.clone());
    gateway.annotate(ctx, status, &mut headers);
    let head = session.req_header().method == http::Method::HEAD;
    Answer {
        status,
        headers,
        body: if head { Bytes::new() } else { body },
    }
}

/// What the built-in echo upstream answers: what it was asked, without what is secret.
pub fn echo(session: &Session, ctx: &Context, route: &Route) -> Bytes {
    let head = session.req_header();
    let told = serde_json::json!({
        "method": head.method.as_str(),
        "path": head.uri.path(),
        "query": head.uri.query(),
        "host": head.headers.get(http::header::HOST).map(|host| String::from_utf8_lossy(host.as_bytes())),
        "client_ip": ctx.client.ip,
        "route": &*route.name,
        "request_id": ctx.request_id(),
    });
    let mut text = serde_json::to_vec(&told).unwrap_or_default();
    text.push(b'\n');
    Bytes::from(text)
}
