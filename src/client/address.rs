//! Every spelling of an address is one address, and an IPv6 client is its network.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

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

impl Prefixes {
    /// The network that `ip` is counted as, by the prefix of its family.
    #[must_use]
    pub fn network(self, ip: IpAddr) -> IpAddr {
        let ip = canonical(ip);
        network(ip, if ip.is_ipv4() { self.ipv4 } else { self.ipv6 })
    }
}

/// Unwraps IPv4 out of IPv6 by its bits, so that every spelling is one address.
#[must_use]
pub fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// The network of `ip` with this many leading bits, as its first address: what `ip/PREFIX` counts.
///
/// A prefix of more than 32 speaks of IPv6 alone, and leaves an IPv4 address whole; one of at most 32 cuts both
/// families. More than 128 is 128.
#[must_use]
pub fn network(ip: IpAddr, prefix: u8) -> IpAddr {
    match canonical(ip) {
        IpAddr::V4(ip) if prefix <= 32 => {
            let keep = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(ip.to_bits() & keep))
        }
        IpAddr::V4(ip) => IpAddr::V4(ip),
        IpAddr::V6(ip) => {
            let dropped = 128_u32.saturating_sub(u32::from(prefix));
            let keep = u128::MAX.checked_shl(dropped).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & keep))
        }
    }
}

/// The address as logs may show it: cut to /24 or /48, which is a neighbourhood and not a person.
#[must_use]
pub fn masked(ip: IpAddr) -> IpAddr {
    Prefixes { ipv4: 24, ipv6: 48 }.network(ip)
}

/// Reads an address as forwarding headers write it: `IP`, `IP:port`, `[IPv6]` or `[IPv6]:port`, in canonical form.
///
/// A zone id says something to the machine that wrote it only, and is dropped. `None` is "not an address".
#[must_use]
pub fn parse(text: &str) -> Option<IpAddr> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (ip, port) = bracketed.split_once(']')?;
        let port = port.strip_prefix(':');
        let closed = port.is_some_and(is_port) || bracketed.ends_with(']');
        return if closed { ipv6(ip) } else { None };
    }
    // One colon parts an IPv4 address from its port; more of them are an IPv6 address.
    match text.split_once(':') {
        None => ipv4(text),
        Some((ip, port)) if !port.contains(':') => ipv4(ip).filter(|_| is_port(port)),
        Some(_) => ipv6(text),
    }
}

fn ipv4(text: &str) -> Option<IpAddr> {
    text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

fn ipv6(text: &str) -> Option<IpAddr> {
    let without_zone = text.split_once('%').map_or(text, |(ip, _zone)| ip);
    let ip: Ipv6Addr = without_zone.parse().ok()?;
    Some(canonical(IpAddr::V6(ip)))
}

/// A port, or what RFC 7239 lets a proxy write in its place.
fn is_port(text: &str) -> bool {
    if let Some(obfuscated) = text.strip_prefix('_') {
        return !obfuscated.is_empty()
            && obfuscated
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    }
    text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit()) && text.parse::<u16>().is_ok()
}
