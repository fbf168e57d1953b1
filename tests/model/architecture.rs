//! The floors of the house: a module uses only those below its own.

use std::fs;
use std::path::{Path, PathBuf};

/// Each module, and what it may use.
const FLOORS: [(&str, &[&str]); 16] = [
    ("decide", &[]),
    ("request", &[]),
    ("shed", &[]),
    ("tls", &[]),
    ("clock", &["decide"]),
    ("client", &["request"]),
    ("route", &["request"]),
    ("check", &["decide", "request", "client"]),
    ("store", &["decide", "check", "clock", "tls"]),
    ("answer", &["decide", "check"]),
    ("record", &["decide", "check", "clock", "shed"]),
    (
        "config",
        &[
            "decide", "request", "shed", "clock", "client", "route", "check", "store", "answer",
            "record", "tls",
        ],
    ),
    (
        "admin",
        &[
            "decide", "shed", "check", "store", "answer", "record", "config", "clock",
        ],
    ),
    (
        "proxy",
        &[
            "admin", "decide", "request", "shed", "clock", "client", "route", "check", "store",
            "answer", "record", "config", "tls",
        ],
    ),
    (
        "cli",
        &[
            "proxy", "config", "store", "check", "decide", "clock", "client",
        ],
    ),
    ("lib", &[]),
];

#[test]
fn a_module_uses_only_floors_below_its_own() {
    let mut wrong = Vec::new();
    for (module, text, file) in sources() {
        let allowed = FLOORS
            .iter()
            .find(|(name, _)| *name == module)
            .map(|(_, allowed)| *allowed)
            .unwrap_or_else(|| panic!("{module} has no floor: add it to the table"));
        for used in used_modules(&text) {
            if used != module && !allowed.contains(&used.as_str()) {
                wrong.push(format!("{} uses {used}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn only_the_server_names_pingora_and_only_the_configuration_names_toml() {
    let mut wrong = Vec::new();
    for (module, text, file) in sources() {
        for (name, homes) in [
            ("pingora", &["proxy", "admin"] as &[&str]),
            ("toml", &["config"]),
            ("prometheus", &["record", "proxy"]),
            ("redis", &["store", "cli"]),
        ] {
            let uses =
                text.contains(&format!("use {name}::")) || text.contains(&format!(" {name}::"));
            if uses && !homes.contains(&module.as_str()) {
                wrong.push(format!("{} names {name}", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn decisions_know_no_fraction_and_no_clock() {
    for (module, text, file) in sources() {
        if module == "decide" {
            for word in ["f32", "f64", "Instant", "SystemTime"] {
                assert!(!text.contains(word), "{} has {word}", file.display());
            }
        }
    }
}

#[test]
fn every_metric_is_documented() {
    let source = fs::read_to_string(root().join("src/record/metrics/families.rs")).unwrap();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let mut names: Vec<_> = source
        .split('"')
        .filter(|text| text.starts_with("tollgate_"))
        .collect();
    names.sort_unstable();
    names.dedup();
    assert!(names.len() > 15, "{names:?}");
    let missing: Vec<_> = names
        .into_iter()
        .filter(|name| !readme.contains(*name))
        .collect();
    assert!(missing.is_empty(), "not in the README: {missing:?}");
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every source file: its module, its text without its own tests, its path.
fn sources() -> Vec<(String, String, PathBuf)> {
    let mut found = Vec::new();
    collect(&root().join("src"), &mut found);
    assert!(found.len() > 30, "the sources were not found");
    found
        .into_iter()
        .filter_map(|file| {
            let inside = file.strip_prefix(root().join("src")).unwrap();
            let first = inside.components().next().unwrap();
            let module = Path::new(first.as_os_str()).file_stem().unwrap();
            let module = module.to_str().unwrap().to_owned();
            let text = fs::read_to_string(&file).unwrap();
            let text = text.split("#[cfg(test)]").next().unwrap().to_owned();
            (module != "main").then_some((module, text, file))
        })
        .collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The modules of ours that a text names: `crate::name`, alone or in a list.
fn used_modules(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"))
        .collect::<Vec<_>>()
        .join("\n");
    code.split("crate::")
        .skip(1)
        .flat_map(|rest| {
            let end = rest.find([';', '\n']).unwrap_or(rest.len());
            let path = &rest[..end];
            match path.strip_prefix('{') {
                Some(list) => list
                    .split(',')
                    .map(|item| {
                        item.trim()
                            .split("::")
                            .next()
                            .unwrap_or_default()
                            .to_owned()
                    })
                    .collect(),
                None => vec![path.split("::").next().unwrap_or_default().to_owned()],
            }
        })
        .map(|name| {
            name.chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect::<String>()
        })
        .filter(|name| !name.is_empty())
        .collect()
}
