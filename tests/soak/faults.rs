//! Injects the faults, and notes from when to when each of them was.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tollgate::clock::{monotonic_now, wall_now_us};

use crate::fleet::Fleet;
use crate::plan::{Fault, Kind, Plan};
use crate::routes::{TIMEOUT, config};
use crate::support::relay::Weather;

/// How long after its end a fault may still be felt, in µs: a decision that waits for its deadline, the longest pause
/// of the breaker, and a connection on its way. The product says two seconds; the rest is for a busy machine.
const FELT: u64 = 4_000_000;

/// In the last so many seconds of each minute no fault begins, so that the store has to decide everything for a while.
const MINUTE: u64 = 60;
const CALM: u64 = 20;

/// A call that is lost on a quiet way is missed by the next announcement, a second later.
const MEETS_WITHIN: Duration = Duration::from_secs(3);

/// A fault that was.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) fault: Fault,
    /// In µs since the epoch.
    pub(crate) began: u64,
    pub(crate) ended: u64,
}

impl Span {
    /// Whether usage in the store was forgotten.
    pub(crate) const fn loses_usage(&self) -> bool {
        matches!(self.fault, Fault::Crash(_))
    }

    /// Whether this gateway may be without its store, at some moment from one time to the other. A script that is
    /// gone is loaded again, and a configuration read again: neither is a reason to be.
    pub(crate) fn excuses(&self, slot: usize, from: u64, to: u64) -> bool {
        let hits = match self.fault {
            Fault::Stall(_) | Fault::Crash(_) | Fault::OutOfMemory(_) | Fault::KillClients => true,
            Fault::Spoil(at, _)
            | Fault::Weather(at, ..)
            | Fault::Replace(at)
            | Fault::Upgrade(at) => at == slot,
            Fault::FlushScripts | Fault::Reload(..) => false,
        };
        hits && from <= self.ended + FELT && to >= self.began
    }

    /// Whether a request to this gateway may have no answer, at some moment from one time to the other: while it is
    /// replaced none may have; while it is upgraded, one on a connection that was there before, and is closed as the
    /// request comes.
    pub(crate) fn replaces(&self, slot: usize, fresh: bool, from: u64, to: u64) -> bool {
        let hits = match self.fault {
            Fault::Replace(at) => at == slot,
            Fault::Upgrade(at) => at == slot && !fresh,
            _ => false,
        };
        hits && from <= self.ended && to >= self.began
    }
}

/// One sequence of faults.
pub(crate) struct Track {
    thread: JoinHandle<Vec<Span>>,
    until: Instant,
}

impl Track {
    /// Whether it ended too soon.
    pub(crate) fn has_failed(&self) -> bool {
        self.thread.is_finished() && monotonic_now() < self.until
    }

    /// The faults that were. All of them are over.
    pub(crate) fn end(self) -> Vec<Span> {
        self.thread.join().unwrap()
    }
}

/// Begins both sequences. No fault begins after `span`.
pub(crate) fn begin(
    fleet: &Arc<Fleet>,
    seed: u64,
    span: Duration,
    stop: &Arc<AtomicBool>,
) -> Vec<Track> {
    [Kind::Store, Kind::Gateways]
        .into_iter()
        .map(|kind| {
            let (fleet, stop) = (Arc::clone(fleet), Arc::clone(stop));
            let first = monotonic_now();
            let until = first + span;
            let thread = thread::spawn(move || {
                let mut spans = Vec::new();
                for (pause, fault) in Plan::of(seed, kind) {
                    let at = monotonic_now() + pause;
                    let waits = |now: Instant| {
                        let second = now.saturating_duration_since(first).as_secs() % MINUTE;
                        now < at || second >= MINUTE - CALM
                    };
                    while waits(monotonic_now()) && !stop.load(Ordering::SeqCst) {
                        thread::park_timeout(Duration::from_millis(10));
                    }
                    if monotonic_now() >= until || stop.load(Ordering::SeqCst) {
                        break;
                    }
                    let began = wall_now_us();
                    inject(&fleet, fault);
                    spans.push(Span {
                        fault,
                        began,
                        ended: wall_now_us(),
                    });
                }
                spans
            });
            Track { thread, until }
        })
        .collect()
}

/// Does it, and makes it good again.
fn inject(fleet: &Fleet, fault: Fault) {
    match fault {
        Fault::Stall(span) => {
            let valkey = fleet.valkey.lock().unwrap();
            valkey.pause();
            pass(span);
            valkey.resume();
        }
        Fault::Crash(span) => {
            let mut valkey = fleet.valkey.lock().unwrap();
            valkey.kill();
            pass(span);
            valkey.restart();
        }
        Fault::FlushScripts => tell_valkey(fleet, &["SCRIPT", "FLUSH"]),
        Fault::OutOfMemory(span) => {
            tell_valkey(fleet, &["CONFIG", "SET", "maxmemory", "1"]);
            pass(span);
            tell_valkey(fleet, &["CONFIG", "SET", "maxmemory", "0"]);
        }
        Fault::KillClients => tell_valkey(fleet, &["CLIENT", "KILL", "TYPE", "normal"]),
        Fault::Spoil(slot, fate) => {
            let relay = &fleet.slots[slot].relay;
            relay.spoil_next(fate);
            // While the store is down there is no next decision: then there is nothing to spoil.
            let until = monotonic_now() + MEETS_WITHIN;
            while relay.is_waiting() && monotonic_now() < until {
                thread::park_timeout(Duration::from_millis(5));
            }
            relay.call_off();
            // Late answers are on their way for as long.
            pass(4 * TIMEOUT);
        }
        Fault::Weather(slot, weather, span) => {
            let relay = &fleet.slots[slot].relay;
            relay.set_weather(weather);
            pass(span);
            relay.set_weather(Weather::Fair);
        }
        Fault::Reload(slot, good) => reload(fleet, slot, good),
        Fault::Replace(slot) => {
            let code = fleet.slots[slot].replace();
            assert_eq!(code, Some(0), "gateway {slot} did not finish");
        }
        Fault::Upgrade(slot) => {
            let code = fleet.slots[slot].upgrade();
            assert_eq!(code, Some(0), "gateway {slot} did not hand on");
        }
    }
}

/// Another configuration, and then the first one again: in the file, too, for whoever starts next.
fn reload(fleet: &Fleet, slot: usize, good: bool) {
    let current = fleet.slots[slot].current();
    let (store, origin) = (
        fleet.slots[slot].relay.address.to_string(),
        fleet.origin().to_string(),
    );
    let first = config(&store, &origin, "none");
    let other = if good {
        config(&store, &origin, "seconds")
    } else {
        config(&store, &origin, "nonsense")
    };
    assert_eq!(current.reload(&other), good, "{}", current.errors());
    assert!(current.reload(&first), "{}", current.errors());
}

fn tell_valkey(fleet: &Fleet, command: &[&str]) {
    let mut admin = fleet.valkey.lock().unwrap().connect();
    redis::cmd(command[0])
        .arg(&command[1..])
        .exec(&mut admin)
        .unwrap();
}

fn pass(span: Duration) {
    let until = monotonic_now() + span;
    while monotonic_now() < until {
        thread::park_timeout(until.saturating_duration_since(monotonic_now()));
    }
}
