//! Gateways that know of each other: what each enforces when the store they shared is gone.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::{Gateway, secret_file};
use crate::support::valkey::Valkey;

const KEY: &str = "tollgate:instances";

/// A route for each kind of policy, 10 a month. Nobody told the gateways how many they are.
fn config(valkey: &Valkey) -> String {
    let policies: String = ["token-bucket", "sliding-log", "sliding-counter", "fixed-window"]
        .iter()
        .map(|kind| {
            format!(
                "[policies.{kind}]\nkind = \"{kind}\"\nlimit = \"10/30d\"\nkey = \"ip\"\n\
                 [routes.{kind}]\nmatch = {{ path = \"/{kind}\" }}\nupstream = \"demo\"\npolicies = [\"{kind}\"]\n"
            )
        })
        .collect();
    format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"1s\"\nkey_secret_file = \"{}\"\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n{policies}",
        valkey.address(),
        secret_file().display()
    )
}

fn await_that(what: &str, holds: impl Fn() -> bool) {
    let deadline = monotonic_now() + Duration::from_secs(30);
    while !holds() {
        assert!(monotonic_now() < deadline, "{what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

/// Who is alive, and until when.
fn announced(valkey: &Valkey) -> BTreeMap<String, u64> {
    let found: Vec<(String, u64)> = redis::cmd("ZRANGE")
        .arg(&[KEY, "0", "-1", "WITHSCORES"])
        .query(&mut valkey.connect())
        .unwrap();
    found.into_iter().collect()
}

/// Waits until each of so many gateways has heard of all of them.
fn await_acquaintance(valkey: &Valkey, gateways: usize) {
    await_that("not all are announced", || {
        announced(valkey).len() == gateways
    });
    // Whoever was announced again, and then once more, has read an answer that counts all.
    for _ in 0..2 {
        let before = announced(valkey);
        await_that("not all are announced again", || {
            let now = announced(valkey);
            before
                .iter()
                .all(|(who, until)| now.get(who).is_none_or(|later| later > until))
        });
    }
}

fn allowed(gateways: &[Gateway], kind: &str) -> usize {
    gateways
        .iter()
        .flat_map(|gateway| (0..10).map(|_| gateway.get(&format!("/{kind}")).status))
        .filter(|status| *status == 200)
        .count()
}

#[test]
fn without_their_store_three_gateways_allow_the_limit_and_a_unit_each_in_each_outage() {
    let mut valkey = Valkey::start();
    let gateways = [(); 3].map(|()| Gateway::start(&config(&valkey)));
    for outage in 0..2 {
        for gateway in &gateways {
            gateway.await_metric("tollgate_store_up", 1.0);
        }
        await_acquaintance(&valkey, 3);
        // The store decides, for each of them.
        assert_eq!(allowed(&gateways, "token-bucket"), 10, "{outage}");
        valkey.kill();
        // What it denied is denied for a second more.
        std::thread::park_timeout(Duration::from_millis(1_100));
        for kind in [
            "token-bucket",
            "sliding-log",
            "sliding-counter",
            "fixed-window",
        ] {
            // A third of ten, rounded up, in each: what one outage used is forgotten in the next.
            assert_eq!(allowed(&gateways, kind), 12, "{kind} in outage {outage}");
        }
        valkey.restart();
    }
}

#[test]
fn a_store_that_forgot_the_others_does_not_make_one_gateway_the_only_one() {
    let mut valkey = Valkey::start();
    let gateways = [(); 3].map(|()| Gateway::start(&config(&valkey)));
    for gateway in &gateways {
        gateway.await_metric("tollgate_store_up", 1.0);
    }
    await_acquaintance(&valkey, 3);
    // The first one that is back finds an empty store: the others have not announced themselves there yet.
    gateways[1..].iter().for_each(|other| other.signal("-STOP"));
    valkey.restart();
    await_that("it does not come back", || announced(&valkey).len() == 1);
    gateways[0].await_metric("tollgate_store_up", 1.0);
    valkey.kill();
    gateways[1..].iter().for_each(|other| other.signal("-CONT"));
    assert_eq!(allowed(&gateways, "token-bucket"), 12);
}

#[test]
fn a_gateway_that_stops_is_off_the_list_before_it_ends() {
    let valkey = Valkey::start();
    let gateway = Gateway::start(&config(&valkey));
    let mut other = Gateway::start(&config(&valkey));
    await_that("not both are announced", || announced(&valkey).len() == 2);
    assert_eq!(other.stop(), Some(0));
    // A silent one would be there for seconds.
    assert_eq!(announced(&valkey).len(), 1);
    gateway.await_metric("tollgate_store_instances", 1.0);
}

#[test]
fn gateways_are_announced_by_chance_numbers_that_end_with_them() {
    let valkey = Valkey::start();
    let gateway = Gateway::start(&config(&valkey));
    let other = Gateway::start(&config(&valkey));
    await_that("not both are announced", || announced(&valkey).len() == 2);
    let mut admin = valkey.connect();
    let lives_ms: i64 = redis::cmd("PTTL").arg(KEY).query(&mut admin).unwrap();
    assert!(lives_ms > 0 && lives_ms <= 5000, "{lives_ms}");
    for instance in announced(&valkey).keys() {
        assert_eq!(instance.len(), 16, "{instance}");
        assert!(u64::from_str_radix(instance, 16).is_ok(), "{instance}");
    }
    drop(other);
    await_that("the dead one is still there", || {
        announced(&valkey).len() == 1
    });
    // What somebody else wrote there, and a lease from a clock that was ahead, are gone with the next announcement.
    redis::cmd("SET").arg(&[KEY, "x"]).exec(&mut admin).unwrap();
    await_that("it does not heal", || {
        let kind: String = redis::cmd("TYPE")
            .arg(KEY)
            .query(&mut valkey.connect())
            .unwrap();
        kind == "zset"
    });
    redis::cmd("ZADD")
        .arg(&[KEY, "99999999999999", "ahead"])
        .exec(&mut admin)
        .unwrap();
    await_that("the one ahead is still there", || {
        !announced(&valkey).contains_key("ahead")
    });
    drop(gateway);
    await_that("nobody is left, and the key is", || {
        let keys: usize = redis::cmd("DBSIZE").query(&mut valkey.connect()).unwrap();
        keys == 0
    });
}
