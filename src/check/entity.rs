//! Whom a policy counts: the parts of its key, read from the request and hashed.
//!
//! The hash is keyed, so that nobody who reads the store can find an address or an API key by trying them all,
//! and its parts are joined with their lengths, so that no two callers share one.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use crate::client::address::Prefixes;
use crate::request::RequestView;

/// Where a part of a key comes from.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum KeySource {
    /// The client's address, by the configured prefixes.
    Ip,
    /// The client's address, by a prefix of this length: `ip/56`. It cuts IPv6; of IPv4 too if it is at most 32.
    IpPrefix(u8),
    /// A header field, lower case.
    Header(http::HeaderName),
    /// A cookie.
    Cookie(Arc<str>),
    /// A query parameter.
    Query(Arc<str>),
    /// A parameter of the route's path.
    Path(Arc<str>),
    /// The method.
    Method,
    /// The host, without port, lower case.
    Host,
    /// The route's name.
    Route,
    /// Everybody together.
    Global,
}

/// Secret that keys the hash of entities. Instances that share a store share it.
#[derive(Clone)]
pub struct KeySecret([u8; 32]);

/// Whom a check counts: 128 bits, opaque.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct EntityKey(pub [u8; 16]);

/// All that keys are read from.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The request.
    pub request: RequestView<'a>,
    /// Who calls; `None` on a socket that has no address.
    pub client_ip: Option<IpAddr>,
    /// How much of an address counts.
    pub prefixes: Prefixes,
    /// The name of the route that matched.
    pub route: &'a str,
    /// The values of the route's path parameters, decoded, by name.
    pub params: &'a [(Arc<str>, String)],
}

impl KeySecret {
    /// A secret of 32 bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(…)")
    }
}
