//! Paths and hosts as written: what `route` reads, in the one spelling that requests are normalised to.

use crate::config::units::Refusal;
use crate::route::pattern::{Host, Path, PatternError};

/// Reads `/v1/users/{id}/*`.
pub(super) fn path(text: &str) -> Result<Path, Refusal> {
    let read = Path::parse(text).map_err(|error| match error {
        PatternError::Star(_) => star(text),
        error => Refusal::new(format!("`{text}`: {error}"), advice(text, &error)),
    })?;
    // A needless escape would hide from whoever looks for the path in the file.
    let canonical = canonical(text);
    if canonical != text {
        return Err(Refusal::new(
            format!("`{text}` spells `{canonical}` otherwise than requests are read"),
            format!("write \"{canonical}\""),
        ));
    }
    Ok(read)
}

/// Reads `api.example.com` or `*.example.com`.
pub(super) fn host(text: &str) -> Result<Host, Refusal> {
    Host::parse(text).map_err(|error| {
        let bare = text.split_once("://").map_or(text, |(_, rest)| rest);
        let bare = bare.split('/').next().unwrap_or_default();
        let name = match bare.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
            _ => bare,
        };
        let help = if name != text && Host::parse(name).is_ok() {
            format!("write \"{name}\"")
        } else {
            "write \"api.example.com\", or \"*.example.com\" for all below it".to_owned()
        };
        let why = match error.to_string() {
            names_it if names_it.starts_with('`') => names_it,
            why => format!("`{text}`: {why}"),
        };
        Refusal::new(why, help)
    })
}

/// A `*` that is not a whole last segment: `/v1/**`, `/v1/*/x`, `/v1/a*`.
fn star(text: &str) -> Refusal {
    let before = text.split('*').next().unwrap_or_default();
    let above = before.rsplit_once('/').map_or("", |(above, _)| above);
    let below = format!("write \"{above}/*\" for all below");
    let one_segment = text.replacen("/*/", "/{name}/", 1);
    let help = if Path::parse(&one_segment).is_ok() {
        format!("{below}, or \"{one_segment}\" for one segment of any value")
    } else {
        below
    };
    Refusal::new(
        format!("`{text}`: a `*` stands for all that follows, as the last segment"),
        help,
    )
}

fn advice(text: &str, error: &PatternError) -> String {
    match error {
        PatternError::NotFromRoot if Path::parse(&format!("/{text}")).is_ok() => {
            format!("write \"/{text}\"")
        }
        PatternError::EmptySegment => {
            let single: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
            format!("write \"/{}\"", single.join("/"))
        }
        PatternError::TwiceNamed(_) => "give each parameter a name of its own".to_owned(),
        // The others say it themselves.
        _ => String::new(),
    }
}

/// The path with no more escapes than it needs, and those in upper case.
fn canonical(text: &str) -> String {
    let mut canonical = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        canonical.push_str(before);
        let digits = after.get(..2).unwrap_or_default();
        rest = after.get(2..).unwrap_or_default();
        match u8::from_str_radix(digits, 16) {
            Ok(byte)
                if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') =>
            {
                canonical.push(char::from(byte));
            }
            _ => {
                canonical.push('%');
                canonical.push_str(&digits.to_ascii_uppercase());
            }
        }
    }
    canonical + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_spelling() {
        for text in ["/", "/*", "/v1/{id}/*", "/a%20b", "/a%2Fb", "/%C3%A9"] {
            assert!(path(text).is_ok(), "{text}");
        }
        for (text, advice) in [
            ("/%6Cogin", "\"/login\""),
            ("/a%2fb", "\"/a%2Fb\""),
            ("v1/login", "\"/v1/login\""),
            ("/a//b", "\"/a/b\""),
            ("/a/*/b", "\"/a/*\" for all below, or \"/a/{name}/b\""),
            ("/a/**", "\"/a/*\""),
            ("/**", "\"/*\""),
            ("/a/b*", "\"/a/*\""),
            ("/a/*/b/*/c", "\"/a/*\""),
            ("/{a}/{a}", "of its own"),
            ("/%", ""),
            ("/%é1", ""),
            ("", "write \"/\""),
        ] {
            match path(text) {
                Err(refusal) => assert!(
                    refusal.help.as_deref().unwrap_or_default().contains(advice),
                    "{text}: {refusal:?}"
                ),
                Ok(read) => assert_eq!(None, Some(read), "{text}"),
            }
        }
    }

    #[test]
    fn hosts_come_with_advice() {
        assert_eq!(
            host("API.Example.com"),
            Ok(Host::Exact("api.example.com".into()))
        );
        for (text, advice) in [
            ("a.example:80", "\"a.example\""),
            ("http://a.example/x", "\"a.example\""),
            ("https://a.example:443", "\"a.example\""),
            ("*", "for all below"),
            ("a..b", "for all below"),
        ] {
            match host(text) {
                Err(refusal) => assert!(
                    refusal.help.as_deref().unwrap_or_default().contains(advice),
                    "{text}: {refusal:?}"
                ),
                Ok(read) => assert_eq!(None, Some(read), "{text}"),
            }
        }
    }
}
