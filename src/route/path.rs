//! The path as routes see it: one spelling for every way to write it.
//!
//! A limit is only as good as the reading of the path that leads to it. So one endpoint's spellings are one path here:
//! escapes are decoded, dot segments resolved, empty segments dropped, a trailing slash ignored.
//!
//! Upstreams differ on three further questions, and who asks them may choose the spelling. Is `%2F` (or `\`, `%5C`) a
//! slash? Is `;x=1` part of its segment? Does `..` take back an empty segment? Such a path has several readings, and
//! takes the most specific route that any of them matches: `/v1%2Flogin` and `/v1/login;x` meet the limits of
//! `/v1/login`, while `/projects/group%2Fname` still is a project of that name. Dot segments that only some upstreams
//! would see (`..%2F`, `..;`) are refused. What is forwarded is the path as it was sent, without dot segments
//! ([`resolved`]).
//!
//! Letter case is folded where routes compare (see [`super::pattern`]). What isn't seen through: an upstream that
//! decodes twice (`%252F`), or that has further names for one endpoint (`/login.json`). Give such names a route, or the
//! limit to a wider one.

use std::borrow::Cow;

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
    /// A `.` or `..` that is one only to some: behind an escaped slash or a backslash, or before a `;`. With it the
    /// caller would choose which route is limited and which is served.
    #[error("the path has a . or .. next to an escaped slash, a backslash or a parameter")]
    HiddenDots,
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
        let text = decode(raw)?;
        let apart = |c: char| reading.encoded_slashes && matches!(c, '/' | '\\');
        for part in text.split(apart) {
            let part = without_params(part, reading);
            if part.len() < text.len() && is_dots(part) {
                return Err(PathError::HiddenDots);
            }
            push(&mut segments, part, reading);
        }
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
fn push(segments: &mut Vec<String>, segment: &str, reading: Reading) {
    match segment {
        "." => {}
        ".." => drop(segments.pop()),
        "" if !reading.empty_counts => {}
        _ => segments.push(segment.to_owned()),
    }
}

fn is_dots(segment: &str) -> bool {
    matches!(segment, "." | "..")
}

/// The path to forward: without dot segments, every other byte as it was sent.
///
/// An upstream that doesn't resolve them would serve another path than the one that was limited. Expects a path that
/// [`Normalised::new`] takes.
#[must_use]
pub fn resolved(raw_path: &str) -> Cow<'_, str> {
    let parts = || raw_path.strip_prefix('/').unwrap_or(raw_path).split('/');
    if !parts().any(|raw| decode(raw).is_ok_and(|segment| is_dots(&segment))) {
        return Cow::Borrowed(raw_path);
    }
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_in_dots = false;
    for raw in parts() {
        let segment = decode(raw).unwrap_or_default();
        ends_in_dots = is_dots(&segment);
        match &*segment {
            "." => {}
            ".." => drop(kept.pop()),
            _ => kept.push(raw),
        }
    }
    if ends_in_dots {
        kept.push("");
    }
    Cow::Owned(format!("/{}", kept.join("/")))
}

/// What follows `prefix` in a path, however that is spelled; as sent, and at least `/`. `None` if the path begins
/// otherwise.
#[must_use]
pub fn without_prefix<'p>(raw_path: &'p str, prefix: &str) -> Option<&'p str> {
    let mut rest = raw_path;
    for expected in prefix.split('/').filter(|segment| !segment.is_empty()) {
        rest = rest.trim_start_matches('/');
        let end = rest.find('/').unwrap_or(rest.len());
        let (raw, after) = rest.split_at_checked(end)?;
        if !decode(raw).ok()?.eq_ignore_ascii_case(expected) {
            return None;
        }
        rest = after;
    }
    Some(if rest.is_empty() { "/" } else { rest })
}

/// Decodes the escapes of one segment.
pub(super) fn decode(raw: &str) -> Result<Cow<'_, str>, PathError> {
    if !raw.contains('%') {
        return Ok(Cow::Borrowed(raw));
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
    Ok(Cow::Owned(readable(bytes)))
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
