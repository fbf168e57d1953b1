//! The spelling of key sources: `ip`, `ip/56`, `header:x-api-key`.

use http::HeaderName;

use super::error::did_you_mean;
use super::units::Refusal;
use crate::check::KeySource;

/// What is written before a colon, and what stands alone.
const WORDS: [&str; 9] = [
    "ip", "header", "cookie", "query", "path", "method", "host", "route", "global",
];

/// Reads a key source.
pub(crate) fn parse(text: &str) -> Result<KeySource, Refusal> {
    let refuse = |help: String| Err(Refusal::new(format!("`{text}` is not a key source"), help));
    if let Some(bits) = text.strip_prefix("ip/") {
        return match bits.parse::<u8>() {
            Ok(number) if (1..=128).contains(&number) && number.to_string() == bits => {
                Ok(KeySource::IpPrefix(number))
            }
            _ => refuse("write a prefix from 1 to 128 bits: \"ip/56\"".to_owned()),
        };
    }
    let Some((word, name)) = text.split_once(':') else {
        return match text {
            "ip" => Ok(KeySource::Ip),
            "method" => Ok(KeySource::Method),
            "host" => Ok(KeySource::Host),
            "route" => Ok(KeySource::Route),
            "global" => Ok(KeySource::Global),
            "header" | "cookie" | "query" | "path" => {
                refuse(format!("say which {text}: \"{text}:NAME\""))
            }
            _ => refuse(advice(text)),
        };
    };
    let takes_name = matches!(word, "header" | "cookie" | "query" | "path");
    if takes_name && name.is_empty() {
        return refuse(format!("say which {word}: \"{word}:NAME\""));
    }
    match word {
        "header" => match HeaderName::from_bytes(name.as_bytes()) {
            Ok(name) => Ok(KeySource::Header(name)),
            Err(_) => refuse(format!("`{name}` cannot be the name of a header field")),
        },
        "cookie" if HeaderName::from_bytes(name.as_bytes()).is_err() => {
            refuse(format!("`{name}` cannot be the name of a cookie"))
        }
        "path" if !is_identifier(name) => {
            refuse("write the name of a path parameter, without braces: \"path:id\"".to_owned())
        }
        "cookie" => Ok(KeySource::Cookie(name.into())),
        "query" => Ok(KeySource::Query(name.into())),
        "path" => Ok(KeySource::Path(name.into())),
        _ if WORDS.contains(&word) => refuse(format!("write \"{word}\" alone")),
        _ => refuse(match did_you_mean(word, WORDS) {
            Some(word) if matches!(word, "header" | "cookie" | "query" | "path") => {
                format!("did you mean \"{word}:{name}\"?")
            }
            _ => advice(word),
        }),
    }
}

fn advice(word: &str) -> String {
    let near = did_you_mean(word, WORDS)
        .map(|near| format!("did you mean \"{near}\"? "))
        .unwrap_or_default();
    format!(
        "{near}write ip, ip/PREFIX, header:NAME, cookie:NAME, query:NAME, path:PARAM, method, host, route or global"
    )
}

/// A name of a path parameter.
pub(crate) fn is_identifier(name: &str) -> bool {
    let mut letters = name.chars();
    letters
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && letters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The source as it is written.
pub(crate) fn spelling(source: &KeySource) -> String {
    match source {
        KeySource::Ip => "ip".to_owned(),
        KeySource::IpPrefix(bits) => format!("ip/{bits}"),
        KeySource::Header(name) => format!("header:{name}"),
        KeySource::Cookie(name) => format!("cookie:{name}"),
        KeySource::Query(name) => format!("query:{name}"),
        KeySource::Path(name) => format!("path:{name}"),
        KeySource::Method => "method".to_owned(),
        KeySource::Host => "host".to_owned(),
        KeySource::Route => "route".to_owned(),
        KeySource::Global => "global".to_owned(),
    }
}

/// Whether a request may come without it. The route has the path parameters it names, and every request has the rest.
pub(crate) fn can_be_missing(source: &KeySource) -> bool {
    is_unverified(source)
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
            "header:x-api-key",
            "cookie:sid",
            "query:user",
            "path:id",
            "method",
            "host",
            "route",
            "global",
        ] {
            assert_eq!(spelling(&parse(text).unwrap()), text);
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
            ("identity", "write ip,"),
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
