//! Any header fields of who forwards: which address is believed, and what the upstream is told.
//!
//! An input is three bytes that choose settings and peer, and lines of header fields.

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::client::address::{self, canonical, parse};
use tollgate::client::forwarded::{ENTRIES_MAX, outgoing};
use tollgate::client::{Client, Header, Settings, TooManyEntries, Trust, resolve};

use super::{Choices, lines};

const FOR: &str = "x-forwarded-for";
const SINGLE: &str = "cf-connecting-ip";
const NAMES: [&str; 6] = [
    FOR,
    "forwarded",
    SINGLE,
    "x-real-ip",
    "x-forwarded-proto",
    "x-forwarded-host",
];

/// The client is the peer or somebody whom the trusted chain names; what is sent on says the same to whoever is next.
pub(super) fn forwarding(data: &[u8]) {
    let (head, text) = data.split_at(data.len().min(3));
    let mut choices = Choices::of(head);
    let name = choices.among(&[FOR, "forwarded", SINGLE]);
    let settings = Settings {
        trust: trust(choices.next()),
        header: match name {
            FOR => Header::XForwardedFor,
            SINGLE => Header::Single(HeaderName::from_static(SINGLE)),
            _ => Header::Forwarded,
        },
        ..Settings::default()
    };
    let peer = choices
        .among(&[
            "10.0.0.1",
            "::ffff:10.0.0.1",
            "fd00::1",
            "192.0.2.1",
            "2001:db8::1",
            "",
        ])
        .parse()
        .ok();
    let mut headers = HeaderMap::new();
    let mut known = NAMES;
    // Lines without a name are the configured header's.
    known.sort_by_key(|other| *other != name);
    for (name, value) in lines(text, &known) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.append(name, value);
        }
    }
    let found = resolve(&settings, peer, &headers);
    let peer = peer.map(canonical);
    let trusted = settings.trust.includes(peer);
    if trusted && settings.header == Header::XForwardedFor {
        assert_eq!(
            found.map(|client| client.ip),
            by_hand(&settings, peer, &headers)
        );
    }
    let Ok(client) = found else {
        assert!(trusted && settings.header != Header::Single(HeaderName::from_static(SINGLE)));
        return;
    };
    assert_eq!(client.through_trusted, trusted);
    let named = || {
        let mut values = headers.get_all(name).iter();
        values.any(|value| client.ip.is_some_and(|ip| names(value.as_bytes(), ip)))
    };
    assert!(
        client.ip == peer || (trusted && named()),
        "{client:?} of {headers:?}"
    );
    if let Some(ip) = client.ip {
        assert_eq!(canonical(ip), ip);
        assert_eq!(parse(&ip.to_string()), Some(ip));
        let network = settings.prefixes.network(ip);
        assert_eq!(settings.prefixes.network(network), network);
        assert_eq!(address::masked(network), address::masked(ip));
    }
    told_on(&settings, client, peer, &headers);
}

/// What the upstream is told is what we saw, and reads as such.
fn told_on(settings: &Settings, client: Client, peer: Option<IpAddr>, headers: &HeaderMap) {
    let mut sent = headers.clone();
    for (name, value) in outgoing(settings, client, peer, "example.com", false, headers) {
        match value {
            Some(value) => drop(sent.insert(name, value)),
            None => drop(sent.remove(name)),
        }
    }
    let lines = |name: &str| sent.get_all(name).iter().collect::<Vec<_>>();
    let addresses = |name| {
        let parsed = |value: &&HeaderValue| {
            let last = value.as_bytes().rsplit(|byte| *byte == b',').next()?;
            parse(std::str::from_utf8(last.trim_ascii()).ok()?)
        };
        lines(name).iter().map(parsed).collect::<Vec<_>>()
    };
    let real: Vec<_> = client.ip.into_iter().map(Some).collect();
    assert_eq!(addresses("x-real-ip"), real);
    if let Some(peer) = peer {
        assert_eq!(addresses(FOR), [Some(peer)]);
    }
    assert!(
        lines("x-forwarded-proto")
            .iter()
            .all(|value| { client.through_trusted || *value == "http" })
    );
    if !client.through_trusted {
        assert!(
            lines(FOR)
                .iter()
                .all(|line| !line.as_bytes().contains(&b','))
        );
        assert!(lines("forwarded").is_empty());
        assert!(
            lines(SINGLE).is_empty()
                || settings.header != Header::Single(HeaderName::from_static(SINGLE))
        );
    }
    // The next gateway trusts us and whom we trust, and counts the same client.
    let believed = match settings.header {
        Header::XForwardedFor => true,
        // Several lines are told apart, a list is not where its quotes are broken.
        Header::Forwarded => {
            client.through_trusted && headers.get_all("forwarded").iter().count() == 1
        }
        Header::Single(_) => client.through_trusted,
    };
    if let (Some(_), Trust::Networks(networks), true) = (peer, &settings.trust, believed) {
        let us = IpAddr::from([10, 0, 0, 2]);
        if networks.iter().any(|network| network.contains(&us)) {
            let next = resolve(settings, Some(us), &sent).map(|next| next.ip);
            let same = match (&settings.header, client.ip == peer) {
                // There a single address says nothing of whoever it came through.
                (Header::Single(_), true) => Ok(Some(us)),
                _ => Ok(client.ip),
            };
            let (one_more, or_peer) = (Err(TooManyEntries), Ok(client.ip));
            assert!(
                next == same || next == one_more || next == or_peer,
                "{next:?} after {client:?} of {sent:?}"
            );
        }
    }
}

fn trust(choice: u8) -> Trust {
    let networks: &[&str] = match choice % 4 {
        0 => &[],
        1 => &["10.0.0.0/8", "fd00::/8"],
        2 => &["::ffff:10.0.0.0/104", "192.0.2.0/24"],
        _ => {
            let hops = usize::from(choice / 4 % 3 + 1);
            return Trust::Hops(hops.try_into().unwrap());
        }
    };
    Trust::Networks(networks.iter().map(|text| text.parse().unwrap()).collect())
}

/// The same for `X-Forwarded-For`, without haste: a list of all that stands there, taken from its end.
fn by_hand(
    settings: &Settings,
    peer: Option<IpAddr>,
    headers: &HeaderMap,
) -> Result<Option<IpAddr>, TooManyEntries> {
    let mut entries = Vec::new();
    for line in headers.get_all(FOR) {
        for entry in line.as_bytes().split(|byte| *byte == b',') {
            entries.push(
                std::str::from_utf8(entry)
                    .ok()
                    .and_then(|text| parse(text.trim_ascii())),
            );
        }
    }
    if entries.len() > ENTRIES_MAX {
        return Err(TooManyEntries);
    }
    if let Trust::Hops(hops) = settings.trust {
        let of_hops = &entries[entries.len().saturating_sub(hops.get())..];
        let all = of_hops.len() == hops.get() && of_hops.iter().all(Option::is_some);
        return Ok(if all { of_hops[0] } else { peer });
    }
    let mut client = peer;
    while settings.trust.includes(client) {
        match entries.pop() {
            Some(Some(further)) => client = Some(further),
            _ => break,
        }
    }
    Ok(client)
}

/// Whether an address stands in a field, however it is quoted, with a port, in brackets or with a zone.
fn names(value: &[u8], ip: IpAddr) -> bool {
    let plain: Vec<u8> = value
        .iter()
        .copied()
        .filter(|byte| !matches!(byte, b'"' | b'\\'))
        .collect();
    let of_address = |byte: &u8| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.');
    plain.split(|byte| !of_address(byte)).any(|part| {
        let text = std::str::from_utf8(part).unwrap_or_default();
        let without_port = text.split(':').next().unwrap_or_default();
        [text, without_port]
            .iter()
            .any(|text| text.parse().map(canonical) == Ok(ip))
    })
}
