//! When windows begin, as written.

use super::decode::{Decode, Reader};
use super::error::{Code, Finding, did_you_mean};
use super::file::CalendarTable;
use super::shape::Shape;
use super::tree::{Node, Value};
use crate::decide::CalendarUnit;
use crate::decide::calendar::zones;

/// `anchor` of a policy.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum AnchorAt {
    Epoch,
    FirstRequest,
    Calendar(CalendarUnit, ZoneName),
}

/// A time zone that there is.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct ZoneName(pub(crate) String);

const WORDS: [&str; 2] = ["epoch", "first-request"];

impl Decode for AnchorAt {
    fn shape() -> Shape {
        Shape::AnyOf(vec![Shape::Words(WORDS.to_vec()), CalendarTable::shape()])
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        if let Value::Table(_) = &node.value {
            let table = CalendarTable::decode(node, reader)?;
            return Some(Self::Calendar(table.calendar?.value, table.tz?.value));
        }
        match reader.word(node, &WORDS)?.as_str() {
            "first-request" => Some(Self::FirstRequest),
            _ => Some(Self::Epoch),
        }
    }
}

impl Decode for ZoneName {
    fn shape() -> Shape {
        Shape::Text("")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = reader.text(node, "a time zone such as \"Europe/Berlin\"")?;
        let known = zones();
        if known.iter().any(|name| name == text) {
            return Some(Self(text.to_owned()));
        }
        let in_other_letters = known.iter().find(|name| name.eq_ignore_ascii_case(text));
        let near = in_other_letters
            .map(String::as_str)
            .or_else(|| did_you_mean(text, known.iter().map(String::as_str)));
        let what = format!("`{} = \"{text}\"` is no time zone", reader.key());
        reader.report(
            Finding::new(Code::E044, node.place, what)
                .label(near.map_or_else(String::new, |near| format!("did you mean \"{near}\"?")))
                .help(
                    "write its name in the IANA database: \"Europe/Berlin\", \"America/New_York\", \"UTC\"",
                ),
        );
        None
    }
}
