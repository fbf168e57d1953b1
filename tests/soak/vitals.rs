//! What the gateways hold while they run, and when they rest.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::fleet::{Fleet, status};
use crate::routes::GATEWAYS;

/// A gateway's memory is steady after this: pools, maps and buffers have their sizes.
const WARM_AFTER: usize = 30;

/// So many seconds make up a reading.
const READING: usize = 10;

/// How much more memory than when it was warm is no leak, in KiB: an allocator keeps what a burst needed, and each
/// burst is a little different. 64 bytes a request would be more after ten minutes.
const SLACK_KIB: u64 = 4 * 1024;

/// Memory of one gateway, a reading a second, in KiB.
struct Life {
    slot: usize,
    generation: usize,
    resident: Vec<u64>,
}

/// Looks at the gateways once a second.
pub(crate) struct Watch {
    lives: Arc<Mutex<Vec<Life>>>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Watch {
    pub(crate) fn begin(fleet: &Arc<Fleet>) -> Self {
        let lives: Arc<Mutex<Vec<Life>>> = Arc::default();
        let stop = Arc::new(AtomicBool::new(false));
        let thread = {
            let (lives, stop, fleet) = (Arc::clone(&lives), Arc::clone(&stop), Arc::clone(fleet));
            thread::spawn(move || {
                let mut next = monotonic_now();
                while !stop.load(Ordering::SeqCst) {
                    if monotonic_now() >= next {
                        next += Duration::from_secs(1);
                        look(&fleet, &mut lives.lock().unwrap());
                    }
                    thread::park_timeout(Duration::from_millis(50));
                }
            })
        };
        Self {
            lives,
            stop,
            thread,
        }
    }

    /// Memory now, for people.
    pub(crate) fn now(&self) -> String {
        let lives = self.lives.lock().unwrap();
        let latest: Vec<_> = (0..GATEWAYS)
            .filter_map(|slot| {
                let life = lives.iter().rev().find(|life| life.slot == slot)?;
                Some(format!("{}", life.resident.last()? / 1024))
            })
            .collect();
        format!("{} MiB", latest.join(", "))
    }

    /// Stops looking, waits until all rest, and says what is held that should not be.
    pub(crate) fn end(self, fleet: &Fleet) -> Vec<String> {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
        let mut violations = fleet.await_rest();
        let connections = fleet.store_connections();
        if connections != GATEWAYS {
            violations.push(format!(
                "Valkey has {connections} connections of {GATEWAYS} gateways"
            ));
        }
        for slot in &fleet.slots {
            slot.current().await_metric("tollgate_store_up", 1.0);
        }
        for life in self.lives.lock().unwrap().iter() {
            violations.extend(life.leak());
        }
        violations
    }
}

impl Life {
    /// Whether it grew after it was warm. One that ended too soon says nothing.
    fn leak(&self) -> Option<String> {
        let median = |readings: &[u64]| {
            let mut sorted = readings.to_vec();
            sorted.sort_unstable();
            sorted[sorted.len() / 2]
        };
        let warm = self.resident.get(WARM_AFTER..WARM_AFTER + READING)?;
        let last = self.resident.get(self.resident.len() - READING..)?;
        if self.resident.len() < WARM_AFTER + 2 * READING {
            return None;
        }
        let (warm, last) = (median(warm), median(last));
        println!(
            "gateway {}.{}: {warm} KiB when warm, {last} KiB after {} s",
            self.slot,
            self.generation,
            self.resident.len()
        );
        (last > warm + SLACK_KIB).then(|| {
            format!(
                "gateway {}.{} grew from {warm} to {last} KiB",
                self.slot, self.generation
            )
        })
    }
}

fn look(fleet: &Fleet, lives: &mut Vec<Life>) {
    for (number, slot) in fleet.slots.iter().enumerate() {
        // One that is being replaced has nothing to say.
        let Some(current) = slot.try_current() else {
            continue;
        };
        let resident = status(current.id(), "VmRSS:");
        let generation = slot.generation();
        match lives
            .iter_mut()
            .find(|life| (life.slot, life.generation) == (number, generation))
        {
            Some(life) => life.resident.push(resident),
            None => lives.push(Life {
                slot: number,
                generation,
                resident: vec![resident],
            }),
        }
    }
}
