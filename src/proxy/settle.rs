//! What a request was charged is corrected once it is known what it was worth: on every way out, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::StatusCode;
use tokio::runtime::Handle;
use tracing::warn;

use super::context::{Context, OwnCheck, Ruled};
use super::gateway::Gateway;
use crate::check::{Check, Outcome};
use crate::clock::monotonic_now;
use crate::config::Config;
use crate::decide::{Charge, Cost, Decision, Settled};
use crate::store::limiter::{Charged, Ledger};

/// Charges of a request that are not final. Those that nothing became of are settled when it is dropped: also the
/// request's client is gone then, or it panicked.
#[derive(Debug)]
pub struct Settling {
    gateway: Arc<Gateway>,
    held: Vec<Held>,
    /// Whether the request was handed on, so that it may have done something.
    handed_on: bool,
}

/// A charge, and what it was for.
#[derive(Debug)]
struct Held {
    check: OwnCheck,
    charge: Charge,
    ledger: Ledger,
}

/// How many requests' charges are being settled after their end.
#[derive(Clone, Debug, Default)]
pub struct Unsettled(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

/// Whether what such a check is charged is not final.
#[must_use]
pub fn awaits(check: &Check<'_>) -> bool {
    check.policy.outcomes.is_some()
}

impl Held {
    fn charged(&self) -> Charged<'_> {
        Charged {
            check: self.check.as_check(),
            charge: self.charge,
            ledger: self.ledger,
        }
    }

    /// What becomes of it with an answer of this status: nothing if it stays as it is.
    fn by_status(&self, status: StatusCode) -> Option<Settled> {
        let outcome = self.check.policy().outcomes.as_ref()?.of(status);
        match outcome {
            Outcome::Charge => None,
            Outcome::Spare => Some(Settled::Spent(Cost::NONE)),
            Outcome::Reset => Some(Settled::Forgotten),
        }
    }

    /// What becomes of it without an answer. Whoever leaves early is not the better for it.
    fn at_end(&self, handed_on: bool) -> Option<Settled> {
        (!handed_on).then_some(Settled::Spent(Cost::NONE))
    }

    /// Counts the units that it comes to.
    fn count(&self, gateway: &Gateway, settled: Option<Settled>) {
        let units = match settled {
            None => self.charge.cost,
            Some(Settled::Spent(cost)) => cost,
            Some(Settled::Forgotten) => Cost::NONE,
        };
        if let Some(series) = gateway.metrics.policy(self.check.policy().index) {
            series.units.inc_by(units.units());
        }
    }
}

impl Settling {
    /// Nothing is charged yet.
    #[must_use]
    pub const fn new(gateway: Arc<Gateway>) -> Self {
        Self {
            gateway,
            held: Vec::new(),
            handed_on: false,
        }
    }

    /// Takes charge of what is not final.
    pub fn hold(&mut self, config: &Config, charged: &[Charged<'_>]) {
        for charged in charged.iter().filter(|charged| awaits(&charged.check)) {
            if let Some(check) = OwnCheck::new(&charged.check, &config.policies) {
                self.held.push(Held {
                    check,
                    charge: charged.charge,
                    ledger: charged.ledger,
                });
            }
        }
    }

    /// The request is handed on: from now on it may do something.
    pub const fn hand_on(&mut self) {
        self.handed_on = true;
    }
}

/// Settles what is decided by the status of the answer, before it is sent: whoever has read it finds what is left.
pub async fn by_status(ctx: &mut Context, status: StatusCode) {
    if ctx.settling.held.is_empty() {
        return;
    }
    let gateway = Arc::clone(&ctx.gateway);
    let held = std::mem::take(&mut ctx.settling.held);
    let (decided, open): (Vec<_>, Vec<_>) = held
        .into_iter()
        .partition(|held| held.check.policy().outcomes.is_some());
    ctx.settling.held = open;
    let mut settled = Vec::with_capacity(decided.len());
    for held in &decided {
        let becomes = held.by_status(status);
        held.count(&gateway, becomes);
        settled.extend(becomes.map(|becomes| (held, becomes)));
    }
    for ((held, _), left) in settled.iter().zip(settle(&gateway, &settled).await) {
        let is_of = |ruled: &&mut Ruled| ruled.policy().index == held.check.policy().index;
        if let Some(left) = left
            && let Some(ruled) = ctx.rulings.iter_mut().find(is_of)
        {
            ruled.tell_of(&left);
        }
    }
}

async fn settle(gateway: &Gateway, settled: &[(&Held, Settled)]) -> Vec<Option<Decision>> {
    let settlements: Vec<_> = settled
        .iter()
        .map(|(held, settled)| (held.charged(), *settled))
        .collect();
    if settlements.is_empty() {
        return Vec::new();
    }
    let began = monotonic_now();
    let (left, failure) = gateway.limiter.settle(&settlements).await;
    let families = gateway.metrics.families();
    if settlements
        .iter()
        .any(|(charged, _)| charged.ledger == Ledger::Shared)
    {
        let took = monotonic_now().saturating_duration_since(began);
        families.store_settle.observe(took.as_secs_f64());
    }
    if let Some(failure) = failure {
        super::tally::store_failed(gateway, &failure);
    }
    left
}

impl Drop for Settling {
    fn drop(&mut self) {
        let held = std::mem::take(&mut self.held);
        if held.is_empty() {
            return;
        }
        let gateway = Arc::clone(&self.gateway);
        let handed_on = self.handed_on;
        let counted = gateway.unsettled.one_more();
        let rest = async move {
            let mut settled = Vec::with_capacity(held.len());
            for held in &held {
                let becomes = held.at_end(handed_on);
                held.count(&gateway, becomes);
                settled.extend(becomes.map(|becomes| (held, becomes)));
            }
            settle(&gateway, &settled).await;
            drop(counted);
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(rest)),
            Err(_) => {
                warn!("a request's charges stay as they were: it ended outside of the server");
            }
        }
    }
}

impl Unsettled {
    /// Whether there are none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    fn one_more(&self) -> Counted {
        self.0.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(&self.0))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
