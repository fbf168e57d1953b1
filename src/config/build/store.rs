//! `[store]`.

use super::store_url::{Location, parse_url};
use super::{Builder, non_zero_u32, non_zero_usize, value};
use std::path::PathBuf;

use crate::check::KeySecret;
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{File, Sentinel, Store as Written, StoreWord};
use crate::config::source::Sources;
use crate::config::values::FilePath;
use crate::config::{Store, StoreKind};
use crate::store::valkey::{self, Address, Login, Sentinels};

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
            ("sentinel", written.sentinel.as_ref().map(|at| at.place)),
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

    /// What `url` or `sentinel` says.
    fn location(&self, written: &Written) -> Option<Location> {
        match (&written.url, &written.sentinel) {
            (Some(url), None) => self.location_of_url(written, url),
            (None, Some(sentinel)) => self.location_of_sentinel(sentinel),
            (Some(_), Some(sentinel)) => {
                self.error(
                    Code::E018,
                    sentinel.place,
                    "there is a `url` and a `sentinel`",
                    "keep one of them",
                );
                None
            }
            (None, None) => {
                // What is there but could not be read is reported already.
                if !written
                    .unread
                    .iter()
                    .any(|field| matches!(*field, "url" | "sentinel"))
                {
                    self.error(
                        Code::E016,
                        written.kind.as_ref()?.place,
                        "`kind = \"valkey\"` needs a `url`, or `sentinel`",
                        "add url = \"valkey://127.0.0.1:6379\"",
                    );
                }
                None
            }
        }
    }

    fn location_of_url(&self, written: &Written, url: &At<String>) -> Option<Location> {
        let parsed = match parse_url(&url.value) {
            Ok(parsed) => parsed,
            Err((code, why, help)) => {
                self.error(code, url.place, format!("`url` {why}"), help);
                return None;
            }
        };
        if let (Some(_), Some(file)) = (&parsed.login.password, &written.password_file) {
            self.error(
                Code::E018,
                file.place,
                "there is a password in `url` and a `password_file`",
                "keep the file, and take the password out of the url",
            );
        }
        if parsed.login.password.is_some()
            && written.password_file.is_none()
            && self.holds_password(url)
        {
            self.findings.add(
                Finding::new(Code::W213, url.place, "there is a password in `url`").help(
                    "write it to a file of its own, and password_file = \"FILE\" instead: the configuration is read by more people",
                ),
            );
        }
        if let (Some(_), Some(name)) = (&parsed.login.username, &written.username) {
            self.error(
                Code::E018,
                name.place,
                "there is a user in `url` and a `username`",
                "keep one of them",
            );
        }
        Some(parsed)
    }

    fn location_of_sentinel(&self, at: &At<Sentinel>) -> Option<Location> {
        let nodes = at.value.nodes.as_ref()?;
        let primary = at.value.primary.as_ref()?;
        if nodes.value.items.is_empty() && nodes.value.complete {
            self.error(
                Code::E016,
                nodes.place,
                "there is no sentinel in `nodes`",
                "write where each of them is: nodes = [\"10.0.0.1:26379\"]",
            );
            return None;
        }
        let mut good = nodes.value.complete;
        for node in &nodes.value.items {
            if !super::upstreams::is_host_and_port(&node.value) {
                self.error(
                    Code::E025,
                    node.place,
                    format!("`{}` is not the address of a sentinel", node.value),
                    "write host:port: \"10.0.0.1:26379\"",
                );
                good = false;
            }
        }
        if primary.value.is_empty() {
            self.error(
                Code::E016,
                primary.place,
                "the primary has no name",
                "write what the sentinels call it, as in their `sentinel monitor NAME …`",
            );
            return None;
        }
        let mut login = Login {
            username: at.value.username.as_ref().map(|name| name.value.clone()),
            password: None,
        };
        if let (Some(file), true) = (&at.value.password_file, self.io) {
            login.password = Some(self.password(file)?);
        }
        good.then(|| Location {
            address: Address::Sentinel(Box::new(Sentinels {
                nodes: nodes
                    .value
                    .items
                    .iter()
                    .map(|node| node.value.clone())
                    .collect(),
                primary: primary.value.clone(),
                login,
            })),
            database: 0,
            login: Login::default(),
        })
    }

    /// What stands in a password's file, on one line.
    fn password(&self, file: &At<FilePath>) -> Option<String> {
        let text = String::from_utf8(self.read_file(file)?).map_err(|_| {
            self.error(
                Code::E051,
                file.place,
                "the password is not UTF-8 text",
                "write it as text, on one line",
            );
        });
        Some(text.ok()?.trim_end_matches(['\r', '\n']).to_owned())
    }

    fn valkey(&self, at: &At<Written>) -> Option<valkey::Settings> {
        let written = &at.value;
        let Location {
            address,
            database,
            mut login,
        } = self.location(written)?;
        if let (Some(file), true) = (&written.password_file, self.io) {
            login.password = Some(self.password(file)?);
        }
        if let Some(name) = &written.username {
            login.username = Some(name.value.clone());
        }
        Some(valkey::Settings {
            address,
            database,
            login,
            timeout: value(&written.timeout)?.0,
            connect_timeout: value(&written.connect_timeout)?.0,
        })
    }
}
