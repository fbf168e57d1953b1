//! What is remembered of a request: [`metrics`] and one line of the [`access_log`]. Always, once.

pub mod access_log;
pub mod metrics;
