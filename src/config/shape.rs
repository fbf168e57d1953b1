//! What may be written: one declaration of each table, from which decoding, `tollgate schema` and `dump` follow.

use serde_json::{Map, Value, json};

/// What a value may look like.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// A text. The pattern is a regular expression of JSON Schema, empty for any text.
    Text(&'static str),
    /// One of these words.
    Words(Vec<&'static str>),
    /// A whole number between these, inclusive.
    Whole(i64, i64),
    /// `true` or `false`.
    Flag,
    /// Only `true`.
    True,
    /// A path of a file, relative to the file it stands in.
    File,
    /// Several of these.
    List(Box<Shape>),
    /// One, or several.
    OneOrMany(Box<Shape>),
    /// A table with names of the operator's choice; the pattern is that of the names.
    Map(&'static str, Box<Shape>),
    /// A table with these fields.
    Table(TableShape),
    /// Any of these.
    AnyOf(Vec<Shape>),
}

/// A table and what it is for.
#[derive(Clone, Debug)]
pub(crate) struct TableShape {
    pub(crate) about: &'static str,
    pub(crate) fields: Vec<Field>,
}

/// A field of a table.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) key: &'static str,
    pub(crate) about: &'static str,
    /// As TOML.
    pub(crate) default: Option<&'static str>,
    pub(crate) required: bool,
    pub(crate) shape: Shape,
}

/// What names of policies, routes and the like look like.
pub(crate) const NAME: &str = "^[a-z][a-z0-9-]{0,47}$";

impl Shape {
    /// Every table of `tables` that the shape can be, and the fields of the first that has `key`.
    pub(crate) fn table_with(&self, key: &str) -> Option<&TableShape> {
        match self {
            Self::Table(table) => Some(table),
            Self::AnyOf(shapes) => shapes
                .iter()
                .filter_map(|shape| shape.table_with(key))
                .find(|table| table.fields.iter().any(|field| field.key == key)),
            _ => None,
        }
    }

    fn schema(&self) -> Value {
        match self {
            Self::Text("") | Self::File => json!({ "type": "string" }),
            // Every pattern leaves room for variables, which are filled in before it counts.
            Self::Text(pattern) => json!({
                "type": "string",
                "anyOf": [{ "pattern": pattern }, { "pattern": "\\$\\{" }],
            }),
            Self::Words(words) => json!({
                "type": "string",
                "anyOf": [{ "enum": words }, { "pattern": "\\$\\{" }],
            }),
            Self::Whole(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
            Self::Flag => json!({ "type": "boolean" }),
            Self::True => json!({ "const": true }),
            Self::List(item) => json!({ "type": "array", "items": item.schema() }),
            Self::OneOrMany(item) => json!({
                "anyOf": [item.schema(), { "type": "array", "minItems": 1, "items": item.schema() }],
            }),
            Self::Map("", item) => {
                json!({ "type": "object", "additionalProperties": item.schema() })
            }
            Self::Map(names, item) => json!({
                "type": "object",
                "propertyNames": { "pattern": names },
                "additionalProperties": item.schema(),
            }),
            Self::Table(table) => table.schema(),
            Self::AnyOf(shapes) => json!({
                "anyOf": shapes.iter().map(Self::schema).collect::<Vec<_>>(),
            }),
        }
    }
}

impl TableShape {
    fn schema(&self) -> Value {
        let mut properties = Map::new();
        for field in &self.fields {
            let mut schema = field.shape.schema();
            if let Some(object) = schema.as_object_mut() {
                object.insert("description".to_owned(), field.about.into());
                if let Some(default) = field.default.and_then(json_of) {
                    object.insert("default".to_owned(), default);
                }
            }
            properties.insert(field.key.to_owned(), schema);
        }
        let required: Vec<&str> = self
            .fields
            .iter()
            .filter(|field| field.required)
            .map(|field| field.key)
            .collect();
        let mut schema = json!({
            "type": "object",
            "description": self.about,
            "properties": properties,
            "additionalProperties": false,
        });
        if let (false, Some(object)) = (required.is_empty(), schema.as_object_mut()) {
            object.insert("required".to_owned(), json!(required));
        }
        schema
    }

    /// JSON Schema draft-07 of a file whose top level is this table.
    pub(crate) fn document(&self) -> Value {
        let mut schema = self.schema();
        if let Some(object) = schema.as_object_mut() {
            object.insert(
                "$schema".to_owned(),
                "http://json-schema.org/draft-07/schema#".into(),
            );
            object.insert("title".to_owned(), "Tollgate configuration".into());
        }
        schema
    }
}

fn json_of(default: &str) -> Option<Value> {
    let table: toml::Table = format!("it = {default}").parse().ok()?;
    serde_json::to_value(table.get("it")?).ok()
}
