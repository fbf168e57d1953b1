//! One connection to Valkey, kept by one actor: it connects, loads the script, asks whether the server is there,
//! and connects again with a bounded, jittered pause.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind,
};
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::{Settings, script};
use crate::store::{Cause, StoreError};

/// So many deadlines missed in a row mean that the connection is no good.
const MISSED_MAX: u32 = 5;

/// How often the server is asked whether it is there.
const PING_EVERY: Duration = Duration::from_secs(1);

/// Pause before another try to connect: the least, and how much chance adds.
const PAUSE_MS: u64 = 50;
const PAUSE_JITTER_MS: u64 = 200;

/// The most calls in flight on the connection.
const IN_FLIGHT_MAX: usize = 1024;

/// A connection that has the script.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) connection: MultiplexedConnection,
    /// What the server calls the script.
    pub(crate) sha: String,
    number: u64,
}

/// What those who decide and the one who connects have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    link: ArcSwapOption<Link>,
    /// Deadlines missed since the last answer.
    missed: AtomicU32,
    /// The number of the link that is to be replaced.
    broken: AtomicU64,
    wake: Notify,
    /// Why the last try to connect failed.
    last_error: Mutex<Option<(Cause, String)>>,
}

impl Shared {
    pub(crate) fn last_error(&self) -> Option<(Cause, String)> {
        self.last_error_slot().clone()
    }

    fn last_error_slot(&self) -> MutexGuard<'_, Option<(Cause, String)>> {
        self.last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        self.link.load_full()
    }

    /// The server answered in time.
    pub(crate) fn answered(&self) {
        if self.missed.load(Ordering::Relaxed) > 0 {
            self.missed.store(0, Ordering::Relaxed);
        }
    }

    /// The server did not answer in time.
    pub(crate) fn timed_out(&self, link: &Arc<Link>) {
        if self.missed.fetch_add(1, Ordering::Relaxed) + 1 >= MISSED_MAX {
            self.drop_link(link);
        }
    }

    /// Nobody uses this connection any more; the actor makes another.
    pub(crate) fn drop_link(&self, link: &Arc<Link>) {
        let held = self.link.load();
        if held.as_ref().is_some_and(|held| held.number == link.number) {
            self.link.compare_and_swap(&*held, None);
        }
        self.broken.fetch_max(link.number, Ordering::Relaxed);
        self.wake.notify_one();
    }
}

/// The actor. It ends with [`Connector::run`].
#[derive(Debug)]
pub struct Connector {
    settings: Settings,
    shared: Arc<Shared>,
}

pub(crate) fn new(settings: Settings) -> (Arc<Shared>, Connector) {
    let shared = Arc::new(Shared {
        link: ArcSwapOption::empty(),
        missed: AtomicU32::new(0),
        broken: AtomicU64::new(0),
        wake: Notify::new(),
        last_error: Mutex::new(None),
    });
    let connector = Connector {
        settings,
        shared: Arc::clone(&shared),
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
        loop {
            match self.connect().await {
                Ok((connection, sha)) => {
                    number += 1;
                    info!(store = %self.settings.address, "connected to the store");
                    *self.shared.last_error_slot() = None;
                    self.shared.missed.store(0, Ordering::Relaxed);
                    self.shared.link.store(Some(Arc::new(Link {
                        connection: connection.clone(),
                        sha,
                        number,
                    })));
                    self.watch(connection, number).await;
                    self.shared.link.store(None);
                    warn!(store = %self.settings.address, "connection to the store given up");
                }
                Err(error) => self.complain(&error),
            }
            sleep(Duration::from_millis(
                PAUSE_MS + fastrand::u64(..PAUSE_JITTER_MS),
            ))
            .await;
        }
    }

    /// Once for each new reason, not for each try.
    fn complain(&self, error: &StoreError) {
        let reason = (error.cause(), error.to_string());
        let mut last = self.shared.last_error_slot();
        if last.as_ref() != Some(&reason) {
            warn!(store = %self.settings.address, reason = %reason.1, "no connection to the store");
            *last = Some(reason);
        }
    }

    /// A connection that has the script, and what the server calls that, within `connect_timeout`.
    async fn connect(&self) -> Result<(MultiplexedConnection, String), StoreError> {
        let connect = async {
            let mut connection = self.settings.connect().await?;
            // Before the script, so that a server that wants a password says so.
            let _: redis::Value = redis::cmd("PING").query_async(&mut connection).await?;
            let sha = load_script(&mut connection).await?;
            RedisResult::Ok((connection, sha))
        };
        match timeout(self.settings.connect_timeout, connect).await {
            Ok(connected) => connected.map_err(|error| classify(&error).0),
            Err(_) => Err(StoreError::NotRun(
                Cause::Connect,
                format!("no connection within {:?}", self.settings.connect_timeout),
            )),
        }
    }

    /// Returns once the connection is no good.
    async fn watch(&self, mut connection: MultiplexedConnection, number: u64) {
        let patience = self.settings.timeout.max(self.settings.connect_timeout);
        loop {
            tokio::select! {
                () = self.shared.wake.notified() => {}
                () = sleep(PING_EVERY) => {
                    let ping = redis::cmd("PING");
                    match timeout(patience, ping.query_async::<redis::Value>(&mut connection)).await {
                        Ok(Ok(_)) => self.shared.answered(),
                        Ok(Err(error)) if classify(&error).1 => {}
                        Ok(Err(_)) | Err(_) => return,
                    }
                }
            }
            if self.shared.broken.load(Ordering::Relaxed) >= number {
                return;
            }
        }
    }
}

impl Settings {
    /// A new connection, logged in. Waits as long as the network does.
    ///
    /// # Errors
    ///
    /// What the network or the server has against it.
    pub async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let client = Client::open(self.server()?)?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_concurrency_limit(IN_FLIGHT_MAX);
        client
            .get_multiplexed_async_connection_with_config(&config)
            .await
    }

    fn server(&self) -> RedisResult<redis::ConnectionInfo> {
        let (host, port) = self
            .address
            .rsplit_once(':')
            .and_then(|(host, port)| Some((host, port.parse().ok()?)))
            .unwrap_or((self.address.as_str(), 6379));
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let mut login = RedisConnectionInfo::default().set_db(i64::from(self.database));
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        Ok(ConnectionAddr::Tcp(host, port)
            .into_connection_info()?
            .set_tcp_settings(TcpSettings::default().set_nodelay(true))
            .set_redis_settings(login))
    }
}

/// Loads the script, and says what the server calls it.
pub(crate) async fn load_script(connection: &mut MultiplexedConnection) -> RedisResult<String> {
    redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script::source())
        .query_async(connection)
        .await
}

/// What an error of the server or the connection means, and whether the connection may be kept.
pub(crate) fn classify(error: &RedisError) -> (StoreError, bool) {
    // The text names no key: the server only ever sees hashes of them.
    let text = error.to_string();
    let code = error.code().unwrap_or_default();
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoPerm) => (StoreError::NotRun(Cause::Auth, text), true),
        ErrorKind::AuthenticationFailed => (StoreError::NotRun(Cause::Auth, text), false),
        // A demoted primary stays demoted: look for the new one.
        ErrorKind::Server(
            ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown | ServerErrorKind::BusyLoading,
        ) => (StoreError::NotRun(Cause::Cluster, text), false),
        ErrorKind::Server(
            ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::CrossSlot,
        ) => (StoreError::NotRun(Cause::Cluster, text), true),
        _ if matches!(code, "NOAUTH" | "WRONGPASS") => {
            let text = format!("{text}; store.username and store.password_file say who we are");
            (StoreError::NotRun(Cause::Auth, text), false)
        }
        // A command of the script that the user may not use.
        _ if text.contains("ACL failure in script") => {
            (StoreError::NotRun(Cause::Auth, text), true)
        }
        // OOM, MISCONF, NOREPLICAS, BUSY, and errors of the script itself.
        ErrorKind::Server(_) | ErrorKind::Extension => {
            (StoreError::NotRun(Cause::Script, text), true)
        }
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => (StoreError::BadReply(text), false),
        _ if error.is_connection_refusal() => (StoreError::NotRun(Cause::Connect, text), false),
        _ => (StoreError::Lost(text), false),
    }
}
