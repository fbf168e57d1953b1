//! One server, as those who decide see it: a link while its `Breaker` is closed, and none while it is open.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use redis::aio::MultiplexedConnection;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::batch::Queue;
use super::breaker::Breaker;
use super::census::Census;
use super::dial::Place;
use super::failure::Blame;
use crate::clock::monotonic_now;
use crate::store::{Cause, StoreError};

/// How often somebody who waits for a server or its link looks for it.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long nothing more is said of what goes on failing for the same reason.
pub(super) const TELL_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// So many calls in a row that failed alone, and nothing else is left to say of the server than that it fails.
const ALONE_MAX: u32 = 20;

/// A connection that has the scripts.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) connection: MultiplexedConnection,
    /// Who waits for the calls that are under way.
    pub(super) queue: Queue,
    number: u64,
}

/// What those who decide and the [`super::keeper::Keeper`] have in common.
#[derive(Debug)]
pub(crate) struct Node {
    place: Place,
    /// There while the breaker is closed.
    pub(super) link: ArcSwapOption<Link>,
    breaker: Mutex<Breaker>,
    /// How many calls were answered.
    answered: AtomicU64,
    /// Whether nothing was decided since the breaker closed.
    unproven: AtomicBool,
    /// How many gateways there are to go by, and how that is known.
    pub(super) instances: AtomicU32,
    census: Mutex<Census>,
    /// The key of the list on which gateways announce themselves here; on none if it is empty.
    list: ArcSwap<String>,
    pub(super) wake: Notify,
    /// Told when another server may have taken this one's place.
    pub(super) doubt: Arc<Notify>,
    /// Why there is no link.
    last_error: Mutex<Option<(Cause, String)>>,
    /// Whether the link that was given up last had decided anything.
    pub(super) was_proven: AtomicBool,
    /// How many calls failed alone since one was answered, and how many had been answered then.
    alone: Mutex<(u32, u64)>,
    /// What was said last of calls that failed alone, and when.
    told_of_calls: Mutex<Option<(String, std::time::Instant)>>,
}

impl Node {
    pub(crate) fn new(place: Place, list: String, doubt: Arc<Notify>) -> Self {
        Self {
            place,
            link: ArcSwapOption::empty(),
            breaker: Mutex::new(Breaker::new(monotonic_now())),
            answered: AtomicU64::new(0),
            unproven: AtomicBool::new(false),
            instances: AtomicU32::new(0),
            census: Mutex::new(Census::new()),
            list: ArcSwap::from_pointee(list),
            wake: Notify::new(),
            doubt,
            last_error: Mutex::new(None),
            was_proven: AtomicBool::new(true),
            alone: Mutex::new((0, 0)),
            told_of_calls: Mutex::new(None),
        }
    }

    /// Where it is, as far as that is known beforehand.
    pub(crate) const fn place(&self) -> &Place {
        &self.place
    }

    /// Whether it is the server at this `host:port`.
    pub(crate) fn is_at(&self, address: &str) -> bool {
        matches!(&self.place, Place::At(at) if at == address)
    }

    pub(crate) fn last_error(&self) -> Option<(Cause, String)> {
        self.last_error_slot().clone()
    }

    pub(super) fn last_error_slot(&self) -> MutexGuard<'_, Option<(Cause, String)>> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn census(&self) -> MutexGuard<'_, Census> {
        self.census.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.link.load_full()
    }

    /// Whether it is asked.
    pub(crate) fn is_up(&self) -> bool {
        self.link.load().is_some()
    }

    /// The link, as soon as there is one, or nothing at the deadline.
    pub(crate) async fn await_link(&self, deadline: Instant) -> Option<Arc<Link>> {
        loop {
            let link = self.link();
            if link.is_some() || Instant::now() >= deadline {
                return link;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// How many gateways were alive when it was last heard of.
    pub(crate) fn instances(&self) -> u32 {
        self.instances.load(Ordering::Relaxed)
    }

    /// The key of the list on which gateways announce themselves here; empty if there is none.
    pub(crate) fn list(&self) -> Arc<String> {
        self.list.load_full()
    }

    /// Has gateways announced on another list.
    pub(crate) fn set_list(&self, key: String) {
        if **self.list.load() != key {
            self.list.store(Arc::new(key));
            self.census().connected(monotonic_now());
        }
    }

    /// The server decided. Says whether that ends an outage. Takes no lock but then.
    pub(crate) fn decided(&self) -> bool {
        self.answered.fetch_add(1, Ordering::Relaxed);
        let ends =
            self.unproven.load(Ordering::Relaxed) && self.unproven.swap(false, Ordering::Relaxed);
        if ends {
            self.breaker().proved();
        }
        ends
    }

    /// A call on this link failed in a way that says something about others.
    pub(crate) fn failed(&self, link: &Link, error: &StoreError, blame: Blame) {
        let now = monotonic_now();
        if error.cause() == Cause::Cluster {
            self.doubt.notify_one();
        }
        let mut breaker = self.breaker();
        // What comes in late from a link that is gone says nothing about this one.
        let held = self.link.load();
        if held.as_ref().is_none_or(|held| held.number != link.number) {
            return;
        }
        let answered = self.answered.load(Ordering::Relaxed);
        let opened = match blame {
            Blame::Call => {
                self.tell_of_call(error, now);
                self.fails_every_call(answered) && breaker.failed(now, answered, chance())
            }
            Blame::Server => breaker.failed(now, answered, chance()),
            Blame::Connection => breaker.lost(now, chance()),
            Blame::Demoted => breaker.demoted(now, chance()),
        };
        if opened {
            self.link.store(None);
            let was_unproven = self.unproven.swap(false, Ordering::Relaxed);
            self.was_proven.store(!was_unproven, Ordering::Relaxed);
            let cause = once_open(error.cause());
            *self.last_error_slot() = Some((cause, error.to_string()));
            self.wake.notify_one();
            self.doubt.notify_one();
        }
    }

    /// Counts a call that failed alone; says whether so many have, and none was answered, that it is not about them.
    fn fails_every_call(&self, answered: u64) -> bool {
        let mut alone = self.alone.lock().unwrap_or_else(PoisonError::into_inner);
        let before = if alone.1 == answered { alone.0 } else { 0 };
        *alone = (before.saturating_add(1), answered);
        alone.0 > ALONE_MAX
    }

    /// Says why a call failed that says nothing about others: once for each reason, and again after a while.
    fn tell_of_call(&self, error: &StoreError, now: std::time::Instant) {
        let reason = error.to_string();
        let mut told = self
            .told_of_calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_news = told.as_ref().is_none_or(|(before, at)| {
            *before != reason || now.saturating_duration_since(*at) >= TELL_AGAIN_AFTER
        });
        if is_news {
            warn!(store = %self.place, reason, "the store gave no decision");
            *told = Some((reason, now));
        }
    }

    /// Counts a good probe; the last one that is needed makes this the link of all.
    pub(super) fn probed_well(&self, connection: &MultiplexedConnection, number: u64) -> bool {
        let mut breaker = self.breaker();
        let closes = breaker.probed(true, monotonic_now(), chance());
        if closes {
            *self.last_error_slot() = None;
            self.unproven.store(true, Ordering::Relaxed);
            self.link.store(Some(Arc::new(Link {
                connection: connection.clone(),
                queue: Queue::default(),
                number,
            })));
        }
        closes
    }
}

/// What those are told who no longer wait: no deadline passes, there is no connection.
pub(super) const fn once_open(cause: Cause) -> Cause {
    match cause {
        Cause::Timeout => Cause::Connect,
        cause => cause,
    }
}

/// Of a thousand.
pub(super) fn chance() -> u32 {
    fastrand::u32(..=1000)
}
