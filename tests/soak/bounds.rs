//! How much may be allowed in a span of time, by what `README.md` says of each kind.

use crate::routes::{GATEWAYS, Policy};

/// What was allowed: it was decided at some moment from one time to the other, in µs since the epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowed {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Who counted.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Counted {
    /// All gateways together, against the limit.
    Shared,
    /// One gateway without the store, against its share.
    Share,
    /// One gateway, against the limit.
    Alone,
}

impl Policy {
    /// The most that is allowed in any `windows` windows in a row, if what had been used was forgotten `losses` times
    /// meanwhile. Each loss parts that span into one piece more, and a piece is bounded like any span:
    ///
    /// - fixed window, sliding counter: the limit in each window by the clock, of which a span touches one more than
    ///   its length; a piece more touches one more again. (A sliding counter is just under that.)
    /// - sliding log, strict sliding counter: the limit in every whole or begun window of a piece.
    /// - buckets: what one earns in that time, and a full one for each piece.
    pub(crate) fn at_most(&self, counted: Counted, windows: u64, losses: u64) -> u64 {
        let gateways = if counted == Counted::Share {
            u64::try_from(GATEWAYS).unwrap()
        } else {
            1
        };
        let limit = self.limit.div_ceil(gateways);
        match self.kind {
            "fixed-window" | "sliding-counter" => limit * (windows + 1 + losses),
            "sliding-log" | "strict" => limit * (windows + losses),
            _ => {
                let earned = (self.limit * windows).div_ceil(gateways);
                earned + self.burst.div_ceil(gateways) * (1 + losses)
            }
        }
    }
}

/// The worst span that was found.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Worst {
    /// When it began.
    pub(crate) at: u64,
    pub(crate) allowed: u64,
    pub(crate) bound: u64,
}

impl Worst {
    /// How far above its bound.
    pub(crate) const fn excess(&self) -> u64 {
        self.allowed.saturating_sub(self.bound)
    }

    /// Whichever is nearer to its bound, or further above.
    pub(crate) fn or(self, other: Self) -> Self {
        let closeness = |worst: &Self| worst.allowed * 1_000_000 / worst.bound.max(1);
        if other.allowed > 0 && closeness(&other) > closeness(&self) {
            other
        } else {
            self
        }
    }
}

/// Goes through all spans of `length` that begin with something allowed, and finds the one nearest to its bound. A span
/// holds what was certainly decided in it. `losses` says how often usage may have been forgotten in a span.
pub(crate) fn worst(
    allowed: &mut [Allowed],
    length: u64,
    bound: impl Fn(u64) -> u64,
    losses: impl Fn(u64, u64) -> u64,
) -> Worst {
    allowed.sort_unstable_by_key(|allowed| allowed.from);
    let mut worst = Worst::default();
    for (number, first) in allowed.iter().enumerate() {
        let (from, to) = (first.from, first.from + length);
        let inside = allowed[number..]
            .iter()
            .take_while(|next| next.from < to)
            .filter(|next| next.to < to)
            .count();
        worst = worst.or(Worst {
            at: from,
            allowed: u64::try_from(inside).unwrap(),
            bound: bound(losses(from, to)),
        });
    }
    worst
}
