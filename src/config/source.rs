//! Where configuration text comes from, so that a mistake can be shown where it stands.
//!
//! Secrets are marked as text is read; whatever is shown of a line leaves them out.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// A stretch of one source.
#[derive(Clone, Copy, Debug, Default, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct Place {
    /// Which of the [`Sources`].
    pub(crate) source: usize,
    /// First byte.
    pub(crate) start: usize,
    /// Byte after the last.
    pub(crate) end: usize,
}

/// A file, an environment variable, or the defaults.
#[derive(Debug)]
pub(crate) struct Source {
    /// What it is called in messages.
    pub(crate) name: String,
    /// Its text; none where there is nothing to show.
    pub(crate) text: Option<String>,
    /// What relative paths in it are relative to.
    pub(crate) directory: PathBuf,
    /// What must not be shown.
    secrets: Vec<Range<usize>>,
}

/// All that was read in one run. The first is [`Sources::DEFAULTS`].
#[derive(Debug)]
pub(crate) struct Sources(Vec<Source>);

/// One line of a source, with the stretch to point at.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Excerpt {
    /// The line, without its secrets.
    pub text: String,
    /// How many characters stand before the stretch.
    pub before: usize,
    /// How many characters the stretch has, at least one.
    pub width: usize,
}

/// A place as people count: from 1, in characters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Position {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) excerpt: Excerpt,
}

impl Sources {
    /// The place of what nobody wrote.
    pub(crate) const DEFAULTS: usize = 0;

    pub(crate) fn new() -> Self {
        let mut sources = Self(Vec::new());
        sources.add("the defaults".to_owned(), None, PathBuf::new());
        sources
    }

    /// Adds a source; returns its number.
    pub(crate) fn add(&mut self, name: String, text: Option<String>, directory: PathBuf) -> usize {
        let secrets = text.as_deref().map(credentials_in_urls).unwrap_or_default();
        self.0.push(Source {
            name,
            text,
            directory,
            secrets,
        });
        self.0.len().saturating_sub(1)
    }

    /// The whole of a source.
    pub(crate) fn whole(source: usize) -> Place {
        Place {
            source,
            start: 0,
            end: 0,
        }
    }

    /// Keeps `place` out of everything that is shown.
    pub(crate) fn hide(&mut self, place: Place) {
        if let Some(source) = self.0.get_mut(place.source) {
            source.secrets.push(place.start..place.end);
        }
    }

    pub(crate) fn get(&self, source: usize) -> Option<&Source> {
        self.0.get(source)
    }

    /// `path` as a file of `source` means it.
    pub(crate) fn resolve(&self, source: usize, path: &str) -> PathBuf {
        self.get(source).map_or_else(
            || Path::new(path).to_path_buf(),
            |source| source.directory.join(path),
        )
    }

    /// What stands at a place, secrets included: to look at, never to show.
    pub(crate) fn written(&self, place: Place) -> Option<&str> {
        let text = self.get(place.source)?.text.as_deref()?;
        text.get(place.start..place.end)
    }

    /// Line, column and text of a place; none where there is no text.
    pub(crate) fn position(&self, place: Place) -> Option<Position> {
        let source = self.get(place.source)?;
        let text = source.text.as_deref()?;
        let start = floor_char_boundary(text, place.start);
        let line_start = text.get(..start)?.rfind('\n').map_or(0, |at| at + 1);
        let line_end = text
            .get(start..)?
            .find('\n')
            .map_or(text.len(), |at| start + at);
        let end = floor_char_boundary(text, place.end.clamp(start, line_end));
        let before = source.shown(line_start, start);
        let middle = source.shown(start, end);
        let after = source.shown(end, line_end);
        Some(Position {
            line: text.get(..line_start)?.matches('\n').count() + 1,
            column: text.get(line_start..start)?.chars().count() + 1,
            excerpt: Excerpt {
                before: before.chars().count(),
                width: middle.chars().count().max(1),
                text: (before + &middle + &after).trim_end().to_owned(),
            },
        })
    }
}

impl Source {
    /// The text from `start` to `end`, three stars for each secret; a tab is shown as a space.
    fn shown(&self, start: usize, end: usize) -> String {
        let text = self.text.as_deref().unwrap_or_default();
        let mut shown = String::new();
        let mut hidden = false;
        for (at, character) in text.char_indices().skip_while(|(at, _)| *at < start) {
            if at >= end {
                break;
            }
            let secret = self.secrets.iter().any(|range| range.contains(&at));
            match (secret, hidden) {
                (true, false) => shown.push_str("***"),
                (true, true) => {}
                (false, _) if character.is_control() => shown.push(' '),
                (false, _) => shown.push(character),
            }
            hidden = secret;
        }
        shown
    }
}

/// What stands between `://` and `@`, or between a quote and `@` if it has a colon in it: found in text that may not
/// even parse.
fn credentials_in_urls(text: &str) -> Vec<Range<usize>> {
    let begins = text
        .match_indices("://")
        .map(|(at, separator)| (at + separator.len(), false))
        .chain(
            text.match_indices(['"', '\''])
                .map(|(at, quote)| (at + quote.len(), true)),
        );
    begins
        .filter_map(|(start, needs_colon)| {
            let rest = text.get(start..)?;
            // Up to the end of the text: a password may hold a slash, rightly or not.
            let end = rest
                .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\''))
                .unwrap_or(rest.len());
            let before = rest.get(..rest.get(..end)?.rfind('@')?)?;
            let is_one = !needs_colon || (before.contains(':') && !before.contains("://"));
            is_one.then(|| start..start + before.len())
        })
        .collect()
}

/// An address as it may be shown: without what stands before its `@`.
pub(crate) fn without_credentials(address: &str) -> String {
    address
        .rsplit_once('@')
        .map_or_else(|| address.to_owned(), |(_, rest)| format!("***@{rest}"))
}

/// The last character boundary at or before `at`.
fn floor_char_boundary(text: &str, at: usize) -> usize {
    let mut at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at = at.saturating_sub(1);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(start: usize, end: usize) -> Place {
        Place {
            source: 1,
            start,
            end,
        }
    }

    #[test]
    fn a_position_counts_characters_from_one() {
        let mut sources = Sources::new();
        sources.add("x".into(), Some("a = 1\nü = 22\n".into()), PathBuf::new());
        let position = sources.position(place(11, 13)).unwrap();
        assert_eq!((position.line, position.column), (2, 5));
        assert_eq!(position.excerpt.text, "ü = 22");
        assert_eq!((position.excerpt.before, position.excerpt.width), (4, 2));
    }

    #[test]
    fn what_is_hidden_never_shows_nor_tells_its_length() {
        let mut sources = Sources::new();
        let text = "url = \"valkey://u:pw@h\", password = \"hunter2\"";
        sources.add("x".into(), Some(text.into()), PathBuf::new());
        sources.hide(place(36, 45));
        let position = sources.position(place(36, 45)).unwrap();
        assert_eq!(
            position.excerpt.text,
            "url = \"valkey://***@h\", password = ***"
        );
        assert_eq!(position.excerpt.width, 3);
    }
}
