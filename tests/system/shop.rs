//! The stories of the example shop, on two gateways that share a Valkey, in front of real servers.

use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;

use crate::support::gateway::{ADMIN, Gateway, scratch, secret_file};
use crate::support::http::{Connection, Response};
use crate::support::origin::Origin;
use crate::support::valkey::Valkey;

/// The shop: its servers, and two gateways in front of them.
struct Shop {
    valkey: Valkey,
    servers: [Origin; 2],
    llm: Origin,
    gateways: [Gateway; 2],
}

impl Shop {
    fn open() -> Self {
        let valkey = Valkey::start();
        let servers = [(); 2].map(|()| Origin::start());
        let llm = Origin::start();
        let keys = scratch().join("api-keys.toml");
        fs::write(&keys, file_of_keys()).unwrap();
        let config = config(&valkey, &servers, &llm, &keys.display().to_string());
        let gateways = [(); 2].map(|()| Gateway::start(&config));
        for gateway in &gateways {
            gateway.await_metric("tollgate_store_up", 1.0);
        }
        Self {
            valkey,
            servers,
            llm,
            gateways,
        }
    }

    /// Asks one of the gateways, and then the other.
    fn ask(&self, turn: usize, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
        ask(self.gateways[turn % 2].address, method, target, fields)
    }

    /// The answers to so many requests, the gateways in turn.
    fn statuses(
        &self,
        count: usize,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Vec<u16> {
        let of = |turn| self.ask(turn, method, target, fields).status;
        (0..count).map(of).collect()
    }

    /// The sum over both gateways.
    fn metric(&self, series: &str) -> f64 {
        self.gateways
            .iter()
            .map(|gateway| gateway.metric(series))
            .sum()
    }
}

fn ask(address: SocketAddr, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
    Connection::open(address).ask(method, target, fields)
}

/// The example as it is shipped, but for where its servers, its store and its secrets are, and for TLS.
fn config(valkey: &Valkey, servers: &[Origin; 2], llm: &Origin, keys: &str) -> String {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples/shop.toml");
    let mut text = fs::read_to_string(shipped).unwrap();
    let [first, second] = servers.each_ref().map(|server| server.address);
    let secret = secret_file().display().to_string();
    for (shipped, here) in [
        ("[listeners.public]\naddress = \"0.0.0.0:8443\"\n", ""),
        (
            "tls = { cert = \"/etc/tollgate/tls.crt\", key = \"/etc/tollgate/tls.key\" }\n",
            "",
        ),
        ("[metrics]\naddress = \"0.0.0.0:9902\"\n", ""),
        ("127.0.0.1:9901", ADMIN),
        ("host = \"api.shop.example\", ", ""),
        ("[\"10.0.0.0/8\"]", "[\"127.0.0.1\"]"),
        (
            "${VALKEY_URL:-valkey://127.0.0.1:6379}",
            &format!("valkey://{}", valkey.address()),
        ),
        ("password_file = \"/run/secrets/valkey_password\"\n", ""),
        ("timeout = \"20ms\"", "timeout = \"2s\""),
        ("/run/secrets/tollgate_key_secret", &secret),
        ("/etc/tollgate/api-keys.toml", keys),
        ("10.0.1.11:8080", &first.to_string()),
        ("10.0.1.12:8080", &second.to_string()),
        ("llm.internal:443", &llm.address.to_string()),
        ("tls = { sni = \"llm.internal\" }\n", ""),
    ] {
        assert!(text.contains(shipped), "the example has no {shipped}");
        text = text.replace(shipped, here);
    }
    text
}

/// A client behind the load balancer.
fn from(address: &str) -> (&'static str, &str) {
    ("x-forwarded-for", address)
}

const ACME: (&str, &str) = ("x-api-key", "acme-4b1f7c2a9d3e8056");
const GLOBEX: (&str, &str) = ("x-api-key", "globex-77d0c1e5a2b94f38");

fn file_of_keys() -> String {
    let hash = |key: &str| {
        let hashed = crate::support::gateway::tollgate(&["hash-key"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .and_then(|mut child| {
                use std::io::Write as _;
                child.stdin.take().unwrap().write_all(key.as_bytes())?;
                child.wait_with_output()
            })
            .unwrap();
        let line = String::from_utf8(hashed.stdout).unwrap();
        line.trim().to_owned()
    };
    format!(
        "[keys.acme]\n{}\n[keys.globex]\n{}\ntier = \"pro\"\n",
        hash(ACME.1),
        hash(GLOBEX.1)
    )
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|found| **found == status).count()
}

#[test]
fn logins_are_five_a_minute_for_somebody_at_an_account_and_the_account_is_watched() {
    let mut shop = Shop::open();
    let ann = ("x-username", "ann");
    let told = shop.statuses(7, "POST", "/v1/login", &[from("192.0.2.1"), ann]);
    assert_eq!((count(&told, 200), count(&told, 429)), (5, 2), "{told:?}");
    let denied = shop.ask(0, "POST", "/v1/login", &[from("192.0.2.1"), ann]);
    assert_eq!(denied.json()["title"], "Too many sign-in attempts");
    assert!(denied.retry_after().unwrap() >= 1);
    // Another account, and another address, are nobody's business; without a name the address counts.
    assert_eq!(
        shop.statuses(
            1,
            "POST",
            "/v1/login",
            &[from("192.0.2.1"), ("x-username", "bob")]
        ),
        [200]
    );
    assert_eq!(
        shop.statuses(1, "POST", "/v1/login", &[from("192.0.2.2"), ann]),
        [200]
    );
    let nameless = shop.statuses(6, "POST", "/v1/login", &[from("192.0.2.3")]);
    assert_eq!((count(&nameless, 200), count(&nameless, 429)), (5, 1));
    // From many addresses at one account: watched, and let through.
    for number in 0..40 {
        let address = format!("203.0.113.{number}");
        let told = shop.ask(number, "POST", "/v1/login", &[from(&address), ann]);
        assert_eq!(told.status, 200, "{number}");
    }
    let watched = "tollgate_policy_decisions_total{decision=\"shadow_deny\",policy=\"login-user\",route=\"login\",source=\"store\"}";
    assert!(shop.metric(watched) >= 1.0);
    // Without the store nobody logs in; who looks at products is counted here.
    shop.valkey.kill();
    assert_eq!(
        shop.ask(0, "POST", "/v1/login", &[from("192.0.2.9"), ann])
            .status,
        503
    );
    assert_eq!(
        shop.ask(0, "GET", "/v1/products/7", &[from("192.0.2.9")])
            .status,
        200
    );
}

#[test]
fn products_are_twenty_a_minute_for_an_address_and_more_by_key_by_plan_by_network_or_without_end() {
    let shop = Shop::open();
    let products =
        |count, fields: &[(&str, &str)]| shop.statuses(count, "GET", "/v1/products/7", fields);
    let told = products(30, &[from("192.0.2.1")]);
    assert!((20..=22).contains(&count(&told, 200)), "{told:?}");
    // Who holds a key is counted by that, wherever it comes from; a key that nobody holds is none.
    let told = products(20, &[from("192.0.2.1"), ACME]);
    assert_eq!(count(&told, 200), 20, "{told:?}");
    let limit = |fields: &[(&str, &str)]| {
        let answer = shop.ask(0, "GET", "/v1/products/7", fields);
        answer
            .lines("ratelimit-policy")
            .collect::<Vec<_>>()
            .join(", ")
    };
    assert!(limit(&[from("192.0.2.4"), ACME]).contains("\"products-key\";q=100;w=60"));
    assert!(limit(&[from("192.0.2.4"), GLOBEX]).contains("\"products-key\";q=1000;w=60"));
    assert!(
        limit(&[from("192.0.2.4"), ("x-api-key", "made-up")]).contains("\"products-ip\";q=20;w=60")
    );
    assert!(limit(&[from("198.51.100.7")]).contains("\"products-ip\";q=200;w=60"));
    let told = products(60, &[from("198.51.100.7")]);
    assert_eq!(count(&told, 200), 60, "{told:?}");
    // Monitoring is not counted at all.
    assert_eq!(limit(&[from("10.9.1.2")]), "");
    let told = products(60, &[from("10.9.1.2")]);
    assert_eq!(count(&told, 200), 60, "{told:?}");
    let exempt = |policy| {
        shop.gateways.iter().any(|gateway| {
            let scraped = gateway.scrape();
            let mut lines = scraped.lines();
            lines.any(|line| {
                line.contains("decision=\"exempt\"")
                    && line.contains(policy)
                    && !line.ends_with(" 0")
            })
        })
    };
    assert!(exempt("policy=\"edge\"") && exempt("policy=\"products-ip\""));
}

#[test]
fn an_export_costs_twenty_of_a_hundred_and_two_run_at_once() {
    let shop = Shop::open();
    let export = |count, key| {
        shop.statuses(
            count,
            "POST",
            "/v1/reports/export",
            &[from("192.0.2.1"), key],
        )
    };
    assert_eq!(export(6, ACME), [200, 200, 200, 200, 200, 429]);
    assert_eq!(export(1, ("x-api-key", "made-up")), [403]);
    // On the plan "pro" there are fifty an hour, and still two at once.
    let head = "POST /v1/reports/export HTTP/1.1\r\nHost: api\r\nX-Forwarded-For: 192.0.2.1\r\n";
    let running: Vec<_> = (0..2)
        .map(|turn| {
            let mut connection = Connection::open(shop.gateways[turn].address);
            let request = format!("{head}x-api-key: {}\r\nContent-Length: 2\r\n\r\n", GLOBEX.1);
            connection.send(request).unwrap();
            connection
        })
        .collect();
    // Their bodies are still to come: they are under way.
    let in_flight = "tollgate_http_in_flight_requests";
    for gateway in &shop.gateways {
        gateway.await_metric(in_flight, 1.0);
    }
    let third = shop.ask(
        0,
        "POST",
        "/v1/reports/export",
        &[from("192.0.2.1"), GLOBEX],
    );
    assert_eq!(third.status, 429);
    assert_eq!(third.json()["violated-policies"][0], "report-slots");
    for mut connection in running {
        connection.send("{}").unwrap();
        assert_eq!(connection.receive(false).unwrap().status, 200);
    }
    for gateway in &shop.gateways {
        gateway.await_metric(in_flight, 0.0);
    }
    let answer = shop.ask(
        1,
        "POST",
        "/v1/reports/export",
        &[from("192.0.2.1"), GLOBEX],
    );
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn text_messages_wait_their_turn_and_come_to_the_provider_one_by_one() {
    let shop = Shop::open();
    let together = Arc::new(Barrier::new(45));
    let senders: Vec<_> = (0..45)
        .map(|number: usize| {
            let address = shop.gateways[number % 2].address;
            let together = Arc::clone(&together);
            thread::spawn(move || {
                let mut connection = Connection::open(address);
                together.wait();
                let client = format!("192.0.2.{number}");
                connection
                    .ask("POST", "/v1/sms", &[("x-forwarded-for", &client)])
                    .status
            })
        })
        .collect();
    let told: Vec<_> = senders
        .into_iter()
        .map(|sender| sender.join().unwrap())
        .collect();
    let sent = count(&told, 200);
    // Thirty may wait, and a few more drain while they come; nobody is told anything else.
    assert!((30..45).contains(&sent), "{told:?}");
    assert_eq!(sent + count(&told, 429), 45, "{told:?}");
    let texts = shop.servers.iter().flat_map(Origin::seen);
    let mut times: Vec<_> = texts
        .filter(|seen| seen.target == "/v1/sms")
        .map(|seen| seen.at)
        .collect();
    assert_eq!(times.len(), sent);
    times.sort();
    // Ten a second: whatever a busy machine delays, thirty do not come within two seconds.
    let (first, last) = (times[0], times[29]);
    assert!((last - first).as_millis() > 2_000, "{:?}", last - first);
}

#[test]
fn an_answer_of_the_assistant_costs_the_tokens_that_it_took() {
    let shop = Shop::open();
    let answer = |turn: usize, key: (&str, &str), tokens: u64| {
        let body = format!("{{\"answer\": \"hello\", \"usage\": {{\"total_tokens\": {tokens}}}}}");
        let mut connection = Connection::open(shop.gateways[turn % 2].address);
        let head = format!(
            "POST /v1/assistant/answer HTTP/1.1\r\nHost: api\r\nX-Forwarded-For: 192.0.2.1\r\n{}: {}\r\n\
             X-Answer: content-type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            key.0,
            key.1,
            body.len()
        );
        connection.send(head).unwrap();
        connection.receive(false).unwrap().status
    };
    let units = "tollgate_policy_units_total{policy=\"llm-tokens\"}";
    assert_eq!(answer(0, ACME, 3_500), 200);
    shop.gateways[0].await_metric(units, 3_500.0);
    // An answer that says nothing keeps what was reserved.
    let silent = shop.ask(1, "POST", "/v1/assistant/ask", &[from("192.0.2.1"), ACME]);
    assert_eq!(silent.status, 200);
    shop.gateways[1].await_metric(units, 2_000.0);
    // What took more than there was is owed: 100,000 a minute, and this took more than that.
    assert_eq!(answer(0, ACME, 150_000), 200);
    shop.gateways[0].await_metric(units, 153_500.0);
    assert_eq!(answer(1, ACME, 100), 429);
    // Another plan, another caller: neither owes anything.
    assert_eq!(answer(1, GLOBEX, 100), 200);
    assert_eq!(
        shop.ask(0, "POST", "/v1/assistant/ask", &[from("192.0.2.1")])
            .status,
        403
    );
    assert_eq!(shop.llm.count(), 4);
}

#[test]
fn everything_else_is_shielded_at_the_edge_and_a_server_that_is_ill_is_left_out() {
    let shop = Shop::open();
    let told = shop.statuses(20, "GET", "/anything", &[from("192.0.2.1")]);
    assert_eq!(count(&told, 200), 20);
    let flood = (0..260).map(|_| {
        ask(
            shop.gateways[0].address,
            "GET",
            "/anything",
            &[from("192.0.2.5")],
        )
        .status
    });
    let flood: Vec<_> = flood.collect();
    assert!(
        count(&flood, 429) > 0 && count(&flood, 200) >= 100,
        "{}",
        count(&flood, 429)
    );
    for gateway in &shop.gateways {
        for server in &shop.servers {
            let healthy = format!(
                "tollgate_upstream_healthy{{server=\"{}\",upstream=\"shop\"}}",
                server.address
            );
            gateway.await_metric(&healthy, 1.0);
        }
    }
    shop.servers[0].set_ill(true);
    for gateway in &shop.gateways {
        let healthy = format!(
            "tollgate_upstream_healthy{{server=\"{}\",upstream=\"shop\"}}",
            shop.servers[0].address
        );
        gateway.await_metric(&healthy, 0.0);
    }
    let asked = |server: &Origin| {
        server
            .seen()
            .iter()
            .filter(|seen| seen.target == "/v1/products/9")
            .count()
    };
    let told = shop.statuses(6, "GET", "/v1/products/9", &[from("192.0.2.6")]);
    assert_eq!(count(&told, 200), 6);
    assert_eq!((asked(&shop.servers[0]), asked(&shop.servers[1])), (0, 6));
}

#[test]
fn the_example_of_a_login_does_what_it_says() {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/config/examples/login.toml");
    let text = fs::read_to_string(shipped).unwrap();
    let text = text
        .replace("[listeners.main]\naddress = \"127.0.0.1:8080\"\n", "")
        .replace("[metrics]\naddress = \"127.0.0.1:9902\"\n", "");
    let gateway = Gateway::start(&text);
    let attempt = |user: &str, password: &str| {
        let fields = [("x-username", user), ("x-password", password)];
        ask(gateway.address, "POST", "/login", &fields)
    };
    let ann: Vec<_> = [
        "wrong", "wrong", "wrong", "wrong", "right", "wrong", "wrong", "right",
    ]
    .into_iter()
    .map(|password| attempt("ann", password).status)
    .collect();
    assert_eq!(ann, [401, 401, 401, 401, 200, 401, 429, 429]);
    assert_eq!(attempt("bob", "right").status, 200);
    let denied = attempt("ann", "right");
    assert_eq!(denied.json()["title"], "Too many sign-in attempts");
    assert!(denied.retry_after().unwrap() >= 30);
    assert!(gateway.metric("tollgate_penalties_total{policy=\"failures\"}") >= 1.0);
}
