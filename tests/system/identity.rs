//! Who calls, as far as it is proven: the holder of an API key. What proves nothing is nobody, and stands nowhere.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Stdio;

use tollgate::client::api_key::KeyHash;

use crate::support::gateway::{Gateway, scratch, secret_file, tollgate};
use crate::support::http::{Connection, get_with};
use crate::support::valkey::Valkey;

const ACME: &str = "acme-5b1f0c6a97d84e21";
const ACME_NEXT: &str = "acme-next-0d7c2f9184ab";
const GLOBEX: &str = "globex-77f1e0b3c2d95a48";

/// The file of keys of a test, in a folder of its own.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(text: &str) -> Self {
        let file = Self(scratch().join("api-keys.toml"));
        file.write(text);
        file
    }

    /// Puts another in its place, at once.
    fn write(&self, text: &str) {
        let fresh = self.0.with_extension("fresh");
        fs::write(&fresh, text).unwrap();
        fs::rename(fresh, &self.0).unwrap();
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(self.0.parent().unwrap());
    }
}

fn hash(key: &str) -> String {
    KeyHash::of(key.as_bytes()).to_hex()
}

/// An entry of the file of keys.
fn entry(name: &str, key: &str) -> String {
    format!("[keys.{name}]\nsha256 = \"{}\"\n", hash(key))
}

/// A gateway with two calls an hour for each identity, and one for each address without.
fn gateway(keys: &KeyFile, sent_in: &str) -> Gateway {
    Gateway::start(&config(keys, sent_in))
}

fn config(keys: &KeyFile, sent_in: &str) -> String {
    format!(
        r#"
[identity]
api_key = {{ {sent_in}, file = "{}" }}
[upstreams.demo]
builtin = "echo"
[policies.by-identity]
kind = "fixed-window"
limit = "2/h"
key = "identity"
[policies.by-ip]
kind = "fixed-window"
limit = "1/h"
key = "ip"
[policies.known]
kind = "fixed-window"
limit = "1000/h"
key = "identity"
on_missing_key = "deny"
[policies.by-tier]
kind = "fixed-window"
limit = "3/h"
key = "tier"
on_missing_key = "deny"
[routes.all]
match = {{ path = "/*" }}
upstream = "demo"
policies = [{{ first_of = ["by-identity", "by-ip"] }}]
[routes.known]
match = {{ path = "/known" }}
upstream = "demo"
policies = ["known"]
[routes.tier]
match = {{ path = "/tier" }}
upstream = "demo"
policies = ["by-tier"]
"#,
        keys.0.display()
    )
}

fn statuses(gateway: &Gateway, target: &str, field: (&str, &str), count: usize) -> Vec<u16> {
    (0..count)
        .map(|_| get_with(gateway.address, target, &[field]).status)
        .collect()
}

fn seen(gateway: &Gateway, result: &str) -> f64 {
    gateway.metric(&format!(
        "tollgate_identity_total{{kind=\"api_key\",result=\"{result}\"}}"
    ))
}

#[test]
fn each_holder_of_a_key_is_counted_apart_and_who_has_none_by_address() {
    let keys = KeyFile::new(&(entry("acme", ACME) + &entry("globex", GLOBEX)));
    let gateway = gateway(&keys, "header = \"x-api-key\"");
    assert_eq!(
        statuses(&gateway, "/", ("x-api-key", ACME), 3),
        [200, 200, 429]
    );
    assert_eq!(
        statuses(&gateway, "/", ("x-api-key", GLOBEX), 3),
        [200, 200, 429]
    );
    // A key that nobody holds is no identity, and a new one each time no new counter.
    let forged = |n: usize| {
        get_with(
            gateway.address,
            "/",
            &[("x-api-key", &format!("minted-{n}"))],
        )
    };
    let forged: Vec<u16> = (0..3).map(|n| forged(n).status).collect();
    assert_eq!(forged, [200, 429, 429]);
    assert_eq!(gateway.get("/").status, 429);
    assert!((seen(&gateway, "ok") - 6.0).abs() < f64::EPSILON);
    assert!((seen(&gateway, "invalid") - 3.0).abs() < f64::EPSILON);
    assert!((seen(&gateway, "absent") - 1.0).abs() < f64::EPSILON);
    gateway.await_metric("tollgate_identity_keys{kind=\"api_key\"}", 2.0);
}

/// hyperdxio/hyperdx #2775: many spellings of one credential had a bucket each.
#[test]
fn a_key_is_the_same_however_the_field_around_it_is_spelt() {
    let keys = KeyFile::new(&entry("acme", ACME));
    let gateway = gateway(&keys, "header = \"authorization\"");
    let spelt = [
        "Bearer K",
        "bearer K",
        "BEARER   K",
        "Bearer\tK",
        "K",
        "  K  ",
    ];
    let spelt = spelt.map(|line| line.replace('K', ACME));
    let found: Vec<u16> = spelt
        .iter()
        .map(|line| statuses(&gateway, "/", ("authorization", line), 1)[0])
        .collect();
    assert_eq!(found, [200, 200, 429, 429, 429, 429]);
    // Another scheme's, or junk before it: nobody's key.
    for line in ["Basic K", "x Bearer K", "Bearer K x", "BearerK"] {
        let line = line.replace('K', ACME);
        assert_eq!(
            statuses(&gateway, "/known", ("authorization", &line), 1),
            [403],
            "{line}"
        );
    }
}

#[test]
fn keys_that_are_wrong_malformed_or_doubled_are_no_identity() {
    let keys = KeyFile::new(&entry("acme", ACME));
    let gateway = gateway(&keys, "header = \"x-api-key\"");
    let long = ACME.repeat(500);
    for wrong in [
        "",
        "x",
        &ACME[1..],
        &ACME[..ACME.len() - 1],
        &ACME.to_uppercase(),
        &format!("{ACME}0"),
        &format!("{ACME} {ACME}"),
        &hash(ACME),
        &long,
        "\u{00e9}\u{20ac}",
    ] {
        assert_eq!(
            statuses(&gateway, "/known", ("x-api-key", wrong), 1),
            [403],
            "{wrong}"
        );
    }
    let ask = |fields: &[(&str, &str)]| get_with(gateway.address, "/known", fields).status;
    assert_eq!(ask(&[("x-api-key", ACME), ("X-Api-Key", ACME)]), 200);
    assert_eq!(ask(&[("x-api-key", ACME), ("x-api-key", "other")]), 403);
    assert_eq!(ask(&[("x-api-key", "other"), ("x-api-key", ACME)]), 403);
    // Bytes that are no text.
    let mut connection = Connection::open(gateway.address);
    connection
        .send(b"GET /known HTTP/1.1\r\nHost: a\r\nX-Api-Key: \xff\xfe\x80\r\n\r\n")
        .unwrap();
    assert_eq!(connection.receive(false).unwrap().status, 403);
    assert_eq!(ask(&[("x-api-key", ACME)]), 200);
}

#[test]
fn keys_are_read_from_a_cookie_or_the_query() {
    let keys = KeyFile::new(&entry("acme", ACME));
    let by_cookie = gateway(&keys, "cookie = \"key\"");
    let cookie = format!("a=1; key={ACME}; b=2");
    assert_eq!(
        statuses(&by_cookie, "/known", ("cookie", &cookie), 1),
        [200]
    );
    assert_eq!(
        statuses(&by_cookie, "/known", ("x-api-key", ACME), 1),
        [403]
    );
    let by_query = gateway(&keys, "query = \"key\"");
    let target = format!("/known?key={}&x=1", ACME.replace('-', "%2d"));
    assert_eq!(by_query.get(&target).status, 200);
    assert_eq!(by_query.get(&format!("{target}&key=other")).status, 403);
}

#[test]
fn a_changed_file_of_keys_is_in_force_by_itself_and_a_broken_one_is_not() {
    let keys = KeyFile::new(&entry("acme", ACME));
    let gateway = gateway(&keys, "header = \"x-api-key\"");
    let known = |key: &str| statuses(&gateway, "/known", ("x-api-key", key), 1)[0];
    let reads = |result: &str| {
        format!("tollgate_identity_key_reads_total{{kind=\"api_key\",result=\"{result}\"}}")
    };
    assert_eq!((known(ACME), known(GLOBEX)), (200, 403));

    // A key on its way out, beside the one that takes its place.
    let both = format!(
        "[keys.acme]\nsha256 = [\"{}\", \"{}\"]\n",
        hash(ACME),
        hash(ACME_NEXT)
    );
    keys.write(&(both + &entry("globex", GLOBEX)));
    gateway.await_metric(&reads("success"), 1.0);
    assert_eq!([ACME, ACME_NEXT, GLOBEX].map(known), [200; 3]);
    gateway.await_metric("tollgate_identity_keys{kind=\"api_key\"}", 3.0);
    // One holder, whichever key.
    assert_eq!(statuses(&gateway, "/", ("x-api-key", ACME), 1), [200]);
    assert_eq!(
        statuses(&gateway, "/", ("x-api-key", ACME_NEXT), 2),
        [200, 429]
    );

    keys.write(&format!("[keys.acme]\nsha256 = \"{ACME}\"\n"));
    gateway.await_metric(&reads("failure"), 1.0);
    assert_eq!([ACME, ACME_NEXT, GLOBEX].map(known), [200; 3]);
    let said = gateway.await_said("API keys not taken");
    assert!(said.contains("E114"), "{said}");
    assert!(said.contains("api-keys.toml:2:10"), "{said}");
    assert!(!said.contains(ACME), "{said}");

    fs::remove_file(&keys.0).unwrap();
    gateway.await_metric(&reads("failure"), 2.0);
    assert_eq!(known(ACME), 200);

    keys.write(&entry("acme", ACME_NEXT));
    gateway.await_metric(&reads("success"), 2.0);
    assert_eq!([ACME, ACME_NEXT, GLOBEX].map(known), [403, 200, 403]);
    // The configuration as a whole was not read again.
    assert_eq!(gateway.reloads(), (0, 0));
}

#[test]
fn a_reload_reads_the_keys_too_and_takes_none_where_they_are_broken() {
    let keys = KeyFile::new(&entry("acme", ACME));
    let gateway = gateway(&keys, "header = \"x-api-key\"");
    let known = |field: &str, key: &str| statuses(&gateway, "/known", (field, key), 1)[0];
    let others = KeyFile::new(&entry("globex", GLOBEX));
    assert!(gateway.reload(&config(&others, "header = \"x-key\"")));
    assert_eq!(known("x-api-key", ACME), 403);
    assert_eq!(known("x-key", GLOBEX), 200);
    assert_eq!(known("x-key", ACME), 403);
    let broken = KeyFile::new("[keys.acme]\n");
    assert!(!gateway.reload(&config(&broken, "header = \"x-key\"")));
    assert_eq!(known("x-key", GLOBEX), 200);
}

#[test]
fn a_link_to_the_keys_may_be_swapped() {
    let keys = KeyFile::new(&entry("acme", ACME));
    let folder = keys.0.parent().unwrap();
    // As Kubernetes does it: the file is a link through a folder that is one.
    for (version, text) in [("v1", entry("acme", ACME)), ("v2", entry("globex", GLOBEX))] {
        fs::create_dir(folder.join(version)).unwrap();
        fs::write(folder.join(version).join("api-keys.toml"), text).unwrap();
    }
    fs::remove_file(&keys.0).unwrap();
    std::os::unix::fs::symlink("v1", folder.join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/api-keys.toml", &keys.0).unwrap();
    let gateway = gateway(&keys, "header = \"x-api-key\"");
    let known = |key: &str| statuses(&gateway, "/known", ("x-api-key", key), 1)[0];
    assert_eq!((known(ACME), known(GLOBEX)), (200, 403));
    std::os::unix::fs::symlink("v2", folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
    gateway.await_metric(
        "tollgate_identity_key_reads_total{kind=\"api_key\",result=\"success\"}",
        1.0,
    );
    assert_eq!((known(ACME), known(GLOBEX)), (403, 200));
}

#[test]
fn a_tier_is_the_keys_or_what_a_trusted_proxy_says() {
    let keys = KeyFile::new(&(entry("acme", ACME) + "tier = \"pro\"\n" + &entry("globex", GLOBEX)));
    let text = |trusted: &str| {
        config(&keys, "header = \"x-api-key\"").replace(
            "[upstreams.demo]",
            &format!(
                "tier_header = \"x-tier\"\n[client_ip]\ntrusted_proxies = [\"{trusted}\"]\n[upstreams.demo]"
            ),
        )
    };
    let tier = |gateway: &Gateway, fields: &[(&str, &str)]| {
        get_with(gateway.address, "/tier", fields).status
    };
    let gateway = Gateway::start(&text("127.0.0.0/8"));
    // Three of each plan: the key's own goes before what the proxy says.
    assert_eq!(tier(&gateway, &[("x-api-key", ACME)]), 200);
    assert_eq!(
        tier(&gateway, &[("x-api-key", ACME), ("x-tier", "free")]),
        200
    );
    assert_eq!(tier(&gateway, &[("x-tier", "pro")]), 200);
    assert_eq!(tier(&gateway, &[("x-tier", "pro")]), 429);
    assert_eq!(
        tier(&gateway, &[("x-api-key", GLOBEX), ("x-tier", "free")]),
        200
    );
    for no_tier in ["", "Free", "a b", &"a".repeat(49)] {
        assert_eq!(tier(&gateway, &[("x-tier", no_tier)]), 403, "{no_tier}");
    }
    assert_eq!(
        tier(&gateway, &[("x-tier", "pro"), ("x-tier", "free")]),
        403
    );

    let gateway = Gateway::start(&text("192.0.2.0/24"));
    assert_eq!(tier(&gateway, &[("x-tier", "pro")]), 403);
}

#[test]
fn the_tier_of_an_untrusted_peer_does_not_reach_the_upstream() {
    let origin = crate::support::origin::Origin::start();
    let text = |trusted: &str| {
        format!(
            r#"
identity.tier_header = "x-tier"
client_ip.trusted_proxies = ["{trusted}"]
[upstreams.app]
servers = ["{}"]
[routes.all]
match = {{ path = "/*" }}
upstream = "app"
"#,
            origin.address
        )
    };
    for (trusted, arrives) in [("127.0.0.0/8", true), ("192.0.2.0/24", false)] {
        let gateway = Gateway::start(&text(trusted));
        let sent = [("X-Tier", "pro"), ("x_tier", "pro")];
        assert_eq!(get_with(gateway.address, "/", &sent).status, 200);
        let seen = origin.take();
        assert_eq!(
            seen[0].lines("x-tier"),
            if arrives { &["pro"][..] } else { &[] }
        );
        assert!(seen[0].lines("x_tier").is_empty(), "{seen:?}");
    }
}

#[test]
fn no_key_stands_in_the_clear() {
    let valkey = Valkey::start();
    let keys = KeyFile::new(&(entry("acme", ACME) + "tier = \"pro\"\n"));
    let mut gateway = Gateway::start(
        &(config(&keys, "header = \"x-api-key\"")
            + &format!(
                "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"10s\"\nkey_secret_file = \"{}\"\n\
                 [logs]\nlevel = \"debug\"\n",
                valkey.address(),
                secret_file().display()
            )),
    );
    gateway.await_metric("tollgate_store_up", 1.0);
    let mut told = String::new();
    for key in [ACME, ACME, ACME, GLOBEX, GLOBEX] {
        for target in ["/", "/tier"] {
            let answer = get_with(gateway.address, target, &[("x-api-key", key)]);
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
    let log = gateway.access_log();
    assert!(log.contains("\"tier\":\"pro\""), "{log}");
    told.push_str(&log);
    told.push_str(&gateway.errors());
    for secret in [
        ACME,
        GLOBEX,
        &hash(ACME),
        &hash(ACME)[..16],
        "acme",
        "globex",
    ] {
        assert!(!told.contains(secret), "{secret} in {told}");
    }
}

/// What the command prints, given this on standard input.
fn hash_key(arguments: &[&str], input: &str) -> (Option<i32>, String, String) {
    let mut child = tollgate(&["hash-key"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may not read what it does not want.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn hash_key_prints_what_the_file_of_keys_says() {
    let line = format!("sha256 = \"{}\"\n", hash(ACME));
    for input in [
        ACME.to_owned(),
        format!("{ACME}\n"),
        format!("  {ACME} \r\nmore\n"),
    ] {
        let (code, printed, said) = hash_key(&[], &input);
        assert_eq!(
            (code, printed.as_str(), said.as_str()),
            (Some(0), &*line, "")
        );
    }
    let (code, printed, _) = hash_key(&["--name", "acme"], ACME);
    assert_eq!((code, printed), (Some(0), format!("[keys.acme]\n{line}")));

    // What it makes works, and is another each time.
    let (code, printed, _) = hash_key(&["--generate", "--name", "acme"], "");
    assert_eq!(code, Some(0));
    let made = printed.lines().next().unwrap();
    let key = made.rsplit(' ').next().unwrap();
    assert!(key.len() >= 32, "{printed}");
    assert_ne!(hash_key(&["--generate", "--name", "acme"], "").1, printed);
    let keys = KeyFile::new(&printed);
    let gateway = gateway(&keys, "header = \"x-api-key\"");
    assert_eq!(statuses(&gateway, "/known", ("x-api-key", key), 1), [200]);

    let (code, printed, said) = hash_key(&[], "short\n");
    assert_eq!((code, printed.lines().count()), (Some(0), 1));
    assert!(said.contains("can be guessed"), "{said}");
    for unfit in [
        "",
        "\n",
        "two words of a key\n",
        "sch\u{00f6}ner-langer-schl\u{00fc}ssel\n",
    ] {
        let (code, printed, said) = hash_key(&[], unfit);
        assert_eq!((code, printed.as_str()), (Some(1), ""), "{unfit}");
        assert!(said.starts_with("error: "), "{said}");
        assert!(
            unfit.trim().is_empty() || !said.contains(unfit.trim()),
            "{said}"
        );
    }
    let (code, _, said) = hash_key(&["--name", "Not A Name"], ACME);
    assert_eq!(code, Some(1));
    assert!(said.contains("cannot be a name"), "{said}");
}
