//! Values with more than one form: keys, servers, the items of a route's policies.

use super::collections::List;
use super::cost_source::CostSource;
use super::decode::{At, Decode, Reader};
use super::error::{Code, Finding};
use super::file::{CostTable, CountTable, ItemTable, UseTable, WeightedServer};
use super::key_source;
use super::name::is_name;
use super::shape::{NAME, Shape};
use super::tree::{Node, Value};
use super::values::CostUnits;
use crate::check::{KeySource, Unit};

/// `key` of a policy: at least one source.
#[derive(Clone, Debug)]
pub(crate) struct Key(pub(crate) Vec<At<KeySource>>);

/// `count` of a policy.
#[derive(Clone, Debug)]
pub(crate) enum Count {
    All,
    By(Box<CountTable>),
}

/// A server of an upstream, and its weight.
#[derive(Clone, Debug)]
pub(crate) struct ServerAt {
    pub(crate) address: At<String>,
    pub(crate) weight: u64,
}

/// What a request takes.
#[derive(Clone, Debug)]
pub(crate) enum CostItem {
    Units(u64),
    Read(Box<CostTable>),
}

/// A policy at its place on a route.
#[derive(Clone, Debug)]
pub(crate) struct UseItem {
    pub(crate) policy: At<String>,
    pub(crate) cost: Option<At<CostItem>>,
}

/// An item of a route's policies.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    One(UseItem),
    FirstOf(List<UseItem>),
}

impl Decode for KeySource {
    fn shape() -> Shape {
        Shape::Text(
            "^(ip(/[0-9]+)?|identity|tier|method|host|route|global|(jwt|header|cookie|query|path):.+)$",
        )
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = reader.text(node, "a key source such as \"ip\" or \"header:x-api-key\"")?;
        key_source::parse(text)
            .map_err(|refusal| reader.refuse(Code::E031, node, refusal))
            .ok()
    }
}

impl Decode for Key {
    fn shape() -> Shape {
        Shape::OneOrMany(Box::new(KeySource::shape()))
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let Value::List(items) = &node.value else {
            return reader.item(node).map(|source| Self(vec![source]));
        };
        if items.is_empty() {
            reader.report(
                Finding::new(Code::E031, node.place, "`key` names no source")
                    .help("write key = \"ip\", or key = \"global\" to count everybody together"),
            );
            return None;
        }
        let sources: Vec<At<KeySource>> =
            items.iter().filter_map(|item| reader.item(item)).collect();
        let mut good = sources.len() == items.len();
        for (position, source) in sources.iter().enumerate() {
            let spelling = source.value.to_string();
            let twice = sources
                .iter()
                .take(position)
                .any(|earlier| earlier.value == source.value);
            let idle = source.value == KeySource::Global && sources.len() > 1;
            if twice || idle {
                good = false;
                let why = if twice {
                    "stands here twice"
                } else {
                    "adds nothing to other sources"
                };
                reader.report(
                    Finding::new(
                        Code::E031,
                        source.place,
                        format!("`key`: `{spelling}` {why}"),
                    )
                    .help(format!("take \"{spelling}\" out")),
                );
            }
        }
        good.then_some(Self(sources))
    }
}

impl Decode for Unit {
    fn shape() -> Shape {
        Shape::Text(NAME)
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = reader.text(node, "\"requests\", \"content-bytes\" or a name")?;
        if !is_name(text) {
            reader.report(
                Finding::new(
                    Code::E019,
                    node.place,
                    format!("`unit`: `{text}` cannot be a unit's name"),
                )
                .help("write \"requests\", \"content-bytes\", or a name of a-z, 0-9 and -"),
            );
            return None;
        }
        match text {
            "requests" => Some(Self::Requests),
            "content-bytes" => Some(Self::ContentBytes),
            _ => Some(Self::Custom(text.into())),
        }
    }
}

impl Decode for Count {
    fn shape() -> Shape {
        Shape::AnyOf(vec![Shape::Words(vec!["all"]), CountTable::shape()])
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Text(text) if text == "all" => Some(Self::All),
            Value::Table(_) => {
                CountTable::decode(node, reader).map(|table| Self::By(Box::new(table)))
            }
            _ => {
                reader.wrong_type(
                    node,
                    "\"all\" or a table such as { status = [401, 403] }",
                    "",
                );
                None
            }
        }
    }
}

impl Decode for ServerAt {
    fn shape() -> Shape {
        Shape::AnyOf(vec![Shape::Text(":[0-9]+$"), WeightedServer::shape()])
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Text(text) => Some(Self {
                address: At {
                    value: text.clone(),
                    place: node.place,
                },
                weight: 1,
            }),
            Value::Table(_) => {
                let table = WeightedServer::decode(node, reader)?;
                Some(Self {
                    address: table.addr?,
                    weight: table.weight?.value.0,
                })
            }
            _ => {
                reader.wrong_type(node, "\"host:port\" or { addr, weight }", "");
                None
            }
        }
    }
}

impl CostItem {
    /// Whether the answer says it.
    pub(crate) fn is_in_answer(&self) -> bool {
        let Self::Read(table) = self else {
            return false;
        };
        let from = table.from.as_ref().map(|from| &from.value);
        matches!(from, Some(CostSource::Response(_)))
    }

    /// The most that it takes before a request passes, as far as that is written.
    pub(crate) fn most(&self) -> u64 {
        let table = match self {
            Self::Units(units) => return *units,
            Self::Read(table) => table,
        };
        let units = |written: &Option<At<CostUnits>>| written.as_ref().map(|at| at.value.0);
        if self.is_in_answer() {
            return units(&table.reserve).unwrap_or(1);
        }
        let values = table.values.iter().flat_map(|values| &values.value.0);
        let listed = values.map(|(_, units)| units.value.0).max();
        let most = units(&table.default).max(units(&table.max)).max(listed);
        most.unwrap_or(1)
    }
}

impl Decode for CostItem {
    fn shape() -> Shape {
        Shape::AnyOf(vec![CostUnits::shape(), CostTable::shape()])
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Table(_) => {
                CostTable::decode(node, reader).map(|table| Self::Read(Box::new(table)))
            }
            Value::Whole(_) => CostUnits::decode(node, reader).map(|units| Self::Units(units.0)),
            _ => {
                reader.wrong_type(node, "a whole number or { from, … }", "");
                None
            }
        }
    }
}

impl Decode for UseItem {
    fn shape() -> Shape {
        Shape::AnyOf(vec![Shape::Text(NAME), UseTable::shape()])
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Text(name) => Some(Self {
                policy: At {
                    value: name.clone(),
                    place: node.place,
                },
                cost: None,
            }),
            Value::Table(_) => {
                let table = UseTable::decode(node, reader)?;
                Some(Self {
                    policy: table.r#use?,
                    cost: table.cost,
                })
            }
            _ => {
                reader.wrong_type(node, "a policy's name or { use, cost }", "");
                None
            }
        }
    }
}

impl Decode for Item {
    fn shape() -> Shape {
        Shape::AnyOf(vec![Shape::Text(NAME), ItemTable::shape()])
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let Value::Table(_) = &node.value else {
            if let Value::Text(_) = &node.value {
                return UseItem::decode(node, reader).map(Self::One);
            }
            reader.wrong_type(
                node,
                "a policy's name, { use, cost } or { first_of = [ … ] }",
                "",
            );
            return None;
        };
        let conflict = |what: &str, help: &str| {
            reader.report(Finding::new(Code::E018, node.place, what).help(help));
            None
        };
        let written = |key: &str| node.get(key).is_some();
        let table = ItemTable::decode(node, reader)?;
        match (written("use"), written("first_of")) {
            (true, false) => Some(Self::One(UseItem {
                policy: table.r#use?,
                cost: table.cost,
            })),
            (false, true) if written("cost") => conflict(
                "`cost` cannot stand beside `first_of`",
                "write it at each: first_of = [{ use = \"a\", cost = 2 }, …]",
            ),
            (false, true) => {
                let list = table.first_of?;
                if list.value.items.is_empty() && list.value.complete {
                    return conflict("`first_of` lists no policy", "name one at least");
                }
                Some(Self::FirstOf(list.value))
            }
            (true, true) => conflict(
                "`use` and `first_of` exclude each other",
                "write { use = \"a\" } or { first_of = [\"a\", \"b\"] }",
            ),
            (false, false) => conflict(
                "this names no policy",
                "write \"a\", { use = \"a\", cost = 2 } or { first_of = [\"a\", \"b\"] }",
            ),
        }
    }
}
