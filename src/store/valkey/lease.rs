//! Leases: a busy key takes more units than one request needs, and spends them here without asking.
//!
//! What is leased was charged when it was taken, so that the shared usage is never too low. It is spent later than
//! that, or not at all: in any window up to `policy.lease` units a gateway pass that were charged in the one before.
//! What is held of a key that is left alone for a tenth of a window is lost. How much is taken follows from how fast
//! the key was spent here; none is near the limit. Gateways of Doorman's kind lease a rate; this leases units.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::buckets::Buckets;
use super::whose::Whose;
use crate::check::{Check, EntityKey, Limits, Policy};
use crate::clock::micros;
use crate::decide::{Charge, Cost, Decision, Penalised, Rule, Timestamp, Verdict};

/// Leased units are kept for a tenth of the window ...
const LASTS_OF_WINDOW: u64 = 10;

/// ... and are as many as are spent in that time, or in a second if that is less.
const SIZED_FOR_MAX: Duration = Duration::from_secs(1);

/// Of what remains, all gateways together lease a fifth at a time; with less than a fifth of the limit left, nothing.
const PART: u64 = 5;

/// Leases lie in so many buckets ...
const BUCKETS: usize = 1024;

/// ... and so many in one at most. What is forgotten is not spent.
const BUCKET_MAX: usize = 16;

/// What this gateway holds of policies that lease, of 16,384 keys at most.
#[derive(Debug)]
pub struct Leases(Buckets<Lease>);

/// What is held of one key, and known of it.
#[derive(Debug)]
struct Lease {
    whose: Whose,
    /// Units charged and not spent.
    held: u64,
    lasts_until: Instant,
    /// What charged them last.
    charge: Option<Charge>,
    /// Units of calls that are not answered yet.
    asked: u64,
    /// Units spent here since then: how fast it goes.
    spent: u64,
    since: Instant,
    /// What the store decided last, and when that was heard.
    last: (Decision, Instant),
}

/// Units that were charged and are not needed.
#[derive(Debug)]
pub struct Unspent {
    policy: Arc<Policy>,
    limits: Arc<Limits>,
    entity: EntityKey,
    charge: Charge,
}

/// More units than a request needs, asked for with it. Of a call that is given up they are not asked for any more.
#[derive(Debug)]
pub struct Asking<'l, 'a> {
    leases: &'l Leases,
    check: Check<'a>,
    more: u64,
}

impl Default for Leases {
    fn default() -> Self {
        Self(Buckets::new(BUCKETS, BUCKET_MAX))
    }
}

impl Leases {
    /// The check of a request that can be leased: it is the only one, and takes something of a policy that leases.
    #[must_use]
    pub fn leased<'a>(checks: &[Check<'a>]) -> Option<Check<'a>> {
        let [check] = checks else { return None };
        let leases = check.policy.lease.is_some() && !check.policy.given_back;
        (leases && check.cost.units() > 0).then_some(*check)
    }

    /// Spends what `check` takes, if that is held, and says what the answer is then.
    #[must_use]
    pub fn spend(&self, check: &Check<'_>, now: Instant) -> Option<Decision> {
        let mut bucket = self.0.of(check)?;
        let lease = bucket.iter_mut().find(|lease| lease.whose.is_of(check))?;
        lease.spend(check.cost.units(), now)
    }

    /// How much more to ask for with `check`, where so many gateways share the limit; `None` if nothing.
    #[must_use]
    pub fn ask<'a>(
        &self,
        check: &Check<'a>,
        gateways: u32,
        now: Instant,
    ) -> Option<Asking<'_, 'a>> {
        let mut bucket = self.0.of(check)?;
        let lease = bucket.iter_mut().find(|lease| lease.whose.is_of(check))?;
        let more = lease.wanted(check.policy, gateways, now);
        if more == 0 {
            return None;
        }
        lease.asked += more;
        drop(bucket);
        Some(Asking {
            leases: self,
            check: *check,
            more,
        })
    }

    /// Learns what the store decided of `check`, and what it charged for later.
    pub fn learn(
        &self,
        check: &Check<'_>,
        decision: Decision,
        leased: Option<Charge>,
        now: Instant,
    ) {
        let Some(mut bucket) = self.0.of(check) else {
            return;
        };
        let known = bucket.iter().position(|lease| lease.whose.is_of(check));
        if known.is_none() {
            let lease = Lease::new(check, decision, now);
            self.0.put(&mut bucket, lease, |lease| lease.lasts_until);
        }
        let place = known.unwrap_or(bucket.len().saturating_sub(1));
        let Some(lease) = bucket.get_mut(place) else {
            return;
        };
        lease.last = (decision, now);
        if decision.verdict == Verdict::Allow {
            lease.count(check.cost.units(), now);
        }
        if let (Some(charge), Some(most)) = (leased, check.policy.lease) {
            lease.take(charge, most.get(), now);
        }
    }

    /// Takes out what is held of these policies, as far as it was charged last, to be given back.
    #[must_use]
    pub fn take_all(&self, policies: &[Arc<Policy>]) -> Vec<Unspent> {
        let mut taken = Vec::new();
        for mut bucket in self.0.all() {
            for lease in bucket.drain(..) {
                let policy = policies.iter().find(|policy| lease.whose.is_under(policy));
                let charge = lease.charge.filter(|_| lease.held > 0);
                if let (Some(policy), Some(charge)) = (policy, charge) {
                    let cost = charge.cost.min(Cost::new(lease.held));
                    taken.push(Unspent {
                        policy: Arc::clone(policy),
                        limits: Arc::clone(lease.whose.limits()),
                        entity: lease.whose.entity(),
                        charge: Charge { cost, ..charge },
                    });
                }
            }
        }
        taken
    }
}

impl Unspent {
    /// The check that charged it.
    #[must_use]
    pub fn charged(&self) -> (Check<'_>, Charge) {
        let check = Check {
            policy: &self.policy,
            limits: &self.limits,
            rule: &self.limits.rule,
            entity: self.entity,
            cost: self.charge.cost,
            shadow: false,
        };
        (check, self.charge)
    }
}

impl<'a> Asking<'_, 'a> {
    /// The check, with all that it asks for.
    #[must_use]
    pub fn raised(&self) -> Check<'a> {
        Check {
            cost: Cost::new(self.check.cost.units().saturating_add(self.more)),
            ..self.check
        }
    }

    /// It was allowed at `at`: what it does not take is held, and counts as remaining.
    #[must_use]
    pub fn granted(&self, at: Timestamp, decision: Decision, now: Instant) -> Decision {
        let leased = Charge {
            at,
            cost: Cost::new(self.more),
            reset_after_us: decision.reset_after_us,
        };
        self.leases.learn(&self.check, decision, Some(leased), now);
        Decision {
            remaining: decision
                .remaining
                .saturating_add(self.more)
                .min(self.check.rule.capacity()),
            ..decision
        }
    }
}

impl Drop for Asking<'_, '_> {
    fn drop(&mut self) {
        let Some(mut bucket) = self.leases.0.of(&self.check) else {
            return;
        };
        let mut leases = bucket.iter_mut();
        if let Some(lease) = leases.find(|lease| lease.whose.is_of(&self.check)) {
            lease.asked = lease.asked.saturating_sub(self.more);
        }
    }
}

impl Lease {
    fn new(check: &Check<'_>, decision: Decision, now: Instant) -> Self {
        Self {
            whose: Whose::of(check),
            held: 0,
            lasts_until: now,
            charge: None,
            asked: 0,
            spent: 0,
            since: now,
            last: (decision, now),
        }
    }

    fn spend(&mut self, units: u64, now: Instant) -> Option<Decision> {
        if self.lasts_until <= now || self.held < units {
            return None;
        }
        self.held -= units;
        self.count(units, now);
        let (last, heard_at) = self.last;
        let since = micros(now.saturating_duration_since(heard_at));
        Some(Decision {
            verdict: Verdict::Allow,
            // Units of a window that is over may be among those that are held.
            remaining: last
                .remaining
                .saturating_add(self.held)
                .min(self.whose.rule().capacity()),
            retry_after_us: Some(0),
            reset_after_us: last.reset_after_us.saturating_sub(since),
            delay_us: 0,
            penalised: Penalised::No,
        })
    }

    fn count(&mut self, units: u64, now: Instant) {
        // What was long ago counts less and less.
        let observed = now.saturating_duration_since(self.since);
        if observed > SIZED_FOR_MAX * 2 {
            self.spent /= 2;
            self.since += observed / 2;
        }
        self.spent = self.spent.saturating_add(units);
    }

    /// As many units as are spent here in the time that a lease is made for, as far as they may be leased.
    fn wanted(&self, policy: &Policy, gateways: u32, now: Instant) -> u64 {
        let (last, heard_at) = self.last;
        // What was heard long ago says nothing of now, nor does a store that does not say how many there are.
        let is_known = gateways > 0
            && now.saturating_duration_since(heard_at) <= sized_for(self.whose.rule()) * 2;
        let is_near = last.remaining.saturating_mul(PART) < self.whose.rule().capacity();
        if !is_known || is_near || last.verdict == Verdict::Deny {
            return 0;
        }
        let span = sized_for(self.whose.rule()).as_micros();
        let observed = now.saturating_duration_since(self.since).as_micros();
        let expected = u128::from(self.spent) * span / observed.max(span / 10).max(1);
        let part = last.remaining / PART / u64::from(gateways);
        let most = policy.lease.map_or(0, u64::from).min(part);
        let most = most.saturating_sub(self.held_at(now) + self.asked);
        let wanted = u64::try_from(expected).unwrap_or(u64::MAX).min(most);
        // A single one is as likely lost as spent.
        if wanted < 2 { 0 } else { wanted }
    }

    fn held_at(&self, now: Instant) -> u64 {
        if self.lasts_until > now { self.held } else { 0 }
    }

    /// Holds what was charged, and never more than may be held: what is over is lost.
    fn take(&mut self, charge: Charge, most: u64, now: Instant) {
        self.held = (self.held_at(now) + charge.cost.units()).min(most);
        self.lasts_until = now + lasts(self.whose.rule());
        self.charge = Some(charge);
    }
}

/// How long what is leased of this rule can be spent.
fn lasts(rule: &Rule) -> Duration {
    let window_us = rule.limit().map_or(0, |limit| limit.window_us.get());
    Duration::from_micros(window_us / LASTS_OF_WINDOW)
}

/// For how long a lease of this rule is to be enough.
fn sized_for(rule: &Rule) -> Duration {
    lasts(rule).min(SIZED_FOR_MAX)
}
