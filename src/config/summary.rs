//! A configuration in words, and its schema.

use std::fmt::Write as _;
use std::time::Duration;

use super::decode::Table as _;
use super::file::File;
use super::load::Loaded;
use super::tree::{Node, Value};
use super::units::duration_text;
use super::{Action, Config, StoreKind, Target, TokenKeys};
use crate::check::{Demand, KeySource, Mode, Policy, Price, Scope, Unit};
use crate::client::address::Prefixes;
use crate::decide::{Anchor, CalendarUnit, Cost, Rule};

/// JSON Schema draft-07 of the file.
#[must_use]
pub fn schema() -> serde_json::Value {
    File::table_shape().document()
}

/// What a configuration does, in words: each route, and what each policy means. `None` if there is none.
#[must_use]
pub fn summary(loaded: &Loaded) -> Option<String> {
    let config = loaded.config.as_ref()?;
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    let store = match &config.store.kind {
        StoreKind::Local => "in this process".to_owned(),
        StoreKind::Valkey(settings) => format!(
            "in Valkey at {}, shared by at least {} gateway{}",
            settings.address,
            config.store.instances,
            plural(config.store.instances.get().into())
        ),
    };
    for listener in &config.listeners {
        let tls = over_tls(loaded.document.as_ref(), "listeners", &listener.name);
        line(format!(
            "listener {}: {}{tls}",
            listener.name, listener.address
        ));
    }
    line(format!("usage is counted {store}"));
    for proof in proofs(config) {
        line(format!("callers are known by {proof}"));
    }
    for route in config.routes.iter() {
        let policies: Vec<String> = route.demands.iter().map(demand).collect();
        let policies = if policies.is_empty() {
            "no policy".to_owned()
        } else {
            policies.join(", ")
        };
        line(format!(
            "route {}: {} -> {}: {policies}",
            route.name,
            matched(loaded.document.as_ref(), &route.name),
            action(loaded, config, &route.action)
        ));
    }
    let is_shared = !matches!(config.store.kind, StoreKind::Local);
    for policy in &config.policies {
        line(format!(
            "policy {}",
            sentence(policy, config.client_ip.prefixes, is_shared)
        ));
    }
    for plan in loaded.document.iter().flat_map(plans) {
        line(plan);
    }
    Some(text)
}

/// What callers can prove who they are by.
fn proofs(config: &Config) -> Vec<String> {
    let identity = &config.identity;
    let api_keys = identity.api_key.as_ref().map(|api_key| {
        let count = api_key.keys.len();
        let known = match api_key.seen {
            Some(_) => format!("{count} known"),
            None => "not read".to_owned(),
        };
        format!("API keys in {}, {known}", api_key.sent_in)
    });
    let tokens = identity.jwt.as_ref().map(|jwt| {
        let algorithms = jwt.expected.algorithms.iter().map(|one| one.as_str());
        let algorithms = algorithms.collect::<Vec<_>>().join(", ");
        let keys = match &jwt.keys {
            TokenKeys::File { file, .. } => file.display().to_string(),
            TokenKeys::Url { url, .. } => url.to_string(),
        };
        format!(
            "tokens in {}, signed by {algorithms} with keys from {keys}",
            jwt.sent_in
        )
    });
    let tier = config.client_ip.tier_header.as_ref();
    let tier = tier.map(|header| format!("a plan that trusted proxies name in {header}"));
    [api_keys, tokens, tier].into_iter().flatten().collect()
}

/// What tiers, overrides and exemptions say, as written.
fn plans(document: &Node) -> Vec<String> {
    let entries = |table: &str| document.get(table).map(Node::entries).unwrap_or_default();
    let list = |node: Option<&Node>| -> Option<String> {
        let Value::List(items) = &node?.value else {
            return None;
        };
        let texts = items.iter().filter_map(|item| match &item.value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        });
        Some(texts.collect::<Vec<_>>().join(", "))
    };
    let limits = |node: &Node| {
        let limits = node.get("limits").map(Node::entries).unwrap_or_default();
        let limits: Vec<String> = limits
            .iter()
            .map(|entry| match &entry.node.value {
                Value::Text(rate) => format!("{} {rate}", entry.key),
                Value::Whole(count) => format!("{} {count}", entry.key),
                _ => entry.key.clone(),
            })
            .collect();
        if limits.is_empty() {
            "no limits of its own".to_owned()
        } else {
            limits.join(", ")
        }
    };
    let whom = |node: &Node| {
        let of = |key: &str, word: &str| Some(format!("{word}{}", list(node.get(key))?));
        of("ip", "")
            .or_else(|| of("identity", "identity "))
            .or_else(|| of("route", "route "))
            .unwrap_or_default()
    };
    let tiers = entries("tiers")
        .iter()
        .map(|entry| format!("tier {}: {}", entry.key, limits(&entry.node)));
    let overrides = entries("overrides").iter().map(|entry| {
        let node = &entry.node;
        format!(
            "override {}: {} for {}",
            entry.key,
            limits(node),
            whom(node)
        )
    });
    let exemptions = entries("exemptions").iter().map(|entry| {
        let node = &entry.node;
        let policies = list(node.get("policies")).unwrap_or_else(|| "every policy".to_owned());
        format!(
            "exemption {}: {} is spared {policies}",
            entry.key,
            whom(node)
        )
    });
    tiers.chain(overrides).chain(exemptions).collect()
}

/// What a route matches, as written.
fn matched(document: Option<&Node>, route: &str) -> String {
    let written = document
        .and_then(|document| document.get("routes")?.get(route)?.get("match"))
        .map(Node::entries)
        .unwrap_or_default();
    let texts = |keys: [&str; 2]| -> Option<String> {
        let entry = written
            .iter()
            .find(|entry| keys.contains(&entry.key.as_str()))?;
        let texts: Vec<&str> = match &entry.node.value {
            Value::Text(text) => vec![text],
            Value::List(items) => items
                .iter()
                .filter_map(|item| match &item.value {
                    Value::Text(text) => Some(text.as_str()),
                    _ => None,
                })
                .collect(),
            _ => Vec::new(),
        };
        Some(texts.join("|"))
    };
    let methods = texts(["methods", ""]).map_or_else(String::new, |methods| methods + " ");
    let host = texts(["host", "hosts"]).unwrap_or_default();
    let path = texts(["path", "paths"]).unwrap_or_else(|| "/*".to_owned());
    let more: Vec<String> = written
        .iter()
        .filter(|entry| matches!(entry.key.as_str(), "headers" | "query"))
        .flat_map(|entry| {
            let names = entry.node.entries().iter();
            names.map(move |inner| format!(" {}:{}", entry.key.trim_end_matches('s'), inner.key))
        })
        .collect();
    format!("{methods}{host}{path}{}", more.concat())
}

/// Whether it is over TLS, as written: where files are not read there is none.
fn over_tls(document: Option<&Node>, table: &str, name: &str) -> &'static str {
    let written = document.and_then(|document| document.get(table)?.get(name)?.get("tls"));
    if written.is_some() { " over TLS" } else { "" }
}

fn action(loaded: &Loaded, config: &Config, action: &Action) -> String {
    match action {
        Action::Respond(status, _) => format!("answers {}", status.as_u16()),
        Action::Forward(index) => match config.upstreams.get(*index) {
            Some(upstream) => match &upstream.target {
                Target::Echo => format!("{} (built-in echo)", upstream.name),
                Target::Servers(servers) => {
                    format!(
                        "{} ({} server{}{})",
                        upstream.name,
                        servers.len(),
                        plural(servers.len() as u64),
                        over_tls(loaded.document.as_ref(), "upstreams", &upstream.name)
                    )
                }
            },
            None => String::new(),
        },
    }
}

fn demand(demand: &Demand) -> String {
    let a_use = |a_use: &crate::check::Use| match cost(&a_use.price) {
        Some(cost) => format!("{} ({cost})", a_use.policy.name),
        None => a_use.policy.name.to_string(),
    };
    match demand {
        Demand::One(one) => a_use(one),
        Demand::FirstOf(uses) => {
            let uses: Vec<String> = uses.iter().map(a_use).collect();
            format!("first of {}", uses.join(" | "))
        }
    }
}

/// What a request costs, unless that is one unit.
fn cost(price: &Price) -> Option<String> {
    let (mut text, tariff) = match price {
        Price::Fixed(Cost::ONE) => return None,
        Price::Fixed(cost) => return Some(format!("cost {}", cost.units())),
        Price::Request(price) => (
            format!("cost by {}, else {}", price.from, price.default),
            &price.tariff,
        ),
        Price::Response(price) => (
            format!("cost by {}, {} at first", price.from, price.reserve),
            &price.tariff,
        ),
    };
    if let Some(max) = tariff.max {
        let _ = write!(text, ", at most {max}");
    }
    for (value, units) in &tariff.values {
        let _ = write!(text, ", {value} = {units}");
    }
    Some(text)
}

/// What a policy means, where gateways share a store or do not.
fn sentence(policy: &Policy, prefixes: Prefixes, is_shared: bool) -> String {
    let count = policy.limits.rule.count();
    let unit = match &policy.unit {
        Unit::Requests => String::new(),
        Unit::ContentBytes => " bytes".to_owned(),
        Unit::Custom(name) => format!(" {name}"),
    };
    let rule = match policy.limits.rule.limit() {
        Some(limit) => {
            let window = match policy.limits.rule.calendar() {
                Some(calendar) => calendar.unit().as_str().to_owned(),
                None => spaced(Duration::from_micros(limit.window_us.get())),
            };
            format!(" per {window}, {}", bound(&policy.limits.rule, &window))
        }
        None => " at once".to_owned(),
    };
    let mut text = format!(
        "{}: {}, {count}{unit}{rule}, {}",
        policy.name,
        policy.limits.rule.kind().replace('-', " "),
        counted_by(&policy.key, prefixes)
    );
    if let (Rule::Concurrency(rule), Scope::Shared, true) =
        (&policy.limits.rule, policy.scope, is_shared)
    {
        let lease = spaced(Duration::from_micros(rule.lease_us().get()));
        let _ = write!(text, ", free within {lease} of a gateway's death");
    }
    if let Some(penalty) = &policy.penalty {
        let steps = penalty.steps_us().iter();
        let steps: Vec<_> = steps
            .map(|step| spaced(Duration::from_micros(step.get())))
            .collect();
        let _ = write!(
            text,
            ", and denied for {} after a denial",
            steps.join(", then ")
        );
    }
    if policy.scope == Scope::Local {
        text.push_str(", in each gateway apart");
    }
    match (policy.preflights, policy.scope) {
        (true, Scope::Shared) => text.push_str(", preflights too"),
        (false, Scope::Local) => text.push_str(", but for preflights"),
        _ => {}
    }
    if let Some(lease) = policy.lease {
        let _ = write!(text, ", up to {lease} more for each gateway, taken ahead");
    }
    match policy.mode {
        Mode::Enforce => {}
        Mode::Shadow => text.push_str(" (shadow: counted, denies nothing)"),
        Mode::Off => text.push_str(" (off)"),
    }
    text
}

/// What the kind makes of the numbers: how many pass at once, and in any span of one window.
fn bound(rule: &Rule, window: &str) -> String {
    let count = rule.count().get();
    let twice = count.saturating_mul(2);
    match rule {
        Rule::FixedWindow(rule) => {
            let begin = match rule.anchor() {
                Anchor::Epoch => "by the clock".to_owned(),
                Anchor::FirstRequest => "from a caller's first request".to_owned(),
                Anchor::Calendar(calendar) => {
                    let edges = match calendar.unit() {
                        CalendarUnit::Day => "from midnight to midnight",
                        CalendarUnit::Week => "from Monday to Monday",
                        CalendarUnit::Month => "from the first to the first",
                    };
                    format!("{edges} in {}", calendar.zone())
                }
            };
            format!("counted {begin}, up to {twice} across an edge")
        }
        Rule::SlidingLog(_) => format!("never more than {count} in any {window}"),
        Rule::SlidingCounter(rule) if rule.strict() => {
            format!("estimated from two windows, never more than {count} in any {window}")
        }
        Rule::SlidingCounter(_) => {
            format!("estimated from two windows, just under {twice} in any {window} at worst")
        }
        Rule::TokenBucket(rule) => {
            let burst = rule.burst();
            let most = burst.saturating_add(count);
            format!("refilled continuously, at most {burst} at once, up to {most} in any {window}")
        }
        Rule::LeakyBucket(rule) => {
            let longest = rule.max_wait_us().map_or_else(String::new, |wait| {
                format!(", for {} at most", spaced(Duration::from_micros(wait)))
            });
            format!(
                "passed on evenly, up to {} wait their turn{longest}",
                rule.burst()
            )
        }
        Rule::Concurrency(_) => "at once".to_owned(),
    }
}

/// "per client address (/32, /64)".
fn counted_by(key: &[KeySource], prefixes: Prefixes) -> String {
    let parts: Vec<String> = key
        .iter()
        .map(|source| match source {
            KeySource::Ip => format!("client address (/{}, /{})", prefixes.ipv4, prefixes.ipv6),
            KeySource::IpPrefix(bits) => format!("client network /{bits}"),
            KeySource::Method => "method".to_owned(),
            KeySource::Host => "host".to_owned(),
            KeySource::Identity => "proven caller".to_owned(),
            KeySource::Tier => "plan".to_owned(),
            KeySource::Jwt(claim) => format!("token's {claim}"),
            KeySource::Route => "route".to_owned(),
            KeySource::Global => String::new(),
            named => named.to_string().replacen(':', " ", 1),
        })
        .filter(|part| !part.is_empty())
        .collect();
    if parts.is_empty() {
        "everybody together".to_owned()
    } else {
        format!("per {}", parts.join(" and "))
    }
}

/// `1h30m` as "1 h 30 min".
fn spaced(duration: Duration) -> String {
    let mut text = String::new();
    let mut letters = String::new();
    for c in duration_text(duration).chars().chain(['0']) {
        if c.is_ascii_digit() && !letters.is_empty() {
            let unit = if letters == "m" {
                "min"
            } else {
                letters.as_str()
            };
            let _ = write!(text, " {unit} ");
            letters.clear();
        }
        if c.is_ascii_digit() {
            text.push(c);
        } else {
            letters.push(c);
        }
    }
    text.pop();
    text.trim_end().to_owned()
}

fn plural(count: u64) -> &'static str {
    if count == 1 { "" } else { "s" }
}
