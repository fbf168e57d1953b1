//! From the tree to the shapes as written. Every value is read even if its neighbour is wrong.

use super::advice::{self, Hint};
use super::error::{Code, Finding, Findings, did_you_mean};
use super::shape::{Field, Shape, TableShape};
use super::source::Place;
use super::tree::{Entry, Node, Value};
use super::units::Refusal;

/// A value, and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) place: Place,
}

/// Something that can be read from the tree.
pub(crate) trait Decode: Sized {
    /// What may be written.
    fn shape() -> Shape;

    /// Reads it; `None`, with the reasons among the reader's findings, if it is not what it should be.
    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self>;
}

/// A table as [`table!`] declares it.
pub(crate) trait Table: Default {
    /// What it is for, and its fields.
    fn table_shape() -> TableShape;

    /// Reads the field `key`; false if there is none.
    fn set(&mut self, key: &str, node: &Node, reader: &Reader<'_>) -> bool;

    /// Notes that something was written for `key`, and reported, that could not be read.
    fn set_unread(&mut self, key: &'static str);
}

/// Declares a table once: its fields, their types, defaults (as TOML) and meanings.
///
/// `field: Type;` may be left out, `field: Type = "default";` then has that value, `field: Type, required;` must
/// not be left out.
macro_rules! table {
    ($(#[doc = $about:literal])+ $table:ident {
        $( $(#[doc = $meaning:literal])+ $field:ident : $type:ty $(= $default:literal)? $(, $required:ident)? ; )*
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, Default)]
        pub(crate) struct $table {
            $( $(#[doc = $meaning])+ pub(crate) $field: Option<$crate::config::decode::At<$type>>, )*
            /// What is written but could not be read, as was reported: it is not missing.
            pub(crate) unread: Vec<&'static str>,
        }

        impl $crate::config::decode::Table for $table {
            fn table_shape() -> $crate::config::shape::TableShape {
                $crate::config::shape::TableShape {
                    about: concat!($($about),+).trim_ascii(),
                    fields: vec![ $( $crate::config::shape::Field {
                        key: $crate::config::decode::field_key(stringify!($field)),
                        about: concat!($($meaning),+).trim_ascii(),
                        default: None::<&'static str>$(.or(Some($default)))?,
                        required: None::<&'static str>$(.or(Some(stringify!($required))))?.is_some(),
                        shape: <$type as $crate::config::decode::Decode>::shape(),
                    }, )* ],
                }
            }

            fn set(
                &mut self,
                key: &str,
                node: &$crate::config::tree::Node,
                reader: &$crate::config::decode::Reader<'_>,
            ) -> bool {
                $( if key == $crate::config::decode::field_key(stringify!($field)) {
                    self.$field = reader.read(key, node);
                    if self.$field.is_none() {
                        self.set_unread($crate::config::decode::field_key(stringify!($field)));
                    }
                    return true;
                } )*
                false
            }

            fn set_unread(&mut self, key: &'static str) {
                self.unread.push(key);
            }
        }

        impl $crate::config::decode::Decode for $table {
            fn shape() -> $crate::config::shape::Shape {
                $crate::config::shape::Shape::Table(<Self as $crate::config::decode::Table>::table_shape())
            }

            fn decode(
                node: &$crate::config::tree::Node,
                reader: &$crate::config::decode::Reader<'_>,
            ) -> Option<Self> {
                reader.table(node)
            }
        }
    };
}

/// Declares the words that a type is written as.
macro_rules! words {
    ($type:ty { $( $word:literal => $value:expr ),+ $(,)? }) => {
        impl $crate::config::decode::Decode for $type {
            fn shape() -> $crate::config::shape::Shape {
                $crate::config::shape::Shape::Words(vec![ $($word),+ ])
            }

            fn decode(
                node: &$crate::config::tree::Node,
                reader: &$crate::config::decode::Reader<'_>,
            ) -> Option<Self> {
                match reader.word(node, &[ $($word),+ ])?.as_str() {
                    $( $word => Some($value), )+
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use {table, words};

/// A field's key: its identifier, without the mark of a raw one.
pub(crate) fn field_key(identifier: &'static str) -> &'static str {
    identifier.strip_prefix("r#").unwrap_or(identifier)
}

/// Reads values, knowing where in the file it is.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    pub(crate) findings: &'a Findings,
    path: Vec<String>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(findings: &'a Findings) -> Self {
        Self {
            findings,
            path: Vec::new(),
        }
    }

    /// Reads what stands at `key`.
    pub(crate) fn read<T: Decode>(&self, key: &str, node: &Node) -> Option<At<T>> {
        let mut path = self.path.clone();
        path.push(key.to_owned());
        let reader = Self {
            findings: self.findings,
            path,
        };
        reader.item(node)
    }

    /// Reads an item of a list, under the list's name.
    pub(crate) fn item<T: Decode>(&self, node: &Node) -> Option<At<T>> {
        T::decode(node, self).map(|value| At {
            value,
            place: node.place,
        })
    }

    /// The key that is being read.
    pub(crate) fn key(&self) -> &str {
        self.path.last().map_or("", String::as_str)
    }

    /// Where in the file it is, as one says it: `policy `login``.
    pub(crate) fn subject(&self) -> String {
        subject(&self.path)
    }

    fn within(&self) -> String {
        if self.path.is_empty() {
            "at the top level".to_owned()
        } else {
            format!("in {}", self.subject())
        }
    }

    pub(crate) fn report(&self, finding: Finding) {
        self.findings.add(finding);
    }

    /// Reports that a value is of the wrong type.
    pub(crate) fn wrong_type(&self, node: &Node, expected: &str, help: &str) {
        if matches!(node.value, Value::Unknown) {
            return;
        }
        let finding = Finding::new(
            Code::E015,
            node.place,
            format!(
                "`{}` is {}; {expected} is expected",
                self.key(),
                node.value.what()
            ),
        );
        self.report(if help.is_empty() {
            finding
        } else {
            finding.help(help)
        });
    }

    /// Reports that a text is not what it should be; `code` unless it is out of bounds.
    pub(crate) fn refuse(&self, code: Code, node: &Node, refusal: Refusal) {
        let code = if refusal.out_of_bounds {
            Code::E026
        } else {
            code
        };
        let finding = Finding::new(
            code,
            node.place,
            format!("`{}`: {}", self.key(), refusal.why),
        );
        self.report(match refusal.help {
            Some(help) => finding.help(help),
            None => finding,
        });
    }

    /// Reports that a value, as it is spelled, is too small or too large.
    pub(crate) fn out_of_bounds(&self, node: &Node, spelled: &str, help: String) {
        let message = format!("`{} = {spelled}` is out of bounds", self.key());
        self.report(Finding::new(Code::E026, node.place, message).help(help));
    }

    /// A text.
    pub(crate) fn text<'n>(&self, node: &'n Node, expected: &str) -> Option<&'n str> {
        match &node.value {
            Value::Text(text) => Some(text),
            Value::Whole(number) => {
                self.wrong_type(node, expected, &format!("write \"{number}\" in quotes"));
                None
            }
            _ => {
                self.wrong_type(node, expected, "");
                None
            }
        }
    }

    /// One of `words`.
    pub(crate) fn word(&self, node: &Node, words: &[&str]) -> Option<String> {
        let listed = quoted(words);
        let found = match &node.value {
            Value::Text(text) => text.clone(),
            Value::Whole(number) if words.contains(&number.to_string().as_str()) => {
                self.wrong_type(node, "a text", &format!("write \"{number}\""));
                return None;
            }
            _ => {
                self.wrong_type(node, &listed, "");
                return None;
            }
        };
        if words.contains(&found.as_str()) {
            return Some(found);
        }
        let hint = advice::word(&self.path, &found);
        let near = match hint {
            Some(Hint::Meant(meant)) => Some(meant),
            _ => did_you_mean(&found, words.iter().copied()),
        };
        self.report(
            Finding::new(
                Code::E017,
                node.place,
                format!("`{} = \"{found}\"` is not known", self.key()),
            )
            .label(near.map_or_else(String::new, |near| format!("did you mean \"{near}\"?")))
            .help(format!("write {listed}")),
        );
        None
    }

    /// A table that is declared by [`table!`].
    pub(crate) fn table<T: Table>(&self, node: &Node) -> Option<T> {
        let Value::Table(entries) = &node.value else {
            self.wrong_type(node, "a table", "");
            return None;
        };
        let shape = T::table_shape();
        let mut table = T::default();
        let mut meant = Vec::new();
        for entry in entries {
            if !table.set(&entry.key, &entry.node, self) {
                meant.extend(self.unknown(entry, &shape.fields));
            }
        }
        for field in &shape.fields {
            // What is there under a misspelt name is not missing.
            if field.required && node.get(field.key).is_none() && !meant.contains(&field.key) {
                self.missing(node, field);
            }
        }
        for key in meant {
            table.set_unread(key);
        }
        Some(table)
    }

    /// Reports a field that does not exist; returns the one that was probably meant.
    fn unknown(&self, entry: &Entry, fields: &[Field]) -> Option<&'static str> {
        let keys = || fields.iter().map(|field| field.key);
        let (near, help, meant) = match advice::field(&self.path, &entry.key) {
            Some(Hint::Meant(meant)) => (Some(meant), None, Some(meant)),
            Some(Hint::Later) => (
                None,
                Some(format!("`{}` is not part of this release", entry.key)),
                None,
            ),
            Some(Hint::Help { help, instead_of }) => (None, Some(help), instead_of),
            None => {
                let near = did_you_mean(&entry.key, keys());
                (near, None, near)
            }
        };
        let finding = Finding::new(
            Code::E014,
            entry.place,
            format!("unknown field `{}` {}", entry.key, self.within()),
        )
        .label(near.map_or_else(String::new, |near| format!("did you mean `{near}`?")))
        .note(format!(
            "allowed here: {}",
            keys().collect::<Vec<_>>().join(", ")
        ));
        self.report(match help {
            Some(help) => finding.help(help),
            None => finding,
        });
        meant
    }

    fn missing(&self, node: &Node, field: &Field) {
        let what = match &field.shape {
            Shape::Words(words) => format!("…: {}", quoted(words)),
            _ => example(&self.path, field.key).to_owned(),
        };
        self.report(
            Finding::new(
                Code::E016,
                node.place,
                format!("{} lacks `{}`", self.subject(), field.key),
            )
            .help(format!("add {} = {what}", field.key)),
        );
    }
}

/// What a field that is missing may look like.
fn example(path: &[String], key: &str) -> &'static str {
    match key {
        "cert" => "\"tls.crt\"",
        "key" if path.last().is_some_and(|table| table == "tls") => "\"tls.key\"",
        "limit" => "\"100/min\"",
        "key" => "\"ip\"",
        "tz" => "\"Europe/Berlin\"",
        "address" => "\"127.0.0.1:8080\"",
        "addr" => "\"127.0.0.1:9000\"",
        "match" => "{ path = \"/*\" }",
        "limits" => "{ POLICY = \"100/min\" }",
        "file" => "\"/etc/tollgate/api-keys.toml\"",
        "sha256" => "\"…\", as `tollgate hash-key` prints it",
        _ => "…",
    }
}

/// `policy `login``, `` `match` of route `login` ``, `` `[server]` ``.
fn subject(path: &[String]) -> String {
    let named = |table: &str| match table {
        "policies" => Some("policy"),
        "routes" => Some("route"),
        "upstreams" => Some("upstream"),
        "listeners" => Some("listener"),
        "rejects" => Some("reject"),
        "tiers" => Some("tier"),
        "overrides" => Some("override"),
        "exemptions" => Some("exemption"),
        "keys" => Some("key"),
        _ => None,
    };
    match path {
        [] => "the top level".to_owned(),
        [table, name] if named(table).is_some() => {
            format!("{} `{name}`", named(table).unwrap_or_default())
        }
        [table] => format!("`[{table}]`"),
        [above @ .., last] => format!("`{last}` of {}", subject(above)),
    }
}

/// `"a", "b" or "c"`.
pub(crate) fn quoted(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

impl Decode for String {
    fn shape() -> Shape {
        Shape::Text("")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        reader.text(node, "a text").map(str::to_owned)
    }
}

impl Decode for bool {
    fn shape() -> Shape {
        Shape::Flag
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Flag(flag) => Some(*flag),
            Value::Text(text) if text == "true" || text == "false" => {
                reader.wrong_type(
                    node,
                    "true or false",
                    &format!("write {text} without quotes"),
                );
                None
            }
            _ => {
                reader.wrong_type(node, "true or false", "");
                None
            }
        }
    }
}
