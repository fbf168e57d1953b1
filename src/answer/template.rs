//! Texts with `{placeholders}`, checked once and filled per answer.

use thiserror::Error;

/// A text with placeholders.
#[derive(Clone, Debug)]
pub struct Template {
    _parts: Vec<String>,
}

/// A placeholder that there is not.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("unknown placeholder {{{name}}}")]
pub struct UnknownPlaceholder {
    /// What stands between the braces.
    pub name: String,
}

impl Template {
    /// Reads a text. Braces around anything but a word stand for themselves.
    ///
    /// # Errors
    ///
    /// The first placeholder that is not among `allowed`.
    pub fn parse(text: &str, allowed: &[&str]) -> Result<Self, UnknownPlaceholder> {
        let mut rest = text;
        while let Some((_, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').unwrap_or((after, ""));
            if !allowed.contains(&name) {
                return Err(UnknownPlaceholder {
                    name: name.to_owned(),
                });
            }
            rest = after;
        }
        Ok(Self {
            _parts: vec![text.to_owned()],
        })
    }
}
