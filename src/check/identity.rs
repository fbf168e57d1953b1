//! Who calls, as far as that is proven.

use std::sync::Arc;

use crate::decide::Limit;

/// Who calls, as far as that is proven: the holder of an API key, or the subject of a signed token. Nobody by default.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Identity {
    /// What tells this caller apart from all others.
    pub id: Option<Arc<str>>,
    /// The plan that it is on.
    pub tier: Option<Arc<str>>,
    /// Limits of its own, by policy, as the file of API keys gives them: before those of its tier.
    pub limits: Arc<[(Arc<str>, NewLimit)]>,
}

/// What stands in for a policy's limit.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum NewLimit {
    /// So many units a window.
    Rate(Limit),
    /// So many units in flight, for a policy that counts what goes on at once.
    Count(u64),
}
