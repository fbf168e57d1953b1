//! Tells the store that this gateway is alive, and learns how many are. The contract stands in `lua/announce.lua`.

use std::sync::OnceLock;
use std::time::Duration;

use super::connection::{is_no_script, load};
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};

/// How often it is told.
pub(crate) const EVERY: Duration = Duration::from_secs(1);

/// How long one that falls silent is counted.
const LEASE_MS: u64 = 5000;

/// The most that are remembered: as many as `store.instances` may be.
const INSTANCES_MAX: u32 = 10_000;

/// Who tells it: a number made at start, with nothing of the host in it.
#[derive(Debug)]
pub(crate) struct Announcer {
    key: String,
    instance: String,
    /// What servers call the script: the same everywhere, once one of them has said it.
    sha: OnceLock<String>,
}

impl Announcer {
    /// For a store whose keys begin with `prefix`.
    pub(crate) fn new(prefix: &str) -> Self {
        Self {
            key: format!("{prefix}:instances"),
            instance: format!("{:016x}", fastrand::u64(..)),
            sha: OnceLock::new(),
        }
    }

    /// Says how many gateways are alive, this one included: at least 1.
    pub(crate) async fn announce(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<u32> {
        if let Some(sha) = self.sha.get() {
            match self.call(sha, connection).await {
                Err(error) if is_no_script(&error) => {}
                heard => return heard,
            }
        }
        let sha = load(connection, source()).await?;
        self.call(self.sha.get_or_init(|| sha), connection).await
    }

    async fn call(&self, sha: &str, connection: &mut MultiplexedConnection) -> RedisResult<u32> {
        let alive: u32 = redis::cmd("EVALSHA")
            .arg(sha)
            .arg(1)
            .arg(&self.key)
            .arg(&self.instance)
            .arg(LEASE_MS)
            .arg(INSTANCES_MAX)
            .query_async(connection)
            .await?;
        Ok(alive.clamp(1, INSTANCES_MAX))
    }
}

/// Whether a user who may decide may still not do this: such a store has no count, and is well.
pub(crate) fn is_forbidden(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        || error.to_string().contains("ACL failure in script")
}

const fn source() -> &'static str {
    concat!("#!lua\n", include_str!("../../../lua/announce.lua"))
}
