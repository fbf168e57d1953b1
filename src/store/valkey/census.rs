//! How many gateways share the store, as one of them can know it. It does no I/O, and is told the time.
//!
//! A store that was away for longer than a lease, or lost what it knew, comes back without anybody's announcement: the
//! first gateway to return would find itself alone, and take the whole limit for its share if the store went away
//! again. So the number does not fall before a connection is as old as a lease: by then all who live have announced
//! themselves.

use std::time::{Duration, Instant};

/// How long one that falls silent is counted.
pub const LEASE: Duration = Duration::from_secs(5);

/// The gateways that were seen alive.
#[derive(Debug, Default)]
pub struct Census {
    alive: u32,
    connected_at: Option<Instant>,
}

impl Census {
    /// Nobody was seen yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            alive: 0,
            connected_at: None,
        }
    }

    /// There is a new connection: what the server behind it knows of others may be little.
    pub const fn connected(&mut self, now: Instant) {
        self.connected_at = Some(now);
    }

    /// The server counts so many. Returns how many there are to go by.
    pub fn heard(&mut self, alive: u32, now: Instant) -> u32 {
        let is_settled = self
            .connected_at
            .is_some_and(|since| now.saturating_duration_since(since) >= LEASE);
        self.alive = if is_settled {
            alive
        } else {
            alive.max(self.alive)
        };
        self.alive
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic_now;

    #[test]
    fn a_store_that_forgot_the_others_does_not_make_a_gateway_the_only_one() {
        let start = monotonic_now();
        let mut census = Census::new();
        census.connected(start);
        for (after_ms, heard, known, reason) in [
            (0, 1, 1, "the first of all"),
            (1000, 3, 3, "more are known at once"),
            (
                4999,
                2,
                3,
                "fewer only once the connection is as old as a lease",
            ),
            (5000, 2, 2, "as old as that"),
            (6000, 3, 3, "one came back"),
        ] {
            let now = start + Duration::from_millis(after_ms);
            assert_eq!(census.heard(heard, now), known, "{reason}");
        }
        let again = start + Duration::from_secs(20);
        census.connected(again);
        assert_eq!(census.heard(1, again), 3);
        assert_eq!(census.heard(1, again + LEASE), 1);
    }
}
