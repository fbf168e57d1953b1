//! Commands that need neither socket nor clock, as an operator runs them.

use std::process::{Command, Output};

fn tollgate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .env_clear()
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn check_says_0_or_78() {
    let quickstart = tollgate(&["check", "--config", "config/quickstart.toml"]);
    let words = text(&quickstart.stdout);
    assert_eq!(quickstart.status.code(), Some(0), "{words}");
    assert!(
        words.contains("policy per-client: token bucket, 30 per 1 min"),
        "{words}"
    );
    assert!(
        words.ends_with("config/quickstart.toml: no errors, no warnings\n"),
        "{words}"
    );

    let bad = tollgate(&["check", "--config", "tests/config/bad/policy_twice.toml"]);
    assert_eq!(bad.status.code(), Some(78));
    let expected = std::fs::read_to_string("tests/config/bad/policy_twice.txt").unwrap();
    assert!(text(&bad.stdout).starts_with(&expected));
}

#[test]
fn check_fails_on_warnings_only_when_strict() {
    let file = "tests/config/bad/warn_unused_policy.toml";
    assert_eq!(
        tollgate(&["check", "--config", file]).status.code(),
        Some(0)
    );
    assert_eq!(
        tollgate(&["check", "--strict", "--config", file])
            .status
            .code(),
        Some(78)
    );
}

#[test]
fn check_reads_no_secret_without_io() {
    let file = "config/examples/shop.toml";
    assert_eq!(
        tollgate(&["check", "--config", file]).status.code(),
        Some(78)
    );
    assert_eq!(
        tollgate(&["check", "--no-io", "--strict", "--config", file])
            .status
            .code(),
        Some(0)
    );
}

#[test]
fn every_shipped_configuration_passes_without_a_warning() {
    let mut shipped = vec![std::path::PathBuf::from("deploy/tollgate.toml")];
    for directory in ["config", "config/examples"] {
        let entries = std::fs::read_dir(directory).unwrap();
        shipped.extend(
            entries
                .map(|entry| entry.unwrap().path())
                .filter(|path| path.extension().is_some_and(|it| it == "toml")),
        );
    }
    assert!(shipped.len() >= 4, "{shipped:?}");
    for path in shipped {
        let path = path.to_str().unwrap();
        let output = tollgate(&["check", "--no-io", "--strict", "--config", path]);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{path}: {}",
            text(&output.stdout)
        );
    }
}

#[test]
fn check_in_json_is_one_array() {
    for (file, count) in [
        ("config/quickstart.toml", 0),
        ("tests/config/bad/unknown_field.toml", 1),
    ] {
        let output = tollgate(&["check", "--json", "--config", file]);
        let list: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(list.as_array().unwrap().len(), count, "{file}");
    }
}

#[test]
fn dump_prints_what_is_in_force() {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["dump", "--config", "config/quickstart.toml"])
        .env_clear()
        .env("TOLLGATE__MODE", "shadow")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    let dumped: toml::Table = text(&output.stdout).parse().unwrap();
    assert_eq!(dumped["mode"].as_str(), Some("shadow"));
    assert_eq!(dumped["store"]["timeout"].as_str(), Some("20ms"));

    let bad = tollgate(&["dump", "--config", "tests/config/bad/unknown_field.toml"]);
    assert_eq!(bad.status.code(), Some(78));
    assert!(bad.stdout.is_empty());
    assert!(text(&bad.stderr).contains("error[E014]"));
}

#[test]
fn schema_is_json() {
    let output = tollgate(&["schema"]);
    assert_eq!(output.status.code(), Some(0));
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(schema["properties"]["policies"].is_object());
}
