//! Who is calling: the peer's address, or what trusted proxies say of it.

pub mod address;
pub mod api_key;
pub mod forwarded;
pub mod jwt;
pub mod sent;

use std::net::IpAddr;

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

/// `[client_ip]`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whose forwarding header is believed. Nobody's by default.
    pub trust: Trust,
    /// The header that names the client.
    pub header: Header,
    /// How much of an address counts.
    pub prefixes: address::Prefixes,
    /// A further header in which a trusted proxy says something of the client: the plan that it is on.
    pub tier_header: Option<HeaderName>,
}

/// Whose word counts.
#[derive(Clone, Debug)]
pub enum Trust {
    /// That of proxies within these networks.
    Networks(Box<[IpNet]>),
    /// That of the last so many proxies, whatever their addresses.
    Hops(std::num::NonZeroUsize),
}

/// The header that names the client.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Header {
    /// `X-Forwarded-For`: a list, read right to left.
    XForwardedFor,
    /// `Forwarded` (RFC 7239): a list, read right to left.
    Forwarded,
    /// A field that holds one address, as CDNs send it.
    Single(HeaderName),
}

/// Who calls.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Client {
    /// The address that limits count; `None` on a socket that has none.
    pub ip: Option<IpAddr>,
    /// Whether the peer is a trusted proxy.
    pub through_trusted: bool,
}

/// The forwarding header has more entries than are ever read: answer 400.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "more than {} addresses in the forwarding header",
    forwarded::ENTRIES_MAX
)]
pub struct TooManyEntries;

impl Trust {
    /// Whether nobody's word counts.
    #[must_use]
    pub const fn is_nobody(&self) -> bool {
        matches!(self, Self::Networks(networks) if networks.is_empty())
    }

    /// Whether the word of whoever has this address counts.
    #[must_use]
    pub fn includes(&self, ip: Option<IpAddr>) -> bool {
        match self {
            Self::Hops(_) => true,
            Self::Networks(networks) => ip.is_some_and(|ip| {
                let ip = address::canonical(ip);
                networks.iter().any(|network| network_holds(network, ip))
            }),
        }
    }
}

impl Default for Settings {
    /// Trusts nobody: the client is the peer.
    fn default() -> Self {
        Self {
            trust: Trust::Networks(Box::default()),
            header: Header::XForwardedFor,
            prefixes: address::Prefixes::default(),
            tier_header: None,
        }
    }
}

/// Finds out who calls: `peer`, unless that is a trusted proxy which says more.
///
/// The address is canonical: IPv4 within IPv6 is unwrapped. Nothing that an untrusted peer sent is read.
///
/// # Errors
///
/// [`TooManyEntries`] when the header of a trusted proxy is longer than is ever read.
pub fn resolve(
    settings: &Settings,
    peer: Option<IpAddr>,
    headers: &HeaderMap,
) -> Result<Client, TooManyEntries> {
    let peer = peer.map(address::canonical);
    let through_trusted = settings.trust.includes(peer);
    let ip = if through_trusted {
        forwarded::client_behind(settings, peer, headers)?
    } else {
        peer
    };
    Ok(Client {
        ip,
        through_trusted,
    })
}

/// A network of mapped addresses (`::ffff:10.0.0.0/104`) is one of IPv4 addresses.
fn network_holds(network: &IpNet, ip: IpAddr) -> bool {
    match (network, ip) {
        (IpNet::V6(mapped), IpAddr::V4(ip)) if mapped.prefix_len() >= 96 => {
            mapped.contains(&ip.to_ipv6_mapped())
        }
        _ => network.contains(&ip),
    }
}
