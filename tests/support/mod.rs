//! What several tests stand on.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test binary uses a part of it"
)]

pub(crate) mod cluster;
pub(crate) mod crowd;
pub(crate) mod definition;
pub(crate) mod gateway;
pub(crate) mod holders;
pub(crate) mod http;
pub(crate) mod load;
pub(crate) mod origin;
pub(crate) mod policies;
pub(crate) mod raw;
pub(crate) mod relay;
pub(crate) mod reports;
pub(crate) mod script;
pub(crate) mod tls;
pub(crate) mod tokens;
pub(crate) mod traces;
pub(crate) mod valkey;
