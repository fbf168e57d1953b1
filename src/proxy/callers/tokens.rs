//! The tokens that are believed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tracing::{error, info};

use super::cache::{Cache, Known};
use super::jwks::Jwks;
use super::watched::Watched;
use crate::check::Identity;
use crate::client::jwt::{Claims, Expected, KeySet, Refused, verify};
use crate::client::sent::{Place, Sent};
use crate::config::{Jwt, NoKeys, TokenKeys, is_name, read_token_keys};
use crate::proxy::gateway::Gateway;
use crate::record::metrics::{Proof, Proven};
use crate::request::RequestView;

/// The tokens that are believed.
#[derive(Debug)]
pub(super) struct Tokens {
    sent_in: Place,
    expected: Expected,
    tier_claim: Option<Arc<str>>,
    claims: Box<[Arc<str>]>,
    keys: Keys,
    verified: Cache,
}

/// Keys, and where they come from.
#[derive(Debug)]
enum Keys {
    File {
        in_force: ArcSwap<Numbered>,
        /// None where the file was not to be read.
        watched: Option<Watched>,
    },
    Fetched(Arc<Jwks>),
}

/// Keys with a number of their own: what was verified with others is verified again.
#[derive(Debug)]
pub(super) struct Numbered {
    number: u64,
    pub(super) keys: Arc<KeySet>,
}

impl Numbered {
    pub(super) fn new(keys: Arc<KeySet>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            keys,
        }
    }
}

impl Tokens {
    /// Those that these settings believe; `fetched` are keys that were fetched before, from wherever.
    pub(super) fn of(settings: &Jwt, fetched: Option<&Arc<Jwks>>) -> Self {
        let keys = match &settings.keys {
            TokenKeys::File { keys, seen, .. } => Keys::File {
                in_force: ArcSwap::from_pointee(Numbered::new(Arc::clone(keys))),
                watched: seen.clone().map(Watched::new),
            },
            TokenKeys::Url { url, refresh } => Keys::Fetched(
                fetched
                    .filter(|jwks| jwks.comes_from(url))
                    .inspect(|jwks| jwks.fetch_every(*refresh))
                    .map_or_else(
                        || Arc::new(Jwks::new(Arc::clone(url), *refresh)),
                        Arc::clone,
                    ),
            ),
        };
        Self {
            sent_in: settings.sent_in.clone(),
            expected: settings.expected.clone(),
            tier_claim: settings.tier_claim.clone(),
            claims: settings.claims.clone(),
            keys,
            verified: Cache::new(),
        }
    }

    /// Keys that are fetched.
    pub(super) const fn jwks(&self) -> Option<&Arc<Jwks>> {
        match &self.keys {
            Keys::Fetched(jwks) => Some(jwks),
            Keys::File { .. } => None,
        }
    }

    /// How many keys there are.
    pub(super) fn keys(&self) -> usize {
        self.in_force().load().keys.len()
    }

    fn in_force(&self) -> &ArcSwap<Numbered> {
        match &self.keys {
            Keys::File { in_force, .. } => in_force,
            Keys::Fetched(jwks) => jwks.in_force(),
        }
    }

    /// Whom the token that a request sends proves the caller to be, if it sends one.
    pub(super) fn bearer(
        &self,
        request: &RequestView<'_>,
        now_s: u64,
    ) -> (Option<Arc<Identity>>, Proof) {
        let token = match self.sent_in.credential(request) {
            Sent::Missing => return (None, Proof::Absent),
            Sent::Ambiguous => return (None, Proof::Invalid),
            Sent::Value(token) => token,
        };
        // Another scheme's credentials are no token.
        if token.contains(&b' ') {
            return (None, Proof::Absent);
        }
        match self.verified(&token, now_s) {
            Ok(identity) => (Some(identity), Proof::Ok),
            Err(Refused::Expired) => (None, Proof::Expired),
            Err(Refused::Invalid) => (None, Proof::Invalid),
            Err(Refused::UnknownKey) => {
                if let Keys::Fetched(jwks) = &self.keys {
                    jwks.lacks_a_key();
                }
                (None, Proof::Invalid)
            }
        }
    }

    fn verified(&self, token: &[u8], now_s: u64) -> Result<Arc<Identity>, Refused> {
        let in_force = self.in_force().load();
        let hash = *blake3::hash(token).as_bytes();
        if let Some(known) = self.verified.get(&hash)
            && known.keys == in_force.number
            && (known.valid_s.0..known.valid_s.1).contains(&now_s)
        {
            return Ok(known.identity);
        }
        let claims = verify(token, &in_force.keys, &self.expected, now_s)?;
        let identity = Arc::new(self.identity(&claims));
        let known = Known {
            identity: Arc::clone(&identity),
            valid_s: claims.valid_s,
            keys: in_force.number,
        };
        self.verified.put(hash, known);
        Ok(identity)
    }

    fn identity(&self, claims: &Claims) -> Identity {
        let told = |name: &str| claims.get(name);
        let tier = self.tier_claim.as_deref().and_then(told);
        let issuer = (self.expected.issuer.is_none())
            .then(|| told("iss"))
            .flatten();
        let picked = self.claims.iter();
        Identity {
            id: told("sub").map(|subject| format!("jwt:{subject}").into()),
            issuer: issuer.map(Into::into),
            tier: tier.filter(|tier| is_name(tier)).map(Into::into),
            claims: picked
                .filter_map(|name| Some((Arc::clone(name), told(name)?.into())))
                .collect(),
            ..Identity::default()
        }
    }

    /// Reads the file of keys again if it has changed.
    pub(super) fn look_again(&self, settings: &Jwt, gateway: &Gateway) {
        let Keys::File {
            in_force,
            watched: Some(watched),
        } = &self.keys
        else {
            return;
        };
        let TokenKeys::File { file, kind, .. } = &settings.keys else {
            return;
        };
        let take = |keys: Result<KeySet, NoKeys>| {
            let families = gateway.metrics.families();
            families.keys_read(Proven::ByToken, keys.is_ok());
            let file = file.display();
            match keys {
                Ok(keys) => {
                    info!(%file, keys = keys.len(), "keys of tokens taken");
                    families.keys_in_force(Proven::ByToken, keys.len());
                    in_force.store(Arc::new(Numbered::new(Arc::new(keys))));
                }
                Err(why) => {
                    error!(%file, "keys of tokens not taken, the ones before stay in force: {why}");
                }
            }
        };
        watched.look_again(|| read_token_keys(file, *kind), take);
    }
}
