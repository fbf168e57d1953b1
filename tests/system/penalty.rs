//! Penalties as an operator sees them: two gateways, one Valkey, and callers who do not stop.

use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::{Gateway, secret_file};
use crate::support::http::{Response, get_with};
use crate::support::valkey::Valkey;

const ABNORMAL: &str = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";
const PENALTIES: &str = "tollgate_penalties_total{policy=\"login\"}";

fn config(valkey: Option<&Valkey>, policy: &str) -> String {
    let store = valkey.map_or_else(String::new, |valkey| {
        format!(
            "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"10s\"\nkey_secret_file = \"{}\"\n",
            valkey.address(),
            secret_file().display()
        )
    });
    format!(
        r#"
{store}
[headers]
retry_after_jitter = "0%"
[upstreams.demo]
builtin = "echo"
[policies.login]
key = "header:x-user"
on_missing_key = "deny"
{policy}
[routes.login]
match = {{ path = "/login" }}
upstream = "demo"
policies = ["login"]
"#
    )
}

fn start(config: &str, shared: bool) -> Gateway {
    let gateway = Gateway::start(config);
    if shared {
        gateway.await_metric("tollgate_store_up", 1.0);
    }
    gateway
}

fn ask(gateway: &Gateway, user: &str) -> Response {
    get_with(gateway.address, "/login", &[("x-user", user)])
}

/// Asks again until it is answered so, as often as it takes.
fn await_status(gateway: &Gateway, user: &str, status: u16) -> Response {
    let deadline = monotonic_now() + Duration::from_secs(30);
    loop {
        let response = ask(gateway, user);
        if response.status == status {
            return response;
        }
        assert!(
            monotonic_now() < deadline,
            "{user} is never answered {status}"
        );
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn who_is_denied_by_one_gateway_is_shut_out_by_all_and_nobody_else_is() {
    let valkey = Valkey::start();
    // One refills in a second: without a penalty nobody is denied for longer.
    let policy = "kind = \"token-bucket\"\nlimit = \"1/s\"\nburst = 2\npenalty = \"10m\"";
    let config = config(Some(&valkey), policy);
    let mut gateways = [start(&config, true), start(&config, true)];
    let denied = await_status(&gateways[0], "mallory", 429);
    assert!((599..=600).contains(&denied.retry_after().unwrap()));
    let problem = denied.json();
    assert_eq!(problem["type"], ABNORMAL);
    assert_eq!(problem["violated-policies"][0], "login");
    assert_eq!(gateways[0].metric(PENALTIES), 1.0);
    // The other gateway never denied this caller, and its bucket is full again before long.
    for _ in 0..3 {
        std::thread::park_timeout(Duration::from_millis(700));
        let elsewhere = ask(&gateways[1], "mallory");
        assert_eq!(elsewhere.status, 429);
        assert_eq!(elsewhere.json()["type"], ABNORMAL);
        let item = elsewhere.header("ratelimit").unwrap();
        let after: u64 = item
            .strip_prefix("\"login\";r=0;t=")
            .unwrap()
            .parse()
            .unwrap();
        assert!((590..=600).contains(&after), "{item}");
    }
    assert_eq!(
        gateways[1].metric(PENALTIES),
        0.0,
        "it runs: none began there"
    );
    assert_eq!(ask(&gateways[0], "alice").status, 200);
    assert_eq!(ask(&gateways[1], "alice").status, 200);
    // Whoever takes its key away forgives at once, but for what gateways remember for a second.
    let mut connection = valkey.connect();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("tollgate:{*}:login:*:penalty")
        .query(&mut connection)
        .unwrap();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let expires: i64 = redis::cmd("TTL")
        .arg(&keys[0])
        .query(&mut connection)
        .unwrap();
    assert!((580..=602).contains(&expires), "{expires}");
    let () = redis::cmd("DEL")
        .arg(&keys[0])
        .query(&mut connection)
        .unwrap();
    await_status(&gateways[1], "mallory", 200);
    await_status(&gateways[0], "mallory", 200);
    gateways[0].stop();
    assert!(gateways[0].access_log().contains("\"penalty\":true"));
}

#[test]
fn each_denial_after_a_penalty_is_followed_by_a_longer_one_in_both_stores() {
    let valkey = Valkey::start();
    let policy =
        "kind = \"token-bucket\"\nlimit = \"2/s\"\nburst = 1\npenalty = [\"1s\", \"2s\", \"1h\"]";
    for valkey in [None, Some(&valkey)] {
        let gateway = start(&config(valkey, policy), valkey.is_some());
        for (begun, most) in [(1.0, 1), (2.0, 2), (3.0, 3600)] {
            let denied = loop {
                let denied = await_status(&gateway, "mallory", 429);
                if gateway.metric(PENALTIES) == begun {
                    break denied;
                }
            };
            assert!(denied.retry_after().unwrap() <= most, "{denied:?}");
            if most < 3600 {
                // One that comes all the while is denied for no longer.
                await_status(&gateway, "mallory", 200);
            }
        }
        let last = ask(&gateway, "mallory").retry_after().unwrap();
        assert!((3_500..=3_600).contains(&last), "{last}");
    }
}

#[test]
fn a_penalty_in_shadow_is_counted_and_denies_nobody() {
    let policy = "kind = \"token-bucket\"\nlimit = \"1/h\"\npenalty = \"1h\"\nmode = \"shadow\"";
    let gateway = start(&config(None, policy), false);
    for _ in 0..4 {
        assert_eq!(ask(&gateway, "mallory").status, 200);
    }
    assert_eq!(gateway.metric(PENALTIES), 1.0);
}

#[test]
fn a_penalty_ends_when_it_is_taken_out_of_the_configuration_and_usage_goes_on() {
    let valkey = Valkey::start();
    let policy = |penalty: &str| {
        let policy = format!("kind = \"fixed-window\"\nlimit = \"3/d\"\n{penalty}");
        config(Some(&valkey), &policy)
    };
    let gateway = start(&policy("penalty = \"1h\"\ncost = 2"), true);
    assert_eq!(ask(&gateway, "mallory").status, 200);
    // One is left, and two are asked for.
    assert_eq!(ask(&gateway, "mallory").status, 429);
    assert!(gateway.reload(&policy("penalty = \"2h\"")));
    assert_eq!(
        ask(&gateway, "mallory").status,
        429,
        "there is room, but the penalty runs"
    );
    assert!(gateway.reload(&policy("")));
    let allowed = await_status(&gateway, "mallory", 200);
    assert!(
        allowed
            .header("ratelimit")
            .unwrap()
            .starts_with("\"login\";r=0;")
    );
}

#[test]
fn a_penalty_begun_while_the_store_is_away_holds_in_its_gateway() {
    let mut valkey = Valkey::start();
    let policy = "kind = \"token-bucket\"\nlimit = \"2/s\"\nburst = 1\npenalty = \"1h\"";
    let gateway = start(&config(Some(&valkey), policy), true);
    valkey.kill();
    gateway.await_metric("tollgate_store_up", 0.0);
    let denied = await_status(&gateway, "mallory", 429);
    assert!(denied.retry_after().unwrap() >= 3_599);
    std::thread::park_timeout(Duration::from_millis(100));
    assert_eq!(ask(&gateway, "mallory").status, 429);
    assert_eq!(ask(&gateway, "alice").status, 200);
}
