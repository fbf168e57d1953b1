//! Problem details (RFC 9457), and the same as a page for browsers.

use std::borrow::Cow;

use http::StatusCode;

use super::accept;
use super::template::{Escape, Template, essence, is_json};

/// A policy is out of quota.
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// The server is short of capacity for a moment.
pub const REDUCED_CAPACITY: &str =
    "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

pub(super) const REDUCED_CAPACITY_TITLE: &str =
    "Request cannot be satisfied due to temporary server capacity constraints";

pub(super) const QUOTA_TITLE: &str =
    "Request cannot be satisfied as assigned quota has been exceeded";
pub(super) const QUOTA_DETAIL: &str =
    "Policy {policy} allows {limit} per {window}. Try again in {retry_after} seconds.";

/// A caller is in a penalty.
pub const ABNORMAL_USAGE: &str =
    "https://iana.org/assignments/http-problem-types#abnormal-usage-detected";

pub(super) const ABNORMAL_TITLE: &str =
    "Request not satisfied due to detection of abnormal request pattern";

/// The status says it all.
pub const ABOUT_BLANK: &str = "about:blank";

pub(super) const PROBLEM_JSON: &str = "application/problem+json";
const HTML: &str = "text/html; charset=utf-8";

/// What went wrong, in the members' order.
#[derive(Debug)]
pub(super) struct Problem<'a> {
    pub(super) problem_type: &'a str,
    pub(super) title: Cow<'a, str>,
    pub(super) status: StatusCode,
    pub(super) detail: Cow<'a, str>,
    pub(super) instance: Option<String>,
    pub(super) violated_policies: Vec<&'a str>,
    pub(super) retry_after_seconds: Option<u64>,
}

/// A body and its media type.
#[derive(Debug)]
pub(super) struct Body<'a> {
    pub(super) media_type: &'a str,
    pub(super) text: Cow<'a, str>,
}

impl Problem<'_> {
    /// The body that suits the client best: one of the operator's `bodies`, else JSON, else, where the client would
    /// rather have it than JSON, a page.
    pub(super) fn body<'b, 'v>(
        &self,
        bodies: &'b [(Box<str>, Template)],
        accept: Option<&str>,
        value: impl Fn(&str, Escape) -> Cow<'v, str>,
    ) -> Body<'b> {
        if bodies.is_empty() && accept.is_none_or(|accept| accept == "*/*") {
            return Body {
                media_type: PROBLEM_JSON,
                text: self.json().into(),
            };
        }
        let own = bodies
            .iter()
            .map(|(media_type, text)| (&**media_type, Some(text)));
        let kinds = own.clone().map(|(media_type, _)| Kind::of(media_type));
        let missing = |kind: Kind| kinds.clone().all(|it| it != kind);
        // The page stands last and needs to be wanted more than what stands before it.
        let json = missing(Kind::Json).then_some((PROBLEM_JSON, None));
        let html = missing(Kind::Html).then_some((HTML, None));
        let (pages, others): (Vec<_>, Vec<_>) = own
            .chain(json)
            .chain(html)
            .partition(|(media_type, _)| Kind::of(media_type) == Kind::Html);
        let mut best = (PROBLEM_JSON, None);
        let mut most_wanted = None;
        for (media_type, template) in others.into_iter().chain(pages) {
            let wanted = Some(Kind::quality(media_type, accept));
            if wanted > most_wanted {
                (best, most_wanted) = ((media_type, template), wanted);
            }
        }
        let (media_type, template) = best;
        let text = match template {
            Some(template) => {
                let escape = Escape::for_media_type(media_type);
                template.render(escape, |name| value(name, escape))
            }
            None if Kind::of(media_type) == Kind::Html => self.page().into(),
            None => self.json().into(),
        };
        Body { media_type, text }
    }

    fn json(&self) -> String {
        let mut json = String::with_capacity(512);
        json.push_str("{\"type\":");
        quote(&mut json, self.problem_type);
        json.push_str(",\"title\":");
        quote(&mut json, &self.title);
        json.push_str(",\"status\":");
        json.push_str(self.status.as_str());
        json.push_str(",\"detail\":");
        quote(&mut json, &self.detail);
        if let Some(instance) = &self.instance {
            json.push_str(",\"instance\":");
            quote(&mut json, instance);
        }
        if !self.violated_policies.is_empty() {
            json.push_str(",\"violated-policies\":");
            for (nth, name) in self.violated_policies.iter().enumerate() {
                json.push(if nth == 0 { '[' } else { ',' });
                quote(&mut json, name);
            }
            json.push(']');
        }
        if let Some(seconds) = self.retry_after_seconds {
            json.push_str(",\"retry_after_seconds\":");
            json.push_str(itoa::Buffer::new().format(seconds));
        }
        json.push('}');
        json
    }

    fn page(&self) -> String {
        let escape = |text: &str| Escape::Html.of(text).into_owned();
        let (title, detail) = (escape(&self.title), escape(&self.detail));
        let status = self.status.as_u16();
        let id = self.instance.as_deref().map(escape).unwrap_or_default();
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{status} {title}</title></head>\n\
             <body>\n<h1>{title}</h1>\n<p>{detail}</p>\n<p><small>{status} {id}</small></p>\n</body>\n</html>\n"
        )
    }
}

/// A text as JSON has it. Nearly every text is as it is.
fn quote(json: &mut String, text: &str) {
    let is_plain = |byte: u8| byte >= b' ' && byte != b'"' && byte != b'\\';
    if text.bytes().all(is_plain) {
        json.push('"');
        json.push_str(text);
        json.push('"');
    } else {
        json.push_str(&serde_json::Value::from(text).to_string());
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Json,
    Html,
    Other,
}

impl Kind {
    fn of(media_type: &str) -> Self {
        match essence(media_type) {
            html if html.eq_ignore_ascii_case("text/html") => Self::Html,
            json if is_json(json) => Self::Json,
            _ => Self::Other,
        }
    }

    fn quality(media_type: &str, accept: Option<&str>) -> u16 {
        let essence = essence(media_type);
        match Self::of(essence) {
            Self::Json => accept::json_quality(accept, essence),
            Self::Html | Self::Other => accept::quality(accept, essence),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_quoted_as_json_has_it() {
        for text in [
            "",
            "plain",
            "caf\u{e9}",
            "\"",
            "\\",
            "\u{1f}",
            "\u{7f}",
            "a\nb\"c\\d",
        ] {
            let mut json = String::new();
            quote(&mut json, text);
            assert_eq!(json, serde_json::to_string(text).unwrap());
        }
    }
}
