//! A configuration that is read again: whole or not at all, and without forgetting anybody.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::thread;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::{Gateway, scratch, secret_file};
use crate::support::http::get_with;
use crate::support::valkey::Valkey;

/// One policy in front of the echo; `store` is a section of its own, or empty.
fn config(store: &str, policy: &str) -> String {
    format!(
        "{store}\n[upstreams.demo]\nbuiltin = \"echo\"\n[policies.limit]\nkey = \"ip\"\n{policy}\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"limit\"]\n"
    )
}

fn shared(valkey: &Valkey) -> String {
    format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"10s\"\nkey_secret_file = \"{}\"\n",
        valkey.address(),
        secret_file().display()
    )
}

/// How many of so many requests pass.
fn passed(gateway: &Gateway, requests: usize) -> usize {
    (0..requests)
        .filter(|_| gateway.get("/").status == 200)
        .count()
}

/// apache/apisix #8190: a new number did not take effect. nuetzliches/hookaido PR #239: a reload refilled the buckets.
#[test]
fn an_edited_limit_keeps_what_was_used_and_another_kind_starts_afresh() {
    let valkey = Valkey::start();
    for store in [String::new(), shared(&valkey)] {
        let limit = |kind: &str, limit: u64| {
            config(
                &store,
                &format!("kind = \"{kind}\"\nlimit = \"{limit}/300d\""),
            )
        };
        for kind in [
            "token-bucket",
            "fixed-window",
            "sliding-log",
            "sliding-counter",
        ] {
            redis::cmd("FLUSHALL").exec(&mut valkey.connect()).unwrap();
            let gateway = Gateway::start(&limit(kind, 10));
            gateway.await_metric("tollgate_store_up", 1.0);
            assert_eq!(passed(&gateway, 15), 10, "{kind}");
            // Denials cost nothing: ten more at once, and no more.
            assert!(gateway.reload(&limit(kind, 20)));
            assert_eq!(passed(&gateway, 15), 10, "{kind}");
            // Twenty are used: of fifteen nobody has anything left.
            assert!(gateway.reload(&limit(kind, 15)));
            assert_eq!(passed(&gateway, 5), 0, "{kind}");
            // What has nothing to do with it changes nothing.
            let unrelated = limit(kind, 15) + "[headers]\nlegacy = \"seconds\"\n";
            assert!(gateway.reload(&unrelated));
            let denied = gateway.get("/");
            assert_eq!(denied.status, 429);
            assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
            gateway.await_said("policies.limit.limit");
            gateway.await_said("(counters kept)");
        }
        let gateway = Gateway::start(&limit("token-bucket", 10));
        gateway.await_metric("tollgate_store_up", 1.0);
        passed(&gateway, 15);
        assert!(gateway.reload(&limit("leaky-bucket", 3)));
        assert_eq!(gateway.get("/").status, 200);
        gateway.await_said("(counters restart)");
    }
}

#[test]
fn a_bad_configuration_changes_nothing_and_says_so() {
    let good = config("", "kind = \"token-bucket\"\nlimit = \"10/300d\"");
    let gateway = Gateway::start(&good);
    assert_eq!(passed(&gateway, 4), 4);
    for (bad, reason) in [
        (
            good.replace("limit = ", "limti = "),
            "did you mean `limit`?",
        ),
        (
            good.replace("[\"limit\"]", "[\"limits\"]"),
            "unknown policy",
        ),
        ("this is no TOML".to_owned(), "E001"),
        (
            good.clone() + "[server]\nthreads = 7\n",
            "server.threads can change at a restart only",
        ),
        (
            good.clone() + "[listeners.other]\naddress = \"127.0.0.1:1\"\n",
            "listeners can change at a restart only",
        ),
        (
            good.clone() + "[store]\nlocal = { max_keys = 5 }\n",
            "store.local.max_keys can change at a restart only",
        ),
    ] {
        assert!(!gateway.reload(&bad), "{bad}");
        gateway.await_said(reason);
        gateway.await_metric("tollgate_config_last_reload_successful", 0.0);
    }
    assert_eq!(passed(&gateway, 10), 6);
    assert!(gateway.reload(&good));
    gateway.await_metric("tollgate_config_last_reload_successful", 1.0);
    assert_eq!(passed(&gateway, 5), 0);
}

#[test]
fn series_of_what_is_gone_go_and_those_of_what_stays_count_on() {
    let two = "[policies.gone]\nkind = \"token-bucket\"\nlimit = \"5/d\"\nkey = \"ip\"\n\
               [upstreams.gone]\nservers = [\"127.0.0.1:1\"]\n\
               [routes.gone]\nmatch = { path = \"/gone\" }\nupstream = \"gone\"\npolicies = [\"gone\"]\n";
    let one = config("", "kind = \"token-bucket\"\nlimit = \"10/300d\"");
    let gateway = Gateway::start(&(one.clone() + two));
    assert_eq!(gateway.get("/gone").status, 502);
    assert_eq!(passed(&gateway, 3), 3);
    let units = "tollgate_policy_units_total{policy=\"limit\"}";
    gateway.await_metric(units, 3.0);
    assert!(gateway.scrape().contains("=\"gone\""));
    assert!(gateway.reload(&one));
    assert!(
        !gateway.scrape().contains("=\"gone\""),
        "{}",
        gateway.scrape()
    );
    assert_eq!(gateway.get("/gone").status, 200);
    gateway.await_metric(units, 4.0);
}

/// envoyproxy/ratelimit #379: a swapped link was not noticed.
#[test]
fn a_watched_configuration_is_read_when_its_file_or_the_link_to_it_changes() {
    let limit = |count: u64| {
        config(
            "",
            &format!(
                "kind = \"fixed-window\"\nanchor = \"first-request\"\nlimit = \"{count}/300d\""
            ),
        )
    };
    let gateway = Gateway::start_with(&limit(1), &["--watch"]);
    let now_allows = |count: u64| {
        let deadline = monotonic_now() + Duration::from_secs(20);
        let policy = format!("\"limit\";q={count};w=25920000");
        while gateway.get("/").header("ratelimit-policy") != Some(&policy) {
            assert!(monotonic_now() < deadline, "{count}: {}", gateway.errors());
            thread::park_timeout(Duration::from_millis(50));
        }
    };
    // Renamed over, and at once: what changes while the gateway starts is not overlooked.
    gateway.rewrite(&limit(2));
    now_allows(2);
    // Written in place.
    let text = fs::read_to_string(gateway.file()).unwrap();
    fs::write(gateway.file(), text.replace("2/300d", "3/300d")).unwrap();
    now_allows(3);
    // As Kubernetes mounts a config map: the file is a link into a folder that is itself a link, and that is swapped.
    let folder = gateway.file().parent().unwrap().to_owned();
    let version = |name: &str, count: u64| {
        fs::create_dir(folder.join(name)).unwrap();
        let text = text.replace("2/300d", &format!("{count}/300d"));
        fs::write(folder.join(name).join("tollgate.toml"), text).unwrap();
    };
    version("v4", 4);
    version("v5", 5);
    symlink("v4", folder.join("..data")).unwrap();
    symlink("..data/tollgate.toml", folder.join("link")).unwrap();
    fs::rename(folder.join("link"), gateway.file()).unwrap();
    now_allows(4);
    symlink("v5", folder.join("..new")).unwrap();
    fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
    now_allows(5);
}

#[test]
fn a_watched_configuration_is_read_when_a_file_that_it_includes_or_names_changes() {
    let folder = scratch();
    let write = |name: &str, text: &str| {
        // Written aside and renamed over, so that none is read half written.
        fs::write(folder.join("fresh"), text).unwrap();
        fs::rename(folder.join("fresh"), folder.join(name)).unwrap();
    };
    let included = |limit: u64| {
        format!(
            "[policies.limit]\nkind = \"token-bucket\"\nkey = \"ip\"\nlimit = \"{limit}/300d\"\n"
        )
    };
    let secret = "a secret of tests, long enough";
    write("a.toml", &included(1));
    write("sorry.txt", "sorry");
    write("secret", secret);
    let gateway = Gateway::start_with(
        &format!(
            "include = [\"{0}/*.toml\"]\n[store]\nkey_secret_file = \"{0}/secret\"\n\
             [rejects.default]\nbody_file = {{ \"text/plain\" = \"{0}/sorry.txt\" }}\n\
             [upstreams.demo]\nbuiltin = \"echo\"\n\
             [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"limit\"]\n",
            folder.display()
        ),
        &["--watch"],
    );
    assert_eq!(gateway.get("/").status, 200);
    // Sooner than by what is read every half a minute all the same.
    let mut before = gateway.reloads();
    let mut noticed = |taken: bool| {
        assert_eq!(gateway.await_reload(before), taken);
        before = gateway.reloads();
    };
    write("a.toml", &included(3));
    noticed(true);
    assert_eq!(passed(&gateway, 5), 2);
    // Another file.
    write(
        "b.toml",
        "[routes.b]\nmatch = { path = \"/b\" }\nupstream = \"demo\"\n",
    );
    noticed(true);
    assert_eq!(gateway.get("/b").status, 200);
    fs::remove_file(folder.join("b.toml")).unwrap();
    noticed(true);
    assert_eq!(gateway.get("/b").status, 429);
    // What a setting names.
    write("sorry.txt", "SORRY");
    noticed(true);
    let denied = get_with(gateway.address, "/", &[("accept", "text/plain")]);
    assert_eq!(denied.text(), "SORRY");
    write("secret", "another secret of the tests");
    noticed(false);
    gateway.await_said("store.key_secret_file can change at a restart only");
    write("secret", secret);
    noticed(true);
    // A mistake is told once, not at each look.
    write("a.toml", "[policies.limit]\n");
    noticed(false);
    write("a.toml", &included(4));
    noticed(true);
    assert_eq!(gateway.reloads(), (6, 2));
    assert_eq!(passed(&gateway, 5), 1);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_file_that_changes_back_before_the_watch_has_looked_is_read_again() {
    let limit = |count: u32| {
        config(
            "",
            &format!("kind = \"token-bucket\"\nlimit = \"{count}/d\""),
        )
    };
    let in_force = "tollgate_policy_limit{policy=\"limit\",tier=\"default\"}";
    let gateway = Gateway::start_with(&limit(7), &["--watch"]);
    for round in 0..3 {
        // Read because of the signal, not because it was noticed.
        gateway.rewrite(&limit(100 + round));
        gateway.signal("-HUP");
        gateway.await_metric(in_force, f64::from(100 + round));
        gateway.rewrite(&limit(7));
        gateway.await_metric(in_force, 7.0);
    }
}

#[test]
fn a_configuration_that_names_a_pipe_is_refused_and_holds_up_nothing() {
    let good = config("", "kind = \"token-bucket\"\nlimit = \"5/d\"");
    let mut gateway = Gateway::start(&good);
    let pipe = scratch().join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()));
    // Nobody will ever write to it.
    let store = format!("[store]\nkey_secret_file = \"{}\"\n", pipe.display());
    assert!(!gateway.reload(&config(&store, "kind = \"token-bucket\"\nlimit = \"5/d\"")));
    gateway.await_said("it is not a regular file");
    assert_eq!(gateway.get("/").status, 200);
    assert!(gateway.reload(&good));
    assert_eq!(gateway.stop(), Some(0));
}
