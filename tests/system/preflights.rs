//! Browsers ask before they call, without credentials: krakend/krakend-ratelimit #22, gravitee-io/issues #4044.

use crate::support::gateway::{Gateway, secret_file};
use crate::support::http::{Connection, Response};
use crate::support::valkey::Valkey;

const PREFLIGHT: [(&str, &str); 2] = [
    ("origin", "https://shop.example"),
    ("access-control-request-method", "PUT"),
];

/// Five an hour for each key; `more` goes into that policy, and `policies` into the route's list.
fn config(store: Option<&str>, more: &str, policies: &str) -> String {
    let store = store.map_or_else(String::new, |address| {
        format!(
            "[store]\nkind = \"valkey\"\nurl = \"valkey://{address}\"\ntimeout = \"10s\"\nkey_secret_file = \"{}\"\n",
            secret_file().display()
        )
    });
    format!(
        "{store}[policies.quota]\nkind = \"sliding-log\"\nlimit = \"5/h\"\nkey = \"header:x-key\"\n{more}\n\
         [policies.address]\nkind = \"sliding-log\"\nlimit = \"5/h\"\nkey = \"ip\"\n\
         [policies.edge]\nkind = \"sliding-log\"\nlimit = \"20/h\"\nkey = \"ip\"\nstore = \"local\"\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nrespond = {{ status = 204 }}\npolicies = [{policies}]\n"
    )
}

fn preflight(connection: &mut Connection) -> Response {
    connection.ask("OPTIONS", "/", &PREFLIGHT)
}

fn decisions(policy: &str, decision: &str, source: &str) -> String {
    format!(
        "tollgate_policy_decisions_total{{decision=\"{decision}\",policy=\"{policy}\",route=\"all\",source=\"{source}\"}}"
    )
}

#[test]
fn a_hundred_preflights_use_up_nobodys_quota_and_lack_no_key() {
    let valkey = Valkey::start();
    for (store, source) in [(None, "local"), (Some(valkey.address()), "store")] {
        let denying = "on_missing_key = \"deny\"";
        let gateway = Gateway::start(&config(store.as_deref(), denying, "\"quota\", \"address\""));
        if store.is_some() {
            gateway.await_metric("tollgate_store_up", 1.0);
        }
        let mut connection = Connection::open(gateway.address);
        for _ in 0..100 {
            let answer = preflight(&mut connection);
            assert_eq!((answer.status, answer.header("ratelimit")), (204, None));
        }
        gateway.await_metric(&decisions("quota", "skip", source), 100.0);
        gateway.await_metric(&decisions("address", "skip", source), 100.0);
        gateway.await_metric(&decisions("quota", "deny", source), 0.0);
        let mut ask =
            |method: &str, fields: &[(&str, &str)]| connection.ask(method, "/", fields).status;
        // Without a key nothing but a preflight passes, an OPTIONS of another kind included.
        assert_eq!(ask("GET", &[]), 403);
        assert_eq!(ask("OPTIONS", &PREFLIGHT[..1]), 403);
        assert_eq!(ask("OPTIONS", &PREFLIGHT[1..]), 403);
        // All five are still there, and plain OPTIONS takes one.
        assert_eq!(ask("OPTIONS", &[("x-key", "a")]), 204);
        for expected in [204, 204, 204, 204, 429] {
            assert_eq!(ask("GET", &[("x-key", "a")]), expected);
        }
        assert_eq!(preflight(&mut connection).status, 204);
    }
}

#[test]
fn the_edge_limits_preflights_too() {
    let gateway = Gateway::start(&config(
        None,
        "on_missing_key = \"deny\"",
        "\"edge\", \"quota\"",
    ));
    let mut connection = Connection::open(gateway.address);
    for _ in 0..20 {
        assert_eq!(preflight(&mut connection).status, 204);
    }
    let denied = preflight(&mut connection);
    assert_eq!(denied.status, 429);
    assert_eq!(
        denied.json()["violated-policies"],
        serde_json::json!(["edge"])
    );
    gateway.await_metric(&decisions("edge", "allow", "local"), 20.0);
    gateway.await_metric(&decisions("edge", "deny", "local"), 1.0);
}

#[test]
fn a_policy_may_say_otherwise() {
    let counted = "on_missing_key = \"empty\"\npreflights = true";
    let gateway = Gateway::start(&config(None, counted, "\"quota\""));
    let mut connection = Connection::open(gateway.address);
    for expected in [204, 204, 204, 204, 204, 429] {
        assert_eq!(preflight(&mut connection).status, expected);
    }
    // Told to count, and without a key: nobody's.
    let denying = "on_missing_key = \"deny\"\npreflights = true";
    let gateway = Gateway::start(&config(None, denying, "\"quota\""));
    let mut connection = Connection::open(gateway.address);
    for _ in 0..10 {
        assert_eq!(preflight(&mut connection).status, 204);
    }
    let spared = "on_missing_key = \"skip\"\nstore = \"local\"\npreflights = false";
    let gateway = Gateway::start(&config(None, spared, "\"quota\""));
    let mut connection = Connection::open(gateway.address);
    let with_key = [PREFLIGHT[0], PREFLIGHT[1], ("x-key", "a")];
    for _ in 0..10 {
        assert_eq!(connection.ask("OPTIONS", "/", &with_key).status, 204);
    }
    gateway.await_metric(&decisions("quota", "skip", "local"), 10.0);
}
