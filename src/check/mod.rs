//! What a route demands: its policies, and the checks that they become for one request.

pub mod demand;
pub mod entity;
pub mod identity;
pub mod outcome;
mod read;
pub mod share;

use std::num::NonZeroU64;
use std::sync::Arc;

pub use demand::{Demand, Demanded, Use, demand};
pub use entity::{EntityKey, KeySecret, KeySource};
pub use identity::{Identity, NewLimit};
pub use outcome::{Outcome, Outcomes};
pub use share::Shares;

use crate::decide::{Cost, Decision, Rule, Verdict};

/// A named rule that can be enforced.
#[derive(Clone, Debug)]
pub struct Policy {
    /// `[a-z][a-z0-9-]{0,47}`: needs no escape in a header, a metric label or a store's key.
    pub name: Arc<str>,
    /// Its position among the configuration's policies, sorted by name.
    pub index: usize,
    /// Which states belong to it: changes with kind, window and key, not with limit or burst.
    pub generation: Generation,
    /// Kind and numbers.
    pub rule: Rule,
    /// The rules of one instance's share, for when the shared store fails.
    pub shares: Shares,
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
    /// The most units that a gateway takes ahead of its requests from the shared store; none if it does not.
    pub lease: Option<NonZeroU64>,
    /// Which answers it counts; all if it does not ask.
    pub outcomes: Option<Outcomes>,
    /// Whether what a request was charged may be given back: since it is denied after all, or once it is known what it was
    /// worth.
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
    /// The rule to decide by: the policy's own, or its share when the shared store failed.
    pub rule: &'a Rule,
    /// Whom it counts.
    pub entity: EntityKey,
    /// What the request takes.
    pub cost: Cost,
    /// Counted like the others, but denies nothing.
    pub shadow: bool,
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
