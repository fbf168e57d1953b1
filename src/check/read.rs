//! Reads one part of a key from a request. Everything here is bytes from outside.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use super::entity::{Caller, KeySource};
use super::identity::Identity;
use crate::client::address::{Prefixes, canonical};
use crate::client::sent::{self, Sent, only};

/// What `source` comes to on this request.
pub(super) fn part<'a>(source: &KeySource, caller: &Caller<'a>) -> Sent<'a> {
    let request = &caller.request;
    let ip = |prefixes| caller.client_ip.map(|ip| Cow::Owned(network(ip, prefixes)));
    match source {
        KeySource::Ip => only(ip(caller.prefixes)),
        KeySource::IpPrefix(bits) => only(ip(cut_to(*bits, caller.prefixes))),
        KeySource::Identity => only(whole_id(caller.identity)),
        KeySource::Tier => only(caller.identity.tier.as_deref().map(text)),
        KeySource::Jwt(claim) => only(caller.identity.claim(claim).map(text)),
        KeySource::Header(name) => only(sent::in_header(request, name)),
        KeySource::Cookie(name) => only(sent::in_cookies(request, name)),
        KeySource::Query(name) => only(sent::in_query(request, name)),
        KeySource::Path(name) => {
            let mut named = caller.params.iter().filter(|(param, _)| param == name);
            only(
                named
                    .next()
                    .map(|(_, value)| Cow::Borrowed(segment(value).as_bytes())),
            )
        }
        KeySource::Method => only([Cow::Borrowed(request.method.as_bytes())]),
        KeySource::Host => only([Cow::Owned(host(request.host).into_bytes())]),
        KeySource::Route => only([Cow::Borrowed(caller.route.as_bytes())]),
        KeySource::Global => Sent::Value(Cow::Borrowed(b"")),
    }
}

/// What a request sends of a part of which somebody says that it is `value`; `None` if it cannot be.
pub(super) fn typed<'a>(
    source: &KeySource,
    value: &'a str,
    prefixes: Prefixes,
) -> Option<Sent<'a>> {
    let ip = |prefixes| Some(Cow::Owned(network(value.parse().ok()?, prefixes)));
    let read = match source {
        KeySource::Ip => ip(prefixes)?,
        KeySource::IpPrefix(bits) => ip(cut_to(*bits, prefixes))?,
        KeySource::Header(_) | KeySource::Cookie(_) => Cow::Borrowed(value.as_bytes().trim_ascii()),
        KeySource::Path(_) => text(segment(value)),
        KeySource::Host => Cow::Owned(host(value).into_bytes()),
        KeySource::Identity
        | KeySource::Tier
        | KeySource::Jwt(_)
        | KeySource::Query(_)
        | KeySource::Method
        | KeySource::Route => text(value),
        KeySource::Global => text(""),
    };
    Some(Sent::Value(read))
}

fn text(text: &str) -> Cow<'_, [u8]> {
    Cow::Borrowed(text.as_bytes())
}

/// An identity, with who vouches for it where that is not always the same: two of them may know an `alice` each.
fn whole_id(identity: &Identity) -> Option<Cow<'_, [u8]>> {
    let id = identity.id.as_deref()?;
    Some(match &identity.issuer {
        None => text(id),
        // Ids begin with a letter.
        Some(issuer) => Cow::Owned(format!("{}:{issuer}{id}", issuer.len()).into_bytes()),
    })
}

/// A path parameter as the most careless application reads it: without `;…`, and up to an escaped slash or backslash,
/// behind which another parameter may begin.
fn segment(value: &str) -> &str {
    value
        .split(['/', '\\'])
        .map(|piece| piece.split(';').next().unwrap_or_default())
        .find(|piece| !piece.is_empty())
        .unwrap_or_default()
}

/// The configured prefixes, but for one of this length. One that no IPv4 address has leaves those as they are.
fn cut_to(bits: u8, prefixes: Prefixes) -> Prefixes {
    Prefixes {
        ipv4: if bits <= 32 { bits } else { prefixes.ipv4 },
        ipv6: bits,
    }
}

/// The network that the address is counted by: its bytes, the rest of them zero.
fn network(ip: IpAddr, prefixes: Prefixes) -> Vec<u8> {
    match canonical(ip) {
        IpAddr::V4(ip) => {
            let cut = 32_u32.saturating_sub(u32::from(prefixes.ipv4));
            (ip.to_bits() & u32::MAX.checked_shl(cut).unwrap_or(0))
                .to_be_bytes()
                .to_vec()
        }
        IpAddr::V6(ip) => {
            let cut = 128_u32.saturating_sub(u32::from(prefixes.ipv6));
            (ip.to_bits() & u128::MAX.checked_shl(cut).unwrap_or(0))
                .to_be_bytes()
                .to_vec()
        }
    }
}

/// The host in lower case, without its port and without the root's dot; an IPv6 address in its one spelling.
fn host(authority: &str) -> String {
    let host = match authority.rsplit_once(':') {
        // In an IPv6 address without a port, what follows the last colon is still in brackets.
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    };
    let literal = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    if let Some(ip) = literal.and_then(|literal| literal.parse::<Ipv6Addr>().ok()) {
        return format!("[{ip}]");
    }
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_loses_its_port_only() {
        let cases = [
            ("api.example", "api.example"),
            ("api.example:443", "api.example"),
            ("api.example:", "api.example"),
            ("api.example.", "api.example"),
            ("[2001:db8::1]", "[2001:db8::1]"),
            ("[2001:db8::1]:8080", "[2001:db8::1]"),
            ("[2001:DB8:0::0001]", "[2001:db8::1]"),
            ("API.example", "api.example"),
            ("", ""),
        ];
        for (authority, expected) in cases {
            assert_eq!(host(authority), expected, "{authority}");
        }
    }

    #[test]
    fn a_path_parameter_loses_what_applications_leave_out() {
        for (value, expected) in [
            ("bob", "bob"),
            ("bob;1", "bob"),
            ("bob;a=1;b", "bob"),
            ("bob//", "bob"),
            ("bob\\", "bob"),
            ("/bob", "bob"),
            ("\\/bob", "bob"),
            ("bob/x1", "bob"),
            ("bob\\x2", "bob"),
            ("Bob", "Bob"),
            (";1", ""),
        ] {
            assert_eq!(segment(value), expected, "{value}");
        }
    }

    #[test]
    fn an_address_is_cut_to_its_network() {
        let prefixes = Prefixes::default();
        let cut = |ip: &str, prefixes| {
            ip.parse()
                .map(|ip| network(ip, prefixes))
                .unwrap_or_default()
        };
        assert_eq!(
            cut("2001:db8::1", prefixes),
            cut("2001:DB8:0:0:ffff::2", prefixes)
        );
        assert_ne!(
            cut("2001:db8::1", prefixes),
            cut("2001:db8:0:1::1", prefixes)
        );
        assert_eq!(
            cut("::ffff:192.0.2.1", prefixes),
            cut("192.0.2.1", prefixes)
        );
        assert_ne!(cut("192.0.2.1", prefixes), cut("192.0.2.2", prefixes));
        assert_eq!(
            cut("192.0.2.1", cut_to(24, prefixes)),
            cut("192.0.2.2", cut_to(24, prefixes))
        );
        assert_ne!(
            cut("192.0.2.1", cut_to(56, prefixes)),
            cut("192.0.2.2", cut_to(56, prefixes))
        );
        let none = Prefixes { ipv4: 0, ipv6: 0 };
        assert_eq!(cut("192.0.2.1", none), [0; 4]);
        assert_eq!(cut("2001:db8::1", none), [0; 16]);
    }
}
