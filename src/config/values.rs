//! Quantities as written, within their bounds.

use std::time::Duration;

use super::decode::{Decode, Reader};
use super::error::{Code, Finding};
use super::shape::Shape;
use super::tree::{Node, Value};
use super::units::{self, Rate};
use crate::check::NewLimit;

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole<const MIN: i64, const MAX: i64>(pub(crate) u64);

/// A duration from `MIN` to `MAX` milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<const MIN: u64, const MAX: u64>(pub(crate) Duration);

/// A size in bytes from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size<const MIN: u64, const MAX: u64>(pub(crate) u64);

/// From 0 to 100.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Percent(pub(crate) u8);

/// `version = 1`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version;

/// A path of a file, as written.
#[derive(Clone, Debug)]
pub(crate) struct FilePath(pub(crate) String);

/// The largest limit, burst or cost, as JSON Schema and TOML write it.
const UNITS_MAX: i64 = 1_000_000_000_000;

/// `limit` of a policy: which of them it has to be, its kind says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LimitOf {
    /// Units per window.
    Rate(Rate),
    /// Units at once.
    AtOnce(u64),
}

/// `lease` of a policy: which of them it has to be, its kind says.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LeaseOf {
    /// Units taken ahead.
    Units(u64),
    /// How long what a gateway holds counts once it is dead.
    Time(Duration),
}

/// How long that may be: renewals come in time, and nobody waits for days.
type LeaseTime = Span<1_000, 86_400_000>;

/// A limit, burst or weight.
pub(crate) type Units = Whole<1, UNITS_MAX>;

/// What a request takes.
pub(crate) type CostUnits = Whole<0, UNITS_MAX>;

impl<const MIN: i64, const MAX: i64> Decode for Whole<MIN, MAX> {
    fn shape() -> Shape {
        Shape::Whole(MIN, MAX)
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let Value::Whole(number) = &node.value else {
            let help = match &node.value {
                Value::Text(text) if text.parse::<i64>().is_ok() => {
                    format!("write {text} without quotes")
                }
                Value::Text(text) if units::rate(text).is_ok() => {
                    "a rate stands in `limit` only; write the bare count here".to_owned()
                }
                _ => String::new(),
            };
            reader.wrong_type(node, "a whole number", &help);
            return None;
        };
        if (i128::from(MIN)..=i128::from(MAX)).contains(number) {
            return u64::try_from(*number).ok().map(Self);
        }
        let help = if *number == 0 && MAX == UNITS_MAX {
            units::INSTEAD_OF_ZERO.to_owned()
        } else {
            format!("write a number from {MIN} to {MAX}")
        };
        reader.out_of_bounds(node, &number.to_string(), help);
        None
    }
}

impl<const MIN: u64, const MAX: u64> Decode for Span<MIN, MAX> {
    fn shape() -> Shape {
        Shape::Text("^([0-9]+(ms|s|min|m|h|d))+$")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = match &node.value {
            Value::Text(text) => text,
            Value::Whole(number) => {
                let help = format!("write the unit: \"{number}s\" or \"{number}ms\"");
                reader.wrong_type(node, "a duration", &help);
                return None;
            }
            _ => {
                reader.wrong_type(node, "a duration such as \"30s\"", "");
                return None;
            }
        };
        let (shortest, longest) = (Duration::from_millis(MIN), Duration::from_millis(MAX));
        match units::duration(text) {
            Ok(duration) if (shortest..=longest).contains(&duration) => Some(Self(duration)),
            Ok(_) => {
                let help = format!(
                    "write a duration from {} to {}",
                    units::duration_text(shortest),
                    units::duration_text(longest)
                );
                reader.out_of_bounds(node, &format!("\"{text}\""), help);
                None
            }
            Err(refusal) => {
                reader.refuse(Code::E020, node, refusal);
                None
            }
        }
    }
}

impl<const MIN: u64, const MAX: u64> Decode for Size<MIN, MAX> {
    fn shape() -> Shape {
        Shape::Text("^[0-9_]+(B|KiB|MiB|GiB)$")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = match &node.value {
            Value::Text(text) => text.as_str(),
            Value::Whole(number) => {
                let help = format!("write the unit: \"{number}B\" or \"{number}KiB\"");
                reader.wrong_type(node, "a size", &help);
                return None;
            }
            _ => reader.text(node, "a size such as \"64KiB\"")?,
        };
        match units::size(text) {
            Ok(size) if (MIN..=MAX).contains(&size) => Some(Self(size)),
            Ok(_) => {
                let help = format!("write a size from {MIN} to {MAX} bytes");
                reader.out_of_bounds(node, &format!("\"{text}\""), help);
                None
            }
            Err(refusal) => {
                reader.refuse(Code::E022, node, refusal);
                None
            }
        }
    }
}

impl Decode for Percent {
    fn shape() -> Shape {
        Shape::Text("^[0-9]{1,3}%$")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = match &node.value {
            Value::Whole(number) => {
                reader.wrong_type(node, "a percentage", &format!("write \"{number}%\""));
                return None;
            }
            _ => reader.text(node, "a percentage such as \"10%\"")?,
        };
        units::percent(text)
            .map(Self)
            .map_err(|refusal| reader.refuse(Code::E022, node, refusal))
            .ok()
    }
}

impl Decode for LimitOf {
    fn shape() -> Shape {
        Shape::AnyOf(vec![Rate::shape(), Units::shape()])
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Whole(1..) => Units::decode(node, reader).map(|units| Self::AtOnce(units.0)),
            _ => Rate::decode(node, reader).map(Self::Rate),
        }
    }
}

impl Decode for LeaseOf {
    fn shape() -> Shape {
        Shape::AnyOf(vec![LeaseTime::shape(), Units::shape()])
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Text(text) if text.parse::<i64>().is_err() => {
                LeaseTime::decode(node, reader).map(|time| Self::Time(time.0))
            }
            _ => Units::decode(node, reader).map(|units| Self::Units(units.0)),
        }
    }
}

impl Decode for Rate {
    fn shape() -> Shape {
        Shape::Text("^[0-9_]+/([0-9_]*(ms|s|min|m|h|d)|month)$")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = match &node.value {
            Value::Whole(number @ ..=0) => {
                reader.refuse(Code::E021, node, units::not_a_limit(&number.to_string()));
                return None;
            }
            Value::Whole(number) => {
                reader.wrong_type(node, "a rate", &say_for_how_long(number));
                return None;
            }
            _ => reader.text(node, "a rate such as \"100/min\"")?,
        };
        match units::rate(text) {
            Ok(rate) => Some(rate),
            Err(refusal) if refusal.out_of_bounds => {
                reader.refuse(Code::E021, node, refusal);
                None
            }
            Err(refusal) => {
                let finding = Finding::new(
                    Code::E021,
                    node.place,
                    format!("`{} = \"{text}\"` is not a rate", reader.key()),
                );
                reader.report(finding.help(refusal.help.unwrap_or_default()));
                None
            }
        }
    }
}

impl Decode for NewLimit {
    fn shape() -> Shape {
        Shape::AnyOf(vec![Rate::shape(), Units::shape()])
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Whole(_) => Units::decode(node, reader).map(|count| Self::Count(count.0)),
            _ => Rate::decode(node, reader).map(|rate| Self::Rate(rate.limit)),
        }
    }
}

/// What to write instead of a count that lacks its window.
pub(crate) fn say_for_how_long(count: impl std::fmt::Display) -> String {
    format!("say for how long: \"{count}/s\", \"{count}/min\", \"{count}/h\"")
}

impl Decode for Version {
    fn shape() -> Shape {
        Shape::Whole(1, 1)
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Whole(1) => Some(Self),
            Value::Whole(number) => {
                reader.report(
                    Finding::new(
                        Code::E010,
                        node.place,
                        format!("this file is of version {number}; this release reads version 1"),
                    )
                    .help("write version = 1, or run a release that knows the other"),
                );
                None
            }
            _ => {
                reader.wrong_type(node, "a whole number", "write version = 1");
                None
            }
        }
    }
}

impl Decode for FilePath {
    fn shape() -> Shape {
        Shape::File
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let path = reader.text(node, "the path of a file")?;
        if path.is_empty() {
            reader.report(Finding::new(
                Code::E051,
                node.place,
                format!("`{}` names no file", reader.key()),
            ));
            return None;
        }
        Some(Self(path.to_owned()))
    }
}
