//! A configuration in words, and its schema.

use std::fmt::Write as _;
use std::time::Duration;

use super::decode::Table as _;
use super::file::File;
use super::units::duration_text;
use super::{Action, Config, StoreKind, Target};
use crate::check::{Demand, KeySource, Mode, Policy, Scope, Unit};
use crate::client::address::Prefixes;
use crate::decide::Rule;

/// JSON Schema draft-07 of the file.
#[must_use]
pub fn schema() -> serde_json::Value {
    File::table_shape().document()
}

/// What the configuration does, in words: each route, and what each policy means.
#[must_use]
pub fn summary(config: &Config) -> String {
    let mut text = String::new();
    let mut line = |words: String| {
        text.push_str(&words);
        text.push('\n');
    };
    let store = match &config.store.kind {
        StoreKind::Local => "in this process".to_owned(),
        StoreKind::Valkey(settings) => format!(
            "in Valkey at {}, shared by {} gateway{}",
            settings.address,
            config.store.instances,
            plural(config.store.instances.get().into())
        ),
    };
    for listener in &config.listeners {
        line(format!("listener {}: {}", listener.name, listener.address));
    }
    line(format!("usage is counted {store}"));
    for route in config.routes.iter() {
        let policies: Vec<String> = route.demands.iter().map(demand).collect();
        let policies = if policies.is_empty() {
            "no policy".to_owned()
        } else {
            policies.join(", ")
        };
        line(format!(
            "route {} -> {}: {policies}",
            route.name,
            action(config, &route.action)
        ));
    }
    for policy in &config.policies {
        line(format!(
            "policy {}",
            sentence(policy, config.client_ip.prefixes)
        ));
    }
    text
}

fn action(config: &Config, action: &Action) -> String {
    match action {
        Action::Respond(status, _) => format!("answers {}", status.as_u16()),
        Action::Forward(index) => match config.upstreams.get(*index) {
            Some(upstream) => match &upstream.target {
                Target::Echo => format!("{} (built-in echo)", upstream.name),
                Target::Servers(servers) => {
                    format!(
                        "{} ({} server{})",
                        upstream.name,
                        servers.len(),
                        plural(servers.len() as u64)
                    )
                }
            },
            None => String::new(),
        },
    }
}

fn demand(demand: &Demand) -> String {
    let a_use = |a_use: &crate::check::Use| match a_use.cost.units() {
        1 => a_use.policy.name.to_string(),
        cost => format!("{} (cost {cost})", a_use.policy.name),
    };
    match demand {
        Demand::One(one) => a_use(one),
        Demand::FirstOf(uses) => {
            let uses: Vec<String> = uses.iter().map(a_use).collect();
            format!("first of {}", uses.join(" | "))
        }
    }
}

/// What a policy means.
fn sentence(policy: &Policy, prefixes: Prefixes) -> String {
    let limit = policy.rule.limit();
    let count = limit.count.get();
    let unit = match &policy.unit {
        Unit::Requests => String::new(),
        Unit::ContentBytes => " bytes".to_owned(),
        Unit::Custom(name) => format!(" {name}"),
    };
    let window = spaced(Duration::from_micros(limit.window_us.get()));
    let rule = match &policy.rule {
        Rule::FixedWindow(_) => format!(
            "at most {} across an edge between two windows",
            count.saturating_mul(2)
        ),
        Rule::SlidingLog(_) => format!("never more than {count} in any {window}"),
        Rule::SlidingCounter(_) => {
            format!(
                "estimated from two windows, just under {} at worst",
                count.saturating_mul(2)
            )
        }
        Rule::TokenBucket(rule) => {
            let burst = rule.burst();
            format!(
                "refilled continuously, at most {burst} at once and {} in any {window}",
                burst.saturating_add(count)
            )
        }
        Rule::LeakyBucket(rule) => {
            format!("passed on evenly, at most {} wait their turn", rule.burst())
        }
    };
    let mut text = format!(
        "{}: {}, {count}{unit} per {window}, {rule}, {}",
        policy.name,
        policy.rule.kind().replace('-', " "),
        counted_by(&policy.key, prefixes)
    );
    if policy.scope == Scope::Local {
        text.push_str(", in each gateway apart");
    }
    match policy.mode {
        Mode::Enforce => {}
        Mode::Shadow => text.push_str(" (shadow: counted, denies nothing)"),
        Mode::Off => text.push_str(" (off)"),
    }
    text
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
