//! FixedWindow.

use super::{Limit, TooLarge};

/// What the windows are aligned to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Anchor {
    /// The epoch: all entities' windows begin together.
    Epoch,
    /// An entity's first request after its last window.
    FirstRequest,
}

/// TODO docs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FixedWindow {
    limit: Limit,
    anchor: Anchor,
}

impl FixedWindow {
    /// Builds the rule.
    ///
    /// # Errors
    ///
    /// [`TooLarge`] when the numbers would not stay exact.
    pub fn new(limit: Limit, anchor: Anchor) -> Result<Self, TooLarge> {
        Ok(Self { limit, anchor })
    }

    /// Units per window.
    #[must_use]
    pub const fn limit(&self) -> Limit {
        self.limit
    }
}
