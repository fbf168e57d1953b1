//! Where Valkey is, who we are there, and how it is reached.

use super::store_url::{Location, parse_url};
use super::{Builder, value};
use crate::config::collections::List;
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{Sentinel, Store as Written};
use crate::config::source::{Place, without_credentials};
use crate::config::values::FilePath;
use crate::store::valkey::{self, Address, Login, Sentinels, Tls};
use crate::tls::TlsError;

impl Builder<'_> {
    /// Whether the password stands in the file itself, not in a variable that fills it in.
    fn holds_password(&self, url: &At<String>) -> bool {
        let written = self.sources.written(url.place).unwrap_or_default();
        let rest = written.split_once("://").map_or("", |(_, rest)| rest);
        let credentials = rest.rsplit_once('@').map(|(credentials, _)| credentials);
        credentials.is_some_and(|credentials| !credentials.contains("${"))
    }

    /// What `url`, `sentinel` or `cluster` says.
    fn location(&self, written: &Written) -> Option<Location> {
        let ways = [
            ("url", written.url.as_ref().map(|at| at.place)),
            ("sentinel", written.sentinel.as_ref().map(|at| at.place)),
            ("cluster", written.cluster.as_ref().map(|at| at.place)),
        ];
        let mut found = ways
            .iter()
            .filter_map(|(way, place)| Some((way, (*place)?)));
        if let (Some((first, _)), Some((second, place))) = (found.next(), found.next()) {
            self.error(
                Code::E018,
                place,
                format!("there is a `{first}` and a `{second}`"),
                "keep one of them",
            );
            return None;
        }
        if let Some(url) = &written.url {
            return self.location_of_url(written, url);
        }
        if let Some(sentinel) = &written.sentinel {
            return self.location_of_sentinel(sentinel);
        }
        if let Some(cluster) = &written.cluster {
            return self.location_of_cluster(cluster);
        }
        // What is there but could not be read is reported already.
        if !written
            .unread
            .iter()
            .any(|field| matches!(*field, "url" | "sentinel" | "cluster"))
        {
            self.error(
                Code::E016,
                written.kind.as_ref()?.place,
                "`kind = \"valkey\"` needs a `url`, or `sentinel` or `cluster`",
                "add url = \"valkey://127.0.0.1:6379\"",
            );
        }
        None
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
        let good = self.are_addresses(&nodes.value, "a sentinel", "10.0.0.1:26379");
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
                nodes: texts(&nodes.value),
                primary: primary.value.clone(),
                login,
            })),
            database: 0,
            login: Login::default(),
            encrypted: None,
        })
    }

    fn location_of_cluster(&self, nodes: &At<List<String>>) -> Option<Location> {
        if nodes.value.items.is_empty() && nodes.value.complete {
            self.error(
                Code::E016,
                nodes.place,
                "there is no server in `cluster`",
                "write where some of them are: cluster = [\"10.0.0.1:6379\"]; they name the others",
            );
            return None;
        }
        let good = self.are_addresses(&nodes.value, "a server", "10.0.0.1:6379");
        good.then(|| Location {
            address: Address::Cluster(texts(&nodes.value)),
            database: 0,
            login: Login::default(),
            encrypted: None,
        })
    }

    /// Whether all of them are addresses; reports those that are not.
    fn are_addresses(&self, nodes: &List<String>, what: &str, example: &str) -> bool {
        let mut good = nodes.complete;
        for node in &nodes.items {
            if !super::upstreams::is_host_and_port(&node.value) {
                self.error(
                    Code::E025,
                    node.place,
                    format!(
                        "`{}` is not the address of {what}",
                        without_credentials(&node.value)
                    ),
                    if node.value.contains('@') {
                        format!("write host:port: \"{example}\"; who we are there, `username` and `password_file` say")
                    } else {
                        format!("write host:port: \"{example}\"")
                    },
                );
                good = false;
            }
        }
        good
    }

    /// TLS, where `tls` or the URL asks for it.
    fn tls(&self, written: &Written, encrypted: Option<bool>) -> Option<Option<Tls>> {
        let Some(at) = &written.tls else {
            if written.unread.contains(&"tls") {
                return None;
            }
            if encrypted != Some(true) {
                return Some(None);
            }
            if !self.io {
                return Some(None);
            }
            let place = written.url.as_ref()?.place;
            return self.made_tls(place, Tls::new(None, None)).map(Some);
        };
        if encrypted == Some(false) {
            self.error(
                Code::E018,
                at.place,
                "there is a `tls`, and `url` asks for none",
                "write valkeys:// in `url`, or take `tls` out",
            );
            return None;
        }
        let tls = &at.value;
        if !tls.unread.is_empty() {
            return None;
        }
        let identity = match (&tls.cert, &tls.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(lone), None) | (None, Some(lone)) => {
                self.error(
                    Code::E016,
                    lone.place,
                    "a certificate needs its key, and a key its certificate",
                    "write both: tls = { cert = \"client.crt\", key = \"client.key\" }",
                );
                return None;
            }
        };
        if !self.io {
            return Some(None);
        }
        let ca = match &tls.ca {
            Some(path) => {
                let pem = self.read_file(path)?;
                // Alone first, so that a mistake is shown where it is.
                self.made_tls(path.place, Tls::new(Some(&pem), None))?;
                Some(pem)
            }
            None => None,
        };
        let (place, identity) = match identity {
            Some((cert, key)) => {
                let both = (self.read_file(cert), self.read_file(key));
                (cert.place, Some((both.0?, both.1?)))
            }
            None => (at.place, None),
        };
        let identity = identity.as_ref().map(|(cert, key)| (&**cert, &**key));
        self.made_tls(place, Tls::new(ca.as_deref(), identity))
            .map(Some)
    }

    fn made_tls(&self, place: Place, made: Result<Tls, TlsError>) -> Option<Tls> {
        made.map_err(|error| {
            self.error(
                Code::E051,
                place,
                format!("TLS to the store cannot be had: {error}"),
                "`ca` holds the authorities' certificates, `cert` ours and `key` its private key, all in PEM format",
            );
        })
        .ok()
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

    pub(super) fn valkey(&self, at: &At<Written>) -> Option<valkey::Settings> {
        let written = &at.value;
        let Location {
            address,
            database,
            mut login,
            encrypted,
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
            tls: self.tls(written, encrypted)?,
            timeout: value(&written.timeout)?.0,
            connect_timeout: value(&written.connect_timeout)?.0,
            group_commit: value(&written.group_commit)?,
            deny_cache: value(&written.deny_cache)?,
        })
    }
}

fn texts(list: &List<String>) -> Vec<String> {
    list.items.iter().map(|item| item.value.clone()).collect()
}
