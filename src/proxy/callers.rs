//! Who calls, as far as it is proven: by an API key, or by a trusted proxy's word for the plan.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tracing::{error, info};

use super::gateway::Gateway;
use super::watch::Looks;
use crate::check::Identity;
use crate::client::Client;
use crate::client::sent::{Place, Sent};
use crate::config::{self, ApiKeys, Config, Keys, LoadOptions, Look, Names, Seen, is_name};
use crate::record::metrics::{Families, Proof, Proven};
use crate::request::RequestView;

/// What callers are known by.
#[derive(Debug)]
pub struct Callers {
    api_keys: Option<KeyRing>,
    tier_header: Option<Place>,
}

/// The API keys in force.
#[derive(Debug)]
struct KeyRing {
    sent_in: Place,
    keys: ArcSwap<Keys>,
    watched: Mutex<Watched>,
}

/// A file that is read again when it changes.
#[derive(Debug)]
struct Watched {
    /// As it was last read, taken or not.
    seen: Seen,
    looks: Looks<Look>,
}

impl Callers {
    /// Those that this configuration knows.
    #[must_use]
    pub fn of(config: &Config, families: &Families) -> Self {
        let identity = &config.identity;
        let api_keys = identity.api_key.as_ref().and_then(KeyRing::of);
        families.keys_in_force(
            Proven::ByApiKey,
            api_keys.as_ref().map_or(0, |ring| ring.keys.load().len()),
        );
        Self {
            api_keys,
            tier_header: config.client_ip.tier_header.clone().map(Place::Header),
        }
    }

    /// Who calls. What does not prove anything is counted, and is nobody.
    #[must_use]
    pub fn identify(
        &self,
        request: &RequestView<'_>,
        client: Client,
        families: &Families,
    ) -> Identity {
        let mut identity = self
            .api_keys
            .as_ref()
            .and_then(|ring| ring.holder(request, families))
            .map_or_else(Identity::default, |holder| Identity::clone(&holder));
        if identity.tier.is_none() && client.through_trusted {
            identity.tier = self.told_tier(request);
        }
        identity
    }

    /// The tier that a trusted proxy names.
    fn told_tier(&self, request: &RequestView<'_>) -> Option<Arc<str>> {
        let Sent::Value(value) = self.tier_header.as_ref()?.credential(request) else {
            return None;
        };
        let name = std::str::from_utf8(&value).ok()?;
        is_name(name).then(|| name.into())
    }

    /// Reads the files of keys that have changed, and have stopped changing. Blocks.
    pub fn look_again(&self, gateway: &Gateway) {
        let (Some(ring), Some(settings)) = (&self.api_keys, &gateway.config.identity.api_key)
        else {
            return;
        };
        ring.look_again(settings, gateway);
    }
}

impl KeyRing {
    /// None if the file was not to be read.
    fn of(settings: &ApiKeys) -> Option<Self> {
        Some(Self {
            sent_in: settings.sent_in.clone(),
            keys: ArcSwap::new(Arc::clone(&settings.keys)),
            watched: Mutex::new(Watched {
                seen: settings.seen.clone()?,
                looks: Looks::new(),
            }),
        })
    }

    fn holder(&self, request: &RequestView<'_>, families: &Families) -> Option<Arc<Identity>> {
        let (holder, proof) = match self.sent_in.credential(request) {
            Sent::Missing => (None, Proof::Absent),
            Sent::Ambiguous => (None, Proof::Invalid),
            Sent::Value(key) => match self.keys.load().find(&key) {
                Some(holder) => (Some(Arc::clone(holder)), Proof::Ok),
                None => (None, Proof::Invalid),
            },
        };
        families.identified(Proven::ByApiKey, proof);
        holder
    }

    fn look_again(&self, settings: &ApiKeys, gateway: &Gateway) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if !watched.is_to_be_read() {
            return;
        }
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
        let env: BTreeMap<_, _> = LoadOptions::from_process().env;
        let read = config::read_keys(&settings.file, names, &env);
        let changed = read.seen.content != watched.seen.content;
        watched.seen = read.seen;
        if !changed {
            return;
        }
        let families = gateway.metrics.families();
        families.keys_read(Proven::ByApiKey, read.keys.is_some());
        let file = settings.file.display();
        match read.keys {
            Some(keys) => {
                info!(%file, keys = keys.len(), "API keys taken");
                families.keys_in_force(Proven::ByApiKey, keys.len());
                self.keys.store(Arc::new(keys));
            }
            None => {
                for diagnostic in &read.diagnostics {
                    error!("{}", diagnostic.summary());
                }
                error!(%file, "API keys not taken: the ones before stay in force");
            }
        }
    }
}

impl Watched {
    fn is_to_be_read(&mut self) -> bool {
        let now = self.seen.look.again();
        self.looks.tell_to_read(now != self.seen.look, now)
    }
}
