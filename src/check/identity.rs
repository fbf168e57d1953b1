//! Who calls, as far as that is proven.

use std::sync::Arc;

/// Who calls, as far as that is proven: the holder of an API key, or the subject of a signed token. Nobody by default.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Identity {
    /// What tells this caller apart from all others.
    pub id: Option<Arc<str>>,
    /// The plan that it is on.
    pub tier: Option<Arc<str>>,
}
