//! The edge: what stands between a socket and Pingora's proxy, since Pingora does not cap connections, and keeps an
//! idle one for ever.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::proxy::{HttpProxy, Session};
use pingora::server::ShutdownWatch;
use rustls::ServerConfig;
use tokio::time::{sleep, timeout};

use super::Proxy;
use super::again;
use super::connections::{Connection, Connections, Full};
use super::gateway::Current;
use super::guarded::{self, Guarded, Phase};
use super::handshake;
use crate::client::address::canonical;
use crate::tls::Listening;

/// Pingora's word for a connection that is kept: how long, the guard knows, and sets no timer for each request.
const KEPT: Option<u64> = Some(0);

/// How long it may once the gateway stops: a request that is on its way then is still served.
pub(super) const LINGER: Duration = Duration::from_secs(2);
const LINGER_LOOK_EVERY: Duration = Duration::from_millis(50);

/// Serves connections: HTTP/1.1, in the clear or over TLS.
pub struct Edge {
    proxy: Arc<HttpProxy<Proxy>>,
    /// The same without Pingora.
    ours: Proxy,
    current: Current,
    connections: Arc<Connections>,
    /// The most connections that there are files for.
    room: usize,
    header_timeout: Duration,
    closed: Arc<AtomicBool>,
}

impl Edge {
    /// In front of `proxy`; a request's head has to arrive within `header_timeout` of its first byte, and the
    /// first byte about as soon after the connection. There is `room` for so many connections. `closed` turns true once
    /// no further request is taken.
    pub fn new(
        proxy: HttpProxy<Proxy>,
        ours: Proxy,
        room: usize,
        header_timeout: Duration,
        closed: Arc<AtomicBool>,
    ) -> Self {
        let current = ours.current.clone();
        Self {
            ours,
            room,
            proxy: Arc::new(proxy),
            connections: Arc::new(Connections::new(
                current.get().metrics.families().connections.clone(),
            )),
            current,
            header_timeout,
            closed,
        }
    }

    /// How the listener that it came in by speaks TLS, if it does; an outer `None` where that cannot be told.
    fn tls(&self, stream: &Stream) -> Option<Option<Arc<ServerConfig>>> {
        let gateway = self.current.get();
        let listeners = &gateway.config.listeners;
        if listeners.iter().all(|listener| listener.tls.is_none()) {
            return Some(None);
        }
        let digest = stream.get_socket_digest()?;
        let local = *digest.local_addr()?.as_inet()?;
        let took = |port: u16| {
            let at = move |address: SocketAddr| address.port() == port && is_at(address, local);
            listeners.iter().find(move |listener| at(listener.address))
        };
        // Any port, where that is its own.
        let listener = took(local.port()).or_else(|| took(0))?;
        Some(listener.tls.as_ref().map(Listening::server))
    }

    /// Counts a connection; `None`, and it is closed, where there are too many. An address that is trusted to speak
    /// for others may have as many as there may be.
    fn count(&self, stream: &Stream) -> Option<Connection> {
        let gateway = self.current.get();
        let server = &gateway.config.server;
        let settings = &gateway.config.client_ip;
        let digest = stream.get_socket_digest();
        let peer = super::forward::ip_of(digest.as_ref().and_then(|digest| digest.peer_addr()));
        let address = peer
            .filter(|peer| !settings.trust.includes(Some(*peer)))
            .zip(server.max_connections_per_ip)
            .map(|(peer, max)| (settings.prefixes.network(peer), max));
        let max = server.max_connections.min(self.room);
        match self.connections.open(max, address) {
            Ok(connection) => Some(connection),
            Err(full) => {
                gateway
                    .metrics
                    .families()
                    .connection_refused(full == Full::Address);
                None
            }
        }
    }
}

#[async_trait]
impl ServerApp for Edge {
    async fn process_new(
        self: &Arc<Self>,
        stream: Stream,
        shutdown: &ShutdownWatch,
    ) -> Option<Stream> {
        let _counted = self.count(&stream)?;
        let stream = match self.tls(&stream)? {
            None => stream,
            Some(tls) => {
                let (gateway, within) = (self.current.get(), self.header_timeout);
                // In a box: connections in the clear are not to hold its memory.
                let accepted = handshake::accept(stream, tls, &gateway, within, shutdown);
                Box::pin(accepted).await?
            }
        };
        let guarded = Guarded::new(stream, self.current.clone(), self.header_timeout);
        let mut session = ServerSession::new_http1(Box::new(guarded));
        session.set_keepalive(KEPT);
        loop {
            let reused = self.proxy.process_new_http(session, shutdown).await?;
            let (stream, settings) = reused.consume();
            guarded::turn(Some(&stream), Phase::Head);
            let stream = if guarded::was_denied(&stream) {
                // In a box: connections that it never comes to are not to hold its memory.
                Box::pin(again::serve(stream, &self.ours, shutdown)).await?
            } else {
                stream
            };
            session = ServerSession::new_http1(stream);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
            session.set_keepalive(KEPT);
        }
    }

    async fn cleanup(&self) {
        let idle = async {
            loop {
                // One that was accepted last may not be counted yet.
                sleep(LINGER_LOOK_EVERY).await;
                if self.connections.count() == 0 {
                    break;
                }
            }
        };
        // Those that are left after it lie idle, or have their request served.
        let _ = timeout(LINGER, idle).await;
        self.proxy.http_cleanup().await;
        self.closed.store(true, Ordering::Release);
    }
}

/// Whether who listens at `address` may have taken a connection whose own end is `local`, by their IP addresses. No two
/// of them could both, where they share a port.
fn is_at(address: SocketAddr, local: SocketAddr) -> bool {
    address.ip().is_unspecified() || canonical(address.ip()) == canonical(local.ip())
}

/// Whether the client speaks TLS to us.
pub fn is_encrypted(session: &Session) -> bool {
    let stream = session.as_downstream().stream();
    stream.is_some_and(|stream| stream.get_ssl_digest().is_some())
}

/// The request is denied: what comes next on its connection may be answered at once.
pub fn is_denied(session: &Session) {
    guarded::is_denied(session.as_downstream().stream());
}

/// The bytes of the request's head, as they came.
pub fn raw_head(session: &Session) -> Bytes {
    let read = session.as_downstream().as_http1();
    read.map(|session| session.get_headers_raw_bytes())
        .unwrap_or_default()
}

/// The request's head is read: its body may come, if there is one, as slowly as bodies may. `last` is whether the
/// connection serves no other.
pub fn head_is_read(session: &mut Session, last: bool) {
    let head = session.req_header();
    let is_old = head.version == http::Version::HTTP_10;
    let is_asked_for = head.headers.contains_key(http::header::EXPECT);
    let downstream = session.as_downstream_mut();
    let phase = if downstream.is_body_done() {
        Phase::Rest
    } else if is_asked_for {
        Phase::Asked
    } else {
        Phase::Body
    };
    guarded::turn(downstream.stream(), phase);
    let bytes = downstream
        .as_http1()
        .map(|read| read.get_headers_raw_bytes().len());
    guarded::head_is_read(downstream.stream(), bytes.unwrap_or(0));
    // The guard sees more: this one is for a single read, and forgets it when the answer moves.
    downstream.set_read_timeout(None);
    // What the client wants of the connection, the head has said: it is only given an end here.
    if downstream.get_keepalive().is_some() {
        downstream.set_keepalive(KEPT.filter(|_| !last));
    }
    downstream.set_ignore_info_resp(is_old);
    downstream.set_pipelining_enabled(true);
}
