//! Limits that single callers were granted for a while.

use std::collections::HashMap;
use std::sync::Arc;

use super::entity::EntityKey;
use super::limits::Limits;
use super::{Generation, Policy};
use crate::decide::Timestamp;

/// What was granted: to an entity, under policies.
#[derive(Debug, Default)]
pub struct Granted(HashMap<EntityKey, Vec<Grant>>);

/// Other limits for one entity under one policy, for a while.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The policy's name ...
    pub policy: Arc<str>,
    /// ... and its generation: of another kind or window, the limits mean nothing.
    pub generation: Generation,
    /// What stands in for the policy's limits.
    pub limits: Arc<Limits>,
    /// When it ends, by the store's clock.
    pub ends_at: Timestamp,
}

impl Granted {
    /// Whether nothing was granted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a grant.
    pub fn add(&mut self, entity: EntityKey, grant: Grant) {
        self.0.entry(entity).or_default().push(grant);
    }

    /// What this entity is granted under the policy, if that has not ended.
    #[must_use]
    pub fn find(&self, entity: EntityKey, policy: &Policy, now: Timestamp) -> Option<&Grant> {
        let mut grants = self.0.get(&entity)?.iter();
        grants.find(|grant| {
            grant.policy == policy.name
                && grant.generation == policy.generation
                && grant.ends_at > now
        })
    }
}
