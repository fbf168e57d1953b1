//! `penalty` of a policy: how long denials last.

use super::decode::{At, Decode, Reader};
use super::error::{Code, Finding};
use super::shape::Shape;
use super::tree::{Node, Value};
use super::values::Span;
use crate::decide::penalty::STEPS_MAX;

/// From a second to as long as the longest month.
type Step = Span<1_000, 2_678_400_000>;

/// One step, or several that rise.
#[derive(Clone, Debug)]
pub(crate) struct Steps(pub(crate) Vec<Step>);

impl Decode for Steps {
    fn shape() -> Shape {
        Shape::OneOrMany(Box::new(Step::shape()))
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let Value::List(items) = &node.value else {
            return reader
                .item(node)
                .map(|step: At<Step>| Self(vec![step.value]));
        };
        let refuse = |place, what: String, help: &str| {
            reader.report(Finding::new(Code::E045, place, what).help(help));
        };
        if items.is_empty() {
            let help = "write penalty = \"10m\", or take it out";
            refuse(node.place, "`penalty` lists no step".to_owned(), help);
            return None;
        }
        if items.len() > STEPS_MAX {
            let what = format!(
                "`penalty` has {} steps; {STEPS_MAX} are the most",
                items.len()
            );
            refuse(
                node.place,
                what,
                "leave some of them out: the last one repeats",
            );
            return None;
        }
        let steps: Vec<At<Step>> = items.iter().filter_map(|item| reader.item(item)).collect();
        let mut good = steps.len() == items.len();
        for (earlier, later) in steps.iter().zip(steps.iter().skip(1)) {
            if later.value.0 <= earlier.value.0 {
                good = false;
                let what = "`penalty`: this step is no longer than the one before".to_owned();
                refuse(
                    later.place,
                    what,
                    "write the shortest first: [\"1m\", \"10m\", \"1h\"]",
                );
            }
        }
        good.then(|| Self(steps.into_iter().map(|step| step.value).collect()))
    }
}
