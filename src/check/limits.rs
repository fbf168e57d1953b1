//! The numbers that a caller is limited by: the policy's own, or others in their place.

use std::num::NonZeroU32;

use thiserror::Error;

use super::identity::NewLimit;
use super::share::Shares;
use crate::decide::{Limit, Rule, TooLarge};

/// A rule, and what follows from it: the policy's own, or the same kind with another limit.
#[derive(Debug)]
pub struct Limits {
    /// Kind and numbers.
    pub rule: Rule,
    /// The rules of one instance's share, for when the shared store fails.
    pub shares: Shares,
    /// Of a leaky bucket, the rule by which nobody waits, for when there is no room to.
    pub unqueued: Option<Rule>,
}

/// What follows from the same rule and number of gateways is the same.
impl PartialEq for Limits {
    fn eq(&self, other: &Self) -> bool {
        self.rule == other.rule && self.shares.instances() == other.shares.instances()
    }
}

impl Eq for Limits {}

impl Limits {
    /// What follows from `rule` where at least so many gateways share it.
    #[must_use]
    pub fn new(rule: Rule, instances: NonZeroU32) -> Self {
        Self {
            shares: Shares::new(&rule, instances),
            unqueued: rule.without_waiting(),
            rule,
        }
    }

    /// The limit, as plans and grants write it.
    #[must_use]
    pub fn limit(&self) -> NewLimit {
        let at_once = || NewLimit::Count(self.rule.count().get());
        self.rule.limit().map_or_else(at_once, NewLimit::Rate)
    }

    /// The same kind with another limit. What a caller has used stays used, in units: all of a policy's limits count
    /// in one state.
    ///
    /// A bucket's burst keeps its ratio to the count of the limit, rounded up. Other kinds count by windows, so theirs
    /// is the window of each of their limits.
    ///
    /// # Errors
    ///
    /// [`Unfit`] when the policy cannot have this limit.
    pub fn with(&self, limit: NewLimit) -> Result<Self, Unfit> {
        let rule = match (limit, self.rule.limit()) {
            (NewLimit::Rate(limit), Some(own)) => {
                if !self.rule.is_bucket() && limit.window_us != own.window_us {
                    return Err(Unfit::Window(own));
                }
                self.rule.with_limit(limit)?
            }
            (NewLimit::Count(count), None) => self.rule.with_count(count)?,
            (NewLimit::Rate(_), None) => return Err(Unfit::Rate),
            (NewLimit::Count(_), Some(_)) => return Err(Unfit::Count),
        };
        Ok(Self::new(rule, self.shares.instances()))
    }
}

/// Why a policy cannot have a limit.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum Unfit {
    /// A bare count, where units are counted a window.
    #[error("a count without a window")]
    Count,
    /// A rate, where what counts is in flight at once.
    #[error("a rate, for a policy that counts what is in flight at once")]
    Rate,
    /// The policy counts by windows of another length: those of this limit.
    #[error("another window than the policy's")]
    Window(Limit),
    /// It cannot be counted exactly.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
}
