//! Who is counted: one client is one key, however it is spelled and whatever it claims.

use crate::support::gateway::Gateway;
use crate::support::http::get_with;
use crate::support::origin::Origin;

fn gateway(origin: &Origin, client_ip: &str) -> Gateway {
    Gateway::start(&format!(
        r#"
[client_ip]
{client_ip}
[upstreams.api]
servers = ["{}"]
[policies.address]
kind = "fixed-window"
limit = "3/d"
anchor = "first-request"
key = "ip"
[policies.part]
kind = "fixed-window"
limit = "1/d"
anchor = "first-request"
key = ["header:x-a", "header:x-b"]
on_missing_key = "deny"
[routes.address]
match = {{ path = "/address" }}
upstream = "api"
policies = ["address"]
[routes.part]
match = {{ path = "/part" }}
upstream = "api"
policies = ["part"]
[routes.item]
match = {{ path = "/items/{{id}}" }}
upstream = "api"
policies = ["address"]
strip_prefix = "/items"
add_headers = {{ x-added = "yes" }}
"#,
        origin.address
    ))
}

const TRUSTED: &str = "trusted_proxies = [\"127.0.0.0/8\"]";

/// How many of these requests pass.
fn allowed(gateway: &Gateway, path: &str, fields: &[&[(&str, &str)]]) -> usize {
    fields
        .iter()
        .filter(|fields| get_with(gateway.address, path, fields).status == 200)
        .count()
}

#[test]
fn what_an_untrusted_peer_claims_is_ignored() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "");
    let claims: Vec<String> = (0..10).map(|n| format!("203.0.113.{n}")).collect();
    let mut passed = 0;
    for claim in &claims {
        passed += allowed(&gateway, "/address", &[&[("x-forwarded-for", claim)]]);
    }
    assert_eq!(passed, 3);
    get_with(
        gateway.address,
        "/part",
        &[
            ("x-a", "1"),
            ("x-b", "1"),
            ("X_Forwarded_For", "6.6.6.6"),
            ("x_real_ip", "6.6.6.6"),
            ("x_other", "1"),
        ],
    );
    let seen = origin.seen();
    let last = seen.last().unwrap();
    assert!(last.lines("x_forwarded_for").is_empty());
    assert!(last.lines("x_real_ip").is_empty());
    assert_eq!(last.lines("x_other"), ["1"]);
    assert_eq!(last.lines("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(last.lines("x-real-ip"), ["127.0.0.1"]);
}

/// mholt/caddy-ratelimit #19: behind a proxy that nobody had named, all clients were one, and nothing said so.
#[test]
fn a_forwarding_header_that_is_not_read_is_told_of_once_and_without_its_value() {
    let origin = Origin::start();
    for (client_ip, header, hints) in [
        ("", "x-forwarded-for", 1),
        ("", "forwarded", 1),
        ("", "x-other", 0),
        (TRUSTED, "x-forwarded-for", 0),
        ("trusted_hops = 1", "x-forwarded-for", 0),
    ] {
        let gateway = gateway(&origin, client_ip);
        for _ in 0..3 {
            get_with(gateway.address, "/address", &[(header, "203.0.113.1")]);
        }
        let mut said = gateway.errors();
        if hints > 0 {
            said = gateway.await_said("client_ip.trusted_proxies");
        }
        let found = said.matches("client_ip.trusted_proxies").count();
        assert_eq!(found, hints, "{client_ip} {header}: {said}");
        assert!(!said.contains("203.0.113.1"), "{said}");
    }
}

#[test]
fn clients_behind_a_trusted_proxy_are_counted_apart() {
    let origin = Origin::start();
    let gateway = gateway(&origin, TRUSTED);
    for client in ["203.0.113.1", "203.0.113.2"] {
        let field: &[(&str, &str)] = &[("x-forwarded-for", client)];
        assert_eq!(allowed(&gateway, "/address", &[field; 6]), 3, "{client}");
    }
    // Who adds entries on the left stays who it is.
    let forged: &[(&str, &str)] = &[("x-forwarded-for", "198.51.100.9, 203.0.113.1")];
    assert_eq!(allowed(&gateway, "/address", &[forged]), 0);
    let seen = origin.seen();
    assert_eq!(seen[0].lines("x-forwarded-for"), ["203.0.113.1, 127.0.0.1"]);
}

#[test]
fn every_spelling_of_an_address_is_one_client() {
    let origin = Origin::start();
    let gateway = gateway(&origin, TRUSTED);
    let spellings: [&[&str]; 3] = [
        &[
            "192.0.2.1",
            "::ffff:192.0.2.1",
            "::ffff:c000:201",
            "192.0.2.1:4711",
            "[::ffff:192.0.2.1]:1",
        ],
        &[
            "2001:db8::1",
            "2001:DB8:0:0::1",
            "[2001:db8::1]:443",
            "2001:db8::ffff:1",
            "2001:db8::2",
        ],
        &[
            "198.51.100.1, 192.0.2.9",
            "192.0.2.9",
            "junk, 192.0.2.9",
            "192.0.2.9 ",
            "::ffff:192.0.2.9",
        ],
    ];
    for group in spellings {
        let passed: usize = group
            .iter()
            .map(|spelling| allowed(&gateway, "/address", &[&[("x-forwarded-for", spelling)]]))
            .sum();
        assert_eq!(passed, 3, "{group:?}");
    }
}

#[test]
fn parts_of_a_key_are_not_run_together() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "");
    let callers: [&[(&str, &str)]; 5] = [
        &[("x-a", "a_b"), ("x-b", "c")],
        &[("x-a", "a"), ("x-b", "b_c")],
        &[("x-a", "a_b_c"), ("x-b", "-")],
        &[("x-a", "c"), ("x-b", "a_b")],
        &[("x-a", &"k".repeat(100)), ("x-b", "1")],
    ];
    assert_eq!(allowed(&gateway, "/part", &callers), 5);
    assert_eq!(allowed(&gateway, "/part", &callers), 0);
    // Two that are equal in all but their end.
    let (one, two) = ("k".repeat(99) + "l", "k".repeat(99) + "m");
    let callers: [&[(&str, &str)]; 2] = [
        &[("x-a", &one), ("x-b", "1")],
        &[("x-a", &two), ("x-b", "1")],
    ];
    assert_eq!(allowed(&gateway, "/part", &callers), 2);
}

#[test]
fn a_key_that_stands_twice_with_different_values_is_refused() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        r#"
[upstreams.api]
servers = ["{}"]
[policies.header]
kind = "token-bucket"
limit = "3/d"
key = "header:x-key"
on_missing_key = "skip"
[policies.query]
kind = "token-bucket"
limit = "3/d"
key = "query:key"
on_missing_key = "skip"
[policies.cookie]
kind = "token-bucket"
limit = "3/d"
key = "cookie:sid"
on_missing_key = "skip"
[policies.user]
kind = "token-bucket"
limit = "3/d"
key = "path:user"
[routes.keys]
match = {{ path = "/keys" }}
upstream = "api"
policies = ["header", "query", "cookie"]
[routes.users]
match = {{ path = "/users/{{user}}" }}
upstream = "api"
policies = ["user"]
"#,
        origin.address
    ));
    let status =
        |target: &str, fields: &[(&str, &str)]| get_with(gateway.address, target, fields).status;
    assert_eq!(status("/keys", &[("x-key", "a"), ("x-key", "b")]), 400);
    assert_eq!(status("/keys?key=a&key=b", &[]), 400);
    assert_eq!(status("/keys", &[("cookie", "sid=a; sid=b")]), 400);
    assert_eq!(origin.count(), 0);
    // The same twice is that once.
    let twice: &[(&str, &str)] = &[("x-key", "k"), ("x-key", "k")];
    assert_eq!(allowed(&gateway, "/keys", &[twice; 6]), 3);
    assert_eq!(status("/keys", &[("x-key", "k")]), 429);
    // What applications leave out of a path parameter, or read another into, makes no other caller of it.
    let spellings = [
        "bob",
        "bob;1",
        "bob;2",
        "bob%2f",
        "bob%5c",
        "%62ob",
        "bob/",
        "%2fbob",
        "%5c%2Fbob",
        "bob%2fx1",
    ];
    let passed = spellings
        .iter()
        .filter(|user| status(&format!("/users/{user}"), &[]) == 200)
        .count();
    assert_eq!(passed, 3);
}

#[test]
fn a_route_counts_its_policy_once_whatever_the_path_parameter() {
    let origin = Origin::start();
    let gateway = gateway(&origin, "");
    let passed = (0..10)
        .filter(|id| gateway.get(&format!("/items/{id}?x=1")).status == 200)
        .count();
    assert_eq!(passed, 3);
    let seen = origin.seen();
    assert_eq!(seen[0].target, "/0?x=1");
    // The prefix goes however it is spelled.
    for spelling in ["/ITEMS/a", "//items/a", "/%69tems/a"] {
        let other = Gateway::start(&format!(
            "[upstreams.api]\nservers = [\"{}\"]\n[routes.items]\nmatch = {{ path = \"/items/*\" }}\nupstream = \"api\"\nstrip_prefix = \"/items\"\n",
            origin.address
        ));
        assert_eq!(other.get(spelling).status, 200);
        assert_eq!(origin.seen().last().unwrap().target, "/a", "{spelling}");
    }
    assert_eq!(seen[0].lines("x-added"), ["yes"]);
}

#[test]
fn a_forwarding_header_longer_than_is_ever_read_is_refused() {
    let origin = Origin::start();
    let gateway = gateway(&origin, TRUSTED);
    let long = vec!["192.0.2.1"; 65].join(", ");
    let response = get_with(gateway.address, "/address", &[("x-forwarded-for", &long)]);
    assert_eq!(response.status, 400);
}
