//! Decides a whole request, whichever stores its policies count in.
//!
//! Policies of this process are looked at first, so that a flood stopped here costs no round trip, and charged last,
//! when the shared store has allowed: what it denies charges nothing here. What was charged there is given back if a
//! policy of this process denies at that moment, since others came meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::local::{LocalStore, Outage};
use super::valkey::grants::InForce;
use super::valkey::{Reserved, Spared, ValkeyStore};
use super::{Settlement, StoreError, charged};
use crate::check::{Check, OnStoreFailure, Policy, Ruling, Scope, Source};
use crate::clock::monotonic_now;
use crate::decide::{Charge, Cost, Decision, Settled, Timestamp, Verdict};

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
    /// What spared asking it, if something did.
    pub spared_by: Option<Spared>,
    /// What was charged of policies whose charges may be given back, if the request may pass.
    pub charged: Vec<Charged<'a>>,
}

/// A charge, and where it stands.
#[derive(Clone, Copy, Debug)]
pub struct Charged<'a> {
    /// What was charged for.
    pub check: Check<'a>,
    /// What it took.
    pub charge: Charge,
    /// Where it stands.
    pub ledger: Ledger,
}

/// Where a charge stands.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Ledger {
    /// In the shared store.
    Shared,
    /// In process: in an outage of the shared store, if it was counted in one.
    Local(Outage),
}

impl<'a> Outcome<'a> {
    /// Adds what was decided of other checks of the request. What failed first is what is told.
    fn add(&mut self, other: Self) {
        self.rulings.extend(other.rulings);
        self.unavailable = self.unavailable.or(other.unavailable);
        self.failure = self.failure.take().or(other.failure);
        self.charged.extend(other.charged);
    }

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

    /// What was granted in the shared store, if anything was.
    #[must_use]
    pub fn granted(&self) -> Option<Arc<InForce>> {
        self.shared.as_ref()?.granted()
    }

    /// Decides all of `checks`, and charges every one of them or none.
    ///
    /// Denied in process, the shared store is not asked and has no ruling. Returns within the store's deadline; to give
    /// back what was charged takes as much again, at most.
    pub async fn decide<'a>(&self, checks: &[Check<'a>]) -> Outcome<'a> {
        let Some(store) = &self.shared else {
            return self.decide_here(checks).kept();
        };
        let (local, shared): (Vec<_>, Vec<_>) = checks
            .iter()
            .copied()
            .partition(|check| check.policy.scope == Scope::Local);
        if shared.is_empty() {
            return self.decide_here(&local).kept();
        }
        if let Some(denied) = self.denied_here(&local) {
            return denied;
        }
        let asked_at = monotonic_now();
        let mut reserved = store.reserve(&shared).await;
        // What was counted here is forgotten once the store decides again.
        let outage = Outage::after(store.recoveries());
        self.local.set_outage(outage);
        let fallback = self.without_store(&mut reserved, outage, store);
        let mut here = Booked::default();
        if !reserved.denies() && fallback.outcome.allows() {
            here = self.decide_here(&local);
        }
        let allows = !reserved.denies() && fallback.outcome.allows() && here.outcome.allows();
        let in_process = if allows {
            [fallback, here].map(Booked::kept)
        } else {
            store.give_back(&mut reserved).await;
            if here.outcome.rulings.is_empty() {
                here.outcome.rulings = self.looked_at(&local, None);
            }
            [fallback, here].map(|booked| self.without_charges(booked))
        };
        let took = monotonic_now().saturating_duration_since(asked_at);
        let mut outcome = Outcome {
            charged: to_settle(reserved.charged, Ledger::Shared),
            rulings: ruled(reserved.decided, Source::Store),
            store_took: Some(took).filter(|_| reserved.spared_by.is_none()),
            spared_by: reserved.spared_by,
            ..Outcome::default()
        };
        for other in in_process {
            outcome.add(other);
        }
        outcome.in_order(checks)
    }

    /// Settles what requests were charged, and says what a look at cost 0 finds then, in their order: nothing where
    /// that is not known.
    ///
    /// Returns within the store's deadline. What the shared store did not settle by then stays as it was charged, or
    /// not: it is not tried again, and why it was not is returned, too.
    pub async fn settle(
        &self,
        settlements: &[(Charged<'_>, Settled)],
    ) -> (Vec<Option<Decision>>, Option<StoreError>) {
        let mut found = vec![None; settlements.len()];
        let mut shared = (Vec::new(), Vec::new());
        for ((charged, settled), found) in settlements.iter().zip(&mut found) {
            let settlement = Settlement {
                check: charged.check,
                charge: charged.charge,
                settled: *settled,
            };
            match charged.ledger {
                Ledger::Local(outage) => {
                    self.local.settle(outage, &[settlement]);
                    let outage = Some(outage).filter(|outage| *outage != Outage::default());
                    let looked = self.looked_at(&[charged.check], outage);
                    *found = looked.first().map(|ruling| ruling.decision);
                }
                Ledger::Shared => {
                    shared.0.push(settlement);
                    shared.1.push(found);
                }
            }
        }
        let (settlements, places) = shared;
        let mut failure = None;
        if let Some(store) = &self.shared
            && !settlements.is_empty()
        {
            let left = store.settle(&settlements).await;
            failure = left.failure;
            for (place, left) in places.into_iter().zip(left.decisions) {
                *place = left;
            }
        }
        (found, failure)
    }

    /// What was lent is given back: here at once, to the shared store in the background. Waits for nothing.
    pub fn release(&self, charged: &Charged<'_>) {
        match charged.ledger {
            Ledger::Shared => {
                if let Some(store) = &self.shared {
                    store.release(&charged.check);
                }
            }
            Ledger::Local(outage) => {
                let settlement = Settlement::given_back((charged.check, charged.charge));
                self.local.settle(outage, &[settlement]);
            }
        }
    }

    /// What these checks find, in an outage or not, taking nothing.
    fn looked_at<'a>(&self, checks: &[Check<'a>], outage: Option<Outage>) -> Vec<Ruling<'a>> {
        let looks: Vec<_> = checks
            .iter()
            .map(|check| Check {
                cost: Cost::NONE,
                ..*check
            })
            .collect();
        let mut rulings = self.decide_in_process(&looks, outage).outcome.rulings;
        for (ruling, check) in rulings.iter_mut().zip(checks) {
            ruling.check = *check;
            ruling.decision.delay_us = 0;
        }
        rulings
    }

    /// The denial of the policies of this process, if one of them denies as things are.
    fn denied_here<'a>(&self, checks: &[Check<'a>]) -> Option<Outcome<'a>> {
        let has_room = |found: &Ruling<'_>| {
            found.check.shadow || found.decision.remaining >= found.check.cost.units()
        };
        if self.looked_at(checks, None).iter().all(has_room) {
            return None;
        }
        let taken = self.decide_here(checks);
        if taken.outcome.allows() {
            // There is room since: what was taken is given back at once, and taken when its turn comes.
            self.without_charges(taken);
            return None;
        }
        Some(taken.outcome)
    }

    fn decide_here<'a>(&self, checks: &[Check<'a>]) -> Booked<'a> {
        self.decide_in_process(checks, None)
    }

    /// Decides in process, in an outage or not.
    fn decide_in_process<'a>(&self, checks: &[Check<'a>], outage: Option<Outage>) -> Booked<'a> {
        if checks.is_empty() {
            return Booked::default();
        }
        let source = outage.map_or(Source::Local, |_| Source::Fallback);
        match self.local.decide_in(outage.unwrap_or_default(), checks) {
            Ok((at, decisions)) => Booked {
                charged: charged(checks, &decisions, at),
                lent: Vec::new(),
                outcome: Outcome {
                    rulings: ruled(checks.iter().copied().zip(decisions), source),
                    ..Outcome::default()
                },
                outage,
            },
            // Full of debtors: there is no other place to count in, so what is not to be let through is denied.
            Err(error) => Booked::from(Outcome {
                unavailable: first_enforced(checks, |on_failure| {
                    on_failure != OnStoreFailure::Allow
                }),
                failure: Some(error),
                ..Outcome::default()
            }),
        }
    }

    /// What the policies want that the shared store gave no decision for.
    fn without_store<'a>(
        &self,
        reserved: &mut Reserved<'a>,
        outage: Outage,
        store: &ValkeyStore,
    ) -> Booked<'a> {
        let Some(failure) = reserved.failure.take() else {
            return Booked::default();
        };
        let denying = first_enforced(&reserved.failed, |on_failure| {
            on_failure == OnStoreFailure::Deny
        });
        if denying.is_some() {
            return Booked::from(Outcome {
                unavailable: denying,
                failure: Some(failure),
                ..Outcome::default()
            });
        }
        let instances = store.instances();
        let fallback: Vec<_> = reserved
            .failed
            .iter()
            .filter(|check| check.policy.on_store_failure == OnStoreFailure::Local)
            .map(|check| Check {
                rule: check.limits.shares.among(instances),
                ..*check
            })
            .collect();
        let (lent, counted): (Vec<_>, Vec<_>) =
            fallback.into_iter().partition(|check| check.rule.lends());
        let mut booked = take_alone(store, &lent);
        if booked.outcome.allows() {
            booked.add(self.decide_in_process(&counted, Some(outage)));
        } else {
            let looked = self.looked_at(&counted, Some(outage));
            booked.outcome.rulings.extend(looked);
        }
        booked.outcome.failure = Some(failure);
        booked
    }

    /// Undoes what was charged in process, and looks again, so that the answer tells what is left.
    fn without_charges<'a>(&self, booked: Booked<'a>) -> Outcome<'a> {
        let Booked {
            mut outcome,
            charged,
            lent,
            outage,
        } = booked;
        for (check, _) in lent {
            if let Some(store) = &self.shared {
                store.release(&check);
            }
            let is_of = |ruling: &&mut Ruling<'_>| ruling.check.policy.index == check.policy.index;
            if let Some(ruling) = outcome.rulings.iter_mut().find(is_of) {
                ruling.decision.give_back(check.rule, check.cost);
            }
        }
        if charged.is_empty() {
            return outcome;
        }
        let settlements: Vec<_> = charged.into_iter().map(Settlement::given_back).collect();
        self.local.settle(outage.unwrap_or_default(), &settlements);
        let is_counted = |ruling: &&mut Ruling<'_>| outage.is_none() || !ruling.check.rule.lends();
        let mut counted: Vec<_> = outcome.rulings.iter_mut().filter(is_counted).collect();
        let checks: Vec<_> = counted.iter().map(|ruling| ruling.check).collect();
        for (ruling, found) in counted.iter_mut().zip(self.looked_at(&checks, outage)) {
            ruling.decision.tell_of(&found.decision);
        }
        outcome
    }
}

/// An outcome in process, and what it charged there.
#[derive(Debug, Default)]
struct Booked<'a> {
    outcome: Outcome<'a>,
    charged: Vec<(Check<'a>, Charge)>,
    /// What it was lent of the shared store's, without asking there.
    lent: Vec<(Check<'a>, Charge)>,
    /// The outage of the shared store that it is counted in, if it is.
    outage: Option<Outage>,
}

impl<'a> Booked<'a> {
    /// The outcome, of which what was charged stays charged.
    fn kept(mut self) -> Outcome<'a> {
        let ledger = Ledger::Local(self.outage.unwrap_or_default());
        self.outcome.charged = to_settle(self.charged, ledger);
        self.outcome
            .charged
            .extend(to_settle(self.lent, Ledger::Shared));
        self.outcome
    }

    fn add(&mut self, other: Self) {
        self.outcome.add(other.outcome);
        self.charged.extend(other.charged);
        self.lent.extend(other.lent);
        self.outage = self.outage.or(other.outage);
    }
}

/// Decides by this gateway's shares of what is lent. The store hears of it when it is back.
fn take_alone<'a>(store: &ValkeyStore, checks: &[Check<'a>]) -> Booked<'a> {
    let mut booked = Booked::default();
    for check in checks {
        let Some(decision) = store.take_alone(check) else {
            // There is no room to remember it.
            let full = Some(check.policy).filter(|_| !check.shadow);
            booked.outcome.unavailable = booked.outcome.unavailable.or(full);
            continue;
        };
        if decision.verdict == Verdict::Allow && check.cost.units() > 0 {
            let charge = Charge {
                at: Timestamp::default(),
                cost: check.cost,
                reset_after_us: decision.reset_after_us,
            };
            booked.lent.push((*check, charge));
        }
        booked
            .outcome
            .rulings
            .extend(ruled([(*check, decision)], Source::Fallback));
    }
    booked
}

impl<'a> From<Outcome<'a>> for Booked<'a> {
    /// Nothing was charged.
    fn from(outcome: Outcome<'a>) -> Self {
        Self {
            outcome,
            ..Self::default()
        }
    }
}

/// Of what was charged, that which may be settled later.
fn to_settle(charged: Vec<(Check<'_>, Charge)>, ledger: Ledger) -> Vec<Charged<'_>> {
    charged
        .into_iter()
        .filter(|(check, _)| check.policy.given_back || check.rule.lends())
        .map(|(check, charge)| Charged {
            check,
            charge,
            ledger,
        })
        .collect()
}

/// The first policy that is enforced and has this said of what to do when the store fails.
fn first_enforced<'a>(
    checks: &[Check<'a>],
    says: impl Fn(OnStoreFailure) -> bool,
) -> Option<&'a Policy> {
    checks
        .iter()
        .find(|check| !check.shadow && says(check.policy.on_store_failure))
        .map(|check| check.policy)
}

fn ruled<'a>(
    decided: impl IntoIterator<Item = (Check<'a>, Decision)>,
    source: Source,
) -> Vec<Ruling<'a>> {
    decided
        .into_iter()
        .map(|(check, decision)| Ruling {
            check,
            decision,
            source,
        })
        .collect()
}

fn position(checks: &[Check<'_>], policy: &Policy) -> usize {
    checks
        .iter()
        .position(|check| check.policy.index == policy.index)
        .unwrap_or(usize::MAX)
}
