//! The admin API and `tollgate reload`: who may use them, and what they tell.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::process::Output;
use std::time::Duration;

use serde_json::json;

use crate::support::gateway::{ADMIN, Gateway, free_address, scratch, tollgate};
use crate::support::http::{Connection, Response};

const TOKEN: &str = "0123456789abcdef-a-token";

/// A policy of so many requests; `more` is the end of `[admin]`.
fn config(limit: u64, more: &str) -> String {
    format!(
        "[admin]\naddress = \"{ADMIN}\"\n{more}\n[upstreams.demo]\nbuiltin = \"echo\"\n\
         [policies.limit]\nkey = \"ip\"\nkind = \"token-bucket\"\nlimit = \"{limit}/300d\"\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"limit\"]\n"
    )
}

fn post(gateway: &Gateway, fields: &[(&str, &str)]) -> Response {
    let host = gateway.admin.to_string();
    let mut all = vec![("content-length", "0")];
    if !fields.iter().any(|(name, _)| *name == "host") {
        all.push(("host", &host));
    }
    all.extend(fields);
    Connection::open(gateway.admin).ask("POST", "/v1/reload", &all)
}

fn words(output: &Output) -> (Option<i32>, String) {
    let both = [&*output.stdout, &*output.stderr].concat();
    (output.status.code(), String::from_utf8(both).unwrap())
}

#[test]
fn the_command_tells_what_changed_or_what_is_wrong() {
    let gateway = Gateway::start(&config(10, ""));
    gateway.rewrite(&config(20, ""));
    let change = "~ policies.limit.limit   \"10/300d\" -> \"20/300d\"   (counters kept)";
    let at = gateway.admin;
    assert_eq!(
        words(&gateway.command_reload(&[])),
        (
            Some(0),
            format!("{change}\n{at}: configuration taken, 1 change\n")
        )
    );
    gateway.await_said("policies.limit.limit");
    assert_eq!(gateway.reloads(), (1, 0));
    // Nothing new.
    let (code, told) = words(&gateway.command_reload(&[]));
    assert_eq!(
        (code, &*told),
        (
            Some(0),
            &*format!("{at}: configuration taken, no changes\n")
        )
    );
    // Wrong, and told in the very words of `check`.
    for bad in [
        config(20, "").replace("limit = \"20", "limti = \"20"),
        format!("this is no TOML\n{}", config(20, "")),
        config(20, "") + "[routes.other]\nmatch = { path = \"/other\" }\nupstream = \"none\"\n",
    ] {
        gateway.rewrite(&bad);
        let (code, told) = words(&gateway.command_reload(&[]));
        assert_eq!(code, Some(78), "{told}");
        let checked = tollgate(&["check", "--config"])
            .arg(gateway.file())
            .output()
            .unwrap();
        let (_, checked) = words(&checked);
        let diagnostics = &checked[..checked.rfind(&*gateway.file().to_string_lossy()).unwrap()];
        let end = format!("{at}: configuration not taken: the one before stays in force\n");
        assert_eq!(told, format!("{diagnostics}{end}"));
        assert!(told.contains("error[E"), "{told}");
    }
    // Right, and not to be changed while it runs.
    for (fixed, what) in [
        (config(20, "") + "[server]\nthreads = 7\n", "server.threads"),
        (
            config(20, "").replace(ADMIN, &free_address().to_string()),
            "admin.address, or whether it wants a token",
        ),
    ] {
        gateway.rewrite(&fixed);
        let (code, told) = words(&gateway.command_reload(&["--address", &at.to_string()]));
        assert_eq!(code, Some(78), "{told}");
        assert!(
            told.contains(&format!("not taken: {what} can change at a restart only")),
            "{told}"
        );
    }
    assert_eq!(gateway.reloads(), (2, 5));
    // All the while it serves by the one before.
    let field = gateway.get("/");
    assert_eq!(
        field.header("ratelimit-policy"),
        Some("\"limit\";q=20;w=25920000")
    );
}

#[test]
fn the_api_answers_in_json() {
    let gateway = Gateway::start(&config(10, ""));
    gateway.rewrite(&config(20, ""));
    let taken = post(&gateway, &[]);
    assert_eq!(taken.status, 200);
    assert_eq!(taken.header("content-type"), Some("application/json"));
    assert_eq!(
        taken.json(),
        json!({
            "result": "taken",
            "changes": ["~ policies.limit.limit   \"10/300d\" -> \"20/300d\"   (counters kept)"],
            "diagnostics": [],
            "text": "",
        })
    );
    // A warning does not keep it from being taken.
    let unused = "[policies.unused]\nkey = \"ip\"\nkind = \"token-bucket\"\nlimit = \"1/d\"\n";
    gateway.rewrite(&(config(20, "") + unused));
    let taken = post(&gateway, &[]).json();
    assert_eq!(taken["result"], "taken");
    assert_eq!(taken["diagnostics"][0]["code"], "W203");
    gateway.rewrite(&config(20, "").replace("limit = \"20", "limti = \"20"));
    let refused = post(&gateway, &[]);
    assert_eq!(refused.status, 422);
    let refused = refused.json();
    assert_eq!(refused["result"], "refused");
    assert_eq!(refused["reason"], "the one before stays in force");
    let checked = tollgate(&["check", "--json", "--config"])
        .arg(gateway.file())
        .output()
        .unwrap();
    let checked: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(refused["diagnostics"], checked);
    assert!(
        refused["text"]
            .as_str()
            .unwrap()
            .starts_with("error[E014]: unknown field `limti`")
    );
}

#[test]
fn no_page_and_no_other_path_or_method_changes_anything() {
    let gateway = Gateway::start(&config(10, ""));
    let port = gateway.admin.port();
    for (fields, status) in [
        (
            &[("origin", "http://localhost"), ("host", "localhost")] as &[_],
            403,
        ),
        (&[("origin", "null")], 403),
        (&[("host", "evil.example")], 403),
        (&[("host", &*format!("evil.example:{port}"))], 403),
        (&[("host", "localhost"), ("host", "evil.example")], 400),
        (&[("host", &*format!("localhost:{port}"))], 200),
        (&[("host", "[::1]")], 200),
    ] {
        let response = post(&gateway, fields);
        assert_eq!(response.status, status, "{fields:?}: {response:?}");
        if status == 403 {
            assert_eq!(
                response.header("content-type"),
                Some("application/problem+json")
            );
            assert_eq!(response.json()["status"], 403);
        }
    }
    assert_eq!(gateway.reloads(), (2, 0));
    let host = [("host", "localhost")];
    for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
        let response = Connection::open(gateway.admin).ask(method, "/v1/reload", &host);
        assert_eq!(response.status, 405, "{method}");
        assert_eq!(response.header("allow"), Some("POST"), "{method}");
    }
    for path in ["/", "/v1", "/v1/reload/", "/V1/RELOAD", "/metrics"] {
        let response = Connection::open(gateway.admin).ask("GET", path, &host);
        assert_eq!(response.status, 404, "{path}");
    }
    assert_eq!(gateway.reloads(), (2, 0));
    // Neither does the listener of the requests, nor that of the metrics, know the path.
    let on_metrics = Connection::open(gateway.metrics).ask("POST", "/v1/reload", &host);
    assert_eq!(on_metrics.status, 405);
}

#[test]
fn what_drags_on_is_cut_off() {
    let gateway = Gateway::start(&config(10, ""));
    let mut large = Connection::open(gateway.admin);
    let head = "POST /v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n";
    large.send(head).unwrap();
    // It may have closed before the end.
    let _ = large.send("x".repeat(200_000));
    assert!(large.receive(false).map_or(413, |answer| answer.status) == 413);
    let mut stalled: Vec<_> = ["", "POST /v1/reload HTTP/1.1\r\nHost: local", head]
        .into_iter()
        .map(|bytes| {
            let mut connection = Connection::open(gateway.admin);
            connection.send(bytes).unwrap();
            connection
        })
        .collect();
    // One that is honest is served all the same.
    assert_eq!(post(&gateway, &[]).status, 200);
    for connection in &mut stalled {
        assert!(connection.is_closed_within(Duration::from_secs(18)));
    }
    assert_eq!(gateway.reloads(), (1, 0));
}

#[test]
fn with_a_token_nobody_else_may_and_another_one_follows_at_a_reload() {
    let folder = scratch();
    let file = folder.join("token");
    fs::write(&file, format!("{TOKEN}\n")).unwrap();
    let more = format!("token_file = \"{}\"", file.display());
    let gateway = Gateway::start(&config(10, &more));
    let right = format!("Bearer {TOKEN}");
    for (fields, status) in [
        (&[] as &[_], 401),
        (&[("authorization", "Bearer 0123456789abcdef-a-tokem")], 401),
        (&[("authorization", TOKEN)], 401),
        (&[("authorization", &*right), ("origin", "null")], 403),
        (
            &[("authorization", &*right), ("host", "gateway.example")],
            200,
        ),
    ] {
        let response = post(&gateway, fields);
        assert_eq!(response.status, status, "{fields:?}: {response:?}");
        let challenge = (status == 401).then_some("Bearer realm=\"tollgate\"");
        assert_eq!(response.header("www-authenticate"), challenge);
    }
    assert_eq!(gateway.reloads(), (1, 0));
    // The command finds the token as it finds the address.
    assert_eq!(gateway.command_reload(&[]).status.code(), Some(0));
    let other = folder.join("other");
    fs::write(&other, "another-token-of-some-length").unwrap();
    let with_other = ["--token-file", other.to_str().unwrap()];
    let (code, told) = words(&gateway.command_reload(&with_other));
    assert_eq!(code, Some(1), "{told}");
    assert!(told.contains("401 Unauthorized"), "{told}");
    assert!(!told.contains("another-token"), "{told}");
    // Another token is in force once the configuration is read again, by who knows the old one.
    fs::rename(&other, &file).unwrap();
    assert_eq!(post(&gateway, &[("authorization", &*right)]).status, 200);
    assert_eq!(post(&gateway, &[("authorization", &*right)]).status, 401);
    assert_eq!(gateway.command_reload(&[]).status.code(), Some(0));
    assert!(!gateway.errors().contains(TOKEN));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_command_says_why_nobody_could_be_asked() {
    let folder = scratch();
    let file = folder.join("tollgate.toml");
    let ask = |text: &str, arguments: &[&str]| {
        fs::write(&file, text).unwrap();
        let output = tollgate(&["reload", "--config"])
            .arg(&file)
            .args(arguments)
            .output()
            .unwrap();
        words(&output)
    };
    let (code, told) = ask("", &[]);
    assert_eq!(code, Some(1));
    assert!(told.contains("has no [admin] table"), "{told}");
    let nobody = free_address();
    let (code, told) = ask(&format!("[admin]\naddress = \"{nobody}\"\n"), &[]);
    assert_eq!(code, Some(1));
    assert!(told.contains(&format!("error: {nobody}: ")), "{told}");
    // Somebody who does not answer.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let (code, told) = ask("", &["--address", &address, "--timeout-ms", "300"]);
    assert_eq!(code, Some(1));
    assert!(
        told.contains(&format!("error: {address}: timed out")),
        "{told}"
    );
    // Somebody else.
    let gateway = Gateway::start(&config(10, ""));
    let metrics = gateway.metrics.to_string();
    let (code, told) = ask("", &["--address", &metrics]);
    assert_eq!(code, Some(1));
    assert!(told.contains("answered: HTTP/1.1 405"), "{told}");
    let (code, _) = ask("", &["--nonsense"]);
    assert_eq!(code, Some(2));
    fs::remove_dir_all(folder).unwrap();
}
