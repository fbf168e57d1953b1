//! One connection to Valkey, kept by one actor: it connects, loads the script, and probes by the rules of the
//! `Breaker`. Decisions see a link while that is closed, and none while it is open.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{info, warn};

use super::announce::{self, Announcer};
use super::breaker::Breaker;
use super::{Settings, script};
use crate::clock::monotonic_now;
use crate::store::{Cause, StoreError};

/// A connection that has the script.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) connection: MultiplexedConnection,
    /// What the server calls the script.
    pub(crate) sha: String,
    number: u64,
}

/// What an error says about more than the call that met it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Blame {
    /// Nothing: another call may well succeed, as after an error about this key.
    Call,
    /// The server fails everybody.
    Server,
    /// Another connection may do better.
    Connection,
}

/// What those who decide and the one who connects have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    /// There while the breaker is closed.
    link: ArcSwapOption<Link>,
    breaker: Mutex<Breaker>,
    /// How many calls were answered.
    answered: AtomicU64,
    /// Whether nothing was decided since the breaker closed.
    unproven: AtomicBool,
    /// How often decisions came from the server again.
    recoveries: AtomicU32,
    /// How many gateways were alive when it was last heard of.
    instances: AtomicU32,
    wake: Notify,
    /// Why there is no link.
    last_error: Mutex<Option<(Cause, String)>>,
}

impl Shared {
    fn new() -> Self {
        Self {
            link: ArcSwapOption::empty(),
            breaker: Mutex::new(Breaker::new(monotonic_now())),
            answered: AtomicU64::new(0),
            unproven: AtomicBool::new(false),
            recoveries: AtomicU32::new(0),
            instances: AtomicU32::new(0),
            wake: Notify::new(),
            last_error: Mutex::new(None),
        }
    }

    pub(crate) fn last_error(&self) -> Option<(Cause, String)> {
        self.last_error_slot().clone()
    }

    fn last_error_slot(&self) -> MutexGuard<'_, Option<(Cause, String)>> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.link.load_full()
    }

    /// How often decisions came from the server again, the first time included.
    pub(crate) fn recoveries(&self) -> u32 {
        self.recoveries.load(Ordering::Relaxed)
    }

    /// How many gateways were alive when the server was last heard of.
    pub(crate) fn instances(&self) -> u32 {
        self.instances.load(Ordering::Relaxed)
    }

    /// The server decided. Takes no lock but for the first decision after an outage.
    pub(crate) fn decided(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        if self.unproven.load(Ordering::Relaxed) && self.unproven.swap(false, Ordering::Relaxed) {
            self.breaker().proved();
            self.recoveries.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A call on this link failed in a way that says something about others.
    pub(crate) fn failed(&self, link: &Link, error: &StoreError, blame: Blame) {
        let now = monotonic_now();
        let mut breaker = self.breaker();
        // What comes in late from a link that is gone says nothing about this one.
        let held = self.link.load();
        if held.as_ref().is_none_or(|held| held.number != link.number) {
            return;
        }
        let opened = match blame {
            Blame::Call => false,
            Blame::Server => breaker.failed(now, self.answered.load(Ordering::Relaxed), chance()),
            Blame::Connection => breaker.lost(now, chance()),
        };
        if opened {
            self.link.store(None);
            self.unproven.store(false, Ordering::Relaxed);
            let cause = once_open(error.cause());
            *self.last_error_slot() = Some((cause, error.to_string()));
            self.wake.notify_one();
        }
    }

    /// Counts a good probe; the last one that is needed makes this the link of all.
    fn probed_well(&self, connection: &MultiplexedConnection, sha: &str, number: u64) -> bool {
        let mut breaker = self.breaker();
        let closes = breaker.probed(true, monotonic_now(), chance());
        if closes {
            *self.last_error_slot() = None;
            self.unproven.store(true, Ordering::Relaxed);
            self.link.store(Some(Arc::new(Link {
                connection: connection.clone(),
                sha: sha.to_owned(),
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

/// The actor. It ends with [`Connector::run`].
#[derive(Debug)]
pub struct Connector {
    settings: Settings,
    shared: Arc<Shared>,
    announcer: Option<Announcer>,
    /// Whether it was said that this gateway cannot be announced.
    told: AtomicBool,
}

/// A connection that is not yet for all.
struct Candidate {
    connection: MultiplexedConnection,
    sha: String,
    /// Where it leads.
    server: String,
}

/// What decides and what connects. Without an announcer, nobody learns of this gateway.
pub(crate) fn new(settings: Settings, announcer: Option<Announcer>) -> (Arc<Shared>, Connector) {
    let shared = Arc::new(Shared::new());
    let connector = Connector {
        settings,
        shared: Arc::clone(&shared),
        announcer,
        told: AtomicBool::new(false),
    };
    (shared, connector)
}

impl Connector {
    /// Connects, and keeps connected, until `stop` turns true or its sender is gone.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.keep_connected() => {}
            _ = stop.wait_for(|stopped| *stopped) => {}
        }
        self.shared.link.store(None);
    }

    async fn keep_connected(&self) {
        let mut number = 0;
        let mut candidate = None;
        loop {
            let probe_at = self.shared.breaker().probe_at();
            let Some(probe_at) = probe_at else {
                self.watch().await;
                candidate = None;
                let reason = self.shared.last_error().map(|(_, reason)| reason);
                warn!(store = %self.settings.address, reason, "connection to the store given up");
                continue;
            };
            sleep_until(Instant::from_std(probe_at)).await;
            match self.probe(candidate.take()).await {
                Ok(good) => {
                    number += 1;
                    if self.shared.probed_well(&good.connection, &good.sha, number) {
                        info!(store = %self.settings.address, server = %good.server, "connected to the store");
                    }
                    candidate = Some(good);
                }
                Err(error) => {
                    self.complain(&error);
                    self.shared
                        .breaker()
                        .probed(false, monotonic_now(), chance());
                }
            }
        }
    }

    /// Once for each new reason, not for each try.
    fn complain(&self, error: &StoreError) {
        let reason = (once_open(error.cause()), error.to_string());
        let mut last = self.shared.last_error_slot();
        if last.as_ref() != Some(&reason) {
            warn!(store = %self.settings.address, reason = %reason.1, "no connection to the store");
            *last = Some(reason);
        }
    }

    /// Whether the server is well: a new connection within `connect_timeout`; on one that is there, an answer as soon
    /// as a decision needs one.
    async fn probe(&self, candidate: Option<Candidate>) -> Result<Candidate, StoreError> {
        let Some(mut candidate) = candidate else {
            return self.connect().await;
        };
        match timeout(self.settings.timeout, self.hear(&mut candidate.connection)).await {
            Ok(Ok(())) => Ok(candidate),
            Ok(Err(error)) => Err(classify(&error).0),
            Err(_) => Err(StoreError::Timeout(self.settings.timeout)),
        }
    }

    /// A connection that has the script, and what the server calls that, within `connect_timeout`.
    async fn connect(&self) -> Result<Candidate, StoreError> {
        let connect = async {
            let (mut connection, server) = self.settings.find_and_connect().await?;
            // Before the script, so that a server that wants a password says so.
            ping(&mut connection).await?;
            let sha = load(&mut connection, script::source()).await?;
            self.hear(&mut connection).await?;
            RedisResult::Ok(Candidate {
                connection,
                sha,
                server,
            })
        };
        match timeout(self.settings.connect_timeout, connect).await {
            Ok(connected) => connected.map_err(|error| classify(&error).0),
            Err(_) => Err(StoreError::NotRun(
                Cause::Connect,
                format!("no connection within {:?}", self.settings.connect_timeout),
            )),
        }
    }

    /// Whether the server is there and takes writes; it is told that this gateway is alive, and tells how many are.
    async fn hear(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let Some(announcer) = &self.announcer else {
            return ping(connection).await;
        };
        match announcer.announce(connection).await {
            Ok(alive) => {
                self.shared.instances.store(alive, Ordering::Relaxed);
                Ok(())
            }
            Err(error) if announce::is_forbidden(&error) => {
                if !self.told.swap(true, Ordering::Relaxed) {
                    warn!(store = %self.settings.address, reason = %error, "this gateway cannot be announced: store.instances alone says how many there are");
                }
                ping(connection).await
            }
            Err(error) => Err(error),
        }
    }

    /// Returns once the breaker is open.
    async fn watch(&self) {
        let patience = self.settings.timeout.max(self.settings.connect_timeout);
        while let Some(link) = self.shared.link() {
            let mut connection = link.connection.clone();
            tokio::select! {
                () = self.shared.wake.notified() => {}
                () = sleep(announce::EVERY) => {
                    let (error, blame) = match timeout(patience, self.hear(&mut connection)).await {
                        Ok(Ok(())) => continue,
                        Ok(Err(error)) => classify(&error),
                        Err(_) => (StoreError::Timeout(patience), Blame::Connection),
                    };
                    self.shared.failed(&link, &error, blame);
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

/// Whether a script is gone, as after a restart or SCRIPT FLUSH: it did not run.
pub(crate) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Loads a script, and says what the server calls it.
pub(crate) async fn load(
    connection: &mut MultiplexedConnection,
    script: &str,
) -> RedisResult<String> {
    redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script)
        .query_async(connection)
        .await
}

/// What an error of the server or the connection means, and for whom.
pub(crate) fn classify(error: &RedisError) -> (StoreError, Blame) {
    // The text names no key: the server only ever sees hashes of them.
    let text = error.to_string();
    let code = error.code().unwrap_or_default();
    let not_run = |cause, blame| (StoreError::NotRun(cause, text.clone()), blame);
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoPerm) => not_run(Cause::Auth, Blame::Server),
        ErrorKind::AuthenticationFailed => not_run(Cause::Auth, Blame::Connection),
        // A demoted primary stays demoted: look for the new one.
        ErrorKind::Server(
            ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown | ServerErrorKind::BusyLoading,
        ) => not_run(Cause::Cluster, Blame::Connection),
        ErrorKind::Server(ServerErrorKind::ClusterDown) => not_run(Cause::Cluster, Blame::Server),
        // About the slots of these keys.
        ErrorKind::Server(
            ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::CrossSlot,
        ) => not_run(Cause::Cluster, Blame::Call),
        _ if matches!(code, "NOAUTH" | "WRONGPASS") => {
            let text = format!("{text}; store.username and store.password_file say who we are");
            (StoreError::NotRun(Cause::Auth, text), Blame::Connection)
        }
        // A command of one kind of policy that the user may not use: other kinds may do well.
        _ if text.contains("ACL failure in script") => not_run(Cause::Auth, Blame::Call),
        ErrorKind::Server(_) | ErrorKind::Extension if fails_everybody(code) => {
            not_run(Cause::Script, Blame::Server)
        }
        // Errors of the script itself: of this call, as far as anybody can tell.
        ErrorKind::Server(_) | ErrorKind::Extension => not_run(Cause::Script, Blame::Call),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
            (StoreError::BadReply(text), Blame::Connection)
        }
        _ if error.is_connection_refusal() => not_run(Cause::Connect, Blame::Connection),
        _ => (StoreError::Lost(text), Blame::Connection),
    }
}

/// Errors by which a server refuses every write.
fn fails_everybody(code: &str) -> bool {
    matches!(
        code,
        "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "UNKILLABLE"
    )
}
