//! Who calls, as far as that is proven.

use std::sync::Arc;

use super::limits::Limits;
use crate::decide::Limit;

/// Who calls, as far as that is proven: the holder of an API key, or the subject of a signed token. Nobody by default.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Identity {
    /// What tells this caller apart from all others: the name of an API key, or `jwt:` and the subject of a token. No
    /// name of a key has a colon.
    pub id: Option<Arc<str>>,
    /// Who vouches for the id, where the configuration does not name the one who may.
    pub issuer: Option<Arc<str>>,
    /// The plan that it is on.
    pub tier: Option<Arc<str>>,
    /// Limits of its own, by policy, as the file of API keys gives them: before those of its tier.
    pub limits: Arc<[(Arc<str>, Arc<Limits>)]>,
    /// What a verified token claims, of that which keys are read from.
    pub claims: Arc<[(Arc<str>, Arc<str>)]>,
}

impl Identity {
    /// What a verified token claims under this name.
    #[must_use]
    pub fn claim(&self, name: &str) -> Option<&str> {
        let mut claims = self.claims.iter();
        claims
            .find(|(known, _)| **known == *name)
            .map(|(_, value)| &**value)
    }
}

/// What stands in for a policy's limit.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum NewLimit {
    /// So many units a window.
    Rate(Limit),
    /// So many units in flight, for a policy that counts what goes on at once.
    Count(u64),
}
