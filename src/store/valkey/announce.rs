//! Tells a server that this gateway is alive, and learns how many are. The contract stands in `lua/announce.lua`.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};
use tracing::warn;

use super::census::LEASE;
use super::failure::is_no_script;
use super::script::Script;

/// How often it is told.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// The most that are remembered: as many as `store.instances` may be.
const INSTANCES_MAX: u32 = 10_000;

static ANNOUNCE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        "#!lua\n",
        include_str!("../../../lua/announce.lua")
    ))
});

/// Who tells it: a number made at start, with nothing of the host in it.
#[derive(Debug)]
pub(crate) struct Announcer {
    instance: String,
    /// Whether this gateway has taken its leave.
    is_gone: AtomicBool,
    /// Whether it was said that this gateway cannot be announced.
    told: AtomicBool,
}

impl Announcer {
    pub(crate) fn new() -> Self {
        Self {
            instance: format!("{:016x}", fastrand::u64(..)),
            is_gone: AtomicBool::new(false),
            told: AtomicBool::new(false),
        }
    }

    /// Says how many gateways are alive by the list at `key`, this one included; `None` of a server that does not
    /// permit it, or once this gateway has taken its leave.
    pub(crate) async fn announce(
        &self,
        key: &str,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<Option<u32>> {
        if self.is_gone.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let heard = match self.call(key, connection).await {
            Err(error) if is_no_script(&error) => {
                ANNOUNCE.load(connection).await?;
                self.call(key, connection).await
            }
            heard => heard,
        };
        match heard {
            Ok(alive) => Ok(Some(alive.clamp(1, INSTANCES_MAX))),
            // A user who may decide may still not do this: such a store has no count, and is well.
            Err(error) if is_forbidden(&error) => {
                if !self.told.swap(true, Ordering::Relaxed) {
                    warn!(reason = %error, "this gateway cannot be announced: store.instances alone says how many there are");
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn call(&self, key: &str, connection: &mut MultiplexedConnection) -> RedisResult<u32> {
        redis::cmd("EVALSHA")
            .arg(ANNOUNCE.sha())
            .arg(1)
            .arg(key)
            .arg(&self.instance)
            .arg(u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX))
            .arg(INSTANCES_MAX)
            .query_async(connection)
            .await
    }

    /// Announces nothing from now on.
    pub(crate) fn take_leave(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// Takes this gateway off the list at `key`.
    pub(crate) async fn withdraw(
        &self,
        key: &str,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<()> {
        redis::cmd("ZREM")
            .arg(key)
            .arg(&self.instance)
            .exec_async(connection)
            .await
    }
}

/// Whether this alone is not permitted: a user who may not call scripts at all decides nothing either.
fn is_forbidden(error: &RedisError) -> bool {
    let text = error.to_string();
    let is_about_scripts = text.contains("'evalsha'");
    text.contains("ACL failure in script")
        || (error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) && !is_about_scripts)
}
