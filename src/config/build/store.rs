//! `[store]`.

use super::{Builder, non_zero_u32, non_zero_usize, value};
use std::path::PathBuf;

use crate::check::KeySecret;
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{File, Store as Written, StoreWord};
use crate::config::source::Sources;
use crate::config::{Store, StoreKind};

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
            ("cluster", written.cluster.as_ref().map(|at| at.place)),
            ("tls", written.tls.as_ref().map(|at| at.place)),
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
}
