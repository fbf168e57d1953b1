//! The one place that reads the time. Everything else is told.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::decide::Timestamp;

/// Tells a store what time it is.
#[derive(Clone, Debug)]
pub enum Clock {
    /// Runs at the pace of the machine's monotonic clock, set once to the wall clock.
    Steady(Steady),
    /// Stands still until it is stepped: for tests and simulations.
    Manual(ManualClock),
}

/// A clock that a step of the wall clock does not move.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    origin: Instant,
    origin_us: u64,
}

/// A clock that only [`ManualClock::set`] moves; clones show the same time.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl Clock {
    /// A steady clock that starts at the wall clock's time.
    #[must_use]
    pub fn steady() -> Self {
        Self::Steady(Steady {
            origin: monotonic_now(),
            origin_us: wall_now_us(),
        })
    }

    /// What time it is.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::Steady(steady) => {
                let elapsed = monotonic_now().saturating_duration_since(steady.origin);
                Timestamp::from_micros(steady.origin_us.saturating_add(micros(elapsed)))
            }
            Self::Manual(manual) => manual.now(),
        }
    }
}

impl ManualClock {
    /// Moves the clock, back too if asked.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }

    /// What the clock was set to.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::SeqCst))
    }
}

/// The monotonic clock, to measure spans with.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
pub fn monotonic_now() -> Instant {
    Instant::now()
}

/// The wall clock, in microseconds since the epoch; 0 before it.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "the one place that reads it")]
pub fn wall_now_us() -> u64 {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    micros(since_epoch)
}

/// A span in whole microseconds, rounded down; [`u64::MAX`] if it is longer.
#[must_use]
pub fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}
