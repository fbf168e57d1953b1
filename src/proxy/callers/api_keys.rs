//! The API keys in force.

use std::collections::HashSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tracing::{error, info};

use super::watched::Watched;
use crate::check::Identity;
use crate::client::sent::{Place, Sent};
use crate::config::{self, ApiKeys, Keys, LoadOptions, Names};
use crate::proxy::gateway::Gateway;
use crate::record::metrics::{Proof, Proven};
use crate::request::RequestView;

/// The API keys in force.
#[derive(Debug)]
pub(super) struct KeyRing {
    sent_in: Place,
    keys: ArcSwap<Keys>,
    watched: Watched,
}

impl KeyRing {
    /// None if the file was not to be read.
    pub(super) fn of(settings: &ApiKeys) -> Option<Self> {
        Some(Self {
            sent_in: settings.sent_in.clone(),
            keys: ArcSwap::new(Arc::clone(&settings.keys)),
            watched: Watched::new(settings.seen.clone()?),
        })
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.keys.load().len()
    }

    /// Who holds the key that a request sends, if it sends one.
    pub(super) fn holder(&self, request: &RequestView<'_>) -> (Option<Arc<Identity>>, Proof) {
        match self.sent_in.credential(request) {
            Sent::Missing => (None, Proof::Absent),
            Sent::Ambiguous => (None, Proof::Invalid),
            Sent::Value(key) => match self.keys.load().find(&key) {
                Some(holder) => (Some(Arc::clone(holder)), Proof::Ok),
                None => (None, Proof::Invalid),
            },
        }
    }

    /// Reads the file again if it has changed.
    pub(super) fn look_again(&self, settings: &ApiKeys, gateway: &Gateway) {
        self.watched.look_again(
            || {
                let config = &gateway.config;
                let policies: Vec<_> = (config.policies.iter())
                    .map(|policy| (&*policy.name, Some(policy)))
                    .collect();
                let mut tiers: Vec<&str> = config.plans.tiers.keys().map(|tier| &**tier).collect();
                tiers.sort_unstable();
                let names = Names {
                    policies: &policies,
                    tiers: (!tiers.is_empty()).then_some(&tiers),
                };
                let env = LoadOptions::from_process().env;
                let read = config::read_keys(&settings.file, names, &env);
                ((read.keys, read.diagnostics), read.seen)
            },
            |(keys, diagnostics)| {
                let families = gateway.metrics.families();
                let file = settings.file.display();
                families.keys_read(Proven::ByApiKey, keys.is_some());
                let Some(keys) = keys else {
                    for diagnostic in &diagnostics {
                        error!("{}", diagnostic.summary());
                    }
                    error!(%file, "API keys not taken: the ones before stay in force");
                    return;
                };
                info!(%file, keys = keys.len(), "API keys taken");
                families.keys_in_force(Proven::ByApiKey, keys.len());
                let limited: HashSet<&str> = (keys.holders())
                    .flat_map(|holder| holder.limits.iter())
                    .map(|(policy, _)| &**policy)
                    .collect();
                for policy in &gateway.config.policies {
                    if limited.contains(&*policy.name) {
                        policy.limits_a_holder();
                    }
                }
                self.keys.store(Arc::new(keys));
            },
        );
    }
}
