//! Nobody's address or key stands in the clear: not in Valkey, not in logs, metrics or errors.

use crate::support::gateway::{Gateway, secret_file};
use crate::support::http::get_with;
use crate::support::valkey::Valkey;

#[test]
fn keys_expire_and_no_client_is_to_be_found_in_store_log_or_metrics() {
    let valkey = Valkey::start();
    let mut gateway = Gateway::start(&format!(
        r#"
[store]
kind = "valkey"
url = "valkey://{}"
timeout = "10s"
key_secret_file = "{}"
[client_ip]
trusted_proxies = ["127.0.0.0/8"]
[logs]
client_ip = "hash"
[upstreams.demo]
builtin = "echo"
[policies.fixed]
kind = "fixed-window"
limit = "3/h"
key = "ip"
[policies.log]
kind = "sliding-log"
limit = "3/h"
key = ["ip", "header:x-api-key"]
on_missing_key = "empty"
[policies.counter]
kind = "sliding-counter"
limit = "3/h"
key = "header:x-api-key"
on_missing_key = "empty"
[policies.bucket]
kind = "token-bucket"
limit = "3/h"
key = "cookie:session"
on_missing_key = "empty"
[policies.leaky]
kind = "leaky-bucket"
limit = "1000/s"
burst = 3000
key = "query:token"
on_missing_key = "empty"
[routes.all]
match = {{ path = "/*" }}
upstream = "demo"
policies = ["fixed", "log", "counter", "bucket", "leaky"]
"#,
        valkey.address(),
        secret_file().display()
    ));
    gateway.await_metric("tollgate_store_up", 1.0);
    for _ in 0..6 {
        let response = get_with(
            gateway.address,
            "/path?token=query-secret",
            &[
                ("x-forwarded-for", "203.0.113.77"),
                ("x-api-key", "header-secret"),
                ("cookie", "session=cookie-secret"),
            ],
        );
        assert!(matches!(response.status, 200 | 429));
        if response.status == 429 {
            assert_is_clean(
                "denial",
                &format!("{:?}{}", response.headers, response.text()),
            );
        }
    }

    let mut admin = valkey.connect();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut admin).unwrap();
    // Of five policies, and of the gateways that are alive.
    assert_eq!(keys.len(), 6, "{keys:?}");
    for key in &keys {
        assert_is_clean("key", key);
        assert!(
            key.starts_with("tollgate:{") || key == "tollgate:instances",
            "{key}"
        );
        let ttl_ms: i64 = redis::cmd("PTTL").arg(key).query(&mut admin).unwrap();
        // A sliding counter's window counts for as long again.
        assert!(ttl_ms > 0 && ttl_ms <= 7_202_000, "{key} lives {ttl_ms} ms");
        let dump: Vec<u8> = redis::cmd("DUMP").arg(key).query(&mut admin).unwrap();
        assert_is_clean("value", &String::from_utf8_lossy(&dump));
    }
    assert_is_clean("metrics", &gateway.scrape());
    assert_eq!(gateway.stop(), Some(0));
    let log = gateway.access_log();
    assert_eq!(log.lines().count(), 6, "{log}");
    assert_is_clean("access log", &log);
    assert_is_clean("log", &gateway.errors());
}

fn assert_is_clean(what: &str, text: &str) {
    for secret in [
        "203.0.113",
        "header-secret",
        "cookie-secret",
        "query-secret",
        "a secret of tests",
    ] {
        assert!(!text.contains(secret), "{secret} in {what}: {text}");
    }
}

/// envoyproxy/ratelimit #1132, ethereum-optimism/infra #725: each caller added a series.
#[test]
fn a_crowd_of_callers_adds_no_series() {
    let gateway = Gateway::start(
        r#"
[upstreams.demo]
builtin = "echo"
[policies.caller]
kind = "token-bucket"
limit = "3/h"
key = "header:x-api-key"
on_missing_key = "deny"
[routes.all]
match = { path = "/*" }
upstream = "demo"
policies = ["caller"]
"#,
    );
    // The first of each makes its series.
    gateway.get("/");
    get_with(gateway.address, "/", &[("x-api-key", "0")]);
    let requests = |code: u16| {
        format!("tollgate_http_requests_total{{code=\"{code}\",method=\"GET\",route=\"all\"}}")
    };
    gateway.await_metric(&requests(403), 1.0);
    gateway.await_metric(&requests(200), 1.0);
    let before = gateway.scrape().lines().count();
    let mut connection = crate::support::http::Connection::open(gateway.address);
    for caller in 0..500 {
        let key = format!("key-{caller}");
        let path = format!("/{caller}");
        let response = connection.ask("GET", &path, &[("x-api-key", &key)]);
        assert_eq!(response.status, 200);
    }
    assert_eq!(gateway.scrape().lines().count(), before);
}
