//! Every spelling of an address is one address, and an IPv6 client is its network.

use std::net::IpAddr;

/// How much of an address counts as one client.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Prefixes {
    /// Bits of an IPv4 address: 1 to 32.
    pub ipv4: u8,
    /// Bits of an IPv6 address: 1 to 128.
    pub ipv6: u8,
}

impl Default for Prefixes {
    fn default() -> Self {
        Self { ipv4: 32, ipv6: 64 }
    }
}

/// Unwraps IPv4 out of IPv6 by its bits, so that every spelling is one address.
#[must_use]
pub fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// stub
pub fn masked(ip: IpAddr) -> IpAddr {
    ip
}
