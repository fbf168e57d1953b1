//! Reads one part of a key from a request. Everything here is bytes from outside.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv6Addr};

use http::header::COOKIE;
use percent_encoding::percent_decode;

use super::entity::{Caller, KeySource};
use crate::client::address::{Prefixes, canonical};

/// What a request has of a part.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Part<'a> {
    /// This value.
    Value(Cow<'a, [u8]>),
    /// Nothing, or an empty value.
    Missing,
    /// Several values that differ. Which of them the application believes is anyone's guess.
    Ambiguous,
}

/// What `source` comes to on this request.
pub(super) fn part<'a>(source: &KeySource, caller: &Caller<'a>) -> Part<'a> {
    let request = &caller.request;
    let ip = |prefixes| caller.client_ip.map(|ip| Cow::Owned(network(ip, prefixes)));
    match source {
        KeySource::Ip => only(ip(caller.prefixes)),
        KeySource::IpPrefix(bits) => only(ip(cut_to(*bits, caller.prefixes))),
        KeySource::Header(name) => {
            let lines = request.headers.get_all(name).into_iter();
            only(lines.map(|line| Cow::Borrowed(line.as_bytes().trim_ascii())))
        }
        KeySource::Cookie(name) => {
            let lines = request.headers.get_all(COOKIE).into_iter();
            let values = cookies(lines.map(http::HeaderValue::as_bytes), name);
            only(values.map(Cow::Borrowed))
        }
        KeySource::Query(name) => only(queries(request.query.unwrap_or_default(), name)),
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
        KeySource::Global => Part::Value(Cow::Borrowed(b"")),
    }
}

/// The one value that all of these are.
fn only<'a>(values: impl IntoIterator<Item = Cow<'a, [u8]>>) -> Part<'a> {
    let mut values = values.into_iter();
    let Some(first) = values.next() else {
        return Part::Missing;
    };
    if values.any(|other| other != first) {
        Part::Ambiguous
    } else if first.is_empty() {
        Part::Missing
    } else {
        Part::Value(first)
    }
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

/// The cookies of this name (RFC 6265 section 4.2.1), over all lines. Quotes belong to the value.
fn cookies<'a>(
    lines: impl Iterator<Item = &'a [u8]>,
    name: &str,
) -> impl Iterator<Item = &'a [u8]> {
    let pairs = lines.flat_map(|line| line.split(|b| *b == b';'));
    pairs.filter_map(move |pair| {
        let equals = pair.iter().position(|b| *b == b'=')?;
        let (found, value) = pair.split_at_checked(equals)?;
        (found.trim_ascii() == name.as_bytes())
            .then(|| value.get(1..).unwrap_or_default().trim_ascii())
    })
}

/// The values of this name, decoded as a form is. Other spellings of a name or a value are the same one.
pub(super) fn queries<'a>(query: &'a str, name: &str) -> impl Iterator<Item = Cow<'a, [u8]>> {
    query.split('&').filter_map(move |pair| {
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
    fn cookies_are_found_among_others() {
        let cases: [(&[&str], &[&str]); 7] = [
            (&["sid=1"], &["1"]),
            (&["a=2; sid=1; sid=3"], &["1", "3"]),
            (&["a=2", "sid=1"], &["1"]),
            (&["asid=2; sid"], &[]),
            (&["sid=\"a b\"; x=1"], &["\"a b\""]),
            (&["sid=a=b"], &["a=b"]),
            (&["sid="], &[""]),
        ];
        for (lines, expected) in cases {
            let found: Vec<_> = cookies(lines.iter().map(|l| l.as_bytes()), "sid").collect();
            let expected: Vec<_> = expected.iter().map(|e| e.as_bytes()).collect();
            assert_eq!(found, expected, "{lines:?}");
        }
    }

    #[test]
    fn queries_are_found_in_every_spelling() {
        let cases: [(&str, &[&[u8]]); 7] = [
            ("user=a", &[b"a"]),
            ("x=1&%75ser=%61&user=b", &[b"a", b"b"]),
            ("user=a+b%2Bc", &[b"a b+c"]),
            ("users=a", &[]),
            ("user", &[b""]),
            ("", &[]),
            ("user=%ff%zz", &[b"\xff%zz"]),
        ];
        for (text, expected) in cases {
            let found: Vec<_> = queries(text, "user").collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn values_that_differ_are_ambiguous_and_equal_ones_are_one() {
        let part = |values: &[&'static str]| {
            only(values.iter().map(|value| Cow::Borrowed(value.as_bytes())))
        };
        assert_eq!(part(&[]), Part::Missing);
        assert_eq!(part(&["", ""]), Part::Missing);
        assert_eq!(part(&["a", "a"]), Part::Value(Cow::Borrowed(b"a")));
        assert_eq!(part(&["a", "b"]), Part::Ambiguous);
        assert_eq!(part(&["", "a"]), Part::Ambiguous);
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
