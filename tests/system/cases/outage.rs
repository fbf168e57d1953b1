//! Reports about a store that is down, slow or half alive. `store_failure.rs` and `store_errors.rs` have the rest.

use std::thread;
use std::time::Duration;

use super::{UP, limited};
use crate::support::gateway::{Gateway, secret_file};
use crate::support::http::Connection;
use crate::support::valkey::Valkey;

/// A gateway that counts in this database of the server, and waits for it no longer than others do.
fn gateway(valkey: &Valkey, database: u32, rest: &str) -> Gateway {
    let gateway = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}/{database}\"\nkey_secret_file = \"{}\"\n\
         timeout = \"200ms\"\n[upstreams.demo]\nbuiltin = \"echo\"\n{rest}",
        valkey.address(),
        secret_file().display(),
    ));
    gateway.await_metric(UP, 1.0);
    gateway
}

/// envoyproxy/ratelimit #462, #978: with a store that says nothing each call waited, and what waited filled memory.
/// gravitee-io/issues #8545: calls that no limit concerns waited with them.
#[test]
fn of_thousands_of_calls_to_a_store_that_stalls_a_few_wait_and_memory_stays_flat() {
    let valkey = Valkey::start();
    let open = limited(
        "open",
        "kind = \"token-bucket\"\nlimit = \"1000000/d\"\non_store_failure = \"allow\"",
    );
    let free = "[routes.free]\nmatch = { path = \"/free\" }\nupstream = \"demo\"\n";
    let gateway = gateway(&valkey, 0, &format!("{open}{free}"));
    assert_eq!(gateway.get("/open").status, 200);
    valkey.pause();
    let calls = |number: usize| {
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let mut connection = Connection::open(gateway.address);
                    for call in 0..number {
                        let path = if call % 10 == 0 { "/free" } else { "/open" };
                        assert_eq!(connection.ask("GET", path, &[]).status, 200);
                    }
                });
            }
        });
    };
    calls(100);
    let before = gateway.memory();
    calls(1000);
    let after = gateway.memory();
    assert!(after < before + 8_000_000, "{before} bytes, then {after}");
    // Those that were on their way when the first of them gave up, and no other.
    let waited = gateway.metric("tollgate_store_errors_total{kind=\"timeout\"}");
    assert!((1.0..=40.0).contains(&waited), "{waited}");
    valkey.resume();
    gateway.await_metric(UP, 1.0);
}

/// envoyproxy/envoy #26400, envoyproxy/ratelimit #1018: a store that came back was buried under connections.
#[test]
fn a_store_that_comes_back_under_load_sees_a_few_connections() {
    let mut valkey = Valkey::start();
    let open = limited(
        "open",
        "kind = \"token-bucket\"\nlimit = \"1000000/d\"\non_store_failure = \"allow\"",
    );
    let gateway = gateway(&valkey, 0, &open);
    let received = |valkey: &Valkey| -> u32 {
        let stats: String = redis::cmd("INFO")
            .arg("stats")
            .query(&mut valkey.connect())
            .unwrap();
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("total_connections_received:"));
        line.unwrap().trim().parse().unwrap()
    };
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut connection = Connection::open(gateway.address);
                for _ in 0..600 {
                    assert_eq!(connection.ask("GET", "/open", &[]).status, 200);
                    thread::park_timeout(Duration::from_millis(2));
                }
            });
        }
        valkey.kill();
        thread::park_timeout(Duration::from_millis(300));
        valkey.restart();
    });
    gateway.await_metric(UP, 1.0);
    // One of the gateway's, and those of this test.
    assert!(received(&valkey) <= 12, "{}", received(&valkey));
}

/// traefik/traefik #12091: nobody could tell what a failing store did to whom. It is said once a change.
#[test]
fn an_outage_is_told_once_and_so_is_its_end() {
    let mut valkey = Valkey::start();
    let closed = limited(
        "closed",
        "kind = \"token-bucket\"\nlimit = \"1000000/d\"\non_store_failure = \"deny\"",
    );
    let gateway = gateway(&valkey, 0, &closed);
    valkey.kill();
    for _ in 0..300 {
        assert_eq!(gateway.get("/closed").status, 503);
    }
    valkey.restart();
    gateway.await_metric(UP, 1.0);
    let said = gateway.await_said("connection to the store given up");
    let times = |text: &str| said.matches(text).count();
    assert_eq!(times("connection to the store given up"), 1, "{said}");
    assert_eq!(times("connected to the store"), 2, "{said}");
    assert!(times("no connection to the store") <= 3, "{said}");
}

/// apache/apisix #13454, Kong/kong #2495: a connection from the pool was that of another database.
#[test]
fn each_gateway_counts_in_the_database_that_it_names() {
    let valkey = Valkey::start();
    let two = limited(
        "two",
        "kind = \"token-bucket\"\nlimit = \"2/d\"\non_store_failure = \"deny\"",
    );
    let (three, seven) = (gateway(&valkey, 3, &two), gateway(&valkey, 7, &two));
    for gateway in [&three, &seven] {
        let statuses = [(); 3].map(|()| gateway.get("/two").status);
        assert_eq!(statuses, [200, 200, 429]);
    }
    // A lost connection is replaced by one to the same database.
    redis::cmd("CLIENT")
        .arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"])
        .exec(&mut valkey.connect())
        .unwrap();
    three.await_said("connection to the store given up");
    three.await_metric(UP, 1.0);
    assert_eq!(three.get("/two").status, 429);
    let keyspace: String = redis::cmd("INFO")
        .arg("keyspace")
        .query(&mut valkey.connect())
        .unwrap();
    assert!(
        keyspace.contains("db3:") && keyspace.contains("db7:"),
        "{keyspace}"
    );
    assert!(!keyspace.contains("db0:"), "{keyspace}");
}
