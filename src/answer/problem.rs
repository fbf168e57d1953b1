//! Problem details (RFC 9457), and the same as a page for browsers.

use std::borrow::Cow;

use http::StatusCode;
use serde::Serialize;

use super::accept;
use super::template::{Escape, Template, is_json};

/// A policy is out of quota.
pub const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

pub(super) const QUOTA_TITLE: &str =
    "Request cannot be satisfied as assigned quota has been exceeded";
pub(super) const QUOTA_DETAIL: &str =
    "Policy {policy} allows {limit} per {window}. Try again in {retry_after} seconds.";

/// The status says it all.
pub const ABOUT_BLANK: &str = "about:blank";

const PROBLEM_JSON: &str = "application/problem+json";
const HTML: &str = "text/html; charset=utf-8";

/// What went wrong, in the members' order.
#[derive(Debug, Serialize)]
pub(super) struct Problem<'a> {
    #[serde(rename = "type")]
    pub(super) problem_type: &'a str,
    pub(super) title: Cow<'a, str>,
    #[serde(serialize_with = "as_number")]
    pub(super) status: StatusCode,
    pub(super) detail: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) instance: Option<String>,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    pub(super) violated_policies: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) retry_after_seconds: Option<u64>,
}

fn as_number<S: serde::Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(status.as_u16())
}

/// A body and its media type.
#[derive(Debug)]
pub(super) struct Body<'a> {
    pub(super) media_type: &'a str,
    pub(super) text: String,
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
            None if Kind::of(media_type) == Kind::Html => self.page(),
            None => serde_json::to_string(self).unwrap_or_default(),
        };
        Body { media_type, text }
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

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Json,
    Html,
    Other,
}

impl Kind {
    fn of(media_type: &str) -> Self {
        match essence(media_type).as_str() {
            "text/html" => Self::Html,
            essence if is_json(essence) => Self::Json,
            _ => Self::Other,
        }
    }

    fn quality(media_type: &str, accept: Option<&str>) -> u16 {
        let essence = essence(media_type);
        match Self::of(&essence) {
            Self::Json => accept::json_quality(accept, &essence),
            Self::Html | Self::Other => accept::quality(accept, &essence),
        }
    }
}

fn essence(media_type: &str) -> String {
    let essence = media_type.split(';').next().unwrap_or_default();
    essence.trim().to_ascii_lowercase()
}
