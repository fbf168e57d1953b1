//! A cluster of Valkeys: every server decides for its slots, and what is all or nothing stays so across them.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::cluster::Cluster;
use crate::support::gateway::{Gateway, secret_file};
use crate::support::http::{Connection, get_with};
use crate::support::valkey::Valkey;

const UP: &str = "tollgate_store_up";

/// Generous with time: a slow machine is not a fault. Nobody passes uncounted.
fn gateway(cluster: &Cluster, policies: &str) -> Gateway {
    let gateway = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\ncluster = {}\ntimeout = \"2s\"\non_failure = \"deny\"\n\
         key_secret_file = \"{}\"\n[upstreams.demo]\nbuiltin = \"echo\"\n{policies}",
        cluster.seeds(),
        secret_file().display()
    ));
    gateway.await_metric(UP, 1.0);
    gateway
}

/// A policy of this name and kind, ten in a time that no test lives to see the end of, by the header of its name.
fn policy(name: &str, kind: &str) -> String {
    format!(
        "[policies.{name}]\nkind = \"{kind}\"\nlimit = \"10/300d\"\nkey = \"header:x-{name}\"\n\
         on_missing_key = \"deny\"\n"
    )
}

fn route(policies: &str) -> String {
    format!(
        "[routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [{policies}]\n"
    )
}

/// The names of all keys that count something, and the server that each is on.
fn keys(cluster: &Cluster) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, node) in cluster.nodes.iter().enumerate() {
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("*")
            .query(&mut node.connect())
            .unwrap();
        found.extend(keys.into_iter().map(|key| (index, key)));
    }
    found.retain(|(_, key)| !key.ends_with(":instances"));
    found
}

fn slot_of(cluster: &Cluster, key: &str) -> u16 {
    redis::cmd("CLUSTER")
        .arg(&["KEYSLOT", key])
        .query(&mut cluster.nodes[0].connect())
        .unwrap()
}

fn error_stats(node: &Valkey) -> String {
    redis::cmd("INFO")
        .arg("errorstats")
        .query(&mut node.connect())
        .unwrap()
}

#[test]
fn a_penalty_stands_where_its_usage_does_and_holds_at_every_gateway() {
    let cluster = Cluster::start(3);
    let policies = format!(
        "{}penalty = \"1h\"\n{}",
        policy("user", "sliding-log"),
        route("\"user\"")
    );
    let gateways = [gateway(&cluster, &policies), gateway(&cluster, &policies)];
    for user in 0..8 {
        let user = format!("user-{user}");
        let ask = |gateway: &Gateway| get_with(gateway.address, "/", &[("x-user", &user)]);
        let allowed = (0..10).filter(|_| ask(&gateways[0]).status == 200).count();
        assert_eq!(allowed, 10, "{user}");
        for gateway in [&gateways[0], &gateways[1]] {
            let denied = ask(gateway);
            assert_eq!(denied.status, 429, "{user}");
            let kind = denied.json()["type"].to_string();
            assert!(kind.contains("#abnormal-usage-detected"), "{user}: {kind}");
        }
    }
    let keys = keys(&cluster);
    let penalties = keys.iter().filter(|(_, key)| key.ends_with(":penalty"));
    let beside: Vec<_> = penalties
        .map(|(node, key)| (*node, key.trim_end_matches(":penalty").to_owned()))
        .collect();
    assert_eq!(beside.len(), 8, "{keys:?}");
    assert!(beside.iter().all(|usage| keys.contains(usage)), "{keys:?}");
}

#[test]
fn every_kind_counts_exactly_on_whichever_server() {
    let cluster = Cluster::start(3);
    let kinds = [
        "fixed-window",
        "sliding-log",
        "sliding-counter",
        "token-bucket",
    ];
    let policies: String = kinds.iter().map(|kind| policy(kind, kind)).collect();
    let routes: String = kinds
        .iter()
        .map(|kind| {
            format!(
                "[routes.{kind}]\nmatch = {{ path = \"/{kind}\" }}\nupstream = \"demo\"\n\
                 policies = [\"{kind}\"]\n"
            )
        })
        .collect();
    let config = format!("{policies}{routes}");
    let gateways = [gateway(&cluster, &config), gateway(&cluster, &config)];
    let ask = |caller: usize, kind: &str| {
        let mut passed = 0;
        for number in 0..14 {
            let fields = [(&*format!("x-{kind}"), &*format!("caller-{caller}"))];
            match get_with(gateways[number % 2].address, &format!("/{kind}"), &fields).status {
                200 => passed += 1,
                status => assert_eq!(status, 429, "{kind}"),
            }
        }
        assert_eq!(passed, 10, "{kind}");
    };
    thread::scope(|scope| {
        for kind in kinds {
            scope.spawn(move || (0..8).for_each(|caller| ask(caller, kind)));
        }
    });
    let on: BTreeSet<_> = keys(&cluster).into_iter().map(|(node, _)| node).collect();
    assert_eq!(on.len(), 3, "the callers are on all servers");
    for gateway in &gateways {
        gateway.await_metric("tollgate_store_nodes{breaker=\"closed\"}", 3.0);
        gateway.await_metric("tollgate_store_instances", 2.0);
    }
}

/// spring-cloud/spring-cloud-gateway #248, apache/shenyu #2808: keys of one decision were in two slots.
#[test]
fn of_three_entities_the_two_that_allow_are_not_charged_when_the_third_denies() {
    let cluster = Cluster::start(3);
    for kind in [
        "sliding-log",
        "fixed-window",
        "sliding-counter",
        "token-bucket",
    ] {
        let policies: String = ["one", "two", "three"]
            .map(|name| policy(name, kind))
            .concat();
        let gateway = gateway(
            &cluster,
            &format!("{policies}{}", route("\"one\", \"two\", \"three\"")),
        );
        let ask = |one: &str, two: &str, three: &str| {
            let fields = [("x-one", one), ("x-two", two), ("x-three", three)];
            get_with(gateway.address, "/", &fields)
        };
        // The third is used up, with others.
        for number in 0..10 {
            let (one, two) = (format!("{kind}-o{number}"), format!("{kind}-t{number}"));
            assert_eq!(ask(&one, &two, kind).status, 200, "{kind} {number}");
        }
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..8 {
                        let denied = ask("calm", "quiet", kind);
                        assert_eq!(denied.status, 429, "{kind}");
                        let names = &denied.json()["violated-policies"];
                        // While others are about to be given back, these may be short, too.
                        assert!(
                            names.as_array().unwrap().contains(&"three".into()),
                            "{kind}"
                        );
                    }
                });
            }
        });
        // None of the 64 was charged: both have all of their ten. A bucket lost what it earned meanwhile, and has
        // earned that again as soon.
        let deadline = monotonic_now() + Duration::from_secs(40);
        for number in 0..10 {
            let third = format!("{kind}-other-{number}");
            while ask("calm", "quiet", &third).status != 200 {
                assert_eq!((kind, number), ("token-bucket", 9));
                assert!(monotonic_now() < deadline, "{kind}");
                thread::park_timeout(Duration::from_millis(20));
            }
        }
        assert_eq!(ask("calm", "quiet", "another").status, 429, "{kind}");
    }
}

#[test]
fn slots_that_move_under_load_lose_no_count_and_no_request() {
    let mut cluster = Cluster::start(3);
    // Two policies of one entity: its keys are in one slot, and for a time in two places.
    let config = format!(
        "{}{}{}",
        policy("log", "sliding-log"),
        policy("bucket", "token-bucket").replace("header:x-bucket", "header:x-log"),
        route("\"log\", \"bucket\"")
    )
    .replace("10/300d", "2000/300d");
    let gateways = [gateway(&cluster, &config), gateway(&cluster, &config)];
    let callers: Vec<String> = (0..6).map(|number| format!("caller-{number}")).collect();
    for caller in &callers {
        let fields = [("x-log", &**caller)];
        assert_eq!(get_with(gateways[0].address, "/", &fields).status, 200);
    }
    let slots: BTreeSet<u16> = keys(&cluster)
        .iter()
        .map(|(_, key)| slot_of(&cluster, key))
        .collect();
    // A server that no gateway has heard of.
    cluster.add_node();

    let (done, passed) = (AtomicBool::new(false), AtomicUsize::new(callers.len()));
    thread::scope(|scope| {
        let load: Vec<_> = gateways
            .iter()
            .flat_map(|gateway| callers.iter().map(move |caller| (gateway, caller)))
            .map(|(gateway, caller)| {
                let (done, passed) = (&done, &passed);
                scope.spawn(move || {
                    let mut connection = Connection::open(gateway.address);
                    let mut asked = 0;
                    while !done.load(Ordering::Relaxed) && asked < 900 {
                        let answer = connection.ask("GET", "/", &[("x-log", caller)]);
                        assert_eq!(answer.status, 200, "{caller}: {}", answer.text());
                        passed.fetch_add(1, Ordering::Relaxed);
                        asked += 1;
                        thread::park_timeout(Duration::from_millis(5));
                    }
                })
            })
            .collect();
        for slot in &slots {
            for _ in 0..2 {
                let from = cluster.owner(*slot);
                let to = if from == 3 { 0 } else { 3 };
                cluster.move_slot(*slot, from, to, || {
                    thread::park_timeout(Duration::from_millis(60));
                });
            }
        }
        // Those of a server all at once.
        cluster.move_all_slots(1, 2);
        done.store(true, Ordering::Relaxed);
        for thread in load {
            thread.join().unwrap();
        }
    });
    // The servers sent requests on in every way there is.
    let errors: String = cluster.nodes.iter().map(error_stats).collect();
    for kind in ["MOVED", "ASK", "TRYAGAIN"] {
        assert!(errors.contains(&format!("errorstat_{kind}:")), "{errors}");
    }
    // Every one was charged, once: what is left is what was not asked for.
    let left: usize = callers
        .iter()
        .map(|caller| {
            let answer = get_with(gateways[1].address, "/", &[("x-log", caller)]);
            assert_eq!(answer.status, 200);
            let field = answer.header("ratelimit").unwrap();
            let left = |item: &str| item.split(";r=").nth(1)?.split(';').next()?.parse().ok();
            let each: Vec<usize> = field.split(", ").filter_map(left).collect();
            assert_eq!(each.len(), 2, "{field}");
            assert_eq!(each[0], each[1], "{field}");
            each[0] + 1
        })
        .sum();
    let passed = passed.load(Ordering::Relaxed);
    assert_eq!(left, callers.len() * 2000 - passed, "{passed} passed");
    for gateway in &gateways {
        assert!(gateway.metric(UP) > 0.0);
    }
}

/// A server that is left alone costs a request that is sent on to it no wait either.
#[test]
fn a_call_that_is_sent_on_to_a_server_that_is_left_alone_does_not_wait_for_it() {
    let cluster = Cluster::start(3);
    let gateway = gateway(
        &cluster,
        &format!("{}{}", policy("log", "sliding-log"), route("\"log\"")),
    );
    let ask = |caller: &str| get_with(gateway.address, "/", &[("x-log", caller)]).status;
    assert_eq!(ask("somebody"), 200);
    let slot = slot_of(&cluster, &keys(&cluster)[0].1);
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    // Its keys are said to be on the way to another server, and that one says nothing.
    cluster.begin_to_move(slot, from, to);
    redis::cmd("FLUSHALL")
        .exec(&mut cluster.nodes[from].connect())
        .unwrap();
    cluster.nodes[to].pause();
    let timeouts = || gateway.metric("tollgate_store_errors_total{kind=\"timeout\"}");
    for _ in 0..8 {
        assert_eq!(ask("somebody"), 503);
    }
    let waited = timeouts();
    for _ in 0..100 {
        assert_eq!(ask("somebody"), 503);
    }
    // Two seconds each would be told as such.
    assert!(timeouts() <= waited, "{}", gateway.scrape());
    cluster.nodes[to].resume();
}

#[test]
fn a_server_of_a_cluster_that_is_named_alone_is_told_to_be_one() {
    let cluster = Cluster::start(2);
    let gateway = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"2s\"\non_failure = \"deny\"\n\
         key_secret_file = \"{}\"\n[upstreams.demo]\nbuiltin = \"echo\"\n{}{}",
        cluster.nodes[0].address(),
        secret_file().display(),
        policy("log", "sliding-log"),
        route("\"log\"")
    ));
    gateway.await_metric(UP, 1.0);
    for number in 0..40 {
        let caller = format!("caller-{number}");
        get_with(gateway.address, "/", &[("x-log", &caller)]);
    }
    gateway.await_said("it is a server of a cluster");
}

#[test]
fn a_server_that_dies_concerns_its_own_callers_only_and_its_replica_takes_over() {
    let mut cluster = Cluster::start(3);
    cluster.add_replica(0);
    let gateway = gateway(
        &cluster,
        &format!("{}{}", policy("log", "sliding-log"), route("\"log\"")),
    );
    let ask = |caller: &str| get_with(gateway.address, "/", &[("x-log", caller)]).status;
    // Whose keys are where.
    let mut by_node: Vec<Vec<String>> = vec![Vec::new(); 4];
    for number in 0..24 {
        let caller = format!("caller-{number}");
        let before = keys(&cluster);
        assert_eq!(ask(&caller), 200);
        let new = keys(&cluster);
        let (node, _) = new
            .iter()
            .find(|key| !before.contains(key) && key.0 < 3)
            .unwrap();
        by_node[*node].push(caller);
    }
    let (mine, others) = (&by_node[0][0], [&by_node[1][0], &by_node[2][0]]);
    cluster.nodes[3].await_reply("replication", |redis| {
        let keys: usize = redis::cmd("DBSIZE").query(redis)?;
        Ok(keys >= by_node[0].len())
    });
    cluster.nodes[0].kill();
    // Denied, since the policy says so, and at once; the others do not notice.
    let deadline = monotonic_now() + Duration::from_secs(40);
    let mut failed = 0;
    let mut others_asked = 0;
    loop {
        let status = ask(mine);
        if others_asked < 9 {
            assert!(others.iter().all(|other| ask(other) == 200));
            others_asked += 1;
        }
        match status {
            200 => break,
            status => assert_eq!(status, 503),
        }
        failed += 1;
        assert!(monotonic_now() < deadline, "the replica is not found");
        thread::park_timeout(Duration::from_millis(50));
    }
    assert!(failed > 0, "the server did not die");
    gateway.await_metric(UP, 1.0);
    // What was charged before is still charged: one and one, of ten.
    let passed = (0..14).filter(|_| ask(mine) == 200).count();
    assert_eq!(passed, 8);
}

/// Effect-smol #2328: a script was loaded on one server only.
#[test]
fn scripts_that_are_flushed_on_one_server_are_loaded_again() {
    let cluster = Cluster::start(3);
    let gateway = gateway(
        &cluster,
        &format!("{}{}", policy("log", "sliding-log"), route("\"log\"")),
    );
    for number in 0..30 {
        let node = &cluster.nodes[number % 3];
        redis::cmd("SCRIPT")
            .arg("FLUSH")
            .exec(&mut node.connect())
            .unwrap();
        let caller = format!("caller-{}", number % 5);
        let answer = get_with(gateway.address, "/", &[("x-log", &caller)]);
        assert_eq!(answer.status, 200, "{number}");
    }
    assert!(gateway.metric("tollgate_store_errors_total{kind=\"script\"}") < 1.0);
}
