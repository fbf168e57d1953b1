//! `[rejects]` and `[headers]`.

use http::{HeaderName, HeaderValue, StatusCode};

use super::{Builder, by_name, value};
use crate::answer::template::{PLACEHOLDERS, Template};
use crate::answer::{self, Reject};
use crate::config::collections::Pairs;
use crate::config::decode::{At, Decode, Reader};
use crate::config::error::{Code, Finding, Findings, did_you_mean};
use crate::config::file::{File, RateLimitFields, Reject as Written};
use crate::config::source::Sources;
use crate::config::tree::{Node, Value};
use crate::config::wire::FieldValue;

/// Fields that the gateway sets itself; another value would break the message.
const OURS: [&str; 8] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The name of the reject that answers where a policy names none.
pub(super) const DEFAULT: &str = "default";

impl Builder<'_> {
    /// All rejects, `default` first, the others by name.
    pub(super) fn rejects(&self, file: &File) -> Option<Vec<Reject>> {
        let written = by_name(file.rejects.as_ref());
        let default = match written.get(DEFAULT) {
            Some((_, reject)) => self.reject(DEFAULT, reject),
            None => self.reject(DEFAULT, &builtin()?),
        };
        let others: Vec<Option<Reject>> = written
            .iter()
            .filter(|(name, _)| **name != DEFAULT)
            .map(|(name, (_, reject))| self.reject(name, reject))
            .collect();
        std::iter::once(default).chain(others).collect()
    }

    fn reject(&self, name: &str, written: &Written) -> Option<Reject> {
        let title = self.template(name, written.title.as_ref());
        let detail = self.template(name, written.detail.as_ref());
        let headers = self.header_fields(written.headers.as_ref());
        self.check_reserved(written.headers.as_ref());
        let bodies = self.bodies(name, written);
        let problem_type = written.r#type.as_ref()?;
        if problem_type.value.is_empty()
            || !problem_type
                .value
                .chars()
                .all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '<' | '>' | '\\'))
        {
            self.error(
                Code::E025,
                problem_type.place,
                format!("`{}` is not a URI", problem_type.value),
                "write a URI, or \"about:blank\"",
            );
        }
        let cors = written.cors.as_ref()?;
        for origin in cors
            .value
            .items
            .iter()
            .filter(|origin| !is_origin(&origin.value))
        {
            self.error(
                Code::E025,
                origin.place,
                format!("`{}` is not an origin", origin.value),
                "write scheme and host, without a path: \"https://shop.example\", or \"*\"",
            );
        }
        Some(Reject {
            status: StatusCode::from_u16(u16::try_from(value(&written.status)?.0).ok()?).ok()?,
            title: title?,
            detail: detail?,
            problem_type: problem_type.value.as_str().into(),
            headers: headers?,
            bodies: bodies?,
            cors: cors
                .value
                .items
                .iter()
                .map(|origin| origin.value.as_str().into())
                .collect(),
        })
    }

    fn template(&self, reject: &str, text: Option<&At<String>>) -> Option<Template> {
        let text = text?;
        Template::parse(&text.value, PLACEHOLDERS)
            .map_err(|unknown| self.unknown_placeholder(reject, &unknown.name, text.place))
            .ok()
    }

    fn unknown_placeholder(&self, reject: &str, name: &str, place: crate::config::source::Place) {
        let near = did_you_mean(name, PLACEHOLDERS.iter().copied());
        self.findings.add(
            Finding::new(
                Code::E029,
                place,
                format!("unknown placeholder `{{{name}}}` in reject `{reject}`"),
            )
            .label(near.map_or_else(String::new, |near| format!("did you mean `{{{near}}}`?")))
            .note("allowed here: {policy}, {limit}, {window}, {retry_after}, {request_id}; a brace of the text is written twice"),
        );
    }

    fn bodies(&self, reject: &str, written: &Written) -> Option<Vec<(Box<str>, Template)>> {
        let files = &written.body_file.as_ref()?.value;
        let built: Vec<Option<(Box<str>, Template)>> = files
            .0
            .iter()
            .map(|(media_type, path)| {
                if !is_media_type(&media_type.value) {
                    self.error(
                        Code::E028,
                        media_type.place,
                        format!("`{}` is not a media type", media_type.value),
                        "write \"text/html\" = \"sorry.html\"",
                    );
                    return None;
                }
                let text = if self.io {
                    String::from_utf8(self.read_file(path)?)
                        .map_err(|_| {
                            self.error(
                                Code::E051,
                                path.place,
                                "the body is not UTF-8 text",
                                "save it as UTF-8",
                            );
                        })
                        .ok()?
                } else {
                    String::new()
                };
                let template = Template::parse(&text, PLACEHOLDERS)
                    .map_err(|unknown| self.unknown_placeholder(reject, &unknown.name, path.place))
                    .ok()?;
                Some((media_type.value.to_ascii_lowercase().into(), template))
            })
            .collect();
        built.into_iter().collect()
    }

    /// Header fields to send, none of them one that the gateway sets.
    pub(super) fn header_fields(
        &self,
        pairs: Option<&At<Pairs<FieldValue>>>,
    ) -> Option<Vec<(HeaderName, HeaderValue)>> {
        let built: Vec<Option<(HeaderName, HeaderValue)>> = pairs?
            .value
            .0
            .iter()
            .map(|(name, field)| Some((self.header_name(name, true)?, field.value.0.clone())))
            .collect();
        built.into_iter().collect()
    }

    /// A denial's fields must not break its framing, nor let a cache keep it.
    fn check_reserved(&self, pairs: Option<&At<Pairs<FieldValue>>>) {
        let names = pairs.into_iter().flat_map(|pairs| &pairs.value.0);
        for (name, _) in names {
            let Ok(parsed) = HeaderName::from_bytes(name.value.as_bytes()) else {
                continue;
            };
            // Those of every message are reported as such.
            if Reject::is_reserved(&parsed) && !OURS.contains(&parsed.as_str()) {
                self.error(
                    Code::E028,
                    name.place,
                    format!("a denial's `{parsed}` is set by the gateway"),
                    "take it out",
                );
            }
        }
    }

    /// The name of a header field; one to send must not be the gateway's own.
    pub(super) fn header_name(&self, name: &At<String>, to_send: bool) -> Option<HeaderName> {
        let Ok(parsed) = HeaderName::from_bytes(name.value.as_bytes()) else {
            self.error(
                Code::E028,
                name.place,
                format!("`{}` is not the name of a header field", name.value),
                "a name has letters, digits and -",
            );
            return None;
        };
        if to_send && OURS.contains(&parsed.as_str()) {
            self.error(
                Code::E028,
                name.place,
                format!("the gateway sets `{parsed}` itself"),
                "take it out",
            );
            return None;
        }
        Some(parsed)
    }

    pub(super) fn headers(&self, file: &File) -> Option<answer::Settings> {
        let headers = &file.headers.as_ref()?.value;
        Some(answer::Settings {
            ratelimit: matches!(value(&headers.ratelimit)?, RateLimitFields::Draft),
            legacy: value(&headers.legacy)?,
            when: value(&headers.when)?,
            partition_key: value(&headers.partition_key)?,
            retry_after_jitter_percent: value(&headers.retry_after_jitter)?.0,
            upstream_ratelimit: value(&headers.upstream_ratelimit)?,
        })
    }
}

/// The reject that is there without being written: all defaults, as declared.
fn builtin() -> Option<Written> {
    let place = Sources::whole(Sources::DEFAULTS);
    let mut node = Node {
        value: Value::Table(Vec::new()),
        place,
    };
    crate::config::document::complete(&mut node, &Written::shape());
    Written::decode(&node, &Reader::new(&Findings::default()))
}

fn is_media_type(text: &str) -> bool {
    let token = |text: &str| HeaderName::from_bytes(text.as_bytes()).is_ok();
    text.split_once('/')
        .is_some_and(|(main, sub)| token(main) && token(sub) && main != "*" && sub != "*")
}

fn is_origin(text: &str) -> bool {
    text == "*"
        || text.split_once("://").is_some_and(|(scheme, host)| {
            scheme
                .chars()
                .all(|c| c.is_ascii_lowercase() || c == '+' || c == '-')
                && !scheme.is_empty()
                && !host.is_empty()
                && host
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']'))
        })
}
