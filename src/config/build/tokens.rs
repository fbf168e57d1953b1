//! `[identity] jwt`: which tokens are believed.

use std::sync::Arc;

use http::Uri;

use super::policies::Policies;
use super::{Builder, WITHOUT_FILES, value};
use crate::check::KeySource;
use crate::client::jwt::{Algorithm, Expected, KeySet};
use crate::client::sent::Place as SentIn;
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::Jwt as Written;
use crate::config::source::Place;
use crate::config::token_keys::read_token_keys;
use crate::config::values::FilePath;
use crate::config::{Jwt, NoKeys, TokenFile, TokenKeys};

impl Builder<'_> {
    pub(super) fn jwt(&self, written: &At<Written>, policies: &Policies<'_>) -> Option<Jwt> {
        let (written, place) = (&written.value, written.place);
        let keys = self.token_keys(written, place);
        let algorithms = self.algorithms(written);
        self.warn_of_strange_tokens(written, place);
        let issuer = written.issuer.as_ref();
        let audiences = written.audience.iter().flat_map(|at| &at.value.0.items);
        let mut claims: Vec<Arc<str>> = (policies.0.values())
            .flat_map(|built| built.sources())
            .filter_map(|source| match &source.value {
                KeySource::Jwt(claim) => Some(Arc::clone(claim)),
                _ => None,
            })
            .collect();
        claims.sort();
        claims.dedup();
        Some(Jwt {
            sent_in: SentIn::Header(value(&written.header)?),
            expected: Expected {
                issuer: issuer.map(|at| at.value.as_str().into()),
                audiences: audiences.map(|at| at.value.as_str().into()).collect(),
                algorithms: algorithms?,
                leeway_s: value(&written.leeway)?.0.as_secs(),
            },
            tier_claim: value(&written.tier_claim).map(Into::into),
            claims: claims.into(),
            keys: keys?,
        })
    }

    /// Where the keys come from: one place.
    fn token_keys(&self, written: &Written, place: Place) -> Option<TokenKeys> {
        const FIELDS: [&str; 3] = ["jwks_file", "jwks_url", "secret_file"];
        let places = [
            written.jwks_file.as_ref().map(|at| at.place),
            written.jwks_url.as_ref().map(|at| at.place),
            written.secret_file.as_ref().map(|at| at.place),
        ];
        match places.into_iter().flatten().collect::<Vec<_>>().as_slice() {
            [_] => {}
            [] => {
                if !written.unread.iter().any(|key| FIELDS.contains(key)) {
                    self.error(
                        Code::E016,
                        place,
                        "`jwt` does not say which keys tokens are verified with",
                        "add jwks_url = \"https://…\", jwks_file = \"…\", or secret_file = \"…\" for HS256",
                    );
                }
                return None;
            }
            [_, second, ..] => {
                self.error(
                    Code::E018,
                    *second,
                    "`jwks_file`, `jwks_url` and `secret_file` exclude each other",
                    "keep one of them",
                );
                return None;
            }
        }
        if let Some(url) = &written.jwks_url {
            return Some(TokenKeys::Url {
                url: self.jwks_url(url)?,
                refresh: value(&written.refresh)?.0,
            });
        }
        let files = [
            (&written.jwks_file, TokenFile::Jwks),
            (&written.secret_file, TokenFile::Secret),
        ];
        let mut files = files
            .into_iter()
            .filter_map(|(path, kind)| Some((path.as_ref()?, kind)));
        let (path, kind) = files.next()?;
        self.token_file(path, kind)
    }

    fn token_file(&self, path: &At<FilePath>, kind: TokenFile) -> Option<TokenKeys> {
        let file = self.sources.resolve(path.place.source, &path.value.0);
        if !self.io {
            return Some(TokenKeys::File {
                file,
                kind,
                keys: Arc::new(KeySet::none()),
                seen: None,
            });
        }
        let (keys, seen) = read_token_keys(&file, kind);
        let keys = keys
            .map_err(|why| {
                let (code, help) = match (&why, kind) {
                    (NoKeys::Unread(_), _) => (Code::E051, WITHOUT_FILES),
                    (NoKeys::Bad(_), TokenFile::Jwks) => (
                        Code::E117,
                        "save what the issuer publishes as its jwks_uri, or name that: jwks_url = \"https://…\"",
                    ),
                    (NoKeys::Bad(_), TokenFile::Secret) => {
                        (Code::E117, "make one: openssl rand -hex 32 > jwt_secret")
                    }
                };
                let message = format!("{}: {why}", file.display());
                self.error(code, path.place, message, help);
            })
            .ok()?;
        Some(TokenKeys::File {
            file,
            kind,
            keys: Arc::new(keys),
            seen: Some(seen),
        })
    }

    /// What keys are fetched from. Whoever can change them on the way can be anybody.
    fn jwks_url(&self, url: &At<String>) -> Option<Arc<str>> {
        let refuse = |why: &str| {
            self.error(
                Code::E119,
                url.place,
                format!("`jwks_url` {why}"),
                "write \"https://issuer.example/.well-known/jwks.json\"",
            );
            None
        };
        if url.value.contains('@') {
            return refuse("holds credentials, which public keys do not need");
        }
        let Ok(parsed) = url.value.parse::<Uri>() else {
            return refuse("is not a URL");
        };
        let host = parsed.host().unwrap_or_default();
        match parsed.scheme_str() {
            _ if host.is_empty() => return refuse("names no host"),
            Some("https") => {}
            Some("http") if is_loopback(host) => {}
            Some("http") => self.findings.add(
                Finding::new(
                    Code::W216,
                    url.place,
                    "the keys of tokens are fetched in the clear: whoever is on the way can be anybody",
                )
                .help("write https://"),
            ),
            _ => return refuse("is neither https nor http"),
        }
        Some(url.value.as_str().into())
    }

    /// The key says by which algorithm it verifies; what is written can only allow less.
    fn algorithms(&self, written: &Written) -> Option<Box<[Algorithm]>> {
        let by_secret = written.secret_file.is_some();
        let able = |algorithm: &Algorithm| (*algorithm == Algorithm::Hs256) == by_secret;
        let Some(list) = &written.algorithms else {
            let unread = written.unread.contains(&"algorithms");
            return (!unread).then(|| Algorithm::ALL.into_iter().filter(able).collect());
        };
        if list.value.items.is_empty() && list.value.complete {
            self.error(
                Code::E118,
                list.place,
                "`algorithms` allows no token at all",
                "leave it out to allow what the keys are for",
            );
        }
        let mut fits = list.value.complete;
        for algorithm in list.value.items.iter().filter(|at| !able(&at.value)) {
            fits = false;
            let (why, help) = if by_secret {
                (
                    "needs a public key, and `secret_file` is a secret",
                    "write \"HS256\", or jwks_file or jwks_url for public keys",
                )
            } else {
                (
                    "needs a secret, and the keys are public: anybody could sign so",
                    "take it out, or set secret_file instead of public keys",
                )
            };
            let message = format!("`{}` {why}", algorithm.value.as_str());
            self.error(Code::E118, algorithm.place, message, help);
        }
        fits.then(|| list.value.items.iter().map(|at| at.value).collect())
    }

    fn warn_of_strange_tokens(&self, written: &Written, place: Place) {
        let warn = |message: &str, help: &str| {
            self.findings
                .add(Finding::new(Code::W216, place, message).help(help));
        };
        if written.issuer.is_none() && !written.unread.contains(&"issuer") {
            warn(
                "tokens of any issuer are believed, if only one of the keys has signed them",
                "add issuer = \"…\", as the tokens' claim iss has it",
            );
        }
        if written.audience.is_none() && !written.unread.contains(&"audience") {
            warn(
                "tokens that were made for another application are believed here",
                "add audience = \"…\", as the tokens' claim aud has it",
            );
        }
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_matches(['[', ']']);
    host == "localhost" || (bare.parse::<std::net::IpAddr>()).is_ok_and(|ip| ip.is_loopback())
}
