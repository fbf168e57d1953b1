//! Lists, and tables with names of the operator's choice.

use super::decode::{At, Decode, Reader};
use super::shape::{NAME, Shape};
use super::tree::{Node, Value};

/// Several values.
#[derive(Clone, Debug)]
pub(crate) struct List<T> {
    pub(crate) items: Vec<At<T>>,
    /// Whether all of them could be read.
    pub(crate) complete: bool,
}

/// One value, or several.
#[derive(Clone, Debug)]
pub(crate) struct OneOrMany<T>(pub(crate) List<T>);

/// A table with names of the operator's choice, each a good label.
#[derive(Clone, Debug)]
pub(crate) struct Named<T> {
    pub(crate) entries: Vec<(At<String>, At<T>)>,
    /// Names that would be there but for mistakes that are reported: a use of one of them does not dangle.
    pub(crate) excused: Vec<String>,
}

/// A table whose keys are anything.
#[derive(Clone, Debug)]
pub(crate) struct Pairs<T>(pub(crate) Vec<(At<String>, At<T>)>);

fn pairs<T: Decode>(node: &Node, reader: &Reader<'_>) -> Option<Vec<(At<String>, At<T>)>> {
    let Value::Table(entries) = &node.value else {
        reader.wrong_type(node, "a table", "");
        return None;
    };
    Some(
        entries
            .iter()
            .filter_map(|entry| {
                let name = At {
                    value: entry.key.clone(),
                    place: entry.place,
                };
                Some((name, reader.read(&entry.key, &entry.node)?))
            })
            .collect(),
    )
}

impl<T: Decode> Decode for Named<T> {
    fn shape() -> Shape {
        Shape::Map(NAME, Box::new(T::shape()))
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        if let Value::List(_) = &node.value {
            let help = format!("write [{}.NAME], one table for each", reader.key());
            reader.wrong_type(node, "a table", &help);
            return None;
        }
        let proposed = node
            .entries()
            .iter()
            .filter_map(|entry| reader.check_name(entry));
        let mut excused: Vec<String> = proposed.collect();
        let entries = pairs(node, reader)?;
        let unread = node.entries().iter().map(|entry| &entry.key);
        let unread = unread.filter(|key| entries.iter().all(|(name, _)| name.value != **key));
        excused.extend(unread.cloned());
        Some(Self { entries, excused })
    }
}

impl<T: Decode> Decode for Pairs<T> {
    fn shape() -> Shape {
        Shape::Map("", Box::new(T::shape()))
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        pairs(node, reader).map(Self)
    }
}

impl<T: Decode> Decode for List<T> {
    fn shape() -> Shape {
        Shape::List(Box::new(T::shape()))
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let Value::List(items) = &node.value else {
            reader.wrong_type(node, "an array", "write [ … ] around it");
            return None;
        };
        let read: Vec<At<T>> = items.iter().filter_map(|item| reader.item(item)).collect();
        Some(Self {
            complete: read.len() == items.len(),
            items: read,
        })
    }
}

impl<T: Decode> Decode for OneOrMany<T> {
    fn shape() -> Shape {
        Shape::OneOrMany(Box::new(T::shape()))
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        if let Value::List(items) = &node.value {
            if items.is_empty() {
                reader.wrong_type(node, "at least one", "");
                return None;
            }
            return List::decode(node, reader).map(Self);
        }
        let items = vec![reader.item(node)?];
        Some(Self(List {
            items,
            complete: true,
        }))
    }
}
