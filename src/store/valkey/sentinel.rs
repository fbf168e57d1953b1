//! Asks sentinels where the primary is.

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Settings;
use super::dial::{Login, dial};
use super::tls::Tls;

/// Who knows where the primary is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Sentinels {
    /// `host:port` of each. All are asked, and the first to name a primary is believed once that agrees.
    pub nodes: Vec<String>,
    /// What they call it.
    pub primary: String,
    /// Who we are to them.
    pub login: Login,
}

impl Settings {
    /// Asks all sentinels at once, and connects to whomever each names: neither a sentinel nor a server that is gone
    /// costs time. The first server that says that it is a primary is the one.
    pub(super) async fn connect_to_primary(
        &self,
        sentinels: &Sentinels,
    ) -> RedisResult<(MultiplexedConnection, String)> {
        let mut asked = JoinSet::new();
        for node in &sentinels.nodes {
            let (settings, node) = (self.clone(), node.clone());
            let (name, login) = (sentinels.primary.clone(), sentinels.login.to_database(0));
            asked.spawn(async move {
                // Alone on its own: one that is silent would be waited for until the connection is given up, and the
                // reason would be lost.
                let patience = settings.connect_timeout / 2;
                let found = timeout(
                    patience,
                    primary_of(&node, &name, &login, settings.tls.as_ref()),
                )
                .await;
                let address =
                    found.unwrap_or_else(|_| Err(format!("{node}: no answer in {patience:?}")));
                let address = address.map_err(Refused::BySentinel)?;
                let connection = settings.connect_as_primary(&address).await;
                connection
                    .map(|connection| (connection, address))
                    .map_err(Refused::ByServer)
            });
        }
        let mut refused = None;
        let mut silent = Vec::new();
        while let Some(found) = asked.join_next().await {
            match found {
                Ok(Ok(found)) => return Ok(found),
                Ok(Err(Refused::ByServer(error))) => refused = Some(error),
                Ok(Err(Refused::BySentinel(reason))) => silent.push(reason),
                Err(_) => {}
            }
        }
        // What a server says of itself tells more than that a sentinel is gone.
        silent.sort_unstable();
        Err(refused.unwrap_or_else(|| no_primary(silent.join("; "))))
    }

    /// A sentinel may not know yet: whoever is asked to decide must say that it is the primary.
    async fn connect_as_primary(&self, address: &str) -> RedisResult<MultiplexedConnection> {
        let mut connection = self.connect_to(address).await?;
        match redis::cmd("ROLE").query_async(&mut connection).await {
            Ok(Value::Array(role)) if !is_primary(&role) => Err(no_primary(format!(
                "{address}: a sentinel names it, and it is none"
            ))),
            // A user who may not ask finds out by the first write.
            Err(error) if error.kind() != ErrorKind::Server(ServerErrorKind::NoPerm) => Err(error),
            Ok(_) | Err(_) => Ok(connection),
        }
    }
}

/// Why a sentinel led nowhere.
enum Refused {
    BySentinel(String),
    ByServer(RedisError),
}

fn is_primary(role: &[Value]) -> bool {
    matches!(role.first(), Some(Value::BulkString(name)) if name == b"master" || name == b"primary")
}

/// Where this sentinel says that the primary of this name is, or why it does not say.
async fn primary_of(
    sentinel: &str,
    name: &str,
    login: &RedisConnectionInfo,
    tls: Option<&Tls>,
) -> Result<String, String> {
    let ask = async {
        let mut connection = dial(sentinel, login, tls).await?;
        redis::cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(name)
            .query_async::<Option<(String, u16)>>(&mut connection)
            .await
    };
    match ask.await {
        Ok(Some((host, port))) if host.contains(':') => Ok(format!("[{host}]:{port}")),
        Ok(Some((host, port))) => Ok(format!("{host}:{port}")),
        Ok(None) => Err(format!("{sentinel}: it knows no primary of that name")),
        Err(error) => Err(format!("{sentinel}: {error}")),
    }
}

pub(super) fn no_primary(reason: String) -> RedisError {
    let kind = ErrorKind::Server(ServerErrorKind::MasterDown);
    RedisError::from((kind, "no primary found", reason))
}
