//! Finds the server and connects to it: by its address, or as the primary that sentinels name.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo,
    RedisConnectionInfo, RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::Settings;

/// The most calls in flight on the connection.
const IN_FLIGHT_MAX: usize = 1024;

/// Where the server is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Address {
    /// `host:port`.
    Server(String),
    /// Wherever sentinels say that the primary is.
    Sentinel(Box<Sentinels>),
}

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

/// Who we are.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Login {
    /// ACL user; the default user if none.
    pub username: Option<String>,
    /// Its password.
    pub password: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

impl Login {
    fn to_database(&self, database: u32) -> RedisConnectionInfo {
        let mut login = RedisConnectionInfo::default().set_db(i64::from(database));
        if let Some(username) = &self.username {
            login = login.set_username(username);
        }
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        login
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(address) => f.write_str(address),
            Self::Sentinel(sentinels) => write!(f, "{} (by sentinel)", sentinels.primary),
        }
    }
}

impl Settings {
    /// A new connection to the server, logged in; with sentinels, to one that says that it is a primary. Waits as long
    /// as the network does.
    ///
    /// # Errors
    ///
    /// What the network or the server has against it.
    pub async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let (connection, _) = self.find_and_connect().await?;
        Ok(connection)
    }

    /// The same, and where that server is.
    pub(crate) async fn find_and_connect(&self) -> RedisResult<(MultiplexedConnection, String)> {
        match &self.address {
            Address::Server(address) => {
                let connection = dial(address, self.login.to_database(self.database)).await?;
                Ok((connection, address.clone()))
            }
            Address::Sentinel(sentinels) => self.connect_to_primary(sentinels).await,
        }
    }

    /// Asks all sentinels at once, so that one that is gone costs no time.
    async fn connect_to_primary(
        &self,
        sentinels: &Sentinels,
    ) -> RedisResult<(MultiplexedConnection, String)> {
        let mut asked = JoinSet::new();
        for node in &sentinels.nodes {
            let (node, name) = (node.clone(), sentinels.primary.clone());
            let login = sentinels.login.to_database(0);
            // Alone on its own: one that is silent would be waited for until the connection is given up, and the
            // reason would be lost.
            let patience = self.connect_timeout / 2;
            asked.spawn(async move {
                let found = timeout(patience, primary_of(&node, &name, login)).await;
                found.unwrap_or_else(|_| Err(format!("{node}: no answer in {patience:?}")))
            });
        }
        let mut tried = Vec::new();
        let mut refused = None;
        let mut silent = Vec::new();
        while let Some(found) = asked.join_next().await {
            match found {
                // All of them name the same one, as a rule.
                Ok(Ok(address)) if tried.contains(&address) => {}
                Ok(Ok(address)) => match self.connect_as_primary(&address).await {
                    Ok(connection) => return Ok((connection, address)),
                    Err(error) => {
                        tried.push(address);
                        refused = Some(error);
                    }
                },
                Ok(Err(reason)) => silent.push(reason),
                Err(_) => {}
            }
        }
        // What a server says of itself tells more than that a sentinel is gone.
        silent.sort_unstable();
        Err(refused.unwrap_or_else(|| no_primary(silent.join("; "))))
    }

    /// A sentinel may not know yet: whoever is asked to decide must say that it is the primary.
    async fn connect_as_primary(&self, address: &str) -> RedisResult<MultiplexedConnection> {
        let mut connection = dial(address, self.login.to_database(self.database)).await?;
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

fn is_primary(role: &[Value]) -> bool {
    matches!(role.first(), Some(Value::BulkString(name)) if name == b"master" || name == b"primary")
}

/// Where this sentinel says that the primary of this name is, or why it does not say.
async fn primary_of(
    sentinel: &str,
    name: &str,
    login: RedisConnectionInfo,
) -> Result<String, String> {
    let ask = async {
        let mut connection = dial(sentinel, login).await?;
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

fn no_primary(reason: String) -> RedisError {
    let kind = ErrorKind::Server(ServerErrorKind::MasterDown);
    RedisError::from((kind, "no primary found", reason))
}

async fn dial(address: &str, login: RedisConnectionInfo) -> RedisResult<MultiplexedConnection> {
    let (host, port) = address
        .rsplit_once(':')
        .and_then(|(host, port)| Some((host, port.parse().ok()?)))
        .unwrap_or((address, 6379));
    let host = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    let server = ConnectionAddr::Tcp(host, port)
        .into_connection_info()?
        .set_tcp_settings(TcpSettings::default().set_nodelay(true))
        .set_redis_settings(login);
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None::<Duration>)
        .set_response_timeout(None)
        .set_concurrency_limit(IN_FLIGHT_MAX);
    Client::open(server)?
        .get_multiplexed_async_connection_with_config(&config)
        .await
}
