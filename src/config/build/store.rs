//! `[store]`.

use super::{Builder, non_zero_u32, non_zero_usize, value};
use std::path::PathBuf;
use std::time::Duration;

use crate::check::KeySecret;
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{File, Store as Written, StoreWord};
use crate::config::source::Sources;
use crate::config::{Store, StoreKind};
use crate::store::valkey;

impl Builder<'_> {
    pub(super) fn store(&self, file: &File) -> Option<Store> {
        let at = file.store.as_ref()?;
        let written = &at.value;
        let kind = value(&written.kind)?;
        let instances = non_zero_u32(value(&written.instances)?.0);
        // Each part reports for itself, whatever becomes of the others.
        let secret = self.key_secret(at, kind);
        let prefix = self.prefix(written);
        let kind = match kind {
            StoreWord::Local => {
                self.check_local(written);
                Some(StoreKind::Local)
            }
            StoreWord::Valkey => self.valkey(at).map(StoreKind::Valkey),
        };
        Some(Store {
            kind: kind?,
            on_failure: value(&written.on_failure)?,
            instances: instances?,
            prefix: prefix?.as_str().into(),
            key_secret: secret?,
            key_secret_is_given: written.key_secret_file.is_some(),
            max_keys: non_zero_usize(value(&written.local)?.max_keys?.value.0)?,
            snapshot: self.snapshot(written)?,
        })
    }

    /// Where usage goes over a restart. With a secret that is made up at each start nobody would know it again.
    fn snapshot(&self, written: &Written) -> Option<Option<PathBuf>> {
        let Some(path) = &value(&written.local)?.snapshot else {
            return Some(None);
        };
        if written.key_secret_file.is_none() && !written.unread.contains(&"key_secret_file") {
            self.error(
                Code::E016,
                path.place,
                "a `snapshot` needs a `key_secret_file`: whom it counted is known by the secret alone",
                "set store.key_secret_file: head -c 32 /dev/urandom > key_secret",
            );
            return None;
        }
        Some(Some(self.sources.resolve(path.place.source, &path.value.0)))
    }

    /// The prefix stands before braces and colons that mean something, and in ACL patterns.
    fn prefix(&self, written: &Written) -> Option<String> {
        let prefix = written.prefix.as_ref()?;
        let good = !prefix.value.is_empty()
            && prefix.value.len() <= 64
            && prefix
                .value
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'));
        if !good {
            self.error(
                Code::E019,
                prefix.place,
                format!("`{}` cannot be the prefix of keys", prefix.value),
                "write up to 64 letters, digits, '.', '_' and '-'",
            );
        }
        good.then(|| prefix.value.clone())
    }

    /// Whoever says where Valkey is means to use it.
    fn check_local(&self, written: &Written) {
        let fields = [
            ("url", written.url.as_ref().map(|at| at.place)),
            ("username", written.username.as_ref().map(|at| at.place)),
            (
                "password_file",
                written.password_file.as_ref().map(|at| at.place),
            ),
        ];
        let by_default = written
            .kind
            .as_ref()
            .is_none_or(|kind| kind.place.source == Sources::DEFAULTS);
        let help = if by_default {
            "add kind = \"valkey\""
        } else {
            "write kind = \"valkey\", or take it out"
        };
        for (field, place) in fields {
            if let Some(place) = place {
                self.error(
                    Code::E030,
                    place,
                    format!("`{field}` has no effect with kind = \"local\""),
                    help,
                );
            }
        }
    }

    fn key_secret(&self, at: &At<Written>, kind: StoreWord) -> Option<KeySecret> {
        let written = &at.value;
        let shared = kind == StoreWord::Valkey;
        if written.unread.contains(&"key_secret_file") {
            return None;
        }
        let Some(path) = &written.key_secret_file else {
            let instances = written.instances.as_ref()?;
            if shared && instances.value.0 > 1 {
                self.error(
                    Code::E112,
                    instances.place,
                    "several gateways count together only if they hash callers with the same secret",
                    "set store.key_secret_file to a file that all of them have: head -c 32 /dev/urandom > key_secret",
                );
                return None;
            }
            if shared {
                self.findings.add(
                    Finding::new(
                        Code::W209,
                        at.value.kind.as_ref()?.place,
                        "without `key_secret_file` each gateway makes its own secret: gateways do not share limits, and a restart forgets usage",
                    )
                    .help("set store.key_secret_file to a file that all of them have: head -c 32 /dev/urandom > key_secret"),
                );
            }
            return Some(KeySecret::generate());
        };
        if !self.io {
            return Some(KeySecret::generate());
        }
        let bytes = self.read_file(path)?;
        let secret = bytes.trim_ascii_end();
        KeySecret::from_bytes(secret)
            .map_err(|short| {
                self.error(
                    Code::E051,
                    path.place,
                    format!(
                        "the key secret has {} bytes; at least {} are needed",
                        short.found,
                        KeySecret::LENGTH_MIN
                    ),
                    "make one: head -c 32 /dev/urandom > key_secret",
                );
            })
            .ok()
    }

    /// Whether the password stands in the file itself, not in a variable that fills it in.
    fn holds_password(&self, url: &At<String>) -> bool {
        let written = self.sources.written(url.place).unwrap_or_default();
        let rest = written.split_once("://").map_or("", |(_, rest)| rest);
        let credentials = rest.rsplit_once('@').map(|(credentials, _)| credentials);
        credentials.is_some_and(|credentials| !credentials.contains("${"))
    }

    fn valkey(&self, at: &At<Written>) -> Option<valkey::Settings> {
        let written = &at.value;
        let Some(url) = &written.url else {
            // A URL that is there but not a text is reported already.
            if written.unread.contains(&"url") {
                return None;
            }
            self.error(
                Code::E016,
                written.kind.as_ref()?.place,
                "`kind = \"valkey\"` needs a `url`",
                "add url = \"valkey://127.0.0.1:6379\"",
            );
            return None;
        };
        let parsed = match parse_url(&url.value) {
            Ok(parsed) => parsed,
            Err((code, why, help)) => {
                self.error(code, url.place, format!("`url` {why}"), help);
                return None;
            }
        };
        let mut password = parsed.password;
        let mut username = parsed.username;
        if let (Some(_), Some(file)) = (&password, &written.password_file) {
            self.error(
                Code::E018,
                file.place,
                "there is a password in `url` and a `password_file`",
                "keep the file, and take the password out of the url",
            );
        }
        if password.is_some() && written.password_file.is_none() && self.holds_password(url) {
            self.findings.add(
                Finding::new(Code::W213, url.place, "there is a password in `url`").help(
                    "write it to a file of its own, and password_file = \"FILE\" instead: the configuration is read by more people",
                ),
            );
        }
        if let (Some(_), Some(name)) = (&username, &written.username) {
            self.error(
                Code::E018,
                name.place,
                "there is a user in `url` and a `username`",
                "keep one of them",
            );
        }
        if let (Some(file), true) = (&written.password_file, self.io) {
            let bytes = self.read_file(file)?;
            let text = String::from_utf8(bytes).map_err(|_| {
                self.error(
                    Code::E051,
                    file.place,
                    "the password is not UTF-8 text",
                    "write it as text, on one line",
                );
            });
            password = Some(text.ok()?.trim_end_matches(['\r', '\n']).to_owned());
        }
        if let Some(name) = &written.username {
            username = Some(name.value.clone());
        }
        Some(valkey::Settings {
            address: parsed.address,
            database: parsed.database,
            username,
            password,
            timeout: value(&written.timeout)?.0,
            connect_timeout: value(&written.connect_timeout)?.0,
        })
    }
}

/// `valkey://user:password@host:port/database`, taken apart.
#[derive(Debug)]
struct StoreUrl {
    address: String,
    database: u32,
    username: Option<String>,
    password: Option<String>,
}

/// The settings for a store that is named by a URL alone, all else being default.
///
/// # Errors
///
/// What is wrong with the URL, without repeating it.
pub fn store_settings(url: &str, timeout: Duration) -> Result<valkey::Settings, String> {
    let parsed = parse_url(url).map_err(|(_, why, help)| format!("it {why}; {help}"))?;
    Ok(valkey::Settings {
        address: parsed.address,
        database: parsed.database,
        username: parsed.username,
        password: parsed.password,
        timeout,
        connect_timeout: timeout,
    })
}

/// Takes a URL apart. What it says of a failure never repeats the URL: it may hold a password.
fn parse_url(url: &str) -> Result<StoreUrl, (Code, String, String)> {
    let shape =
        "write valkey://host:port, with /number for a database; a password goes to password_file";
    let refuse = |why: &str| Err((Code::E025, why.to_owned(), shape.to_owned()));
    let Some((scheme, rest)) = url.split_once("://") else {
        return refuse("has no scheme");
    };
    match scheme {
        "valkey" | "redis" => {}
        "valkeys" | "rediss" => {
            return Err((
                Code::E114,
                "asks for TLS; TLS to the store is not built yet".to_owned(),
                "write valkey://, over a network that you trust or a local TLS tunnel".to_owned(),
            ));
        }
        _ => return refuse("has an unknown scheme"),
    }
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
        return refuse("names more than one server");
    }
    let address = if super::upstreams::is_host_and_port(address) {
        address.to_owned()
    } else if super::upstreams::is_host_and_port(&format!("{address}:6379")) {
        format!("{address}:6379")
    } else {
        return refuse("has no host, or a port out of bounds");
    };
    Ok(StoreUrl {
        address,
        database,
        username,
        password,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_taken_apart() {
        for (url, address, database, username, password) in [
            ("valkey://h", "h:6379", 0, None, None),
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
            assert_eq!(parsed.address, address, "{url}");
            assert_eq!(parsed.database, database, "{url}");
            assert_eq!(parsed.username.as_deref(), username, "{url}");
            assert_eq!(parsed.password.as_deref(), password, "{url}");
        }
    }

    #[test]
    fn a_refusal_never_repeats_the_url() {
        for url in [
            "h:6379",
            "http://user:hunter2@h",
            "valkeys://user:hunter2@h",
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
