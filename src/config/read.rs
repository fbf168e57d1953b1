//! Reads regular files, up to a size: a pipe may have no beginning and a device no end, and no file of a configuration
//! is that large.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The largest file that is read.
const SIZE_MAX: u64 = 16 << 20;

/// A whole file.
pub(super) fn bytes(path: &Path) -> io::Result<Vec<u8>> {
    // To open a pipe waits until somebody writes to it.
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?
        .take(SIZE_MAX + 1)
        .read_to_end(&mut bytes)?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > SIZE_MAX) {
        return Err(io::Error::other("it is larger than 16 MiB"));
    }
    Ok(bytes)
}

/// A whole file of text.
pub(super) fn text(path: &Path) -> io::Result<String> {
    bytes(path).and_then(utf8)
}

/// Bytes as text.
pub(super) fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8 text"))
}
