//! What several tests stand on.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test binary uses a part of it"
)]

pub(crate) mod policies;
pub(crate) mod traces;
pub(crate) mod valkey;
