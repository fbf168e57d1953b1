//! What needs no socket and no clock.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should stop loudly"
)]

#[path = "../support/mod.rs"]
mod support;

mod answers;
mod architecture;
mod calendar;
mod cases;
mod client;
mod commands;
mod config;
mod costs;
mod crowds;
mod deny_cache;
mod entities;
mod fleet;
mod fuzz;
mod leases;
mod local_store;
mod penalties;
mod plans;
mod properties;
mod routes;
mod shedding;
mod slots;
mod tokens;
mod vectors;
