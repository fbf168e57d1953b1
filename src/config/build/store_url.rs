//! `store.url`, taken apart.

use std::time::Duration;

use crate::config::error::Code;
use crate::store::valkey::{self, Address, Login, Tls};

/// Where Valkey is, and who we are there: `valkey://user:password@host:port/database`, taken apart, sentinels, or a
/// cluster.
#[derive(Debug)]
pub(super) struct Location {
    pub(super) address: Address,
    pub(super) database: u32,
    pub(super) login: Login,
    /// Whether it is to be reached over TLS; `None` where that is for `tls` to say.
    pub(super) encrypted: Option<bool>,
}

/// The settings for a store that is named by a URL alone, all else being default.
///
/// # Errors
///
/// What is wrong with the URL, without repeating it.
pub fn store_settings(url: &str, timeout: Duration) -> Result<valkey::Settings, String> {
    let parsed = parse_url(url).map_err(|(_, why, help)| format!("it {why}; {help}"))?;
    let tls = match parsed.encrypted {
        Some(true) => Some(Tls::new(None, None).map_err(|error| format!("needs TLS: {error}"))?),
        _ => None,
    };
    Ok(valkey::Settings {
        tls,
        address: parsed.address,
        database: parsed.database,
        login: parsed.login,
        timeout,
        connect_timeout: timeout,
        group_commit: false,
        deny_cache: false,
    })
}

/// Takes a URL apart. What it says of a failure never repeats the URL: it may hold a password.
pub(super) fn parse_url(url: &str) -> Result<Location, (Code, String, String)> {
    let shape = "write valkey://host:port, or valkeys:// for TLS, with /number for a database; a password goes to password_file";
    let refuse = |why: &str| Err((Code::E025, why.to_owned(), shape.to_owned()));
    let Some((scheme, rest)) = url.split_once("://") else {
        return refuse("has no scheme");
    };
    let encrypted = match scheme {
        "valkey" | "redis" => false,
        "valkeys" | "rediss" => true,
        _ => return refuse("has an unknown scheme"),
    };
    let (authority, database) = rest.split_once('/').unwrap_or((rest, ""));
    let database = match database {
        "" => 0,
        number => match number.parse() {
            Ok(number) => number,
            Err(_) => return refuse("has a database that is not a number"),
        },
    };
    let (credentials, address) = match authority.rsplit_once('@') {
        Some((credentials, address)) => (Some(credentials), address),
        None => (None, authority),
    };
    let decoded = |text: &str| {
        percent_encoding::percent_decode_str(text)
            .decode_utf8()
            .ok()
            .map(|text| text.into_owned())
            .filter(|text| !text.is_empty())
    };
    let (username, password) =
        match credentials.map(|text| text.split_once(':').unwrap_or((text, ""))) {
            Some((username, password)) => (decoded(username), decoded(password)),
            None => (None, None),
        };
    if address.contains(',') {
        return Err((
            Code::E025,
            "names more than one server".to_owned(),
            "write one; servers of a cluster are cluster = [ … ], and sentinel = { … } finds a primary among replicas"
                .to_owned(),
        ));
    }
    let address = if super::upstreams::is_host_and_port(address) {
        address.to_owned()
    } else if super::upstreams::is_host_and_port(&format!("{address}:6379")) {
        format!("{address}:6379")
    } else {
        return refuse("has no host, or a port out of bounds");
    };
    Ok(Location {
        address: Address::Server(address),
        database,
        login: Login { username, password },
        encrypted: Some(encrypted),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        assert_eq!(parse_url("rediss://h").unwrap().encrypted, Some(true));
        assert_eq!(parse_url("valkey://h").unwrap().encrypted, Some(false));
        for (url, address, database, username, password) in [
            ("valkeys://h", "h:6379", 0, None, None),
            ("valkey://h:1/2", "h:1", 2, None, None),
            (
                "redis://u:p%40@[::1]:7/0",
                "[::1]:7",
                0,
                Some("u"),
                Some("p@"),
            ),
            ("valkey://:p@h/", "h:6379", 0, None, Some("p")),
            ("valkey://a:b@c@h:5", "h:5", 0, Some("a"), Some("b@c")),
        ] {
            let parsed = parse_url(url).unwrap();
            assert_eq!(parsed.address, Address::Server(address.to_owned()), "{url}");
            assert_eq!(parsed.database, database, "{url}");
            assert_eq!(parsed.login.username.as_deref(), username, "{url}");
            assert_eq!(parsed.login.password.as_deref(), password, "{url}");
        }
    }

    #[test]
    fn a_refusal_never_repeats_the_url() {
        for url in [
            "h:6379",
            "http://user:hunter2@h",
            "keydb://user:hunter2@h",
            "valkey://user:hunter2@h:99999",
            "valkey://user:hunter2@h/x",
            "valkey://user:hunter2@",
        ] {
            let (_, why, help) = parse_url(url).unwrap_err();
            assert!(
                !why.contains("hunter2") && !help.contains("hunter2"),
                "{url}"
            );
        }
    }
}
