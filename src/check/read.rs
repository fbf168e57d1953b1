//! Reads one part of a key from a request. Everything here is bytes from outside.

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::COOKIE;
use percent_encoding::percent_decode;

use super::entity::{Caller, KeySource};
use crate::client::address::{Prefixes, canonical};

/// The value of `source` on this request; `None` if it is missing or empty.
pub(super) fn part<'a>(source: &KeySource, caller: &Caller<'a>) -> Option<Cow<'a, [u8]>> {
    let request = &caller.request;
    let value = match source {
        KeySource::Ip => Cow::Owned(network(caller.client_ip?, caller.prefixes)),
        KeySource::IpPrefix(bits) => {
            Cow::Owned(network(caller.client_ip?, cut_to(*bits, caller.prefixes)))
        }
        KeySource::Header(name) => {
            // Of two lines, which one the application believes is anyone's guess.
            let mut lines = request.headers.get_all(name).into_iter();
            let (Some(line), None) = (lines.next(), lines.next()) else {
                return None;
            };
            Cow::Borrowed(line.as_bytes().trim_ascii())
        }
        KeySource::Cookie(name) => {
            let lines = request.headers.get_all(COOKIE).into_iter();
            Cow::Borrowed(cookie(lines.map(http::HeaderValue::as_bytes), name)?)
        }
        KeySource::Query(name) => query(request.query?, name)?,
        KeySource::Path(name) => {
            let (_, value) = caller.params.iter().find(|(param, _)| param == name)?;
            Cow::Borrowed(value.as_bytes())
        }
        KeySource::Method => Cow::Borrowed(request.method.as_bytes()),
        KeySource::Host => Cow::Owned(host(request.host).to_ascii_lowercase().into_bytes()),
        KeySource::Route => Cow::Borrowed(caller.route.as_bytes()),
        KeySource::Global => return Some(Cow::Borrowed(b"")),
    };
    (!value.is_empty()).then_some(value)
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

/// The first cookie of this name (RFC 6265 section 4.2.1), over all lines. Quotes belong to the value.
fn cookie<'a>(lines: impl Iterator<Item = &'a [u8]>, name: &str) -> Option<&'a [u8]> {
    let pairs = lines.flat_map(|line| line.split(|b| *b == b';'));
    let mut named = pairs.filter_map(|pair| {
        let equals = pair.iter().position(|b| *b == b'=')?;
        let (found, value) = pair.split_at_checked(equals)?;
        (found.trim_ascii() == name.as_bytes())
            .then(|| value.get(1..).unwrap_or_default().trim_ascii())
    });
    named.next()
}

/// The first value of this name, decoded as a form is. Other spellings of a name or a value are the same one.
fn query<'a>(query: &'a str, name: &str) -> Option<Cow<'a, [u8]>> {
    query.split('&').find_map(|pair| {
        let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
        (*form_decode(found) == *name.as_bytes()).then(|| form_decode(value))
    })
}

/// A plus is a space, and `%` begins two hexadecimal digits.
fn form_decode(text: &str) -> Cow<'_, [u8]> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        return Cow::Owned(percent_decode(spaced.as_bytes()).collect());
    }
    percent_decode(text.as_bytes()).into()
}

/// The host without its port and without the root's dot.
fn host(authority: &str) -> &str {
    let host = match authority.rsplit_once(':') {
        // In an IPv6 address without a port, what follows the last colon is still in brackets.
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    };
    host.strip_suffix('.').unwrap_or(host)
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
            ("", ""),
        ];
        for (authority, expected) in cases {
            assert_eq!(host(authority), expected, "{authority}");
        }
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let cases: [(&[&str], Option<&str>); 7] = [
            (&["sid=1"], Some("1")),
            (&["a=2; sid=1; sid=3"], Some("1")),
            (&["a=2", "sid=1"], Some("1")),
            (&["asid=2; sid"], None),
            (&["sid=\"a b\"; x=1"], Some("\"a b\"")),
            (&["sid=a=b"], Some("a=b")),
            (&["sid="], Some("")),
        ];
        for (lines, expected) in cases {
            let found = cookie(lines.iter().map(|l| l.as_bytes()), "sid");
            assert_eq!(found, expected.map(str::as_bytes), "{lines:?}");
        }
    }

    #[test]
    fn a_query_is_found_in_every_spelling() {
        let cases: [(&str, Option<&[u8]>); 7] = [
            ("user=a", Some(b"a")),
            ("x=1&%75ser=%61&user=b", Some(b"a")),
            ("user=a+b%2Bc", Some(b"a b+c")),
            ("users=a", None),
            ("user", Some(b"")),
            ("", None),
            ("user=%ff%zz", Some(b"\xff%zz")),
        ];
        for (text, expected) in cases {
            assert_eq!(query(text, "user").as_deref(), expected, "{text}");
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
