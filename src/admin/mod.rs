//! For operators and their machines, on listeners of their own: metrics and probes, and the admin API, which changes a
//! gateway that runs. A request to that goes through [`api`], [`guard`], and what it asks for; [`reply`] is its answer.

pub mod api;
pub mod guard;
pub mod probes;
pub mod reload;
pub mod reply;

use crate::config::Token;

/// What the admin API can do to the gateway. Calls may block.
pub trait Control: Send + Sync + 'static {
    /// What has to be named, by the configuration in force.
    fn token(&self) -> Option<Token>;

    /// Reads the configuration again.
    fn reload(&self) -> reload::Outcome;
}
