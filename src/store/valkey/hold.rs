//! Tells the shared store what this gateway holds of concurrency, as [`Slots`](super::slots::Slots) says.
//!
//! It waits for no request and no request for it: units are given back in the background, in one call with others where
//! others come. The contract stands in `lua/hold.lua`.

use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
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

/// How many keys are told of in a call: a script that runs holds up everybody else's.
const TELLS_MAX: usize = 64;

/// How many calls are under way at once, so that many keys go in one where there are many ...
const CALLS_MAX: usize = 2;

/// ... and of a cluster, where each slot has its own.
const CALLS_MAX_OF_CLUSTER: usize = 256;

impl ValkeyStore {
    /// What `check`, a check of concurrency, was charged is given back, wherever it was taken: here while the store
    /// gave no decision, or there. Waits for nothing.
    pub fn release(&self, check: &Check<'_>) {
        self.slots.release(check, monotonic_now());
    }

    /// Decides by this gateway's share of a limit, in `check`, while the store gives no decision; of concurrency alone.
    /// All that is in flight here counts, whenever it began.
    pub(crate) fn take_alone(&self, check: &Check<'_>) -> Option<Decision> {
        self.slots.take_alone(check, monotonic_now())
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
        let mut under_way = FuturesUnordered::new();
        loop {
            // A store that was away may have lost what it knew.
            let is_back = recoveries != self.recoveries();
            let now = monotonic_now();
            if is_back || now.saturating_duration_since(looked_at) >= LOOK_EVERY {
                recoveries = self.recoveries();
                looked_at = now;
                self.slots.renew(is_back, now);
            }
            // A server that does not answer holds up what is told to it, and nothing else.
            while under_way.len() < self.calls_max() {
                let calls = self.calls();
                if calls.is_empty() {
                    break;
                }
                for (slot, tells) in calls {
                    under_way.push(async move { self.tell(slot, &tells).await });
                }
            }
            let changed = timeout(LOOK_EVERY, self.slots.changed());
            if under_way.is_empty() {
                // Over either way.
                let _ = changed.await;
            } else {
                tokio::select! {
                    _ = under_way.next() => {}
                    _ = changed => {}
                }
            }
        }
    }

    /// Tells the store that nothing is held any more, within its patience. For a gateway that stops.
    pub async fn release_all(&self) {
        self.slots.release_all(monotonic_now());
        let told = async {
            while !self.slots.is_empty() {
                let calls = self.calls();
                if calls.is_empty() {
                    sleep(Duration::from_millis(1)).await;
                }
                join_all(calls.iter().map(|(slot, tells)| self.tell(*slot, tells))).await;
            }
        };
        // What it is not told it finds out within the lease.
        let _ = timeout(self.patience(), told).await;
    }

    /// Nobody waits for it: time enough for a connection.
    fn patience(&self) -> Duration {
        let settings = self.settings.load();
        settings.timeout.max(settings.connect_timeout)
    }

    const fn calls_max(&self) -> usize {
        match self.servers {
            Servers::One(_) => CALLS_MAX,
            Servers::Cluster(_) => CALLS_MAX_OF_CLUSTER,
        }
    }

    /// What is to be told next: of a cluster, a call for each slot.
    fn calls(&self) -> Vec<(Option<u16>, Vec<Tell>)> {
        let tells = self.slots.due(TELLS_MAX, monotonic_now());
        let mut calls: Vec<(Option<u16>, Vec<Tell>)> = Vec::new();
        for tell in tells {
            let slot = match self.servers {
                Servers::One(_) => None,
                Servers::Cluster(_) => Some(slot_of(tell.entity)),
            };
            match calls.iter_mut().find(|(of, _)| *of == slot) {
                Some((_, tells)) => tells.push(tell),
                None => calls.push((slot, vec![tell])),
            }
        }
        calls
    }

    async fn tell(&self, slot: Option<u16>, tells: &[Tell]) {
        let deadline = Instant::now() + self.patience();
        let outcome = self.make(slot, Job::Hold(tells), deadline).await;
        if let (Err(Failed::Scattered(_)), [_, _, ..]) = (&outcome, tells) {
            // Their keys are in two places at the moment: each alone has one.
            let alone = tells.iter().map(async |tell| {
                let tell = std::slice::from_ref(tell);
                let outcome = self.make(slot, Job::Hold(tell), deadline).await;
                self.heard(tell, outcome);
            });
            join_all(alone).await;
        } else {
            self.heard(tells, outcome);
        }
    }

    fn heard(&self, tells: &[Tell], outcome: Result<Decided, Failed>) {
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
