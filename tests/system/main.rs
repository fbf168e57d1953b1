//! What needs a real server: Valkey, or the gateway itself.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on should stop loudly"
)]

#[path = "../support/mod.rs"]
mod support;

mod admin;
mod again;
mod all_or_nothing;
mod calendar;
mod callers;
mod cases;
mod cluster;
mod concurrency;
mod concurrency_script;
mod costs;
mod drain;
mod exactly;
mod failover;
mod faults;
mod fewer_calls;
mod floods;
mod health;
mod identity;
mod instances;
mod leaky;
mod listener_tls;
mod login;
mod outcomes;
mod penalty;
mod plans;
mod preflights;
mod privacy;
mod protocol;
mod quickstart;
mod reload;
mod reload_under_load;
mod script;
mod shedding;
mod shop;
mod simulate;
mod slow;
mod smuggling;
mod store_errors;
mod store_failure;
mod tls;
mod tokens;
mod twins;
mod upgrade;
mod upstream_tls;
mod wire;
