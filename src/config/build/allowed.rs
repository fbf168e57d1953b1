//! Fields of a policy that mean something for some kinds only, or not beside one another.

use super::{Builder, value};
use crate::check::{KeySource, Scope};
use crate::config::decode::{At, quoted};
use crate::config::error::{Code, Finding};
use crate::config::file::{Kind, Policy as Written};
use crate::config::items::Count;
use crate::config::source::Place;
use crate::config::values::LeaseOf;

impl Builder<'_> {
    /// Fields that mean something for some kinds only.
    pub(super) fn check_allowed(&self, name: &str, written: &Written) {
        let Some(kind) = value(&written.kind) else {
            return;
        };
        let place = |field: &'static str, place: Option<Place>, kinds: &'static [Kind]| {
            place
                .filter(|_| !kinds.contains(&kind))
                .map(|place| (field, place, kinds))
        };
        let misplaced = [
            place(
                "count",
                match &written.count {
                    Some(At {
                        value: Count::By(_),
                        place,
                    }) => Some(*place),
                    _ => None,
                },
                &[
                    Kind::FixedWindow,
                    Kind::SlidingLog,
                    Kind::SlidingCounter,
                    Kind::TokenBucket,
                    Kind::LeakyBucket,
                ],
            ),
            place(
                "burst",
                written.burst.as_ref().map(|at| at.place),
                &[Kind::TokenBucket, Kind::LeakyBucket],
            ),
            place(
                "max_wait",
                written.max_wait.as_ref().map(|at| at.place),
                &[Kind::LeakyBucket],
            ),
            place(
                "anchor",
                written.anchor.as_ref().map(|at| at.place),
                &[Kind::FixedWindow],
            ),
            place(
                "penalty",
                written.penalty.as_ref().map(|at| at.place),
                &[
                    Kind::FixedWindow,
                    Kind::SlidingLog,
                    Kind::SlidingCounter,
                    Kind::TokenBucket,
                    Kind::LeakyBucket,
                ],
            ),
            place(
                "strict",
                written.strict.as_ref().map(|at| at.place),
                &[Kind::SlidingCounter],
            ),
            place(
                "lease",
                written.lease.as_ref().map(|at| at.place),
                &[
                    Kind::FixedWindow,
                    Kind::SlidingLog,
                    Kind::SlidingCounter,
                    Kind::TokenBucket,
                    Kind::Concurrency,
                ],
            ),
        ];
        if let (Some(lease), Some(Scope::Local)) = (&written.lease, value(&written.store)) {
            let why = if kind == Kind::Concurrency {
                "what is in flight in a gateway that dies ends with it"
            } else {
                "what each gateway counts for itself it need not take ahead"
            };
            self.error(
                Code::E030,
                lease.place,
                format!("`lease` means nothing for store = \"local\", in policy `{name}`"),
                format!("take it out: {why}"),
            );
        }
        for (field, place, kinds) in misplaced.into_iter().flatten() {
            let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            self.error(
                Code::E030,
                place,
                format!(
                    "`{field}` means nothing for kind \"{}\", in policy `{name}`",
                    kind.as_str()
                ),
                format!("take it out, or write kind = {}", quoted(&kinds)),
            );
        }
    }

    /// A penalty beside what undoes it, or for people who did nothing.
    pub(super) fn check_penalty(&self, name: &str, written: &Written, key: &[KeySource]) {
        let Some(penalty) = &written.penalty else {
            return;
        };
        if let Some(lease) = &written.lease
            && let LeaseOf::Units(_) = lease.value
        {
            self.error(
                Code::E018,
                lease.place,
                format!("policy `{name}` has a `lease` and a `penalty`, which exclude each other"),
                "take one out: units that a gateway took ahead would pass there whom another one denies",
            );
        }
        let tells_nobody_apart = |source: &KeySource| {
            matches!(
                source,
                KeySource::Global | KeySource::Method | KeySource::Host | KeySource::Route
            )
        };
        if key.iter().all(tells_nobody_apart) {
            self.findings.add(
                Finding::new(
                    Code::W223,
                    penalty.place,
                    format!("policy `{name}` counts all callers together: what one of them does shuts out everybody"),
                )
                .help("count by what tells callers apart, as key = \"ip\", or take the penalty out"),
            );
        }
    }
}
