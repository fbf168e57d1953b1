//! TokenBucket.

use super::{Limit, TooLarge};
use std::num::NonZeroU64;

/// TODO docs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TokenBucket {
    limit: Limit,
    burst: NonZeroU64,
}

impl TokenBucket {
    /// Builds the rule.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn new(limit: Limit, burst: NonZeroU64) -> Result<Self, TooLarge> {
        Ok(Self { limit, burst })
    }

    /// Units per window.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }

    /// The most units at once.
    #[must_use]
    pub const fn burst(&self) -> u64 {
        self.burst.get()
    }
}
