//! The admin API on its listener: one request a connection, and a bound to all that a client could drag out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, StatusCode};
use pingora::apps::ServerApp;
use pingora::http::ResponseHeader;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tracing::info;

use super::Control;
use super::guard::admit;
use super::reply::Reply;

/// Connections at once; the next one is closed.
const CONNECTIONS_MAX: usize = 32;

/// How long a request may take to arrive, and its answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);

/// The largest body that is read.
const BODY_MAX: usize = 64 << 10;

/// What can be asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Deed {
    Reload,
}

/// Every path, its methods, and what they do.
const PATHS: [(&str, &str, Deed); 1] = [("/v1/reload", "POST", Deed::Reload)];

/// Serves the admin API.
pub struct Api {
    control: Arc<dyn Control>,
    address: SocketAddr,
    room: Semaphore,
}

impl Api {
    /// At `address`, for what `control` does.
    #[must_use]
    pub fn new(control: Arc<dyn Control>, address: SocketAddr) -> Self {
        Self {
            control,
            address,
            room: Semaphore::new(CONNECTIONS_MAX),
        }
    }

    async fn answer(&self, session: &ServerSession, complete: bool) -> Reply {
        let head = session.req_header().as_ref();
        if let Err(refusal) = admit(head, self.control.token(), self.address) {
            return refusal;
        }
        if !complete {
            return Reply::problem(StatusCode::PAYLOAD_TOO_LARGE, "The body is too large.");
        }
        let path = head.uri.path();
        match find(path, &head.method) {
            Ok(deed) => {
                let client = session.client_addr().map(ToString::to_string);
                info!(path, client, "asked for by the admin API");
                self.carry_out(deed).await
            }
            Err(refusal) => refusal,
        }
    }

    async fn carry_out(&self, deed: Deed) -> Reply {
        let control = Arc::clone(&self.control);
        let done = spawn_blocking(move || match deed {
            Deed::Reload => control.reload().reply(),
        });
        // It goes on to its end even if the client leaves.
        done.await.unwrap_or_else(|_| {
            Reply::problem(
                StatusCode::INTERNAL_SERVER_ERROR,
                "The gateway failed at it; its log says how.",
            )
        })
    }
}

#[async_trait]
impl ServerApp for Api {
    async fn process_new(
        self: &Arc<Self>,
        stream: Stream,
        _shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let _place = self.room.try_acquire().ok()?;
        let mut session = ServerSession::new_http1(stream);
        let complete = timeout(PATIENCE, receive(&mut session)).await.ok()??;
        let reply = self.answer(&session, complete).await;
        // Whoever does not take it in time has left.
        let _ = timeout(PATIENCE, send(session, reply)).await;
        None
    }
}

/// What a path and a method ask for.
fn find(path: &str, method: &Method) -> Result<Deed, Reply> {
    let known = PATHS.iter().filter(|(known, _, _)| *known == path);
    if let Some((_, _, deed)) = known
        .clone()
        .find(|(_, known, _)| *known == method.as_str())
    {
        return Ok(*deed);
    }
    let methods: Vec<_> = known.map(|(_, method, _)| *method).collect();
    Err(match methods.is_empty() {
        true => Reply::problem(StatusCode::NOT_FOUND, "The admin API has no such path."),
        false => Reply::not_allowed(methods.join(", ")),
    })
}

/// Reads a whole request; `false` if its body is too large, `None` if it is none.
async fn receive(session: &mut ServerSession) -> Option<bool> {
    match session.read_request().await {
        Ok(true) => {}
        Ok(false) => return None,
        Err(_) => {
            // Who cannot be told is gone.
            let _ = session.respond_error(400).await;
            return None;
        }
    }
    session.set_keepalive(None);
    let mut length = 0_usize;
    while let Some(part) = session.read_request_body().await.ok()? {
        length = length.saturating_add(part.len());
        if length > BODY_MAX {
            return Some(false);
        }
    }
    Some(true)
}

async fn send(mut session: ServerSession, reply: Reply) -> pingora::Result<()> {
    let mut head = ResponseHeader::build(reply.status, Some(5))?;
    head.insert_header(CONTENT_TYPE, reply.content_type)?;
    head.insert_header(CONTENT_LENGTH, reply.body.len())?;
    head.insert_header(CACHE_CONTROL, "no-store")?;
    if let Some((name, value)) = reply.field {
        head.insert_header(name, value)?;
    }
    let to_head = session.req_header().method == Method::HEAD;
    session.write_response_header(Box::new(head)).await?;
    if !to_head {
        session
            .write_response_body(Bytes::from(reply.body), true)
            .await?;
    }
    session.finish().await?;
    Ok(())
}
