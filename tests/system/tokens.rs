//! Signed tokens, as the gateway believes them: from files and from an issuer that changes its keys, and fails.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use tollgate::client::api_key::KeyHash;
use tollgate::clock::wall_now_us;

use crate::support::gateway::{Gateway, scratch, secret_file};
use crate::support::http::get_with;
use crate::support::tokens::{Signer, encoded, jwks};
use crate::support::valkey::Valkey;

const SECRET: &[u8] = b"a secret that issuer and gateway share";

/// A file of a test's own, in a folder of its own.
struct Owned(PathBuf);

impl Owned {
    fn new(bytes: impl AsRef<[u8]>) -> Self {
        let file = Self(scratch().join("keys"));
        file.write(bytes);
        file
    }

    /// Puts another in its place, at once.
    fn write(&self, bytes: impl AsRef<[u8]>) {
        let fresh = self.0.with_extension("fresh");
        fs::write(&fresh, bytes).unwrap();
        fs::rename(fresh, &self.0).unwrap();
    }

    /// As a configuration names it.
    fn named(&self, key: &str) -> String {
        format!("{key} = \"{}\"", self.0.display())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.parent().unwrap());
    }
}

/// Serves a set of keys over HTTP, as it is told to at the time.
#[derive(Clone)]
struct Issuer {
    address: SocketAddr,
    answer: Arc<Mutex<String>>,
    asked: Arc<AtomicUsize>,
}

impl Issuer {
    fn start(text: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let issuer = Self {
            address: listener.local_addr().unwrap(),
            answer: Arc::default(),
            asked: Arc::default(),
        };
        issuer.answers("200 OK", "", text);
        let serving = issuer.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while lines
                    .next()
                    .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
                {}
                let answer = serving.answer.lock().unwrap().clone();
                // Who does not wait for all of it is free to go.
                let _ = stream.write_all(answer.as_bytes());
                serving.asked.fetch_add(1, Ordering::Relaxed);
            }
        });
        issuer
    }

    fn answers(&self, status: &str, fields: &str, body: &str) {
        *self.answer.lock().unwrap() = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\n{fields}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn named(&self) -> String {
        format!("jwks_url = \"http://{}/jwks\"", self.address)
    }
}

fn now_s() -> u64 {
    wall_now_us() / 1_000_000
}

fn claims(subject: &str) -> Value {
    json!({
        "iss": "https://issuer.example",
        "aud": ["shop", "other"],
        "sub": subject,
        "exp": now_s() + 600,
        "nbf": now_s() - 10,
        "plan": "pro",
        "tenant": "t1",
    })
}

fn config(keys: &str) -> String {
    format!(
        r#"
[identity]
jwt = {{ issuer = "https://issuer.example", audience = "shop", tier_claim = "plan", {keys} }}
[upstreams.demo]
builtin = "echo"
[policies.known]
kind = "fixed-window"
limit = "100000/h"
key = "identity"
on_missing_key = "deny"
[policies.each]
kind = "fixed-window"
limit = "2/h"
key = "identity"
on_missing_key = "deny"
[policies.tenant]
kind = "fixed-window"
limit = "3/h"
key = "jwt:tenant"
on_missing_key = "deny"
[policies.tier]
kind = "fixed-window"
limit = "3/h"
key = "tier"
on_missing_key = "deny"
[routes.known]
match = {{ path = "/*" }}
upstream = "demo"
policies = ["known"]
[routes.each]
match = {{ path = "/each" }}
upstream = "demo"
policies = ["each"]
[routes.tenant]
match = {{ path = "/tenant" }}
upstream = "demo"
policies = ["tenant"]
[routes.tier]
match = {{ path = "/tier" }}
upstream = "demo"
policies = ["tier"]
"#
    )
}

fn ask(gateway: &Gateway, target: &str, token: &str) -> u16 {
    let line = format!("Bearer {token}");
    get_with(gateway.address, target, &[("authorization", &line)]).status
}

fn seen(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric(&format!(
        "tollgate_identity_total{{kind=\"jwt\",result=\"{result}\"}}"
    ))
}

fn reads(result: &str) -> String {
    format!("tollgate_identity_key_reads_total{{kind=\"jwt\",result=\"{result}\"}}")
}

const KEYS: &str = "tollgate_identity_keys{kind=\"jwt\"}";

#[test]
fn tokens_prove_who_calls_and_what_plan_and_claims_it_has() {
    let signers = [Signer::rsa("r"), Signer::curve("c"), Signer::edwards("e")];
    let file = Owned::new(jwks(&signers.each_ref()));
    let gateway = Gateway::start(&config(&file.named("jwks_file")));
    gateway.await_metric(KEYS, 3.0);
    for (signer, subject) in signers.iter().zip(["alice", "bob", "carol"]) {
        let token = signer.token(&claims(subject));
        let found: Vec<u16> = (0..3).map(|_| ask(&gateway, "/each", &token)).collect();
        assert_eq!(found, [200, 200, 429], "{}", signer.algorithm());
        // Another token of the same subject is the same caller.
        let mut later = claims(subject);
        later["exp"] = (now_s() + 900).into();
        assert_eq!(ask(&gateway, "/each", &signer.token(&later)), 429);
    }
    let [rsa, ..] = &signers;
    for target in ["/tenant", "/tier"] {
        // Three of the tenant and of the plan, whoever calls.
        for (subject, status) in [("a", 200), ("b", 200), ("c", 200), ("d", 429)] {
            assert_eq!(ask(&gateway, target, &rsa.token(&claims(subject))), status);
        }
        for value in [json!(null), json!(""), json!(["t1"]), json!({ "a": 1 })] {
            let mut without = claims("e");
            without["tenant"] = value.clone();
            without["plan"] = value;
            assert_eq!(ask(&gateway, target, &rsa.token(&without)), 403);
        }
    }
    // A plan that could not be one is none; a claim may be any text.
    let mut odd = claims("f");
    odd["plan"] = "Not A Plan".into();
    odd["tenant"] = "Not A Plan".into();
    assert_eq!(ask(&gateway, "/tier", &rsa.token(&odd)), 403);
    assert_eq!(ask(&gateway, "/tenant", &rsa.token(&odd)), 200);
    // Proven, but nobody.
    let mut nobody = claims("");
    assert_eq!(ask(&gateway, "/known", &rsa.token(&nobody)), 403);
    nobody["tenant"] = "t2".into();
    assert_eq!(ask(&gateway, "/tenant", &rsa.token(&nobody)), 200);
}

#[test]
fn what_is_forged_over_or_for_others_is_nobodys() {
    let (rsa, curve) = (Signer::rsa("r"), Signer::curve("c"));
    let file = Owned::new(jwks(&[&rsa, &curve]));
    let gateway = Gateway::start(&config(&file.named("jwks_file")));
    let good = curve.token(&claims("alice"));
    assert_eq!(ask(&gateway, "/", &good), 200);
    let with = |name: &str, value: Value| {
        let mut claims = claims("alice");
        claims[name] = value;
        curve.token(&claims)
    };
    let payload = encoded(claims("alice").to_string().as_bytes());
    let none = encoded(b"{\"alg\":\"none\"}");
    let mut forged = vec![
        format!("{none}.{payload}."),
        format!("{none}.{payload}.{}", good.rsplit('.').next().unwrap()),
        Signer::curve("c").token(&claims("alice")),
        Signer::curve("new").token(&claims("alice")),
        with("nbf", (now_s() + 600).into()),
        with("iss", "https://other.example".into()),
        with("aud", "other".into()),
        with("exp", json!("never")),
        with("exp", json!(null)),
        with("x", "x".repeat(9000).into()),
        good[..good.len() - 2].to_owned(),
        good[..good.rfind('.').unwrap()].to_owned(),
        format!("{good}.{good}"),
        good.replace('.', "..").clone(),
        curve.token_of(b"{\"alg\":\"ES256\",\"cty\":\"JWT\"}", good.as_bytes()),
        curve.token_of(b"{\"alg\":\"ES256\"}", &[0xff, 0xfe]),
        "not-a-token".to_owned(),
        "\u{fc}.\u{20ac}.\u{0}".replace('\u{0}', "x"),
        ".".repeat(5000),
    ];
    for secret in rsa.public_key_as_secrets() {
        let forger = Signer::secret(&secret);
        let header = json!({ "alg": "HS256", "typ": "JWT", "kid": "r" });
        forged.push(forger.token_with(&header, &claims("alice")));
    }
    for token in &forged {
        assert_eq!(ask(&gateway, "/", token), 403, "{token}");
    }
    let count = u32::try_from(forged.len()).unwrap();
    assert!((seen(&gateway, "invalid") - f64::from(count)).abs() < f64::EPSILON);
    assert_eq!(
        ask(&gateway, "/", &with("exp", (now_s() - 100).into())),
        403
    );
    assert!((seen(&gateway, "expired") - 1.0).abs() < f64::EPSILON);
    // Two that differ, and what is no token at all.
    let other = rsa.token(&claims("alice"));
    let lines = [format!("Bearer {good}"), format!("Bearer {other}")];
    let both = [("authorization", &*lines[0]), ("authorization", &*lines[1])];
    assert_eq!(get_with(gateway.address, "/", &both).status, 403);
    let basic = [("authorization", "Basic YTpi")];
    assert_eq!(get_with(gateway.address, "/", &basic).status, 403);
    assert_eq!(gateway.get("/").status, 403);
    assert!((seen(&gateway, "absent") - 2.0).abs() < f64::EPSILON);
    assert_eq!(ask(&gateway, "/", &good), 200);
}

#[test]
fn a_token_ends_while_it_is_known() {
    let signer = Signer::edwards("e");
    let file = Owned::new(jwks(&[&signer]));
    let keys = format!("leeway = \"0s\", {}", file.named("jwks_file"));
    let gateway = Gateway::start(&config(&keys));
    let mut short = claims("alice");
    let end = now_s() + 3;
    short["exp"] = end.into();
    let token = signer.token(&short);
    assert_eq!(ask(&gateway, "/", &token), 200);
    assert_eq!(ask(&gateway, "/", &token), 200);
    while now_s() < end {
        thread::park_timeout(std::time::Duration::from_millis(50));
    }
    assert_eq!(ask(&gateway, "/", &token), 403);
}

#[test]
fn a_shared_secret_verifies_what_it_signed_and_is_read_again_when_it_changes() {
    let file = Owned::new([SECRET, b"\n"].concat());
    let gateway = Gateway::start(&config(&file.named("secret_file")));
    let token = Signer::secret(SECRET).token(&claims("alice"));
    let next = Signer::secret(b"another secret of some length, and more");
    let next_token = next.token(&claims("alice"));
    let public = Signer::rsa("r").token(&claims("alice"));
    let known = || [&token, &next_token, &public].map(|token| ask(&gateway, "/", token));
    assert_eq!(known(), [200, 403, 403]);
    file.write("too short");
    gateway.await_metric(&reads("failure"), 1.0);
    let said = gateway.await_said("keys of tokens not taken");
    assert!(said.contains("9 bytes"), "{said}");
    assert_eq!(known(), [200, 403, 403]);
    file.write("another secret of some length, and more");
    gateway.await_metric(&reads("success"), 1.0);
    // What was verified with the old one is not believed any more.
    assert_eq!(known(), [403, 200, 403]);
}

#[test]
fn keys_are_fetched_from_an_issuer_that_changes_them_and_fails() {
    let (first, second) = (Signer::curve("k1"), Signer::edwards("k2"));
    let issuer = Issuer::start(&jwks(&[&first]));
    let keys = format!("refresh = \"1s\", {}", issuer.named());
    let gateway = Gateway::start(&config(&keys));
    let tokens = [&first, &second].map(|signer| signer.token(&claims("alice")));
    let known = || tokens.each_ref().map(|token| ask(&gateway, "/", token));
    // It was fetched before the first request.
    assert_eq!(known(), [200, 403]);
    issuer.answers("200 OK", "", &jwks(&[&first, &second]));
    gateway.await_metric(KEYS, 2.0);
    assert_eq!(known(), [200, 200]);
    issuer.answers("200 OK", "", &jwks(&[&second]));
    gateway.await_metric(KEYS, 1.0);
    assert_eq!(known(), [403, 200]);

    // Whatever goes wrong: the last good keys stay.
    let elsewhere = Issuer::start(&jwks(&[&first]));
    let to_elsewhere = format!("Location: http://{}/jwks\r\n", elsewhere.address);
    let huge = format!("{{\"keys\":[],\"x\":\"{}\"}}", "x".repeat(2 << 20));
    for (status, fields, body) in [
        ("500 Internal Server Error", "", jwks(&[&first])),
        ("404 Not Found", "", "{}".to_owned()),
        ("302 Found", &*to_elsewhere, String::new()),
        ("200 OK", "", "<html>".to_owned()),
        ("200 OK", "", "{\"keys\":[]}".to_owned()),
        ("200 OK", "", huge),
    ] {
        let before = gateway.metric(&reads("failure"));
        issuer.answers(status, fields, &body);
        while gateway.metric(&reads("failure")) < before + 1.0 {
            thread::park_timeout(std::time::Duration::from_millis(50));
        }
        assert_eq!(known(), [403, 200], "{status}");
    }
    assert_eq!(elsewhere.asked(), 0);
    gateway.await_said("the ones before stay in force");
    gateway.await_metric(KEYS, 1.0);

    issuer.answers("200 OK", "", &jwks(&[&first]));
    while known() != [200, 403] {
        thread::park_timeout(std::time::Duration::from_millis(50));
    }
    // A reload goes on with them, and does not ask for them anew.
    let hourly = config(&format!("refresh = \"1h\", {}", issuer.named()));
    assert!(gateway.reload(&hourly));
    assert_eq!(known(), [200, 403]);
}

#[test]
fn a_gateway_starts_without_its_issuer_and_asks_sooner_for_a_key_it_does_not_know() {
    let (first, second) = (Signer::edwards("k1"), Signer::edwards("k2"));
    let issuer = Issuer::start("");
    issuer.answers("503 Service Unavailable", "", "");
    let keys = format!("refresh = \"1h\", {}", issuer.named());
    let gateway = Gateway::start(&config(&keys));
    let token = first.token(&claims("alice"));
    assert_eq!(ask(&gateway, "/", &token), 403);
    gateway.await_said("tokens prove nothing until they are there");
    issuer.answers("200 OK", "", &jwks(&[&first]));
    // It asks again by itself.
    gateway.await_metric(KEYS, 1.0);
    assert_eq!(ask(&gateway, "/", &token), 200);

    // The next time would be in an hour, but for a token with an unknown key; and a crowd of them asks no more than
    // one.
    issuer.answers("200 OK", "", &jwks(&[&first, &second]));
    let asked = issuer.asked();
    let newer = second.token(&claims("bob"));
    for number in 0..50 {
        let stranger = first.token_with(
            &json!({ "alg": "EdDSA", "kid": format!("x{number}") }),
            &claims("mallory"),
        );
        assert_eq!(ask(&gateway, "/", &stranger), 403);
    }
    while ask(&gateway, "/", &newer) != 200 {
        thread::park_timeout(std::time::Duration::from_millis(50));
    }
    assert_eq!(issuer.asked(), asked + 1);
}

#[test]
fn a_key_and_a_token_are_two_callers_and_the_key_goes_first() {
    let signer = Signer::edwards("e");
    let file = Owned::new(jwks(&[&signer]));
    let key = "acme-5b1f0c6a97d84e21";
    let hash = KeyHash::of(key.as_bytes()).to_hex();
    let keys = Owned::new(format!(
        "[keys.acme]\nsha256 = \"{hash}\"\ntier = \"free\"\n"
    ));
    let with_keys = format!(
        "[identity]\napi_key = {{ header = \"x-api-key\", {} }}\n",
        keys.named("file")
    );
    let gateway =
        Gateway::start(&config(&file.named("jwks_file")).replace("[identity]\n", &with_keys));
    let line = format!("Bearer {}", signer.token(&claims("acme")));
    let token = ("authorization", &*line);
    let key = ("x-api-key", key);
    let ask =
        |target: &str, fields: &[(&str, &str)]| get_with(gateway.address, target, fields).status;
    // Two of each: `acme` of the keys is not `acme` of the tokens.
    assert_eq!([(); 3].map(|()| ask("/each", &[key])), [200, 200, 429]);
    assert_eq!([(); 3].map(|()| ask("/each", &[token])), [200, 200, 429]);
    assert_eq!(ask("/each", &[key, token]), 429);
    // Of the two plans the key's counts, and the token's claims are there all the same.
    assert_eq!(
        [(); 4].map(|()| ask("/tier", &[key, token])),
        [200, 200, 200, 429]
    );
    assert_eq!(ask("/tier", &[token]), 200);
    assert_eq!(ask("/tenant", &[key, token]), 200);
    assert_eq!(ask("/tenant", &[key]), 403);
    // A wrong key beside a good token takes nothing from it.
    assert_eq!(ask("/known", &[("x-api-key", "wrong"), token]), 200);
}

#[test]
fn without_an_issuer_two_of_them_have_an_alice_each() {
    let signer = Signer::edwards("e");
    let file = Owned::new(jwks(&[&signer]));
    let text =
        config(&file.named("jwks_file")).replace("issuer = \"https://issuer.example\", ", "");
    let gateway = Gateway::start(&text);
    for issuer in ["https://one.example", "https://two.example"] {
        let mut claims = claims("alice");
        claims["iss"] = issuer.into();
        let token = signer.token(&claims);
        let found: Vec<u16> = (0..3).map(|_| ask(&gateway, "/each", &token)).collect();
        assert_eq!(found, [200, 200, 429], "{issuer}");
    }
}

#[test]
fn no_token_and_no_subject_stands_in_the_clear() {
    let valkey = Valkey::start();
    let signer = Signer::edwards("e");
    let file = Owned::new(jwks(&[&signer]));
    let mut gateway = Gateway::start(
        &(config(&file.named("jwks_file"))
            + &format!(
                "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"10s\"\nkey_secret_file = \"{}\"\n\
                 [logs]\nlevel = \"debug\"\n",
                valkey.address(),
                secret_file().display()
            )),
    );
    gateway.await_metric("tollgate_store_up", 1.0);
    let good = signer.token(&claims("alice-of-wonderland"));
    let forged = Signer::edwards("e").token(&claims("alice-of-wonderland"));
    let mut over = claims("alice-of-wonderland");
    over["exp"] = 1.into();
    let over = signer.token(&over);
    let mut told = String::new();
    for token in [&good, &good, &good, &forged, &over] {
        for target in ["/each", "/tenant", "/tier"] {
            let line = format!("Bearer {token}");
            let answer = get_with(gateway.address, target, &[("authorization", &line)]);
            if answer.status != 200 {
                told.push_str(&format!("{:?}{}", answer.headers, answer.text()));
            }
        }
    }
    for (key, value) in valkey.contents() {
        told.push_str(&key);
        told.push_str(&String::from_utf8_lossy(&value));
    }
    told.push_str(&gateway.scrape());
    assert_eq!(gateway.stop(), Some(0));
    told.push_str(&gateway.access_log());
    told.push_str(&gateway.errors());
    for token in [&good, &forged, &over] {
        for part in token.split('.') {
            assert!(!told.contains(part), "{part} in {told}");
        }
    }
    for secret in ["alice-of-wonderland", "\"t1\""] {
        assert!(!told.contains(secret), "{secret} in {told}");
    }
}
