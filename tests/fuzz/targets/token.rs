//! Any bytes as a token, and any as the keys that it is verified with.
//!
//! An input is the token, and behind a line's end a JWK set.

use std::sync::OnceLock;

use tollgate::client::jwt::keys::KEYS_MAX;
use tollgate::client::jwt::{Algorithm, Expected, KeySet, verify};

/// RFC 7515, appendix A.3, and RFC 8037, appendix A.2.
const KEYS: &str = r#"{"keys":[
    {"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"},
    {"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

/// All that was ever signed with them and is a token.
const SIGNED: &str = "eyJhbGciOiJFUzI1NiJ9.\
    eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ.";

/// A second before that token ends.
const NOW_S: u64 = 1_300_819_379;

/// What is believed was signed, and no set of keys is larger than it may be.
pub(super) fn token(data: &[u8]) {
    static KNOWN: OnceLock<KeySet> = OnceLock::new();
    let known = KNOWN.get_or_init(|| KeySet::of_jwks(KEYS.as_bytes()).unwrap());
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let (token, keys) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let anybody = Expected {
        algorithms: Box::new(Algorithm::ALL),
        ..Expected::default()
    };
    if let Ok(claims) = verify(token, known, &anybody, NOW_S) {
        assert!(token.starts_with(SIGNED.as_bytes()));
        assert_eq!(claims.get("iss").as_deref(), Some("joe"));
    }
    if let Ok(keys) = KeySet::of_jwks(keys) {
        assert!((1..=KEYS_MAX).contains(&keys.len()));
        let _ = verify(token, &keys, &anybody, NOW_S);
    }
}
