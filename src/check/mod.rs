//! What a route demands: its policies, and the checks that they become for one request.

pub mod cost;
pub mod demand;
pub mod entity;
pub mod grant;
pub mod identity;
pub mod limits;
pub mod named;
pub mod networks;
pub mod outcome;
mod read;
pub mod share;
pub mod tier;

use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub use cost::Price;
pub use demand::{Demand, Demanded, Use, demand};
pub use entity::{EntityKey, KeySecret, KeySource};
pub use grant::Granted;
pub use identity::{Identity, NewLimit};
pub use limits::{Limits, Unfit};
pub use outcome::{Outcome, Outcomes};
pub use share::Shares;
pub use tier::Plans;

use crate::decide::penalty::{self, Beside};
use crate::decide::{Cost, Decision, Penalty, Rule, Verdict};

/// A named rule that can be enforced.
#[derive(Clone, Debug)]
pub struct Policy {
    /// `[a-z][a-z0-9-]{0,47}`: needs no escape in a header, a metric label or a store's key.
    pub name: Arc<str>,
    /// Its position among the configuration's policies, sorted by name.
    pub index: usize,
    /// Which states belong to it: changes with kind, window and key, not with limit or burst.
    pub generation: Generation,
    /// Kind and numbers, where no plan puts others in their place.
    pub limits: Arc<Limits>,
    /// Whether callers whom it counts together may have different limits. Keys that are read while the configuration
    /// lasts may make it so.
    pub uneven: Arc<AtomicBool>,
    /// What it counts by: one source, or several together.
    pub key: Box<[KeySource]>,
    /// What to do when a part of the key is missing.
    pub on_missing_key: OnMissingKey,
    /// Whether it counts preflights.
    pub preflights: bool,
    /// What to do when the shared store gives no decision.
    pub on_store_failure: OnStoreFailure,
    /// Where its usage lives.
    pub scope: Scope,
    /// How long whoever it denies stays denied; until there is room again if there is none.
    pub penalty: Option<Penalty>,
    /// The most units that a gateway takes ahead of its requests from the shared store; none if it does not.
    pub lease: Option<NonZeroU64>,
    /// Which answers it counts; all if it does not ask.
    pub outcomes: Option<Outcomes>,
    /// Whether what a request was charged may be given back: since it is denied after all, or once it is known what it
    /// was worth.
    pub given_back: bool,
    /// Whether it denies.
    pub mode: Mode,
    /// What it counts.
    pub unit: Unit,
    /// Which of the configuration's `[rejects]` answers for it.
    pub reject: usize,
    /// Whether the answer's fields tell of it.
    pub advertise: bool,
}

impl Policy {
    /// Whether callers whom it counts together may have different limits.
    #[must_use]
    pub fn is_uneven(&self) -> bool {
        self.uneven.load(Ordering::Relaxed)
    }

    /// Some holder of a key has a limit of its own: whoever else is counted with it does not.
    pub fn limits_a_holder(&self) {
        if !self.key.contains(&KeySource::Identity) {
            self.uneven.store(true, Ordering::Relaxed);
        }
    }
}

/// Eight hexadecimal digits over all that makes an old state meaningless: format, kind, window, key.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Generation(pub u32);

/// What to do when a part of the key is missing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnMissingKey {
    /// The policy does not apply.
    Skip,
    /// 403.
    Deny,
    /// All who lack the part are counted together.
    Empty,
}

/// What to do when the shared store gives no decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnStoreFailure {
    /// Let it pass, uncounted.
    Allow,
    /// 503.
    Deny,
    /// Count in process, against this instance's share of the limit.
    Local,
}

/// Where a policy's usage lives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// In the configured store.
    Shared,
    /// In this process, on purpose.
    Local,
}

/// Whether a policy denies.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Counted and enforced.
    Enforce,
    /// Counted, not enforced.
    Shadow,
    /// Neither; the name can still be used.
    Off,
}

/// What a policy counts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Unit {
    /// Requests: what the header fields take for granted.
    Requests,
    /// Bytes of content, `qu="content-bytes"`.
    ContentBytes,
    /// Something of the operator's own; such a policy stays out of the header fields.
    Custom(Arc<str>),
}

/// One policy on one request.
#[derive(Clone, Copy, Debug)]
pub struct Check<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The caller's limits: the policy's own, or what a plan puts in their place.
    pub limits: &'a Arc<Limits>,
    /// The rule to decide by: that of the limits, or its share when the shared store failed.
    pub rule: &'a Rule,
    /// Whom it counts.
    pub entity: EntityKey,
    /// What the request takes.
    pub cost: Cost,
    /// Counted like the others, but denies nothing.
    pub shadow: bool,
}

impl<'a> Check<'a> {
    /// The penalty beside it, of which this is kept.
    #[must_use]
    pub fn beside(&self, kept: Option<penalty::State>) -> Option<Beside<'a>> {
        Some(Beside {
            penalty: self.policy.penalty.as_ref()?,
            kept,
            begins: !self.lacks_a_place(),
        })
    }

    /// Whether it may be denied for want of a place to wait in, which is not the caller's doing.
    fn lacks_a_place(&self) -> bool {
        let max_wait_us = |rule: &Rule| match rule {
            Rule::LeakyBucket(rule) => rule.max_wait_us(),
            _ => None,
        };
        max_wait_us(self.rule) == Some(0) && max_wait_us(&self.limits.rule) != Some(0)
    }
}

/// A check and its decision.
#[derive(Clone, Copy, Debug)]
pub struct Ruling<'a> {
    /// What was asked.
    pub check: Check<'a>,
    /// What the store said.
    pub decision: Decision,
    /// Which store said it.
    pub source: Source,
}

/// Where a decision was made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Source {
    /// In the shared store.
    Store,
    /// In process, as the policy says.
    Local,
    /// In process, since the shared store failed.
    Fallback,
}

impl Source {
    /// Every source, so that every series starts at zero.
    pub const ALL: [Self; 3] = [Self::Store, Self::Local, Self::Fallback];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Local => "local",
            Self::Fallback => "fallback",
        }
    }
}

impl Ruling<'_> {
    /// Whether this is why the request is denied.
    #[must_use]
    pub fn denies(&self) -> bool {
        !self.check.shadow && self.decision.verdict == Verdict::Deny
    }
}
