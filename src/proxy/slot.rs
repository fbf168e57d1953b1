//! What a request is lent while it is in flight. It is given back on every way out: with its answer, when its client or
//! its upstream is gone, at the end of a tunnel, after a panic.

use std::sync::Arc;

use super::context::{Gauged, OwnCheck};
use super::gateway::Gateway;
use crate::decide::Charge;
use crate::store::limiter::{Charged, Ledger};

/// Units of one policy, until it is dropped.
#[derive(Debug)]
pub struct Slot {
    gateway: Arc<Gateway>,
    check: OwnCheck,
    charge: Charge,
    ledger: Ledger,
    /// Counts them, where everybody is counted together.
    _in_use: Option<Gauged>,
}

impl Slot {
    /// Holds what was charged, if it is lent.
    #[must_use]
    pub fn new(gateway: &Arc<Gateway>, charged: &Charged<'_>) -> Option<Self> {
        let check = &charged.check;
        if !check.rule.lends() {
            return None;
        }
        let series = gateway.metrics.policy(check.policy.index);
        let in_use = series.and_then(|series| series.in_use.as_ref());
        let units = i64::try_from(charged.charge.cost.units()).unwrap_or(i64::MAX);
        Some(Self {
            check: OwnCheck::new(check, &gateway.config.policies)?,
            charge: charged.charge,
            ledger: charged.ledger,
            _in_use: in_use.map(|gauge| Gauged::several(gauge, units)),
            gateway: Arc::clone(gateway),
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.gateway.limiter.release(&Charged {
            check: self.check.as_check(),
            charge: self.charge,
            ledger: self.ledger,
        });
    }
}
