//! Names of keys: `<prefix>:{<entity>}:<policy>:<generation>`, and of its penalty the same with `:penalty`.
//!
//! The entity stands in braces, so that all checks of one entity share a slot of a cluster. It is a keyed hash: nobody
//! reads an address or an API key from the name.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::check::Check;

/// All that is kept of a check: what its policy has counted, and then the penalty beside it, if there is one.
pub fn keys(prefix: &str, check: &Check<'_>) -> impl Iterator<Item = String> {
    std::iter::once(key(prefix, check)).chain(penalty_key(prefix, check))
}

/// The key that keeps the penalty beside `check`, if there is one: in the same slot.
#[must_use]
pub fn penalty_key(prefix: &str, check: &Check<'_>) -> Option<String> {
    let is_beside = check.policy.penalty.is_some();
    is_beside.then(|| key(prefix, check) + ":penalty")
}

/// The key that keeps what `check`'s policy has counted for its entity.
#[must_use]
pub fn key(prefix: &str, check: &Check<'_>) -> String {
    let policy = check.policy;
    let mut key = String::with_capacity(prefix.len() + policy.name.len() + 35);
    key.push_str(prefix);
    key.push_str(":{");
    URL_SAFE_NO_PAD.encode_string(check.entity.0, &mut key);
    key.push_str("}:");
    key.push_str(&policy.name);
    // Writing to a string does not fail.
    let _ = write!(key, ":{:08x}", policy.generation.0);
    key
}
