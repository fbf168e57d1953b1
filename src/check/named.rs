//! Whom an operator means, who names the parts of a key: the same entity as that of the caller's requests.

use std::borrow::Cow;

use thiserror::Error;

use super::entity::{Entity, KeySecret, KeySource, hashed};
use super::read;
use crate::client::address::Prefixes;
use crate::client::sent::Sent;

/// A part of a key, and what it is: `ip=192.0.2.1`, `header:x-user=bob`.
pub type NamedPart = (KeySource, String);

/// Why it cannot be said who is meant.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum NotNamed {
    /// A part of the key is not named.
    #[error("the key has `{0}`, which is not named")]
    Lacks(KeySource),
    /// What is named is no part of the key.
    #[error("`{0}` is no part of the key")]
    NoPart(KeySource),
    /// It is named twice.
    #[error("`{0}` is named twice")]
    Twice(KeySource),
    /// An address is expected.
    #[error("what is named for `{0}` is not an IP address")]
    NotAnAddress(KeySource),
}

/// Whom `key` counts a caller as that has these parts. One with an empty value is missing in the caller's requests.
///
/// # Errors
///
/// [`NotNamed`] where the parts are not those of the key.
pub fn named(
    key: &[KeySource],
    parts: &[NamedPart],
    prefixes: Prefixes,
    secret: &KeySecret,
) -> Result<Entity, NotNamed> {
    for (place, (source, _)) in parts.iter().enumerate() {
        if !key.contains(source) {
            return Err(NotNamed::NoPart(source.clone()));
        }
        if parts.iter().take(place).any(|(other, _)| other == source) {
            return Err(NotNamed::Twice(source.clone()));
        }
    }
    let read: Vec<Sent<'_>> = key
        .iter()
        .map(|source| part(source, parts, prefixes))
        .collect::<Result<_, _>>()?;
    Ok(hashed(key.iter().zip(read), secret))
}

fn part<'a>(
    source: &KeySource,
    parts: &'a [NamedPart],
    prefixes: Prefixes,
) -> Result<Sent<'a>, NotNamed> {
    if *source == KeySource::Global {
        return Ok(Sent::Value(Cow::Borrowed(b"")));
    }
    let (_, value) = parts
        .iter()
        .find(|(named, _)| named == source)
        .ok_or_else(|| NotNamed::Lacks(source.clone()))?;
    if value.is_empty() {
        return Ok(Sent::Missing);
    }
    read::typed(source, value, prefixes).ok_or_else(|| NotNamed::NotAnAddress(source.clone()))
}
