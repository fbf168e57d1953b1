//! A Valkey that is up and answers errors, each for a reason of its own: as good as one that is down, counted by kind,
//! and over with its cause. Kong/kong #2382 was a 500 for each of them.

use std::fs;
use std::time::Duration;

use crate::support::gateway::{Gateway, free_address, scratch, secret_file};
use crate::support::valkey::Valkey;

const UP: &str = "tollgate_store_up";

fn config(valkey: &Valkey) -> String {
    let policy = |name: &str| {
        format!(
            "[policies.{name}]\nkind = \"sliding-log\"\nlimit = \"100000/d\"\nkey = \"ip\"\n\
             on_store_failure = \"{name}\"\n\
             [routes.{name}]\nmatch = {{ path = \"/{name}\" }}\nupstream = \"demo\"\npolicies = [\"{name}\"]\n"
        )
    };
    format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"2s\"\nconnect_timeout = \"3s\"\nkey_secret_file = \"{}\"\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n{}{}{}",
        valkey.address(),
        secret_file().display(),
        policy("allow"),
        policy("deny"),
        policy("local")
    )
}

fn command(connection: &mut redis::Connection, line: &str) {
    let mut parts = line.split(' ');
    let mut command = redis::cmd(parts.next().unwrap());
    parts.for_each(|part| {
        command.arg(part);
    });
    command
        .exec(connection)
        .unwrap_or_else(|error| panic!("{line}: {error}"));
}

/// The server is broken, and what that means is counted as `kind`; then it is mended.
fn fails_as(
    valkey: &Valkey,
    kind: &str,
    breaks: impl FnOnce(&mut redis::Connection),
    mends: impl FnOnce(&mut redis::Connection),
) {
    let gateway = Gateway::start(&config(valkey));
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
    let mut admin = valkey.connect();
    breaks(&mut admin);
    let series = format!("tollgate_store_errors_total{{kind=\"{kind}\"}}");
    let mut refused = 0;
    for _ in 0..200 {
        match gateway.get("/deny").status {
            503 => refused += 1,
            // It finds out soon, not at once.
            status => assert_eq!((status, refused), (200, 0)),
        }
        if refused >= 10 && gateway.metric(&series) >= 1.0 {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    assert!(refused >= 10, "{}", gateway.scrape());
    assert!(gateway.metric(&series) >= 1.0, "{}", gateway.scrape());
    for path in ["/allow", "/local"] {
        assert_eq!(gateway.get(path).status, 200, "{path}");
    }
    gateway.await_metric(UP, 0.0);
    mends(&mut admin);
    gateway.await_metric(UP, 1.0);
    for path in ["/deny", "/allow", "/local"] {
        assert_eq!(gateway.get(path).status, 200, "{path}");
    }
    assert!(!gateway.errors().contains("panicked"));
}

#[test]
fn no_memory() {
    fails_as(
        &Valkey::start(),
        "script",
        |admin| command(admin, "CONFIG SET maxmemory 1"),
        |admin| command(admin, "CONFIG SET maxmemory 0"),
    );
}

#[test]
fn too_few_replicas() {
    fails_as(
        &Valkey::start(),
        "script",
        |admin| command(admin, "CONFIG SET min-replicas-to-write 1"),
        |admin| command(admin, "CONFIG SET min-replicas-to-write 0"),
    );
}

#[test]
fn a_disk_that_cannot_be_written() {
    let folder = scratch();
    let valkey = Valkey::start_with(&[
        "--save",
        "3600 1000000",
        "--dir",
        folder.to_str().unwrap(),
        "--stop-writes-on-bgsave-error",
        "yes",
    ]);
    fails_as(
        &valkey,
        "script",
        |admin| {
            fs::remove_dir_all(&folder).unwrap();
            command(admin, "BGSAVE");
            valkey.await_reply("the save that fails", |redis| {
                let info: String = redis::cmd("INFO").arg("persistence").query(redis)?;
                Ok(info.contains("rdb_last_bgsave_status:err"))
            });
        },
        |admin| {
            command(admin, "CONFIG SET stop-writes-on-bgsave-error no");
        },
    );
}

#[test]
fn a_primary_that_steps_down() {
    let other = Valkey::start();
    fails_as(
        &Valkey::start(),
        "cluster",
        |admin| command(admin, &format!("REPLICAOF 127.0.0.1 {}", other.port)),
        |admin| command(admin, "REPLICAOF NO ONE"),
    );
}

#[test]
fn a_replica_that_lost_its_primary() {
    let nowhere = free_address();
    fails_as(
        &Valkey::start(),
        "cluster",
        |admin| {
            command(admin, "CONFIG SET replica-serve-stale-data no");
            command(admin, &format!("REPLICAOF 127.0.0.1 {}", nowhere.port()));
        },
        |admin| command(admin, "REPLICAOF NO ONE"),
    );
}

/// spring-cloud/spring-cloud-gateway #3379: the limiter was silently open.
#[test]
fn a_user_who_may_not_call_scripts() {
    fails_as(
        &Valkey::start(),
        "auth",
        |admin| command(admin, "ACL SETUSER default -evalsha"),
        |admin| command(admin, "ACL SETUSER default +evalsha"),
    );
}

#[test]
fn a_password_that_is_wanted_all_of_a_sudden() {
    fails_as(
        &Valkey::start(),
        "auth",
        |admin| {
            command(admin, "CONFIG SET requirepass secret");
            command(admin, "CLIENT KILL TYPE normal SKIPME yes");
        },
        |admin| {
            command(admin, "AUTH secret");
            command(admin, "CONFIG SET requirepass \"\"");
            // An empty one, quotes and all: none is wanted any more.
            command(admin, "ACL SETUSER default nopass");
        },
    );
}

#[test]
fn a_script_of_somebody_else_that_does_not_end() {
    let valkey = Valkey::start_with(&["--busy-reply-threshold", "1"]);
    let client = redis::Client::open(format!("redis://{}/", valkey.address())).unwrap();
    fails_as(
        &valkey,
        "script",
        |admin| {
            std::thread::spawn(move || {
                let mut connection = client.get_connection().unwrap();
                // Killed by the test; it would end by itself in some seconds all the same.
                let _: redis::RedisResult<()> = redis::cmd("EVAL")
                    .arg("local n = 0 while n < 1e10 do n = n + 1 end return n")
                    .arg(0)
                    .query(&mut connection);
            });
            let is_busy = |_: &usize| {
                std::thread::park_timeout(Duration::from_millis(10));
                let answer: redis::RedisResult<String> = redis::cmd("PING").query(admin);
                answer.is_err_and(|error| error.code() == Some("BUSY"))
            };
            assert!((0..1000).find(is_busy).is_some(), "the script does not run");
        },
        |admin| command(admin, "SCRIPT KILL"),
    );
}

#[test]
fn a_server_that_is_reading_its_data() {
    let folder = scratch();
    // Slow enough to be met while it reads: a hundredth of a second a key.
    let mut valkey = Valkey::start_with(&[
        "--dir",
        folder.to_str().unwrap(),
        "--key-load-delay",
        "10000",
        "--loading-process-events-interval-bytes",
        "1024",
    ]);
    let mut admin = valkey.connect();
    for number in 0..800 {
        command(&mut admin, &format!("SET key-{number} {}", "x".repeat(100)));
    }
    command(&mut admin, "SAVE");
    let gateway = Gateway::start(&config(&valkey));
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
    std::thread::scope(|scope| {
        scope.spawn(|| valkey.restart());
        gateway.await_said("loading the dataset");
        assert_eq!(gateway.get("/deny").status, 503);
        assert_eq!(gateway.get("/allow").status, 200);
    });
    gateway.await_metric(UP, 1.0);
    assert!(gateway.metric("tollgate_store_errors_total{kind=\"cluster\"}") >= 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
}

#[test]
fn a_user_who_may_call_scripts_and_read_nothing_in_them() {
    let valkey = Valkey::start();
    let gateway = Gateway::start(&config(&valkey));
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
    let mut admin = valkey.connect();
    command(&mut admin, "ACL SETUSER default -lrange");
    // Each call fails alone, and all of them do: then it is the server that fails.
    let left_alone = "tollgate_store_nodes{breaker=\"open\"}";
    let is_left_alone = (0..400).any(|_| {
        assert_eq!(gateway.get("/deny").status, 503);
        gateway.metric(left_alone) > 0.0
    });
    assert!(is_left_alone, "{}", gateway.scrape());
    gateway.await_said("the store gave no decision");
    assert!(gateway.metric("tollgate_store_errors_total{kind=\"auth\"}") >= 20.0);
    command(&mut admin, "ACL SETUSER default +lrange");
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/deny").status, 200);
}
