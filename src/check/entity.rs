//! Whom a policy counts: the parts of its key, read from the request and hashed.
//!
//! The hash is keyed, so that nobody who reads the store can find an address or an API key by trying them all,
//! and its parts are joined with their lengths, so that no two callers share one.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;
use uuid::Uuid;

use super::identity::Identity;
use super::read;
use crate::client::address::Prefixes;
use crate::client::sent::Sent;
use crate::request::RequestView;

/// Where a part of a key comes from.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum KeySource {
    /// The client's address, by the configured prefixes.
    Ip,
    /// The client's address, by a prefix of this length: `ip/56`. It cuts IPv6; of IPv4 too if it is at most 32.
    IpPrefix(u8),
    /// Whom an API key or a signed token proves the caller to be.
    Identity,
    /// The plan that the caller is on.
    Tier,
    /// A claim of a verified token: a text, a whole number, or true or false.
    Jwt(Arc<str>),
    /// A header field, lower case.
    Header(http::HeaderName),
    /// A cookie.
    Cookie(Arc<str>),
    /// A query parameter.
    Query(Arc<str>),
    /// A parameter of the route's path.
    Path(Arc<str>),
    /// The method.
    Method,
    /// The host, without port, lower case.
    Host,
    /// The route's name.
    Route,
    /// Everybody together.
    Global,
}

/// Secret that keys the hash of entities. Instances that share a store share it.
#[derive(Clone, Eq, PartialEq)]
pub struct KeySecret([u8; 32]);

/// Whom a check counts: 128 bits, opaque.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct EntityKey(pub [u8; 16]);

/// What a key comes to for one request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entity {
    /// Whom it counts. What is missing counts too: all who lack the same parts are one entity.
    pub key: EntityKey,
    /// Whether every part was there.
    pub complete: bool,
    /// Whether some part had several values that differ.
    pub ambiguous: bool,
}

/// All that keys are read from.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    /// The request.
    pub request: RequestView<'a>,
    /// Who calls; `None` on a socket that has no address.
    pub client_ip: Option<IpAddr>,
    /// How much of an address counts.
    pub prefixes: Prefixes,
    /// Who calls, as far as that is proven.
    pub identity: &'a Identity,
    /// The name of the route that matched.
    pub route: &'a str,
    /// The values of the route's path parameters, decoded, by name.
    pub params: &'a [(Arc<str>, String)],
}

impl KeySecret {
    /// A secret of 32 bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(…)")
    }
}

impl KeySecret {
    /// The fewest bytes that a secret has.
    pub const LENGTH_MIN: usize = 16;

    /// The secret made of these bytes.
    ///
    /// # Errors
    ///
    /// [`SecretTooShort`] when they are fewer than [`Self::LENGTH_MIN`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, SecretTooShort> {
        if bytes.len() < Self::LENGTH_MIN {
            return Err(SecretTooShort { found: bytes.len() });
        }
        Ok(Self(blake3::derive_key(
            "tollgate 2026-01 key of entity hashes",
            bytes,
        )))
    }

    /// A mark that only who has the secret can make of these bytes.
    #[must_use]
    pub fn mark(&self, bytes: &[u8]) -> [u8; 32] {
        let key = blake3::derive_key("tollgate 2026-11 mark of a usage snapshot", &self.0);
        *blake3::keyed_hash(&key, bytes).as_bytes()
    }

    /// A secret of this process, from the system's randomness. What it hashes means nothing to another process.
    #[must_use]
    pub fn generate() -> Self {
        let mut hasher =
            blake3::Hasher::new_derive_key("tollgate 2026-01 random key of entity hashes");
        for _ in 0..4 {
            // 122 random bits each.
            hasher.update(Uuid::new_v4().as_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }
}

/// Twelve hexadecimal digits for an address, to tell clients apart in a log that is not to name them.
#[must_use]
pub fn hashed_address(secret: &KeySecret, ip: IpAddr) -> String {
    let hash = blake3::keyed_hash(&secret.0, format!("address {ip}").as_bytes());
    hash.to_hex().chars().take(12).collect()
}

/// A secret that could be guessed.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error(
    "a secret of {found} bytes is too short; it takes at least {}",
    KeySecret::LENGTH_MIN
)]
pub struct SecretTooShort {
    /// How many bytes there were.
    pub found: usize,
}

impl EntityKey {
    /// Twelve hexadecimal digits, to tell entities apart in a log.
    #[must_use]
    pub fn short_hash(&self) -> String {
        let [a, b, c, d, e, f, ..] = self.0;
        format!("{a:02x}{b:02x}{c:02x}{d:02x}{e:02x}{f:02x}")
    }
}

/// Reads the parts of `key` from the request, and hashes them to whom they stand for.
///
/// Every part goes in with its source and its length, and a missing one with a tag of its own: no two different
/// callers come to the same bytes.
#[must_use]
pub fn entity(key: &[KeySource], caller: &Caller<'_>, secret: &KeySecret) -> Entity {
    let parts = key
        .iter()
        .map(|source| (source, read::part(source, caller)));
    hashed(parts, secret)
}

/// The entity that these parts make, in this order.
pub(super) fn hashed<'a>(
    key: impl IntoIterator<Item = (&'a KeySource, Sent<'a>)>,
    secret: &KeySecret,
) -> Entity {
    // Nearly every key fits, and is hashed at one go.
    let mut parts = Vec::with_capacity(128);
    let (mut complete, mut ambiguous) = (true, false);
    let mut add = |part: &[u8]| {
        parts.extend_from_slice(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        parts.extend_from_slice(part);
    };
    for (source, part) in key {
        let (word, name) = source.words();
        add(word.as_bytes());
        add(name.as_bytes());
        if let KeySource::IpPrefix(bits) = source {
            add(&[*bits]);
        }
        match part {
            Sent::Value(value) => {
                add(b"+");
                add(&value);
            }
            Sent::Missing => {
                add(b"-");
                complete = false;
            }
            Sent::Ambiguous => {
                add(b"?");
                (complete, ambiguous) = (false, true);
            }
        }
    }
    let hash = blake3::keyed_hash(&secret.0, &parts);
    let [head @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = *hash.as_bytes();
    Entity {
        key: EntityKey(head),
        complete,
        ambiguous,
    }
}

impl KeySource {
    /// Whether a request may come without it. A path parameter belongs to the route, and an address to nearly every
    /// request: only one from a socket without addresses lacks it.
    #[must_use]
    pub const fn can_be_missing(&self) -> bool {
        matches!(
            self,
            Self::Identity
                | Self::Tier
                | Self::Jwt(_)
                | Self::Header(_)
                | Self::Cookie(_)
                | Self::Query(_)
        )
    }

    /// What is written before the colon, and after it.
    fn words(&self) -> (&'static str, &str) {
        match self {
            Self::Ip => ("ip", ""),
            Self::IpPrefix(_) => ("ip/", ""),
            Self::Identity => ("identity", ""),
            Self::Tier => ("tier", ""),
            Self::Jwt(claim) => ("jwt", claim),
            Self::Header(name) => ("header", name.as_str()),
            Self::Cookie(name) => ("cookie", name),
            Self::Query(name) => ("query", name),
            Self::Path(name) => ("path", name),
            Self::Method => ("method", ""),
            Self::Host => ("host", ""),
            Self::Route => ("route", ""),
            Self::Global => ("global", ""),
        }
    }
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self, self.words()) {
            (Self::IpPrefix(bits), (word, _)) => write!(f, "{word}{bits}"),
            (_, (word, "")) => f.write_str(word),
            (_, (word, name)) => write!(f, "{word}:{name}"),
        }
    }
}

/// A spelling that names no key source.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum BadKeySource {
    /// Not one of the words there are.
    #[error(
        "`{0}` is not a key source; write ip, ip/PREFIX, identity, tier, jwt:CLAIM, header:NAME, cookie:NAME, \
         query:NAME, path:PARAM, method, host, route or global"
    )]
    Unknown(String),
    /// A prefix that no address has.
    #[error("`{0}` is not a prefix of an address; write 1 to 128 bits, as in \"ip/56\"")]
    Prefix(String),
    /// No name, or one that cannot be.
    #[error("`{name}` cannot name a {word}; write \"{word}:NAME\"")]
    Name {
        /// What is written before the colon.
        word: &'static str,
        /// What was found after it.
        name: String,
    },
}

impl FromStr for KeySource {
    type Err = BadKeySource;

    fn from_str(text: &str) -> Result<Self, BadKeySource> {
        if let Some(bits) = text.strip_prefix("ip/") {
            let number = bits
                .parse()
                .ok()
                .filter(|n: &u8| (1..=128).contains(n) && n.to_string() == bits);
            return number
                .map(Self::IpPrefix)
                .ok_or_else(|| BadKeySource::Prefix(bits.to_owned()));
        }
        let (word, name) = text
            .split_once(':')
            .map_or((text, None), |(word, name)| (word, Some(name)));
        let named = |word: &'static str| {
            // Cookies are named by tokens, as header fields are; a query or a claim may be named anything.
            let name = name.unwrap_or_default();
            let fits = match word {
                "header" | "cookie" => http::HeaderName::from_bytes(name.as_bytes()).is_ok(),
                _ => !name.is_empty(),
            };
            let bad = || BadKeySource::Name {
                word,
                name: name.to_owned(),
            };
            fits.then_some(name).ok_or_else(bad)
        };
        match (word, name) {
            ("ip", None) => Ok(Self::Ip),
            ("identity", None) => Ok(Self::Identity),
            ("tier", None) => Ok(Self::Tier),
            ("jwt", _) => Ok(Self::Jwt(named("jwt")?.into())),
            ("method", None) => Ok(Self::Method),
            ("host", None) => Ok(Self::Host),
            ("route", None) => Ok(Self::Route),
            ("global", None) => Ok(Self::Global),
            ("header", _) => {
                let name = named("header")?;
                let bad = |_| BadKeySource::Name {
                    word: "header",
                    name: name.to_owned(),
                };
                http::HeaderName::from_bytes(name.as_bytes())
                    .map(Self::Header)
                    .map_err(bad)
            }
            ("cookie", _) => Ok(Self::Cookie(named("cookie")?.into())),
            ("query", _) => Ok(Self::Query(named("query")?.into())),
            ("path", _) => Ok(Self::Path(named("path")?.into())),
            _ => Err(BadKeySource::Unknown(text.to_owned())),
        }
    }
}
