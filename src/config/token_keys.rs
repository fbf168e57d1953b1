//! The files of the keys that tokens are verified with. They are read with the configuration, and again by themselves
//! when they change.

use std::io;
use std::path::Path;

use thiserror::Error;

use super::key_file::Seen;
use crate::client::jwt::{BadKeys, KeySet};

/// What such a file holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TokenFile {
    /// Public keys, as a JWK set.
    Jwks,
    /// A secret, for HS256.
    Secret,
}

/// Why a file gives no keys, without a word of what it holds.
#[derive(Debug, Error)]
pub enum NoKeys {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unread(#[from] io::Error),
    /// It can, and holds none.
    #[error(transparent)]
    Bad(#[from] BadKeys),
}

/// Reads the keys in the file at `path`, or says why there are none; and what was read.
pub fn read_token_keys(path: &Path, kind: TokenFile) -> (Result<KeySet, NoKeys>, Seen) {
    let (seen, bytes) = Seen::read(path);
    let keys = bytes.map_err(NoKeys::from).and_then(|bytes| {
        let keys = match kind {
            TokenFile::Jwks => KeySet::of_jwks(&bytes),
            // A file that was written by hand ends with a line break, which is not of the secret.
            TokenFile::Secret => KeySet::of_secret(without_line_end(&bytes)),
        };
        Ok(keys?)
    });
    (keys, seen)
}

/// A secret may be any bytes; an editor ends the file with a line break.
fn without_line_end(bytes: &[u8]) -> &[u8] {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    bytes.strip_suffix(b"\r").unwrap_or(bytes)
}
