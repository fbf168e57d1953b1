//! Decides a whole request, whichever stores its policies count in.
//!
//! Policies of this process are asked first, so that a flood stopped here costs no round trip. What they charged is
//! given back when the shared store then denies, or when a policy that needs it cannot have it. A place in a leaky
//! bucket cannot be, once others stand behind it: it is taken last, when everybody else has allowed.

use std::time::Duration;

use super::local::{LocalStore, Outage};
use super::valkey::ValkeyStore;
use super::{Store, StoreError};
use crate::check::{Check, OnStoreFailure, Policy, Ruling, Scope, Source};
use crate::clock::monotonic_now;
use crate::decide::{Cost, Decision, Rule, Timestamp, Verdict};

/// Both stores, and what becomes of a request when the shared one fails.
#[derive(Debug)]
pub struct Limiter {
    local: LocalStore,
    shared: Option<ValkeyStore>,
}

/// What became of a request's checks.
#[derive(Debug, Default)]
pub struct Outcome<'a> {
    /// The decisions there are, in the order of the checks.
    pub rulings: Vec<Ruling<'a>>,
    /// An enforced policy that denies since there is no decision for it.
    pub unavailable: Option<&'a Policy>,
    /// Why the shared store gave no decision.
    pub failure: Option<StoreError>,
    /// How long the shared store took, if it was asked.
    pub store_took: Option<Duration>,
}

impl Outcome<'_> {
    /// The rulings in the order of `checks`.
    fn in_order(mut self, checks: &[Check<'_>]) -> Self {
        self.rulings
            .sort_by_key(|ruling| position(checks, ruling.check.policy));
        self
    }

    /// Whether the request may pass.
    #[must_use]
    pub fn allows(&self) -> bool {
        self.unavailable.is_none() && !self.rulings.iter().any(Ruling::denies)
    }
}

impl Limiter {
    /// Without a shared store, every policy counts in `local`.
    #[must_use]
    pub const fn new(local: LocalStore, shared: Option<ValkeyStore>) -> Self {
        Self { local, shared }
    }

    /// The store in process.
    #[must_use]
    pub const fn local(&self) -> &LocalStore {
        &self.local
    }

    /// The shared store, if there is one.
    #[must_use]
    pub const fn shared(&self) -> Option<&ValkeyStore> {
        self.shared.as_ref()
    }

    /// Decides all of `checks`, and charges every one of them or none.
    ///
    /// Denied in process, the shared store is not asked and has no ruling. Returns within the store's deadline.
    pub async fn decide<'a>(&self, checks: &[Check<'a>]) -> Outcome<'a> {
        let Some(shared_store) = &self.shared else {
            return self.decide_here(checks).0;
        };
        let (local, shared): (Vec<_>, Vec<_>) = checks
            .iter()
            .copied()
            .partition(|check| check.policy.scope == Scope::Local);
        if shared.is_empty() {
            return self.decide_here(&local).0;
        }
        let (queues, local): (Vec<_>, Vec<_>) = local
            .into_iter()
            .partition(|check| matches!(check.rule, Rule::LeakyBucket(_)));
        let (mut here, charged_at) = self.decide_here(&local);
        if !here.allows() {
            return here;
        }
        if let Some(mut full) = self.full(&queues) {
            self.give_back(&mut here, charged_at);
            full.rulings.append(&mut here.rulings);
            return full.in_order(checks);
        }
        let asked_at = monotonic_now();
        let decided = shared_store.decide(&shared).await;
        // What was counted here is forgotten once the store decides again.
        let outage = Outage::after(shared_store.recoveries());
        self.local.set_outage(outage);
        let store_took = Some(monotonic_now().saturating_duration_since(asked_at));
        let mut there = match decided {
            Ok(decisions) => Outcome {
                rulings: ruled(&shared, decisions, Source::Store),
                ..Outcome::default()
            },
            Err(error) => self.without_store(&shared, error, outage, shared_store.instances()),
        };
        if there.allows() {
            // Full after all, by those who came meanwhile: then what the shared store charged stays charged.
            let (mut last, _) = self.decide_here(&queues);
            there.rulings.append(&mut last.rulings);
            there.unavailable = last.unavailable;
            there.failure = there.failure.or(last.failure);
        }
        if !there.allows() {
            self.give_back(&mut here, charged_at);
            if !there
                .rulings
                .iter()
                .any(|ruling| is_one_of(ruling, &queues))
            {
                there.rulings.append(&mut self.looked_at(&queues));
            }
        }
        there.store_took = store_took;
        there.rulings.append(&mut here.rulings);
        there.in_order(checks)
    }

    /// What these checks find, taking nothing.
    fn looked_at<'a>(&self, checks: &[Check<'a>]) -> Vec<Ruling<'a>> {
        let looks: Vec<_> = checks
            .iter()
            .map(|check| Check {
                cost: Cost::new(0),
                ..*check
            })
            .collect();
        let mut rulings = self.decide_here(&looks).0.rulings;
        for (ruling, check) in rulings.iter_mut().zip(checks) {
            ruling.check = *check;
            ruling.decision.delay_us = 0;
        }
        rulings
    }

    /// The denial of queues that have no room for these checks, if that is so.
    fn full<'a>(&self, queues: &[Check<'a>]) -> Option<Outcome<'a>> {
        let has_room = |found: &Ruling<'_>| {
            found.check.shadow || found.decision.remaining >= found.check.cost.units()
        };
        if self.looked_at(queues).iter().all(has_room) {
            return None;
        }
        let (outcome, taken_at) = self.decide_here(queues);
        if outcome.allows() {
            // It has drained since: the place is given back at once, while nobody stands behind it.
            let mut taken = outcome;
            self.give_back(&mut taken, taken_at);
            return None;
        }
        Some(outcome)
    }

    /// Decides in process; also says when, for a refund.
    fn decide_here<'a>(&self, checks: &[Check<'a>]) -> (Outcome<'a>, Timestamp) {
        if checks.is_empty() {
            return (Outcome::default(), Timestamp::default());
        }
        outcome_here(checks, self.local.decide_now(checks), Source::Local)
    }

    /// What the policies want when the shared store gives no decision.
    fn without_store<'a>(
        &self,
        checks: &[Check<'a>],
        error: StoreError,
        outage: Outage,
        instances: u32,
    ) -> Outcome<'a> {
        let denying = checks
            .iter()
            .find(|check| !check.shadow && check.policy.on_store_failure == OnStoreFailure::Deny);
        if let Some(check) = denying {
            return Outcome {
                unavailable: Some(check.policy),
                failure: Some(error),
                ..Outcome::default()
            };
        }
        let fallback: Vec<_> = checks
            .iter()
            .filter(|check| check.policy.on_store_failure == OnStoreFailure::Local)
            .map(|check| Check {
                rule: check.policy.shares.among(instances),
                ..*check
            })
            .collect();
        if fallback.is_empty() {
            return Outcome {
                failure: Some(error),
                ..Outcome::default()
            };
        }
        let decided = self.local.decide_in(outage, &fallback);
        let (outcome, _) = outcome_here(&fallback, decided, Source::Fallback);
        Outcome {
            failure: Some(error),
            ..outcome
        }
    }

    /// Undoes what was charged in process, and looks again, so that the answer tells what is left.
    fn give_back(&self, here: &mut Outcome<'_>, charged_at: Timestamp) {
        let charged: Vec<_> = here
            .rulings
            .iter()
            .filter(|ruling| ruling.decision.verdict == Verdict::Allow)
            .map(|ruling| (ruling.check, ruling.decision))
            .collect();
        if charged.is_empty() {
            return;
        }
        self.local.refund(&charged, charged_at);
        let checks: Vec<_> = here.rulings.iter().map(|ruling| ruling.check).collect();
        for (ruling, found) in here.rulings.iter_mut().zip(self.looked_at(&checks)) {
            ruling.decision.remaining = found.decision.remaining;
            ruling.decision.reset_after_us = found.decision.reset_after_us;
            ruling.decision.delay_us = 0;
        }
    }
}

/// What a decision in process comes to.
fn outcome_here<'a>(
    checks: &[Check<'a>],
    decided: Result<(Timestamp, Vec<Decision>), StoreError>,
    source: Source,
) -> (Outcome<'a>, Timestamp) {
    match decided {
        Ok((at, decisions)) => {
            let outcome = Outcome {
                rulings: ruled(checks, decisions, source),
                ..Outcome::default()
            };
            (outcome, at)
        }
        // Full of debtors: there is no other place to count in, so what is not to be let through is denied.
        Err(error) => {
            let outcome = Outcome {
                unavailable: checks
                    .iter()
                    .find(|check| {
                        !check.shadow && check.policy.on_store_failure != OnStoreFailure::Allow
                    })
                    .map(|check| check.policy),
                failure: Some(error),
                ..Outcome::default()
            };
            (outcome, Timestamp::default())
        }
    }
}

fn ruled<'a>(checks: &[Check<'a>], decisions: Vec<Decision>, source: Source) -> Vec<Ruling<'a>> {
    checks
        .iter()
        .zip(decisions)
        .map(|(&check, decision)| Ruling {
            check,
            decision,
            source,
        })
        .collect()
}

fn is_one_of(ruling: &Ruling<'_>, checks: &[Check<'_>]) -> bool {
    position(checks, ruling.check.policy) < checks.len()
}

fn position(checks: &[Check<'_>], policy: &Policy) -> usize {
    checks
        .iter()
        .position(|check| check.policy.index == policy.index)
        .unwrap_or(usize::MAX)
}
