//! A request that is denied by one policy is charged by none.

use crate::support::crowd::{at_once, count};
use crate::support::gateway::{Gateway, secret_file};
use crate::support::http::{Response, get_with};
use crate::support::valkey::Valkey;

/// `wide` and `side` would let all pass; `tight` denies the third. `edge` may be counted in process.
fn config(store: &str, edge_store: &str, order: &str) -> String {
    format!(
        r#"
{store}
[upstreams.demo]
builtin = "echo"
[policies.wide]
kind = "fixed-window"
limit = "100/d"
anchor = "first-request"
key = "ip"
[policies.side]
kind = "sliding-log"
limit = "50/d"
key = ["host", "header:x-side"]
on_missing_key = "empty"
[policies.edge]
kind = "token-bucket"
limit = "40/d"
key = "ip"
store = "{edge_store}"
[policies.tight]
kind = "token-bucket"
limit = "2/d"
key = "header:x-user"
on_missing_key = "deny"
[routes.all]
match = {{ path = "/all" }}
upstream = "demo"
policies = [{order}]
[routes.wide]
match = {{ path = "/wide" }}
upstream = "demo"
policies = ["wide", "side", "edge"]
"#
    )
}

/// What each policy has left, as the answer tells it.
fn left(response: &Response, policy: &str) -> u64 {
    let field = response.header("ratelimit").unwrap();
    let item = field
        .split(", ")
        .find(|item| item.starts_with(&format!("\"{policy}\"")))
        .unwrap_or_else(|| panic!("no {policy} in {field}"));
    item.split(";r=")
        .nth(1)
        .and_then(|rest| rest.split(';').next())
        .and_then(|number| number.parse().ok())
        .unwrap()
}

#[test]
fn a_denial_by_one_policy_spares_the_others_whatever_their_order_and_store() {
    let valkey = Valkey::start();
    let shared = format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"10s\"\nkey_secret_file = \"{}\"\n",
        valkey.address(),
        secret_file().display()
    );
    let orders = [
        r#""wide", "side", "edge", "tight""#,
        r#""tight", "edge", "side", "wide""#,
    ];
    for order in orders {
        for (store, edge_store) in [("", "local"), (&*shared, "shared"), (&*shared, "local")] {
            redis::cmd("FLUSHALL").exec(&mut valkey.connect()).unwrap();
            let gateway = Gateway::start(&config(store, edge_store, order));
            gateway.await_metric("tollgate_store_up", 1.0);
            let ask = |path| get_with(gateway.address, path, &[("x-user", "ann")]);
            assert_eq!(ask("/all").status, 200);
            assert_eq!(ask("/all").status, 200);
            for _ in 0..20 {
                let denied = ask("/all");
                assert_eq!(denied.status, 429);
                assert_eq!(
                    denied.json()["violated-policies"],
                    serde_json::json!(["tight"])
                );
            }
            // Two were allowed, and this is the third.
            let looked = ask("/wide");
            let found = ["wide", "side", "edge"].map(|policy| left(&looked, policy));
            assert_eq!(found, [97, 47, 37], "{order} {edge_store}");
            let units = gateway.metric("tollgate_policy_units_total{policy=\"edge\"}");
            assert!((units - 3.0).abs() < f64::EPSILON, "{units}");
        }
    }
}

#[test]
fn what_the_shared_store_denies_costs_nothing_here_however_many_ask_at_once() {
    let valkey = Valkey::start();
    for kind in [
        "sliding-log",
        "fixed-window",
        "sliding-counter",
        "token-bucket",
    ] {
        redis::cmd("FLUSHALL").exec(&mut valkey.connect()).unwrap();
        let gateway = Gateway::start(&format!(
            r#"
[store]
kind = "valkey"
url = "valkey://{}"
timeout = "10s"
key_secret_file = "{}"
[upstreams.demo]
builtin = "echo"
[policies.node]
kind = "{kind}"
limit = "100/300d"
key = "global"
store = "local"
[policies.user]
kind = "token-bucket"
limit = "2/300d"
key = "header:x-user"
on_missing_key = "deny"
[routes.all]
match = {{ path = "/*" }}
upstream = "demo"
policies = ["node", "user"]
"#,
            valkey.address(),
            secret_file().display()
        ));
        gateway.await_metric("tollgate_store_up", 1.0);
        let address = gateway.address;
        let attackers: Vec<_> = (0..8)
            .map(|_| {
                std::thread::spawn(move || {
                    let mut connection = crate::support::http::Connection::open(address);
                    (0..60)
                        .filter(|_| {
                            connection.ask("GET", "/", &[("x-user", "attacker")]).status == 200
                        })
                        .count()
                })
            })
            .collect();
        let passed: usize = attackers.into_iter().map(|a| a.join().unwrap()).sum();
        assert_eq!(passed, 2, "{kind}");
        // 98 are left for everybody else.
        let others = (0..100)
            .filter(|number| {
                let user = format!("user-{number}");
                get_with(address, "/", &[("x-user", &user)]).status == 200
            })
            .count();
        assert_eq!(others, 98, "{kind}");
    }
}

#[test]
fn every_policy_that_denies_is_named_and_the_longest_wait_is_told() {
    let gateway = Gateway::start(
        r#"
[upstreams.demo]
builtin = "echo"
[policies.minute]
kind = "token-bucket"
limit = "1/min"
key = "ip"
[policies.hour]
kind = "token-bucket"
limit = "1/h"
key = "ip"
[policies.plenty]
kind = "token-bucket"
limit = "1000/s"
key = "ip"
[headers]
retry_after_jitter = "0%"
[routes.all]
match = { path = "/*" }
upstream = "demo"
policies = ["minute", "plenty", "hour"]
"#,
    );
    assert_eq!(gateway.get("/").status, 200);
    let denied = gateway.get("/");
    assert_eq!(denied.status, 429);
    assert_eq!(
        denied.json()["violated-policies"],
        serde_json::json!(["minute", "hour"])
    );
    assert_eq!(denied.retry_after(), Some(3600));
}

#[test]
fn a_policy_in_shadow_counts_and_denies_nobody() {
    let gateway = Gateway::start(
        r#"
[upstreams.demo]
builtin = "echo"
[policies.watched]
kind = "fixed-window"
limit = "2/d"
anchor = "first-request"
key = "ip"
mode = "shadow"
[policies.off]
kind = "fixed-window"
limit = "1/d"
key = "ip"
mode = "off"
[routes.all]
match = { path = "/*" }
upstream = "demo"
policies = ["watched", "off"]
"#,
    );
    for _ in 0..5 {
        assert_eq!(gateway.get("/").status, 200);
    }
    let series = |decision: &str| {
        format!(
            "tollgate_policy_decisions_total{{decision=\"{decision}\",policy=\"watched\",route=\"all\",source=\"local\"}}"
        )
    };
    gateway.await_metric(&series("allow"), 2.0);
    gateway.await_metric(&series("shadow_deny"), 3.0);
}

#[test]
fn a_missing_key_does_what_the_policy_says() {
    let gateway = Gateway::start(
        r#"
[upstreams.demo]
builtin = "echo"
[policies.deny]
kind = "token-bucket"
limit = "1/d"
key = "header:x-user"
on_missing_key = "deny"
[policies.skip]
kind = "token-bucket"
limit = "1/d"
key = "header:x-user"
on_missing_key = "skip"
[policies.empty]
kind = "token-bucket"
limit = "1/d"
key = "header:x-user"
on_missing_key = "empty"
[policies.address]
kind = "token-bucket"
limit = "1/d"
key = "ip"
[routes.deny]
match = { path = "/deny" }
upstream = "demo"
policies = ["deny"]
[routes.skip]
match = { path = "/skip" }
upstream = "demo"
policies = ["skip"]
[routes.empty]
match = { path = "/empty" }
upstream = "demo"
policies = ["empty"]
[routes.first]
match = { path = "/first" }
upstream = "demo"
policies = [{ first_of = ["skip", "address"] }]
"#,
    );
    let refused = gateway.get("/deny");
    assert_eq!(refused.status, 403);
    assert_eq!(refused.json()["type"], "about:blank");
    assert!(refused.retry_after().is_none());
    for _ in 0..3 {
        assert_eq!(gateway.get("/skip").status, 200);
    }
    assert_eq!(gateway.get("/empty").status, 200);
    assert_eq!(gateway.get("/empty").status, 429);
    // Who has the key is counted apart from those who lack it, and not by address.
    let ann = [("x-user", "ann")];
    assert_eq!(get_with(gateway.address, "/empty", &ann).status, 200);
    assert_eq!(get_with(gateway.address, "/first", &ann).status, 200);
    assert_eq!(get_with(gateway.address, "/first", &ann).status, 429);
    assert_eq!(gateway.get("/first").status, 200);
    assert_eq!(gateway.get("/first").status, 429);
}

#[test]
fn a_queue_that_is_full_when_its_turn_comes_leaves_the_shared_policies_uncharged() {
    let valkey = Valkey::start();
    let gateway = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"10s\"\nkey_secret_file = \"{}\"\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n\
         [policies.log]\nkind = \"sliding-log\"\nlimit = \"1000/d\"\nkey = \"ip\"\n\
         [policies.queue]\nkind = \"leaky-bucket\"\nlimit = \"20/s\"\nburst = 5\nkey = \"ip\"\nstore = \"local\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"log\", \"queue\"]\n",
        valkey.address(),
        secret_file().display()
    ));
    gateway.await_metric("tollgate_store_up", 1.0);
    // All of them find room, and then most of them find that others have taken it.
    let responses = at_once(&[gateway.address], 60, "/");
    let (passed, denied) = (count(&responses, 200), count(&responses, 429));
    assert_eq!(passed + denied, 60);
    assert!(passed >= 5 && denied > 0, "{passed} passed");
    let mut admin = valkey.connect();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*:log:*").query(&mut admin).unwrap();
    // Requests of one call stand at one instant, and are one record: the running total tells how many they were.
    let mut total = |index: i8| {
        let record = redis::cmd("LINDEX")
            .arg(&keys[0])
            .arg(index)
            .query(&mut admin);
        let record: Vec<u8> = record.unwrap();
        record[7..]
            .iter()
            .fold(0, |total, byte| total << 8 | usize::from(*byte))
    };
    assert_eq!(total(-1) - total(0), passed);
}
