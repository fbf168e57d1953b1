//! Usage in Valkey, shared by every gateway.

pub mod key;
pub mod script;

use std::fmt;
use std::time::Duration;

/// How Valkey is reached.
#[derive(Clone)]
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

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("address", &self.address)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}
