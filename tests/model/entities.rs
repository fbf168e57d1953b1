//! Whom a policy counts, and what a route demands.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use http::{HeaderMap, HeaderName, HeaderValue};
use tollgate::check::cost::{Body, Price};
use tollgate::check::entity::{BadKeySource, Caller, Entity, entity};
use tollgate::check::named::{NotNamed, named};
use tollgate::check::tier::Terms;
use tollgate::check::{
    Demand, Identity, KeySecret, KeySource, Mode, OnMissingKey, Plans, Policy, Use, demand,
};
use tollgate::client::address::Prefixes;
use tollgate::decide::{Cost, Rule, SlidingLog};
use tollgate::request::RequestView;

use crate::support::policies::policy;
use crate::support::traces::limit;

/// Header lines.
type Lines<'a> = &'a [(&'a str, &'a [u8])];

fn secret() -> KeySecret {
    KeySecret::from_bytes(b"sixteen bytes or more").unwrap()
}

/// A request with these header lines, from this address.
fn with_caller<T>(
    ip: &str,
    lines: &[(&str, &[u8])],
    query: Option<&str>,
    see: impl FnOnce(&Caller<'_>) -> T,
) -> T {
    with_caller_of("GET", ip, lines, query, see)
}

fn with_caller_of<T>(
    method: &str,
    ip: &str,
    lines: &[(&str, &[u8])],
    query: Option<&str>,
    see: impl FnOnce(&Caller<'_>) -> T,
) -> T {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(
            HeaderName::try_from(*name).unwrap(),
            HeaderValue::from_bytes(value).unwrap(),
        );
    }
    see(&Caller {
        request: RequestView {
            method,
            host: "API.example:443",
            path: "/",
            query,
            headers: &headers,
        },
        client_ip: ip.parse::<IpAddr>().ok(),
        prefixes: Prefixes::default(),
        identity: &Identity::default(),
        route: "orders",
        params: &[(Arc::from("id"), "7".to_owned())],
    })
}

fn sources(key: &[&str]) -> Vec<KeySource> {
    key.iter().map(|text| text.parse().unwrap()).collect()
}

fn read(key: &[&str], ip: &str, lines: &[(&str, &[u8])], query: Option<&str>) -> Entity {
    with_caller(ip, lines, query, |caller| {
        entity(&sources(key), caller, &secret())
    })
}

#[test]
fn a_source_is_spelt_as_it_is_read() {
    for text in [
        "ip",
        "ip/56",
        "header:x-api-key",
        "cookie:sid",
        "query:user id",
        "path:id",
        "method",
        "host",
        "route",
        "global",
    ] {
        assert_eq!(text.parse::<KeySource>().unwrap().to_string(), text);
    }
    assert_eq!(
        "header:X-API-Key".parse::<KeySource>().unwrap().to_string(),
        "header:x-api-key"
    );
}

#[test]
fn what_names_no_source_is_refused() {
    for text in [
        "",
        "ip/",
        "ip/0",
        "ip/129",
        "ip/+8",
        "ip:1",
        "header",
        "header:",
        "header:a b",
        "cookie:a;b",
        "hosts",
    ] {
        let error: BadKeySource = text.parse::<KeySource>().unwrap_err();
        assert!(error.to_string().contains("; write "), "{error}");
    }
}

#[test]
fn parts_keep_their_borders() {
    let header = |a: &[u8], b: &[u8]| {
        read(
            &["header:a", "header:b"],
            "192.0.2.1",
            &[("a", a), ("b", b)],
            None,
        )
    };
    assert_ne!(header(b"a_b", b"c").key, header(b"a", b"b_c").key);
    assert_ne!(header(b"ab", b"c").key, header(b"a", b"bc").key);
    assert_eq!(header(b"a", b"b").key, header(b" a\t", b"b").key);
}

#[test]
fn a_missing_part_is_not_an_empty_or_a_spelt_one() {
    let missing = read(&["header:a"], "192.0.2.1", &[], None);
    assert!(!missing.complete);
    for value in ["-", "+", "missing"] {
        let there = read(&["header:a"], "192.0.2.1", &[("a", value.as_bytes())], None);
        assert!(there.complete);
        assert_ne!(there.key, missing.key);
    }
    // Nobody can tell which of two lines that differ counts; an empty one says nothing.
    let twice = |other: &[u8]| {
        let headers: &[(&'static str, &[u8])] = &[("a", b"1"), ("a", other)];
        read(&["header:a"], "192.0.2.1", headers, None)
    };
    assert!(twice(b"2").ambiguous && !twice(b"2").complete);
    assert!(twice(b"1").complete);
    assert_eq!(
        read(&["header:a"], "192.0.2.1", &[("a", b"  ")], None),
        missing
    );
    assert!(!read(&["ip"], "unix", &[], None).complete);
    assert!(!read(&["query:q"], "192.0.2.1", &[], Some("q=")).complete);
}

#[test]
fn the_same_value_of_another_source_is_another_entity() {
    let lines: &[(&str, &[u8])] = &[("a", b"7"), ("b", b"7"), ("cookie", b"a=7; b=8")];
    let keys = [
        "header:a", "header:b", "cookie:a", "cookie:b", "query:a", "path:id", "method", "host",
        "route", "global", "ip", "ip/64",
    ];
    let entities: Vec<_> = keys
        .iter()
        .map(|key| read(&[key], "192.0.2.7", lines, Some("a=7")))
        .collect();
    assert!(entities.iter().all(|e| e.complete));
    for (n, a) in entities.iter().enumerate() {
        assert!(entities[..n].iter().all(|b| a.key != b.key), "{}", keys[n]);
    }
}

#[test]
fn every_spelling_of_an_address_is_one_entity() {
    let ip = |key: &str, ip: &str| read(&[key], ip, &[], None).key;
    assert_eq!(ip("ip", "::ffff:192.0.2.1"), ip("ip", "192.0.2.1"));
    assert_eq!(ip("ip", "2001:DB8::1"), ip("ip", "2001:db8:0:0:ffff:0:0:1"));
    assert_ne!(ip("ip", "2001:db8::1"), ip("ip", "2001:db8:0:1::1"));
    assert_eq!(ip("ip/48", "2001:db8::1"), ip("ip/48", "2001:db8:0:1::1"));
    assert_ne!(ip("ip/48", "192.0.2.1"), ip("ip/48", "192.0.2.2"));
}

/// HAProxy's tables of strings keep 32 characters of a key.
#[test]
fn long_values_that_begin_alike_are_counted_apart() {
    for length in [33, 64, 4_096] {
        let of = |end: &str| {
            let value = format!("{}{end}", "k".repeat(length - 1));
            read(
                &["header:x-key"],
                "192.0.2.1",
                &[("x-key", value.as_bytes())],
                None,
            )
        };
        assert_ne!(of("a").key, of("b").key, "{length}");
        assert_eq!(of("a").key, of("a").key, "{length}");
    }
}

#[test]
fn bytes_that_are_no_text_are_counted_as_they_are() {
    let header = |value: &[u8]| read(&["header:a"], "192.0.2.1", &[("a", value)], None);
    assert!(header(b"\xff\xfe").complete);
    assert_ne!(header(b"\xff\xfe").key, header(b"\xff\xfd").key);
    let long = |last: u8| header(&[&[b'x'; 4_000][..], &[last]].concat()).key;
    assert_ne!(long(b'a'), long(b'b'));
}

#[test]
fn another_secret_makes_other_entities() {
    let with = |secret: &KeySecret| {
        with_caller("192.0.2.1", &[], None, |c| {
            entity(&[KeySource::Ip], c, secret).key
        })
    };
    assert_ne!(
        with(&secret()),
        with(&KeySecret::from_bytes(b"sixteen bytes or less").unwrap())
    );
    assert_ne!(with(&KeySecret::generate()), with(&KeySecret::generate()));
    assert!(KeySecret::from_bytes(b"fifteen bytes..").is_err());
    assert_eq!(format!("{:?}", secret()), "KeySecret(…)");
    let hash = with(&secret()).short_hash();
    assert!(
        hash.len() == 12 && hash.bytes().all(|b| b.is_ascii_hexdigit()),
        "{hash}"
    );
}

/// A policy counted by `key`, at its place on a route.
fn place(name: &str, key: &[&str], on_missing_key: OnMissingKey, mode: Mode) -> Use {
    let rule = Rule::SlidingLog(SlidingLog::new(limit(5, 1_000_000)).unwrap());
    let policy = Policy {
        key: sources(key).into(),
        on_missing_key,
        mode,
        ..policy(name, rule)
    };
    Use {
        policy: Arc::new(policy),
        price: Price::Fixed(Cost::ONE),
    }
}

/// Names of checks (with cost, `~` in shadow), of skipped and of missing.
fn demanded(demands: &[Demand], lines: &[(&str, &[u8])]) -> [Vec<String>; 3] {
    with_caller("192.0.2.1", lines, None, |caller| {
        let secret = secret();
        let found = demand(demands, caller, Body::None, &secret, nothing_else());
        let names = |policies: &[&Policy]| policies.iter().map(|p| p.name.to_string()).collect();
        let checks = found.checks.iter().map(|c| {
            format!(
                "{}{} {}",
                if c.shadow { "~" } else { "" },
                c.policy.name,
                c.cost.units()
            )
        });
        [
            checks.collect(),
            names(&found.skipped),
            names(&found.missing),
        ]
    })
}

#[test]
fn a_missing_key_does_what_the_policy_says() {
    use {Mode::*, OnMissingKey::*};
    let one = |name, key: &[&str], missing, mode| Demand::One(place(name, key, missing, mode));
    let demands = [
        one("there", &["ip"], Deny, Enforce),
        one("skip", &["header:a"], Skip, Enforce),
        one("deny", &["header:a"], Deny, Enforce),
        one("empty", &["ip", "header:a"], Empty, Enforce),
        one("shadow", &["ip"], Deny, Shadow),
        one("shadow-deny", &["header:a"], Deny, Shadow),
        one("off", &["ip"], Deny, Off),
    ];
    assert_eq!(
        demanded(&demands, &[]),
        [
            vec!["there 1", "empty 1", "~shadow 1"],
            vec!["skip", "shadow-deny"],
            vec!["deny"]
        ]
    );
    assert_eq!(
        demanded(&demands, &[("a", b"1")]),
        [
            vec![
                "there 1",
                "skip 1",
                "deny 1",
                "empty 1",
                "~shadow 1",
                "~shadow-deny 1"
            ],
            vec![],
            vec![]
        ]
    );
}

#[test]
fn of_alternatives_the_first_that_is_complete_counts() {
    use {Mode::*, OnMissingKey::*};
    let first_of = |last: OnMissingKey| {
        [Demand::FirstOf(Box::new([
            place("off", &["ip"], Skip, Off),
            place("a", &["header:a"], Deny, Enforce),
            place("b", &["header:b"], last, Enforce),
        ]))]
    };
    let none: [&str; 0] = [];
    let cases: [(Lines<'_>, OnMissingKey, [&[&str]; 3]); 5] = [
        (&[("a", b"1"), ("b", b"1")], Deny, [&["a 1"], &none, &none]),
        (&[("b", b"1")], Deny, [&["b 1"], &none, &none]),
        (&[], Deny, [&none, &none, &["b"]]),
        (&[], Skip, [&none, &["b"], &none]),
        (&[], Empty, [&["b 1"], &none, &none]),
    ];
    for (lines, last, expected) in cases {
        assert_eq!(
            demanded(&first_of(last), lines),
            expected.map(<[&str]>::to_vec),
            "{lines:?} {last:?}"
        );
    }
}

const PREFLIGHT: [(&str, &[u8]); 2] = [
    ("origin", b"https://shop.example"),
    ("access-control-request-method", b"PUT"),
];

/// Nobody has other limits than the policies say.
fn nothing_else() -> Terms<'static> {
    static PLANS: LazyLock<Plans> = LazyLock::new(Plans::default);
    Terms {
        plans: &PLANS,
        granted: None,
    }
}

/// Names of checks, of those that do not count preflights, of skipped and of missing.
fn demanded_of(method: &str, demands: &[Demand], lines: &[(&str, &[u8])]) -> [Vec<String>; 4] {
    with_caller_of(method, "192.0.2.1", lines, None, |caller| {
        let secret = secret();
        let found = demand(demands, caller, Body::None, &secret, nothing_else());
        let names = |policies: &[&Policy]| policies.iter().map(|p| p.name.to_string()).collect();
        [
            found
                .checks
                .iter()
                .map(|c| c.policy.name.to_string())
                .collect(),
            names(&found.uncounted),
            names(&found.skipped),
            names(&found.missing),
        ]
    })
}

#[test]
fn a_preflight_is_asked_of_those_only_that_count_them_and_lacks_no_key() {
    use {Mode::*, OnMissingKey::*};
    let counting = |name, key: &[&str], missing| {
        let mut place = place(name, key, missing, Enforce);
        Arc::make_mut(&mut place.policy).preflights = true;
        place
    };
    let demands = [
        Demand::One(counting("edge", &["ip"], Deny)),
        Demand::One(place("off", &["ip"], Deny, Off)),
        Demand::One(place("quota", &["ip"], Deny, Enforce)),
        Demand::One(place("keyed", &["header:a"], Deny, Enforce)),
        Demand::One(counting("deny", &["header:a"], Deny)),
        Demand::One(counting("empty", &["header:a"], Empty)),
        Demand::FirstOf(Box::new([
            place("first", &["ip"], Deny, Enforce),
            counting("second", &["ip"], Deny),
        ])),
        Demand::FirstOf(Box::new([
            place("neither", &["ip"], Deny, Enforce),
            place("nor", &["ip"], Deny, Enforce),
        ])),
    ];
    let none: [&str; 0] = [];
    assert_eq!(
        demanded_of("OPTIONS", &demands, &PREFLIGHT),
        [
            vec!["edge", "empty", "second"],
            vec!["quota", "keyed", "nor"],
            vec!["deny"],
            none.to_vec(),
        ]
    );
    // A credential that is there all the same counts where preflights do.
    let with_key = [PREFLIGHT[0], PREFLIGHT[1], ("a", b"1")];
    let [checks, _, skipped, _] = demanded_of("OPTIONS", &demands, &with_key);
    assert_eq!(checks, ["edge", "deny", "empty", "second"]);
    assert_eq!(skipped, none);
    // What shows credentials, brings a body or asks for nothing is a request like any other.
    for line in [
        ("authorization", b"Bearer x".as_slice()),
        ("cookie", b"a=b"),
        ("content-length", b"9"),
        ("transfer-encoding", b"chunked"),
        ("origin", b"https://another.example"),
    ] {
        let lines = [PREFLIGHT[0], PREFLIGHT[1], line];
        let [_, uncounted, ..] = demanded_of("OPTIONS", &demands, &lines);
        assert_eq!(uncounted, none, "{}", line.0);
    }
    let empty = [("origin", b"".as_slice()), PREFLIGHT[1]];
    assert_eq!(demanded_of("OPTIONS", &demands, &empty)[1], none);
    let ordinary = [
        vec!["edge", "quota", "empty", "first", "neither"],
        none.to_vec(),
        none.to_vec(),
        vec!["keyed", "deny"],
    ];
    for (method, lines) in [
        ("GET", &PREFLIGHT[..]),
        ("OPTIONS", &PREFLIGHT[..1]),
        ("OPTIONS", &PREFLIGHT[1..]),
        ("OPTIONS", &[]),
    ] {
        assert_eq!(
            demanded_of(method, &demands, lines),
            ordinary,
            "{method} {lines:?}"
        );
    }
}

#[test]
fn a_policy_that_stands_twice_takes_both_costs() {
    let twice = || Demand::One(place("twice", &["ip"], OnMissingKey::Skip, Mode::Enforce));
    assert_eq!(demanded(&[twice(), twice()], &[])[0], ["twice 2"]);
}

/// Parts of a key as an operator names them.
fn parts(named: &[(&str, &str)]) -> Vec<(KeySource, String)> {
    let parts = named.iter();
    parts
        .map(|(source, value)| (source.parse().unwrap(), (*value).to_owned()))
        .collect()
}

#[test]
fn a_caller_who_is_named_is_the_one_who_calls() {
    let user: &[(&str, &[u8])] = &[("x-user", b" bob "), ("cookie", b"sid=7")];
    for (key, named_as) in [
        (
            &["ip"] as &[&str],
            &[("ip", "192.0.2.1")] as &[(&str, &str)],
        ),
        (&["ip"], &[("ip", "::ffff:192.0.2.1")]),
        (&["ip/24"], &[("ip/24", "192.0.2.99")]),
        (&["header:x-user"], &[("header:X-User", "bob")]),
        (
            &["ip", "header:x-user"],
            &[("header:x-user", "bob"), ("ip", "192.0.2.1")],
        ),
        (&["cookie:sid"], &[("cookie:sid", "7")]),
        (&["query:q"], &[("query:q", "a b")]),
        (&["path:id"], &[("path:id", "7;x=1")]),
        (
            &["method", "host"],
            &[("method", "GET"), ("host", "api.example")],
        ),
        (&["route"], &[("route", "orders")]),
        (&["global"], &[]),
        // One that lacks a part.
        (
            &["ip", "header:x-other"],
            &[("ip", "192.0.2.1"), ("header:x-other", "")],
        ),
    ] {
        let calls = read(key, "192.0.2.1", user, Some("q=a+b"));
        let meant = named(
            &sources(key),
            &parts(named_as),
            Prefixes::default(),
            &secret(),
        );
        assert_eq!(meant, Ok(calls), "{key:?}");
    }
}

#[test]
fn who_is_not_named_by_the_key_is_nobody() {
    let of = |text: &str| text.parse::<KeySource>().unwrap();
    let key = ["ip", "header:x-user"];
    for (named_as, why) in [
        (
            &[("ip", "192.0.2.1")] as &[(&str, &str)],
            NotNamed::Lacks(of("header:x-user")),
        ),
        (
            &[("ip", "192.0.2.1"), ("host", "a")],
            NotNamed::NoPart(of("host")),
        ),
        (
            &[("ip", "192.0.2.1"), ("ip", "192.0.2.2")],
            NotNamed::Twice(of("ip")),
        ),
        (
            &[("ip", "here"), ("header:x-user", "bob")],
            NotNamed::NotAnAddress(of("ip")),
        ),
    ] {
        let meant = named(
            &sources(&key),
            &parts(named_as),
            Prefixes::default(),
            &secret(),
        );
        assert_eq!(meant, Err(why));
    }
}
