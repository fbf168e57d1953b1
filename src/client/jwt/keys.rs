//! The keys that tokens are verified with: a shared secret, or the public keys of a JWK set (RFC 7517).

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents,
    UnparsedPublicKey,
};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

/// The most keys of a set. Who has more would have each token tried with many.
pub const KEYS_MAX: usize = 100;

/// The shortest secret, in bytes: as long as its hash (RFC 7518 section 3.2).
pub const SECRET_MIN: usize = 32;

/// How a token is signed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Algorithm {
    /// HMAC with SHA-256, by a shared secret.
    Hs256,
    /// RSA (PKCS #1 v1.5) with SHA-256, of 2048 bits or more.
    Rs256,
    /// ECDSA on P-256 with SHA-256.
    Es256,
    /// Ed25519.
    EdDsa,
}

impl Algorithm {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Hs256, Self::Rs256, Self::Es256, Self::EdDsa];

    /// As a token names it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hs256 => "HS256",
            Self::Rs256 => "RS256",
            Self::Es256 => "ES256",
            Self::EdDsa => "EdDSA",
        }
    }
}

/// Keys, each for one algorithm.
pub struct KeySet(Vec<Key>);

/// A key, and the algorithm that it is for.
pub(super) struct Key {
    id: Option<Box<str>>,
    algorithm: Algorithm,
    material: Material,
}

enum Material {
    Secret(hmac::Key),
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    /// Of another kind, whose algorithm is in it.
    Public(UnparsedPublicKey<Vec<u8>>),
}

/// Why there are no keys.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum BadKeys {
    /// Not a JSON object with an array `keys`.
    #[error("it is not a JWK set: {{ \"keys\": [ … ] }}")]
    NotASet,
    /// None that verifies tokens by an algorithm that we know.
    #[error(
        "none of its keys is an RSA key of 2048 bits or more, a P-256 or an Ed25519 key to verify signatures with"
    )]
    NoneUsable,
    /// More than [`KEYS_MAX`].
    #[error("it has {0} keys; at most {KEYS_MAX} are read")]
    TooMany(usize),
    /// A secret that could be guessed.
    #[error("a secret of {0} bytes is too short for HS256; it takes at least {SECRET_MIN}")]
    ShortSecret(usize),
}

/// As a set is written. Members that we do not know are nothing to us.
#[derive(Deserialize)]
struct Jwks {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct Jwk {
    kty: String,
    #[serde(default)]
    r#use: Option<String>,
    #[serde(default)]
    key_ops: Option<Vec<String>>,
    #[serde(default)]
    alg: Option<String>,
    #[serde(default)]
    kid: Option<String>,
    #[serde(default)]
    crv: Option<String>,
    #[serde(default)]
    n: Option<String>,
    #[serde(default)]
    e: Option<String>,
    #[serde(default)]
    x: Option<String>,
    #[serde(default)]
    y: Option<String>,
}

impl KeySet {
    /// A secret that issuer and gateway share, for HS256.
    ///
    /// # Errors
    ///
    /// [`BadKeys::ShortSecret`].
    pub fn of_secret(secret: &[u8]) -> Result<Self, BadKeys> {
        if secret.len() < SECRET_MIN {
            return Err(BadKeys::ShortSecret(secret.len()));
        }
        Ok(Self(vec![Key {
            id: None,
            algorithm: Algorithm::Hs256,
            material: Material::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret)),
        }]))
    }

    /// The public keys of a JWK set. A key of another kind, or for another use, is left out, as RFC 7517 asks; so is a
    /// shared secret, which has no place among public keys.
    ///
    /// # Errors
    ///
    /// [`BadKeys`] where no key is left.
    pub fn of_jwks(text: &[u8]) -> Result<Self, BadKeys> {
        let set: Jwks = serde_json::from_slice(text).map_err(|_| BadKeys::NotASet)?;
        if set.keys.len() > KEYS_MAX {
            return Err(BadKeys::TooMany(set.keys.len()));
        }
        let keys: Vec<Key> = set
            .keys
            .into_iter()
            .filter_map(|jwk| Key::of(serde_json::from_value(jwk).ok()?))
            .collect();
        if keys.is_empty() {
            return Err(BadKeys::NoneUsable);
        }
        Ok(Self(keys))
    }

    /// No key at all: nothing is verified.
    #[must_use]
    pub const fn none() -> Self {
        Self(Vec::new())
    }

    /// How many keys there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The keys for this algorithm that go by this name, or by none.
    pub(super) fn candidates(
        &self,
        algorithm: Algorithm,
        id: Option<&str>,
    ) -> impl Iterator<Item = &Key> {
        self.0.iter().filter(move |key| {
            let named = match (id, &key.id) {
                (Some(asked), Some(known)) => asked == &**known,
                _ => true,
            };
            named && key.algorithm == algorithm
        })
    }
}

impl Key {
    fn of(jwk: Jwk) -> Option<Self> {
        let signs = jwk.r#use.as_deref().is_none_or(|used| used == "sig");
        let verifies = (jwk.key_ops.as_ref())
            .is_none_or(|operations| operations.iter().any(|operation| operation == "verify"));
        let (algorithm, material) = match (jwk.kty.as_str(), jwk.crv.as_deref()) {
            ("RSA", _) => (Algorithm::Rs256, rsa(&jwk)?),
            ("EC", Some("P-256")) => (Algorithm::Es256, point(&jwk)?),
            ("OKP", Some("Ed25519")) => (Algorithm::EdDsa, edwards(&jwk)?),
            _ => return None,
        };
        // RFC 9864 gives EdDSA on this curve a name of its own.
        let fits = match jwk.alg.as_deref() {
            None => true,
            Some("Ed25519") => algorithm == Algorithm::EdDsa,
            Some(alg) => alg == algorithm.as_str(),
        };
        (signs && verifies && fits).then_some(Self {
            id: jwk.kid.map(Into::into),
            algorithm,
            material,
        })
    }

    /// Whether `signature` is this key's, of `signed`.
    pub(super) fn has_signed(&self, signed: &[u8], signature: &[u8]) -> bool {
        match &self.material {
            Material::Secret(key) => hmac::verify(key, signed, signature).is_ok(),
            Material::Rsa(key) => key
                .verify(&RSA_PKCS1_2048_8192_SHA256, signed, signature)
                .is_ok(),
            Material::Public(key) => key.verify(signed, signature).is_ok(),
        }
    }
}

/// A modulus of 2048 to 8192 bits, and an exponent.
fn rsa(jwk: &Jwk) -> Option<Material> {
    let number = |text: &Option<String>| {
        let bytes = bytes(text.as_deref())?;
        let leading = bytes.iter().take_while(|byte| **byte == 0).count();
        // As it should be written anyway, and as it is verified with.
        bytes.get(leading..).map(<[u8]>::to_vec)
    };
    let (n, e) = (number(&jwk.n)?, number(&jwk.e)?);
    ((256..=1024).contains(&n.len()) && (1..=4).contains(&e.len()))
        .then_some(Material::Rsa(RsaPublicKeyComponents { n, e }))
}

/// A point, uncompressed.
fn point(jwk: &Jwk) -> Option<Material> {
    let (x, y) = (bytes(jwk.x.as_deref())?, bytes(jwk.y.as_deref())?);
    let whole = [&[4], x.as_slice(), y.as_slice()].concat();
    (x.len() == 32 && y.len() == 32)
        .then(|| Material::Public(UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, whole)))
}

fn edwards(jwk: &Jwk) -> Option<Material> {
    let x = bytes(jwk.x.as_deref())?;
    (x.len() == 32).then(|| Material::Public(UnparsedPublicKey::new(&ED25519, x)))
}

fn bytes(text: Option<&str>) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text?).ok()
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySet({} keys)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 8037, appendix A.
    #[test]
    fn the_example_of_ed25519_is_verified() {
        let jwk = br#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;
        let set = KeySet::of_jwks(jwk).unwrap();
        let signed = b"eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc";
        let signature = bytes(Some(
            "hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijcNR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg",
        ))
        .unwrap();
        let key = set.candidates(Algorithm::EdDsa, None).next().unwrap();
        assert!(key.has_signed(signed, &signature));
        assert!(!key.has_signed(&signed[1..], &signature));
    }
}
