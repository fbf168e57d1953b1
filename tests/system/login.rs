//! A password that changes while the gateway runs.

use std::fs;

use crate::support::crowd::{at_once, count};
use crate::support::gateway::{Gateway, scratch, secret_file, tollgate};
use crate::support::valkey::Valkey;

const UP: &str = "tollgate_store_up";

#[test]
fn a_new_password_is_taken_by_a_reload_and_used_by_the_next_connection() {
    let valkey = Valkey::start_with(&["--requirepass", "the-old-one"]);
    let file = scratch().join("password");
    fs::write(&file, "the-old-one\n").unwrap();
    let config = |timeout: &str| {
        format!(
            "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\npassword_file = \"{}\"\n\
             timeout = \"{timeout}\"\non_failure = \"deny\"\nkey_secret_file = \"{}\"\n\
             [upstreams.demo]\nbuiltin = \"echo\"\n\
             [policies.log]\nkind = \"sliding-log\"\nlimit = \"1000/d\"\nkey = \"ip\"\n\
             [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"log\"]\n",
            valkey.address(),
            file.display(),
            secret_file().display()
        )
    };
    let gateway = Gateway::start(&config("1s"));
    gateway.await_metric(UP, 1.0);
    let admin = |command: &[&str], password: &str| {
        let url = format!("redis://:{password}@{}/", valkey.address());
        let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
        redis::cmd(command[0])
            .arg(&command[1..])
            .exec(&mut connection)
            .unwrap();
    };
    admin(
        &["CONFIG", "SET", "requirepass", "the-new-one"],
        "the-old-one",
    );
    fs::write(&file, "the-new-one\n").unwrap();
    assert!(gateway.reload(&config("2s")), "{}", gateway.errors());
    // The connection that there is goes on.
    assert_eq!(gateway.get("/").status, 200);
    admin(
        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
        "the-new-one",
    );
    gateway.await_said("connection to the store given up");
    gateway.await_metric(UP, 1.0);
    assert_eq!(gateway.get("/").status, 200);
    assert!(!gateway.errors().contains("the-new-one"));
}

#[test]
fn the_permissions_that_the_readme_gives_are_enough() {
    let valkey = Valkey::start();
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let line = readme
        .lines()
        .find(|line| line.starts_with("ACL SETUSER tollgate"))
        .unwrap();
    let mut words = line.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        command.arg(word);
    });
    command.exec(&mut valkey.connect()).unwrap();
    let file = scratch().join("password");
    fs::write(&file, "PASSWORD").unwrap();
    let kinds = [
        "fixed-window",
        "sliding-log",
        "sliding-counter",
        "token-bucket",
        "leaky-bucket",
        "concurrency",
    ];
    let policies: String = kinds
        .iter()
        .map(|kind| {
            let limit = match *kind {
                "concurrency" => "1000",
                _ => "\"1000/s\"",
            };
            format!(
                "[policies.{kind}]\nkind = \"{kind}\"\nlimit = {limit}\nkey = \"ip\"\n\
                 [routes.{kind}]\nmatch = {{ path = \"/{kind}\" }}\nupstream = \"demo\"\npolicies = [\"{kind}\", \"queue\"]\n"
            )
        })
        .collect();
    let mut gateway = Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://{}/0\"\nusername = \"tollgate\"\npassword_file = \"{}\"\n\
         timeout = \"5s\"\non_failure = \"deny\"\nkey_secret_file = \"{}\"\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n{policies}\
         [policies.queue]\nkind = \"leaky-bucket\"\nlimit = \"500/s\"\nburst = 2\nkey = \"ip\"\nstore = \"local\"\n",
        valkey.address(),
        file.display(),
        secret_file().display()
    ));
    gateway.await_metric(UP, 1.0);
    for kind in kinds {
        // Windows that slide have something to let go; queues that are full have something given back.
        let path = format!("/{kind}");
        let answers = at_once(&[gateway.address], 12, &path);
        assert!(count(&answers, 200) >= 1, "{kind}");
        assert_eq!(count(&answers, 200) + count(&answers, 429), 12, "{kind}");
    }
    gateway.await_metric("tollgate_store_instances", 1.0);
    for (command, more) in [
        ("grant", &["--limit", "2000/s", "--for", "1h"] as &[&str]),
        ("inspect", &[]),
        ("grant", &["--remove"]),
        ("reset", &[]),
    ] {
        let mut command = tollgate(&[command, "--config"]);
        command.arg(gateway.file());
        command.args(["--policy", "fixed-window", "--key", "ip=127.0.0.1"]);
        let output = command.args(more).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(gateway.stop(), Some(0));
    let list: usize = redis::cmd("EXISTS")
        .arg("tollgate:instances")
        .query(&mut valkey.connect())
        .unwrap();
    assert_eq!(list, 0);
    let said = gateway.errors();
    assert!(
        !said.contains("NOPERM") && !said.contains("NoPerm"),
        "{said}"
    );
    assert!(!said.contains("no decision"), "{said}");
}
