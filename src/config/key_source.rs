//! The spelling of key sources: `ip`, `ip/56`, `header:x-api-key`.

use http::HeaderName;

use super::error::did_you_mean;
use super::units::Refusal;
use crate::check::KeySource;
use crate::check::entity::BadKeySource;

/// What is written before a colon, and what stands alone.
const WORDS: [&str; 12] = [
    "ip", "identity", "tier", "jwt", "header", "cookie", "query", "path", "method", "host",
    "route", "global",
];

/// Reads a key source; where there is none, says what was probably meant.
pub(crate) fn parse(text: &str) -> Result<KeySource, Refusal> {
    let refuse = |help: String| Err(Refusal::new(format!("`{text}` is not a key source"), help));
    match text.parse() {
        Ok(KeySource::Path(name)) if !is_param_name(&name) => {
            refuse("write the name of a path parameter, without braces: \"path:id\"".to_owned())
        }
        Ok(source) => Ok(source),
        Err(BadKeySource::Prefix(_)) => {
            refuse("write a prefix from 1 to 128 bits: \"ip/56\"".to_owned())
        }
        Err(BadKeySource::Name { word, name }) if name.is_empty() => refuse(format!(
            "say which {}: \"{word}:NAME\"",
            if word == "jwt" {
                "claim of the token"
            } else {
                word
            }
        )),
        Err(BadKeySource::Name { word, name }) => {
            refuse(format!("`{name}` cannot be the name of a {word}"))
        }
        Err(BadKeySource::Unknown(_)) => refuse(meant(text)),
    }
}

fn meant(text: &str) -> String {
    let Some((word, name)) = text.split_once(':') else {
        return advice(text);
    };
    if WORDS.contains(&word) {
        return format!("write \"{word}\" alone");
    }
    match did_you_mean(word, WORDS) {
        Some(word @ ("jwt" | "header" | "cookie" | "query" | "path")) => {
            format!("did you mean \"{word}:{name}\"?")
        }
        _ => advice(word),
    }
}

fn advice(word: &str) -> String {
    let lower = word.to_ascii_lowercase();
    let meant = match lower.as_str() {
        "client_ip" | "client-ip" | "remote_addr" | "remote-addr" | "address" => {
            Some("ip".to_owned())
        }
        "user" | "consumer" | "api_key" | "api-key" | "apikey" | "sub" | "subject" => {
            Some("identity".to_owned())
        }
        // Nothing but names of header fields is written so.
        name if name == "authorization"
            || (name.contains('-') && HeaderName::from_bytes(name.as_bytes()).is_ok()) =>
        {
            Some(format!("header:{name}"))
        }
        _ => did_you_mean(word, WORDS).map(str::to_owned),
    };
    let near = meant
        .map(|near| format!("did you mean \"{near}\"? "))
        .unwrap_or_default();
    format!(
        "{near}write ip, ip/PREFIX, identity, tier, jwt:CLAIM, header:NAME, cookie:NAME, query:NAME, path:PARAM, method, \
         host, route or global"
    )
}

/// A name of a path parameter.
pub(crate) fn is_param_name(name: &str) -> bool {
    let mut letters = name.chars();
    letters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
}

/// Whether a client may change it at will.
pub(crate) fn is_unverified(source: &KeySource) -> bool {
    matches!(
        source,
        KeySource::Header(_) | KeySource::Cookie(_) | KeySource::Query(_)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_spelt_the_same() {
        for text in [
            "ip",
            "ip/56",
            "identity",
            "tier",
            "jwt:sub",
            "jwt:https://api.example/tenant",
            "header:x-api-key",
            "cookie:sid",
            "query:user",
            "path:id",
            "method",
            "host",
            "route",
            "global",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn header_names_are_one_whatever_their_case() {
        assert_eq!(parse("header:X-API-Key"), parse("header:x-api-key"));
    }

    #[test]
    fn anything_else_is_refused_with_advice() {
        for (text, advice) in [
            ("", "write ip,"),
            ("Ip", "did you mean \"ip\"?"),
            ("ip/0", "from 1 to 128"),
            ("ip/129", "from 1 to 128"),
            ("ip/+8", "from 1 to 128"),
            ("header", "say which header"),
            ("header:", "say which header"),
            ("header:a b", "cannot be the name"),
            ("haeder:x", "did you mean \"header:x\"?"),
            ("path:{id}", "without braces"),
            ("global:x", "write \"global\" alone"),
            ("identity:x", "write \"identity\" alone"),
            ("tier:x", "write \"tier\" alone"),
            ("jwt", "say which claim of the token"),
            ("jwt:", "say which claim of the token"),
            ("identiy", "did you mean \"identity\"?"),
            ("api_key", "did you mean \"identity\"?"),
            ("X-Api-Key", "did you mean \"header:x-api-key\"?"),
            ("Authorization", "did you mean \"header:authorization\"?"),
            ("remote_addr", "did you mean \"ip\"?"),
            ("nothing like it", "write ip,"),
        ] {
            match parse(text) {
                Err(refusal) => {
                    assert!(
                        refusal.help.clone().unwrap().contains(advice),
                        "{text}: {refusal:?}"
                    );
                }
                Ok(source) => panic!("{text} was read as {source:?}"),
            }
        }
    }
}
