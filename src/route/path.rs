//! The path as routes see it: one spelling for every way to write it.
//!
//! A limit is only as good as the reading of the path that leads to it. So one endpoint's spellings are one path here:
//! escapes are decoded, dot segments resolved, empty segments dropped, a trailing slash ignored.
//!
//! Upstreams differ on four further questions, and who asks them may choose the spelling. Is `%2F` (or `\`, `%5C`) a
//! slash? Is `;x=1` part of its segment? Does `..` take back an empty segment? Such a path has several readings, and
//! takes the most specific route that any of them matches: `/v1%2Flogin` and `/v1/login;x` meet the limits of
//! `/v1/login`, while `/projects/group%2Fname` still is a project of that name. The forwarded path stays as it was sent.
//!
//! Letter case is folded where routes compare (see [`super::pattern`]). What isn't seen through: an upstream that decodes
//! twice (`%252F`), or that has further names for one endpoint (`/login.json`). Give such names a route, or the limit to
//! a wider one.

use thiserror::Error;

/// The most segments of a path, by whatever may part them: to read one in several ways must not keep us busy.
pub const SEGMENTS_MAX: usize = 256;

/// A path normalised for matching: no dot segments, no empty segments, escapes decoded.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Normalised {
    /// The segments, decoded: a `/` in one was escaped. Bytes that are no UTF-8 stay escaped, in upper case.
    pub segments: Vec<String>,
    /// What an upstream may read instead.
    others: Vec<Vec<String>>,
}

/// Why a path is answered with 400.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum PathError {
    /// `%` without two hexadecimal digits.
    #[error("the path has a % that two hexadecimal digits don't follow")]
    Escape,
    /// A control character, plain or escaped: some upstreams end the path there.
    #[error("the path has a control character")]
    Control,
    /// A space or `#`, which no path has unescaped: some upstreams end the path there.
    #[error("the path has a space or # that isn't escaped")]
    Delimiter,
    /// More than [`SEGMENTS_MAX`] segments.
    #[error("the path has more than {SEGMENTS_MAX} segments")]
    TooManySegments,
}

/// How an upstream may read what leaves room.
#[derive(Clone, Copy, Debug, Default)]
struct Reading {
    /// `%2F`, `%5C` and `\` part segments.
    encoded_slashes: bool,
    /// What follows a `;` is no part of the segment.
    without_params: bool,
    /// An empty segment is one that `..` takes back.
    empty_counts: bool,
}

impl Normalised {
    /// Normalises a path as it was sent.
    ///
    /// # Errors
    ///
    /// [`PathError`] for a path that upstreams may cut short or refuse: answer 400.
    pub fn new(raw_path: &str) -> Result<Self, PathError> {
        check(raw_path)?;
        let segments = read(raw_path, Reading::default())?;
        let mut others = Vec::new();
        for reading in doubts(raw_path) {
            let other = read(raw_path, reading)?;
            if other != segments && !others.contains(&other) {
                others.push(other);
            }
        }
        Ok(Self { segments, others })
    }

    /// Every reading of the path, the literal one first.
    pub(super) fn readings(&self) -> impl Iterator<Item = &[String]> {
        std::iter::once(&self.segments)
            .chain(&self.others)
            .map(Vec::as_slice)
    }
}

pub(super) fn check(raw_path: &str) -> Result<(), PathError> {
    if raw_path.bytes().any(|b| b.is_ascii_control()) {
        return Err(PathError::Control);
    }
    if raw_path.contains([' ', '#']) {
        return Err(PathError::Delimiter);
    }
    let plain = raw_path.bytes().filter(|b| matches!(b, b'/' | b'\\'));
    let escaped = escapes(raw_path).filter(|digits| is_slash(digits));
    if plain.count().saturating_add(escaped.count()) > SEGMENTS_MAX {
        return Err(PathError::TooManySegments);
    }
    Ok(())
}

/// The readings beside the literal one: none for nearly every path.
fn doubts(raw_path: &str) -> impl Iterator<Item = Reading> {
    let escaped = |digits: &[u8]| escapes(raw_path).any(|it| it.eq_ignore_ascii_case(digits));
    let slashes = raw_path.contains('\\') || escapes(raw_path).any(is_slash);
    let params = raw_path.contains(';') || escaped(b"3b");
    let dots = raw_path.contains("..") || escaped(b"2e");
    // Empty segments matter only where there is a `..` to take them back; the other readings can make some.
    let empties = dots && (slashes || params || raw_path.contains("//"));
    let either = |doubt: bool| [false, true].into_iter().filter(move |&it| doubt || !it);
    either(slashes)
        .flat_map(move |s| {
            either(params).flat_map(move |p| either(empties).map(move |e| (s, p, e)))
        })
        .skip(1)
        .map(|(encoded_slashes, without_params, empty_counts)| Reading {
            encoded_slashes,
            without_params,
            empty_counts,
        })
}

/// The two bytes behind each percent sign.
fn escapes(raw_path: &str) -> impl Iterator<Item = &[u8]> {
    let triples = raw_path.as_bytes().windows(3);
    triples.filter_map(|triple| triple.strip_prefix(b"%"))
}

fn is_slash(digits: &[u8]) -> bool {
    digits.eq_ignore_ascii_case(b"2f") || digits.eq_ignore_ascii_case(b"5c")
}

fn read(raw_path: &str, reading: Reading) -> Result<Vec<String>, PathError> {
    let mut segments = Vec::new();
    let from_root = raw_path.strip_prefix('/').unwrap_or(raw_path);
    for raw in from_root.split('/') {
        let mut text = decode(raw)?;
        if reading.encoded_slashes {
            // Parameters end at the escaped slash when that is a slash.
            for part in text.split(['/', '\\']) {
                push(&mut segments, without_params(part, reading), reading);
            }
            continue;
        }
        let kept = without_params(&text, reading).len();
        text.truncate(kept);
        push(&mut segments, text, reading);
    }
    segments.retain(|segment| !segment.is_empty());
    Ok(segments)
}

fn without_params(segment: &str, reading: Reading) -> &str {
    match segment.split_once(';') {
        Some((name, _params)) if reading.without_params => name,
        _ => segment,
    }
}

/// One segment further, or back. Above the root is the root.
fn push(segments: &mut Vec<String>, segment: impl Into<String> + AsRef<str>, reading: Reading) {
    match segment.as_ref() {
        "." => {}
        ".." => {
            segments.pop();
        }
        "" if !reading.empty_counts => {}
        _ => segments.push(segment.into()),
    }
}

/// Decodes the escapes of one segment.
pub(super) fn decode(raw: &str) -> Result<String, PathError> {
    if !raw.contains('%') {
        return Ok(raw.to_owned());
    }
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(hex).ok_or(PathError::Escape);
        let decoded = digit()? << 4 | digit()?;
        if decoded.is_ascii_control() {
            return Err(PathError::Control);
        }
        bytes.push(decoded);
    }
    Ok(readable(bytes))
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit.wrapping_sub(b'0')),
        b'a'..=b'f' => Some(digit.wrapping_sub(b'a' - 10)),
        b'A'..=b'F' => Some(digit.wrapping_sub(b'A' - 10)),
        _ => None,
    }
}

/// The bytes as text; those that are none stay escaped: replaced, they would make one path of many.
fn readable(bytes: Vec<u8>) -> String {
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => error
            .as_bytes()
            .utf8_chunks()
            .flat_map(|chunk| {
                let escaped = chunk.invalid().iter().map(|byte| format!("%{byte:02X}"));
                std::iter::once(chunk.valid().to_owned()).chain(escaped)
            })
            .collect(),
    }
}
