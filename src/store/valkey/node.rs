//! One server, and one actor that keeps the connection to it: it connects, loads the scripts, and probes by the rules
//! of the `Breaker`. Decisions see a link while that is closed, and none while it is open.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::Settings;
use super::announce::{self, Announcer};
use super::breaker::Breaker;
use super::census::Census;
use super::dial::Place;
use super::failure::{Blame, classify, redirect};
use super::script::{DECIDE, REFUND};
use crate::clock::monotonic_now;
use crate::store::{Cause, StoreError};

/// How often somebody who waits for a link looks for it.
const LINK_LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long nothing more is said of what goes on failing for the same reason.
const TELL_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A connection that has the scripts.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) connection: MultiplexedConnection,
    number: u64,
}

/// What those who decide and the one who connects have in common.
#[derive(Debug)]
pub(crate) struct Node {
    place: Place,
    /// There while the breaker is closed.
    link: ArcSwapOption<Link>,
    breaker: Mutex<Breaker>,
    /// How many calls were answered.
    answered: AtomicU64,
    /// Whether nothing was decided since the breaker closed.
    unproven: AtomicBool,
    /// How many gateways there are to go by, and how that is known.
    instances: AtomicU32,
    census: Mutex<Census>,
    /// The key of the list on which gateways announce themselves here; on none if it is empty.
    list: ArcSwap<String>,
    wake: Notify,
    /// Told when another server may have taken this one's place.
    doubt: Arc<Notify>,
    /// Why there is no link.
    last_error: Mutex<Option<(Cause, String)>>,
    /// Whether the link that was given up last had decided anything.
    was_proven: AtomicBool,
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
            told_of_calls: Mutex::new(None),
        }
    }

    /// Where it is, as far as that is known beforehand.
    pub(crate) const fn place(&self) -> &Place {
        &self.place
    }

    pub(crate) fn last_error(&self) -> Option<(Cause, String)> {
        self.last_error_slot().clone()
    }

    fn last_error_slot(&self) -> MutexGuard<'_, Option<(Cause, String)>> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn census(&self) -> MutexGuard<'_, Census> {
        self.census.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
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
            sleep(LINK_LOOK_EVERY).await;
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
        let opened = match blame {
            Blame::Call => {
                self.tell_of_call(error, now);
                false
            }
            Blame::Server => breaker.failed(now, self.answered.load(Ordering::Relaxed), chance()),
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
    fn probed_well(&self, connection: &MultiplexedConnection, number: u64) -> bool {
        let mut breaker = self.breaker();
        let closes = breaker.probed(true, monotonic_now(), chance());
        if closes {
            *self.last_error_slot() = None;
            self.unproven.store(true, Ordering::Relaxed);
            self.link.store(Some(Arc::new(Link {
                connection: connection.clone(),
                number,
            })));
        }
        closes
    }
}

/// What those are told who no longer wait: no deadline passes, there is no connection.
const fn once_open(cause: Cause) -> Cause {
    match cause {
        Cause::Timeout => Cause::Connect,
        cause => cause,
    }
}

/// Of a thousand.
fn chance() -> u32 {
    fastrand::u32(..=1000)
}

/// The actor that keeps the connection to a [`Node`]. It ends with [`Keeper::run`].
#[derive(Debug)]
pub(crate) struct Keeper {
    pub(crate) settings: Arc<ArcSwap<Settings>>,
    pub(crate) node: Arc<Node>,
    /// Without one, nobody learns of this gateway.
    pub(crate) announcer: Option<Arc<Announcer>>,
}

/// A connection that is not yet for all.
struct Candidate {
    connection: MultiplexedConnection,
    /// Where it leads.
    server: String,
}

impl Keeper {
    /// Connects, and keeps connected, until `stop` turns true or its sender is gone.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.keep_connected() => {}
            _ = stop.wait_for(|stopped| *stopped) => {}
        }
        self.node.link.store(None);
    }

    async fn keep_connected(&self) {
        let store = self.node.place();
        let mut number = 0;
        let mut candidate = None;
        // A link that decided nothing is soon given up again, for the same reason: that is said once in a while.
        let (mut is_quiet, mut given_up) = (false, None);
        loop {
            let probe_at = self.node.breaker().probe_at();
            let Some(probe_at) = probe_at else {
                self.watch().await;
                candidate = None;
                let reason = self.node.last_error().map(|(_, reason)| reason);
                let now = monotonic_now();
                is_quiet = !self.node.was_proven.load(Ordering::Relaxed)
                    && given_up.as_ref().is_some_and(|(before, at)| {
                        *before == reason && now.saturating_duration_since(*at) < TELL_AGAIN_AFTER
                    });
                if is_quiet {
                    debug!(%store, reason, "connection to the store given up again");
                } else {
                    warn!(%store, reason, "connection to the store given up");
                    given_up = Some((reason, now));
                }
                continue;
            };
            sleep_until(Instant::from_std(probe_at)).await;
            match self.probe(candidate.take()).await {
                Ok(good) => {
                    number += 1;
                    if self.node.probed_well(&good.connection, number) {
                        if is_quiet {
                            debug!(%store, server = %good.server, "connected to the store again");
                        } else {
                            info!(%store, server = %good.server, "connected to the store");
                        }
                    }
                    candidate = Some(good);
                }
                Err(error) => {
                    self.complain(&error);
                    self.node.breaker().probed(false, monotonic_now(), chance());
                }
            }
        }
    }

    /// Once for each new reason, not for each try.
    fn complain(&self, error: &StoreError) {
        let reason = (once_open(error.cause()), error.to_string());
        let mut last = self.node.last_error_slot();
        if last.as_ref() != Some(&reason) {
            warn!(store = %self.node.place(), reason = %reason.1, "no connection to the store");
            *last = Some(reason);
        }
    }

    /// Whether the server is well: a new connection within `connect_timeout`; on one that is there, an answer as soon
    /// as a decision needs one.
    async fn probe(&self, candidate: Option<Candidate>) -> Result<Candidate, StoreError> {
        let Some(mut candidate) = candidate else {
            return self.connect().await;
        };
        let patience = self.settings.load().timeout;
        match timeout(patience, self.hear(&mut candidate.connection)).await {
            Ok(Ok(())) => Ok(candidate),
            Ok(Err(error)) => Err(classify(&error).0),
            Err(_) => Err(StoreError::Timeout(patience)),
        }
    }

    /// A connection that has the scripts, within `connect_timeout`.
    async fn connect(&self) -> Result<Candidate, StoreError> {
        let settings = self.settings.load_full();
        let connect = async {
            let (mut connection, server) = settings.find(self.node.place()).await?;
            // Before the scripts, so that a server that wants a password says so.
            ping(&mut connection).await?;
            DECIDE.load(&mut connection).await?;
            REFUND.load(&mut connection).await?;
            self.node.census().connected(monotonic_now());
            self.hear(&mut connection).await?;
            RedisResult::Ok(Candidate { connection, server })
        };
        match timeout(settings.connect_timeout, connect).await {
            Ok(connected) => connected.map_err(|error| match classify(&error).0 {
                // Nothing was asked yet.
                StoreError::Lost(reason) => StoreError::NotRun(Cause::Connect, reason),
                error => error,
            }),
            Err(_) => Err(StoreError::NotRun(
                Cause::Connect,
                format!("no connection within {:?}", settings.connect_timeout),
            )),
        }
    }

    /// Whether the server is there and takes writes; it is told that this gateway is alive, and tells how many are.
    async fn hear(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let list = self.node.list();
        let announcer = self.announcer.as_ref().filter(|_| !list.is_empty());
        let Some(announcer) = announcer else {
            return ping(connection).await;
        };
        match announcer.announce(&list, connection).await {
            Ok(Some(alive)) => {
                let alive = self.node.census().heard(alive, monotonic_now());
                self.node.instances.store(alive, Ordering::Relaxed);
                Ok(())
            }
            Ok(None) => ping(connection).await,
            // It is well, and the list has moved to another server.
            Err(error) if redirect(&error, "").is_some() => {
                self.node.doubt.notify_one();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Returns once the breaker is open.
    async fn watch(&self) {
        while let Some(link) = self.node.link() {
            let mut connection = link.connection.clone();
            let settings = self.settings.load_full();
            let patience = settings.timeout.max(settings.connect_timeout);
            let looked_after = async {
                sleep(announce::EVERY).await;
                match timeout(patience, self.hear(&mut connection)).await {
                    Ok(Ok(())) => None,
                    Ok(Err(error)) => Some(classify(&error)),
                    Err(_) => Some((StoreError::Timeout(patience), Blame::Connection)),
                }
            };
            tokio::select! {
                () = self.node.wake.notified() => {}
                found = looked_after => if let Some((error, blame)) = found {
                    self.node.failed(&link, &error, blame);
                }
            }
        }
    }
}

async fn ping(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    redis::cmd("PING")
        .query_async::<redis::Value>(connection)
        .await
        .map(drop)
}
