//! What is known of a policy's usage by where it stands: whether it may be given back, and whether callers of different
//! limits are counted in it together.

use std::collections::BTreeSet;

use ipnet::IpNet;

use super::identity::ReadKeys;
use super::routes::uses_of;
use super::{by_name, value};
use crate::check::{KeySource, Scope};
use crate::client::address::Prefixes;
use crate::config::Store;
use crate::config::file::{File, Policy as Written};

/// The policies of which a request may be charged and given something back: since its answer may say that it cost less,
/// or since it may be denied after all. That is so beside those that each gateway counts apart, which are charged last,
/// and on a cluster beside those that count others, who are charged at the same time.
pub(super) fn given_back<'f>(file: &'f File, store: Option<&Store>) -> BTreeSet<&'f str> {
    let policies = by_name(file.policies.as_ref());
    let is_cluster = store.is_some_and(Store::is_cluster);
    let mut given_back = BTreeSet::new();
    for (_, route) in by_name(file.routes.as_ref()).values() {
        let items = || route.policies.iter().flat_map(|list| &list.value.items);
        let names: Vec<&str> = items()
            .flat_map(|item| uses_of(&item.value).0)
            .map(|a_use| a_use.policy.value.as_str())
            .collect();
        let used = || names.iter().filter_map(|name| policies.get(name));
        let beside_local = used().any(|(_, policy)| value(&policy.store) == Some(Scope::Local));
        let key = |policy: &Written| -> Option<Vec<KeySource>> {
            let sources = policy.key.as_ref()?.value.0.iter();
            Some(sources.map(|source| source.value.clone()).collect())
        };
        let mut keys = used().map(|(_, policy)| key(policy));
        let first = keys.next();
        let of_several = keys.any(|key| Some(key) != first);
        if beside_local || (is_cluster && of_several) {
            given_back.extend(names);
        }
        // What its answer will say may be less than what was reserved for it.
        for a_use in items().flat_map(|item| uses_of(&item.value).0) {
            let name = a_use.policy.value.as_str();
            let of_policy = policies
                .get(name)
                .and_then(|(_, policy)| policy.cost.as_ref());
            let cost = a_use.cost.as_ref().or(of_policy);
            if cost.is_some_and(|cost| cost.value.is_in_answer()) {
                given_back.insert(name);
            }
        }
    }
    given_back
}

/// The policies whose key counts callers together that may have different limits: a tier's, an override's, or their
/// own.
pub(super) fn uneven<'f>(file: &'f File, keys: Option<&'f ReadKeys>) -> BTreeSet<&'f str> {
    let policies = by_name(file.policies.as_ref());
    let sources = |name: &str| {
        let key = policies
            .get(name)
            .and_then(|(_, policy)| policy.key.as_ref());
        key.into_iter()
            .flat_map(|key| &key.value.0)
            .map(|at| &at.value)
    };
    let mut uneven = BTreeSet::new();
    let tiers = by_name(file.tiers.as_ref());
    let overrides = by_name(file.overrides.as_ref());
    let of_identities = tiers.values().map(|(_, tier)| &tier.limits).chain(
        overrides
            .values()
            .filter(|(_, written)| written.identity.is_some())
            .map(|(_, written)| &written.limits),
    );
    let of_identities = of_identities.flatten().flat_map(|limits| &limits.value.0);
    let of_identities = of_identities.map(|(name, _)| name.value.as_str());
    for name in of_identities.chain(keys.into_iter().flat_map(ReadKeys::limited)) {
        if !sources(name).any(|source| *source == KeySource::Identity) {
            uneven.insert(name);
        }
    }
    for (_, written) in overrides.values() {
        let networks = written.ip.iter().flat_map(|list| &list.value.items);
        let networks: Vec<&IpNet> = networks.map(|at| &at.value).collect();
        for (name, _) in written.limits.iter().flat_map(|limits| &limits.value.0) {
            let is_apart = |network: &&IpNet| {
                sources(&name.value).any(|source| tells_apart(source, network, prefixes(file)))
            };
            if !networks.iter().all(is_apart) {
                uneven.insert(name.value.as_str());
            }
        }
    }
    uneven
}

/// Whether nobody outside of the network is counted with somebody in it.
fn tells_apart(source: &KeySource, network: &IpNet, prefixes: Prefixes) -> bool {
    let counted = match (source, network) {
        (KeySource::Ip, IpNet::V4(_)) => prefixes.ipv4,
        (KeySource::IpPrefix(bits), IpNet::V4(_)) if *bits > 32 => prefixes.ipv4,
        (KeySource::Ip, IpNet::V6(_)) => prefixes.ipv6,
        (KeySource::IpPrefix(bits), _) => *bits,
        _ => return false,
    };
    network.prefix_len() <= counted
}

/// How much of an address counts as one client.
fn prefixes(file: &File) -> Prefixes {
    let written = file.client_ip.as_ref().map(|at| &at.value);
    let bits = |bits: u64, default| u8::try_from(bits).unwrap_or(default);
    let default = Prefixes::default();
    Prefixes {
        ipv4: written
            .and_then(|it| value(&it.ipv4_prefix))
            .map_or(default.ipv4, |it| bits(it.0, default.ipv4)),
        ipv6: written
            .and_then(|it| value(&it.ipv6_prefix))
            .map_or(default.ipv6, |it| bits(it.0, default.ipv6)),
    }
}
