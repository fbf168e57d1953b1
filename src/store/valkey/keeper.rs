//! The actor that keeps the connection to one server: it connects, loads the scripts, and probes by the rules of the
//! `Breaker`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::ArcSwap;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, info, warn};

use super::Settings;
use super::announce::{self, Announcer};
use super::failure::{Blame, classify, redirect};
use super::node::{Node, TELL_AGAIN_AFTER, chance, once_open};
use super::script::{DECIDE, HOLD, SETTLE};
use crate::clock::monotonic_now;
use crate::store::{Cause, StoreError};

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
            SETTLE.load(&mut connection).await?;
            HOLD.load(&mut connection).await?;
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
