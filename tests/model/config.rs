//! Configurations: what is refused, in which words; what is accepted, and what it means.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use serde_json::Value;
use tollgate::check::{Demand, KeySource, Mode, OnStoreFailure, Price, Scope};
use tollgate::client::{Header, Trust};
use tollgate::config::error::{Code, Severity};
use tollgate::config::{
    Action, Config, LoadOptions, Loaded, StoreKind, Target, dump, load, load_text, schema, summary,
};
use tollgate::decide::{Cost, Rule};
use tollgate::shed::{Priority, Settings};

/// A configuration in which `{}` stands for more.
const AROUND: &str = r#"
[upstreams.app]
servers = ["127.0.0.1:9000"]

[policies.p]
kind = "token-bucket"
limit = "10/s"
key = "ip"

[routes.r]
match = { path = "/*" }
upstream = "app"
policies = ["p"]
"#;

fn options(env: &[(&str, &str)]) -> LoadOptions {
    LoadOptions {
        io: true,
        env: env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
    }
}

fn read(text: &str) -> Loaded {
    load_text(Path::new("tollgate.toml"), text, &options(&[]))
}

fn rendered(loaded: &Loaded) -> String {
    let texts: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
    texts.join("\n")
}

fn accepted(text: &str) -> Config {
    let loaded = read(text);
    let rendered = rendered(&loaded);
    loaded.config.unwrap_or_else(|| panic!("{rendered}"))
}

fn with_policy(fields: &str) -> String {
    AROUND.replace(
        "kind = \"token-bucket\"\nlimit = \"10/s\"\nkey = \"ip\"\n",
        fields,
    )
}

fn codes(loaded: &Loaded) -> Vec<Code> {
    loaded
        .diagnostics
        .iter()
        .map(|diagnostic| diagnostic.code)
        .collect()
}

fn fixtures() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir("tests/config/bad")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .collect();
    found.sort();
    found
}

#[test]
fn every_mistake_is_told_in_the_expected_words() {
    let update = std::env::var_os("UPDATE_EXPECTED").is_some();
    let mut differing = String::new();
    for path in fixtures() {
        let found = rendered(&load(&path, &options(&[])));
        let beside = path.with_extension("txt");
        if update {
            fs::write(&beside, &found).unwrap();
        }
        let expected = fs::read_to_string(&beside).unwrap_or_default();
        if found != expected {
            let _ = writeln!(
                differing,
                "== {}\n-- expected\n{expected}-- found\n{found}",
                path.display()
            );
        }
    }
    assert!(differing.is_empty(), "{differing}");
}

#[test]
fn every_code_has_a_fixture() {
    let mut seen = BTreeSet::new();
    for path in fixtures() {
        let loaded = load(&path, &options(&[]));
        let warnings_only = path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("warn_");
        assert_eq!(loaded.config.is_some(), warnings_only, "{}", path.display());
        assert!(!loaded.diagnostics.is_empty(), "{}", path.display());
        seen.extend(codes(&loaded));
    }
    let missing: Vec<&Code> = Code::ALL
        .iter()
        .filter(|code| !seen.contains(code))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_fixture_holds_one_mistake() {
    for path in fixtures() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        // Those whose one mistake has two sides, or that are about several.
        if [
            "many",
            "syntax_password",
            "included_settings",
            "unknown_policy_in_first_of",
        ]
        .contains(&name.as_str())
        {
            continue;
        }
        let loaded = load(&path, &options(&[]));
        assert_eq!(
            loaded.diagnostics.len(),
            1,
            "{name}:\n{}",
            rendered(&loaded)
        );
    }
}

#[test]
fn no_secret_is_ever_shown() {
    for path in fixtures() {
        let loaded = load(&path, &options(&[]));
        let json: String = loaded
            .diagnostics
            .iter()
            .map(|d| d.to_json().to_string())
            .collect();
        let shown = format!("{}{json}{:?}", rendered(&loaded), loaded.config);
        assert!(!shown.contains("hunter2"), "{}:\n{shown}", path.display());
    }
}

#[test]
fn no_secret_is_shown_wherever_it_stands() {
    let valkey = |url: &str| format!("[store]\nkind = \"valkey\"\nurl = {url}\ntiemout = \"1s\"\n");
    for text in [
        valkey("\"valkey://u:hunter2/x@h\""),
        valkey("\"valkey://u:hunter2 x@h\""),
        valkey("\"u:hunter2@h\""),
        valkey("\"\"\"\nvalkey://u:hunter2@h:x\"\"\""),
        valkey("'valkeys://u:x\"hunter2@h'"),
        "store = { kind = \"valkey\", url = \"valkey://u:hunter2@h:x\", tiemout = \"1s\" }"
            .to_owned(),
        "store = { password = \"hunter2\", tiemout = \"1s\" }".to_owned(),
        "store = { password = \"hunter2\", tiemout = \"1s\"".to_owned(),
        "[store]\npassword = \"hunter2\nkind = 5".to_owned(),
        "[store]\npassword = \"\"\"\nhunter2 \\q".to_owned(),
        format!("{AROUND}add_header = {{ x-api-key = \"hunter2\" }}"),
        format!("{AROUND}add_header = {{ x-other = \"hunter2\" }}"),
        format!("{AROUND}add_headers = {{ x-other = \"hunter2\" }}\nadd_headers = 1"),
        format!("{AROUND}add_headers = {{ x-other = [\"hunter2\"] }}"),
        format!("{AROUND}add_headers = \"hunter2\""),
    ] {
        let loaded = read(&text);
        assert!(loaded.has_errors(), "{text}");
        let shown = format!("{}{loaded:?}", rendered(&loaded));
        assert!(!shown.contains("hunter2"), "{text}\n{shown}");
    }
}

#[test]
fn a_mistake_in_json_has_the_fields_that_tools_read() {
    let loaded = load(
        Path::new("tests/config/bad/unknown_field.toml"),
        &options(&[]),
    );
    let json = loaded.diagnostics[0].to_json();
    assert_eq!(json["code"], "E014");
    assert_eq!(json["severity"], "error");
    assert_eq!(json["file"], "tests/config/bad/unknown_field.toml");
    assert_eq!(
        (&json["line"], &json["column"]),
        (&Value::from(7), &Value::from(1))
    );
    assert_eq!(json["message"], "unknown field `limti` in policy `p`");
    let help = json["help"].as_str().unwrap();
    assert!(
        help.starts_with("did you mean `limit`? allowed here: kind, limit, "),
        "{help}"
    );
}

#[test]
fn a_file_that_is_not_there_is_told() {
    let loaded = load(Path::new("no/such/file.toml"), &options(&[]));
    assert_eq!(codes(&loaded), [Code::E051]);
    let words = rendered(&loaded);
    assert!(words.contains("no/such/file.toml"), "{words}");
    assert!(words.contains("--config FILE"), "{words}");
}

#[test]
fn every_example_loads() {
    for path in ["config/tollgate.toml", "config/quickstart.toml"] {
        let loaded = load(Path::new(path), &options(&[]));
        assert!(
            loaded.config.is_some() && loaded.diagnostics.is_empty(),
            "{path}:\n{}",
            rendered(&loaded)
        );
    }
}

#[test]
fn the_quickstart_with_valkey_shares_limits() {
    let text = fs::read_to_string("config/quickstart.toml").unwrap();
    let (before, block) = text.split_once("# [store]\n").unwrap();
    let (block, after) = block.split_once("\n\n").unwrap();
    let block: Vec<&str> = block
        .lines()
        .map(|line| line.strip_prefix("# ").unwrap_or(line))
        .collect();
    let text = format!("{before}[store]\n{}\n\n{after}", block.join("\n"));
    let without_files = LoadOptions {
        io: false,
        ..options(&[])
    };
    let loaded = load_text(Path::new("quickstart.toml"), &text, &without_files);
    assert!(loaded.diagnostics.is_empty(), "{}", rendered(&loaded));
    let config = loaded.config.unwrap();
    assert!(matches!(config.store.kind, StoreKind::Valkey(_)));
}

#[test]
fn a_password_from_the_environment_is_not_in_the_file() {
    let around = |url: &str| {
        format!(
            "[store]\nkind = \"valkey\"\nurl = {url}\nkey_secret_file = \"key_secret\"\n{AROUND}"
        )
    };
    let env = [("URL", "valkey://u:hunter2@h"), ("PASSWORD", "hunter2")];
    let without_files = LoadOptions {
        io: false,
        ..options(&env)
    };
    for (url, expected) in [
        ("\"${URL}\"", vec![]),
        ("\"valkey://u:${PASSWORD}@h\"", vec![]),
        ("\"valkey://u@h\"", vec![]),
        ("\"valkey://:hunter2@h\"", vec![Code::W213]),
    ] {
        let loaded = load_text(Path::new("t.toml"), &around(url), &without_files);
        assert_eq!(codes(&loaded), expected, "{url}");
    }
}

#[test]
fn a_url_from_the_environment_needs_valkey_too() {
    let env = options(&[("TOLLGATE__STORE__URL", "valkey://h")]);
    let loaded = load_text(Path::new("t.toml"), AROUND, &env);
    assert_eq!(codes(&loaded), [Code::E030]);
}

#[test]
fn an_upstream_that_is_a_listener_is_told() {
    for (listener, server, loops) in [
        ("127.0.0.1:9000", "127.0.0.1:9000", true),
        ("127.0.0.1:9000", "localhost:9000", true),
        ("0.0.0.0:9000", "127.0.0.1:9000", true),
        ("0.0.0.0:9000", "LOCALHOST:9000", true),
        ("0.0.0.0:9000", "0.0.0.0:9000", true),
        ("[::]:9000", "127.0.0.1:9000", true),
        ("[::1]:9000", "[::1]:9000", true),
        ("10.0.0.1:9000", "10.0.0.1:9000", true),
        ("0.0.0.0:9000", "127.0.0.1:9001", false),
        ("0.0.0.0:9000", "[::1]:9000", false),
        ("0.0.0.0:9000", "10.0.0.1:9000", false),
        ("0.0.0.0:9000", "app:9000", false),
        ("10.0.0.1:9000", "localhost:9000", false),
        ("10.0.0.1:9000", "127.0.0.1:9000", false),
    ] {
        let text = format!("[listeners.main]\naddress = \"{listener}\"\n{AROUND}");
        let loaded = read(&text.replace(
            "servers = [\"127.0.0.1:9000\"]",
            &format!("servers = [\"{server}\"]"),
        ));
        let expected = if loops { vec![Code::W212] } else { vec![] };
        assert_eq!(codes(&loaded), expected, "{listener} {server}");
    }
}

#[test]
fn a_colon_that_is_escaped_is_meant() {
    for (path, expected) in [
        ("/x/:id", vec![Code::W210]),
        ("/x/:a/:b", vec![Code::W210, Code::W210]),
        ("/x/<id>", vec![Code::W210]),
        ("/x/%3Aid", vec![]),
        ("/x/%3Cint%3Aid%3E", vec![]),
        ("/x/a:id", vec![]),
        ("/x/:", vec![]),
        ("/x/{id}", vec![]),
    ] {
        let loaded = read(&AROUND.replace("/*", path));
        assert_eq!(codes(&loaded), expected, "{path}");
    }
}

/// envoyproxy/envoy #40430: of two limits on a route one can be such that it never bites, and nobody was told.
#[test]
fn a_policy_that_never_denies_is_found() {
    let text = |one: &str, other: &str, policies: &str| {
        format!(
            "[upstreams.a]\nservers = [\"127.0.0.1:9000\"]\n[policies.one]\nkey = \"ip\"\n{one}\n\
             [policies.other]\nkey = \"ip\"\n{other}\n[routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"a\"\n\
             policies = [{policies}]\n"
        )
    };
    let kind = |kind: &str, limit: &str| format!("kind = \"{kind}\"\nlimit = \"{limit}\"");
    let both = "\"one\", \"other\"";
    for (one, other, policies, found) in [
        (
            kind("sliding-log", "5/min"),
            kind("token-bucket", "100/min"),
            both,
            Some("other"),
        ),
        (
            kind("sliding-log", "5/min"),
            kind("sliding-log", "5/min"),
            both,
            Some("other"),
        ),
        (
            kind("sliding-log", "5/min"),
            kind("sliding-log", "300/h"),
            both,
            Some("other"),
        ),
        (
            kind("sliding-log", "5/min"),
            kind("sliding-log", "299/h"),
            both,
            None,
        ),
        (
            kind("fixed-window", "10/min"),
            kind("fixed-window", "5/min"),
            both,
            Some("one"),
        ),
        (
            kind("fixed-window", "9/min"),
            kind("fixed-window", "5/min"),
            both,
            None,
        ),
        (
            kind("token-bucket", "5/min"),
            kind("sliding-log", "10/min"),
            both,
            Some("other"),
        ),
        (
            kind("token-bucket", "5/min"),
            kind("sliding-log", "9/min"),
            both,
            None,
        ),
        (
            kind("token-bucket", "5/min"),
            kind("token-bucket", "5/s") + "\nburst = 4",
            both,
            None,
        ),
        (
            kind("token-bucket", "5/min"),
            kind("token-bucket", "4/min") + "\nburst = 9",
            both,
            None,
        ),
        (
            kind("sliding-log", "5/min"),
            kind("leaky-bucket", "100/min"),
            both,
            None,
        ),
        (
            kind("sliding-log", "5/min") + "\nmode = \"shadow\"",
            kind("sliding-log", "9/min"),
            both,
            None,
        ),
        (
            kind("sliding-log", "5/min"),
            kind("sliding-log", "9/min"),
            "\"one\", { use = \"other\", cost = 2 }",
            None,
        ),
        (
            kind("sliding-log", "5/min"),
            kind("sliding-log", "9/min"),
            "{ first_of = [\"one\"] }, \"other\"",
            None,
        ),
    ] {
        let loaded = read(&text(&one, &other, policies));
        let warned: Vec<_> = loaded
            .diagnostics
            .iter()
            .filter(|diagnostic| diagnostic.code == Code::W215)
            .map(|diagnostic| diagnostic.message.split('`').nth(1).unwrap().to_owned())
            .collect();
        assert_eq!(
            warned,
            Vec::from_iter(found),
            "{one} / {other} / {policies}"
        );
    }
    // On another route it stands alone.
    let alone = "[routes.s]\nmatch = { path = \"/s\" }\nupstream = \"a\"\npolicies = [\"other\"]\n";
    let text = text(
        &kind("sliding-log", "5/min"),
        &kind("sliding-log", "9/min"),
        both,
    ) + alone;
    assert!(read(&text).diagnostics.is_empty());
}

#[test]
fn a_policy_without_the_parameter_guards_a_route_with_it() {
    let by_id =
        "[policies.by-id]\nkind = \"token-bucket\"\nlimit = \"1/s\"\nkey = [\"ip\", \"path:id\"]\n";
    let text = |policies: &str| {
        AROUND
            .replace("/*", "/x/{id}")
            .replace("policies = [\"p\"]", policies)
            + by_id
    };
    let loaded = read(&text("policies = [\"p\", \"by-id\"]"));
    assert_eq!(codes(&loaded), []);
    let loaded = read(&text("policies = [{ first_of = [\"by-id\", \"p\"] }]"));
    assert_eq!(codes(&loaded), [Code::W208]);
    assert!(rendered(&loaded).contains("beside `first_of`"));
}

#[test]
fn what_belongs_to_a_later_release_is_told_as_such() {
    for (table, key) in [
        ("[listeners.x]\naddress = \"127.0.0.1:1\"\n", "h2"),
        (
            "[listeners.x]\naddress = \"127.0.0.1:1\"\n",
            "proxy_protocol",
        ),
        ("[upstreams.x]\nbuiltin = \"echo\"\n", "h2"),
        ("[store]\n", "pool"),
        ("", "tracing"),
        (
            "[routes.x]\nmatch = { path = \"/x\" }\nrespond = {}\n",
            "cors",
        ),
    ] {
        // What stands first in a file is of the top level.
        let loaded = read(&if table.is_empty() {
            format!("{key} = {{}}\n{AROUND}")
        } else {
            format!("{AROUND}\n{table}{key} = {{}}\n")
        });
        assert_eq!(codes(&loaded), [Code::E014], "{key}");
        let help = loaded.diagnostics[0].help.clone().unwrap();
        assert_eq!(help, format!("`{key}` is not part of this release"));
    }
}

#[test]
fn nothing_at_all_is_a_configuration() {
    let config = accepted("");
    assert_eq!(config.listeners.len(), 1);
    assert_eq!(
        config.listeners[0].address,
        "127.0.0.1:8080".parse().unwrap()
    );
    assert_eq!(config.server.grace_period, Duration::from_secs(25));
    assert_eq!(config.server.max_waiting, 10_000);
    assert!(matches!(config.store.kind, StoreKind::Local));
    assert!(config.metrics.is_none());
    assert!(config.admin.is_none());
    assert_eq!(config.rejects.len(), 1);
    assert_eq!(config.rejects[0].status, 429);
    assert_eq!(config.headers.retry_after_jitter_percent, 10);
}

#[test]
fn the_reference_means_the_defaults() {
    let reference = load(Path::new("config/tollgate.toml"), &options(&[]))
        .config
        .unwrap();
    let defaults = accepted("");
    let debug = |config: &Config| {
        format!(
            "{:?}{:?}{:?}{:?}{:?}{:?}",
            config.server,
            config.listeners,
            config.client_ip,
            config.store,
            config.headers,
            config.logs
        )
    };
    assert_eq!(debug(&reference), debug(&defaults));
    let upstream = &reference.upstreams[0];
    assert_eq!(upstream.timeouts.connect, Duration::from_secs(1));
    assert!(matches!(&upstream.target, Target::Servers(servers) if servers.len() == 2));
}

#[test]
fn the_reference_says_every_field_with_its_default_and_nothing_else() {
    let text = fs::read_to_string("config/tollgate.toml").unwrap();
    let mut documented = BTreeSet::new();
    let mut table = String::new();
    for line in text.lines() {
        let line = line.trim_start_matches("# ");
        if let Some(header) = line
            .strip_prefix('[')
            .and_then(|rest| rest.split(']').next())
        {
            table = header.split('.').next().unwrap().to_owned();
        } else if let Some((key, _)) = line.split_once(" = ")
            && key
                .chars()
                .all(|c| c.is_ascii_lowercase() || "._0123456789".contains(c))
        {
            documented.insert(if table.is_empty() {
                key.to_owned()
            } else {
                format!("{table}.{key}")
            });
        }
    }
    let mut known = BTreeSet::new();
    for (key, schema) in schema()["properties"].as_object().unwrap() {
        // A map of names is documented by one of them.
        let below = if schema["additionalProperties"].is_object() {
            &schema["additionalProperties"]["properties"]
        } else {
            &schema["properties"]
        };
        let Some(fields) = below.as_object() else {
            known.insert(key.clone());
            continue;
        };
        for (field, schema) in fields {
            match schema["properties"].as_object() {
                Some(inner) => {
                    known.extend(inner.keys().map(|inner| format!("{key}.{field}.{inner}")));
                }
                None => {
                    known.insert(format!("{key}.{field}"));
                }
            }
        }
    }
    // One route writes its match in one go.
    documented.remove("routes.match");
    assert_eq!(documented, known);
}

/// Whether `value` is what `schema` says; as much of draft-07 as the schema uses.
fn conforms(value: &Value, schema: &Value, at: &str) -> Result<(), String> {
    if let Some(options) = schema["anyOf"].as_array() {
        let failures: Vec<String> = options
            .iter()
            .filter_map(|option| conforms(value, option, at).err())
            .collect();
        if failures.len() == options.len() {
            return Err(failures.join(" | "));
        }
    }
    if schema["pattern"] == "\\$\\{" && !value.as_str().is_some_and(|text| text.contains("${")) {
        return Err(format!("{at}: {value} holds no variable"));
    }
    if let Some(kind) = schema["type"].as_str() {
        let fits = match kind {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_i64(),
            "boolean" => value.is_boolean(),
            other => panic!("unknown type {other}"),
        };
        if !fits {
            return Err(format!("{at}: {value} is no {kind}"));
        }
    }
    if let Some(words) = schema["enum"].as_array()
        && !words.contains(value)
    {
        return Err(format!("{at}: {value} is none of {words:?}"));
    }
    if let Some(constant) = schema.get("const")
        && constant != value
    {
        return Err(format!("{at}: {value} is not {constant}"));
    }
    if let Some(number) = value.as_i64() {
        let (min, max) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
        if min.is_some_and(|min| number < min) || max.is_some_and(|max| number > max) {
            return Err(format!("{at}: {number} is out of bounds"));
        }
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        if value.get(required.as_str().unwrap()).is_none() {
            return Err(format!("{at}: lacks {required}"));
        }
    }
    for (key, inner) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{key}");
        match (
            schema["properties"].get(key),
            &schema["additionalProperties"],
        ) {
            (Some(field), _) => conforms(inner, field, &at)?,
            (None, Value::Bool(false)) => return Err(format!("{at}: unknown")),
            (None, Value::Null) => {}
            (None, other) => conforms(inner, other, &at)?,
        }
    }
    if let Some(item) = schema.get("items") {
        for (position, inner) in value.as_array().into_iter().flatten().enumerate() {
            conforms(inner, item, &format!("{at}[{position}]"))?;
        }
    }
    Ok(())
}

#[test]
fn the_schema_accepts_every_example_and_refuses_unknown_fields() {
    let schema = schema();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    let json = |path: &str| -> Value {
        let table: toml::Table = fs::read_to_string(path).unwrap().parse().unwrap();
        serde_json::to_value(table).unwrap()
    };
    for path in [
        "config/tollgate.toml",
        "config/quickstart.toml",
        "config/examples/shop.toml",
        "config/examples/plans.toml",
        "config/examples/llm.toml",
        "config/examples/third-party-quota.toml",
    ] {
        assert_eq!(conforms(&json(path), &schema, path), Ok(()));
    }
    for name in [
        "unknown_field",
        "unknown_table",
        "missing_kind",
        "unknown_kind",
        "burst_zero",
        "wrong_type",
    ] {
        let path = format!("tests/config/bad/{name}.toml");
        assert!(conforms(&json(&path), &schema, name).is_err(), "{name}");
    }
}

#[test]
fn rates_are_counts_over_windows() {
    for (rate, count, window_ms) in [
        ("100/min", 100, 60_000),
        ("100/m", 100, 60_000),
        ("10/s", 10, 1_000),
        ("5/15m", 5, 900_000),
        ("100_000/d", 100_000, 86_400_000),
        ("3/5min", 3, 300_000),
        ("1/366d", 1, 31_622_400_000),
        ("1/1ms", 1, 1),
        ("2/250ms", 2, 250),
        ("1_000/1_000s", 1_000, 1_000_000),
    ] {
        let config = accepted(&with_policy(&format!(
            "kind = \"sliding-counter\"\nlimit = \"{rate}\"\nkey = \"ip\"\n"
        )));
        let limit = config.policies[0].limits.rule.limit().unwrap();
        assert_eq!(limit.count.get(), count, "{rate}");
        assert_eq!(limit.window_us.get(), window_ms * 1_000, "{rate}");
    }
}

#[test]
fn of_concurrency_the_limit_is_a_number_and_the_lease_a_time_and_no_edit_of_them_starts_afresh() {
    let policy = |fields: &str| {
        let text = format!("kind = \"concurrency\"\nkey = \"ip\"\n{fields}\n");
        Arc::clone(&accepted(&with_policy(&text)).policies[0])
    };
    let base = policy("limit = 5");
    for (fields, limit, lease_s) in [
        ("limit = 5", 5, 60),
        (
            "limit = 1_000_000_000_000\nlease = \"5m\"",
            1_000_000_000_000,
            300,
        ),
        ("limit = 1\nlease = \"1s\"", 1, 1),
        ("limit = 7\nlease = \"24h\"", 7, 86_400),
    ] {
        let policy = policy(fields);
        let Rule::Concurrency(rule) = &policy.limits.rule else {
            panic!("{:?}", policy.limits.rule)
        };
        assert_eq!(rule.limit().get(), limit, "{fields}");
        assert_eq!(rule.lease_us().get(), lease_s * 1_000_000, "{fields}");
        // It is given back, so no denial of it is remembered, and nothing is taken ahead.
        assert!(policy.given_back && policy.lease.is_none());
        assert_eq!(policy.generation, base.generation);
    }
}

#[test]
fn a_calendar_has_the_windows_of_its_unit_and_another_one_starts_afresh() {
    let with = |limit: &str, anchor: &str| {
        let text = with_policy(&format!(
            "kind = \"fixed-window\"\nlimit = \"{limit}\"\nkey = \"ip\"\nanchor = {anchor}\n"
        ));
        let config = accepted(&text);
        let sentence = summary(&read(&text)).unwrap();
        (config.policies[0].clone(), sentence)
    };
    const DAY_US: u64 = 86_400_000_000;
    let rows = [
        (
            "10/d",
            "{ calendar = \"day\", tz = \"Europe/Berlin\" }",
            1,
            "10 per day, counted from midnight to midnight in Europe/Berlin, up to 20 across an edge",
        ),
        (
            "10/24h",
            "{ calendar = \"day\", tz = \"UTC\" }",
            1,
            "10 per day, counted from midnight to midnight in UTC",
        ),
        (
            "10/7d",
            "{ calendar = \"week\", tz = \"UTC\" }",
            7,
            "10 per week, counted from Monday to Monday in UTC",
        ),
        (
            "10/month",
            "{ calendar = \"month\", tz = \"UTC\" }",
            31,
            "10 per month, counted from the first to the first in UTC",
        ),
        (
            "1_000/month",
            "{ calendar = \"month\", tz = \"Asia/Kathmandu\" }",
            31,
            "1000 per month",
        ),
        ("10/d", "\"epoch\"", 1, "10 per 1 d, counted by the clock"),
    ];
    let mut generations = BTreeSet::new();
    for (limit, anchor, days, expected) in rows {
        let (policy, sentence) = with(limit, anchor);
        assert_eq!(
            policy.limits.rule.limit().unwrap().window_us.get(),
            days * DAY_US,
            "{anchor}"
        );
        assert!(sentence.contains(expected), "{anchor}: {sentence}");
        assert!(
            generations.insert(policy.generation.0),
            "{anchor} goes on with another's usage"
        );
    }
    let (edited, _) = with("99/d", rows[0].1);
    assert!(
        generations.contains(&edited.generation.0),
        "another count starts afresh"
    );
}

#[test]
fn a_penalty_is_a_step_or_several_that_rise() {
    let with = |penalty: &str| {
        let policy = format!(
            "kind = \"token-bucket\"\nlimit = \"10/s\"\nkey = \"ip\"\npenalty = {penalty}\n"
        );
        with_policy(&policy)
    };
    let seconds = |penalty: &str| {
        let config = accepted(&with(penalty));
        let penalty = config.policies[0].penalty.clone().unwrap();
        let steps = penalty.steps_us().iter();
        steps.map(|step| step.get() / 1_000_000).collect::<Vec<_>>()
    };
    assert_eq!(seconds("\"10m\""), [600]);
    assert_eq!(seconds("[\"1s\", \"1m\", \"31d\"]"), [1, 60, 2_678_400]);
    assert!(accepted(AROUND).policies[0].penalty.is_none());
    let sentence = summary(&read(&with("[\"1m\", \"1h\"]"))).unwrap();
    assert!(
        sentence.contains("and denied for 1 min, then 1 h after a denial"),
        "{sentence}"
    );
    for (penalty, code) in [
        ("\"999ms\"", Code::E026),
        ("\"32d\"", Code::E026),
        ("10", Code::E015),
        ("true", Code::E015),
        ("\"ten\"", Code::E020),
        ("[]", Code::E045),
        ("[\"2s\", \"1s\"]", Code::E045),
        (
            "[\"1s\", \"2s\", \"3s\", \"4s\", \"5s\", \"6s\", \"7s\", \"8s\", \"9s\"]",
            Code::E045,
        ),
    ] {
        assert_eq!(codes(&read(&with(penalty))), [code], "{penalty}");
    }
    // Usage and penalty are kept apart: with another penalty what was used goes on.
    let generation = |text: &str| accepted(text).policies[0].generation;
    assert_eq!(generation(&with("\"10m\"")), generation(AROUND));
}

#[test]
fn a_month_is_a_window_of_a_calendar_alone() {
    let month = "limit = \"10/month\"\nkey = \"ip\"\n";
    for (policy, expected) in [
        ("kind = \"fixed-window\"\n", &[Code::E044][..]),
        ("kind = \"token-bucket\"\n", &[Code::E044]),
        (
            "kind = \"fixed-window\"\nanchor = \"first-request\"\n",
            &[Code::E044],
        ),
        (
            "kind = \"fixed-window\"\nanchor = { calendar = \"day\", tz = \"UTC\" }\n",
            &[Code::E044],
        ),
        // One mistake at a time: with the time zone it is right.
        (
            "kind = \"fixed-window\"\nanchor = { calendar = \"month\", tz = \"utc\" }\n",
            &[Code::E044],
        ),
        (
            "kind = \"token-bucket\"\nanchor = { calendar = \"month\", tz = \"UTC\" }\n",
            &[Code::E030, Code::E044],
        ),
        (
            "kind = \"fixed-window\"\nanchor = { calendar = \"month\", tz = \"UTC\" }\n",
            &[],
        ),
    ] {
        let mut found = codes(&read(&with_policy(&format!("{policy}{month}"))));
        found.sort();
        assert_eq!(found, expected, "{policy}");
    }
    for limit in ["10/31d", "10/d"] {
        let text = format!(
            "kind = \"fixed-window\"\nanchor = {{ calendar = \"month\", tz = \"UTC\" }}\nlimit = \"{limit}\"\nkey = \"ip\"\n"
        );
        assert_eq!(codes(&read(&with_policy(&text))), [Code::E044], "{limit}");
    }
    for limit in ["0/month", "1000000000001/month"] {
        let text = format!("kind = \"sliding-log\"\nlimit = \"{limit}\"\nkey = \"ip\"\n");
        assert_eq!(codes(&read(&with_policy(&text))), [Code::E026], "{limit}");
    }
}

#[test]
fn other_rates_are_refused_with_the_right_spelling() {
    let general = "100/min";
    for (rate, advice) in [
        ("10r/s", "\"10/s\""),
        ("10 r/s", "\"10/s\""),
        ("10 rps", "\"10/s\""),
        ("10rpm", "\"10/min\""),
        ("100 per minute", "\"100/min\""),
        ("100 requests per 5 minutes", "\"100/5min\""),
        ("100/minute", "\"100/min\""),
        ("100/M", "\"100/min\""),
        ("100 / min", "\"100/min\""),
        ("1,000/h", "\"1000/h\""),
        ("0.5/s", "\"1/2s\""),
        ("1.5/s", "\"3/2s\""),
        ("2.0/s", "\"2/s\""),
        ("10", general),
        ("", general),
        ("/s", general),
        ("10/", general),
        ("10/5", general),
        ("10/1h30m", general),
        ("-1/s", general),
        ("+1/s", general),
        ("1__0/s", "\"100/min\""),
        ("_1/s", general),
        ("ten/s", general),
        ("10/s/s", general),
        ("10/fortnight", general),
    ] {
        let loaded = read(&with_policy(&format!(
            "kind = \"sliding-log\"\nlimit = \"{rate}\"\nkey = \"ip\"\n"
        )));
        assert_eq!(codes(&loaded), [Code::E021], "{rate}");
        let help = loaded.diagnostics[0].help.clone().unwrap();
        assert!(help.contains(advice), "{rate}: {help}");
    }
    for rate in [
        "0/s",
        "10/0s",
        "1/367d",
        "1000000000001/s",
        "99999999999999999999/s",
        "1/99999999999999999999d",
    ] {
        let loaded = read(&with_policy(&format!(
            "kind = \"sliding-log\"\nlimit = \"{rate}\"\nkey = \"ip\"\n"
        )));
        assert_eq!(codes(&loaded), [Code::E026], "{rate}");
    }
}

#[test]
fn durations_and_sizes_have_one_spelling() {
    let grace = |text: &str| read(&format!("[server]\ngrace_period = \"{text}\"\n"));
    for (text, millis) in [
        ("0s", 0),
        ("20ms", 20),
        ("90s", 90_000),
        ("1m", 60_000),
        ("1min", 60_000),
        ("1m30s", 90_000),
        ("1s5ms", 1_005),
    ] {
        let config = grace(text).config.unwrap();
        assert_eq!(
            config.server.grace_period,
            Duration::from_millis(millis),
            "{text}"
        );
    }
    for (text, advice) in [
        ("1.5s", "\"1s500ms\""),
        ("30", "\"30s\""),
        ("5M", "\"5min\""),
        ("1 m", "\"1m\""),
        ("30 seconds", "\"30s\""),
        ("30s1m", "\"1m30s\""),
        ("1m1m", "\"2m\""),
        ("s", "whole number"),
        ("", "whole number"),
        ("-1s", "whole number"),
        ("1w", "whole number"),
    ] {
        let loaded = grace(text);
        assert_eq!(codes(&loaded), [Code::E020], "{text}");
        let help = loaded.diagnostics[0].help.clone().unwrap();
        assert!(help.contains(advice), "{text}: {help}");
    }
    assert_eq!(codes(&grace("2h")), [Code::E026]);
    assert_eq!(codes(&grace("99999999999999999d")), [Code::E026]);
    let body = |text: &str| read(&format!("[server.limits]\nmax_body = \"{text}\"\n"));
    for (text, bytes) in [
        ("0B", 0),
        ("512B", 512),
        ("64KiB", 65_536),
        ("1MiB", 1_048_576),
        ("2GiB", 2_147_483_648),
    ] {
        assert_eq!(
            body(text).config.unwrap().server.max_body,
            Some(bytes),
            "{text}"
        );
    }
    for text in ["1MB", "1M", "64", "1.5MiB", "MiB", "-1B", "1 KiB"] {
        assert_eq!(codes(&body(text)), [Code::E022], "{text}");
    }
}

#[test]
fn policies_are_built_as_written() {
    let config = accepted(
        r#"
mode = "enforce"
[store]
on_failure = "allow"
[rejects.a]
status = 403
[policies.z]
kind = "leaky-bucket"
limit = "10/s"
burst = 30
max_wait = "3s"
key = "global"
reject = "a"
store = "local"
cost = 2
on_store_failure = "deny"
mode = "shadow"
[policies.b]
kind = "token-bucket"
limit = "6/min"
key = ["ip/56", "header:X-User"]
on_missing_key = "empty"
[routes.r]
match = { path = "/x/{id}" }
respond = { status = 204 }
policies = ["z", { use = "b", cost = 0 }]
"#,
    );
    let [b, z] = config.policies.as_slice() else {
        panic!()
    };
    assert_eq!((&*b.name, b.index, &*z.name, z.index), ("b", 0, "z", 1));
    assert_eq!(
        b.limits.rule.capacity(),
        6,
        "a bucket holds the limit where no burst is written"
    );
    assert_eq!(
        *b.key,
        [
            KeySource::IpPrefix(56),
            KeySource::Header("x-user".parse().unwrap())
        ]
    );
    assert_eq!(b.on_store_failure, OnStoreFailure::Allow);
    assert_eq!((b.reject, z.reject), (0, 1));
    assert_eq!(
        (z.mode, z.scope, z.on_store_failure),
        (Mode::Shadow, Scope::Local, OnStoreFailure::Deny)
    );
    assert!(matches!(&z.limits.rule, Rule::LeakyBucket(rule) if rule.burst() == 30));
    let route = config.routes.iter().next().unwrap();
    assert!(matches!(route.action, Action::Respond(status, _) if status == 204));
    let uses = route.demands.iter().flat_map(Demand::uses);
    let prices: Vec<Price> = uses.map(|a_use| a_use.price.clone()).collect();
    assert_eq!(prices, [2, 0].map(|units| Price::Fixed(Cost::new(units))));
}

#[test]
fn a_cost_is_a_number_or_where_it_is_read() {
    let text =
        |cost: &str| AROUND.replace("[\"p\"]", &format!("[{{ use = \"p\", cost = {cost} }}]"));
    for (cost, words, in_request, in_answer) in [
        ("1", "p", false, false),
        ("5", "p (cost 5)", false, false),
        (
            "{ from = \"request.json:/max_tokens\", max = 10 }",
            "p (cost by request.json:/max_tokens, else 1, at most 10)",
            true,
            false,
        ),
        (
            "{ from = \"request.query:type\", values = { search = 10, list = 1 }, default = 10 }",
            "p (cost by request.query:type, else 10, list = 1, search = 10)",
            false,
            false,
        ),
        (
            "{ from = \"request.graphql-depth\" }",
            "p (cost by request.graphql-depth, else 1)",
            true,
            false,
        ),
        (
            "{ from = \"response.json:/usage/total_tokens\", reserve = 5 }",
            "p (cost by response.json:/usage/total_tokens, 5 at first)",
            false,
            true,
        ),
        // What was used too much is owed.
        (
            "{ from = \"response.bytes\", reserve = 5, max = 100 }",
            "p (cost by response.bytes, 5 at first, at most 100)",
            false,
            false,
        ),
    ] {
        let loaded = read(&text(cost));
        let words = format!("app (1 server): {words}\n");
        let told = summary(&loaded).unwrap();
        assert!(told.contains(&words), "{told}");
        let config = loaded.config.unwrap();
        let route = config.routes.iter().next().unwrap();
        assert_eq!(
            (route.reads_bodies, route.reads_answers, config.reads_bodies),
            (in_request, in_answer, in_request),
            "{cost}"
        );
        let given_back = cost.contains("response.");
        assert_eq!(config.policies[0].given_back, given_back, "{cost}");
    }
}

#[test]
fn a_generation_changes_with_kind_window_and_key_and_with_nothing_else() {
    let generation = |fields: &str| accepted(&with_policy(fields)).policies[0].generation;
    let base = generation("kind = \"token-bucket\"\nlimit = \"10/s\"\nkey = \"ip\"\n");
    for same in [
        "kind = \"token-bucket\"\nlimit = \"20/1s\"\nkey = [\"ip\"]\n",
        "kind = \"token-bucket\"\nlimit = \"10/s\"\nburst = 3\nkey = \"ip\"\nmode = \"shadow\"\ncost = 2\n",
        "kind = \"token-bucket\"\nlimit = \"10/1000ms\"\nkey = \"ip\"\non_store_failure = \"deny\"\nadvertise = false\n",
    ] {
        assert_eq!(generation(same), base, "{same}");
    }
    for other in [
        "kind = \"leaky-bucket\"\nlimit = \"10/s\"\nkey = \"ip\"\n",
        "kind = \"token-bucket\"\nlimit = \"10/2s\"\nkey = \"ip\"\n",
        "kind = \"token-bucket\"\nlimit = \"10/s\"\nkey = \"ip/56\"\n",
        "kind = \"token-bucket\"\nlimit = \"10/s\"\nkey = [\"ip\", \"host\"]\n",
    ] {
        assert_ne!(generation(other), base, "{other}");
    }
    let anchored = |anchor: &str| {
        generation(&format!(
            "kind = \"fixed-window\"\nlimit = \"10/s\"\nkey = \"ip\"\nanchor = \"{anchor}\"\n"
        ))
    };
    assert_ne!(anchored("epoch"), anchored("first-request"));
}

#[test]
fn load_shedding_is_off_where_it_is_not_asked_for_and_where_nothing_is_denied() {
    let shedding = |text: &str, env: &[(&str, &str)]| {
        let loaded = load_text(
            Path::new("t.toml"),
            &format!("{text}\n{AROUND}priority = \"high\"\n"),
            &options(env),
        );
        let found = codes(&loaded);
        (loaded.config.unwrap().load_shedding, found)
    };
    let settings = |max_in_flight, target_us| {
        Some(Settings {
            max_in_flight: NonZeroU32::new(max_in_flight).unwrap(),
            target_us: NonZeroU64::new(target_us),
        })
    };
    const TABLE: &str = "[load_shedding]\nmax_in_flight = 2000";
    assert_eq!(shedding("", &[]), (None, vec![Code::W220]));
    assert_eq!(shedding(TABLE, &[]), (settings(2_000, 0), vec![]));
    let aiming = format!("{TABLE}\ntarget_latency = \"200ms\"");
    assert_eq!(shedding(&aiming, &[]).0, settings(2_000, 200_000));
    assert_eq!(
        shedding(&format!("mode = \"shadow\"\n{TABLE}"), &[]).0,
        None
    );
    let by_environment = [
        ("TOLLGATE__LOAD_SHEDDING__MAX_IN_FLIGHT", "70"),
        ("TOLLGATE__LOAD_SHEDDING__TARGET_LATENCY", "1s"),
    ];
    assert_eq!(shedding("", &by_environment).0, settings(70, 1_000_000));
    for number in ["1", "0", "10_000_001"] {
        let loaded = read(&format!(
            "[load_shedding]\nmax_in_flight = {number}\n{AROUND}"
        ));
        assert_eq!(codes(&loaded), [Code::E026], "{number}");
    }
    let route = |text: &str| accepted(text).routes.iter().next().unwrap().priority;
    assert_eq!(route(AROUND), Priority::Normal);
    assert_eq!(route(&format!("{AROUND}priority = \"low\"")), Priority::Low);
}

#[test]
fn preflights_are_counted_by_the_outer_shield_unless_it_is_said_otherwise() {
    for (fields, counted) in [
        ("", false),
        ("preflights = true", true),
        ("preflights = false", false),
        ("store = \"shared\"", false),
        ("store = \"local\"", true),
        ("store = \"local\"\npreflights = false", false),
    ] {
        let policy = format!("kind = \"token-bucket\"\nlimit = \"10/s\"\nkey = \"ip\"\n{fields}\n");
        let config = accepted(&with_policy(&policy));
        assert_eq!(config.policies[0].preflights, counted, "{fields}");
    }
}

#[test]
fn the_environment_fills_in_and_overrides() {
    let text = format!(
        "[store]\nkind = \"valkey\"\nurl = \"${{URL:-valkey://one}}\"\nprefix = \"$${{x}}\"\n{AROUND}"
    );
    let loaded = load_text(
        Path::new("t.toml"),
        &text,
        &options(&[("URL", "valkey://u:hunter2@two:1/3")]),
    );
    assert_eq!(codes(&loaded), [Code::W209, Code::E019]);
    let text = text.replace("prefix = \"$${x}\"\n", "");
    let valkey = |env: &[(&str, &str)]| {
        let loaded = load_text(Path::new("t.toml"), &text, &options(env));
        match loaded
            .config
            .as_ref()
            .map(|config| config.store.kind.clone())
        {
            Some(StoreKind::Valkey(settings)) => settings,
            _ => panic!("{}", rendered(&loaded)),
        }
    };
    assert_eq!(valkey(&[]).address.to_string(), "one:6379");
    let settings = valkey(&[("URL", "valkey://u:hunter2@two:1/3")]);
    assert_eq!(
        (&*settings.address.to_string(), settings.database),
        ("two:1", 3)
    );
    assert_eq!(settings.login.password.as_deref(), Some("hunter2"));
    let settings = valkey(&[
        ("TOLLGATE__STORE__URL", "redis://three"),
        ("TOLLGATE__STORE__TIMEOUT", "7ms"),
    ]);
    assert_eq!(
        (&*settings.address.to_string(), settings.timeout),
        ("three:6379", Duration::from_millis(7))
    );

    let env = options(&[
        ("TOLLGATE__MODE", "shadow"),
        ("TOLLGATE__SERVER__THREADS", "3"),
        ("TOLLGATE__SERVER__LIMITS__MAX_BODY", "1MiB"),
        ("TOLLGATE__STORE__LOCAL__MAX_KEYS", "5"),
        (
            "TOLLGATE__CLIENT_IP__TRUSTED_PROXIES",
            "10.0.0.0/8, 192.0.2.1",
        ),
        ("TOLLGATE__HEADERS__PARTITION_KEY", "true"),
        ("TOLLGATE__METRICS__ADDRESS", "127.0.0.1:1"),
        ("TOLLGATE_CONFIG", "something else"),
    ]);
    let loaded = load_text(Path::new("t.toml"), AROUND, &env);
    let config = loaded
        .config
        .as_ref()
        .unwrap_or_else(|| panic!("{}", rendered(&loaded)));
    assert_eq!(config.policies[0].mode, Mode::Shadow);
    assert_eq!(config.server.threads.get(), 3);
    assert_eq!(config.server.max_body, Some(1 << 20));
    assert_eq!(config.store.max_keys.get(), 5);
    assert!(matches!(&config.client_ip.trust, Trust::Networks(networks) if networks.len() == 2));
    assert_eq!(config.client_ip.header, Header::XForwardedFor);
    assert!(config.headers.partition_key);
    assert!(config.metrics.is_some());
}

#[test]
fn an_override_that_fits_nothing_is_told() {
    for (name, value, code, words) in [
        (
            "TOLLGATE__STORE__ULR",
            "x",
            Code::E014,
            "did you mean TOLLGATE__STORE__URL?",
        ),
        (
            "TOLLGATE__POLICIES__P__LIMIT",
            "1/s",
            Code::E014,
            "cannot be overridden",
        ),
        ("TOLLGATE__STORE", "x", Code::E014, "cannot be overridden"),
        ("TOLLGATE__", "x", Code::E014, "overrides nothing"),
        ("TOLLGATE__SERVER__LIMITS", "x", Code::E014, "is a table"),
        ("TOLLGATE__STORE__URL__X", "x", Code::E014, "has no fields"),
        (
            "TOLLGATE__SERVER__THREADS",
            "many",
            Code::E015,
            "environment variable TOLLGATE__SERVER__THREADS",
        ),
        (
            "TOLLGATE__MODE",
            "off",
            Code::E017,
            "\"enforce\" or \"shadow\"",
        ),
    ] {
        let loaded = load_text(Path::new("t.toml"), AROUND, &options(&[(name, value)]));
        assert_eq!(codes(&loaded), [code], "{name}");
        assert!(
            rendered(&loaded).contains(words),
            "{name}: {}",
            rendered(&loaded)
        );
    }
}

#[test]
fn included_files_come_in_any_order_and_to_the_same() {
    let loaded = load(Path::new("tests/config/good/including.toml"), &options(&[]));
    assert!(loaded.diagnostics.is_empty(), "{}", rendered(&loaded));
    let config = loaded.config.unwrap();
    let names: Vec<&str> = config.policies.iter().map(|policy| &*policy.name).collect();
    assert_eq!(names, ["a", "b"]);
    // Its own, two that it includes, and one that is named there.
    assert_eq!(loaded.files.len(), 4);
    assert_eq!(loaded.folders, [Path::new("tests/config/good/conf.d")]);
    assert_eq!(config.rejects.len(), 2);
    assert!(config.rejects.iter().any(|reject| reject.bodies.len() == 1));
}

#[test]
fn what_is_dumped_loads_to_the_same() {
    for path in [
        "config/tollgate.toml",
        "config/quickstart.toml",
        "config/examples/shop.toml",
        "config/examples/llm.toml",
        "config/examples/third-party-quota.toml",
        "tests/config/good/including.toml",
    ] {
        let without_files = LoadOptions {
            io: false,
            ..options(&[])
        };
        let first = load(Path::new(path), &without_files);
        let text = dump(&first).unwrap_or_else(|| panic!("{}", rendered(&first)));
        let second = load_text(Path::new("elsewhere/dump.toml"), &text, &without_files);
        assert!(
            second.diagnostics.is_empty(),
            "{path}:\n{text}\n{}",
            rendered(&second)
        );
        let (first, second) = (first.config.unwrap(), second.config.unwrap());
        // Routes stand in hash maps, whose order is by chance.
        let lines = |config: &Config| {
            let text = format!("{config:#?}");
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&first), lines(&second), "{path}");
    }
}

#[test]
fn a_dump_shows_no_secret_and_keeps_dollars() {
    let text = format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkey://user:hunter2@h\"\n{AROUND}add_headers = {{ authorization = \"Bearer hunter2\" }}\n\
         [rejects.default]\ntitle = \"5$$ a ${{THING:-$$x}}\"\n"
    );
    let loaded = read(&text);
    let dumped = dump(&loaded).unwrap_or_else(|| panic!("{}", rendered(&loaded)));
    assert!(!dumped.contains("hunter2"), "{dumped}");
    assert!(dumped.contains("valkey://user:***@h"), "{dumped}");
    assert!(dumped.contains("title = \"5$$ a $$"), "{dumped}");
    assert!(dump(&read("x")).is_none());
}

#[test]
fn every_policy_is_put_in_words() {
    let loaded = read(
        r#"
[policies.products-ip]
kind = "token-bucket"
limit = "20/min"
key = "ip"
[policies.fixed]
kind = "fixed-window"
limit = "5/90s"
key = ["ip/48", "header:x-user"]
on_missing_key = "skip"
[policies.all]
kind = "leaky-bucket"
limit = "10/s"
burst = 30
max_wait = "3s"
key = "global"
mode = "shadow"
[policies.slots]
kind = "concurrency"
limit = 2
key = "global"
[routes.r]
match = { methods = ["GET", "HEAD"], host = "a.example", headers = { x-a = true } }
respond = {}
policies = [{ use = "products-ip", cost = 2 }, { first_of = ["fixed", "all"] }, "slots"]
"#,
    );
    let words = summary(&loaded).unwrap();
    for sentence in [
        "policy products-ip: token bucket, 20 per 1 min, refilled continuously, at most 20 at once, up to 40 in any 1 min, per client address (/32, /64)",
        "policy fixed: fixed window, 5 per 1 min 30 s, counted by the clock, up to 10 across an edge, per client network /48 and header x-user",
        "policy all: leaky bucket, 10 per 1 s, passed on evenly, up to 30 wait their turn, for 3 s at most, everybody together (shadow: counted, denies nothing)",
        "route r: GET|HEAD a.example/* header:x-a -> answers 200: products-ip (cost 2), first of fixed | all, slots",
        "policy slots: concurrency, 2 at once, everybody together\n",
        "listener main: 127.0.0.1:8080",
    ] {
        assert!(words.contains(sentence), "{sentence}\n{words}");
    }
}

#[test]
fn without_io_no_file_is_read() {
    let options = LoadOptions {
        io: false,
        ..options(&[])
    };
    for name in ["unreadable_secret", "secret_too_short"] {
        let loaded = load(
            &PathBuf::from(format!("tests/config/bad/{name}.toml")),
            &options,
        );
        assert!(loaded.config.is_some(), "{name}");
    }
}

#[test]
fn a_secret_does_not_print() {
    assert_eq!(
        format!("{:?}", accepted(AROUND).store.key_secret),
        "KeySecret(…)"
    );
}

#[test]
fn severities_follow_the_codes() {
    assert_eq!(Code::E001.severity(), Severity::Error);
    assert_eq!(Code::W201.severity(), Severity::Warning);
    let about: BTreeMap<&str, &str> = Code::ALL
        .iter()
        .map(|code| (code.as_str(), code.about()))
        .collect();
    assert_eq!(about.len(), Code::ALL.len());
    assert!(about.values().all(|about| about.ends_with('.')));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_loader_panic(text in "\\PC{0,200}") {
        let loaded = read(&text);
        let _ = rendered(&loaded);
    }

    #[test]
    fn no_value_makes_the_loader_panic(
        field in 0usize..4,
        value in prop_oneof![
            "[0-9_.,]{0,22} ?(r|req)?(/|per|ps)? ?[0-9]{0,21}(ms|s|m|min|h|d|M|KiB|%)?",
            "\\PC{0,40}",
            "[$:{}/*@%a-z0-9.\\[\\]-]{0,40}",
        ],
    ) {
        let literal = toml::Value::from(value.as_str()).to_string();
        for text in [
            format!("limit = {literal}\nkind = {literal}\nkey = {literal}\nunit = {literal}\n"),
            format!("kind = \"token-bucket\"\nlimit = \"1/s\"\nkey = [{literal}, {literal}]\nreject = {literal}\n"),
        ] {
            let _ = rendered(&read(&with_policy(&text)));
        }
        let around = [
            format!("[routes.x]\nmatch = {{ path = {literal}, host = {literal} }}\nupstream = {literal}\n"),
            format!("[store]\nkind = \"valkey\"\nurl = {literal}\nprefix = {literal}\ntimeout = {literal}\n"),
            format!("[upstreams.x]\nservers = [{literal}]\nhost_header = {literal}\n[listeners.l]\naddress = {literal}\n"),
            format!("[rejects.x]\ndetail = {literal}\ntype = {literal}\ncors = [{literal}]\n[client_ip]\ntrusted_proxies = [{literal}]\n[logs]\naccess_sample = {literal}\n[server.limits]\nmax_body = {literal}\n"),
        ];
        let _ = rendered(&read(&around[field]));
    }

    #[test]
    fn every_prefix_of_the_reference_is_read_or_refused(end in 0usize..8_000) {
        let text = fs::read_to_string("config/tollgate.toml").unwrap();
        let part: String = text.chars().take(end).collect();
        let loaded = read(&part);
        prop_assert_eq!(loaded.config.is_none(), loaded.diagnostics.iter().any(|d| d.severity() == Severity::Error));
        let _ = rendered(&loaded);
    }
}
