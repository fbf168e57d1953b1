//! TLS to clients and to upstreams.

use rustls::pki_types::ServerName;

use super::{Builder, value};
use crate::clock::wall_now_us;
use crate::config::UpstreamTls;
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{ListenerTls, Upstream as Written, UpstreamTls as WrittenTls};
use crate::config::source::{Place, without_credentials};
use crate::config::values::FilePath;
use crate::tls::{Authorities, Chain, Key, Listening, TlsError};

impl Builder<'_> {
    /// TLS of a listener; an inner `None` where files are not read.
    pub(super) fn listening(&self, name: &str, written: &ListenerTls) -> Option<Option<Listening>> {
        let (cert, key) = (written.cert.as_ref(), written.key.as_ref());
        if !self.io {
            return (cert.is_some() && key.is_some()).then_some(None);
        }
        let chain = cert.and_then(|cert| self.chain(cert));
        let key_found = key.and_then(|key| self.key(key));
        let (cert, key, chain, key_found) = (cert?, key?, chain?, key_found?);
        let validity = chain.validity();
        let listening = match Listening::new(chain, &key_found, value(&written.min)?) {
            Ok(listening) => listening,
            Err(TlsError::Mismatch) => {
                self.findings.add(
                    Finding::new(
                        Code::E122,
                        key.place,
                        format!(
                            "`{}` is not the key of the certificate in `{}`",
                            key.value.0, cert.value.0
                        ),
                    )
                    .also(cert.place, "the certificate")
                    .help("name the key that the certificate was asked for with; the first certificate in the file is ours"),
                );
                return None;
            }
            Err(error) => {
                self.error(
                    Code::E120,
                    cert.place,
                    format!("listener `{name}` cannot speak TLS: {error}"),
                    "write the files of a certificate, and of its key, in PEM format",
                );
                return None;
            }
        };
        let now_s = i64::try_from(wall_now_us() / 1_000_000).unwrap_or(i64::MAX);
        let wrong = if validity.until_s < now_s {
            Some(("was good until", validity.until_s))
        } else if validity.from_s > now_s {
            Some(("is not good before", validity.from_s))
        } else {
            None
        };
        if let Some((what, when_s)) = wrong {
            self.findings.add(
                Finding::new(
                    Code::W225,
                    cert.place,
                    format!(
                        "the certificate of listener `{name}` {what} {}",
                        instant(when_s)
                    ),
                )
                .help("clients refuse it: replace the files; a reload takes them over"),
            );
        }
        Some(Some(listening))
    }

    fn chain(&self, cert: &At<FilePath>) -> Option<Chain> {
        let pem = self.read_file(cert)?;
        Chain::in_pem(&pem)
            .map_err(|error| {
                self.error(
                    Code::E120,
                    cert.place,
                    format!("`{}` is of no use as a certificate: {error}", cert.value.0),
                    "write the file of the certificate in PEM format: -----BEGIN CERTIFICATE-----, and below it those \
                     between it and its authority",
                );
            })
            .ok()
    }

    fn key(&self, key: &At<FilePath>) -> Option<Key> {
        let pem = self.read_file(key)?;
        Key::in_pem(&pem)
            .map_err(|error| {
                self.error(
                    Code::E121,
                    key.place,
                    format!("`{}` is of no use as a private key: {error}", key.value.0),
                    "write the file of the private key in PEM format, without a passphrase: -----BEGIN PRIVATE KEY-----",
                );
            })
            .ok()
    }

    /// TLS to an upstream's servers; an inner `None` without, or where files are not read.
    pub(super) fn upstream_tls(
        &self,
        name: &str,
        written: &Written,
    ) -> Option<Option<UpstreamTls>> {
        let Some(tls) = &written.tls else {
            if written.unread.contains(&"tls") {
                return None;
            }
            self.warn_of_clear(name, written);
            return Some(None);
        };
        if written.builtin.is_some() {
            self.error(
                Code::E018,
                tls.place,
                format!("upstream `{name}` is the gateway itself: there is nobody to speak TLS to"),
                "take `tls` out",
            );
            return None;
        }
        let WrittenTls {
            sni,
            verify,
            ca,
            unread,
        } = &tls.value;
        let sni_is_good = sni.as_ref().is_none_or(|sni| self.is_server_name(sni));
        let verify = value(verify)?;
        if !verify {
            self.findings.add(
                Finding::new(
                    Code::W226,
                    tls.value.verify.as_ref()?.place,
                    format!("upstream `{name}`: whoever answers is believed to be it"),
                )
                .help(
                    "name the certificate, or its authority: ca = \"FILE\"; and for another name than in `servers`, sni = \"NAME\"",
                ),
            );
        }
        let authorities = match (ca, self.io) {
            (_, false) => None,
            (Some(ca), true) => Some(self.authorities(ca)?),
            (None, true) => Some(self.authorities_of_the_machine(tls.place)?),
        };
        if !sni_is_good || !unread.is_empty() {
            return None;
        }
        Some(authorities.map(|authorities| UpstreamTls {
            sni: sni.as_ref().map(|sni| sni.value.as_str().into()),
            verify,
            authorities,
        }))
    }

    fn is_server_name(&self, sni: &At<String>) -> bool {
        let good = ServerName::try_from(sni.value.as_str()).is_ok();
        if !good {
            self.error(
                Code::E124,
                sni.place,
                format!(
                    "`{}` is not a name that a certificate can be for",
                    without_credentials(&sni.value)
                ),
                "write the host alone: sni = \"api.example.com\"",
            );
        }
        good
    }

    fn authorities(&self, ca: &At<FilePath>) -> Option<Authorities> {
        let pem = self.read_file(ca)?;
        Authorities::in_pem(&pem)
            .map_err(|error| {
                self.error(
                    Code::E123,
                    ca.place,
                    format!("`{}` holds no authority to believe: {error}", ca.value.0),
                    "write a file of certificates in PEM format: -----BEGIN CERTIFICATE-----",
                );
            })
            .ok()
    }

    fn authorities_of_the_machine(&self, place: Place) -> Option<Authorities> {
        let known = self
            .machine
            .get_or_init(|| Authorities::of_the_machine().ok());
        if known.is_none() {
            self.error(
                Code::E123,
                place,
                TlsError::NoSystemRoots.to_string(),
                "install the package ca-certificates, or name whom to believe: tls = { ca = \"FILE\" }",
            );
        }
        known.clone()
    }

    /// A port that means TLS everywhere.
    fn warn_of_clear(&self, name: &str, written: &Written) {
        let servers = written.servers.iter().flat_map(|list| &list.value.items);
        for address in servers.map(|server| &server.value.address) {
            if address.value.ends_with(":443") {
                self.findings.add(
                    Finding::new(
                        Code::W227,
                        address.place,
                        format!("upstream `{name}` is spoken to in the clear on the port of HTTPS"),
                    )
                    .help("add tls = {} beside `servers`"),
                );
            }
        }
    }
}

/// As people write it.
fn instant(epoch_s: i64) -> String {
    jiff::Timestamp::from_second(epoch_s)
        .map_or_else(|_| epoch_s.to_string(), |instant| instant.to_string())
}
