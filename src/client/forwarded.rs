//! Forwarding headers, read right to left: each proxy appends, so what stands right of a trusted proxy's own
//! entry is true, and what stands left of it is whatever its client liked to write.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, header};

use super::{Client, Header, Settings, TooManyEntries, Trust, address};

/// The most entries of a forwarding header that are read.
pub const ENTRIES_MAX: usize = 64;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The client behind trusted `peer`, as the configured header names it.
pub(super) fn client_behind(
    settings: &Settings,
    peer: Option<IpAddr>,
    headers: &HeaderMap,
) -> Result<Option<IpAddr>, TooManyEntries> {
    match &settings.header {
        Header::XForwardedFor => {
            let lines = || headers.get_all(X_FORWARDED_FOR).iter().rev();
            // Counted before anything is read: all entries, as far back as they go.
            let entries = || lines().flat_map(|line| line.as_bytes().rsplit(|&b| b == b','));
            refuse_too_many(entries().count())?;
            Ok(walk(&settings.trust, peer, entries().map(plain_address)))
        }
        Header::Forwarded => {
            let elements = || {
                let lines = headers.get_all(header::FORWARDED).iter().rev();
                lines.flat_map(|line| Elements::of(line.as_bytes()))
            };
            refuse_too_many(elements().take(ENTRIES_MAX.saturating_add(1)).count())?;
            let addresses = elements().map(|element| element.and_then(node_address));
            Ok(walk(&settings.trust, peer, addresses))
        }
        Header::Single(name) => {
            let mut lines = headers.get_all(name).iter();
            let address = match (lines.next(), lines.next()) {
                (Some(line), None) => plain_address(line.as_bytes()),
                _ => None,
            };
            Ok(address.or(peer))
        }
    }
}

fn refuse_too_many(entries: usize) -> Result<(), TooManyEntries> {
    if entries > ENTRIES_MAX {
        return Err(TooManyEntries);
    }
    Ok(())
}

/// Walks from the nearest entry to the farthest; `None` is an entry that is no address, and ends the walk.
fn walk(
    trust: &Trust,
    peer: Option<IpAddr>,
    entries: impl Iterator<Item = Option<IpAddr>>,
) -> Option<IpAddr> {
    let mut addresses = entries.map_while(|entry| entry);
    match trust {
        Trust::Hops(hops) => addresses.nth(hops.get().saturating_sub(1)).or(peer),
        Trust::Networks(_) => {
            let mut client = peer;
            for address in addresses {
                client = Some(address);
                if !trust.includes(Some(address)) {
                    break;
                }
            }
            client
        }
    }
}

/// An entry that is an address and nothing else.
fn plain_address(entry: &[u8]) -> Option<IpAddr> {
    address::parse(std::str::from_utf8(entry.trim_ascii()).ok()?)
}

/// The elements of one `Forwarded` line, right to left; `None` is what cannot be told apart, and is the last.
///
/// Read from the right, since a client can write an opening quote that it never closes. Read from the left, that
/// quote would swallow what a trusted proxy appended behind it.
struct Elements<'a> {
    rest: Option<&'a [u8]>,
}

impl<'a> Elements<'a> {
    fn of(line: &'a [u8]) -> Self {
        Self { rest: Some(line) }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.take()?;
        let Some(cut) = last_outside_quotes(rest, b',') else {
            return Some(None);
        };
        let Some(comma) = cut else {
            return Some(Some(rest));
        };
        self.rest = rest.get(..comma);
        Some(rest.get(comma.saturating_add(1)..))
    }
}

/// Where the last `wanted` stands that is not within a quoted string: `Some(None)` if nowhere, `None` if a quote
/// that closes never opens.
fn last_outside_quotes(text: &[u8], wanted: u8) -> Option<Option<usize>> {
    let mut quoted = false;
    for (at, &byte) in text.iter().enumerate().rev() {
        let escaped = || at.checked_sub(1).and_then(|before| text.get(before)) == Some(&b'\\');
        match byte {
            // Seen from the right, an opening quote is the first one that no backslash precedes.
            b'"' if !quoted => quoted = true,
            b'"' if !escaped() => quoted = false,
            _ if byte == wanted && !quoted => return Some(Some(at)),
            _ => {}
        }
    }
    if quoted { None } else { Some(None) }
}

/// The address of the element's one `for`. None for `unknown`, an obfuscated name, and what breaks the grammar.
fn node_address(element: &[u8]) -> Option<IpAddr> {
    let mut rest = Some(element);
    let mut node = None;
    while let Some(text) = rest.take() {
        let pair = match last_outside_quotes(text, b';')? {
            None => text,
            Some(semicolon) => {
                rest = text.get(..semicolon);
                text.get(semicolon.saturating_add(1)..)?
            }
        };
        let pair = std::str::from_utf8(pair.trim_ascii()).ok()?;
        if pair.is_empty() {
            continue;
        }
        let (name, value) = pair.split_once('=')?;
        if name.eq_ignore_ascii_case("for") && node.replace(unquoted(value)?).is_some() {
            return None;
        }
    }
    address::parse(&node?)
}

/// A value without its quotes. A token is taken as it is: many a proxy writes an IPv6 address unquoted.
fn unquoted(value: &str) -> Option<Cow<'_, str>> {
    let Some(open) = value.strip_prefix('"') else {
        return (!value.contains('"')).then_some(Cow::Borrowed(value));
    };
    let inner = open.strip_suffix('"')?;
    if !inner.contains(['\\', '"']) {
        return Some(Cow::Borrowed(inner));
    }
    let mut plain = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(char) = chars.next() {
        match char {
            '\\' => plain.push(chars.next()?),
            '"' => return None,
            _ => plain.push(char),
        }
    }
    Some(Cow::Owned(plain))
}

/// What the forwarding fields become on the way to the upstream: a name with its new value, or with none to be removed.
#[derive(Clone, Debug)]
pub struct Outgoing {
    fields: [Option<(HeaderName, Option<HeaderValue>)>; FIELDS],
}

const FIELDS: usize = 7;

impl IntoIterator for Outgoing {
    type Item = (HeaderName, Option<HeaderValue>);
    type IntoIter =
        std::iter::Flatten<std::array::IntoIter<Option<(HeaderName, Option<HeaderValue>)>, FIELDS>>;

    fn into_iter(self) -> Self::IntoIter {
        self.fields.into_iter().flatten()
    }
}

/// The forwarding fields for the upstream. A field that is not named in the answer stays as it came.
///
/// What an untrusted peer claims is replaced: `X-Forwarded-For`, `-Proto` and `-Host` say what we saw, `Forwarded` and
/// the configured headers of one address and of a tier are removed. A trusted peer's word is kept and the peer appended
/// to it. `X-Real-IP` always names the client that limits count.
///
/// `host` is the request's, as sent; `tls` tells whether the client came to us over TLS.
#[must_use]
pub fn outgoing(
    settings: &Settings,
    client: Client,
    peer: Option<IpAddr>,
    host: &str,
    tls: bool,
    headers: &HeaderMap,
) -> Outgoing {
    let peer = peer.map(address::canonical);
    let proto = HeaderValue::from_static(if tls { "https" } else { "http" });
    let host = || HeaderValue::from_str(host).ok().filter(|h| !h.is_empty());
    let peer_value = peer.and_then(written);
    let client_value = if client.ip == peer {
        peer_value.clone()
    } else {
        client.ip.and_then(written)
    };
    let real_ip = (X_REAL_IP, client_value);
    let fields = if client.through_trusted {
        let absent = |name: &HeaderName| !headers.contains_key(name);
        [
            peer.map(|peer| {
                (
                    X_FORWARDED_FOR,
                    appended(headers, X_FORWARDED_FOR, &peer.to_string()),
                )
            }),
            peer.filter(|_| !absent(&header::FORWARDED)).map(|peer| {
                (
                    header::FORWARDED,
                    appended(headers, header::FORWARDED, &element(peer)),
                )
            }),
            absent(&X_FORWARDED_PROTO).then_some((X_FORWARDED_PROTO, Some(proto))),
            absent(&X_FORWARDED_HOST).then(|| (X_FORWARDED_HOST, host())),
            Some(real_ip),
            None,
            None,
        ]
    } else {
        let claimed = match &settings.header {
            Header::Single(name) if *name != X_REAL_IP => Some((name.clone(), None)),
            _ => None,
        };
        [
            Some((X_FORWARDED_FOR, peer_value)),
            Some((header::FORWARDED, None)),
            Some((X_FORWARDED_PROTO, Some(proto))),
            Some((X_FORWARDED_HOST, host())),
            Some(real_ip),
            claimed,
            settings.tier_header.clone().map(|name| (name, None)),
        ]
    };
    Outgoing { fields }
}

fn written(ip: IpAddr) -> Option<HeaderValue> {
    let IpAddr::V4(ip) = ip else {
        return HeaderValue::try_from(ip.to_string()).ok();
    };
    let mut text = Vec::with_capacity("255.255.255.255".len());
    for octet in ip.octets() {
        if !text.is_empty() {
            text.push(b'.');
        }
        text.extend_from_slice(itoa::Buffer::new().format(octet).as_bytes());
    }
    HeaderValue::try_from(text).ok()
}

/// An address as an element of `Forwarded`.
fn element(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => format!("for={ip}"),
        IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
    }
}

/// All lines of a list field as one, with `entry` behind them.
fn appended(headers: &HeaderMap, name: HeaderName, entry: &str) -> Option<HeaderValue> {
    let mut list = Vec::new();
    for line in headers.get_all(name) {
        list.extend_from_slice(line.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(entry.as_bytes());
    HeaderValue::from_bytes(&list).ok()
}
