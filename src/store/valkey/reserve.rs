//! The checks of one request at the shared store: denied or spent here where that is known to be right, asked for
//! otherwise.
//!
//! The checks of one entity have one slot, and are one call. Those of several entities of a cluster are several calls
//! at once, each of which charges all of its own or nothing; when one denies, what the others charged is given back.
//! Nothing is looked at first and charged later: between the two others would come.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout_at};

use super::batch::Decided;
use super::calls::{Failed, Job};
use super::lease::Leases;
use super::topology::slot_of;
use super::{Servers, ValkeyStore};
use crate::check::{Check, Policy};
use crate::clock::monotonic_now;
use crate::decide::{Charge, Decision, Verdict};
use crate::store::{Cause, Settlement, StoreError, charged};

/// How many leases of one server are given back in one call at most.
const GIVEN_BACK_MAX: usize = 64;

/// What became of the checks of one request.
#[derive(Debug, Default)]
pub struct Reserved<'a> {
    /// The decisions there are.
    pub decided: Vec<(Check<'a>, Decision)>,
    /// What they charged. It stays charged unless it is given back.
    pub charged: Vec<(Check<'a>, Charge)>,
    /// Those without a decision.
    pub failed: Vec<Check<'a>>,
    /// Why there is none.
    pub failure: Option<StoreError>,
    /// What spared the call, if there was none.
    pub spared_by: Option<Spared>,
    /// Whether checks of one entity were charged apart, since their keys were in two places.
    is_scattered: bool,
}

/// What spares a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Spared {
    /// A denial that still holds.
    DenyCache,
    /// Units that were charged before.
    Lease,
}

impl Spared {
    /// Every one, so that every series starts at zero.
    pub const ALL: [Self; 2] = [Self::DenyCache, Self::Lease];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DenyCache => "deny_cache",
            Self::Lease => "lease",
        }
    }
}

impl<'a> Reserved<'a> {
    /// Whether one of the decisions denies the request.
    #[must_use]
    pub fn denies(&self) -> bool {
        self.decided
            .iter()
            .any(|(check, decision)| !check.shadow && decision.verdict == Verdict::Deny)
    }

    fn here(spared_by: Spared, decided: Vec<(Check<'a>, Decision)>) -> Self {
        Self {
            decided,
            spared_by: Some(spared_by),
            ..Self::default()
        }
    }

    fn add(&mut self, checks: &[Check<'a>], outcome: Result<Decided, StoreError>) {
        match outcome {
            Ok((at, decisions)) => {
                self.charged.extend(charged(checks, &decisions, at));
                self.decided.extend(checks.iter().copied().zip(decisions));
            }
            Err(error) => {
                self.failed.extend(checks);
                self.failure = Some(error);
            }
        }
    }
}

impl ValkeyStore {
    /// Decides `checks`, and charges them. Where a call denies, it charges nothing, but others may have: then
    /// [`ValkeyStore::give_back`] is what all-or-nothing takes.
    ///
    /// Returns within the store's deadline.
    pub async fn reserve<'a>(&self, checks: &[Check<'a>]) -> Reserved<'a> {
        let began = Instant::now();
        let deadline = began + self.timeout();
        // A simulation has its own time.
        if self.clock.is_some() {
            return self.ask(checks, deadline).await;
        }
        let remembers = self.settings.load().deny_cache && checks.iter().all(is_remembered);
        if remembers && let Some(decided) = self.denials.find(checks, began.into_std()) {
            return Reserved::here(Spared::DenyCache, decided);
        }
        let reserved = match Leases::leased(checks) {
            Some(check) => self.spend_or_ask(check, deadline).await,
            None => self.ask(checks, deadline).await,
        };
        let is_final = reserved.failure.is_none() && !reserved.is_scattered;
        if remembers && is_final && reserved.denies() {
            self.denials
                .remember(&reserved.decided, began.into_std(), monotonic_now());
        }
        reserved
    }

    /// Spends what is leased, or else asks: for more than the check takes, if that is worth while and to be had.
    async fn spend_or_ask<'a>(&self, check: Check<'a>, deadline: Instant) -> Reserved<'a> {
        let now = monotonic_now();
        if let Some(decision) = self.leases.spend(&check, now) {
            return Reserved::here(Spared::Lease, vec![(check, decision)]);
        }
        if let Some(asking) = self.leases.ask(&check, self.instances(), now) {
            let mut reserved = self.ask(&[asking.raised()], deadline).await;
            if let Some((_, charge)) = reserved.charged.first().copied() {
                for (of, decision) in &mut reserved.decided {
                    *of = check;
                    *decision = asking.granted(charge.at, *decision, monotonic_now());
                }
                // The lease is not the request's.
                let cost = check.cost;
                reserved.charged = vec![(check, Charge { cost, ..charge })];
                return reserved;
            }
            if reserved.failure.is_some() {
                reserved.failed = vec![check];
                return reserved;
            }
        }
        let reserved = self.ask(&[check], deadline).await;
        for (check, decision) in &reserved.decided {
            self.leases.learn(check, *decision, None, monotonic_now());
        }
        reserved
    }

    async fn ask<'a>(&self, checks: &[Check<'a>], deadline: Instant) -> Reserved<'a> {
        let mut reserved = Reserved::default();
        if matches!(self.servers, Servers::One(_)) {
            let outcome = self.decide(None, checks, deadline).await;
            reserved.add(checks, outcome.map_err(StoreError::from));
            return reserved;
        }
        let parts = by_slot(checks, |check| check);
        let calls = parts
            .iter()
            .map(|(slot, part)| self.decide(Some(*slot), part, deadline));
        let mut scattered = Vec::new();
        for ((slot, part), outcome) in parts.iter().zip(join_all(calls).await) {
            match outcome {
                Err(Failed::Scattered(_)) => {
                    scattered.extend(part.iter().map(|check| (*slot, [*check])));
                }
                outcome => reserved.add(part, outcome.map_err(StoreError::from)),
            }
        }
        reserved.is_scattered = !scattered.is_empty();
        let calls = scattered
            .iter()
            .map(|(slot, part)| self.decide(Some(*slot), part, deadline));
        for ((_, part), outcome) in scattered.iter().zip(join_all(calls).await) {
            reserved.add(part, outcome.map_err(StoreError::from));
        }
        reserved
    }

    /// Makes the call that decides these, and keeps track of what it takes of concurrency.
    async fn decide(
        &self,
        slot: Option<u16>,
        checks: &[Check<'_>],
        deadline: Instant,
    ) -> Result<Decided, Failed> {
        if checks.iter().any(|check| check.rule.lends()) {
            let told = self.slots.tell_first(checks, monotonic_now());
            if timeout_at(deadline, told).await.is_err() {
                let why = "the store is not told in time what was given back".to_owned();
                return Err(Failed::Final(StoreError::NotRun(Cause::Timeout, why)));
            }
        }
        let asking = self
            .slots
            .ask(checks, monotonic_now())
            .ok_or(Failed::Final(StoreError::Full))?;
        let outcome = self
            .make(slot, Job::Decide(checks, &asking), deadline)
            .await;
        match &outcome {
            Ok((at, decisions)) => {
                let is_charged = |index| {
                    let mut charged = charged(checks, decisions, *at).into_iter();
                    charged.any(|(check, _)| check.policy.index == index)
                };
                asking.end(is_charged);
            }
            Err(failed) if !failed.may_have_run() => asking.end(|_| false),
            Err(_) => drop(asking),
        }
        outcome
    }

    /// Gives back what a request charged that is denied after all, as far as nobody gains by it, and has the decisions
    /// tell what is left then. What cannot be given back within the store's deadline stays charged.
    pub async fn give_back(&self, reserved: &mut Reserved<'_>) {
        let charged = std::mem::take(&mut reserved.charged);
        let settlements: Vec<_> = charged.into_iter().map(Settlement::given_back).collect();
        let left = self.settle(&settlements).await;
        for (settlement, left) in settlements.iter().zip(left.decisions) {
            let check = &settlement.check;
            let is_of =
                |decided: &&mut (Check<'_>, Decision)| decided.0.policy.index == check.policy.index;
            let Some((_, decision)) = reserved.decided.iter_mut().find(is_of) else {
                continue;
            };
            match left {
                Some(left) => decision.tell_of(&left),
                None if check.rule.lends() => decision.give_back(check.rule, check.cost),
                None => {}
            }
        }
    }

    /// Settles charges, and says what a look at cost 0 finds then, in their order: nothing where that is not known.
    /// What was lent is given back, in the background.
    ///
    /// Returns within the store's deadline. What was not settled by then stays as it was charged, or not: it is not
    /// tried again.
    pub async fn settle(&self, settlements: &[Settlement<'_>]) -> Left {
        let mut found = Left {
            decisions: vec![None; settlements.len()],
            failure: None,
        };
        let numbered = settlements.iter().copied().enumerate();
        let (lent, numbered): (Vec<_>, Vec<_>) =
            numbered.partition(|(_, settlement)| settlement.check.rule.lends());
        for (_, settlement) in lent {
            self.release(&settlement.check);
        }
        if numbered.is_empty() {
            return found;
        }
        let deadline = Instant::now() + self.timeout();
        let parts = match &self.servers {
            Servers::One(_) => vec![(0, numbered)],
            Servers::Cluster(_) => by_slot(&numbered, |(_, settlement)| &settlement.check),
        };
        let calls = parts.iter().map(async |(slot, part)| {
            let slot = Some(*slot);
            let all: Vec<_> = part.iter().map(|(_, settlement)| *settlement).collect();
            match self.make(slot, Job::Settle(&all), deadline).await {
                Ok((_, left)) => left.into_iter().map(Ok).collect(),
                Err(Failed::Scattered(_)) => {
                    let alone = all.iter().map(async |settlement| {
                        let job = Job::Settle(std::slice::from_ref(settlement));
                        let (_, left) = self.make(slot, job, deadline).await?;
                        let none = || StoreError::BadReply("found no decision".to_owned());
                        left.into_iter().next().ok_or_else(none)
                    });
                    join_all(alone).await
                }
                Err(Failed::Final(error)) => vec![Err(error); all.len()],
            }
        });
        for ((_, part), left) in parts.iter().zip(join_all(calls).await) {
            for ((number, _), left) in part.iter().zip(left) {
                match (left, found.decisions.get_mut(*number)) {
                    (Ok(left), Some(place)) => *place = Some(left),
                    (Err(error), _) => found.failure = Some(error),
                    _ => {}
                }
            }
        }
        found
    }

    /// Gives back what is leased of these policies and was not spent, as far as nobody gains by it. For a gateway that
    /// stops.
    pub async fn return_leases(&self, policies: &[Arc<Policy>]) {
        let unspent = self.leases.take_all(policies);
        for part in unspent.chunks(GIVEN_BACK_MAX) {
            let part: Vec<_> = part
                .iter()
                .map(|unspent| Settlement::given_back(unspent.charged()))
                .collect();
            self.settle(&part).await;
        }
    }
}

/// Whether a denial of it holds for as long as it says. Usage that may be given back may end sooner, and so may what a
/// bucket owes where somebody of another limit, who earns faster, is counted in it too.
fn is_remembered(check: &Check<'_>) -> bool {
    let policy = check.policy;
    !(policy.given_back || (policy.is_uneven() && check.rule.is_bucket()))
}

/// What charges came to that were settled.
#[derive(Debug)]
pub struct Left {
    /// What a look at cost 0 finds then, for each of them: nothing where that is not known.
    pub decisions: Vec<Option<Decision>>,
    /// Why some were not settled.
    pub failure: Option<StoreError>,
}

/// What has one slot stays together, in its order.
fn by_slot<'a, T: Copy>(items: &[T], check_of: impl Fn(&T) -> &Check<'a>) -> Vec<(u16, Vec<T>)> {
    let mut parts: Vec<(u16, Vec<T>)> = Vec::with_capacity(1);
    for item in items {
        let slot = slot_of(check_of(item).entity);
        match parts.iter_mut().find(|(of, _)| *of == slot) {
            Some((_, part)) => part.push(*item),
            None => parts.push((slot, vec![*item])),
        }
    }
    parts
}
