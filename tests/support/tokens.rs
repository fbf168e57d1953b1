//! Signed tokens, good and forged.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::rsa::{KeyPair as RsaKeyPair, PublicKeyComponents};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
};
use serde_json::{Value, json};

/// Who signs tokens, under this name.
pub(crate) struct Signer {
    pub(crate) id: &'static str,
    key: Key,
}

enum Key {
    Secret(Vec<u8>),
    Rsa(Box<RsaKeyPair>),
    Curve(Box<EcdsaKeyPair>),
    Edwards(Box<Ed25519KeyPair>),
}

impl Signer {
    pub(crate) fn secret(secret: &[u8]) -> Self {
        Self {
            id: "secret",
            key: Key::Secret(secret.to_vec()),
        }
    }

    /// Always the same: they are slow to make.
    pub(crate) fn rsa(id: &'static str) -> Self {
        let text = include_str!("rsa_key.txt").replace('\n', "");
        let key = RsaKeyPair::from_pkcs8(&STANDARD.decode(text).unwrap()).unwrap();
        Self {
            id,
            key: Key::Rsa(Box::new(key)),
        }
    }

    pub(crate) fn curve(id: &'static str) -> Self {
        let random = SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        let key =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, made.as_ref(), &random);
        Self {
            id,
            key: Key::Curve(Box::new(key.unwrap())),
        }
    }

    pub(crate) fn edwards(id: &'static str) -> Self {
        let made = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        Self {
            id,
            key: Key::Edwards(Box::new(Ed25519KeyPair::from_pkcs8(made.as_ref()).unwrap())),
        }
    }

    pub(crate) fn algorithm(&self) -> &'static str {
        match &self.key {
            Key::Secret(_) => "HS256",
            Key::Rsa(_) => "RS256",
            Key::Curve(_) => "ES256",
            Key::Edwards(_) => "EdDSA",
        }
    }

    /// Its signature of these bytes.
    fn signature(&self, signed: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.key {
            Key::Secret(secret) => {
                let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
                hmac::sign(&key, signed).as_ref().to_vec()
            }
            Key::Rsa(key) => {
                let mut signature = vec![0; key.public().modulus_len()];
                key.sign(&RSA_PKCS1_SHA256, &random, signed, &mut signature)
                    .unwrap();
                signature
            }
            Key::Curve(key) => key.sign(&random, signed).unwrap().as_ref().to_vec(),
            Key::Edwards(key) => key.sign(signed).as_ref().to_vec(),
        }
    }

    /// A token that claims this.
    pub(crate) fn token(&self, claims: &Value) -> String {
        self.token_with(
            &json!({ "typ": "JWT", "alg": self.algorithm(), "kid": self.id }),
            claims,
        )
    }

    /// The same, with a header of one's own.
    pub(crate) fn token_with(&self, header: &Value, claims: &Value) -> String {
        self.token_of(header.to_string().as_bytes(), claims.to_string().as_bytes())
    }

    /// Of any bytes.
    pub(crate) fn token_of(&self, header: &[u8], claims: &[u8]) -> String {
        let signed = format!("{}.{}", encoded(header), encoded(claims));
        let signature = self.signature(signed.as_bytes());
        format!("{signed}.{}", encoded(&signature))
    }

    /// What others verify with.
    pub(crate) fn jwk(&self) -> Value {
        let mut jwk = match &self.key {
            Key::Secret(secret) => json!({ "kty": "oct", "k": encoded(secret) }),
            Key::Rsa(key) => {
                let public: PublicKeyComponents<Vec<u8>> = key.public().into();
                json!({ "kty": "RSA", "n": encoded(&public.n), "e": encoded(&public.e) })
            }
            Key::Curve(key) => {
                let point = key.public_key().as_ref();
                json!({ "kty": "EC", "crv": "P-256", "x": encoded(&point[1..33]), "y": encoded(&point[33..]) })
            }
            Key::Edwards(key) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": encoded(key.public_key().as_ref()) })
            }
        };
        jwk["kid"] = self.id.into();
        jwk["alg"] = self.algorithm().into();
        jwk["use"] = "sig".into();
        jwk
    }

    /// Every spelling of its public key that somebody may take for a secret.
    pub(crate) fn public_key_as_secrets(&self) -> Vec<Vec<u8>> {
        let jwk = self.jwk();
        let mut secrets = vec![
            jwk.to_string().into_bytes(),
            json!({ "keys": [jwk] }).to_string().into_bytes(),
        ];
        for member in ["n", "x", "y"] {
            if let Some(text) = jwk[member].as_str() {
                secrets.push(text.as_bytes().to_vec());
                secrets.push(URL_SAFE_NO_PAD.decode(text).unwrap());
            }
        }
        if let Key::Rsa(key) = &self.key {
            let pkcs1 = key.public().as_ref();
            // The same in a SubjectPublicKeyInfo, of 2048 bits.
            let spki = [SPKI_OF_RSA_2048, pkcs1].concat();
            for (name, der) in [("RSA PUBLIC KEY", pkcs1), ("PUBLIC KEY", &spki)] {
                let text = STANDARD.encode(der);
                let lines = text.as_bytes().chunks(64).map(String::from_utf8_lossy);
                let lines = lines.collect::<Vec<_>>().join("\n");
                let pem = format!("-----BEGIN {name}-----\n{lines}\n-----END {name}-----\n");
                secrets.extend([
                    der.to_vec(),
                    text.into_bytes(),
                    pem.trim_end().as_bytes().to_vec(),
                    pem.into_bytes(),
                ]);
            }
        }
        secrets
    }
}

const SPKI_OF_RSA_2048: &[u8] =
    b"\x30\x82\x01\x22\x30\x0d\x06\x09\x2a\x86\x48\x86\xf7\x0d\x01\x01\x01\x05\x00\x03\x82\x01\x0f\x00";

/// The public keys of these, as a set.
pub(crate) fn jwks(signers: &[&Signer]) -> String {
    let keys: Vec<Value> = signers.iter().map(|signer| signer.jwk()).collect();
    json!({ "keys": keys }).to_string()
}

pub(crate) fn encoded(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}
