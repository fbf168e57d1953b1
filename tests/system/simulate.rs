//! `tollgate simulate`, as typed.

use std::fs;
use std::process::Output;

use crate::support::gateway::{scratch, tollgate};
use crate::support::traces::{Case, cases};
use crate::support::valkey::Valkey;

fn simulate(arguments: &[&str]) -> Output {
    let mut all = vec!["simulate"];
    all.extend(arguments);
    tollgate(&all).output().unwrap()
}

fn told(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The cells of the table's rows.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

#[test]
fn the_comparison_comes_out_as_measured_on_both_stores() {
    let valkey = Valkey::start();
    let url = format!("valkey://{}", valkey.address());
    for store in ["local", &url] {
        let table = told(&simulate(&["--store", store]));
        let expected = [
            [
                "10 before + 10 after a window edge",
                "20/20",
                "10/20",
                "11/20",
                "10/20",
                "10/20",
            ],
            [
                "3 per second for 60 s",
                "60/180",
                "60/180",
                "60/180",
                "69/180",
                "69/180",
            ],
            [
                "30 in one second",
                "10/30",
                "10/30",
                "10/30",
                "10/30",
                "10/30",
            ],
            [
                "most reaching the application in any 1 s of the first",
                "20",
                "10",
                "11",
                "10",
                "2",
            ],
        ];
        assert_eq!(rows(&table)[2..], expected, "{table}");
        assert!(table.contains("8.6, 8.7, 8.7 s"), "{table}");
    }
}

#[test]
fn a_race_is_lost_by_who_reads_first_and_by_nobody_else() {
    let valkey = Valkey::start();
    let url = format!("valkey://{}", valkey.address());
    let report = told(&simulate(&["--store", &url, "--race"]));
    assert!(
        report.contains("read, compare, then increment: 50 of 50 allowed"),
        "{report}"
    );
    assert_eq!(report.matches(": 10 of 50 allowed").count(), 5, "{report}");
}

#[test]
fn memory_is_as_small_as_promised() {
    let valkey = Valkey::start();
    let url = format!("valkey://{}", valkey.address());
    let report = told(&simulate(&["--store", &url, "--memory"]));
    for row in &rows(&report)[2..] {
        let (plain, ours): (u64, u64) = (row[1].parse().unwrap(), row[2].parse().unwrap());
        match row[0] {
            "sliding-log" => assert!(ours * 5 <= plain, "{row:?}"),
            "token-bucket" | "leaky-bucket" => assert!(ours <= plain, "{row:?}"),
            _ => assert!(ours * 10 <= plain * 13, "{row:?}"),
        }
    }
    told(&simulate(&["--store", &url]));
    // It takes away what it kept.
    let keys: usize = redis::cmd("DBSIZE").query(&mut valkey.connect()).unwrap();
    assert_eq!(keys, 0);
}

/// A case as a configuration and a trace.
fn written(case: &Case) -> (String, String) {
    let kind = case.algorithm.replace('_', "-");
    let burst = case
        .burst
        .map_or_else(String::new, |burst| format!("burst = {burst}\n"));
    let config = format!(
        "[upstreams.demo]\nbuiltin = \"echo\"\n[routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\n\
         policies = [\"case\"]\n[policies.case]\nkind = \"{kind}\"\nlimit = \"{}/{}ms\"\n{burst}key = \"ip\"\n",
        case.limit, case.window_ms
    );
    let mut trace = "time_ms,key,cost\n".to_owned();
    for step in &case.steps {
        trace.push_str(&format!("{},someone,{}\n", step.time_ms, step.cost));
    }
    (config, trace)
}

#[test]
fn a_configured_policy_is_replayed_as_recorded_on_both_stores() {
    let valkey = Valkey::start();
    let url = format!("valkey://{}", valkey.address());
    let folder = scratch();
    let (config_file, trace_file) = (folder.join("c.toml"), folder.join("t.csv"));
    // One case a kind through files and arguments; all of them are replayed elsewhere.
    let recorded = cases();
    let mut kinds: Vec<&str> = Vec::new();
    for case in &recorded {
        if kinds.contains(&case.algorithm.as_str()) || !case.title.starts_with("random 1") {
            continue;
        }
        kinds.push(&case.algorithm);
        let (config, trace) = written(case);
        fs::write(&config_file, config).unwrap();
        fs::write(&trace_file, trace).unwrap();
        for store in ["local", &url] {
            let report = told(&simulate(&[
                "--config",
                config_file.to_str().unwrap(),
                "--policy",
                "case",
                "--trace",
                trace_file.to_str().unwrap(),
                "--store",
                store,
                "--json",
            ]));
            assert_eq!(report.lines().count(), case.steps.len());
            for (line, step) in report.lines().zip(&case.steps) {
                let row: serde_json::Value = serde_json::from_str(line).unwrap();
                assert_eq!(row["time_ms"], step.time_ms);
                assert_eq!(row["key"], "someone");
                assert_eq!(row["cost"], step.cost);
                assert_eq!(row["allowed"], step.allowed, "{} {line}", case.title);
                assert_eq!(row["remaining"], step.remaining, "{} {line}", case.title);
                assert_eq!(
                    row["retry_after_ms"],
                    serde_json::json!(step.retry_after_ms),
                    "{} {line}",
                    case.title
                );
                assert_eq!(
                    row["reset_after_ms"], step.reset_after_ms,
                    "{} {line}",
                    case.title
                );
                assert_eq!(row["delay_ms"], step.delay_ms, "{} {line}", case.title);
            }
        }
    }
    assert_eq!(kinds.len(), 5, "{kinds:?}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_cannot_be_replayed_says_why() {
    let folder = scratch();
    let config = folder.join("c.toml");
    fs::write(
        &config,
        "[upstreams.demo]\nbuiltin = \"echo\"\n[policies.a]\nkind = \"token-bucket\"\nlimit = \"1/s\"\nkey = \"ip\"\n\
         [policies.slots]\nkind = \"concurrency\"\nlimit = 1\nkey = \"ip\"\n\
         [routes.all]\nmatch = { path = \"/*\" }\nupstream = \"demo\"\npolicies = [\"a\", \"slots\"]\n",
    )
    .unwrap();
    let config = config.to_str().unwrap();
    let trace = |text: &str| {
        let file = folder.join("t.csv");
        fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let replay = |policy: &str, trace: &str| {
        let output = simulate(&["--config", config, "--policy", policy, "--trace", trace]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(replay("b", "edge").contains("no policy `b`"));
    assert!(replay("slots", "edge").contains("it counts what is in flight"));
    assert!(replay("a", "nowhere.csv").contains("nowhere.csv"));
    assert!(replay("a", &trace("time,key,cost\n")).contains("write `time_ms,key,cost`"));
    assert!(replay("a", &trace("time_ms,key,cost\n1,k,-1\n")).contains(":2: cost is `-1`"));
    assert!(replay("a", &trace("time_ms,key,cost\n1,k\n")).contains(":2: 2 fields"));
    assert!(
        replay("a", &trace("time_ms,key,cost\n99999999999999999999,k,1\n")).contains("time_ms")
    );
    let no_store = simulate(&["--race"]);
    assert!(String::from_utf8_lossy(&no_store.stderr).contains("--store valkey://"));
    let dead = simulate(&["--store", "valkey://127.0.0.1:1"]);
    assert_eq!(dead.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&dead.stderr).contains("127.0.0.1:1"));
    fs::remove_dir_all(&folder).unwrap();
}
