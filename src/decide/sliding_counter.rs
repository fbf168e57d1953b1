//! SlidingCounter.

use super::{Limit, TooLarge};

/// TODO docs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlidingCounter {
    limit: Limit,
    strict: bool,
}

impl SlidingCounter {
    /// Builds the rule.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn new(limit: Limit, strict: bool) -> Result<Self, TooLarge> {
        Ok(Self { limit, strict })
    }

    /// Units per window.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }
}
