//! Whose limits are others than the policies': tiers, overrides, exemptions, and grants, which every gateway knows
//! soon.

use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use tollgate::client::api_key::KeyHash;
use tollgate::clock::monotonic_now;

use crate::support::cluster::Cluster;
use crate::support::gateway::{Gateway, scratch, secret_file, tollgate};
use crate::support::http::{Connection, Response, get_with};
use crate::support::valkey::Valkey;

const BASIC: &str = "basic-1f0d6c2b7a934e58";
const PAID: &str = "paid-8c41d7e90b23f6a5";
const OWN: &str = "own-55e0b9c81d7f4a26";

/// API keys of a caller without a tier, of one that pays, and of one with a limit of its own.
fn keys() -> PathBuf {
    let hash = |key: &str| KeyHash::of(key.as_bytes()).to_hex();
    let file = scratch().join("api-keys.toml");
    let text = format!(
        "[keys.basic]\nsha256 = \"{}\"\n[keys.paid]\nsha256 = \"{}\"\ntier = \"paid\"\n\
         [keys.own]\nsha256 = \"{}\"\ntier = \"paid\"\nlimits = {{ by-identity = \"7/min\" }}\n",
        hash(BASIC),
        hash(PAID),
        hash(OWN)
    );
    fs::write(&file, text).unwrap();
    file
}

/// What three plans on one route look like.
fn three_plans() -> String {
    format!(
        r#"
[client_ip]
trusted_proxies = ["127.0.0.0/8"]
[identity]
api_key = {{ header = "x-api-key", file = "{}" }}
[upstreams.demo]
builtin = "echo"
[policies.by-identity]
kind = "sliding-log"
limit = "200/min"
key = "identity"
[policies.by-ip]
kind = "sliding-log"
limit = "50/min"
key = "ip"
[tiers.paid]
limits = {{ by-identity = "2000/min" }}
[overrides.office]
ip = ["198.51.100.0/24"]
limits = {{ by-ip = "100/min" }}
[overrides.crawler]
ip = ["198.51.100.7"]
limits = {{ by-ip = "3/min" }}
[exemptions.monitoring]
ip = ["203.0.113.0/28"]
[exemptions.status]
route = ["status"]
policies = ["by-ip"]
[routes.all]
match = {{ path = "/*" }}
upstream = "demo"
policies = [{{ first_of = ["by-identity", "by-ip"] }}]
[routes.status]
match = {{ path = "/status" }}
upstream = "demo"
policies = [{{ first_of = ["by-identity", "by-ip"] }}]
"#,
        keys().display()
    )
}

/// How many of `sent` calls on one connection pass, and what the last answer says of its policy.
fn pass(gateway: &Gateway, target: &str, sent: usize, fields: &[(&str, &str)]) -> (usize, String) {
    let mut connection = Connection::open(gateway.address);
    let mut passed = 0;
    let mut policy = String::new();
    for _ in 0..sent {
        let response = connection.ask("GET", target, fields);
        passed += usize::from(response.status == 200);
        policy = field(&response);
        if response.is_last() {
            connection = Connection::open(gateway.address);
        }
    }
    (passed, policy)
}

fn field(response: &Response) -> String {
    response
        .header("ratelimit-policy")
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn each_plan_has_its_limit_and_the_narrowest_override_counts() {
    let gateway = Gateway::start(&three_plans());
    let from = |ip: &'static str| [("x-forwarded-for", ip)];
    let with = |key: &'static str| [("x-api-key", key)];
    for (who, sent, passes, policy) in [
        (from("192.0.2.1"), 55, 50, "\"by-ip\";q=50;w=60"),
        (with(BASIC), 205, 200, "\"by-identity\";q=200;w=60"),
        (with(PAID), 205, 205, "\"by-identity\";q=2000;w=60"),
        (with(OWN), 10, 7, "\"by-identity\";q=7;w=60"),
        (from("198.51.100.1"), 105, 100, "\"by-ip\";q=100;w=60"),
        (from("198.51.100.7"), 5, 3, "\"by-ip\";q=3;w=60"),
        // Who holds no key that is known is an address like any other.
        ([("x-api-key", "guess")], 55, 50, "\"by-ip\";q=50;w=60"),
    ] {
        let found = pass(&gateway, "/", sent, &who);
        assert_eq!(found, (passes, policy.to_owned()), "{who:?}");
    }
    for (tier, limit) in [("default", 200.0), ("paid", 2000.0)] {
        let series = format!("tollgate_policy_limit{{policy=\"by-identity\",tier=\"{tier}\"}}");
        gateway.await_metric(&series, limit);
    }
}

#[test]
fn whom_an_exemption_spares_is_neither_counted_nor_told_of_it() {
    let gateway = Gateway::start(&three_plans());
    let spared = [("x-forwarded-for", "203.0.113.15")];
    assert_eq!(pass(&gateway, "/", 60, &spared), (60, String::new()));
    let other = [("x-forwarded-for", "203.0.113.16")];
    assert_eq!(pass(&gateway, "/", 60, &other).0, 50);
    // On an exempt route the policy that is not named still counts.
    assert_eq!(pass(&gateway, "/status", 60, &other), (60, String::new()));
    assert_eq!(pass(&gateway, "/status", 10, &[("x-api-key", OWN)]).0, 7);
    let series = |route: &str, decision: &str| {
        format!(
            "tollgate_policy_decisions_total{{decision=\"{decision}\",policy=\"by-ip\",route=\"{route}\",source=\"local\"}}"
        )
    };
    gateway.await_metric(&series("all", "exempt"), 60.0);
    gateway.await_metric(&series("all", "allow"), 50.0);
    gateway.await_metric(&series("all", "deny"), 10.0);
    gateway.await_metric(&series("status", "exempt"), 60.0);
    until("the exempt are logged", || {
        let log = gateway.access_log();
        log.matches("\"decision\":\"none\"").count() >= 60
    });
}

#[test]
fn another_limit_of_a_tier_keeps_what_was_used_and_its_series_goes_with_it() {
    let config = three_plans();
    let gateway = Gateway::start(&config);
    let own = [("x-api-key", BASIC)];
    assert_eq!(pass(&gateway, "/", 150, &own).0, 150);
    let file = keys();
    let text = fs::read_to_string(&file).unwrap();
    let basic_pays = text.replace("[keys.paid]", "tier = \"trial\"\n[keys.paid]");
    fs::write(&file, basic_pays).unwrap();
    let old = config
        .lines()
        .find(|line| line.starts_with("api_key"))
        .unwrap();
    let new = format!(
        "api_key = {{ header = \"x-api-key\", file = \"{}\" }}",
        file.display()
    );
    let with_trial = config.replace(old, &new).replace(
        "[tiers.paid]",
        "[tiers.trial]\nlimits = { by-identity = \"160/min\" }\n[tiers.paid]",
    );
    assert!(gateway.reload(&with_trial));
    assert_eq!(
        pass(&gateway, "/", 20, &own),
        (10, "\"by-identity\";q=160;w=60".to_owned())
    );
    let trial = "tollgate_policy_limit{policy=\"by-identity\",tier=\"trial\"}";
    gateway.await_metric(trial, 160.0);
    assert!(gateway.reload(&with_trial.replace("160/min", "170/min")));
    gateway.await_said("(counters kept)");
    assert_eq!(pass(&gateway, "/", 20, &own).0, 10);
    assert!(gateway.reload(&config));
    assert_eq!(
        pass(&gateway, "/", 40, &own),
        (30, "\"by-identity\";q=200;w=60".to_owned())
    );
    assert!(!gateway.scrape().contains("tier=\"trial\""));
}

/// A configuration of a shared store, with these policies on its one route.
fn shared(store: &str, policies: &str) -> String {
    let names: Vec<String> = policies
        .lines()
        .filter_map(|line| line.strip_prefix("[policies.")?.strip_suffix(']'))
        .map(|name| format!("\"{name}\""))
        .collect();
    format!(
        "[store]\nkind = \"valkey\"\n{store}\ntimeout = \"2s\"\nkey_secret_file = \"{}\"\n\
         [client_ip]\ntrusted_proxies = [\"127.0.0.0/8\"]\n[upstreams.demo]\nbuiltin = \"echo\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [{}]\n{policies}",
        secret_file().display(),
        names.join(", ")
    )
}

/// Two gateways with a shared store.
fn two(valkey: &Valkey, policies: &str) -> [Gateway; 2] {
    let config = shared(
        &format!("url = \"valkey://{}\"", valkey.address()),
        policies,
    );
    [(); 2].map(|()| {
        let gateway = Gateway::start(&config);
        gateway.await_metric("tollgate_store_up", 1.0);
        gateway
    })
}

/// Three in a time that no test lives to see the end of.
const LOG: &str = "[policies.log]\nkind = \"sliding-log\"\nlimit = \"3/300d\"\nkey = \"ip\"\n";

/// Runs a command with the gateway's configuration.
fn command(gateway: &Gateway, arguments: &[&str]) -> Output {
    let (command, arguments) = arguments.split_first().unwrap();
    tollgate(&[command, "--config"])
        .arg(gateway.file())
        .args(arguments)
        .output()
        .unwrap()
}

/// What it says, where it does what it is told.
fn done(gateway: &Gateway, arguments: &[&str]) -> String {
    let output = command(gateway, arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "{arguments:?}: {text}{errors}"
    );
    text
}

fn inspected(gateway: &Gateway, arguments: &[&str]) -> serde_json::Value {
    let text = done(gateway, &[&["inspect", "--json"], arguments].concat());
    serde_json::from_str(&text).unwrap()
}

/// Waits until it is so. Who is denied meanwhile takes nothing.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = monotonic_now() + Duration::from_secs(40);
    while !is_so() {
        assert!(monotonic_now() < deadline, "not so: {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

const WHO: &str = "192.0.2.1";

fn call(gateway: &Gateway) -> Response {
    get_with(gateway.address, "/", &[("x-forwarded-for", WHO)])
}

fn passes(gateway: &Gateway) -> bool {
    call(gateway).status == 200
}

/// How many of so many calls pass, on both by turns.
fn passed(gateways: &[Gateway], calls: usize) -> usize {
    let turns = gateways.iter().cycle().take(calls);
    turns.filter(|gateway| passes(gateway)).count()
}

const OF_WHO: [&str; 4] = ["--policy", "log", "--key", "ip=192.0.2.1"];

#[test]
fn a_grant_is_in_force_on_every_gateway_and_so_is_that_it_ends() {
    let valkey = Valkey::start();
    let gateways = two(&valkey, LOG);
    assert_eq!(passed(&gateways, 8), 3);
    let grant = |more: &[&str]| done(&gateways[0], &[&["grant"], &OF_WHO[..], more].concat());
    let said = grant(&["--limit", "8/300d", "--for", "2h"]);
    assert!(
        said.contains("granted 8/300d to ip=192.0.2.1 under policy log, until 2"),
        "{said}"
    );
    // Denials that are remembered are of another limit.
    for gateway in &gateways {
        until("the grant is in force", || {
            field(&call(gateway)).contains("q=8")
        });
    }
    let already = 8 - inspected(&gateways[1], &OF_WHO)["remaining"]
        .as_u64()
        .unwrap();
    let rest = usize::try_from(8 - already).unwrap();
    assert_eq!(passed(&gateways, 12), rest);
    let other = [("x-forwarded-for", "192.0.2.2")];
    assert_eq!(pass(&gateways[0], "/", 5, &other).0, 3);
    // In place of it, and less than the policy's own.
    grant(&["--limit", "1/300d", "--for", "2h"]);
    for gateway in &gateways {
        until("another is in force", || {
            field(&call(gateway)).contains("q=1;")
        });
    }
    let seen = inspected(&gateways[0], &OF_WHO);
    assert_eq!(
        (&seen["limit_by"], &seen["limit"]),
        (&"grant".into(), &"1/300d".into())
    );
    assert!(grant(&["--remove"]).contains("taken back"));
    for gateway in &gateways {
        until("it is taken back", || field(&call(gateway)).contains("q=3"));
    }
    let again = command(
        &gateways[0],
        &[&["grant"], &OF_WHO[..], &["--remove"]].concat(),
    );
    assert_eq!(again.status.code(), Some(1));
    // It ends by itself, and leaves nothing.
    grant(&["--limit", "20/300d", "--for", "3s"]);
    for gateway in &gateways {
        until("it is in force", || field(&call(gateway)).contains("q=20"));
    }
    for gateway in &gateways {
        until("it has ended", || field(&call(gateway)).contains("q=3"));
    }
    until("nothing is left of it", || {
        let there: bool = redis::cmd("EXISTS")
            .arg("tollgate:{grants}")
            .query(&mut valkey.connect())
            .unwrap();
        !there
    });
}

#[test]
fn grants_name_nobody_expire_and_go_on_while_the_store_is_away() {
    let mut valkey = Valkey::start();
    let gateways = two(&valkey, LOG);
    let grant = |who: &str, limit: &str, lasts: &str| {
        let arguments = [
            "grant", "--policy", "log", "--key", who, "--limit", limit, "--for", lasts,
        ];
        done(&gateways[0], &arguments)
    };
    grant("ip=192.0.2.9", "5/300d", "1ms");
    grant("ip=192.0.2.1", "100/300d", "1h");
    let mut admin = valkey.connect();
    let kept: Vec<(String, String)> = redis::cmd("HGETALL")
        .arg("tollgate:{grants}")
        .query(&mut admin)
        .unwrap();
    // The one that ended went when the other came.
    assert_eq!(kept.len(), 2, "{kept:?}");
    assert!(!format!("{kept:?}").contains("192.0.2"), "{kept:?}");
    let ttl: i64 = redis::cmd("PTTL")
        .arg("tollgate:{grants}")
        .query(&mut admin)
        .unwrap();
    assert!((3_500_000..=3_601_000).contains(&ttl), "{ttl}");
    for gateway in &gateways {
        until("it is in force", || field(&call(gateway)).contains("q=100"));
    }
    valkey.kill();
    for gateway in &gateways {
        gateway.await_metric("tollgate_store_up", 0.0);
        let response = call(gateway);
        assert_eq!(
            (response.status, field(&response)),
            (200, "\"log\";q=100;w=25920000".to_owned())
        );
    }
    // What the store has forgotten is not in force any more.
    valkey.restart();
    for gateway in &gateways {
        until("it is forgotten", || field(&call(gateway)).contains("q=3"));
    }
}

/// One policy of each kind, three at once.
const KINDS: &str = r#"
[policies.fixed]
kind = "fixed-window"
limit = "3/300d"
key = "ip"
[policies.log]
kind = "sliding-log"
limit = "3/300d"
key = "ip"
[policies.counter]
kind = "sliding-counter"
limit = "3/300d"
key = "ip"
[policies.bucket]
kind = "token-bucket"
limit = "3/300d"
key = "ip"
[policies.leaky]
kind = "leaky-bucket"
limit = "3000/s"
burst = 3
key = "ip"
max_wait = "1h"
"#;

#[test]
fn to_inspect_changes_nothing_and_to_reset_forgets_on_every_gateway() {
    let valkey = Valkey::start();
    let gateways = two(&valkey, KINDS);
    assert_eq!(passed(&gateways, 2), 2);
    let mut admin = valkey.connect();
    let mut kept = || -> Vec<(String, Vec<u8>, i64)> {
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("tollgate:{*")
            .query(&mut admin)
            .unwrap();
        let of = |key: String| {
            let value: Option<Vec<u8>> = redis::cmd("DUMP").arg(&key).query(&mut admin).unwrap();
            let expires = redis::cmd("PEXPIRETIME")
                .arg(&key)
                .query(&mut admin)
                .unwrap();
            (key, value.unwrap_or_default(), expires)
        };
        let mut kept: Vec<_> = keys.into_iter().map(of).collect();
        // That of the leaky bucket is soon gone.
        kept.retain(|(key, ..)| !key.contains(":leaky:"));
        kept.sort();
        kept
    };
    let before = kept();
    assert_eq!(before.len(), 4);
    for (policy, key) in [
        ("fixed", "ip"),
        ("log", "ip"),
        ("counter", "ip"),
        ("bucket", "ip"),
    ] {
        let who = format!("{key}={WHO}");
        let arguments = ["--policy", policy, "--key", &who];
        for _ in 0..3 {
            let seen = inspected(&gateways[0], &arguments);
            assert_eq!(
                (&seen["used"], &seen["remaining"]),
                (&2.into(), &1.into()),
                "{seen}"
            );
            assert_eq!(
                (&seen["allowed"], &seen["limit_by"]),
                (&true.into(), &"policy".into())
            );
        }
        let costly = [&arguments[..], &["--cost", "2"]].concat();
        let seen = inspected(&gateways[0], &costly);
        assert_eq!(seen["allowed"], false, "{seen}");
        assert!(seen["retry_after_ms"].as_u64().unwrap() > 1_000, "{seen}");
        let never = inspected(&gateways[0], &[&arguments[..], &["--cost", "4"]].concat());
        assert!(never["retry_after_ms"].is_null(), "{never}");
    }
    let text = done(
        &gateways[0],
        &["inspect", "--policy", "fixed", "--key", "ip=192.0.2.1"],
    );
    assert!(text.contains("used       2 of 3, 1 left\n"), "{text}");
    assert!(
        text.contains("limit      3/300d, the policy's own\n"),
        "{text}"
    );
    assert_eq!(kept(), before);
    // Nobody else's.
    let other = inspected(
        &gateways[0],
        &["--policy", "fixed", "--key", "ip=192.0.2.2"],
    );
    assert_eq!(
        (&other["used"], &other["reset_after_ms"]),
        (&0.into(), &0.into())
    );
    assert_eq!(kept(), before);
    assert_eq!(passed(&gateways, 6), 1);
    for policy in ["fixed", "log", "counter", "bucket"] {
        let arguments = ["reset", "--policy", policy, "--key", "ip=192.0.2.1"];
        assert!(done(&gateways[0], &arguments).starts_with("forgot"));
        assert!(done(&gateways[0], &arguments).starts_with("nothing was used"));
    }
    // A denial is remembered for a second at most; of the three that there is room for, the first ends the wait.
    until("the first gateway has forgotten", || passes(&gateways[0]));
    until("and so has the second", || passes(&gateways[1]));
    assert_eq!(passed(&gateways, 6), 1);
}

#[test]
fn a_caller_on_a_plan_is_inspected_by_its_limit() {
    let valkey = Valkey::start();
    let plans = format!(
        "[identity]\napi_key = {{ header = \"x-api-key\", file = \"{}\" }}\n\
         [policies.by-identity]\nkind = \"token-bucket\"\nlimit = \"10/h\"\nkey = \"identity\"\n\
         on_missing_key = \"skip\"\n\
         [tiers.paid]\nlimits = {{ by-identity = \"20/min\" }}\n\
         [overrides.o]\nip = [\"192.0.2.0/24\"]\nlimits = {{ by-identity = \"30/h\" }}\n\
         [exemptions.e]\nidentity = [\"own\"]\n{LOG}",
        keys().display()
    );
    let [gateway, _] = two(
        &valkey,
        &plans.replace("limits = { by-identity = \"7/min\" }", ""),
    );
    let seen = |who: &str, more: &[&str]| {
        let key = format!("identity={who}");
        let arguments = [&["--policy", "by-identity", "--key", &key], more].concat();
        let seen = inspected(&gateway, &arguments);
        let text = |name: &str| seen[name].as_str().unwrap_or_default().to_owned();
        (
            text("limit_by"),
            text("limit_name"),
            text("limit"),
            seen["exempt"] == true,
        )
    };
    let expected = |by: &str, name: &str, limit: &str, exempt| {
        (by.to_owned(), name.to_owned(), limit.to_owned(), exempt)
    };
    assert_eq!(seen("basic", &[]), expected("policy", "", "10/h", false));
    assert_eq!(seen("paid", &[]), expected("tier", "paid", "20/min", false));
    assert_eq!(
        seen("basic", &["--tier", "paid"]),
        expected("tier", "paid", "20/min", false)
    );
    assert_eq!(
        seen("paid", &["--ip", "192.0.2.7"]),
        expected("override", "o", "30/h", false)
    );
    assert_eq!(seen("own", &[]), expected("key", "", "7/min", true));
    // What was used counts on, whatever the plan.
    let with = [("x-api-key", BASIC), ("x-forwarded-for", "198.51.100.1")];
    assert_eq!(pass(&gateway, "/", 4, &with).0, 3);
    let who = [
        "--policy",
        "by-identity",
        "--key",
        "identity=basic",
        "--tier",
        "paid",
    ];
    assert_eq!(inspected(&gateway, &who)["used"], 3);
}

#[test]
fn what_cannot_be_done_is_said_with_what_to_do_instead() {
    let valkey = Valkey::start();
    let [gateway, _] = two(
        &valkey,
        "[policies.log]\nkind = \"sliding-log\"\nlimit = \"3/h\"\nkey = [\"ip\", \"header:x-user\"]\n\
         on_missing_key = \"skip\"\n[policies.here]\nkind = \"token-bucket\"\nlimit = \"3/h\"\nkey = \"ip\"\nstore = \"local\"\n",
    );
    let local = Gateway::start(&three_plans());
    let whole = [
        "--policy",
        "log",
        "--key",
        "ip=192.0.2.1",
        "--key",
        "header:x-user=bob",
    ];
    let granting = |limit| [&["grant"], &whole[..], &["--limit", limit, "--for", "1h"]].concat();
    let cases: Vec<(&Gateway, Vec<&str>, i32, &str)> = vec![
        (
            &local,
            vec!["inspect", "--policy", "by-ip", "--key", "ip=192.0.2.1"],
            1,
            "[overrides]",
        ),
        (
            &gateway,
            vec!["reset", "--policy", "here", "--key", "ip=192.0.2.1"],
            1,
            "store = \"local\"",
        ),
        (
            &gateway,
            vec!["reset", "--policy", "lgo", "--key", "ip=192.0.2.1"],
            2,
            "there are here, log",
        ),
        (
            &gateway,
            vec!["reset", "--policy", "log", "--key", "ip=192.0.2.1"],
            2,
            "`header:x-user`, which is not named",
        ),
        (
            &gateway,
            vec!["inspect", "--policy", "log", "--key", "host=a"],
            2,
            "no part of the key",
        ),
        (
            &gateway,
            vec!["inspect", "--policy", "log", "--key", "ip"],
            2,
            "SOURCE=VALUE",
        ),
        (
            &gateway,
            vec![
                "inspect",
                "--policy",
                "log",
                "--key",
                "ip=somewhere",
                "--key",
                "header:x-user=b",
            ],
            2,
            "not an IP address",
        ),
        (
            &gateway,
            vec![
                "inspect",
                "--policy",
                "log",
                "--key",
                "ip=192.0.2.1",
                "--key",
                "header:x-user=",
            ],
            2,
            "missing a part",
        ),
        (&gateway, granting("5/min"), 2, "another window"),
        (&gateway, granting("5"), 2, "without a window"),
        (&gateway, granting("5r/s"), 2, "write \"5/s\""),
        (&gateway, [&["grant"], &whole[..]].concat(), 2, "--limit"),
        (
            &gateway,
            [&["grant"], &whole[..], &["--remove", "--limit", "5/h"]].concat(),
            2,
            "cannot be used with",
        ),
    ];
    for (gateway, arguments, code, expected) in cases {
        let output = command(gateway, &arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_cluster_keeps_grants_on_one_of_its_servers_and_tells_all() {
    let cluster = Cluster::start(3);
    let store = format!("cluster = {}", cluster.seeds());
    let gateways = [(); 2].map(|()| {
        let gateway = Gateway::start(&shared(&store, LOG));
        gateway.await_metric("tollgate_store_up", 1.0);
        gateway
    });
    assert_eq!(passed(&gateways, 6), 3);
    let arguments = [
        &["grant"],
        &OF_WHO[..],
        &["--limit", "9/300d", "--for", "1h"],
    ]
    .concat();
    done(&gateways[0], &arguments);
    for gateway in &gateways {
        until("the grant is in force", || {
            field(&call(gateway)).contains("q=9")
        });
    }
    let seen = inspected(&gateways[1], &OF_WHO);
    assert_eq!(
        (&seen["limit_by"], &seen["limit"]),
        (&"grant".into(), &"9/300d".into())
    );
    passed(&gateways, 12);
    assert_eq!(inspected(&gateways[0], &OF_WHO)["remaining"], 0);
    done(&gateways[0], &[&["reset"], &OF_WHO[..]].concat());
    assert_eq!(inspected(&gateways[0], &OF_WHO)["used"], 0);
}

#[test]
fn a_penalty_is_seen_and_forgiven() {
    let valkey = Valkey::start();
    let gateways = two(&valkey, &format!("{LOG}penalty = \"1h\"\n"));
    assert_eq!(passed(&gateways, 5), 3);
    for _ in 0..2 {
        let seen = inspected(&gateways[0], &OF_WHO);
        assert_eq!(
            (&seen["used"], &seen["penalty"]),
            (&3.into(), &true.into()),
            "{seen}"
        );
    }
    let text = done(&gateways[0], &[&["inspect"], &OF_WHO[..]].concat());
    assert!(text.ends_with("more, by the penalty\n"), "{text}");
    // Who is denied without having been punished is not punished by a look.
    let other = ["--policy", "log", "--key", "ip=192.0.2.2", "--cost", "4"];
    let seen = inspected(&gateways[0], &other);
    assert_eq!(
        (&seen["allowed"], &seen["penalty"]),
        (&false.into(), &false.into()),
        "{seen}"
    );
    assert_eq!(inspected(&gateways[0], &other[..4])["allowed"], true);
    done(&gateways[0], &[&["reset"], &OF_WHO[..]].concat());
    until("the first gateway has forgiven", || passes(&gateways[0]));
    let seen = inspected(&gateways[0], &OF_WHO);
    assert_eq!(
        (&seen["used"], &seen["penalty"]),
        (&1.into(), &false.into()),
        "{seen}"
    );
}

#[test]
fn there_are_so_many_grants_and_no_more() {
    let valkey = Valkey::start();
    let grant = |who: &str, limit: &str, for_ms: u64| -> i64 {
        redis::cmd("EVAL")
            .arg(concat!("#!lua\n", include_str!("../../lua/grant.lua")))
            .arg(1)
            .arg("grants")
            .arg(who)
            .arg(limit)
            .arg(for_ms)
            .arg(2)
            .query(&mut valkey.connect())
            .unwrap()
    };
    // What somebody else put there goes.
    redis::cmd("SET")
        .arg(&["grants", "other"])
        .exec(&mut valkey.connect())
        .unwrap();
    assert!(grant("a", "5/1000", 60_000) > 0);
    assert!(grant("b", "5/1000", 60_000) > 0);
    assert_eq!(grant("c", "5/1000", 60_000), -2);
    assert!(grant("b", "6/1000", 30_000) > 0);
    assert_eq!(
        (grant("c", "", 0), grant("a", "", 0), grant("a", "", 0)),
        (-1, 0, -1)
    );
    assert!(grant("c", "7", 1) > 0);
    until("the short one has ended", || grant("d", "8", 20_000) > 0);
    let version = || -> u64 {
        redis::cmd("HGET")
            .arg(&["grants", "version"])
            .query(&mut valkey.connect())
            .unwrap()
    };
    let before = version();
    assert_eq!(grant("d", "", 0), 0);
    assert!(version() > before);
    let ttl: i64 = redis::cmd("PTTL")
        .arg("grants")
        .query(&mut valkey.connect())
        .unwrap();
    assert!((20_000..=31_000).contains(&ttl), "{ttl}");
    assert_eq!(grant("b", "", 0), 0);
    let there: bool = redis::cmd("EXISTS")
        .arg("grants")
        .query(&mut valkey.connect())
        .unwrap();
    assert!(!there);
}
