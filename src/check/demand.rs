//! From a route's policies to the checks of one request.

use std::sync::Arc;

use super::cost::{Body, Price, ResponsePrice};
use super::entity::{Caller, Entity, entity};
use super::tier::{Standing, Terms, Who};
use super::{Check, KeySecret, KeySource, Mode, OnMissingKey, Policy};
use crate::decide::Cost;

/// A policy at its place on a route.
#[derive(Clone, Debug)]
pub struct Use {
    /// The policy.
    pub policy: Arc<Policy>,
    /// What a request takes here.
    pub price: Price,
}

/// An item of a route's policy list.
#[derive(Clone, Debug)]
pub enum Demand {
    /// This policy.
    One(Use),
    /// The first of these whose key is present.
    FirstOf(Box<[Use]>),
}

impl Demand {
    /// Its policies, in the order in which they are asked for.
    #[must_use]
    pub fn uses(&self) -> &[Use] {
        match self {
            Self::One(only) => std::slice::from_ref(only),
            Self::FirstOf(alternatives) => alternatives,
        }
    }
}

/// What a request has to pass.
#[derive(Debug, Default)]
pub struct Demanded<'a> {
    /// The checks, in the order of the route's list.
    pub checks: Vec<Check<'a>>,
    /// Policies that do not apply since the caller, or the route, is exempt from them.
    pub exempt: Vec<&'a Policy>,
    /// Policies that do not apply since their key is missing.
    pub skipped: Vec<&'a Policy>,
    /// Policies that do not apply since the request is a preflight.
    pub uncounted: Vec<&'a Policy>,
    /// Enforced policies whose key is missing and that then deny.
    pub missing: Vec<&'a Policy>,
    /// Policies whose price the request does not say, or not so that it can be read: their default counts.
    pub unpriced: Vec<&'a Policy>,
    /// Prices that the answer will say. What is reserved for each is part of its policy's check.
    pub awaited: Vec<Awaited<'a>>,
    /// An enforced policy whose key has several values that differ: whom to count, nobody can say.
    pub ambiguous: Option<&'a Policy>,
}

/// A price that the answer will say.
#[derive(Clone, Copy, Debug)]
pub struct Awaited<'a> {
    /// The policy that it is of.
    pub policy: &'a Policy,
    /// The price.
    pub price: &'a Arc<ResponsePrice>,
}

/// Says what the request has to pass: reads the keys and the costs of the route's policies, and makes the checks, each
/// with the limits that its caller has. `body` is the request's, as far as it was read.
///
/// Of alternatives the first whose key is present counts, and the others say nothing; if none is, the last one's
/// `on_missing_key` rules. A policy in shadow denies nobody whose key is missing: it is skipped. One that stands in
/// the list twice takes both costs in one check. Whom an exemption spares a policy is not asked for its key.
///
/// Of a preflight only those policies are asked that count preflights. None denies it for a missing key: a preflight
/// carries no credentials, and what follows it does.
#[must_use]
pub fn demand<'a>(
    demands: &'a [Demand],
    caller: &Caller<'a>,
    body: Body<'_>,
    secret: &KeySecret,
    terms: Terms<'a>,
) -> Demanded<'a> {
    let is_preflight = is_preflight(caller);
    let counts = |u: &Use| !is_preflight || u.policy.preflights;
    let mut demanded = Demanded::default();
    let standing = terms.of(Who {
        ip: caller.client_ip,
        identity: caller.identity,
        route: caller.route,
    });
    let mut entities = Entities {
        caller,
        secret,
        known: Vec::new(),
    };
    for demand in demands {
        let mut on = demand.uses().iter().filter(|u| is_on(u));
        // The first whose key is present, else the last.
        let mut chosen = None;
        for place in on.clone().filter(|u| counts(u)) {
            let entity = entities.of(&place.policy.key);
            chosen = Some((place, entity));
            if entity.complete || entity.ambiguous {
                break;
            }
        }
        match chosen {
            Some((place, _)) if standing.is_exempt_from(&place.policy) => {
                demanded.exempt.push(&place.policy);
            }
            Some((place, entity)) => demanded.add(place, entity, &standing, caller, body),
            None => demanded
                .uncounted
                .extend(on.next_back().map(|last| &*last.policy)),
        }
    }
    demanded
}

/// Who shows who he is asks for more than a browser does before it asks.
fn is_preflight(caller: &Caller<'_>) -> bool {
    caller.request.is_preflight() && caller.identity.id.is_none()
}

fn is_on(place: &Use) -> bool {
    place.policy.mode != Mode::Off
}

impl<'a> Demanded<'a> {
    fn add(
        &mut self,
        place: &'a Use,
        entity: Entity,
        standing: &Standing<'a>,
        caller: &Caller<'_>,
        body: Body<'_>,
    ) {
        let is_preflight = is_preflight(caller);
        let policy: &'a Policy = &place.policy;
        let shadow = policy.mode == Mode::Shadow;
        match policy.on_missing_key {
            _ if entity.complete => {}
            _ if entity.ambiguous && shadow => return self.skipped.push(policy),
            _ if entity.ambiguous => {
                self.ambiguous.get_or_insert(policy);
                return;
            }
            OnMissingKey::Empty => {}
            OnMissingKey::Deny if !shadow && !is_preflight => return self.missing.push(policy),
            OnMissingKey::Deny | OnMissingKey::Skip => return self.skipped.push(policy),
        }
        let cost = self.cost(policy, &place.price, caller, body);
        if let Some(same) = self
            .checks
            .iter_mut()
            .find(|c| c.policy.name == policy.name)
        {
            same.cost = Cost::new(same.cost.units().saturating_add(cost.units()));
            return;
        }
        let (limits, _) = standing.limits(policy, entity.key);
        self.checks.push(Check {
            policy,
            limits,
            rule: &limits.rule,
            entity: entity.key,
            cost,
            shadow,
        });
    }

    /// What the request takes at first.
    fn cost(
        &mut self,
        policy: &'a Policy,
        price: &'a Price,
        caller: &Caller<'_>,
        body: Body<'_>,
    ) -> Cost {
        match price {
            Price::Fixed(cost) => *cost,
            Price::Request(price) => {
                let priced = price.read(caller.request, body);
                if priced.missing {
                    self.unpriced.push(policy);
                }
                priced.cost
            }
            Price::Response(price) => {
                self.awaited.push(Awaited { policy, price });
                Cost::new(price.reserve)
            }
        }
    }
}

/// Whom each key stands for on this request, read and hashed once.
struct Entities<'c> {
    caller: &'c Caller<'c>,
    secret: &'c KeySecret,
    known: Vec<(&'c [KeySource], Entity)>,
}

impl<'c> Entities<'c> {
    fn of(&mut self, key: &'c [KeySource]) -> Entity {
        if let Some((_, found)) = self.known.iter().find(|(known, _)| *known == key) {
            return *found;
        }
        let found = entity(key, self.caller, self.secret);
        self.known.push((key, found));
        found
    }
}
