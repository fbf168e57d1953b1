//! The effective configuration as one TOML document.

use super::decode::Table as _;
use super::file::File;
use super::load::Loaded;
use super::shape::{Shape, TableShape};
use super::tree::{Node, Value};

/// The configuration after includes, environment and defaults, as one file that loads to the same. Passwords in URLs
/// are masked, and so are the values that a route adds to requests; `None` if there is no configuration.
#[must_use]
pub fn dump(loaded: &Loaded) -> Option<String> {
    loaded.config.as_ref()?;
    let document = loaded.document.as_ref()?;
    let writer = Writer { loaded };
    let mut table = writer.table(document, &File::table_shape(), &mut Vec::new());
    // What was included stands here now.
    table.remove("include");
    toml::to_string(&table).ok()
}

struct Writer<'a> {
    loaded: &'a Loaded,
}

impl Writer<'_> {
    fn table(&self, node: &Node, shape: &TableShape, path: &mut Vec<String>) -> toml::Table {
        let mut table = toml::Table::new();
        for entry in node.entries() {
            let field = shape.fields.iter().find(|field| field.key == entry.key);
            path.push(entry.key.clone());
            table.insert(
                entry.key.clone(),
                self.value(&entry.node, field.map(|field| &field.shape), path),
            );
            path.pop();
        }
        table
    }

    fn value(&self, node: &Node, shape: Option<&Shape>, path: &mut Vec<String>) -> toml::Value {
        match (&node.value, shape) {
            (Value::Table(_), Some(Shape::Table(shape))) => self.table(node, shape, path).into(),
            (Value::Table(entries), shape) => {
                let inner = match shape {
                    Some(Shape::Map(_, item)) => Some(item.as_ref()),
                    _ => None,
                };
                let mut table = toml::Table::new();
                for entry in entries {
                    path.push(entry.key.clone());
                    table.insert(entry.key.clone(), self.value(&entry.node, inner, path));
                    path.pop();
                }
                table.into()
            }
            (Value::List(items), shape) => {
                let inner = match shape {
                    Some(Shape::List(item) | Shape::OneOrMany(item)) => Some(item.as_ref()),
                    _ => None,
                };
                let items: Vec<toml::Value> = items
                    .iter()
                    .map(|item| self.value(item, inner, path))
                    .collect();
                items.into()
            }
            (Value::Text(text), Some(Shape::File)) => {
                let resolved = self.loaded.sources.resolve(node.place.source, text);
                escaped(&resolved.display().to_string()).into()
            }
            (Value::Text(text), _) => escaped(&masked(text, path)).into(),
            (Value::Whole(number), _) => i64::try_from(*number).unwrap_or(i64::MAX).into(),
            (Value::Flag(flag), _) => (*flag).into(),
            // No configuration is built from such a text.
            (Value::Unknown, _) => String::new().into(),
            (Value::Fraction(text) | Value::Moment(text), _) => text.clone().into(),
        }
    }
}

/// The text without what must not be shown.
fn masked(text: &str, path: &[String]) -> String {
    let keys: Vec<&str> = path.iter().map(String::as_str).collect();
    match keys.as_slice() {
        ["routes", _, "add_headers", _] => "***".to_owned(),
        ["store", "url"] => match (text.split_once("://"), text.rsplit_once('@')) {
            (Some((scheme, rest)), Some((_, address))) => {
                let credentials = rest
                    .rsplit_once('@')
                    .map_or("", |(credentials, _)| credentials);
                match credentials.split_once(':') {
                    Some((user, _)) => format!("{scheme}://{user}:***@{address}"),
                    None => text.to_owned(),
                }
            }
            _ => text.to_owned(),
        },
        _ => text.to_owned(),
    }
}

/// Variables are filled in already; a `$` that is left means itself.
fn escaped(text: &str) -> String {
    text.replace('$', "$$")
}
