//! Which route.
