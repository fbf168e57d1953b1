//! Texts with `{placeholders}`, checked once and filled per answer.

use std::borrow::Cow;

use thiserror::Error;

/// What the texts of `[rejects]` may name.
pub const PLACEHOLDERS: &[&str] = &["policy", "limit", "window", "retry_after", "request_id"];

/// A text with placeholders. `{{` and `}}` are braces.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Template {
    parts: Vec<Part>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
enum Part {
    Text(String),
    Placeholder(Box<str>),
}

/// A placeholder that nothing fills.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("unknown placeholder `{{{name}}}`; a brace of the text is written twice")]
pub struct UnknownPlaceholder {
    /// What stands between the braces.
    pub name: String,
}

impl UnknownPlaceholder {
    fn of(name: &str) -> Self {
        let name = name.chars().take(NAME_MAX).collect();
        Self { name }
    }
}

/// How values are put into the text around them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Escape {
    None,
    Json,
    Html,
}

impl Template {
    /// Reads a text; `allowed` are the names that it may use.
    ///
    /// # Errors
    ///
    /// [`UnknownPlaceholder`] for a name that is not allowed, or a `{` that never closes.
    pub fn parse(text: &str, allowed: &[&str]) -> Result<Self, UnknownPlaceholder> {
        let mut template = Self::default();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from_brace) = rest.split_at(at);
            template.push_text(before);
            if let Some(after) = from_brace.strip_prefix("{{") {
                template.push_text("{");
                rest = after;
            } else if let Some(after) = from_brace.strip_prefix('{') {
                let (name, after) = match after.split_once('}') {
                    Some((name, after)) if allowed.contains(&name) => (name, after),
                    Some((name, _)) => return Err(UnknownPlaceholder::of(name)),
                    None => return Err(UnknownPlaceholder::of(after)),
                };
                template.parts.push(Part::Placeholder(name.into()));
                rest = after;
            } else {
                // A closing brace alone can mean nothing else than itself.
                template.push_text("}");
                let one = from_brace.strip_prefix('}').unwrap_or_default();
                rest = one.strip_prefix('}').unwrap_or(one);
            }
        }
        template.push_text(rest);
        Ok(template)
    }

    /// A text without placeholders.
    #[must_use]
    pub fn plain(text: &str) -> Self {
        let mut template = Self::default();
        template.push_text(text);
        template
    }

    fn push_text(&mut self, text: &str) {
        if let Some(Part::Text(before)) = self.parts.last_mut() {
            before.push_str(text);
        } else if !text.is_empty() {
            self.parts.push(Part::Text(text.to_owned()));
        }
    }

    /// Whether the text names one of these.
    pub(super) fn names(&self, placeholders: &[&str]) -> bool {
        self.parts
            .iter()
            .any(|part| matches!(part, Part::Placeholder(name) if placeholders.contains(&&**name)))
    }

    /// Fills the text. Escapes the values, not the text: that is the operator's.
    pub(super) fn render<'v>(
        &self,
        escape: Escape,
        value: impl Fn(&str) -> Cow<'v, str>,
    ) -> Cow<'_, str> {
        if let [Part::Text(text)] = &*self.parts {
            return Cow::Borrowed(text);
        }
        let mut text = String::with_capacity(128);
        for part in &self.parts {
            match part {
                Part::Text(part) => text.push_str(part),
                Part::Placeholder(name) => text.push_str(&escape.of(&value(name))),
            }
        }
        Cow::Owned(text)
    }
}

impl Escape {
    /// The escape that a body of this media type needs.
    pub(super) fn for_media_type(media_type: &str) -> Self {
        let essence = essence(media_type);
        let lower = essence.to_ascii_lowercase();
        if is_json(essence) {
            Self::Json
        } else if lower == "text/html" || lower.ends_with("/xml") || lower.ends_with("+xml") {
            Self::Html
        } else {
            Self::None
        }
    }

    pub(super) fn of(self, value: &str) -> Cow<'_, str> {
        match self {
            Self::None => Cow::Borrowed(value),
            Self::Json => {
                let quoted = serde_json::Value::from(value).to_string();
                let inner = quoted.strip_prefix('"').and_then(|q| q.strip_suffix('"'));
                Cow::Owned(inner.unwrap_or_default().to_owned())
            }
            Self::Html => {
                let mut escaped = String::with_capacity(value.len());
                for char in value.chars() {
                    match char {
                        '&' => escaped.push_str("&amp;"),
                        '<' => escaped.push_str("&lt;"),
                        '>' => escaped.push_str("&gt;"),
                        '"' => escaped.push_str("&quot;"),
                        '\'' => escaped.push_str("&#39;"),
                        _ => escaped.push(char),
                    }
                }
                Cow::Owned(escaped)
            }
        }
    }
}

/// A media type without its parameters.
pub(super) fn essence(media_type: &str) -> &str {
    media_type.split(';').next().unwrap_or_default().trim()
}

/// Whether a media type without parameters is JSON.
pub(super) fn is_json(essence: &str) -> bool {
    let suffix = |suffix: &str| {
        let at = essence.len().checked_sub(suffix.len());
        at.and_then(|at| essence.get(at..))
            .is_some_and(|end| end.eq_ignore_ascii_case(suffix))
    };
    essence.eq_ignore_ascii_case("application/json") || suffix("+json")
}

/// How much of an unknown name an error shows.
const NAME_MAX: usize = 40;
