//! The edge: what stands between a socket and Pingora's proxy, since Pingora has no deadline for a whole request
//! head and keeps an idle connection for ever.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_trait::async_trait;
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
use tokio::time::{Instant, Sleep, sleep_until};

use super::Gateway;

/// How long a connection may lie idle between two requests.
const IDLE: Duration = Duration::from_secs(60);

/// Serves one kind of connection: HTTP/1.1 in the clear.
pub struct Edge {
    proxy: Arc<HttpProxy<Gateway>>,
    header_timeout: Duration,
}

impl Edge {
    /// In front of `proxy`; a request's head has to arrive within `header_timeout` of its first byte, and the
    /// first byte within `header_timeout` of the connection.
    pub fn new(proxy: HttpProxy<Gateway>, header_timeout: Duration) -> Self {
        Self {
            proxy: Arc::new(proxy),
            header_timeout,
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
        let guarded = Guarded::new(stream, self.header_timeout);
        let mut session = ServerSession::new_http1(Box::new(guarded));
        session.set_keepalive(Some(self.header_timeout.as_secs().max(1)));
        loop {
            let reused = self.proxy.process_new_http(session, shutdown).await?;
            let (stream, settings) = reused.consume();
            session = ServerSession::new_http1(stream);
            if let Some(settings) = settings {
                settings.apply_to_session(&mut session);
            }
            session.set_keepalive(Some(IDLE.as_secs()));
        }
    }

    async fn cleanup(&self) {
        self.proxy.http_cleanup().await;
    }
}

/// The request's head is read: what follows may take its time.
pub fn head_is_read(session: &mut Session) {
    set_armed(session, false);
    session.set_keepalive(Some(IDLE.as_secs()));
    session.as_downstream_mut().set_pipelining_enabled(true);
}

/// The request is over: the next one's head has its deadline again.
pub fn request_is_over(session: &Session) {
    set_armed(session, true);
}

fn set_armed(session: &Session, armed: bool) {
    let guarded = session
        .downstream_session
        .stream()
        .and_then(|stream| stream.as_any().downcast_ref::<Guarded>());
    if let Some(guarded) = guarded {
        guarded.armed.store(armed, Ordering::Relaxed);
    }
}

/// A stream with a deadline for a whole request head: it starts with the first byte after being armed.
struct Guarded {
    io: Stream,
    armed: AtomicBool,
    limit: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl Guarded {
    fn new(io: Stream, limit: Duration) -> Self {
        Self {
            io,
            armed: AtomicBool::new(true),
            limit,
            deadline: None,
        }
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
        if !me.armed.load(Ordering::Relaxed) {
            me.deadline = None;
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
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
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
