//! Usage in Valkey, shared by every gateway. One script call decides a whole request ([`script`]); one actor keeps
//! the connection ([`connection`]), and leaves a server that fails alone (`breaker`).

mod announce;
pub mod breaker;
pub mod connection;
pub mod dial;
pub mod key;
pub mod script;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, timeout_at};

use super::{Cause, Store, StoreError};
use crate::check::Check;
use crate::clock::Clock;
use crate::decide::{Decision, Timestamp};
use announce::Announcer;
use connection::{Blame, Link, Shared};
pub use dial::{Address, Login, Sentinels};

/// How Valkey is reached.
#[derive(Clone, Eq, PartialEq)]
pub struct Settings {
    /// Where it is.
    pub address: Address,
    /// Database number.
    pub database: u32,
    /// Who we are there. The password is read from `password_file`, or from the URL.
    pub login: Login,
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
        // A simulation is no gateway.
        let announcer = clock.is_none().then(|| Announcer::new(&prefix));
        let (shared, connector) = connection::new(settings, announcer);
        let store = Self {
            shared,
            prefix,
            timeout,
            clock,
        };
        (store, connector)
    }

    /// Whether decisions are asked of the server: there is a connection, and it does not fail.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.shared.link().is_some()
    }

    /// How often decisions came from the server again after an outage, the first of all included.
    #[must_use]
    pub fn recoveries(&self) -> u32 {
        self.shared.recoveries()
    }

    /// How many gateways were alive when the server was last heard of, this one included; 0 if it never was.
    #[must_use]
    pub fn instances(&self) -> u32 {
        self.shared.instances()
    }

    /// Why the server is not asked, or the last try to connect failed.
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
            Ok(Err(error)) if connection::is_no_script(&error) => {
                return Err(Failed::NoScript(link));
            }
            Ok(Err(error)) => return Err(Failed::Store(self.failed(&link, &error))),
            Err(_) => {
                let error = StoreError::Timeout(self.timeout);
                self.shared.failed(&link, &error, Blame::Server);
                return Err(Failed::Store(error));
            }
        };
        let decided = script::read_reply(&reply, checks.len()).map_err(|error| {
            self.shared.failed(&link, &error, Blame::Connection);
            Failed::Store(error)
        })?;
        self.shared.decided();
        Ok(decided)
    }

    async fn load(&self, link: &Arc<Link>, deadline: Instant) -> Result<(), StoreError> {
        let mut connection = link.connection.clone();
        match timeout_at(
            deadline,
            connection::load(&mut connection, script::source()),
        )
        .await
        {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(self.failed(link, &error)),
            Err(_) => {
                let error = StoreError::NotRun(
                    Cause::Timeout,
                    "no time left to load the script".to_owned(),
                );
                self.shared.failed(link, &error, Blame::Server);
                Err(error)
            }
        }
    }

    /// There is no connection, for the reason that the last try to get one had.
    fn no_connection(&self) -> Failed {
        let unknown = || (Cause::Connect, "no connection to the store".to_owned());
        let (cause, reason) = self.shared.last_error().unwrap_or_else(unknown);
        Failed::Store(StoreError::NotRun(cause, reason))
    }

    /// Says what an error means, and has it counted where it says something about others.
    fn failed(&self, link: &Arc<Link>, error: &redis::RedisError) -> StoreError {
        let (failure, blame) = connection::classify(error);
        self.shared.failed(link, &failure, blame);
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
