//! What must hold of whatever comes in. The short run of these is `tests/model/fuzz.rs`, the long one `fuzz/`.

mod config;
mod cost;
mod fields;
mod forwarding;
mod path;
mod reply;
mod snapshot;
mod token;

use std::num::NonZeroU64;
use std::sync::Arc;

use tollgate::decide::{
    Anchor, Calendar, CalendarUnit, FixedWindow, LeakyBucket, Limit, Rule, SlidingCounter,
    SlidingLog, TokenBucket,
};

/// The name of a target, which is that of its corpus too, and what it does with an input.
pub(crate) type Target = (&'static str, fn(&[u8]));

/// Every target.
pub(crate) const ALL: [Target; 8] = [
    ("config", config::config),
    ("cost", cost::cost),
    ("fields", fields::fields),
    ("forwarding", forwarding::forwarding),
    ("path", path::path),
    ("reply", reply::reply),
    ("snapshot", snapshot::snapshot),
    ("token", token::token),
];

/// Bytes to choose by; 0 once they are used up.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl<'a> Choices<'a> {
    fn of(data: &'a [u8]) -> Self {
        Self(data.iter())
    }

    fn next(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    /// One of these.
    fn among<T: Copy>(&mut self, all: &[T]) -> T {
        let at = usize::from(self.next()) % all.len();
        all[at]
    }
}

/// Lines of `Name: value`, as far as they name one of `known`; any other line belongs to the first of them.
fn lines<'a>(text: &'a [u8], known: &[&'static str]) -> Vec<(&'static str, &'a [u8])> {
    let named = |line: &'a [u8]| {
        known.iter().find_map(|&name| {
            let (head, rest) = line.split_at_checked(name.len())?;
            let value = rest.strip_prefix(b":")?;
            head.eq_ignore_ascii_case(name.as_bytes())
                .then_some((name, value))
        })
    };
    text.split(|byte| *byte == b'\n')
        .map(|line| named(line).unwrap_or((known[0], line)))
        .collect()
}

/// One rule of each kind and variant.
fn rules() -> [Rule; 8] {
    let whole = |number| NonZeroU64::new(number).unwrap();
    let limit = Limit {
        count: whole(10),
        window_us: whole(60_000_000),
    };
    let days = (0..30_000).map(|day| day * 86_400).collect();
    let calendar = Calendar::of_edges(CalendarUnit::Day, "days", days);
    let calendar = Anchor::Calendar(Arc::new(calendar.unwrap()));
    [
        Rule::FixedWindow(FixedWindow::new(limit, Anchor::Epoch).unwrap()),
        Rule::FixedWindow(FixedWindow::new(limit, Anchor::FirstRequest).unwrap()),
        Rule::SlidingLog(SlidingLog::new(limit).unwrap()),
        Rule::SlidingCounter(SlidingCounter::new(limit, false).unwrap()),
        Rule::SlidingCounter(SlidingCounter::new(limit, true).unwrap()),
        Rule::TokenBucket(TokenBucket::new(limit, whole(20)).unwrap()),
        Rule::LeakyBucket(LeakyBucket::new(limit, whole(5), Some(7_000_000)).unwrap()),
        Rule::FixedWindow(FixedWindow::new(limit, calendar).unwrap()),
    ]
}
