//! Every way in which one decision can go wrong between a gateway and its Valkey: the request is answered as its policy
//! says, it is charged once or never, and the next ones are decided.

use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::{Gateway, secret_file};
use crate::support::relay::{Fate, Relay};
use crate::support::valkey::Valkey;

const UP: &str = "tollgate_store_up";

/// Far from the limit, and generous with time: a slow machine is not a fault.
fn gateway(relay: &Relay, on_store_failure: &str) -> Gateway {
    Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"500ms\"\nkey_secret_file = \"{}\"\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n\
         [policies.log]\nkind = \"sliding-log\"\nlimit = \"1000/30d\"\nkey = \"ip\"\n\
         on_store_failure = \"{on_store_failure}\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"log\"]\n",
        relay.address,
        secret_file().display()
    ))
}

/// How many requests were charged: a log has an entry for each, and one to begin with.
fn charged(admin: &mut redis::Connection) -> usize {
    let keys: Vec<String> = redis::cmd("KEYS").arg("*:log:*").query(admin).unwrap();
    let Some(key) = keys.first() else { return 0 };
    let entries: usize = redis::cmd("LLEN").arg(key).query(admin).unwrap();
    entries.saturating_sub(1)
}

fn await_charged(admin: &mut redis::Connection, expected: usize, what: &str) {
    let deadline = monotonic_now() + Duration::from_secs(20);
    loop {
        let found = charged(admin);
        assert!(
            found <= expected,
            "{what}: {found} were charged, not {expected}"
        );
        if found == expected {
            return;
        }
        assert!(
            monotonic_now() < deadline,
            "{what}: {found} were charged, not {expected}"
        );
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn meets(valkey: &Valkey, fate: Fate) {
    for (on_store_failure, status) in [("allow", 200), ("deny", 503), ("local", 200)] {
        let what = format!("{fate:?}, {on_store_failure}");
        let mut admin = valkey.connect();
        redis::cmd("FLUSHALL").exec(&mut admin).unwrap();
        let relay = Relay::to(valkey.address());
        let gateway = gateway(&relay, on_store_failure);
        gateway.await_metric(UP, 1.0);
        assert_eq!(gateway.get("/").status, 200, "{what}");
        await_charged(&mut admin, 1, &what);

        relay.spoil_next(fate);
        assert_eq!(gateway.get("/").status, status, "{what}");
        let so_far = 1 + usize::from(fate.charges());
        await_charged(&mut admin, so_far, &what);

        // The next one that reaches the server is charged, once, and nothing is made up for.
        let deadline = monotonic_now() + Duration::from_secs(20);
        while charged(&mut admin) == so_far {
            let answered = gateway.get("/").status;
            assert!(answered == 200 || answered == status, "{what}: {answered}");
            assert!(monotonic_now() < deadline, "{what}: no decision any more");
            // Not so fast that the limit is met while the machine is busy.
            std::thread::park_timeout(Duration::from_millis(5));
        }
        await_charged(&mut admin, so_far + 1, &what);
        gateway.await_metric(UP, 1.0);
        await_charged(&mut admin, so_far + 1, &what);
    }
}

#[test]
fn a_request_that_is_cut_off_is_not_charged() {
    let valkey = Valkey::start();
    meets(&valkey, Fate::Cut);
    meets(&valkey, Fate::CutShort);
}

#[test]
fn a_decision_that_is_lost_is_charged_once() {
    let valkey = Valkey::start();
    meets(&valkey, Fate::Lost);
    meets(&valkey, Fate::LostShort);
}

#[test]
fn a_decision_that_is_slow_is_charged_once() {
    let valkey = Valkey::start();
    meets(&valkey, Fate::Late(Duration::from_millis(1500)));
    meets(&valkey, Fate::Trickling(Duration::from_millis(100)));
}

#[test]
fn a_decision_that_is_garbled_is_charged_once() {
    meets(&Valkey::start(), Fate::Garbage);
}

#[test]
fn a_connection_that_goes_dead_is_replaced() {
    meets(&Valkey::start(), Fate::HalfOpen);
}
