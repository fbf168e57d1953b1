//! The stream that Pingora reads and writes: each read and write is the guard's business first.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    ALPN, GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl,
    TimingDigest, UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::timeout;

use super::{Guarded, Phase};
use crate::record::metrics::Fault;

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let me = &mut *self;
        let filled = buffer.filled().len();
        let read = match me.look() {
            phase if !me.replay.is_empty() => {
                me.read_again(phase, buffer);
                Poll::Ready(Ok(()))
            }
            Phase::Head => me.poll_head(cx, buffer),
            phase => me.poll_rest(cx, phase, buffer),
        };
        me.read = me.read.saturating_add(buffer.filled().len() - filled);
        read
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let me = &mut *self;
        match me.look() {
            Phase::Head => {
                me.refuse_for(bytes);
                return Poll::Ready(Ok(bytes.len()));
            }
            // Whatever it is: it need not wait for us any longer.
            Phase::Asked => me.phase.store(Phase::Body as u8, Ordering::Relaxed),
            Phase::Body | Phase::Rest => {}
        }
        let written = Pin::new(&mut me.io).poll_write(cx, bytes);
        me.paced(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        self.paced_end(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        let shut = Pin::new(&mut self.io).poll_shutdown(cx);
        self.paced_end(cx, shut)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = slices.iter().find(|slice| !slice.is_empty());
        if self.look() == Phase::Head {
            self.refuse_for(first.map_or(&[], |first| &first[..]));
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        self.paced(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[async_trait]
impl Shutdown for Guarded {
    async fn shutdown(&mut self) {
        // Who takes nothing does not take the rest either.
        let patience = self.current.get().config.server.body_timeout;
        if self.fault != Some(Fault::WriteTimeout) {
            // Not Pingora's own, which writes a line in the log for each client that is gone already.
            let _ = timeout(patience, AsyncWriteExt::shutdown(&mut self.io)).await;
        }
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
