//! What a request sends under a name: in a header field, a cookie or a query parameter. Bytes from outside.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use http::HeaderName;
use http::header::COOKIE;
use percent_encoding::percent_decode;

use crate::request::RequestView;

/// What a request sends under a name. It may be a credential, and does not print.
#[derive(Clone, Eq, PartialEq)]
pub enum Sent<'a> {
    /// This value.
    Value(Cow<'a, [u8]>),
    /// Nothing, or an empty value.
    Missing,
    /// Several values that differ. Which of them the application believes is anyone's guess.
    Ambiguous,
}

impl fmt::Debug for Sent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value(_) => "Value(…)",
            Self::Missing => "Missing",
            Self::Ambiguous => "Ambiguous",
        })
    }
}

/// Where a credential is sent.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Place {
    /// In a header field, alone or behind `Bearer`.
    Header(HeaderName),
    /// In a cookie.
    Cookie(Arc<str>),
    /// In a query parameter.
    Query(Arc<str>),
}

impl Place {
    /// The credential that a request sends here. However it is spelt around it, it is the same one.
    #[must_use]
    pub fn credential<'a>(&self, request: &RequestView<'a>) -> Sent<'a> {
        match self {
            Self::Header(name) => {
                let lines = request.headers.get_all(name).into_iter();
                only(lines.map(|line| Cow::Borrowed(without_scheme(line.as_bytes()))))
            }
            Self::Cookie(name) => only(in_cookies(request, name)),
            Self::Query(name) => only(in_query(request, name)),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Cookie(name) => write!(f, "cookie:{name}"),
            Self::Query(name) => write!(f, "query:{name}"),
        }
    }
}

/// A field's value without the scheme `Bearer` (RFC 6750, in any case) and the spaces around it.
fn without_scheme(line: &[u8]) -> &[u8] {
    const BEARER: &[u8] = b"bearer";
    let line = line.trim_ascii();
    match line.split_at_checked(BEARER.len()) {
        Some((scheme, [])) if scheme.eq_ignore_ascii_case(BEARER) => b"",
        Some((scheme, rest @ [b' ' | b'\t', ..])) if scheme.eq_ignore_ascii_case(BEARER) => {
            rest.trim_ascii_start()
        }
        _ => line,
    }
}

/// The values of a header field, a line each.
pub fn in_header<'a>(
    request: &RequestView<'a>,
    name: &HeaderName,
) -> impl Iterator<Item = Cow<'a, [u8]>> {
    let lines = request.headers.get_all(name).into_iter();
    lines.map(|line| Cow::Borrowed(line.as_bytes().trim_ascii()))
}

/// The values of a cookie.
pub fn in_cookies<'a>(
    request: &RequestView<'a>,
    name: &str,
) -> impl Iterator<Item = Cow<'a, [u8]>> {
    let lines = request.headers.get_all(COOKIE).into_iter();
    cookies(lines.map(http::HeaderValue::as_bytes), name).map(Cow::Borrowed)
}

/// The values of a query parameter, decoded.
pub fn in_query<'a>(request: &RequestView<'a>, name: &str) -> impl Iterator<Item = Cow<'a, [u8]>> {
    queries(request.query.unwrap_or_default(), name)
}

/// The one value that all of these are.
pub fn only<'a>(values: impl IntoIterator<Item = Cow<'a, [u8]>>) -> Sent<'a> {
    let mut values = values.into_iter();
    let Some(first) = values.next() else {
        return Sent::Missing;
    };
    if values.any(|other| other != first) {
        Sent::Ambiguous
    } else if first.is_empty() {
        Sent::Missing
    } else {
        Sent::Value(first)
    }
}

/// The cookies of this name (RFC 6265 section 4.2.1), over all lines. Quotes belong to the value.
fn cookies<'a>(
    lines: impl Iterator<Item = &'a [u8]>,
    name: &str,
) -> impl Iterator<Item = &'a [u8]> {
    let pairs = lines.flat_map(|line| line.split(|b| *b == b';'));
    pairs.filter_map(move |pair| {
        let equals = pair.iter().position(|b| *b == b'=')?;
        let (found, value) = pair.split_at_checked(equals)?;
        (found.trim_ascii() == name.as_bytes())
            .then(|| value.get(1..).unwrap_or_default().trim_ascii())
    })
}

/// The values of this name, decoded as a form is. Other spellings of a name or a value are the same one.
pub(crate) fn queries<'a>(query: &'a str, name: &str) -> impl Iterator<Item = Cow<'a, [u8]>> {
    query.split('&').filter_map(move |pair| {
        let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
        (*form_decode(found) == *name.as_bytes()).then(|| form_decode(value))
    })
}

/// A plus is a space, and `%` begins two hexadecimal digits.
fn form_decode(text: &str) -> Cow<'_, [u8]> {
    if text.contains('+') {
        let spaced = text.replace('+', " ");
        return Cow::Owned(percent_decode(spaced.as_bytes()).collect());
    }
    percent_decode(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_found_among_others() {
        let cases: [(&[&str], &[&str]); 7] = [
            (&["sid=1"], &["1"]),
            (&["a=2; sid=1; sid=3"], &["1", "3"]),
            (&["a=2", "sid=1"], &["1"]),
            (&["asid=2; sid"], &[]),
            (&["sid=\"a b\"; x=1"], &["\"a b\""]),
            (&["sid=a=b"], &["a=b"]),
            (&["sid="], &[""]),
        ];
        for (lines, expected) in cases {
            let found: Vec<_> = cookies(lines.iter().map(|l| l.as_bytes()), "sid").collect();
            let expected: Vec<_> = expected.iter().map(|e| e.as_bytes()).collect();
            assert_eq!(found, expected, "{lines:?}");
        }
    }

    #[test]
    fn queries_are_found_in_every_spelling() {
        let cases: [(&str, &[&[u8]]); 7] = [
            ("user=a", &[b"a"]),
            ("x=1&%75ser=%61&user=b", &[b"a", b"b"]),
            ("user=a+b%2Bc", &[b"a b+c"]),
            ("users=a", &[]),
            ("user", &[b""]),
            ("", &[]),
            ("user=%ff%zz", &[b"\xff%zz"]),
        ];
        for (text, expected) in cases {
            let found: Vec<_> = queries(text, "user").collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn values_that_differ_are_ambiguous_and_equal_ones_are_one() {
        let part = |values: &[&'static str]| {
            only(values.iter().map(|value| Cow::Borrowed(value.as_bytes())))
        };
        assert_eq!(part(&[]), Sent::Missing);
        assert_eq!(part(&["", ""]), Sent::Missing);
        assert_eq!(part(&["a", "a"]), Sent::Value(Cow::Borrowed(b"a")));
        assert_eq!(part(&["a", "b"]), Sent::Ambiguous);
        assert_eq!(part(&["", "a"]), Sent::Ambiguous);
    }

    #[test]
    fn a_credential_is_the_same_however_the_field_is_spelt() {
        for (line, expected) in [
            ("k", "k"),
            ("Bearer k", "k"),
            ("bearer k", "k"),
            ("BEARER   k ", "k"),
            ("Bearer\tk", "k"),
            ("Bearer", ""),
            ("Bearer ", ""),
            ("Bearerk", "Bearerk"),
            // Another scheme's is no key of ours.
            ("Basic k", "Basic k"),
            ("x Bearer k", "x Bearer k"),
        ] {
            let found = without_scheme(line.as_bytes());
            assert_eq!(found, expected.as_bytes(), "{line}");
        }
    }
}
