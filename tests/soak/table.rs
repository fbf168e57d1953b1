//! The account, for people.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::account::Account;
use crate::bounds::Worst;
use crate::faults::Span;
use crate::load::{Outcome, Sent};

/// A row a route, and what was injected.
pub(crate) fn of(account: &Account<'_>, spans: &[Span]) -> String {
    let mut text =
        "\n| route | sent | 200 | 429 | 503 | other | aborted | no answer | ms p50 | p99 | max | \
                    most shared / bound | most in process / bound |\n\
                    |---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    let mut all = Tally::default();
    for (number, route) in account.routes.iter().enumerate() {
        let tally = Tally::of(account.sent_to(number));
        let mut shared = Worst::default();
        let mut in_process = Worst::default();
        for policy in &route.policies {
            let nearest = account.nearest(number, policy);
            shared = shared.or(nearest.shared);
            in_process = in_process.or(nearest.in_process);
        }
        writeln!(
            text,
            "| {} | {} | {} | {} |",
            route.name,
            tally.cells(),
            cell(shared),
            cell(in_process)
        )
        .unwrap();
        all.add(tally);
    }
    writeln!(text, "| all | {} | | |", all.cells()).unwrap();
    let counted = all.by_outcome.iter().sum::<usize>();
    writeln!(text, "\n{} sent = {counted} outcomes", all.sent).unwrap();
    if let Some((after, span)) = account.felt() {
        writeln!(
            text,
            "without the store {} ms after a fault's end at most: {:?}",
            after / 1_000,
            span.fault
        )
        .unwrap();
    }
    let (strict, shared) = account.unexcused();
    writeln!(
        text,
        "{strict} of {shared} shared decisions had to be the store's: no fault was near"
    )
    .unwrap();
    let mut kinds = BTreeMap::new();
    for span in spans {
        let name = format!("{:?}", span.fault);
        let name = name.split(['(', ' ']).next().unwrap_or_default().to_owned();
        *kinds.entry(name).or_insert(0_usize) += 1;
    }
    writeln!(text, "faults: {kinds:?}").unwrap();
    text
}

fn cell(worst: Worst) -> String {
    if worst.allowed == 0 {
        return String::new();
    }
    format!("{} / {}", worst.allowed, worst.bound)
}

#[derive(Default)]
struct Tally {
    sent: usize,
    /// 200, 429, 503, other answers, aborted, no answer.
    by_outcome: [usize; 6],
    took_us: Vec<u64>,
}

impl Tally {
    fn of<'a>(requests: impl Iterator<Item = &'a Sent>) -> Self {
        let mut tally = Self::default();
        for sent in requests {
            tally.sent += 1;
            let place = match &sent.outcome {
                Outcome::Answered(200, _) => 0,
                Outcome::Answered(429, _) => 1,
                Outcome::Answered(503, _) => 2,
                Outcome::Answered(..) => 3,
                Outcome::Aborted => 4,
                Outcome::Failed(_) => 5,
            };
            tally.by_outcome[place] += 1;
            if matches!(sent.outcome, Outcome::Answered(..)) {
                tally.took_us.push(sent.ended - sent.began);
            }
        }
        tally.took_us.sort_unstable();
        tally
    }

    fn add(&mut self, mut other: Self) {
        self.sent += other.sent;
        for (own, more) in self.by_outcome.iter_mut().zip(other.by_outcome) {
            *own += more;
        }
        self.took_us.append(&mut other.took_us);
        self.took_us.sort_unstable();
    }

    fn cells(&self) -> String {
        let at = |percent: usize| {
            let rank = (self.took_us.len() * percent).div_ceil(100).max(1);
            let us = self.took_us.get(rank - 1).copied().unwrap_or_default();
            format!("{}.{}", us / 1_000, us % 1_000 / 100)
        };
        let outcomes: Vec<_> = self.by_outcome.iter().map(usize::to_string).collect();
        format!(
            "{} | {} | {} | {} | {}",
            self.sent,
            outcomes.join(" | "),
            at(50),
            at(99),
            at(100)
        )
    }
}
