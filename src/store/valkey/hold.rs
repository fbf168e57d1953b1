//! Tells the shared store what this gateway holds of concurrency, as [`Slots`](super::slots::Slots) says.
//!
//! It waits for no request and no request for it: units are given back in the background, in one call with others where
//! others come. The contract stands in `lua/hold.lua`.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::batch::Decided;
use super::calls::{Failed, Job};
use super::slots::{Heard, Tell};
use super::topology::slot_of;
use super::{Servers, ValkeyStore};
use crate::check::Check;
use crate::clock::monotonic_now;
use crate::decide::Decision;

/// How often it looks for what is to be said again: more often than the shortest lease asks for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How many keys are told of at once: a script that runs holds up everybody else's.
const TELLS_MAX: usize = 64;

impl ValkeyStore {
    /// What `check`, a check of concurrency, was charged is given back, wherever it was taken: here while the store gave
    /// no decision, or there. Waits for nothing.
    pub fn release(&self, check: &Check<'_>) {
        self.slots.release(&self.prefix, check, monotonic_now());
    }

    /// Decides by this gateway's share of a limit, in `check`, while the store gives no decision; of concurrency alone.
    /// All that is in flight here counts, whenever it began.
    pub(crate) fn take_alone(&self, check: &Check<'_>) -> Option<Decision> {
        self.slots.take_alone(&self.prefix, check, monotonic_now())
    }

    /// Units in flight here of what the store counts, and how many of them it had lost and was told anew.
    #[must_use]
    pub fn held(&self) -> (u64, u64) {
        (self.slots.units(), self.slots.restored())
    }

    /// Tells the store what is held and what is not any more, for as long as it is run.
    pub async fn keep_slots(&self) {
        let mut recoveries = self.recoveries();
        let mut looked_at = monotonic_now();
        loop {
            // One that was away may have lost what it knew.
            let is_back = recoveries != self.recoveries();
            let now = monotonic_now();
            if is_back || now.saturating_duration_since(looked_at) >= LOOK_EVERY {
                recoveries = self.recoveries();
                looked_at = now;
                self.slots.renew(is_back, now);
            }
            if self.tell_some().await == 0 {
                // Over either way.
                let _ = timeout(LOOK_EVERY, self.slots.changed()).await;
            }
        }
    }

    /// Nobody waits for it: time enough for a connection.
    fn patience(&self) -> Duration {
        let settings = self.settings.load();
        settings.timeout.max(settings.connect_timeout)
    }

    /// Tells the store that nothing is held any more, within that time. For a gateway that stops.
    pub async fn release_all(&self) {
        self.slots.release_all(monotonic_now());
        let told = async {
            while !self.slots.is_empty() {
                if self.tell_some().await == 0 {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        };
        // What it is not told it finds out within the lease.
        let _ = timeout(self.patience(), told).await;
    }

    /// Tells what is due, of some keys; returns of how many.
    async fn tell_some(&self) -> usize {
        let tells = self.slots.due(TELLS_MAX, monotonic_now());
        let deadline = Instant::now() + self.patience();
        let parts = match &self.servers {
            Servers::One(_) => vec![(None, tells)],
            Servers::Cluster(_) => by_slot(tells),
        };
        let told = parts
            .iter()
            .map(|(slot, part)| self.tell(*slot, part, deadline));
        join_all(told).await.into_iter().sum()
    }

    async fn tell(&self, slot: Option<u16>, tells: &[Tell], deadline: Instant) -> usize {
        if tells.is_empty() {
            return 0;
        }
        let outcome = self.make(slot, Job::Hold(tells), deadline).await;
        if let (Err(Failed::Scattered(_)), true) = (&outcome, tells.len() > 1) {
            // Their keys are in two places at the moment: each alone has one.
            let alone = tells
                .iter()
                .map(|tell| self.tell_these(slot, std::slice::from_ref(tell), deadline));
            join_all(alone).await;
        } else {
            self.told(tells, outcome);
        }
        tells.len()
    }

    async fn tell_these(&self, slot: Option<u16>, tells: &[Tell], deadline: Instant) {
        let outcome = self.make(slot, Job::Hold(tells), deadline).await;
        self.told(tells, outcome);
    }

    fn told(&self, tells: &[Tell], outcome: Result<Decided, Failed>) {
        let now = monotonic_now();
        let failed = match &outcome {
            Err(failed) if !failed.may_have_run() => Heard::NotMade,
            _ => Heard::Unknown,
        };
        let held = outcome.map_or_else(|_| Vec::new(), |(_, held)| held);
        let mut held = held.iter();
        for tell in tells {
            let heard = held
                .next()
                .map_or(failed, |held| Heard::Units(held.remaining));
            self.slots.heard(tell, heard, now);
        }
    }
}

/// What has one slot stays together.
fn by_slot(tells: Vec<Tell>) -> Vec<(Option<u16>, Vec<Tell>)> {
    let mut parts: Vec<(Option<u16>, Vec<Tell>)> = Vec::new();
    for tell in tells {
        let slot = Some(slot_of(tell.entity));
        match parts.iter_mut().find(|(of, _)| *of == slot) {
            Some((_, part)) => part.push(tell),
            None => parts.push((slot, vec![tell])),
        }
    }
    parts
}
