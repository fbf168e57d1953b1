//! Connects to a server: by its address, or to the primary that sentinels name.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::Settings;
use super::sentinel::{Sentinels, no_primary};
use super::tls::Tls;

/// The most calls in flight on the connection.
const IN_FLIGHT_MAX: usize = 1024;

/// Where the store is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Address {
    /// `host:port`.
    Server(String),
    /// Wherever sentinels say that the primary is.
    Sentinel(Box<Sentinels>),
    /// A cluster: `host:port` of servers that know the others.
    Cluster(Vec<String>),
}

/// Where one server is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Place {
    /// `host:port`.
    At(String),
    /// Wherever sentinels say that the primary of this name is.
    Named(String),
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
    pub(crate) fn to_database(&self, database: u32) -> RedisConnectionInfo {
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
            Self::Cluster(nodes) => write!(f, "cluster {}", nodes.join(", ")),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => f.write_str(address),
            Self::Named(name) => write!(f, "{name} (by sentinel)"),
        }
    }
}

impl Settings {
    /// A new connection to the server, logged in; with sentinels, to one that says that it is a primary; of a cluster,
    /// to the first server that is named. Waits as long as the network does.
    ///
    /// # Errors
    ///
    /// What the network or the server has against it.
    pub async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let place = match &self.address {
            Address::Server(address) => Place::At(address.clone()),
            Address::Sentinel(sentinels) => Place::Named(sentinels.primary.clone()),
            Address::Cluster(nodes) => Place::At(nodes.first().cloned().unwrap_or_default()),
        };
        let (connection, _) = self.find(&place).await?;
        Ok(connection)
    }

    /// A connection to the server at this place, and where that is.
    pub(crate) async fn find(&self, place: &Place) -> RedisResult<(MultiplexedConnection, String)> {
        match (place, &self.address) {
            (Place::At(address), _) => Ok((self.connect_to(address).await?, address.clone())),
            (Place::Named(_), Address::Sentinel(sentinels)) => {
                self.connect_to_primary(sentinels).await
            }
            (Place::Named(name), _) => Err(no_primary(format!("{name}: no sentinel to ask"))),
        }
    }

    /// Whether this is another store than `other`: who we are there, and how long we wait, says nothing of that.
    #[must_use]
    pub fn leads_elsewhere(&self, other: &Self) -> bool {
        let place = |settings: &Self| match &settings.address {
            Address::Sentinel(sentinels) => Address::Sentinel(Box::new(Sentinels {
                login: Login::default(),
                ..(**sentinels).clone()
            })),
            address => address.clone(),
        };
        self.database != other.database || place(self) != place(other)
    }

    pub(crate) async fn connect_to(&self, address: &str) -> RedisResult<MultiplexedConnection> {
        let login = self.login.to_database(self.database);
        dial(address, &login, self.tls.as_ref()).await
    }
}

/// Connects to `host:port`.
pub(crate) async fn dial(
    address: &str,
    login: &RedisConnectionInfo,
    tls: Option<&Tls>,
) -> RedisResult<MultiplexedConnection> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    match tls {
        None => speak(stream, login).await,
        Some(tls) => {
            let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
            let host = host.trim_start_matches('[').trim_end_matches(']');
            speak(tls.connect(host, stream).await?, login).await
        }
    }
}

/// Logs in over a stream. What drives it ends with the last clone of the connection.
async fn speak(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    login: &RedisConnectionInfo,
) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None::<Duration>)
        .set_response_timeout(None)
        .set_concurrency_limit(IN_FLIGHT_MAX);
    let (connection, driver) =
        MultiplexedConnection::new_with_config(login, stream, config).await?;
    tokio::spawn(driver);
    Ok(connection)
}
