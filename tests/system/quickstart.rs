//! What the README promises, done as it says.

use std::fs;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::{Gateway, free_address, tollgate};
use crate::support::http::{Connection, get};

/// The quickstart without its addresses: the test has its own.
fn quickstart() -> String {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/config/quickstart.toml");
    let text = fs::read_to_string(file).unwrap();
    let mut kept = String::new();
    let mut skipping = false;
    for line in text.lines() {
        if line.starts_with('[') {
            skipping = line.starts_with("[listeners.") || line.starts_with("[metrics]");
        }
        if !skipping {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}

#[test]
fn seven_requests_of_a_newcomer_give_five_and_two() {
    let gateway = Gateway::start(&quickstart());
    let responses: Vec<_> = (0..7).map(|_| gateway.get("/hello")).collect();
    let statuses: Vec<_> = responses.iter().map(|response| response.status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(responses[0].json()["path"], "/hello");
    for denied in &responses[5..] {
        assert_eq!(denied.retry_after(), Some(2));
        assert_eq!(
            denied.header("ratelimit-policy"),
            Some("\"per-client\";q=30;w=60;tollgate-burst=5")
        );
    }
}

#[test]
fn probes_answer_and_the_health_check_asks_them() {
    let mut gateway = Gateway::start(&quickstart());
    for (path, status) in [
        ("/livez", 200),
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/none", 404),
    ] {
        assert_eq!(get(gateway.metrics, path).status, status, "{path}");
    }
    let address = gateway.metrics.to_string();
    let healthy = || {
        tollgate(&["healthcheck", "--address", &address])
            .status()
            .unwrap()
            .code()
    };
    assert_eq!(healthy(), Some(0));
    assert_eq!(gateway.stop(), Some(0));
    assert_eq!(healthy(), Some(1));
}

#[test]
fn a_restart_forgives_nobody_where_usage_is_written_down() {
    let folder = crate::support::gateway::scratch();
    let config = format!(
        "{}\n[store]\nkey_secret_file = \"{}\"\nlocal = {{ snapshot = \"{}\" }}\n",
        quickstart().replace("limit = \"30/min\"", "limit = \"5/300d\""),
        crate::support::gateway::secret_file().display(),
        folder.join("usage").display()
    );
    let mut gateway = Gateway::start(&config);
    for _ in 0..3 {
        assert_eq!(gateway.get("/").status, 200);
    }
    assert_eq!(gateway.stop(), Some(0));
    let gateway = Gateway::start(&config);
    let statuses: Vec<_> = (0..3).map(|_| gateway.get("/").status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    drop(gateway);
    // One that is not ours does no harm.
    fs::write(folder.join("usage"), "junk").unwrap();
    let gateway = Gateway::start(&config);
    gateway.await_said("usage not taken over");
    assert_eq!(gateway.get("/").status, 200);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_log_that_nobody_reads_holds_up_neither_requests_nor_the_end() {
    let folder = crate::support::gateway::scratch();
    let file = folder.join("c.toml");
    let (address, metrics) = (free_address(), free_address());
    let config = format!(
        "{}\n[listeners.test]\naddress = \"{address}\"\n[metrics]\naddress = \"{metrics}\"\n[server]\ngrace_period = \"1s\"\n",
        quickstart()
            .replace("limit = \"30/min\"", "limit = \"1000000/s\"")
            .replace("burst = 5", "burst = 1000000")
    );
    fs::write(&file, config).unwrap();
    // Both are pipes that are never read: they are full after 64 KiB.
    let mut child = tollgate(&["run", "--config", file.to_str().unwrap()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = monotonic_now() + Duration::from_secs(60);
    let in_time = || assert!(monotonic_now() < deadline);
    let mut connection = loop {
        in_time();
        match Connection::try_open(address) {
            Ok(connection) => break connection,
            Err(_) => std::thread::park_timeout(Duration::from_millis(10)),
        }
    };
    for _ in 0..2000 {
        assert_eq!(connection.ask("GET", "/a", &[]).status, 200);
    }
    // A line a signal on standard error, more than the pipe takes.
    let id = child.id().to_string();
    for _ in 0..1000 {
        std::process::Command::new("kill")
            .args(["-HUP", &id])
            .status()
            .unwrap();
    }
    assert_eq!(connection.ask("GET", "/a", &[]).status, 200);
    std::process::Command::new("kill")
        .args(["-TERM", &id])
        .status()
        .unwrap();
    while child.try_wait().unwrap().is_none() {
        in_time();
        std::thread::park_timeout(Duration::from_millis(20));
    }
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn an_address_in_use_and_a_wrong_configuration_end_it_with_a_reason() {
    let gateway = Gateway::start(&quickstart());
    let folder = crate::support::gateway::scratch();
    let run = |text: String| {
        let file = folder.join("c.toml");
        fs::write(&file, text).unwrap();
        let output = tollgate(&["run", "--config", file.to_str().unwrap()])
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, said) = run(format!(
        "{}\n[listeners.main]\naddress = \"{}\"\n",
        quickstart(),
        gateway.address
    ));
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("listener `main` cannot listen on"), "{said}");
    let (code, said) = run("[policies.a]\nlimti = \"5/min\"\n".to_owned());
    assert_eq!(code, Some(78), "{said}");
    assert!(said.contains("did you mean `limit`?"), "{said}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn each_request_is_one_line_in_the_log_with_its_policy_and_decision() {
    let text = quickstart().replace("format = \"text\"", "format = \"json\"");
    let mut gateway = Gateway::start(&text);
    for _ in 0..6 {
        gateway.get("/a?secret=1");
    }
    gateway.stop();
    let log = gateway.access_log();
    let mut lines: Vec<serde_json::Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 6, "{log}");
    lines.sort_by_key(|line| line["ts"].as_str().unwrap().to_owned());
    let denied = lines
        .iter()
        .find(|line| line["decision"] == "deny")
        .unwrap();
    assert_eq!(denied["status"], 429);
    assert_eq!(denied["route"], "everything");
    assert_eq!(denied["policy"], "per-client");
    assert_eq!(denied["source"], "local");
    assert_eq!(denied["remaining"], 0);
    assert_eq!(denied["limit"], 30);
    assert_eq!(denied["retry_after_s"], 2);
    assert_eq!(denied["path"], "/a");
    assert_eq!(denied["key_hash"].as_str().unwrap().len(), 12);
    assert!(!log.contains("secret"), "{log}");
}

#[test]
fn whoever_is_accepted_is_answered_from_the_first_moment_on() {
    // So many listeners that to look whether they can be had takes a while.
    let port = free_address().port();
    let listeners: String = (1..250)
        .map(|number| format!("[listeners.z{number}]\naddress = \"127.0.9.{number}:{port}\"\n"))
        .collect();
    let mut first = Gateway::start(&format!(
        "{listeners}[upstreams.demo]\nbuiltin = \"echo\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\n"
    ));
    assert_eq!(first.stop(), Some(0));
    // Again, on the same addresses.
    let second = first.successor(&[]);
    let deadline = monotonic_now() + Duration::from_secs(40);
    let mut answered = 0;
    while answered < 20 {
        if let Ok(mut connection) = Connection::try_open(second.address) {
            assert_eq!(connection.ask("GET", "/", &[]).status, 200);
            answered += 1;
        }
        assert!(monotonic_now() < deadline, "it does not start");
    }
}
