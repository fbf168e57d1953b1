//! Who calls, as far as it is proven: by an API key, by a signed token, or by a trusted proxy's word for the plan.

mod api_keys;
mod cache;
mod jwks;
mod tokens;
mod watched;

use std::sync::Arc;

use super::gateway::Gateway;
use crate::check::Identity;
use crate::client::Client;
use crate::client::sent::{Place, Sent};
use crate::config::{Config, is_name};
use crate::record::metrics::{Families, Proven};
use crate::request::RequestView;
use api_keys::KeyRing;
use jwks::Jwks;
pub(super) use jwks::{first_fetch, keep_fetching};
use tokens::Tokens;

/// What callers are known by.
#[derive(Debug)]
pub struct Callers {
    api_keys: Option<KeyRing>,
    tokens: Option<Tokens>,
    tier_header: Option<Place>,
}

impl Callers {
    /// Those that this configuration knows. Keys that `earlier` has fetched, from where these are fetched, are theirs.
    #[must_use]
    pub fn of(config: &Config, earlier: Option<&Self>, families: &Families) -> Self {
        let identity = &config.identity;
        let callers = Self {
            api_keys: identity.api_key.as_ref().and_then(KeyRing::of),
            tokens: (identity.jwt.as_ref())
                .map(|jwt| Tokens::of(jwt, earlier.and_then(Self::jwks))),
            tier_header: config.client_ip.tier_header.clone().map(Place::Header),
        };
        let api_keys = callers.api_keys.as_ref().map_or(0, KeyRing::len);
        families.keys_in_force(Proven::ByApiKey, api_keys);
        let tokens = callers.tokens.as_ref().map_or(0, Tokens::keys);
        families.keys_in_force(Proven::ByToken, tokens);
        callers
    }

    /// Who calls at `now_s`, in seconds since the epoch. What does not prove anything is counted, and is nobody.
    ///
    /// Where both an API key and a token do, the caller is the holder of the key, and the token's claims are the
    /// caller's.
    #[must_use]
    pub fn identify(
        &self,
        request: &RequestView<'_>,
        client: Client,
        now_s: u64,
        families: &Families,
    ) -> Identity {
        let mut holder = None;
        if let Some(ring) = &self.api_keys {
            let proof;
            (holder, proof) = ring.holder(request);
            families.identified(Proven::ByApiKey, proof);
        }
        let mut bearer = None;
        if let Some(tokens) = &self.tokens {
            let proof;
            (bearer, proof) = tokens.bearer(request, now_s);
            families.identified(Proven::ByToken, proof);
        }
        let mut identity = match (holder, bearer) {
            (None, None) => Identity::default(),
            (Some(one), None) | (None, Some(one)) => Identity::clone(&one),
            (Some(holder), Some(bearer)) => Identity {
                tier: holder.tier.clone().or_else(|| bearer.tier.clone()),
                claims: Arc::clone(&bearer.claims),
                ..Identity::clone(&holder)
            },
        };
        if identity.tier.is_none() && client.through_trusted {
            identity.tier = self.told_tier(request);
        }
        identity
    }

    /// The tier that a trusted proxy names.
    fn told_tier(&self, request: &RequestView<'_>) -> Option<Arc<str>> {
        let Sent::Value(value) = self.tier_header.as_ref()?.credential(request) else {
            return None;
        };
        let name = std::str::from_utf8(&value).ok()?;
        is_name(name).then(|| name.into())
    }

    /// Reads the files of keys that have changed, and have stopped changing. Blocks.
    pub fn look_again(&self, gateway: &Gateway) {
        let identity = &gateway.config.identity;
        if let (Some(ring), Some(settings)) = (&self.api_keys, &identity.api_key) {
            ring.look_again(settings, gateway);
        }
        if let (Some(tokens), Some(settings)) = (&self.tokens, &identity.jwt) {
            tokens.look_again(settings, gateway);
        }
    }

    /// Keys that are fetched.
    fn jwks(&self) -> Option<&Arc<Jwks>> {
        self.tokens.as_ref()?.jwks()
    }
}
