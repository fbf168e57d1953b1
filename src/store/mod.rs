//! Where usage lives. Two stores, one arithmetic: [`local`] in process, [`valkey`] shared by every gateway.

pub mod limiter;
pub mod local;
pub mod valkey;

use std::time::Duration;

use thiserror::Error;

use crate::check::Check;
use crate::decide::{Charge, Cost, Decision, Settled, Timestamp, Verdict};

/// A charge, and what becomes of it.
#[derive(Clone, Copy, Debug)]
pub struct Settlement<'a> {
    /// What was charged for.
    pub check: Check<'a>,
    /// What it took.
    pub charge: Charge,
    /// What it was worth.
    pub settled: Settled,
}

impl<'a> Settlement<'a> {
    /// All of it is given back, as far as nobody gains by it.
    #[must_use]
    pub const fn given_back((check, charge): (Check<'a>, Charge)) -> Self {
        Self {
            check,
            charge,
            settled: Settled::Spent(Cost::NONE),
        }
    }
}

/// What the checks of one call charged at `at`: nothing if one of them denies.
pub(crate) fn charged<'a>(
    checks: &[Check<'a>],
    decisions: &[Decision],
    at: Timestamp,
) -> Vec<(Check<'a>, Charge)> {
    let both = || checks.iter().zip(decisions);
    if both().any(|(check, decision)| !check.shadow && decision.verdict == Verdict::Deny) {
        return Vec::new();
    }
    both()
        .filter(|(check, decision)| decision.verdict == Verdict::Allow && check.cost.units() > 0)
        .map(|(check, decision)| {
            let charge = Charge {
                at,
                cost: check.cost,
                reset_after_us: decision.reset_after_us,
            };
            (*check, charge)
        })
        .collect()
}

/// Why there is no decision. Each variant is something to do.
#[derive(Clone, Debug, Error)]
pub enum StoreError {
    /// Unknown whether it charged: never repeat.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The connection broke after the call was sent: unknown whether it charged, never repeat.
    #[error("connection lost: {0}")]
    Lost(String),
    /// Certainly did not charge: may be repeated within the deadline once its cause is gone.
    #[error("{1}")]
    NotRun(Cause, String),
    /// The answer makes no sense: drop the connection, count it, look into it.
    #[error("reply not understood: {0}")]
    BadReply(String),
    /// The local store is full of entities in debt, and this one is a stranger.
    #[error("the local store is full")]
    Full,
}

/// What a failure is counted as.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// The deadline passed.
    Timeout,
    /// There is no connection.
    Connect,
    /// The server would not run the script, or its answer makes no sense.
    Script,
    /// The server is not the one to ask, or not able to answer now.
    Cluster,
    /// The server does not know us, or does not permit it.
    Auth,
    /// The local store is full.
    Full,
}

impl Cause {
    /// Every cause, so that every series starts at zero.
    pub const ALL: [Self; 6] = [
        Self::Timeout,
        Self::Connect,
        Self::Script,
        Self::Cluster,
        Self::Auth,
        Self::Full,
    ];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connect => "connect",
            Self::Script => "script",
            Self::Cluster => "cluster",
            Self::Auth => "auth",
            Self::Full => "full",
        }
    }
}

impl StoreError {
    /// What this failure is counted as.
    #[must_use]
    pub const fn cause(&self) -> Cause {
        match self {
            Self::Timeout(_) => Cause::Timeout,
            Self::Lost(_) => Cause::Connect,
            Self::NotRun(cause, _) => *cause,
            Self::BadReply(_) => Cause::Script,
            Self::Full => Cause::Full,
        }
    }
}
