//! What is in force, to be compared with what is to be.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::load::Loaded;
use super::{Config, dump};

/// The settings in force, each by its whole name, as `dump` writes them: without secrets.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Effective(BTreeMap<String, String>);

impl Effective {
    /// Of a configuration that was read; `None` if something was wrong with it.
    #[must_use]
    pub fn of(loaded: &Loaded) -> Option<Self> {
        let text = dump(loaded)?;
        let mut settings = BTreeMap::new();
        let mut section = String::new();
        for line in text.lines() {
            if let Some(name) = line
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
            {
                name.clone_into(&mut section);
                // A section may have nothing in it, and still be there.
                settings.insert(section.clone(), String::new());
            } else if let Some((key, value)) = line.split_once(" = ") {
                let name = if section.is_empty() {
                    key.to_owned()
                } else {
                    format!("{section}.{key}")
                };
                settings.insert(name, value.to_owned());
            }
        }
        Some(Self(settings))
    }

    /// What changes with `next`, a line each. `policies` are those that both have, and whether their counters go on.
    #[must_use]
    pub fn changes(&self, next: &Self, policies: &[(Arc<str>, bool)]) -> Vec<String> {
        let fate = |name: &str| {
            let mut parts = name.split('.');
            let kept = match (parts.next()?, parts.next()?, parts.next()) {
                ("policies", policy, _) => policies.iter().find(|(known, _)| **known == *policy)?.1,
                // Other numbers are all that they put in a policy's place.
                ("tiers" | "overrides", _, Some("limits")) => true,
                _ => return None,
            };
            Some(if kept {
                "   (counters kept)"
            } else {
                "   (counters restart)"
            })
        };
        let mut changes = Vec::new();
        for (name, value) in &next.0 {
            match self.0.get(name) {
                None if value.is_empty() => changes.push(format!("+ {name}")),
                None => changes.push(format!("+ {name} = {value}")),
                Some(before) if before != value => changes.push(format!(
                    "~ {name}   {before} -> {value}{}",
                    fate(name).unwrap_or_default()
                )),
                Some(_) => {}
            }
        }
        for (name, value) in &self.0 {
            if !next.0.contains_key(name) {
                changes.push(if value.is_empty() {
                    format!("- {name}")
                } else {
                    format!("- {name} = {value}")
                });
            }
        }
        changes
    }
}

impl Config {
    /// What differs from the running configuration and cannot change while it runs.
    #[must_use]
    pub fn cannot_follow(&self, running: &Self) -> Vec<&'static str> {
        let (server, was) = (&self.server, &running.server);
        let (store, had) = (&self.store, &running.store);
        let secret_changes = store.key_secret_is_given != had.key_secret_is_given
            || (store.key_secret_is_given && store.key_secret != had.key_secret);
        [
            (as_bound(self) != as_bound(running), "listeners"),
            (
                admin_as_bound(self) != admin_as_bound(running),
                "admin.address, or whether it wants a token",
            ),
            (self.metrics != running.metrics, "metrics"),
            (server.threads != was.threads, "server.threads"),
            (
                server.grace_period != was.grace_period,
                "server.grace_period",
            ),
            (
                server.header_timeout != was.header_timeout,
                "server.limits.header_timeout",
            ),
            (server.max_waiting != was.max_waiting, "server.max_waiting"),
            (store.kind.leads_elsewhere(&had.kind), "the store's address"),
            (store.prefix != had.prefix, "store.prefix"),
            (store.max_keys != had.max_keys, "store.local.max_keys"),
            (store.snapshot != had.snapshot, "store.local.snapshot"),
            (secret_changes, "store.key_secret_file"),
            (self.logs.json != running.logs.json, "logs.format"),
            (self.logs.level != running.logs.level, "logs.level"),
        ]
        .into_iter()
        .filter_map(|(differs, what)| differs.then_some(what))
        .collect()
    }

    /// What nobody could tell from the running one stays that: clients that come back are then known.
    pub fn keep_tls(&mut self, running: &Self) {
        for listener in &mut self.listeners {
            let same = running.listeners.iter().find(|r| r.name == listener.name);
            let before = same.and_then(|same| same.tls.as_ref());
            if let (Some(tls), Some(before)) = (&mut listener.tls, before)
                && tls.is_like(before)
            {
                *tls = before.clone();
            }
        }
    }

    /// A secret that was made up at the start stays: another would forget whom was counted.
    pub fn keep_made_up_secret(&mut self, running: &Self) {
        if !self.store.key_secret_is_given {
            self.store.key_secret = running.store.key_secret.clone();
        }
    }
}

/// What is settled of the listeners at the start: TLS, and another certificate, may follow.
fn as_bound(config: &Config) -> Vec<(&str, SocketAddr)> {
    let listeners = config.listeners.iter();
    listeners
        .map(|listener| (&*listener.name, listener.address))
        .collect()
}

/// What is settled of the admin API at the start; another token may follow.
fn admin_as_bound(config: &Config) -> Option<(SocketAddr, bool)> {
    let admin = config.admin.as_ref()?;
    Some((admin.address, admin.token.is_some()))
}
