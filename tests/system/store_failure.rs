//! What becomes of requests when Valkey stops, stalls, forgets or talks nonsense.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::{Gateway, free_address, secret_file};
use crate::support::http::Response;
use crate::support::valkey::Valkey;

/// A route for each behaviour, and one that needs no store.
fn config(store: &str) -> String {
    let policy = |name: &str, rest: &str| {
        format!(
            "[policies.{name}]\nkind = \"token-bucket\"\nlimit = \"4/d\"\nkey = \"ip\"\n{rest}\n\
             [routes.{name}]\nmatch = {{ path = \"/{name}\" }}\nupstream = \"demo\"\npolicies = [\"{name}\"]\n"
        )
    };
    [
        format!(
            "[store]\nkind = \"valkey\"\nurl = \"valkey://{store}\"\ninstances = 2\nkey_secret_file = \"{}\"\n\
             [upstreams.demo]\nbuiltin = \"echo\"\n",
            secret_file().display()
        ),
        policy("allow", "on_store_failure = \"allow\""),
        policy("deny", "on_store_failure = \"deny\""),
        policy("local", "on_store_failure = \"local\""),
        policy("unshared", "store = \"local\""),
        policy("watched", "on_store_failure = \"deny\"\nmode = \"shadow\""),
    ]
    .concat()
}

const UP: &str = "tollgate_store_up";

/// traefik/traefik #12043: a store that failed was a 500 for everybody. TykTechnologies/tyk #3178: it was a 403.
#[test]
fn a_dead_store_leaves_each_policy_to_do_what_it_says_and_rules_again_when_it_is_back() {
    let mut valkey = Valkey::start();
    let gateway = Gateway::start(&config(&valkey.address()));
    gateway.await_metric(UP, 1.0);
    for path in ["/allow", "/deny", "/local"] {
        assert_eq!(gateway.get(path).status, 200);
    }
    valkey.kill();
    without_store(&gateway);
    gateway.await_metric(UP, 0.0);

    valkey.restart();
    gateway.await_metric(UP, 1.0);
    // What was counted meanwhile is forgotten: four again, then no more, in the store.
    for path in ["/allow", "/deny", "/local"] {
        let statuses: Vec<_> = (0..5).map(|_| gateway.get(path).status).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 429], "{path}");
    }
}

#[test]
fn a_store_that_is_there_decides_the_very_first_request() {
    let valkey = Valkey::start();
    // A slow machine is not a store that fails.
    let config =
        config(&valkey.address()).replace("instances = 2", "instances = 2\ntimeout = \"10s\"");
    for _ in 0..5 {
        let gateway = Gateway::start(&config);
        assert_eq!(gateway.get("/deny").status, 200);
        redis::cmd("FLUSHALL").exec(&mut valkey.connect()).unwrap();
    }
}

#[test]
fn a_store_that_says_nothing_keeps_no_gateway_from_its_start() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let gateway = Gateway::start(&config(&silent.local_addr().unwrap().to_string()));
    without_store(&gateway);
}

/// What each route answers while there is no store.
fn without_store(gateway: &Gateway) {
    for _ in 0..10 {
        assert_eq!(gateway.get("/allow").status, 200);
        let refused = gateway.get("/deny");
        assert_eq!(refused.status, 503);
        assert_says_that_no_quota_was_exceeded(&refused);
        // A policy in shadow denies nobody, whatever happens to it.
        assert_eq!(gateway.get("/watched").status, 200);
    }
    // The limit is 4 for both instances: 2 for this one.
    let local: Vec<_> = (0..4).map(|_| gateway.get("/local").status).collect();
    assert_eq!(local, [200, 200, 429, 429]);
    let unshared: Vec<_> = (0..5).map(|_| gateway.get("/unshared").status).collect();
    assert_eq!(unshared, [200, 200, 200, 200, 429]);
}

fn assert_says_that_no_quota_was_exceeded(response: &Response) {
    assert_eq!(response.header("cache-control"), Some("no-store"));
    let problem = response.json();
    assert_eq!(problem["type"], "about:blank");
    assert_eq!(problem["status"], 503);
    assert!(problem.get("violated-policies").is_none());
}

/// envoyproxy/ratelimit #1143: a gateway whose store was not there at the start ended, again and again.
#[test]
fn a_gateway_starts_without_its_store_is_ready_and_heals() {
    let mut valkey = Valkey::start();
    valkey.kill();
    let gateway = Gateway::start(&config(&valkey.address()));
    let ready = crate::support::http::get(gateway.metrics, "/readyz?verbose");
    assert_eq!(ready.status, 200);
    assert!(ready.text().contains("store down"), "{}", ready.text());
    without_store(&gateway);
    valkey.restart();
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
}

/// redis/lettuce #2984: after a pause of the server commands went on failing.
#[test]
fn a_store_that_stalls_costs_a_request_its_deadline_and_no_more() {
    let valkey = Valkey::start();
    let gateway = Gateway::start(&config(&valkey.address()));
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
    valkey.pause();
    let began = monotonic_now();
    without_store(&gateway);
    let took = monotonic_now().saturating_duration_since(began);
    // 39 requests at 20 ms: far below what one of them would wait for a server that never answers.
    assert!(took < Duration::from_secs(15), "{took:?}");
    let scrape = gateway.scrape();
    let timeouts = gateway.metric("tollgate_store_errors_total{kind=\"timeout\"}");
    assert!(timeouts >= 1.0, "{scrape}");
    gateway.await_metric(UP, 0.0);
    // Left alone after five of them: nobody else waited.
    assert!(timeouts <= 5.0, "{scrape}");
    valkey.resume();
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
}

#[test]
fn a_store_that_asks_for_a_password_is_a_store_that_failed() {
    let valkey = Valkey::start_with(&["--requirepass", "secret-of-the-store"]);
    let gateway = Gateway::start(&config(&valkey.address()));
    without_store(&gateway);
    assert!(gateway.metric("tollgate_store_errors_total{kind=\"auth\"}") >= 1.0);
    gateway.await_said("store.password_file");
    let wrong = config(&format!(":wrong-password@{}", valkey.address()));
    let gateway = Gateway::start(&wrong);
    without_store(&gateway);
    assert!(gateway.metric("tollgate_store_errors_total{kind=\"auth\"}") >= 1.0);
    assert!(!gateway.errors().contains("wrong-password"));

    let with_password = config(&format!(":secret-of-the-store@{}", valkey.address()));
    let gateway = Gateway::start(&with_password);
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
    assert!(!gateway.errors().contains("secret-of-the-store"));
}

#[test]
fn a_user_who_may_not_set_an_expiry_leaves_no_key_without_one() {
    let valkey = Valkey::start();
    let mut admin = valkey.connect();
    redis::cmd("ACL")
        .arg(&[
            "SETUSER", "tollgate", "on", ">pw", "~*", "+@all", "-pexpire",
        ])
        .exec(&mut admin)
        .unwrap();
    let gateway = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://tollgate:pw@{}\"\nkey_secret_file = \"{}\"\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n\
         [policies.log]\nkind = \"sliding-log\"\nlimit = \"4/d\"\nkey = \"ip\"\non_store_failure = \"deny\"\n\
         [policies.bucket]\nkind = \"token-bucket\"\nlimit = \"4/d\"\nkey = \"ip\"\non_store_failure = \"deny\"\n\
         [routes.log]\nmatch = {{ path = \"/log\" }}\nupstream = \"demo\"\npolicies = [\"log\"]\n\
         [routes.bucket]\nmatch = {{ path = \"/bucket\" }}\nupstream = \"demo\"\npolicies = [\"bucket\"]\n",
        valkey.address(),
        secret_file().display()
    ));
    gateway.await_metric(UP, 1.0);
    // However often it fails: that says nothing about the other policies.
    for _ in 0..10 {
        assert_eq!(gateway.get("/log").status, 503);
    }
    assert!(gateway.metric("tollgate_store_errors_total{kind=\"auth\"}") >= 1.0);
    let keys: usize = redis::cmd("DBSIZE").query(&mut admin).unwrap();
    assert_eq!(keys, 0);
    let statuses: Vec<_> = (0..5).map(|_| gateway.get("/bucket").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 429]);
}

#[test]
fn a_store_that_is_well_for_probes_alone_forgets_nothing_that_was_counted_here() {
    let valkey = Valkey::start();
    let mut admin = valkey.connect();
    // Who is alive may be said, and nothing else.
    redis::cmd("ACL")
        .arg(&[
            "SETUSER",
            "tollgate",
            "on",
            ">pw",
            "~tollgate:instances",
            "+@all",
        ])
        .exec(&mut admin)
        .unwrap();
    let gateway = Gateway::start(&config(&format!("tollgate:pw@{}", valkey.address())));
    let mut allowed = 0;
    for _ in 0..4 {
        // The breaker closes by good probes, and opens by five failures, again and again.
        gateway.await_metric(UP, 1.0);
        let statuses = (0..6).map(|_| gateway.get("/local").status);
        allowed += statuses.filter(|status| *status == 200).count();
    }
    assert_eq!(allowed, 2);
    // Once decisions are made, they are the store's.
    redis::cmd("ACL")
        .arg(&["SETUSER", "tollgate", "~*"])
        .exec(&mut admin)
        .unwrap();
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
}

#[test]
fn a_store_without_memory_is_a_store_that_failed() {
    let valkey = Valkey::start();
    let gateway = Gateway::start(&config(&valkey.address()));
    gateway.await_metric(UP, 1.0);
    let mut admin = valkey.connect();
    redis::cmd("CONFIG")
        .arg(&["SET", "maxmemory", "1"])
        .exec(&mut admin)
        .unwrap();
    without_store(&gateway);
    redis::cmd("CONFIG")
        .arg(&["SET", "maxmemory", "0"])
        .exec(&mut admin)
        .unwrap();
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
}

#[test]
fn a_store_that_talks_nonsense_is_a_store_that_failed() {
    let nonsense: [&[u8]; 6] = [
        b"*-7\r\n",
        b"\x00\xff\xfe garbage",
        b"$99999999999\r\n",
        b":7\r\n",
        b"*1\r\n*1\r\n*1\r\n:0\r\n",
        b"-ERR what\r\n",
    ];
    for reply in nonsense {
        let listener = TcpListener::bind(free_address()).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().take(100) {
                let Ok(mut stream) = stream else { continue };
                thread::spawn(move || {
                    let mut heard = [0; 4096];
                    while stream.read(&mut heard).is_ok_and(|length| length > 0) {
                        if stream.write_all(reply).is_err() {
                            break;
                        }
                    }
                });
            }
        });
        let gateway = Gateway::start(&config(&address.to_string()));
        without_store(&gateway);
    }
}

#[test]
fn a_key_that_somebody_else_wrote_is_read_as_fresh_and_heals() {
    let valkey = Valkey::start();
    let gateway = Gateway::start(&config(&valkey.address()));
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
    let mut admin = valkey.connect();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*:deny:*")
        .query(&mut admin)
        .unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let spoil = |command: &[&str], admin: &mut redis::Connection| {
        redis::cmd("DEL").arg(&keys[0]).exec(admin).unwrap();
        redis::cmd(command[0])
            .arg(&keys[0])
            .arg(&command[1..])
            .exec(admin)
            .unwrap();
    };
    for command in [
        vec!["SADD", "x"],
        vec!["SET", "not a state"],
        vec!["SET", ""],
        vec!["RPUSH", "x", "y"],
        vec!["HSET", "a", "b"],
    ] {
        spoil(&command, &mut admin);
        // What it denied before is denied for a second more.
        thread::park_timeout(Duration::from_millis(1_100));
        let statuses: Vec<_> = (0..5).map(|_| gateway.get("/deny").status).collect();
        assert_eq!(statuses, [200, 200, 200, 200, 429], "{command:?}");
        let ttl: i64 = redis::cmd("PTTL").arg(&keys[0]).query(&mut admin).unwrap();
        assert!(ttl > 0, "{command:?}");
    }
}
