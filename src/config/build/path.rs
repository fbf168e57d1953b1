//! Path patterns and hosts as written: one spelling each, the one that requests are normalised to.

use std::sync::Arc;

use percent_encoding::percent_decode_str;

use crate::config::key_source::is_identifier;
use crate::config::units::Refusal;
use crate::route::pattern::{Host, Path, Segment};

/// Reads `/v1/users/{id}/*`.
pub(super) fn path(text: &str) -> Result<Path, Refusal> {
    let refuse = |why: &str, help: String| Err(Refusal::new(format!("`{text}` {why}"), help));
    let Some(rest) = text.strip_prefix('/') else {
        return refuse("does not begin with a slash", format!("write \"/{text}\""));
    };
    if text.contains(['?', '#']) {
        return refuse(
            "has more than a path",
            "match the query by `query`".to_owned(),
        );
    }
    if text
        .chars()
        .any(|c| c.is_control() || c == ' ' || c == '\\')
    {
        return refuse(
            "has a character that no path has",
            "write it percent-encoded".to_owned(),
        );
    }
    let (rest, open) = match rest.strip_suffix('*') {
        Some("") => ("", true),
        Some(before) if before.ends_with('/') => (before.trim_end_matches('/'), true),
        _ => (rest, false),
    };
    if rest.contains('*') || (open && text.ends_with("//*")) {
        let help = "write /* at the end for all below, {name} for one segment";
        return refuse("has `*` where it means nothing", help.to_owned());
    }
    if rest.is_empty() {
        return Ok(Path {
            segments: Vec::new(),
            open,
        });
    }
    if rest.ends_with('/') {
        return refuse(
            "ends with a slash, which makes no difference in a request",
            format!(
                "write \"{}\", or \"{}*\" for all below",
                text.trim_end_matches('/'),
                text
            ),
        );
    }
    let mut segments: Vec<Segment> = Vec::new();
    for written in rest.split('/') {
        let segment = segment(written, text)
            .map_err(|(why, help)| Refusal::new(format!("`{text}` {why}"), help))?;
        if let Segment::Param(name) = &segment
            && segments.contains(&segment)
        {
            return refuse(
                &format!("has `{{{name}}}` twice"),
                "give each parameter a name of its own".to_owned(),
            );
        }
        segments.push(segment);
    }
    Ok(Path { segments, open })
}

fn segment(written: &str, path: &str) -> Result<Segment, (String, String)> {
    match written {
        "" => {
            return Err((
                "has an empty segment, which no request has".to_owned(),
                "write single slashes".to_owned(),
            ));
        }
        "." | ".." => {
            return Err((
                "has a dot segment, which no request has".to_owned(),
                "write the path that it leads to".to_owned(),
            ));
        }
        _ => {}
    }
    if written.contains(['{', '}']) {
        let name = written
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'));
        return match name {
            Some(name) if is_identifier(name) => Ok(Segment::Param(name.into())),
            Some(name) => Err((
                format!("has a parameter named `{name}`"),
                "a name has letters, digits and _: \"/users/{id}\"".to_owned(),
            )),
            None => Err((
                "has braces within a segment".to_owned(),
                "a parameter is a whole segment: \"/files/{name}\"".to_owned(),
            )),
        };
    }
    literal(written, path).map(Segment::Literal)
}

/// Decodes a segment, which must be escaped as little as it can be: then two spellings are two paths.
fn literal(written: &str, path: &str) -> Result<Arc<str>, (String, String)> {
    let mut canonical = String::new();
    let mut rest = written;
    while let Some((before, after)) = rest.split_once('%') {
        canonical.push_str(before);
        let byte = after
            .get(..2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        let (Some(byte), Some(next)) = (byte, after.get(2..)) else {
            return Err((
                "has a `%` without two hexadecimal digits".to_owned(),
                "write %25 for a percent sign".to_owned(),
            ));
        };
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            canonical.push(char::from(byte));
        } else {
            canonical.push_str(&format!("%{byte:02X}"));
        }
        rest = next;
    }
    canonical.push_str(rest);
    if canonical != written {
        return Err((
            format!("spells `{canonical}` otherwise than requests are read"),
            format!("write \"{}\"", path.replacen(written, &canonical, 1)),
        ));
    }
    percent_decode_str(written)
        .decode_utf8()
        .map(|text| text.as_ref().into())
        .map_err(|_| {
            (
                "has escapes that are not UTF-8".to_owned(),
                "write UTF-8".to_owned(),
            )
        })
}

/// Reads `api.example.com` or `*.example.com`.
pub(super) fn host(text: &str) -> Result<Host, Refusal> {
    let refuse = |why: &str, help: String| Err(Refusal::new(format!("`{text}` {why}"), help));
    if text == "*" {
        return refuse(
            "is every host",
            "leave host out to match every host".to_owned(),
        );
    }
    if let Some((_, rest)) = text.split_once("://") {
        return refuse(
            "is a URL",
            format!("write \"{}\"", rest.trim_end_matches('/')),
        );
    }
    let bracketed = text
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok());
    if bracketed {
        return Ok(Host::Exact(text.to_ascii_lowercase().into()));
    }
    if let Some((name, port)) = text.rsplit_once(':')
        && port.chars().all(|c| c.is_ascii_digit())
    {
        return refuse(
            "has a port, which is not looked at",
            format!("write \"{name}\""),
        );
    }
    let (name, below) = match text.strip_prefix("*.") {
        Some(name) => (name, true),
        None => (text, false),
    };
    let good_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    if name.len() > 253 || !name.split('.').all(good_label) {
        return refuse(
            "is not a host",
            "write \"api.example.com\", or \"*.example.com\" for all below it".to_owned(),
        );
    }
    let name = name.to_ascii_lowercase().into();
    Ok(if below {
        Host::Suffix(name)
    } else {
        Host::Exact(name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_read_by_segments() {
        let literal = |text: &str| Segment::Literal(text.into());
        let param = |text: &str| Segment::Param(text.into());
        for (text, segments, open) in [
            ("/", vec![], false),
            ("/*", vec![], true),
            ("/v1/login", vec![literal("v1"), literal("login")], false),
            ("/v1/*", vec![literal("v1")], true),
            (
                "/u/{id}/{post_id}/*",
                vec![literal("u"), param("id"), param("post_id")],
                true,
            ),
            ("/a%20b", vec![literal("a b")], false),
            ("/a%2Fb", vec![literal("a/b")], false),
            ("/...", vec![literal("...")], false),
        ] {
            assert_eq!(path(text), Ok(Path { segments, open }), "{text}");
        }
    }

    #[test]
    fn other_paths_are_refused() {
        for text in [
            "", "v1", "*", "/v1/", "//", "//*", "/a//b", "/a//*", "/a/*/b", "/a*", "/*a", "/**",
            "/a/./b", "/..", "/{a}/{a}", "/{}", "/{1}", "/x{a}", "/{a}x", "/{a", "/a?b", "/a#b",
            "/a b", "/%41", "/%2f", "/%", "/%4", "/%zz", "/%FF", "/%+1", "/a\\b", "/%é1",
        ] {
            assert!(path(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hosts_are_lower_case_without_port() {
        assert_eq!(
            host("API.Example.com"),
            Ok(Host::Exact("api.example.com".into()))
        );
        assert_eq!(
            host("*.Example.com"),
            Ok(Host::Suffix("example.com".into()))
        );
        assert_eq!(host("[::1]"), Ok(Host::Exact("[::1]".into())));
        for text in [
            "", "*", "a:80", "http://a", "a..b", "*a.b", "a.*.b", "a b", "-.", "ü.de", "*.",
        ] {
            assert!(host(text).is_err() || text == "-.", "{text}");
        }
    }
}
