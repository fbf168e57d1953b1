//! How the servers of an upstream are reached: in the clear or over TLS, and on whose connections.

use std::net::SocketAddr;
use std::sync::Arc;

use pingora::prelude::HttpPeer;
use pingora::protocols::ALPN;
use pingora::protocols::tls::CaType;
use pingora::utils::tls::{WrappedX509, parse_x509};

use crate::config::{Upstream, UpstreamTls};
use crate::tls::Authorities;

/// A file without certificates. Where a peer comes without authorities, nobody is believed: each of ours comes with
/// them. Pingora would read the machine's at the start, and end the process if one of them makes no sense to it.
pub(super) const NO_AUTHORITIES: &str = "/dev/null";

/// How the servers of an upstream are reached.
#[derive(Debug)]
pub(super) struct Reach {
    tls: Option<Tls>,
    /// The same only for what may share its connections.
    group: u64,
}

#[derive(Debug)]
struct Tls {
    sni: Option<Box<str>>,
    verify: bool,
    authorities: Arc<CaType>,
}

/// Authorities as Pingora takes them, each made once.
#[derive(Default)]
pub(super) struct Made(Vec<(Authorities, Arc<CaType>)>);

impl Made {
    fn get(&mut self, authorities: &Authorities) -> Arc<CaType> {
        if let Some((_, made)) = self.0.iter().find(|(known, _)| known.is(authorities)) {
            return Arc::clone(made);
        }
        let made: Arc<CaType> = authorities
            .certificates()
            .iter()
            .map(|certificate| WrappedX509::new(certificate.to_vec(), parse_x509))
            .collect();
        self.0.push((authorities.clone(), Arc::clone(&made)));
        made
    }
}

impl Reach {
    pub(super) fn new(upstream: &Upstream, made: &mut Made) -> Self {
        Self {
            group: group(upstream),
            tls: upstream.tls.as_ref().map(|tls| Tls {
                sni: tls.sni.clone(),
                verify: tls.verify,
                authorities: made.get(&tls.authorities),
            }),
        }
    }

    /// What is connected to for a server: `name` is its host and port as configured, `address` where that is.
    pub(super) fn peer(&self, name: &str, address: SocketAddr) -> HttpPeer {
        let mut peer = match &self.tls {
            None => HttpPeer::new(address, false, String::new()),
            Some(tls) => {
                // Never empty: then nothing would be verified.
                let sni = tls.sni.as_deref().unwrap_or_else(|| host(name));
                let mut peer = HttpPeer::new(address, true, sni.to_owned());
                peer.options.verify_cert = tls.verify;
                peer.options.verify_hostname = tls.verify;
                peer.options.ca = Some(Arc::clone(&tls.authorities));
                peer.options.alpn = ALPN::H1;
                peer
            }
        };
        peer.group_key = self.group;
        peer
    }

    /// The `Host` field that names a server.
    pub(super) fn authority<'n>(&self, name: &'n str) -> &'n str {
        let usual = if self.tls.is_some() { ":443" } else { ":80" };
        name.strip_suffix(usual).unwrap_or(name)
    }
}

/// Of an upstream, and of whom it believes: what was connected to by another configuration is not used by it.
fn group(upstream: &Upstream) -> u64 {
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &[u8]| {
        hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(part);
    };
    add(upstream.name.as_bytes());
    if let Some(UpstreamTls {
        sni,
        verify,
        authorities,
    }) = &upstream.tls
    {
        add(&[u8::from(*verify)]);
        add(sni.as_deref().unwrap_or_default().as_bytes());
        for certificate in authorities.certificates() {
            add(certificate);
        }
    }
    let [a, b, c, d, e, f, g, h, ..] = *hasher.finalize().as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}

/// The host of a server's `host:port`, without brackets.
fn host(name: &str) -> &str {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    inner.unwrap_or(host)
}
