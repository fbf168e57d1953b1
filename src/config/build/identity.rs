//! `[identity]`: how callers prove who they are, and whether keys are read from what nobody can prove.

use std::sync::Arc;

use super::Builder;
use super::policies::Policies;
use crate::check::KeySource;
use crate::client::sent::Place as SentIn;
use crate::config::error::{Code, Findings};
use crate::config::file::{ApiKey as Written, File, Identity as WrittenIdentity};
use crate::config::key_file::{self, KeyFile, Keys, Names};
use crate::config::source::{Place, Sources};
use crate::config::{ApiKeys, Identity, LoadOptions, Seen};

/// The file of API keys as written.
#[derive(Debug)]
pub(crate) struct ReadKeys {
    file: Option<KeyFile>,
    seen: Seen,
}

impl ReadKeys {
    /// The policies of which some key has a limit of its own.
    pub(super) fn limited(&self) -> impl Iterator<Item = &str> {
        let keys = self.file.iter().flat_map(|file| &file.keys);
        let holders = keys.flat_map(|keys| &keys.value.entries);
        let limits = holders.flat_map(|(_, holder)| &holder.value.limits);
        limits
            .flat_map(|limits| &limits.value.0)
            .map(|(policy, _)| policy.value.as_str())
    }
}

/// Reads the file of API keys that the configuration names.
pub(crate) fn read_keys(
    file: &File,
    sources: &mut Sources,
    options: &LoadOptions,
    findings: &Findings,
) -> Option<ReadKeys> {
    let identity = &file.identity.as_ref()?.value;
    let path = identity.api_key.as_ref()?.value.file.as_ref()?;
    let resolved = sources.resolve(path.place.source, &path.value.0);
    let named = Some(path.place);
    let (file, seen) = match options.io {
        true => key_file::parse(&resolved, named, sources, &options.env, findings),
        false => return None,
    };
    Some(ReadKeys { file, seen })
}

/// The tiers that keys may have: any, where none is defined.
fn tiers(file: &File) -> Option<Vec<&str>> {
    let tiers = &file.tiers.as_ref()?.value;
    let defined = tiers.entries.iter().map(|(name, _)| &name.value);
    let names: Vec<&str> = defined.chain(&tiers.excused).map(String::as_str).collect();
    (!names.is_empty()).then_some(names)
}

impl Builder<'_> {
    pub(super) fn identity(&self, file: &File, policies: &Policies<'_>) -> Option<Identity> {
        self.check_sources(file, policies);
        let Some(written) = &file.identity else {
            return Some(Identity::default());
        };
        let written = &written.value;
        self.check_tier_header(file, written);
        let api_key = match &written.api_key {
            Some(api_key) => self
                .api_keys(
                    &api_key.value,
                    api_key.place,
                    policies,
                    tiers(file).as_deref(),
                )
                .map(Some),
            None => Some(None),
        };
        let jwt = match &written.jwt {
            Some(jwt) => self.jwt(jwt, policies).map(Some),
            None => Some(None),
        };
        self.check_headers(written);
        Some(Identity {
            api_key: api_key?,
            jwt: jwt?,
        })
    }

    fn api_keys(
        &self,
        written: &Written,
        place: Place,
        policies: &Policies<'_>,
        tiers: Option<&[&str]>,
    ) -> Option<ApiKeys> {
        let sent_in = self.sent_in(written, place);
        let path = written.file.as_ref()?;
        let file = self.sources.resolve(path.place.source, &path.value.0);
        let policies: Vec<_> = policies
            .0
            .iter()
            .map(|(name, built)| (*name, built.policy.as_ref()))
            .collect();
        let names = Names {
            policies: &policies,
            tiers,
        };
        let (keys, seen) = match self.keys {
            Some(read) => {
                let keys = key_file::build(read.file.as_ref()?, names, self.findings)?;
                (keys, Some(read.seen.clone()))
            }
            None => (Keys::new(), None),
        };
        Some(ApiKeys {
            sent_in: sent_in?,
            file,
            keys: Arc::new(keys),
            seen,
        })
    }

    /// Where keys are sent: in one place.
    fn sent_in(&self, written: &Written, place: Place) -> Option<SentIn> {
        let header = written.header.as_ref();
        let header = header.map(|at| (at.place, SentIn::Header(at.value.clone())));
        let cookie = written.cookie.as_ref();
        let cookie = cookie.map(|at| (at.place, SentIn::Cookie(at.value.as_str().into())));
        let query = written.query.as_ref();
        let query = query.map(|at| (at.place, SentIn::Query(at.value.as_str().into())));
        let mut found: Vec<_> = [header, cookie, query].into_iter().flatten().collect();
        let unread = |key: &&str| ["header", "cookie", "query"].contains(key);
        let unread = written.unread.iter().any(unread);
        match (found.pop(), found.is_empty()) {
            (Some((_, only)), true) => Some(only),
            (Some((second, _)), false) => {
                self.error(
                    Code::E018,
                    second,
                    "API keys are sent in one place: `header`, `cookie` and `query` exclude each other",
                    "keep one of them",
                );
                None
            }
            (None, _) if unread => None,
            (None, _) => {
                self.error(
                    Code::E016,
                    place,
                    "`api_key` does not say where keys are sent",
                    "add header = \"x-api-key\", or cookie or query",
                );
                None
            }
        }
    }

    /// What is a key is no token: one field cannot hold both.
    fn check_headers(&self, written: &WrittenIdentity) {
        let (Some(api_key), Some(jwt)) = (&written.api_key, &written.jwt) else {
            return;
        };
        let (Some(keys), Some(tokens)) = (&api_key.value.header, &jwt.value.header) else {
            return;
        };
        if keys.value == tokens.value {
            self.error(
                Code::E018,
                keys.place,
                format!("API keys and tokens are both sent in `{}`", keys.value),
                "give the keys a header of their own: \"x-api-key\"",
            );
        }
    }

    /// A tier is believed from trusted proxies only: without one it is never read.
    fn check_tier_header(&self, file: &File, written: &WrittenIdentity) {
        let Some(header) = &written.tier_header else {
            return;
        };
        let trusts = file.client_ip.as_ref().is_none_or(|client_ip| {
            let client_ip = &client_ip.value;
            client_ip.trusted_hops.is_some()
                || (client_ip.trusted_proxies.as_ref())
                    .is_some_and(|networks| !networks.value.items.is_empty())
                || !client_ip.unread.is_empty()
        });
        if !trusts {
            self.error(
                Code::E018,
                header.place,
                format!(
                    "`{}` is believed from trusted proxies only, and nobody is trusted",
                    header.value
                ),
                "name them: client_ip.trusted_proxies = [\"10.0.0.0/8\"]",
            );
        }
    }

    /// Keys that are read from what `[identity]` does not yield.
    fn check_sources(&self, file: &File, policies: &Policies<'_>) {
        let written = file.identity.as_ref().map(|identity| &identity.value);
        let has = |field: &'static str, is_there: fn(&WrittenIdentity) -> bool| {
            written.is_some_and(|written| is_there(written) || written.unread.contains(&field))
        };
        let keys = has("api_key", |written| written.api_key.is_some());
        let header = has("tier_header", |written| written.tier_header.is_some());
        let tokens = has("jwt", |written| written.jwt.is_some());
        let claim = has("jwt", |written| {
            let jwt = written.jwt.as_ref().map(|jwt| &jwt.value);
            jwt.is_some_and(|jwt| jwt.tier_claim.is_some() || jwt.unread.contains(&"tier_claim"))
        });
        for (name, built) in &policies.0 {
            for source in built.sources() {
                let cure = match &source.value {
                    KeySource::Identity if !keys && !tokens => {
                        "add identity.api_key = { header = \"x-api-key\", file = \"api-keys.toml\" }, or identity.jwt"
                    }
                    KeySource::Jwt(_) if !tokens => {
                        "add identity.jwt = { issuer = \"…\", audience = \"…\", jwks_url = \"https://…\" }"
                    }
                    KeySource::Tier if !keys && !header && !claim => {
                        "add identity.api_key, whose file gives each key a tier, identity.jwt.tier_claim, or \
                         identity.tier_header"
                    }
                    _ => continue,
                };
                self.error(
                    Code::E113,
                    source.place,
                    format!(
                        "policy `{name}` counts by `{}`, which nobody can have: nothing proves who calls",
                        source.value
                    ),
                    cure,
                );
            }
        }
    }
}
