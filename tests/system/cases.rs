//! What went wrong in other limiters does not here: public reports that need a gateway, a server, or both.

use std::time::Duration;

use tollgate::clock::monotonic_now;
use tollgate::decide::{Timestamp, Verdict};
use tollgate::store::valkey::key::key;
use tollgate::store::valkey::script;

use crate::support::gateway::{Gateway, free_address, secret_file};
use crate::support::http::{Connection, Response, get_with};
use crate::support::origin::Origin;
use crate::support::policies::{check, policy};
use crate::support::relay::{Fate, Relay};
use crate::support::reports::{read_rule, reports};
use crate::support::script::Script;
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

#[test]
fn no_reported_fault_is_one_of_the_script() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    for (number, report) in (0..).zip(reports()) {
        report.play(number, |check, now| script.decide(&[*check], now)[0]);
    }
    script.expect_expiries();
}

/// stefanprodan/AspNetCoreRateLimit #253, apache/apisix #5588: a key without a time to live denied its caller for ever.
#[test]
fn a_key_that_lost_its_expiry_denies_nobody_for_longer_and_gets_another() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    let kinds = [
        "fixed-window 5/1s",
        "fixed-window 5/1s first-request",
        "sliding-log 5/1s",
        "sliding-counter 5/1s",
        "token-bucket 5/1s",
        "leaky-bucket 5/1s",
    ];
    for (entity, kind) in (0..).zip(kinds) {
        let policy = policy("bare", read_rule(kind));
        let at = |ms: u64| Timestamp::from_micros(1_700_000_000_000_000 + ms * 1_000);
        let spent = check(&policy, entity, 5);
        assert_eq!(script.decide(&[spent], at(0))[0].verdict, Verdict::Allow);
        let persisted: bool = redis::cmd("PERSIST")
            .arg(key("t", &spent))
            .query(&mut script.connection)
            .unwrap();
        assert!(persisted, "{kind}");
        assert_eq!(script.decide(&[spent], at(1))[0].verdict, Verdict::Deny);
        // The windows of a sliding counter count for two.
        assert_eq!(
            script.decide(&[spent], at(2_000))[0].verdict,
            Verdict::Allow
        );
        script.expect_expiries();
    }
}

/// brandur/redis-cell #11: the key ended between two readings of one command.
#[test]
fn a_key_that_ends_while_it_is_read_was_never_there() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    for kind in [
        "token-bucket 8000/1s burst 1",
        "leaky-bucket 8000/1s burst 1",
        "fixed-window 8/1ms",
        "sliding-log 8/1ms",
        "sliding-counter 8/1ms",
    ] {
        let policy = policy("brief", read_rule(kind));
        let mut allowed = 0;
        for _ in 0..500 {
            let call = script::call(&script.sha, "t", &[check(&policy, 0, 1)], None, 0);
            let reply = call.query(&mut script.connection).unwrap();
            let (_, decisions) = script::read_reply(&reply, 1).unwrap();
            allowed += usize::from(decisions[0].verdict == Verdict::Allow);
        }
        assert!(allowed > 0, "{kind}");
    }
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

/// spring-cloud/spring-cloud-gateway #1774: with the store down, less than nothing was told to be left.
#[test]
fn without_a_decision_nothing_is_told() {
    let dead = free_address();
    let gateway = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{dead}\"\nkey_secret_file = \"{}\"\non_failure = \"allow\"\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n[headers]\nlegacy = \"seconds\"\npartition_key = true\n{}",
        secret_file().display(),
        limited("open", "kind = \"token-bucket\"\nlimit = \"1/d\"")
    ));
    for _ in 0..5 {
        let response = gateway.get("/open");
        assert_eq!(response.status, 200);
        let invented = response.headers.iter().find(|(name, _)| {
            let name = name.to_ascii_lowercase();
            name.contains("ratelimit") || name == "retry-after"
        });
        assert!(invented.is_none(), "{response:?}");
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

/// Kuadrant/limitador #312: an option about headers changed the names of the keys.
#[test]
fn fields_on_or_off_two_gateways_count_at_the_same_keys() {
    let valkey = Valkey::start();
    let four = limited("four", "kind = \"token-bucket\"\nlimit = \"4/d\"");
    let headers = [
        "",
        "[headers]\nratelimit = \"off\"\n",
        "[headers]\nlegacy = \"epoch\"\nwhen = \"reject\"\npartition_key = true\n",
    ];
    let gateways =
        headers.map(|headers| gateway(Some(&valkey.address()), &format!("{headers}{four}")));
    let statuses: Vec<_> = (0..6)
        .map(|n| gateways[n % 3].get("/four").status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429, 429]);
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query(&mut valkey.connect())
        .unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
}

/// express-rate-limit/rate-limit-redis #71, TykTechnologies/tyk #1986: a call whose answer was lost was made again, and
/// counted twice.
#[test]
fn a_decision_that_was_lost_is_not_asked_for_again() {
    let valkey = Valkey::start();
    let relay = Relay::to(valkey.address());
    let gateway = gateway(
        Some(&relay.address.to_string()),
        &limited(
            "four",
            "kind = \"token-bucket\"\nlimit = \"4/d\"\non_store_failure = \"allow\"",
        ),
    );
    assert_eq!(told(&gateway.get("/four")).unwrap().1, 3);
    relay.spoil_next(Fate::Lost);
    let undecided = gateway.get("/four");
    assert_eq!((undecided.status, told(&undecided)), (200, None));
    gateway.await_metric("tollgate_store_errors_total{kind=\"connect\"}", 1.0);
    gateway.await_metric(UP, 1.0);
    // The lost one was charged, once.
    assert_eq!(told(&gateway.get("/four")).unwrap().1, 1);
    // And again on the last unit.
    relay.spoil_next(Fate::Lost);
    assert_eq!(gateway.get("/four").status, 200);
    gateway.await_metric("tollgate_store_errors_total{kind=\"connect\"}", 2.0);
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/four").status, 429);
}

/// zeromicro/go-zero #4072: an answer that came late was taken for that of another call.
#[test]
fn a_late_decision_is_nobody_elses() {
    let valkey = Valkey::start();
    let relay = Relay::to(valkey.address());
    let policy = |limit: u64| {
        format!("kind = \"token-bucket\"\nlimit = \"{limit}/d\"\non_store_failure = \"allow\"")
    };
    let gateway = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"200ms\"\nkey_secret_file = \"{}\"\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n{}{}",
        relay.address,
        secret_file().display(),
        limited("few", &policy(100)),
        limited("many", &policy(1_000)),
    ));
    gateway.await_metric(UP, 1.0);
    let until_told = |path: &str| {
        let deadline = monotonic_now() + Duration::from_secs(20);
        loop {
            let response = gateway.get(path);
            assert_eq!(response.status, 200);
            if let Some(told) = told(&response) {
                return told;
            }
            assert!(monotonic_now() < deadline, "no decision for {path}");
        }
    };
    let mut left = 1_000;
    for _ in 0..2 {
        relay.spoil_next(Fate::Late(Duration::from_millis(800)));
        assert_eq!(told(&gateway.get("/few")), None);
        // While the late one is on its way, and after it.
        for _ in 0..3 {
            let (name, now_left) = until_told("/many");
            assert_eq!(name, "many");
            assert!(now_left < left && now_left > 100, "{now_left} after {left}");
            left = now_left;
        }
    }
    let (name, left) = until_told("/few");
    assert_eq!(name, "few");
    assert!(left < 100, "{left}");
}
