//! What a check is about, kept longer than the check: whose usage, and by which rule.

use std::sync::Arc;

use crate::check::{Check, EntityKey, Generation, Limits, Policy};
use crate::decide::Rule;

/// An entity under a policy as it is now. With another limit it is another, though the usage is the same.
#[derive(Clone, Debug)]
pub(super) struct Whose {
    entity: EntityKey,
    policy: Arc<str>,
    generation: Generation,
    limits: Arc<Limits>,
    /// That of the limits, or another in its place.
    rule: Rule,
}

impl Whose {
    pub(super) fn of(check: &Check<'_>) -> Self {
        Self {
            entity: check.entity,
            policy: Arc::clone(&check.policy.name),
            generation: check.policy.generation,
            limits: Arc::clone(check.limits),
            rule: check.rule.clone(),
        }
    }

    pub(super) fn is_of(&self, check: &Check<'_>) -> bool {
        self.entity == check.entity && self.is_under(check.policy) && self.rule == *check.rule
    }

    pub(super) fn is_under(&self, policy: &Policy) -> bool {
        self.generation == policy.generation && self.policy == policy.name
    }

    pub(super) const fn entity(&self) -> EntityKey {
        self.entity
    }

    pub(super) const fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }

    pub(super) const fn rule(&self) -> &Rule {
        &self.rule
    }
}
