//! Usage in Valkey, shared by every gateway. One script call decides a whole request ([`script`]); one actor keeps
//! the connection ([`connection`]).

pub mod connection;
pub mod key;
pub mod script;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ServerErrorKind, Value};
use tokio::time::{Instant, timeout_at};

use super::{Cause, Store, StoreError};
use crate::check::Check;
use crate::clock::Clock;
use crate::decide::{Decision, Timestamp};
use connection::{Link, Shared};

/// How Valkey is reached.
#[derive(Clone, Eq, PartialEq)]
pub struct Settings {
    /// `host:port`.
    pub address: String,
    /// Database number.
    pub database: u32,
    /// ACL user; the default user if none.
    pub username: Option<String>,
    /// Read from `password_file`, or from the URL.
    pub password: Option<String>,
    /// For a whole decision.
    pub timeout: Duration,
    /// For a connection.
    pub connect_timeout: Duration,
}

/// How long a key outlives its meaning.
const SLACK_MS: u64 = 1000;

/// The same where time is virtual: the server expires keys by its own clock, however slowly a simulation goes.
const SIMULATION_SLACK_MS: u64 = 86_400_000;

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("address", &self.address)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// The shared store.
///
/// Without a connection it answers at once that it has none; [`connection::Connector`] brings it back.
#[derive(Debug)]
pub struct ValkeyStore {
    shared: Arc<Shared>,
    prefix: Arc<str>,
    timeout: Duration,
    clock: Option<Clock>,
}

impl ValkeyStore {
    /// The store, and what connects it: nothing is decided until that is run.
    ///
    /// Keys begin with `prefix`. The server's clock decides, unless `clock` is given: that is for simulations.
    #[must_use]
    pub fn new(
        settings: Settings,
        prefix: Arc<str>,
        clock: Option<Clock>,
    ) -> (Self, connection::Connector) {
        let timeout = settings.timeout;
        let (shared, connector) = connection::new(settings);
        let store = Self {
            shared,
            prefix,
            timeout,
            clock,
        };
        (store, connector)
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.link().is_some()
    }

    /// Why the last try to connect failed.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.shared.last_error().map(|(_, reason)| reason)
    }

    /// Decides, and says when by the store's clock.
    ///
    /// # Errors
    ///
    /// As [`Store::decide`].
    pub async fn decide_at(
        &self,
        checks: &[Check<'_>],
    ) -> Result<(Timestamp, Vec<Decision>), StoreError> {
        let deadline = Instant::now() + self.timeout;
        match self.call(checks, deadline).await {
            // The script is gone, as after a restart or SCRIPT FLUSH: it did not run.
            Err(Failed::NoScript(link)) => {
                self.load(&link, deadline).await?;
                self.call(checks, deadline).await
            }
            outcome => outcome,
        }
        .map_err(|failed| match failed {
            Failed::Store(error) => error,
            Failed::NoScript(_) => {
                StoreError::NotRun(Cause::Script, "script lost again".to_owned())
            }
        })
    }

    async fn call(
        &self,
        checks: &[Check<'_>],
        deadline: Instant,
    ) -> Result<(Timestamp, Vec<Decision>), Failed> {
        let link = self.shared.link().ok_or_else(|| self.no_connection())?;
        let now = self.clock.as_ref().map(Clock::now);
        let slack_ms = now.map_or(SLACK_MS, |_| SIMULATION_SLACK_MS);
        let call = script::call(&link.sha, &self.prefix, checks, now, slack_ms);
        let mut connection = link.connection.clone();
        let answered = timeout_at(deadline, connection.send_packed_command(&call)).await;
        // An error of the server comes as a value.
        let reply = match answered.map(|reply| reply.and_then(Value::extract_error)) {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) if is_no_script(&error) => return Err(Failed::NoScript(link)),
            Ok(Err(error)) => return Err(Failed::Store(self.failed(&link, &error))),
            Err(_) => {
                self.shared.timed_out(&link);
                return Err(Failed::Store(StoreError::Timeout(self.timeout)));
            }
        };
        self.shared.answered();
        script::read_reply(&reply, checks.len()).map_err(|error| {
            self.shared.drop_link(&link);
            Failed::Store(error)
        })
    }

    async fn load(&self, link: &Arc<Link>, deadline: Instant) -> Result<(), StoreError> {
        let mut connection = link.connection.clone();
        match timeout_at(deadline, connection::load_script(&mut connection)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.failed(link, &error)),
            Err(_) => Err(StoreError::NotRun(
                Cause::Timeout,
                "no time left to load the script".to_owned(),
            )),
        }
    }

    /// There is no connection, for the reason that the last try to get one had.
    fn no_connection(&self) -> Failed {
        let unknown = || (Cause::Connect, "no connection to the store".to_owned());
        let (cause, reason) = self.shared.last_error().unwrap_or_else(unknown);
        Failed::Store(StoreError::NotRun(cause, reason))
    }

    /// Says what an error means, and drops the connection where another one may do better.
    fn failed(&self, link: &Arc<Link>, error: &redis::RedisError) -> StoreError {
        let (failure, keep) = connection::classify(error);
        if !keep {
            self.shared.drop_link(link);
        }
        failure
    }
}

impl Store for ValkeyStore {
    async fn decide(&self, checks: &[Check<'_>]) -> Result<Vec<Decision>, StoreError> {
        self.decide_at(checks).await.map(|(_, decisions)| decisions)
    }
}

enum Failed {
    NoScript(Arc<Link>),
    Store(StoreError),
}

fn is_no_script(error: &redis::RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}
