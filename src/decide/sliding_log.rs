//! SlidingLog.

use super::{Limit, TooLarge};

/// TODO docs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlidingLog {
    limit: Limit,
}

impl SlidingLog {
    /// Builds the rule.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn new(limit: Limit) -> Result<Self, TooLarge> {
        Ok(Self { limit })
    }

    /// Units per window.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }
}
