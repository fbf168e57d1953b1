//! Usage handed over a restart, so that it forgives nobody: a file that this gateway wrote itself, whole, or nothing.
//!
//! The file is `tollgate usage 1`, a mark of 32 bytes, and the states. The mark is a hash of the states under the key
//! secret: states of another secret, of another format, or damaged ones are refused.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::key::Key;
use crate::check::KeySecret;
use crate::decide::{State, Timestamp};

/// What the file begins with; the number changes with the format.
const HEAD: &[u8] = b"tollgate usage 1\n";

/// The largest file that is read.
const SIZE_MAX: u64 = 4 << 30;

const MARK_LENGTH: usize = 32;

/// A state and whose it is.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Kept {
    pub(super) key: Key,
    pub(super) state: State,
    pub(super) fresh_at: Timestamp,
}

/// Why a snapshot is not taken over.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// It cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is none of ours, of another secret, or damaged.
    #[error("it was not written by a gateway with this key secret, or is damaged")]
    Foreign,
}

/// These states as the bytes of a snapshot.
pub(super) fn packed(secret: &KeySecret, kept: &[Kept]) -> Result<Vec<u8>, SnapshotError> {
    let states = postcard::to_stdvec(kept).map_err(|_| SnapshotError::Foreign)?;
    Ok([HEAD, &secret.mark(&states), &states].concat())
}

/// The states of a snapshot's bytes.
pub(super) fn unpacked(secret: &KeySecret, bytes: &[u8]) -> Result<Vec<Kept>, SnapshotError> {
    let marked = bytes.strip_prefix(HEAD).ok_or(SnapshotError::Foreign)?;
    let (mark, states) = marked
        .split_at_checked(MARK_LENGTH)
        .ok_or(SnapshotError::Foreign)?;
    if secret.mark(states) != *mark {
        return Err(SnapshotError::Foreign);
    }
    postcard::from_bytes(states).map_err(|_| SnapshotError::Foreign)
}

/// Writes the file anew: a reader sees the old one or the new one, and nobody else may read it.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), SnapshotError> {
    let fresh = path.with_extension("fresh");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&fresh)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&fresh, path)?;
    Ok(())
}

/// Reads the file.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, SnapshotError> {
    let mut bytes = Vec::new();
    File::open(path)?.take(SIZE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}
