//! Reports about gateways and the store that they share, or cannot reach.

use std::time::Duration;

use tollgate::clock::monotonic_now;

use super::{UP, gateway, limited, told};
use crate::support::gateway::{Gateway, free_address, secret_file};
use crate::support::relay::{Fate, Relay};
use crate::support::valkey::Valkey;

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
    gateway.await_metric(
        "tollgate_policy_decisions_total{decision=\"allow\",policy=\"open\",route=\"open\",source=\"fallback\"}",
        5.0,
    );
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
        .arg("tollgate:{*")
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
