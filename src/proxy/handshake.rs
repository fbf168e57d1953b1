//! TLS on a connection that was just accepted. It has no more time than a head has, and no more of anything.

use std::sync::Arc;
use std::time::Duration;

use pingora::listeners::tls::Acceptor;
use pingora::protocols::l4::stream::Stream as Plain;
use pingora::protocols::{Peek, Stream};
use pingora::server::ShutdownWatch;
use rustls::ServerConfig;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use super::gateway::Gateway;
use super::listen::LINGER;
use super::unread::{NOT_TLS, Unread};
use crate::record::metrics::Fault;

/// What a client that speaks TLS begins with: the type of a record of its handshake.
const HANDSHAKE: u8 = 22;

/// The connection that is encrypted by `config`; `None` once it is over, which is counted.
pub(super) async fn accept(
    stream: Stream,
    config: Arc<ServerConfig>,
    gateway: &Gateway,
    within: Duration,
    shutdown: &ShutdownWatch,
) -> Option<Stream> {
    let mut shutdown = shutdown.clone();
    let stopping = async {
        // An error means that nobody will tell us any more: as good as told.
        let _ = shutdown.wait_for(|stopping| *stopping).await;
        sleep(LINGER).await;
    };
    let accepted = tokio::select! {
        accepted = timeout(within, shake(stream, config)) => accepted,
        () = stopping => return None,
    };
    match accepted {
        Ok(Shaken::Encrypted(stream)) => return Some(stream),
        // As who looks whether somebody listens.
        Ok(Shaken::Nothing) => {}
        Ok(Shaken::Clear(plain)) => refuse(*plain, &NOT_TLS, gateway, within).await,
        Ok(Shaken::Failed) | Err(_) => {
            gateway.metrics.families().bad_request(Fault::TlsHandshake);
        }
    }
    None
}

enum Shaken {
    Encrypted(Stream),
    /// The client left before it said anything.
    Nothing,
    /// It does not speak TLS.
    Clear(Box<Plain>),
    Failed,
}

async fn shake(stream: Stream, config: Arc<ServerConfig>) -> Shaken {
    let Ok(mut plain) = stream.into_any().downcast::<Plain>() else {
        return Shaken::Failed;
    };
    let mut first = [0];
    if plain.try_peek(&mut first).await.is_err() {
        return Shaken::Nothing;
    }
    if first != [HANDSHAKE] {
        return Shaken::Clear(plain);
    }
    match Acceptor::from_server_config(config)
        .tls_handshake(*plain)
        .await
    {
        Ok(encrypted) => Shaken::Encrypted(Box::new(encrypted)),
        Err(_) => Shaken::Failed,
    }
}

/// Says in the clear what is wrong, and records it.
async fn refuse(mut plain: Plain, unread: &Unread, gateway: &Gateway, within: Duration) {
    let digest = pingora::protocols::GetSocketDigest::get_socket_digest(&plain);
    let peer = super::forward::ip_of(digest.as_ref().and_then(|digest| digest.peer_addr()));
    super::log::record_unread(gateway, peer, unread.status, unread.fault, unread.error);
    let answer = unread.answer();
    let sent = async {
        plain.write_all(&answer).await?;
        plain.flush().await?;
        plain.shutdown().await
    };
    // Who does not take it does without.
    let _ = timeout(within, sent).await;
}
