//! Reports about configurations that were misread, or not read at all.

use std::collections::BTreeMap;
use std::path::Path;

use tollgate::config::{LoadOptions, Loaded, load_text, summary};

/// A configuration with this policy, under which `all` is the only route.
fn read(policy: &str, more: &str) -> Loaded {
    let text = format!(
        "[upstreams.demo]\nbuiltin = \"echo\"\n[policies.p]\nkey = \"ip\"\n{policy}\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"p\"]\n{more}"
    );
    let options = LoadOptions {
        io: true,
        env: BTreeMap::new(),
    };
    load_text(Path::new("t.toml"), &text, &options)
}

fn told(loaded: &Loaded) -> String {
    loaded.diagnostics.iter().map(ToString::to_string).collect()
}

const GOOD: &str = "kind = \"token-bucket\"\nlimit = \"10/s\"";

#[test]
fn what_cannot_be_meant_is_refused_in_words_that_help() {
    let elsewhere = "[routes.other]\nmatch = { path = \"/other\" }\nupstream = \"demo\"\n";
    let rows = [
        (
            "kyma-project/api-gateway #1634: ready, though what decides had refused the policy",
            "kind = \"sliding-counter\"\nlimit = \"1_000_000_000_000/7d\"",
            String::new(),
            "error[E027]",
            "the largest that fits is",
        ),
        (
            "krakend/krakend-ce #451: a misspelt field was no limit",
            "kind = \"token-bucket\"\nlimti = \"10/s\"",
            String::new(),
            "error[E014]",
            "did you mean `limit`?",
        ),
        (
            "krakend/krakend-ce #451: a misspelt table was no limit",
            GOOD,
            "[policys.q]\nkey = \"ip\"\n".to_owned(),
            "error[E014]",
            "did you mean `policies`?",
        ),
        (
            "krakend/krakend-ce #749: a policy that is not there was no limit",
            GOOD,
            format!("{elsewhere}policies = [\"q\"]\n"),
            "error[E101]",
            "route `other` uses unknown policy `q`",
        ),
        (
            "traefik/traefik PR #13512: nought was no limit at one store, and no request at the other",
            "kind = \"token-bucket\"\nlimit = \"0/s\"",
            String::new(),
            "error[E026]",
            "to lift the limit write mode = \"off\"; to deny everything",
        ),
        (
            "spring-cloud/spring-cloud-gateway #168: a burst of nought neither denied nor allowed",
            "kind = \"token-bucket\"\nlimit = \"10/s\"\nburst = 0",
            String::new(),
            "error[E026]",
            "to lift the limit write mode = \"off\"; to deny everything",
        ),
        (
            "traefik/traefik #8235: one in ten years ran over",
            "kind = \"token-bucket\"\nlimit = \"1/3650d\"",
            String::new(),
            "error[E026]",
            "366d",
        ),
        (
            "fastly/js-compute-runtime PR #1566: a cost past 32 bits was not looked at",
            "kind = \"token-bucket\"\nlimit = \"10/s\"\ncost = 4294967296",
            String::new(),
            "error[E033]",
            "",
        ),
        (
            "fastly/js-compute-runtime PR #1566: nor a negative one",
            "kind = \"token-bucket\"\nlimit = \"10/s\"\ncost = -1",
            String::new(),
            "error[E026]",
            "",
        ),
        (
            "fastly/js-compute-runtime PR #1566: nor a fraction",
            "kind = \"token-bucket\"\nlimit = \"10/s\"\ncost = 1.5",
            String::new(),
            "error[E015]",
            "",
        ),
        (
            "Kuadrant/limitador #64: equal limits were one, or two",
            GOOD,
            format!("{elsewhere}policies = [\"p\", \"p\"]\n"),
            "error[E034]",
            "`p`",
        ),
        (
            "Kuadrant/limitador #466: room for nothing was no limit",
            GOOD,
            "[store]\nlocal = { max_keys = 0 }\n".to_owned(),
            "error[E026]",
            "max_keys",
        ),
    ];
    for (report, policy, more, code, words) in rows {
        let loaded = read(policy, &more);
        let told = told(&loaded);
        assert!(loaded.config.is_none(), "{report}");
        assert!(
            told.contains(code) && told.contains(words),
            "{report}: {told}"
        );
    }
}

/// traefik/traefik #8330, krakend/krakend-ce #633: rate, period and burst were taken for one another.
#[test]
fn what_a_limit_means_is_put_in_words() {
    let kinds = [
        ("token-bucket", "at most 6 at once"),
        ("fixed-window", "up to 12 across an edge"),
        ("sliding-log", "never more than 6 in any 5 min"),
        ("sliding-counter", "just under 12 in any 5 min"),
        ("leaky-bucket", "up to 6 wait their turn"),
    ];
    for (kind, words) in kinds {
        let loaded = read(&format!("kind = \"{kind}\"\nlimit = \"6/5min\""), "");
        let meaning = summary(&loaded).unwrap();
        assert!(meaning.contains("6 per 5 min"), "{meaning}");
        assert!(meaning.contains(words), "{meaning}");
    }
}
