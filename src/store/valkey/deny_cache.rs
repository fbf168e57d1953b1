//! Denials of the shared store that still hold: as long as they do, the same request is denied without asking.
//!
//! It never denies what the store would allow. A denial with a wait of w holds until w after the call was *sent*: the
//! store decided later than that, and others can only have used more since. Whatever gives usage back, or forgives it,
//! would make that false: policies whose charges are given back are not remembered, and nothing is for longer than a
//! second, which is how soon a reset, a grant, or a lost server is known here.
//!
//! A denial that begins a penalty is remembered like any other: what is denied while it runs makes it neither longer
//! nor harder, so that the store need not hear of it. One that another policy denies may spare a policy its first
//! denial, and its penalty then begins up to a second later.

use std::time::{Duration, Instant};

use super::buckets::Buckets;
use super::whose::Whose;
use crate::check::Check;
use crate::clock::micros;
use crate::decide::{Cost, Decision, Penalised, Verdict};

/// The longest that a denial is remembered.
const HOLDS_MAX: Duration = Duration::from_secs(1);

/// Denials lie in so many buckets, by the first check of their request ...
const BUCKETS: usize = 2048;

/// ... and so many in one at most.
const BUCKET_MAX: usize = 8;

/// Denied requests, 16,384 at most.
#[derive(Debug)]
pub struct DenyCache(Buckets<Denied>);

/// A request that was denied.
#[derive(Debug)]
struct Denied {
    checks: Box<[Denial]>,
    answered_at: Instant,
    holds_until: Instant,
}

/// One of its checks, be it why or not.
#[derive(Debug)]
struct Denial {
    whose: Whose,
    cost: Cost,
    shadow: bool,
    decision: Decision,
}

impl Default for DenyCache {
    fn default() -> Self {
        Self(Buckets::new(BUCKETS, BUCKET_MAX))
    }
}

impl DenyCache {
    /// The decisions of a request with these very checks that was denied, if that holds at `now`, with the waits that
    /// are left.
    #[must_use]
    pub fn find<'a>(
        &self,
        checks: &[Check<'a>],
        now: Instant,
    ) -> Option<Vec<(Check<'a>, Decision)>> {
        let bucket = self.0.of(checks.first()?)?;
        let denied = bucket
            .iter()
            .find(|denied| denied.holds_until > now && denied.is_of(checks))?;
        // Counted from the answer, not from the call: a wait is never told too short.
        let since = micros(now.saturating_duration_since(denied.answered_at));
        let decisions = denied.checks.iter().map(|denial| {
            let found = denial.decision;
            let left = |wait: u64| wait.saturating_sub(since).max(1);
            Decision {
                retry_after_us: match found.verdict {
                    Verdict::Deny => found.retry_after_us.map(left),
                    Verdict::Allow => found.retry_after_us,
                },
                reset_after_us: found.reset_after_us.saturating_sub(since),
                // One that began then runs now.
                penalised: match found.penalised {
                    Penalised::Begins => Penalised::Runs,
                    penalised => penalised,
                },
                ..found
            }
        });
        Some(checks.iter().copied().zip(decisions).collect())
    }

    /// Remembers what was decided of a request that was sent at `sent_at`, as far as it is a denial that lasts.
    pub fn remember(
        &self,
        decided: &[(Check<'_>, Decision)],
        sent_at: Instant,
        answered_at: Instant,
    ) {
        let Some(wait) = shortest_wait(decided) else {
            return;
        };
        let holds_until = sent_at + wait.min(HOLDS_MAX);
        if holds_until <= answered_at {
            return;
        }
        let checks: Vec<_> = decided.iter().map(|(check, _)| *check).collect();
        let Some(mut bucket) = checks.first().and_then(|first| self.0.of(first)) else {
            return;
        };
        bucket.retain(|denied| denied.holds_until > answered_at && !denied.is_of(&checks));
        let denied = Denied {
            checks: decided.iter().map(Denial::of).collect(),
            answered_at,
            holds_until,
        };
        self.0.put(&mut bucket, denied, |denied| denied.holds_until);
    }
}

impl Denied {
    fn is_of(&self, checks: &[Check<'_>]) -> bool {
        self.checks.len() == checks.len()
            && self.checks.iter().zip(checks).all(|(denial, check)| {
                denial.whose.is_of(check)
                    && denial.cost == check.cost
                    && denial.shadow == check.shadow
            })
    }
}

impl Denial {
    fn of((check, decision): &(Check<'_>, Decision)) -> Self {
        Self {
            whose: Whose::of(check),
            cost: check.cost,
            shadow: check.shadow,
            decision: *decision,
        }
    }
}

/// How long everything that denies goes on to: after that the answer would name other policies, or none. `None` if
/// nothing denies.
fn shortest_wait(decided: &[(Check<'_>, Decision)]) -> Option<Duration> {
    decided
        .iter()
        .filter(|(check, decision)| !check.shadow && decision.verdict == Verdict::Deny)
        .map(|(_, decision)| {
            decision
                .retry_after_us
                .map_or(HOLDS_MAX, Duration::from_micros)
        })
        .min()
}
