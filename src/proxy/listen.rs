//! The edge: what stands between a socket and Pingora's proxy, since Pingora has no deadline for a whole request
//! head, keeps an idle connection for ever, and answers what it cannot parse in its own name and unrecorded.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf, Bytes};
use pingora::apps::{HttpServerApp, ServerApp};
use pingora::protocols::http::ServerSession;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    Stream, TimingDigest, UniqueID, UniqueIDType,
};
use pingora::proxy::{HttpProxy, Session};
use pingora::server::ShutdownWatch;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout};

use super::Proxy;
use super::connections::{Connection, Connections, Full};
use super::gateway::Current;

/// How long a connection may lie idle between two requests.
const IDLE: Duration = Duration::from_secs(60);

/// How long it may once the gateway stops: a request that is on its way then is still served.
const LINGER: Duration = Duration::from_secs(2);
const LINGER_LOOK_EVERY: Duration = Duration::from_millis(50);

/// What is answered to a head that cannot be parsed.
const MALFORMED: &str = "HTTP/1.1 400 Bad Request\r\nContent-Type: application/problem+json\r\n\
    Content-Length: 94\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n\
    {\"type\":\"about:blank\",\"title\":\"Bad Request\",\"status\":400,\"detail\":\"The request is malformed.\"}";

/// What is answered to CONNECT.
const NOT_ALLOWED: &str = "HTTP/1.1 405 Method Not Allowed\r\nContent-Type: application/problem+json\r\n\
    Content-Length: 101\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n\
    {\"type\":\"about:blank\",\"title\":\"Method Not Allowed\",\"status\":405,\"detail\":\"CONNECT is not supported.\"}";

/// Serves one kind of connection: HTTP/1.1 in the clear.
pub struct Edge {
    proxy: Arc<HttpProxy<Proxy>>,
    current: Current,
    connections: Arc<Connections>,
    header_timeout: Duration,
    closed: Arc<AtomicBool>,
}

impl Edge {
    /// In front of `proxy`; a request's head has to arrive within `header_timeout` of its first byte, and the
    /// first byte within `header_timeout` of the connection. `closed` turns true once no further request is taken.
    pub fn new(
        proxy: HttpProxy<Proxy>,
        current: Current,
        header_timeout: Duration,
        closed: Arc<AtomicBool>,
    ) -> Self {
        Self {
            proxy: Arc::new(proxy),
            connections: Arc::new(Connections::new(
                current.get().metrics.families().connections.clone(),
            )),
            current,
            header_timeout,
            closed,
        }
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
        match self.connections.open(server.max_connections, address) {
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
        let guarded = Guarded::new(stream, self.current.clone(), self.header_timeout);
        let mut session = ServerSession::new_http1(Box::new(guarded));
        session.set_keepalive(Some(self.header_timeout.as_secs().max(1)));
        loop {
            let reused = self.proxy.process_new_http(session, shutdown).await?;
            let (stream, settings) = reused.consume();
            set_armed(Some(&stream), true);
            session = ServerSession::new_http1(stream);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
            session.set_keepalive(Some(IDLE.as_secs()));
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

/// The request's head is read: what follows may take its time. `last` is whether the connection serves no other.
pub fn head_is_read(session: &mut Session, last: bool) {
    set_armed(session.downstream_session.stream(), false);
    let is_old = session.req_header().version == http::Version::HTTP_10;
    let downstream = session.as_downstream_mut();
    // What the client wants of the connection, the head has said: it is only given an end here.
    if downstream.get_keepalive().is_some() {
        downstream.set_keepalive((!last).then_some(IDLE.as_secs()));
    }
    downstream.set_ignore_info_resp(is_old);
    downstream.set_pipelining_enabled(true);
}

fn set_armed(stream: Option<&Stream>, armed: bool) {
    let guarded = stream.and_then(|stream| stream.as_any().downcast_ref::<Guarded>());
    if let Some(guarded) = guarded {
        guarded.armed.store(armed, Ordering::Relaxed);
        guarded.heads.fetch_add(1, Ordering::Relaxed);
    }
}

/// A stream that is armed between two requests. A head then has its deadline, from its first byte on; and what is
/// written then is Pingora's own refusal of a head that it could not parse, for which ours is sent.
struct Guarded {
    io: Stream,
    current: Current,
    armed: AtomicBool,
    /// How often it was armed, and how often the deadline knows of: each head has one of its own.
    heads: AtomicU32,
    timed: u32,
    limit: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    /// What of our refusal is still to be sent.
    refusal: Bytes,
}

impl Guarded {
    fn new(io: Stream, current: Current, limit: Duration) -> Self {
        Self {
            io,
            current,
            armed: AtomicBool::new(true),
            heads: AtomicU32::new(0),
            timed: 0,
            limit,
            deadline: None,
            refusal: Bytes::new(),
        }
    }

    fn is_armed(&self) -> bool {
        self.armed.load(Ordering::Relaxed)
    }

    /// Puts our refusal in place of Pingora's, and records it: once, whatever the number of writes.
    fn refuse(&mut self, theirs: &[u8]) {
        let Some(status) = theirs
            .strip_prefix(b"HTTP/1.1 ")
            .and_then(|line| line.get(..3))
        else {
            return;
        };
        let (status, refusal) = if status == b"405" {
            (405, NOT_ALLOWED)
        } else {
            (400, MALFORMED)
        };
        self.refusal = Bytes::from_static(refusal.as_bytes());
        let digest = self.io.get_socket_digest();
        let peer = super::forward::ip_of(digest.as_ref().and_then(|digest| digest.peer_addr()));
        super::log::record_unparsed(&self.current.get(), peer, status);
    }

    /// Sends what is left of our refusal.
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.refusal.is_empty() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.refusal))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.refusal.advance(written);
        }
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").finish_non_exhaustive()
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = &mut *self;
        let heads = me.heads.load(Ordering::Relaxed);
        if me.timed != heads {
            me.timed = heads;
            me.deadline = None;
        }
        if !me.is_armed() {
            return Pin::new(&mut me.io).poll_read(cx, buffer);
        }
        if let Some(deadline) = &mut me.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "the request's head took too long",
            )));
        }
        let filled = buffer.filled().len();
        let read = ready!(Pin::new(&mut me.io).poll_read(cx, buffer));
        if me.deadline.is_none() && buffer.filled().len() > filled {
            me.deadline = Some(Box::pin(sleep_until(Instant::now() + me.limit)));
        }
        Poll::Ready(read)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.is_armed() {
            self.refuse(bytes);
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.is_armed() {
            self.refuse(slices.first().map_or(&[], |first| &first[..]));
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[async_trait]
impl Shutdown for Guarded {
    async fn shutdown(&mut self) {
        self.io.shutdown().await;
    }
}

impl UniqueID for Guarded {
    fn id(&self) -> UniqueIDType {
        self.io.id()
    }
}

impl Ssl for Guarded {
    fn get_ssl_digest(&self) -> Option<Arc<pingora::protocols::tls::SslDigest>> {
        self.io.get_ssl_digest()
    }

    fn selected_alpn_proto(&self) -> Option<ALPN> {
        self.io.selected_alpn_proto()
    }
}

impl GetTimingDigest for Guarded {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.io.get_timing_digest()
    }
}

impl GetProxyDigest for Guarded {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.io.get_proxy_digest()
    }
}

impl GetSocketDigest for Guarded {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.io.get_socket_digest()
    }
}

impl Peek for Guarded {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_its_own_length() {
        for refusal in [MALFORMED, NOT_ALLOWED] {
            let (head, body) = refusal.split_once("\r\n\r\n").unwrap();
            assert!(
                head.contains(&format!("Content-Length: {}\r\n", body.len())),
                "{}",
                body.len()
            );
            assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
        }
    }
}
