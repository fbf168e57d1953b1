//! Who is limited by other numbers than the policies', and who is not limited at all.
//!
//! Of all that may apply to a caller and a policy the first counts: an exemption, a grant, an override (by identity
//! before by network, the narrowest network first), the caller's own limits in the file of API keys, those of its
//! tier, the policy's.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::Policy;
use super::entity::EntityKey;
use super::grant::Granted;
use super::identity::Identity;
use super::limits::Limits;
use super::networks::{Networks, Place};
use crate::decide::Timestamp;

/// All that a configuration says of single callers and of groups of them.
#[derive(Debug, Default)]
pub struct Plans {
    /// `[tiers]`.
    pub tiers: HashMap<Arc<str>, Changes>,
    /// `[overrides]`.
    pub overrides: Matched<Changes>,
    /// `[exemptions]` of callers ...
    pub exemptions: Matched<Exempted>,
    /// ... and of routes.
    pub exempt_routes: HashMap<Arc<str>, Exempted>,
}

/// Something that is said of callers, by who they are and where they are.
#[derive(Debug)]
pub struct Matched<T> {
    /// By identity.
    pub identities: HashMap<Arc<str>, T>,
    /// By address.
    pub networks: Networks<T>,
}

/// Limits that stand in for those of some policies.
#[derive(Clone, Debug, Default)]
pub struct Changes(BTreeMap<usize, Change>);

/// One of them.
#[derive(Clone, Debug)]
pub struct Change {
    /// What stands in for the policy's limits.
    pub limits: Arc<Limits>,
    /// The name of the tier or override that says so.
    pub by: Arc<str>,
}

/// The policies that do not apply.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Exempted {
    /// None does.
    All,
    /// Those at these positions do not.
    Some(BTreeSet<usize>),
}

/// Why a caller's limits are what they are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Because<'a> {
    /// The policy says so.
    Policy,
    /// This tier does.
    Tier(&'a str),
    /// The file of API keys does.
    OwnKey,
    /// This override does.
    Override(&'a str),
    /// It was granted, until then.
    Grant(Timestamp),
}

/// What is in force beside the policies.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// What the configuration says.
    pub plans: &'a Plans,
    /// What was granted, and when it is by the store's clock.
    pub granted: Option<(&'a Granted, Timestamp)>,
}

/// A caller, as far as plans are about it.
#[derive(Clone, Copy, Debug)]
pub struct Who<'c> {
    /// Its address, if that is known.
    pub ip: Option<IpAddr>,
    /// Who that is, as far as it is proven.
    pub identity: &'c Identity,
    /// The name of the route that its request takes.
    pub route: &'c str,
}

/// What is in force of it for one caller: found once for a request.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'a> {
    terms: Terms<'a>,
    tier: Option<&'a Changes>,
    own: &'a [(Arc<str>, Arc<Limits>)],
    by_identity: Option<&'a Changes>,
    by_network: Option<Place>,
    exempt: [Option<&'a Exempted>; 2],
    exempt_by_network: Option<Place>,
}

impl Plans {
    /// Whether the policy at this position has other limits for some, but for what keys have of their own, or does not
    /// apply to some whom others do apply to.
    #[must_use]
    pub fn speak_of(&self, policy: usize) -> bool {
        let changes = self.tiers.values().chain(self.overrides.values());
        let exempted = self.exempt_routes.values().chain(self.exemptions.values());
        let mut exempted = exempted.filter(|exempted| **exempted != Exempted::All);
        changes
            .into_iter()
            .any(|changes| changes.of(policy).is_some())
            || exempted.any(|exempted| exempted.has(policy))
    }
}

impl<T> Default for Matched<T> {
    fn default() -> Self {
        Self {
            identities: HashMap::new(),
            networks: Networks::default(),
        }
    }
}

impl<T> Matched<T> {
    /// What is said of these; of one caller or network several times, it is merged.
    #[must_use]
    pub fn new(
        identities: impl IntoIterator<Item = (Arc<str>, T)>,
        networks: impl IntoIterator<Item = (IpNet, T)>,
        mut merge: impl FnMut(&mut T, T),
    ) -> Self {
        let mut by_id: HashMap<Arc<str>, T> = HashMap::new();
        for (id, value) in identities {
            match by_id.get_mut(&id) {
                Some(same) => merge(same, value),
                None => {
                    by_id.insert(id, value);
                }
            }
        }
        Self {
            identities: by_id,
            networks: Networks::new(networks, merge),
        }
    }
}

impl<T> Matched<T> {
    /// All that is said, of whomever.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.identities.values().chain(self.networks.values())
    }
}

impl Changes {
    /// What stands in for the limits of the policy at this position.
    #[must_use]
    pub fn of(&self, policy: usize) -> Option<&Change> {
        self.0.get(&policy)
    }

    /// Every policy that is changed, by position.
    pub fn all(&self) -> impl Iterator<Item = (usize, &Change)> {
        self.0.iter().map(|(policy, change)| (*policy, change))
    }

    /// Adds those of another that change other policies.
    pub fn add(&mut self, other: Self) {
        for (policy, change) in other.0 {
            self.0.entry(policy).or_insert(change);
        }
    }
}

impl FromIterator<(usize, Change)> for Changes {
    fn from_iter<I: IntoIterator<Item = (usize, Change)>>(changes: I) -> Self {
        Self(changes.into_iter().collect())
    }
}

impl Exempted {
    /// Adds those of another.
    pub fn add(&mut self, other: Self) {
        match (&mut *self, other) {
            (Self::Some(policies), Self::Some(more)) => policies.extend(more),
            (_, _) => *self = Self::All,
        }
    }

    fn has(&self, policy: usize) -> bool {
        match self {
            Self::All => true,
            Self::Some(policies) => policies.contains(&policy),
        }
    }
}

impl<'a> Terms<'a> {
    /// What is in force for this caller.
    #[must_use]
    pub fn of(self, caller: Who<'a>) -> Standing<'a> {
        let plans = self.plans;
        let id = caller.identity.id.as_deref();
        let tier = caller.identity.tier.as_deref();
        let (overridden, exempted) = (&plans.overrides, &plans.exemptions);
        Standing {
            terms: self,
            tier: tier.and_then(|tier| plans.tiers.get(tier)),
            own: &caller.identity.limits,
            by_identity: id.and_then(|id| overridden.identities.get(id)),
            by_network: caller.ip.and_then(|ip| overridden.networks.narrowest(ip)),
            exempt: [
                id.and_then(|id| exempted.identities.get(id)),
                plans.exempt_routes.get(caller.route),
            ],
            exempt_by_network: caller.ip.and_then(|ip| exempted.networks.narrowest(ip)),
        }
    }
}

impl<'a> Standing<'a> {
    /// Whether the policy does not apply.
    #[must_use]
    pub fn is_exempt_from(&self, policy: &Policy) -> bool {
        let networks = &self.terms.plans.exemptions.networks;
        let by_network = networks.from(self.exempt_by_network);
        self.exempt
            .into_iter()
            .flatten()
            .chain(by_network)
            .any(|exempted| exempted.has(policy.index))
    }

    /// The limits of this entity under the policy, and who says so.
    #[must_use]
    pub fn limits(&self, policy: &'a Policy, entity: EntityKey) -> (&'a Arc<Limits>, Because<'a>) {
        self.granted(policy, entity)
            .or_else(|| self.overridden(policy))
            .or_else(|| self.own(policy))
            .or_else(|| {
                let change = self.tier?.of(policy.index)?;
                Some((&change.limits, Because::Tier(&change.by)))
            })
            .unwrap_or((&policy.limits, Because::Policy))
    }

    fn granted(
        &self,
        policy: &Policy,
        entity: EntityKey,
    ) -> Option<(&'a Arc<Limits>, Because<'a>)> {
        let (granted, now) = self.terms.granted?;
        let grant = granted.find(entity, policy, now)?;
        Some((&grant.limits, Because::Grant(grant.ends_at)))
    }

    fn overridden(&self, policy: &Policy) -> Option<(&'a Arc<Limits>, Because<'a>)> {
        let networks = &self.terms.plans.overrides.networks;
        let mut all = self
            .by_identity
            .into_iter()
            .chain(networks.from(self.by_network));
        let change = all.find_map(|changes| changes.of(policy.index))?;
        Some((&change.limits, Because::Override(&change.by)))
    }

    fn own(&self, policy: &Policy) -> Option<(&'a Arc<Limits>, Because<'a>)> {
        let mut own = self.own.iter();
        let (_, limits) = own.find(|(name, _)| *name == policy.name)?;
        Some((limits, Because::OwnKey))
    }
}
