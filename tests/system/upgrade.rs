//! A newer process takes over, and nobody notices.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::{Gateway, scratch, secret_file};
use crate::support::http::Connection;
use crate::support::valkey::Valkey;

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
             [policies.limit]\nkind = \"sliding-log\"\nlimit = \"300/300d\"\nkey = \"ip\"\n\
             [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"limit\"]\n",
            valkey.address(),
            secret_file().display()
        ),
        &["--upgrade-sock", sock],
    );
    old.await_metric("tollgate_store_up", 1.0);
    // Nobody waits for the listeners yet: it goes on.
    old.signal("-QUIT");
    old.await_said("no newer process waits there");

    let stop = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let (stop, address) = (Arc::clone(&stop), old.address);
            thread::spawn(move || {
                let mut allowed = 0;
                while !stop.load(Ordering::SeqCst) {
                    let response = Connection::open(address).ask("GET", "/", &[]);
                    assert!(matches!(response.status, 200 | 429), "{response:?}");
                    allowed += usize::from(response.status == 200);
                    thread::park_timeout(Duration::from_millis(2));
                }
                allowed
            })
        })
        .collect();
    let new = old.successor(&["--upgrade-sock", sock, "--upgrade"]);
    let deadline = monotonic_now() + Duration::from_secs(20);
    while !std::path::Path::new(sock).exists() {
        assert!(monotonic_now() < deadline, "{}", new.errors());
        thread::park_timeout(Duration::from_millis(10));
    }
    old.signal("-QUIT");
    assert_eq!(old.await_exit(), Some(0), "{}", old.errors());
    for _ in 0..50 {
        assert!(matches!(new.get("/").status, 200 | 429));
    }
    stop.store(true, Ordering::SeqCst);
    let allowed: usize = clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .sum();
    assert!(allowed <= 300);
    // The new one serves, and counts on from where the old one stopped.
    new.await_metric("tollgate_store_up", 1.0);
    assert!(new.metric("tollgate_policy_units_total{policy=\"limit\"}") <= 300.0);
    let left = (0..310).filter(|_| new.get("/").status == 200).count();
    assert!(allowed + left <= 300);
    std::fs::remove_dir_all(folder).unwrap();
}
