//! What went wrong in other limiters does not here: public reports that need a gateway, a server, or both.

mod keys;
mod outage;
mod settings;
mod store;

use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::{Gateway, free_address, secret_file};
use crate::support::http::{Connection, Response, get_with};
use crate::support::origin::Origin;
use crate::support::valkey::Valkey;

const UP: &str = "tollgate_store_up";

/// A gateway that counts at this address, or in process.
fn gateway(store: Option<&str>, rest: &str) -> Gateway {
    let store = store.map_or_else(String::new, |address| {
        format!(
            "[store]\nkind = \"valkey\"\nurl = \"valkey://{address}\"\ntimeout = \"10s\"\nkey_secret_file = \"{}\"\n",
            secret_file().display()
        )
    });
    let gateway = Gateway::start(&format!(
        "{store}[upstreams.demo]\nbuiltin = \"echo\"\n{rest}"
    ));
    if !store.is_empty() {
        gateway.await_metric(UP, 1.0);
    }
    gateway
}

/// A policy by address, and a route of its own.
fn limited(name: &str, policy: &str) -> String {
    format!(
        "[policies.{name}]\nkey = \"ip\"\n{policy}\n[routes.{name}]\nmatch = {{ path = \"/{name}\" }}\n\
         upstream = \"demo\"\npolicies = [\"{name}\"]\n"
    )
}

/// The first policy that the answer tells of, and how many units are left of it.
fn told(response: &Response) -> Option<(String, u64)> {
    let item = response.header("ratelimit")?;
    let (name, rest) = item.split_once(";r=").unwrap();
    let left = rest.split([';', ',']).next().unwrap();
    Some((name.trim_matches('"').to_owned(), left.parse().unwrap()))
}

/// apache/apisix #1737: with many routes, callers under their limit were denied.
#[test]
fn many_routes_have_each_their_own_limit() {
    let valkey = Valkey::start();
    let address = valkey.address();
    let routes: String = (0..117)
        .map(|n| limited(&format!("r{n}"), "kind = \"token-bucket\"\nlimit = \"1/d\""))
        .collect();
    for store in [None, Some(&*address)] {
        let gateway = gateway(store, &routes);
        let mut connection = Connection::open(gateway.address);
        for expected in [200, 429] {
            for n in 0..117 {
                let response = connection.ask("GET", &format!("/r{n}"), &[]);
                assert_eq!(response.status, expected, "/r{n} in {store:?}");
            }
        }
    }
}

/// apache/apisix #5588: a steady caller at half the limit was denied now and then, as the window's key ended.
#[test]
fn nobody_below_the_limit_is_denied_at_the_edge_of_a_window() {
    let valkey = Valkey::start();
    let kinds = ["fixed-window", "sliding-counter", "sliding-log"];
    let routes: String = kinds
        .iter()
        .map(|kind| limited(kind, &format!("kind = \"{kind}\"\nlimit = \"100/s\"")))
        .collect();
    let gateway = gateway(Some(&valkey.address()), &routes);
    let mut connection = Connection::open(gateway.address);
    let until = monotonic_now() + Duration::from_secs(3);
    while monotonic_now() < until {
        for kind in kinds {
            let response = connection.ask("GET", &format!("/{kind}"), &[]);
            assert_eq!(response.status, 200, "{kind}: {response:?}");
        }
        // At most fifty a second, however slow the machine.
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Kong/kong #2669: near the edge of a window answers went 429, 200, 429.
#[test]
fn who_passes_again_passes_as_often_as_a_new_window_allows() {
    let valkey = Valkey::start();
    let five = limited("five", "kind = \"fixed-window\"\nlimit = \"5/s\"");
    let gateways = [(); 2].map(|()| gateway(Some(&valkey.address()), &five));
    let mut connections = gateways
        .each_ref()
        .map(|gateway| Connection::open(gateway.address));
    let until = monotonic_now() + Duration::from_millis(3_500);
    let mut statuses = Vec::new();
    while monotonic_now() < until {
        let turn = statuses.len() % 2;
        statuses.push(connections[turn].ask("GET", "/five", &[]).status);
        std::thread::park_timeout(Duration::from_millis(5));
    }
    // What comes before the first denial and after the last may have been cut short.
    let mut runs: Vec<_> = statuses.split(|status| *status == 429).collect();
    assert!(runs.len() > 2, "{statuses:?}");
    runs.pop();
    let again = runs[1..].iter().filter(|run| !run.is_empty());
    for run in again {
        assert!(run.len() >= 5, "{statuses:?}");
    }
}

/// TykTechnologies/tyk #2001: a request that was tried twice was counted twice.
#[test]
fn a_request_that_tries_two_servers_is_counted_once() {
    let origin = Origin::start();
    let dead = free_address();
    let gateway = gateway(
        None,
        &format!(
            "[upstreams.half]\nservers = [\"{dead}\", \"{}\"]\n\
             [policies.four]\nkind = \"token-bucket\"\nlimit = \"4/d\"\nkey = \"ip\"\n\
             [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"half\"\npolicies = [\"four\"]\n",
            origin.address
        ),
    );
    let statuses: Vec<_> = (0..6).map(|_| gateway.get("/").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    assert_eq!(origin.count(), 4);
    gateway.await_metric("tollgate_policy_units_total{policy=\"four\"}", 4.0);
}

/// apache/apisix #13079: what was told to be left went odd.
#[test]
fn what_is_left_falls_to_none_and_stays_there() {
    let valkey = Valkey::start();
    let address = valkey.address();
    let kinds = [
        "fixed-window\"\nanchor = \"first-request",
        "sliding-log",
        "token-bucket",
    ];
    let rest: String = (0..)
        .zip(kinds)
        .map(|(n, kind)| {
            limited(
                &format!("p{n}"),
                &format!("kind = \"{kind}\"\nlimit = \"5/d\""),
            )
        })
        .collect();
    let rest = rest + "[headers]\nlegacy = \"seconds\"\n";
    for store in [None, Some(&*address)] {
        let gateway = gateway(store, &rest);
        for (n, kind) in (0..).zip(kinds) {
            let name = format!("p{n}");
            let answers: Vec<_> = (0..10).map(|_| gateway.get(&format!("/{name}"))).collect();
            let left: Vec<_> = answers.iter().map(|a| told(a).unwrap()).collect();
            let expected = [4, 3, 2, 1, 0, 0, 0, 0, 0, 0].map(|left| (name.clone(), left));
            assert_eq!(left, expected, "{kind}");
            for (answer, (_, left)) in answers.iter().zip(&left) {
                let legacy = answer.header("x-ratelimit-remaining").unwrap();
                assert_eq!(legacy, left.to_string(), "{kind}");
            }
        }
    }
}

/// envoyproxy/ratelimit #808: the statistics were wrong once a limit was reached.
#[test]
fn what_was_allowed_and_what_was_denied_are_all_requests() {
    let valkey = Valkey::start();
    let address = valkey.address();
    let rest = "[policies.five]\nkind = \"sliding-counter\"\nlimit = \"5/300d\"\nkey = \"ip\"\n\
         [policies.caller]\nkind = \"token-bucket\"\nlimit = \"3/d\"\nkey = \"header:x-user\"\non_missing_key = \"skip\"\n\
         [routes.all]\nmatch = { path = \"/*\" }\nupstream = \"demo\"\npolicies = [\"five\", \"caller\"]\n";
    for (store, source) in [(None, "local"), (Some(&*address), "store")] {
        let gateway = gateway(store, rest);
        for n in 0..20 {
            let fields: &[_] = if n % 2 == 0 {
                &[("x-user", "ann")]
            } else {
                &[]
            };
            get_with(gateway.address, "/", fields);
        }
        let decisions = |policy: &str, decision: &str| {
            gateway.metric(&format!(
                "tollgate_policy_decisions_total{{decision=\"{decision}\",policy=\"{policy}\",route=\"all\",source=\"{source}\"}}"
            ))
        };
        let requests = |code: u16| {
            format!("tollgate_http_requests_total{{code=\"{code}\",method=\"GET\",route=\"all\"}}")
        };
        gateway.await_metric(&requests(200), 5.0);
        gateway.await_metric(&requests(429), 15.0);
        let sum = decisions("five", "allow") + decisions("five", "deny");
        assert!((sum - 20.0).abs() < f64::EPSILON, "{}", gateway.scrape());
        // Ten had the key; the others were skipped.
        let sum = decisions("caller", "allow") + decisions("caller", "deny");
        assert!((sum - 10.0).abs() < f64::EPSILON, "{}", gateway.scrape());
        gateway.await_metric("tollgate_policy_units_total{policy=\"five\"}", 5.0);
    }
}

/// 3scale/apisonator #54: the fields told of the first limit, not of the one that denied.
#[test]
fn the_fields_tell_of_the_limit_that_denied_wherever_it_stands() {
    let policies = [("wide", 50), ("tight", 2), ("middle", 9)];
    for turn in 0..3 {
        let mut names = policies.map(|(name, _)| format!("\"{name}\""));
        names.rotate_left(turn);
        let mut rest = format!(
            "[headers]\nlegacy = \"seconds\"\nretry_after_jitter = \"0%\"\n[routes.all]\nmatch = {{ path = \"/*\" }}\n\
             upstream = \"demo\"\npolicies = [{}]\n",
            names.join(", ")
        );
        for (name, limit) in policies {
            rest += &format!(
                "[policies.{name}]\nkind = \"token-bucket\"\nlimit = \"{limit}/h\"\nkey = \"ip\"\n"
            );
        }
        let gateway = gateway(None, &rest);
        for expected in [200, 200, 429] {
            assert_eq!(gateway.get("/").status, expected);
        }
        let denied = gateway.get("/");
        assert_eq!(told(&denied).unwrap(), ("tight".to_owned(), 0));
        assert_eq!(denied.header("x-ratelimit-limit"), Some("2"));
        assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
        let wait = denied.retry_after().unwrap();
        assert!((1_790..=1_800).contains(&wait), "{wait}");
    }
}

/// haproxy/haproxy #2958: more counters than somebody had thought of were a crash.
#[test]
fn twenty_limits_on_a_route_are_all_enforced() {
    let valkey = Valkey::start();
    for store in [None, Some(valkey.address())] {
        let names: Vec<_> = (1..=20).map(|number| format!("limit-{number}")).collect();
        let quoted: Vec<_> = names.iter().map(|name| format!("\"{name}\"")).collect();
        let policies: String = (1..=20)
            .map(|number| {
                format!(
                    "[policies.limit-{number}]\nkind = \"token-bucket\"\nlimit = \"{}/d\"\nkey = \"ip\"\n",
                    23 - number
                )
            })
            .collect();
        let gateway = gateway(
            store.as_deref(),
            &format!(
                "{policies}[routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [{}]\n",
                quoted.join(", ")
            ),
        );
        let statuses = [(); 4].map(|()| gateway.get("/").status);
        assert_eq!(statuses, [200, 200, 200, 429]);
        let denied = gateway.get("/").json();
        assert_eq!(denied["violated-policies"], serde_json::json!(["limit-20"]));
    }
}
