//! A newer process takes over, and nobody notices.

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::{Gateway, scratch, secret_file};
use crate::support::load::{Habit, Load};
use crate::support::valkey::Valkey;

const LIMIT: usize = 1_000_000;

#[test]
fn an_upgrade_under_load_fails_no_request_and_loses_no_usage() {
    let valkey = Valkey::start();
    let folder = scratch();
    let sock = folder.join("upgrade.sock");
    let sock = sock.to_str().unwrap();
    let mut old = Gateway::start_with(
        &format!(
            "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"10s\"\nkey_secret_file = \"{}\"\n\
             [upstreams.demo]\nbuiltin = \"echo\"\n\
             [policies.limit]\nkind = \"fixed-window\"\nanchor = \"first-request\"\nlimit = \"{LIMIT}/300d\"\nkey = \"ip\"\n\
             [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"limit\"]\n",
            valkey.address(),
            secret_file().display()
        ),
        &["--upgrade-sock", sock],
    );
    old.await_metric("tollgate_store_up", 1.0);
    // Nobody waits for the listeners yet: it goes on.
    let nobody = "no newer process waits there";
    old.signal("-QUIT");
    old.await_said(nobody);
    // Nor does a file that is left of one that was killed.
    drop(UnixListener::bind(sock).unwrap());
    old.signal("-QUIT");
    let deadline = monotonic_now() + Duration::from_secs(20);
    while old.errors().matches(nobody).count() < 2 {
        assert!(monotonic_now() < deadline, "{}", old.errors());
        thread::park_timeout(Duration::from_millis(10));
    }

    let busy = [Habit::Keep, Habit::Fresh];
    let busy = Load::start(&[old.address], &busy, 6, Duration::from_millis(5));
    let seldom = Load::start(
        &[old.address],
        &[Habit::Keep],
        4,
        Duration::from_millis(1_300),
    );
    fs::remove_file(sock).unwrap();
    let new = old.successor(&["--upgrade-sock", sock, "--upgrade"]);
    let deadline = monotonic_now() + Duration::from_secs(20);
    while !Path::new(sock).exists() {
        assert!(monotonic_now() < deadline, "{}", new.errors());
        thread::park_timeout(Duration::from_millis(10));
    }
    old.signal("-QUIT");
    assert_eq!(old.await_exit(), Some(0), "{}", old.errors());
    let by_old = old.access_log().lines().count();
    // The newer one serves all of them, for a while.
    let before = new.metric("tollgate_policy_units_total{policy=\"limit\"}");
    let deadline = monotonic_now() + Duration::from_secs(20);
    while new.metric("tollgate_policy_units_total{policy=\"limit\"}") < before + 500.0 {
        assert!(monotonic_now() < deadline, "{}", new.errors());
        thread::park_timeout(Duration::from_millis(20));
    }
    let allowed = busy.end().0 + seldom.end().0;
    assert!(by_old > 0 && by_old < allowed, "{by_old} of {allowed}");
    // Both counted at one place, each request once: one more is all that is added.
    new.await_metric("tollgate_store_up", 1.0);
    let last = new.get("/");
    let left = LIMIT - allowed - 1;
    let field = last.header("ratelimit").unwrap();
    assert!(
        field.starts_with(&format!("\"limit\";r={left};")),
        "{field} after {allowed}"
    );
    fs::remove_dir_all(folder).unwrap();
}
