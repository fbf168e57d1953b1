//! Many clients, several gateways, one limit: exactly that many pass.

use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::crowd::{at_once, count};
use crate::support::gateway::Gateway;
use crate::support::origin::Origin;
use crate::support::valkey::Valkey;

/// Two gateways that share their limits.
fn two_gateways(valkey: &Valkey, origin: &Origin, policy: &str) -> [Gateway; 2] {
    let secret = crate::support::gateway::secret_file();
    let config = format!(
        r#"
[store]
kind = "valkey"
url = "valkey://{}"
timeout = "10s"
instances = 2
key_secret_file = "{}"
[upstreams.api]
servers = ["{}"]
[policies.limit]
key = "ip"
{policy}
[routes.all]
match = {{ path = "/*" }}
upstream = "api"
policies = ["limit"]
"#,
        valkey.address(),
        secret.display(),
        origin.address
    );
    [Gateway::start(&config), Gateway::start(&config)]
}

#[test]
fn two_gateways_and_200_clients_pass_exactly_the_limit() {
    let valkey = Valkey::start();
    let origin = Origin::start();
    // A day: no window ends, and no bucket earns a unit, while the test runs. A leaky bucket lets one pass at
    // once; its second would wait for hours.
    let policies = [
        (10, "kind = \"token-bucket\"\nlimit = \"10/d\""),
        (
            10,
            "kind = \"fixed-window\"\nlimit = \"10/d\"\nanchor = \"first-request\"",
        ),
        (10, "kind = \"sliding-log\"\nlimit = \"10/d\""),
        (10, "kind = \"sliding-counter\"\nlimit = \"10/300d\""),
        (1, "kind = \"leaky-bucket\"\nlimit = \"1/d\"\nburst = 1"),
    ];
    for (limit, policy) in policies {
        let before = origin.count();
        let gateways = two_gateways(&valkey, &origin, policy);
        let addresses = gateways.each_ref().map(|gateway| gateway.address);
        let responses = at_once(&addresses, 200, "/");
        assert_eq!(count(&responses, 200), limit, "{policy}");
        assert_eq!(count(&responses, 429), 200 - limit, "{policy}");
        assert_eq!(origin.count() - before, limit, "{policy}");
        for denied in responses.iter().filter(|response| response.status == 429) {
            assert!(denied.retry_after().unwrap() >= 1, "{denied:?}");
        }
    }
}

#[test]
fn one_gateway_and_200_clients_pass_exactly_the_limit_of_the_embedded_store() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!(
        r#"
[upstreams.api]
servers = ["{}"]
[policies.limit]
kind = "token-bucket"
limit = "10/d"
key = "ip"
[routes.all]
match = {{ path = "/*" }}
upstream = "api"
policies = ["limit"]
"#,
        origin.address
    ));
    let responses = at_once(&[gateway.address], 200, "/");
    assert_eq!(count(&responses, 200), 10);
    assert_eq!(count(&responses, 429), 190);
}

#[test]
fn a_bucket_allows_what_it_holds_and_what_it_earns_and_a_client_that_waits_passes() {
    let valkey = Valkey::start();
    let origin = Origin::start();
    let policy = "kind = \"token-bucket\"\nlimit = \"2/s\"\nburst = 100";
    let gateways = two_gateways(&valkey, &origin, policy);
    let addresses = gateways.each_ref().map(|gateway| gateway.address);
    let began = monotonic_now();
    let mut responses = Vec::new();
    for _ in 0..5 {
        responses.extend(at_once(&addresses, 200, "/"));
    }
    let allowed = count(&responses, 200);
    let elapsed = monotonic_now().saturating_duration_since(began);
    let earned = usize::try_from(elapsed.as_millis() * 2 / 1000).unwrap();
    assert!(allowed >= 100, "{allowed}");
    assert!(allowed <= 100 + earned + 1, "{allowed} in {elapsed:?}");
    let denied = responses
        .iter()
        .find(|response| response.status == 429)
        .unwrap();
    // One unit is earned in half a second; the client is told whole seconds.
    assert_eq!(denied.retry_after(), Some(1));
    let wait = Duration::from_secs(denied.retry_after().unwrap());
    let until = monotonic_now() + wait;
    while monotonic_now() < until {
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert_eq!(gateways[0].get("/").status, 200);
}

#[test]
fn a_shared_second_lets_ten_pass_in_any_second_under_hard_load() {
    let valkey = Valkey::start();
    let origin = Origin::start();
    let policy = "kind = \"sliding-log\"\nlimit = \"10/s\"";
    let gateways = two_gateways(&valkey, &origin, policy);
    let addresses = gateways.each_ref().map(|gateway| gateway.address);
    let began = monotonic_now();
    let mut allowed = 0;
    for _ in 0..6 {
        allowed += count(&at_once(&addresses, 64, "/"), 200);
    }
    // All of it lies in so many seconds, whenever in them each was decided, and each of them lets ten pass.
    let seconds = monotonic_now().saturating_duration_since(began).as_secs() + 1;
    assert!(allowed >= 10, "{allowed}");
    assert!(
        allowed <= 10 * usize::try_from(seconds).unwrap(),
        "{allowed} in {seconds} s"
    );
    assert_eq!(origin.count(), allowed);
}

#[test]
fn a_flushed_script_costs_nobody_a_count() {
    let valkey = Valkey::start();
    let origin = Origin::start();
    let gateways = two_gateways(
        &valkey,
        &origin,
        "kind = \"token-bucket\"\nlimit = \"10/d\"",
    );
    let mut admin = valkey.connect();
    let mut allowed = 0;
    for number in 0..20 {
        if number % 3 == 0 {
            redis::cmd("SCRIPT").arg("FLUSH").exec(&mut admin).unwrap();
        }
        let response = gateways[number % 2].get("/");
        allowed += usize::from(response.status == 200);
    }
    assert_eq!(allowed, 10);
    for gateway in &gateways {
        assert!(
            gateway
                .scrape()
                .contains("tollgate_store_errors_total{kind=\"script\"} 0")
        );
    }
}
