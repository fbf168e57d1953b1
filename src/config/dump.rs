//! The effective configuration as one TOML document, in the order in which the reference explains it.

use std::fmt::Write as _;

use super::decode::Table as _;
use super::file::File;
use super::load::Loaded;
use super::shape::{Field, Shape};
use super::tree::{Entry, Node, Value};

/// The configuration after includes, environment and defaults, as one file that loads to the same. Passwords in URLs
/// are masked, and so are the values that a route adds to requests; `None` if there is no configuration.
#[must_use]
pub fn dump(loaded: &Loaded) -> Option<String> {
    loaded.config.as_ref()?;
    let document = loaded.document.as_ref()?;
    let writer = Writer { loaded };
    let mut text = String::new();
    let shape = File::table_shape();
    // What was included stands here now.
    let fields = || shape.fields.iter().filter(|field| field.key != "include");
    for field in fields() {
        if let Some(node) = document.get(field.key)
            && !matches!(node.value, Value::Table(_))
        {
            writer.line(&mut text, field.key, node, Some(&field.shape), &[]);
        }
    }
    for field in fields() {
        let Some(node) = document.get(field.key) else {
            continue;
        };
        match &field.shape {
            Shape::Table(table) => {
                writer.section(&mut text, &[field.key], node, &table.fields);
            }
            Shape::Map(_, item) => {
                for entry in node.entries() {
                    if let Shape::Table(table) = item.as_ref() {
                        let path = [field.key, entry.key.as_str()];
                        writer.section(&mut text, &path, &entry.node, &table.fields);
                    }
                }
            }
            _ => {}
        }
    }
    Some(text)
}

struct Writer<'a> {
    loaded: &'a Loaded,
}

impl Writer<'_> {
    /// `[path]` and its fields, in the order in which they are declared.
    fn section(&self, text: &mut String, path: &[&str], node: &Node, fields: &[Field]) {
        // Names that reach here are good labels and need no quotes.
        let _ = write!(text, "\n[{}]\n", path.join("."));
        for field in fields {
            if let Some(inner) = node.get(field.key) {
                self.line(text, field.key, inner, Some(&field.shape), path);
            }
        }
    }

    fn line(
        &self,
        text: &mut String,
        key: &str,
        node: &Node,
        shape: Option<&Shape>,
        path: &[&str],
    ) {
        let mut path: Vec<&str> = path.to_vec();
        path.push(key);
        let _ = writeln!(text, "{key} = {}", self.inline(node, shape, &path));
    }

    /// A value on one line.
    fn inline(&self, node: &Node, shape: Option<&Shape>, path: &[&str]) -> String {
        match &node.value {
            Value::Table(entries) if entries.is_empty() => "{}".to_owned(),
            Value::Table(entries) => {
                let inside: Vec<String> = entries
                    .iter()
                    .map(|entry| self.pair(entry, shape, path))
                    .collect();
                format!("{{ {} }}", inside.join(", "))
            }
            Value::List(items) => {
                let item = match shape {
                    Some(Shape::List(item) | Shape::OneOrMany(item)) => Some(item.as_ref()),
                    _ => None,
                };
                let items: Vec<String> = items
                    .iter()
                    .map(|node| self.inline(node, item, path))
                    .collect();
                format!("[{}]", items.join(", "))
            }
            Value::Text(text) if matches!(shape, Some(Shape::File)) => {
                let resolved = self.loaded.sources.resolve(node.place.source, text);
                quoted(&resolved.display().to_string())
            }
            Value::Text(text) => quoted(&masked(text, path)),
            Value::Whole(number) => number.to_string(),
            Value::Flag(flag) => flag.to_string(),
            Value::Fraction(text) | Value::Moment(text) => text.clone(),
            // No configuration is built from such a text.
            Value::Unknown => quoted(""),
        }
    }

    fn pair(&self, entry: &Entry, shape: Option<&Shape>, path: &[&str]) -> String {
        let inner = match shape {
            Some(Shape::Map(_, item)) => Some(item.as_ref()),
            Some(shape) => shape.table_with(&entry.key).and_then(|table| {
                let field = table.fields.iter().find(|field| field.key == entry.key)?;
                Some(&field.shape)
            }),
            None => None,
        };
        let mut path: Vec<&str> = path.to_vec();
        path.push(&entry.key);
        let bare = !entry.key.is_empty()
            && entry
                .key
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
        let key = if bare {
            entry.key.clone()
        } else {
            toml::Value::from(entry.key.as_str()).to_string()
        };
        format!("{key} = {}", self.inline(&entry.node, inner, &path))
    }
}

/// The text without what must not be shown.
fn masked(text: &str, path: &[&str]) -> String {
    match path {
        ["routes", _, "add_headers", _] => "***".to_owned(),
        ["store", "url"] => without_password(text).unwrap_or_else(|| text.to_owned()),
        _ => text.to_owned(),
    }
}

/// A URL with stars for its password; `None` if it has none.
fn without_password(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let (credentials, address) = rest.rsplit_once('@')?;
    let (user, _) = credentials.split_once(':')?;
    Some(format!("{scheme}://{user}:***@{address}"))
}

/// As TOML. Variables are filled in already; a `$` that is left means itself.
fn quoted(text: &str) -> String {
    let escaped = text.replace('$', "$$");
    // On one line, whatever the text holds: a multi-line string cannot stand in an inline table of TOML 1.0.
    let mut quoted = String::from("\"");
    for c in escaped.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
