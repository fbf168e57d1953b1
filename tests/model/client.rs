//! Who is calling: what is believed of forwarding headers, and what is not.

#![expect(clippy::unwrap_used, reason = "a test that stumbles has failed")]

use std::net::IpAddr;
use std::num::NonZeroUsize;

use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;
use tollgate::client::address::{self, Prefixes};
use tollgate::client::{Client, Header, Settings, TooManyEntries, Trust, forwarded, resolve};

const PROXY: &str = "10.0.0.1";
const STRANGER: &str = "203.0.113.9";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    lines
        .iter()
        .map(|(name, value)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
            (HeaderName::from_static(name), value)
        })
        .collect()
}

fn trusting(networks: &[&str], header: Header) -> Settings {
    let networks = networks.iter().map(|n| n.parse().unwrap()).collect();
    Settings {
        trust: Trust::Networks(networks),
        header,
        ..Settings::default()
    }
}

fn behind_proxies(header: Header) -> Settings {
    trusting(&["10.0.0.0/8", "fd00::/8"], header)
}

fn hops(count: usize) -> Settings {
    Settings {
        trust: Trust::Hops(NonZeroUsize::new(count).unwrap()),
        ..Settings::default()
    }
}

fn found(settings: &Settings, peer: &str, lines: &[(&'static str, &str)]) -> String {
    let client = resolve(settings, Some(ip(peer)), &headers(lines)).unwrap();
    client.ip.unwrap().to_string()
}

#[test]
fn x_forwarded_for_is_read_from_the_right_up_to_the_first_stranger() {
    let settings = behind_proxies(Header::XForwardedFor);
    for (lines, expected, reason) in [
        (&["198.51.100.7"][..], "198.51.100.7", "one entry"),
        (
            &["1.2.3.4, 198.51.100.7"],
            "198.51.100.7",
            "the leftmost is the client's own claim",
        ),
        (
            &["1.2.3.4, 198.51.100.7, 10.0.0.2"],
            "198.51.100.7",
            "trusted hops are passed over",
        ),
        (
            &["198.51.100.7", "10.0.0.2"],
            "198.51.100.7",
            "lines are one list",
        ),
        (
            &["1.2.3.4", "198.51.100.7"],
            "198.51.100.7",
            "a line of the client's own stays left",
        ),
        (
            &["10.0.0.3, 10.0.0.2"],
            "10.0.0.3",
            "all trusted: the leftmost",
        ),
        (&[], PROXY, "no header: the peer"),
        (&[""], PROXY, "an empty line names nobody"),
        (
            &["1.2.3.4, unknown, 10.0.0.2"],
            "10.0.0.2",
            "stop at what is no address",
        ),
        (&["198.51.100.7,"], PROXY, "an empty entry is no address"),
        (
            &["\t198.51.100.7 \t,  10.0.0.2 "],
            "198.51.100.7",
            "white space around entries",
        ),
        (&["198.51.100.7:4711"], "198.51.100.7", "with a port"),
        (
            &["[2001:db8::1]:443"],
            "2001:db8::1",
            "IPv6 with a port is not cut at a colon",
        ),
        (&["[2001:db8::1]"], "2001:db8::1", "IPv6 in brackets"),
        (&["2001:DB8:0:0::1"], "2001:db8::1", "another spelling"),
        (&["::ffff:198.51.100.7"], "198.51.100.7", "IPv4 within IPv6"),
        (
            &["::ffff:c633:6407"],
            "198.51.100.7",
            "the same by its bits",
        ),
        (
            &["198.51.100.7, ::ffff:10.0.0.2"],
            "198.51.100.7",
            "a mapped proxy is trusted too",
        ),
        (&["fe80::1%eth0"], "fe80::1", "zone ids are dropped"),
        (
            &["198.51.100.7, fd00::1"],
            "198.51.100.7",
            "a trusted IPv6 proxy",
        ),
        (
            &["198.51.100.007"],
            PROXY,
            "leading zeros may be octal: no address",
        ),
        (&["198.51.100.7:99999"], PROXY, "no such port"),
        (
            &["\u{e4}\u{f6}, 198.51.100.7"],
            "198.51.100.7",
            "garbage on the left is not reached",
        ),
        (
            &["198.51.100.7, \u{e4}"],
            PROXY,
            "garbage on the right stops at once",
        ),
    ] {
        let lines: Vec<_> = lines
            .iter()
            .map(|line| ("x-forwarded-for", *line))
            .collect();
        assert_eq!(
            found(&settings, PROXY, &lines),
            expected,
            "{reason}: {lines:?}"
        );
    }
}

#[test]
fn a_stranger_is_not_believed() {
    let claims = [
        ("x-forwarded-for", "1.2.3.4"),
        ("forwarded", "for=1.2.3.4"),
        ("x-real-ip", "1.2.3.4"),
        ("cf-connecting-ip", "1.2.3.4"),
    ];
    let single = Header::Single(HeaderName::from_static("cf-connecting-ip"));
    for header in [Header::XForwardedFor, Header::Forwarded, single] {
        assert_eq!(
            found(&behind_proxies(header.clone()), STRANGER, &claims),
            STRANGER
        );
        let nobody = trusting(&[], header);
        assert_eq!(
            found(&nobody, PROXY, &claims),
            PROXY,
            "nobody is trusted by default"
        );
    }
    let many = ["1.1.1.1"; 100].join(",");
    let client = resolve(
        &behind_proxies(Header::XForwardedFor),
        Some(ip(STRANGER)),
        &headers(&[("x-forwarded-for", &many)]),
    );
    assert_eq!(
        client,
        Ok(Client {
            ip: Some(ip(STRANGER)),
            through_trusted: false
        }),
        "what is not believed is not counted either"
    );
}

#[test]
fn two_clients_of_one_trusted_proxy_are_two() {
    let settings = behind_proxies(Header::XForwardedFor);
    let first = found(&settings, PROXY, &[("x-forwarded-for", "198.51.100.1")]);
    let second = found(&settings, PROXY, &[("x-forwarded-for", "198.51.100.2")]);
    assert_ne!(first, second);
}

#[test]
fn a_mapped_peer_is_its_ipv4_address() {
    let settings = behind_proxies(Header::XForwardedFor);
    let lines = [("x-forwarded-for", "198.51.100.7")];
    assert_eq!(found(&settings, "::ffff:10.0.0.1", &lines), "198.51.100.7");
    assert_eq!(found(&settings, "::ffff:203.0.113.9", &lines), STRANGER);
    let mapped = trusting(&["::ffff:10.0.0.0/104"], Header::XForwardedFor);
    assert_eq!(found(&mapped, PROXY, &lines), "198.51.100.7");
    let ipv6_only = trusting(&["::/0"], Header::XForwardedFor);
    assert_eq!(
        found(&ipv6_only, PROXY, &lines),
        PROXY,
        "trust in IPv6 is none in IPv4"
    );
}

#[test]
fn more_than_sixty_four_entries_are_refused() {
    let list = |entry: &str, count: usize| vec![entry; count].join(", ");
    for (header, name, entry) in [
        (Header::XForwardedFor, "x-forwarded-for", "198.51.100.7"),
        (Header::Forwarded, "forwarded", "for=198.51.100.7"),
    ] {
        let settings = behind_proxies(header);
        let peer = Some(ip(PROXY));
        let fits = headers(&[(name, &list(entry, 60)), (name, &list(entry, 4))]);
        assert!(resolve(&settings, peer, &fits).is_ok());
        let too_many = headers(&[(name, &list(entry, 60)), (name, &list(entry, 5))]);
        assert_eq!(resolve(&settings, peer, &too_many), Err(TooManyEntries));
    }
}

#[test]
fn forwarded_is_read_by_its_grammar() {
    let settings = behind_proxies(Header::Forwarded);
    for (lines, expected, reason) in [
        (&["for=198.51.100.7"][..], "198.51.100.7", "a token"),
        (
            &["For=\"198.51.100.7:47011\""],
            "198.51.100.7",
            "names have no case, ports are dropped",
        ),
        (
            &["for=\"[2001:db8:cafe::17]:4711\""],
            "2001:db8:cafe::17",
            "IPv6 with a port",
        ),
        (
            &["for=\"[2001:db8:cafe::17]\""],
            "2001:db8:cafe::17",
            "IPv6",
        ),
        (
            &["for=\"198.51.100.7:_secret\""],
            "198.51.100.7",
            "an obfuscated port",
        ),
        (
            &["for=198.51.100.7;proto=https;by=10.0.0.1"],
            "198.51.100.7",
            "for first",
        ),
        (
            &["by=10.0.0.1;proto=https;for=198.51.100.7"],
            "198.51.100.7",
            "for last",
        ),
        (
            &["for=1.2.3.4, for=198.51.100.7;by=x, for=10.0.0.2"],
            "198.51.100.7",
            "a list",
        ),
        (
            &["for=198.51.100.7;host=\"a, for=1.2.3.4\""],
            "198.51.100.7",
            "a comma within quotes",
        ),
        (
            &["for=198.51.100.7;host=\"a;for=1.2.3.4\""],
            "198.51.100.7",
            "a semicolon within quotes",
        ),
        (
            &["for=198.51.100.7;host=\"a\\\", for=1.2.3.4\""],
            "198.51.100.7",
            "an escaped quote",
        ),
        (
            &["for=198.51.100.7;host=\"a\\\\\""],
            "198.51.100.7",
            "an escaped backslash before the end",
        ),
        (
            &["for=\"198.51.100\\.7\""],
            "198.51.100.7",
            "an escape within the address",
        ),
        (&["for=unknown"], PROXY, "unknown"),
        (&["for=_hidden"], PROXY, "an obfuscated name"),
        (
            &["for=1.2.3.4, for=_hidden, for=10.0.0.2"],
            "10.0.0.2",
            "stop at an obfuscated name",
        ),
        (&["proto=https"], PROXY, "an element without for"),
        (&["for=198.51.100.7;for=1.2.3.4"], PROXY, "which of them?"),
        (
            &["for=\", for=198.51.100.7"],
            "198.51.100.7",
            "an open quote of the client's swallows nothing",
        ),
        (
            &["for=\"", "for=198.51.100.7"],
            "198.51.100.7",
            "nor does one in a line of its own",
        ),
        (
            &["x\"y", "for=10.0.0.2"],
            "10.0.0.2",
            "stop at a line that makes no sense",
        ),
        (&["for=198.51.100.7;"], "198.51.100.7", "an empty pair"),
        (&[""], PROXY, "an empty line"),
    ] {
        let lines: Vec<_> = lines.iter().map(|line| ("forwarded", *line)).collect();
        assert_eq!(
            found(&settings, PROXY, &lines),
            expected,
            "{reason}: {lines:?}"
        );
    }
}

#[test]
fn a_field_of_one_address_needs_exactly_one() {
    let name = "cf-connecting-ip";
    let settings = behind_proxies(Header::Single(HeaderName::from_static(name)));
    for (lines, expected, reason) in [
        (&["198.51.100.7"][..], "198.51.100.7", "one"),
        (&["2001:db8::1"], "2001:db8::1", "one of IPv6"),
        (&["198.51.100.7", "198.51.100.7"], PROXY, "two lines"),
        (&["1.2.3.4, 198.51.100.7"], PROXY, "two addresses"),
        (&["nobody"], PROXY, "no address"),
        (&[""], PROXY, "nothing"),
        (&[], PROXY, "no line"),
    ] {
        let lines: Vec<_> = lines.iter().map(|line| (name, *line)).collect();
        assert_eq!(found(&settings, PROXY, &lines), expected, "{reason}");
    }
}

#[test]
fn trusted_hops_count_from_the_right() {
    for (count, line, expected, reason) in [
        (
            1,
            "1.2.3.4, 198.51.100.7",
            "198.51.100.7",
            "one proxy: what it appended",
        ),
        (
            2,
            "1.2.3.4, 198.51.100.7, 172.16.0.1",
            "198.51.100.7",
            "two proxies",
        ),
        (
            3,
            "1.2.3.4, 5.6.7.8, 9.9.9.9",
            "1.2.3.4",
            "three entries through three hops",
        ),
        (
            3,
            "198.51.100.7, 172.16.0.1",
            STRANGER,
            "fewer than promised: the peer",
        ),
        (
            2,
            "198.51.100.7, unknown",
            STRANGER,
            "what is no address doesn't count as one",
        ),
    ] {
        assert_eq!(
            found(&hops(count), STRANGER, &[("x-forwarded-for", line)]),
            expected,
            "{reason}"
        );
    }
}

#[test]
fn a_socket_without_addresses_has_a_client_only_by_hops() {
    let lines = headers(&[("x-forwarded-for", "198.51.100.7")]);
    let by_network = resolve(&behind_proxies(Header::XForwardedFor), None, &lines).unwrap();
    assert_eq!((by_network.ip, by_network.through_trusted), (None, false));
    let by_hops = resolve(&hops(1), None, &lines).unwrap();
    assert_eq!(
        (by_hops.ip, by_hops.through_trusted),
        (Some(ip("198.51.100.7")), true)
    );
}

#[test]
fn a_network_is_cut_by_the_prefix_of_its_family() {
    for (address, prefix, expected, reason) in [
        ("2001:db8:1:2:3:4:5:6", 64, "2001:db8:1:2::", "a household"),
        (
            "2001:db8:1:2ff:3:4:5:6",
            56,
            "2001:db8:1:200::",
            "a wider one",
        ),
        ("2001:db8::1", 128, "2001:db8::1", "whole"),
        ("2001:db8::1", 255, "2001:db8::1", "no more than whole"),
        ("2001:db8::1", 0, "::", "everybody"),
        (
            "198.51.100.7",
            24,
            "198.51.100.0",
            "at most 32 cuts IPv4 too",
        ),
        ("198.51.100.7", 32, "198.51.100.7", "whole"),
        ("198.51.100.7", 56, "198.51.100.7", "a prefix of IPv6 alone"),
        ("198.51.100.7", 0, "0.0.0.0", "everybody"),
        (
            "::ffff:198.51.100.7",
            64,
            "198.51.100.7",
            "mapped is IPv4, not one network of all IPv4",
        ),
    ] {
        assert_eq!(
            address::network(ip(address), prefix).to_string(),
            expected,
            "{reason}"
        );
    }
    let of_one_64: std::collections::HashSet<IpAddr> = (0..2_000_u32)
        .map(|n| Prefixes::default().network(ip(&format!("2001:db8:0:7::{n:x}"))))
        .collect();
    assert_eq!(
        of_one_64.len(),
        1,
        "who walks through a /64 stays one client"
    );
    assert_eq!(
        Prefixes::default().network(ip("198.51.100.7")),
        ip("198.51.100.7")
    );
    assert_eq!(address::masked(ip("198.51.100.7")), ip("198.51.100.0"));
    assert_eq!(address::masked(ip("2001:db8:1:2::7")), ip("2001:db8:1::"));
}

fn forwarded_on(settings: &Settings, peer: &str, lines: &[(&'static str, &str)]) -> Vec<String> {
    let headers = headers(lines);
    let client = resolve(settings, Some(ip(peer)), &headers).unwrap();
    let mut sent: Vec<_> = forwarded::outgoing(
        settings,
        client,
        Some(ip(peer)),
        "api.example.com",
        true,
        &headers,
    )
    .into_iter()
    .map(|(name, value)| match value {
        Some(value) => format!("{name}: {}", value.to_str().unwrap()),
        None => format!("{name} -"),
    })
    .collect();
    sent.sort();
    sent
}

#[test]
fn what_a_stranger_claims_is_replaced() {
    let single = Header::Single(HeaderName::from_static("cf-connecting-ip"));
    let claims = [
        ("x-forwarded-for", "1.2.3.4"),
        ("x-forwarded-proto", "gopher"),
        ("x-forwarded-host", "evil.example"),
        ("forwarded", "for=1.2.3.4"),
        ("x-real-ip", "1.2.3.4"),
        ("cf-connecting-ip", "1.2.3.4"),
    ];
    assert_eq!(
        forwarded_on(&behind_proxies(single), STRANGER, &claims),
        [
            "cf-connecting-ip -",
            "forwarded -",
            "x-forwarded-for: 203.0.113.9",
            "x-forwarded-host: api.example.com",
            "x-forwarded-proto: https",
            "x-real-ip: 203.0.113.9",
        ]
    );
}

#[test]
fn a_trusted_peer_is_appended_to_what_it_said() {
    let settings = behind_proxies(Header::XForwardedFor);
    let said = [
        ("x-forwarded-for", "1.2.3.4, 198.51.100.7"),
        ("x-forwarded-for", "10.0.0.2"),
        ("x-forwarded-proto", "http"),
        ("forwarded", "for=198.51.100.7"),
    ];
    assert_eq!(
        forwarded_on(&settings, "fd00::1", &said),
        [
            "forwarded: for=198.51.100.7, for=\"[fd00::1]\"",
            "x-forwarded-for: 1.2.3.4, 198.51.100.7, 10.0.0.2, fd00::1",
            "x-forwarded-host: api.example.com",
            "x-real-ip: 198.51.100.7",
        ],
        "the scheme it named is kept"
    );
    assert_eq!(
        forwarded_on(&settings, PROXY, &[]),
        [
            "x-forwarded-for: 10.0.0.1",
            "x-forwarded-host: api.example.com",
            "x-forwarded-proto: https",
            "x-real-ip: 10.0.0.1",
        ]
    );
}

fn any_field_value() -> impl Strategy<Value = HeaderValue> {
    let hostile = "[0-9a-f:.\\[\\]\",;=\\\\ %_for]{0,60}".prop_map(String::into_bytes);
    prop_oneof![hostile, proptest::collection::vec(any::<u8>(), 0..200)]
        .prop_filter_map("a field value", |bytes| {
            HeaderValue::from_bytes(&bytes).ok()
        })
}

proptest! {
    #[test]
    fn no_bytes_in_a_header_make_it_stumble(values in proptest::collection::vec(any_field_value(), 0..4)) {
        let name = HeaderName::from_static("cf-connecting-ip");
        let mut headers = HeaderMap::new();
        for value in values {
            for name in [HeaderName::from_static("x-forwarded-for"), http::header::FORWARDED, name.clone()] {
                headers.append(name, value.clone());
            }
        }
        for header in [Header::XForwardedFor, Header::Forwarded, Header::Single(name)] {
            for settings in [behind_proxies(header.clone()), Settings { header: header.clone(), ..hops(2) }] {
                if let Ok(client) = resolve(&settings, Some(ip(PROXY)), &headers) {
                    prop_assert!(client.ip.is_some());
                    let sent = forwarded::outgoing(&settings, client, Some(ip(PROXY)), "a", false, &headers);
                    prop_assert!(sent.into_iter().count() >= 2);
                }
            }
        }
    }

    #[test]
    fn what_a_client_writes_left_of_its_address_changes_nothing(claim in any_field_value(), same_line: bool) {
        for (header, name, entry) in [
            (Header::XForwardedFor, HeaderName::from_static("x-forwarded-for"), "198.51.100.7"),
            (Header::Forwarded, http::header::FORWARDED, "for=198.51.100.7;host=\"a,b\""),
        ] {
            let mut headers = HeaderMap::new();
            if same_line {
                let line = [claim.as_bytes(), b", ", entry.as_bytes()].concat();
                headers.append(name, HeaderValue::from_bytes(&line).unwrap());
            } else {
                headers.append(name.clone(), claim.clone());
                headers.append(name, HeaderValue::from_static(entry));
            }
            if let Ok(client) = resolve(&behind_proxies(header), Some(ip(PROXY)), &headers) {
                prop_assert_eq!(client.ip, Some(ip("198.51.100.7")));
            }
        }
    }

    #[test]
    fn every_spelling_of_an_address_is_one_address(bits: u128) {
        let address = std::net::Ipv6Addr::from_bits(bits);
        let [a, b, c, d, e, f, g, h] = address.segments();
        let long = format!("{a:04X}:{b:04X}:{c:04x}:{d:04x}:{e:04x}:{f:04x}:{g:04x}:{h:04x}");
        let expected = Some(address::canonical(IpAddr::V6(address)));
        for spelling in [address.to_string(), long.clone(), format!("[{long}]"), format!("[{long}]:1"), format!("{long}%lo")] {
            prop_assert_eq!(address::parse(&spelling), expected);
        }
    }
}
