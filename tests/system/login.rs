//! A password that changes while the gateway runs.

use std::fs;

use crate::support::gateway::{Gateway, scratch, secret_file};
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
