//! A primary that dies or steps down, and sentinels that name another.

use std::fs;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::{Gateway, free_address, scratch, secret_file};
use crate::support::relay::Relay;
use crate::support::valkey::Valkey;

const UP: &str = "tollgate_store_up";

/// The first sentinel is down. Nobody is let through without the store.
fn gateway(sentinel: &Valkey, more: &str, login: &str) -> Gateway {
    Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nkey_secret_file = \"{}\"\n{more}\n\
         sentinel = {{ nodes = [\"{}\", \"{}\"], primary = \"shop\"{login} }}\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n\
         [policies.p]\nkind = \"token-bucket\"\nlimit = \"1000/30d\"\nkey = \"ip\"\non_store_failure = \"deny\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"p\"]\n",
        secret_file().display(),
        free_address(),
        sentinel.address(),
    ))
}

/// Waits until this server takes writes and decides for the gateway.
fn await_decisions(gateway: &Gateway, valkey: &Valkey) {
    let deadline = monotonic_now() + Duration::from_secs(60);
    let decided = || {
        let role: Vec<redis::Value> = redis::cmd("ROLE").query(&mut valkey.connect()).unwrap();
        let stats: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut valkey.connect())
            .unwrap();
        let is_primary = role.first() == Some(&redis::Value::BulkString(b"master".to_vec()));
        is_primary && stats.contains("cmdstat_evalsha") && gateway.get("/").status == 200
    };
    while !decided() {
        assert!(monotonic_now() < deadline, "{}", gateway.errors());
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

#[test]
fn a_primary_that_dies_is_followed_by_the_one_that_sentinels_name() {
    let mut primary = Valkey::start();
    let replica = primary.start_replica();
    let sentinel = primary.start_sentinel("shop", 1);
    let gateway = gateway(&sentinel, "", "");
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/").status, 200);
    primary.kill();
    assert_eq!(gateway.get("/").status, 503);
    await_decisions(&gateway, &replica);
    gateway.await_metric(UP, 1.0);
    for _ in 0..10 {
        assert_eq!(gateway.get("/").status, 200);
    }
}

#[test]
fn a_primary_that_steps_down_is_left_for_the_new_one_and_is_not_asked_again() {
    let primary = Valkey::start();
    let replica = primary.start_replica();
    let sentinel = primary.start_sentinel("shop", 1);
    let gateway = gateway(&sentinel, "", "");
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/").status, 200);
    sentinel.await_reply("the failover", |redis| {
        redis::cmd("SENTINEL")
            .arg(&["FAILOVER", "shop"])
            .exec(redis)?;
        Ok(true)
    });
    await_decisions(&gateway, &replica);
    primary.await_reply("the old primary follows", |redis| {
        let info: String = redis::cmd("INFO").arg("replication").query(redis)?;
        Ok(info.contains("role:slave"))
    });
    gateway.await_metric(UP, 1.0);
    redis::cmd("CONFIG")
        .arg("RESETSTAT")
        .exec(&mut primary.connect())
        .unwrap();
    for _ in 0..10 {
        assert_eq!(gateway.get("/").status, 200);
    }
    let stats: String = redis::cmd("INFO")
        .arg("errorstats")
        .query(&mut primary.connect())
        .unwrap();
    assert!(!stats.contains("READONLY"), "{stats}");
}

#[test]
fn neither_a_name_that_no_sentinel_knows_nor_a_replica_is_a_primary() {
    let primary = Valkey::start();
    let replica = primary.start_replica();
    let sentinel = primary.start_sentinel("another", 1);
    let lost = gateway(&sentinel, "", "");
    assert_eq!(lost.get("/").status, 503);
    await_complaint(&lost, "it knows no primary of that name");
    // A sentinel that has not noticed yet that the one it watches is no primary.
    let mistaken = replica.start_sentinel("shop", 0);
    let misled = gateway(&mistaken, "", "");
    await_complaint(&misled, "a sentinel names it, and it is none");
    assert_eq!(misled.get("/").status, 503);
    let url = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nkey_secret_file = \"{}\"\nurl = \"valkey://{}\"\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n\
         [policies.p]\nkind = \"token-bucket\"\nlimit = \"9/30d\"\nkey = \"ip\"\non_store_failure = \"deny\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"p\"]\n",
        secret_file().display(),
        replica.address(),
    ));
    await_complaint(&url, "read only replica");
    assert_eq!(url.get("/").status, 503);
    url.await_metric(UP, 0.0);
}

fn await_complaint(gateway: &Gateway, words: &str) {
    let deadline = monotonic_now() + Duration::from_secs(20);
    while !gateway.errors().contains(words) {
        assert!(monotonic_now() < deadline, "{}", gateway.errors());
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn the_primary_and_the_sentinels_are_each_told_who_we_are_to_them() {
    let folder = scratch();
    let file = |name: &str, secret: &str| {
        let path = folder.join(name);
        fs::write(&path, format!("{secret}\n")).unwrap();
        format!("password_file = \"{}\"", path.display())
    };
    let to_primary = file("primary", "secret-of-the-store");
    let to_sentinel = file("sentinel", "secret-of-the-sentinel");
    let primary = Valkey::start_with(&["--requirepass", "secret-of-the-store"]);
    let sentinel = primary.start_sentinel("shop", 0);
    redis::cmd("ACL")
        .arg(&["SETUSER", "default", "resetpass", ">secret-of-the-sentinel"])
        .exec(&mut sentinel.connect())
        .unwrap();
    let nobody = gateway(&sentinel, &to_primary, "");
    await_complaint(&nobody, "Authentication required");
    assert_eq!(nobody.get("/").status, 503);

    let known = gateway(&sentinel, &to_primary, &format!(", {to_sentinel}"));
    known.await_metric(UP, 1.0);
    assert_eq!(known.get("/").status, 200);
    for gateway in [nobody, known] {
        assert!(
            !gateway.errors().contains("secret-of"),
            "{}",
            gateway.errors()
        );
    }
}

#[test]
fn what_the_replica_had_heard_of_is_still_counted_after_a_failover() {
    let mut primary = Valkey::start();
    let replica = primary.start_replica();
    let sentinel = primary.start_sentinel("shop", 1);
    let gateway = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nkey_secret_file = \"{}\"\ntimeout = \"1s\"\non_failure = \"deny\"\n\
         sentinel = {{ nodes = [\"{}\"], primary = \"shop\" }}\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n\
         [policies.log]\nkind = \"sliding-log\"\nlimit = \"20/d\"\nkey = \"ip\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"log\"]\n",
        secret_file().display(),
        sentinel.address(),
    ));
    gateway.await_metric(UP, 1.0);
    for _ in 0..8 {
        assert_eq!(gateway.get("/").status, 200);
    }
    replica.await_reply("replication", |redis| {
        let keys: Vec<String> = redis::cmd("KEYS").arg("*:log:*").query(redis)?;
        let Some(key) = keys.first() else {
            return Ok(false);
        };
        let entries: usize = redis::cmd("LLEN").arg(key).query(redis)?;
        Ok(entries == 9)
    });
    primary.kill();
    // Answered as the policy says until the replica is the primary: then twelve are left, and no more.
    let deadline = monotonic_now() + Duration::from_secs(40);
    let mut passed = 0;
    loop {
        match gateway.get("/").status {
            200 => passed += 1,
            429 => break,
            status => assert_eq!(status, 503),
        }
        assert!(monotonic_now() < deadline, "{}", gateway.errors());
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert_eq!(passed, 12);
}

/// envoyproxy/ratelimit #338, #1191: connections stayed with the demoted one, and READONLY for ever.
#[test]
fn a_service_that_leads_to_another_primary_is_followed_within_the_decision_that_the_old_one_refused()
 {
    let old = Valkey::start();
    let new = Valkey::start();
    let relay = Relay::to(old.address());
    let gateway = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"5s\"\non_failure = \"deny\"\n\
         key_secret_file = \"{}\"\n[upstreams.demo]\nbuiltin = \"echo\"\n\
         [policies.log]\nkind = \"sliding-log\"\nlimit = \"1000/d\"\nkey = \"ip\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"log\"]\n",
        relay.address,
        secret_file().display()
    ));
    gateway.await_metric(UP, 1.0);
    let mut servers = [old, new];
    for round in 0..4 {
        assert_eq!(gateway.get("/").status, 200, "{round}");
        let [from, to] = &servers;
        let demoted = |redis: &mut redis::Connection| {
            redis::cmd("REPLICAOF")
                .arg(&["127.0.0.1", &to.port.to_string()])
                .exec(redis)
        };
        redis::cmd("REPLICAOF")
            .arg(&["NO", "ONE"])
            .exec(&mut to.connect())
            .unwrap();
        relay.lead_to(to.address());
        demoted(&mut from.connect()).unwrap();
        // Whether by this request or by the gateway's own look once a second that it finds out: nobody is refused.
        for _ in 0..5 {
            assert_eq!(gateway.get("/").status, 200, "{round}");
        }
        gateway.await_metric(UP, 1.0);
        servers.reverse();
    }
}
