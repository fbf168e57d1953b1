//! Signed tokens (JWT, RFC 7519, in the compact form of RFC 7515): who signed one, and what it says then.
//!
//! The key says by which algorithm it verifies; a token only chooses among keys. So no public key is ever taken for a
//! shared secret, and nothing is believed unsigned.

pub mod keys;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny};
use serde_json::{Map, Value};

pub use keys::{Algorithm, BadKeys, KeySet};

/// The longest token that is read, in bytes.
pub const LENGTH_MAX: usize = 8192;

/// The most keys that a token is tried with. One that names no key may be signed by any.
const TRIED_MAX: usize = 16;

/// What a token has to say besides being signed.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Expected {
    /// Who issues it; anybody who has a key if none.
    pub issuer: Option<Box<str>>,
    /// Whom it is for: one of these; anybody if none.
    pub audiences: Box<[Box<str>]>,
    /// How it may be signed.
    pub algorithms: Box<[Algorithm]>,
    /// How far the issuer's clock and ours may be apart, in seconds.
    pub leeway_s: u64,
}

/// What a verified token says.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims {
    claims: Map<String, Value>,
    /// From when on it holds, and the first second in which it does not any more, both since the epoch and with the
    /// leeway.
    pub valid_s: (u64, u64),
}

/// Why a token proves nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// By its own word it is over.
    Expired,
    /// It is signed with a key that we do not have: perhaps a new one.
    UnknownKey,
    /// Anything else: not a token, not for us, not signed by whom it says.
    Invalid,
}

/// The header of a token. A member that stands twice is a mistake.
#[derive(Deserialize)]
struct Header {
    alg: String,
    #[serde(default)]
    kid: Option<String>,
    /// Extensions that have to be understood. None are.
    #[serde(default, deserialize_with = "present")]
    crit: bool,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

impl Header {
    fn read(json: &[u8]) -> Option<Self> {
        // An array would do for serde as well.
        let is_object = json.trim_ascii_start().first() == Some(&b'{');
        serde_json::from_slice(json).ok().filter(|_| is_object)
    }
}

/// Verifies a token at `now_s`, in seconds since the epoch. What it claims costs less to look at than its signature,
/// and comes first.
///
/// # Errors
///
/// [`Refused`] where it proves nothing.
pub fn verify(
    token: &[u8],
    keys: &KeySet,
    expected: &Expected,
    now_s: u64,
) -> Result<Claims, Refused> {
    let parts = Parts::of(token).ok_or(Refused::Invalid)?;
    let header = Header::read(&decoded(parts.header)?).ok_or(Refused::Invalid)?;
    let algorithm = Algorithm::ALL
        .into_iter()
        .find(|known| known.as_str() == header.alg && expected.algorithms.contains(known))
        .filter(|_| !header.crit)
        .ok_or(Refused::Invalid)?;
    let payload = serde_json::from_slice(&decoded(parts.payload)?);
    let claims: Map<String, Value> = payload.map_err(|_| Refused::Invalid)?;
    let valid_s = validity(&claims, expected.leeway_s)?;
    if now_s >= valid_s.1 {
        return Err(Refused::Expired);
    }
    if now_s < valid_s.0 || !expected.are_met_by(&claims) {
        return Err(Refused::Invalid);
    }
    let signature = decoded(parts.signature)?;
    let mut candidates = keys.candidates(algorithm, header.kid.as_deref()).peekable();
    if candidates.peek().is_none() {
        return Err(Refused::UnknownKey);
    }
    let signed = candidates
        .take(TRIED_MAX)
        .any(|key| key.has_signed(parts.signed, &signature));
    if !signed {
        return Err(Refused::Invalid);
    }
    Ok(Claims { claims, valid_s })
}

/// A token as it is sent: three parts in base64url, the first two of which are signed as they stand.
struct Parts<'t> {
    header: &'t [u8],
    payload: &'t [u8],
    signature: &'t [u8],
    signed: &'t [u8],
}

impl<'t> Parts<'t> {
    fn of(token: &'t [u8]) -> Option<Self> {
        if token.len() > LENGTH_MAX {
            return None;
        }
        let mut parts = token.split(|byte| *byte == b'.');
        let (header, payload, signature) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let signed = token.get(..header.len() + 1 + payload.len())?;
        Some(Self {
            header,
            payload,
            signature,
            signed,
        })
    }
}

/// Without padding, without line breaks, and in the one spelling that there is.
fn decoded(part: &[u8]) -> Result<Vec<u8>, Refused> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| Refused::Invalid)
}

/// When it holds. A token says when it is over, and what it says of time is a number.
fn validity(claims: &Map<String, Value>, leeway_s: u64) -> Result<(u64, u64), Refused> {
    let time = |value: &Value| seconds(value).ok_or(Refused::Invalid);
    let over = claims.get("exp").ok_or(Refused::Invalid).and_then(time)?;
    let from = claims.get("nbf").map_or(Ok(0), time)?;
    Ok((from.saturating_sub(leeway_s), over.saturating_add(leeway_s)))
}

/// Seconds since the epoch; a fraction of one is left out.
fn seconds(value: &Value) -> Option<u64> {
    let fraction = || {
        let seconds = std::time::Duration::try_from_secs_f64(value.as_f64()?);
        Some(seconds.ok()?.as_secs())
    };
    value.as_u64().or_else(fraction)
}

impl Expected {
    fn are_met_by(&self, claims: &Map<String, Value>) -> bool {
        let is_text = |value: &Value, text: &str| value.as_str() == Some(text);
        let issued = match (&self.issuer, claims.get("iss")) {
            (None, _) => true,
            (Some(issuer), Some(found)) => is_text(found, issuer),
            (Some(_), None) => false,
        };
        let is_ours = |value: &Value| self.audiences.iter().any(|ours| is_text(value, ours));
        let meant_for_us = match claims.get("aud") {
            _ if self.audiences.is_empty() => true,
            Some(Value::Array(several)) => several.iter().any(is_ours),
            Some(one) => is_ours(one),
            None => false,
        };
        issued && meant_for_us
    }
}

impl Claims {
    /// What it claims under this name: a text, a whole number, or true or false. Empty is nothing.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<String> {
        match self.claims.get(name)? {
            Value::String(text) if !text.is_empty() => Some(text.clone()),
            Value::Bool(flag) => Some(flag.to_string()),
            Value::Number(number) if number.is_i64() || number.is_u64() => Some(number.to_string()),
            _ => None,
        }
    }
}
