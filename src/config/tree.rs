//! TOML as a tree in which everything knows its place. Variables are filled in on the way.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

use super::error::{Code, Finding, Findings};
use super::interpolate::{Lookup, Trouble, interpolate};
use super::source::{Place, Sources};

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) place: Place,
}

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    Whole(i128),
    /// A number with a fraction, as written.
    Fraction(String),
    Flag(bool),
    /// A date or time, as written.
    Moment(String),
    List(Vec<Node>),
    Table(Vec<Entry>),
    /// A text whose variables could not be filled in, as was reported.
    Unknown,
}

/// A key of a table, with its value.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) place: Place,
    pub(crate) node: Node,
}

impl Value {
    /// What it is, in a sentence: "found …".
    pub(crate) fn what(&self) -> &'static str {
        match self {
            Self::Text(_) => "a text",
            Self::Whole(_) => "a whole number",
            Self::Fraction(_) => "a number with a fraction",
            Self::Flag(_) => "true or false",
            Self::Moment(_) => "a date",
            Self::List(_) => "an array",
            Self::Table(_) => "a table",
            Self::Unknown => "unknown",
        }
    }
}

impl Node {
    pub(crate) fn entries(&self) -> &[Entry] {
        match &self.value {
            Value::Table(entries) => entries,
            _ => &[],
        }
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        self.entries()
            .iter()
            .find(|entry| entry.key == key)
            .map(|entry| &entry.node)
    }

    /// The table at `key`, made if there is nothing.
    pub(crate) fn table_mut(&mut self, key: &str, place: Place) -> Option<&mut Self> {
        let Value::Table(entries) = &mut self.value else {
            return None;
        };
        let at = match entries.iter().position(|entry| entry.key == key) {
            Some(at) => at,
            None => {
                entries.push(Entry {
                    key: key.to_owned(),
                    place,
                    node: Self {
                        value: Value::Table(Vec::new()),
                        place,
                    },
                });
                entries.len().saturating_sub(1)
            }
        };
        entries.get_mut(at).map(|entry| &mut entry.node)
    }

    /// Puts `node` at `key`, in place of what was there.
    pub(crate) fn set(&mut self, key: &str, node: Self) {
        if let Value::Table(entries) = &mut self.value {
            entries.retain(|entry| entry.key != key);
            entries.push(Entry {
                key: key.to_owned(),
                place: node.place,
                node,
            });
        }
    }
}

/// Reads a source; `None`, with the reasons in `findings`, if it is not TOML.
pub(crate) fn read(
    source: usize,
    sources: &mut Sources,
    lookup: Lookup<'_>,
    findings: &Findings,
) -> Option<Node> {
    let text = sources.get(source)?.text.clone()?;
    let (table, errors) = DeTable::parse_recoverable(&text);
    if !errors.is_empty() {
        hide_by_line(&text, source, sources);
        report_syntax(&text, source, &errors, findings);
        return None;
    }
    let mut converter = Converter {
        source,
        sources,
        lookup,
        findings,
        path: Vec::new(),
    };
    let mut root = converter.table(table.get_ref());
    in_order_of_the_text(&mut root);
    Some(Node {
        value: root,
        place: Sources::whole(source),
    })
}

/// One error a line: what follows on the same line is mostly its echo.
fn report_syntax(text: &str, source: usize, errors: &[toml::de::Error], findings: &Findings) {
    let mut reported = Vec::new();
    for error in errors {
        let span = error.span().unwrap_or_default();
        let line = text
            .get(..span.start)
            .map_or(0, |before| before.matches('\n').count());
        if reported.contains(&line) {
            continue;
        }
        reported.push(line);
        let place = Place {
            source,
            start: span.start,
            end: span.end,
        };
        let (what, help) = in_words(text, &span, error.message());
        let finding = Finding::new(Code::E001, place, format!("this is not TOML: {what}"));
        findings.add(match help {
            Some(help) => finding.help(help),
            None => finding,
        });
    }
}

/// What a syntax error is, and what to do. It never repeats the text, which may be a secret.
fn in_words(text: &str, span: &Range<usize>, message: &str) -> (String, Option<String>) {
    let found = text.get(span.clone()).unwrap_or_default();
    if message.contains("duplicate key") {
        let help = match found.strip_prefix("[[") {
            Some(name) => format!(
                "write [{}.NAME], one table for each",
                name.trim_matches(']')
            ),
            None => "give each field once; two tables of one name need two names".to_owned(),
        };
        return ("duplicate key".to_owned(), Some(help));
    }
    if let word @ ("true" | "false") = found.to_ascii_lowercase().as_str() {
        let help = format!("write {word}, in small letters");
        return ("malformed boolean".to_owned(), Some(help));
    }
    let unquoted = message.contains("must be quoted");
    if unquoted && found.is_empty() {
        return (
            "a value is missing".to_owned(),
            Some("write a value after the `=`".to_owned()),
        );
    }
    // The parser takes `ip` for the beginning of `inf`, `token-bucket` for that of `true`.
    let like_a_text = ["float", "boolean", "integer", "number", "date"]
        .iter()
        .any(|kind| message.contains(kind))
        && found.contains(|c: char| c.is_alphabetic() || matches!(c, ':' | '/'));
    if unquoted || like_a_text {
        return (
            "a text without quotes".to_owned(),
            Some("put texts in quotes, as in key = \"ip\"".to_owned()),
        );
    }
    let what = message.replace('\n', ", ").replace("invalid", "malformed");
    (what, None)
}

struct Converter<'a> {
    source: usize,
    sources: &'a mut Sources,
    lookup: Lookup<'a>,
    findings: &'a Findings,
    path: Vec<String>,
}

impl Converter<'_> {
    fn place<T>(&self, spanned: &Spanned<T>) -> Place {
        let span = spanned.span();
        Place {
            source: self.source,
            start: span.start,
            end: span.end,
        }
    }

    fn table(&mut self, table: &DeTable<'_>) -> Value {
        let mut entries = Vec::new();
        for (key, value) in table {
            self.path.push(key.get_ref().to_string());
            entries.push(Entry {
                key: key.get_ref().to_string(),
                place: self.place(key),
                node: self.node(value),
            });
            self.path.pop();
        }
        Value::Table(entries)
    }

    fn list(&mut self, list: &DeArray<'_>) -> Value {
        Value::List(list.iter().map(|value| self.node(value)).collect())
    }

    fn node(&mut self, spanned: &Spanned<DeValue<'_>>) -> Node {
        let place = self.place(spanned);
        let value = match spanned.get_ref() {
            DeValue::String(text) => self.text(text, place),
            DeValue::Integer(number) => Value::Whole(whole(number.as_str(), number.radix())),
            DeValue::Float(number) => Value::Fraction(number.as_str().to_owned()),
            DeValue::Boolean(flag) => Value::Flag(*flag),
            DeValue::Datetime(moment) => Value::Moment(moment.to_string()),
            DeValue::Array(list) => self.list(list),
            DeValue::Table(table) => self.table(table),
        };
        Node { value, place }
    }

    fn text(&mut self, text: &str, place: Place) -> Value {
        if self.is_secret(text) {
            self.sources.hide(place);
        }
        interpolate(text, self.lookup).map_or_else(
            |trouble| {
                self.findings.add(unfilled(trouble, place));
                Value::Unknown
            },
            Value::Text,
        )
    }

    /// Whether the text may be something that must not be shown.
    fn is_secret(&self, text: &str) -> bool {
        let key = self.path.last().map_or("", String::as_str);
        // Credentials in a well-formed URL are found by their shape; this is for those that are not.
        let shapeless = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '\\');
        let odd_url = text.contains('@') && (text.contains(shapeless) || !text.contains("://"));
        sounds_secret(key)
            || (key == "url" && odd_url)
            || self.path.iter().any(|key| key.starts_with("add_header"))
    }
}

/// Why the variables of a text could not be filled in.
fn unfilled(trouble: Trouble, place: Place) -> Finding {
    match trouble {
        Trouble::Unset(name) => Finding::new(
            Code::E050,
            place,
            format!("the environment variable `{name}` is not set"),
        )
        .help(format!(
            "set it, or write a default: \"${{{name}:-…}}\"; \"$$\" stands for a dollar sign"
        )),
        Trouble::Unclosed => Finding::new(Code::E050, place, "`${` is not closed with `}`")
            .help("write \"${NAME}\"; \"$$\" stands for a dollar sign"),
        Trouble::NotAName(name) => Finding::new(
            Code::E050,
            place,
            format!("`{name}` is not the name of an environment variable"),
        )
        .help("a name has letters, digits and _; \"$$\" stands for a dollar sign"),
    }
}

/// Whether a field of this name holds a secret. Those that name a file do not.
fn sounds_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    [
        "password",
        "secret",
        "token",
        "authorization",
        "cookie",
        "credential",
        "api-key",
        "api_key",
        "apikey",
        "sha256",
    ]
    .iter()
    .any(|word| key.contains(word))
        && !key.ends_with("_file")
}

/// Hides secrets in text that does not parse: the rest of a line after a field that sounds like one, and the rest of
/// the text where that begins a text of several lines.
fn hide_by_line(text: &str, source: usize, sources: &mut Sources) {
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        let secret = line.match_indices('=').find(|(at, _)| {
            let before = line.get(..*at).unwrap_or_default().trim_end();
            let key = before
                .rsplit([' ', '\t', '{', ','])
                .next()
                .unwrap_or_default();
            sounds_secret(key) || before.contains("add_header")
        });
        if let Some((at, sign)) = secret {
            let rest = line.get(at..).unwrap_or_default();
            let several_lines = rest.contains("\"\"\"") || rest.contains("'''");
            let end = if several_lines {
                text.len()
            } else {
                start + line.trim_end().len()
            };
            sources.hide(Place {
                source,
                start: start + at + sign.len(),
                end,
            });
        }
        start += line.len();
    }
}

fn whole(digits: &str, radix: u32) -> i128 {
    // More digits than 128 bits hold are out of every bound, on their own side of zero.
    i128::from_str_radix(digits, radix).unwrap_or(if digits.starts_with('-') {
        i128::MIN
    } else {
        i128::MAX
    })
}

/// Tables come sorted by name; messages and `dump` follow the text.
fn in_order_of_the_text(value: &mut Value) {
    match value {
        Value::Table(entries) => {
            entries.sort_by_key(|entry| entry.place.start);
            for entry in entries {
                in_order_of_the_text(&mut entry.node.value);
            }
        }
        Value::List(nodes) => {
            for node in nodes {
                in_order_of_the_text(&mut node.value);
            }
        }
        _ => {}
    }
}
