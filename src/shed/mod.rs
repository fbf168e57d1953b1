//! Turned away because we are full: how many requests are in flight, and who may still come.
//!
//! Counted here, no I/O and no clock: time is told. A request is in flight from when its route is known until the last
//! byte of its answer, the wait for its turn in a leaky bucket included; one that is refused is not.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How much a request matters when not all can be served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Priority {
    /// Served as long as there is any room.
    High,
    /// Leaves the last twentieth of the room to `High`.
    Normal,
    /// Leaves the last fifth of the room to the others.
    Low,
}

/// Why a request is turned away.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// As many as its priority may are in flight.
    InFlight,
    /// The same, of as many as the upstreams answer in time.
    Latency,
}

/// `[load_shedding]`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Settings {
    /// The most requests in flight.
    pub max_in_flight: NonZeroUsize,
    /// How long upstreams may take to begin their answers, in microseconds: less is let in while they take longer.
    pub target_us: Option<NonZeroU64>,
}

/// The requests in flight, and how many there may be. Clones count together.
#[derive(Clone, Debug)]
pub struct Load(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// [`UNBOUNDED`] without settings.
    max: AtomicUsize,
    in_flight: AtomicUsize,
}

/// A place among the requests in flight, until it is dropped.
#[derive(Debug)]
pub struct Place(Load);

const UNBOUNDED: usize = usize::MAX;

impl Priority {
    /// Every priority, so that every series starts at zero.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// As it is written, and the label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::High => "high",
            Self::Normal => "normal",
            Self::Low => "low",
        }
    }

    /// How many requests there may be, its own included, of `all` that may be in flight. Rounded down, so that one
    /// place at least is kept for those that matter more; one may always be.
    #[must_use]
    pub const fn share_of(self, all: usize) -> usize {
        let percent = match self {
            Self::High => return all,
            Self::Normal => 95,
            Self::Low => 80,
        };
        // In two parts, which do not overflow.
        let share = all / 100 * percent + all % 100 * percent / 100;
        if share == 0 { 1 } else { share }
    }
}

impl Reason {
    /// Every reason, so that every series starts at zero.
    pub const ALL: [Self; 2] = [Self::InFlight, Self::Latency];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InFlight => "in_flight",
            Self::Latency => "latency",
        }
    }
}

impl Load {
    /// Nothing in flight. Without settings everybody may come, and is counted all the same.
    #[must_use]
    pub fn new(settings: Option<Settings>) -> Self {
        let load = Self(Arc::new(Shared {
            max: AtomicUsize::new(UNBOUNDED),
            in_flight: AtomicUsize::new(0),
        }));
        load.apply(settings);
        load
    }

    /// Puts other settings in force, for whoever comes from now on. Those in flight stay so, and count.
    pub fn apply(&self, settings: Option<Settings>) {
        let max = settings.map_or(UNBOUNDED, |settings| settings.max_in_flight.get());
        self.0.max.store(max, Ordering::Relaxed);
    }

    /// A place for a request, if one of its priority may still come. Asked and taken in one step: however many ask at
    /// once, no more get one than may.
    ///
    /// # Errors
    ///
    /// Why it may not.
    pub fn take(&self, priority: Priority) -> Result<Place, Reason> {
        let most = priority.share_of(self.0.max.load(Ordering::Relaxed));
        self.0
            .in_flight
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |in_flight| {
                (in_flight < most).then(|| in_flight.saturating_add(1))
            })
            .map(|_| Place(self.clone()))
            .map_err(|_| Reason::InFlight)
    }

    /// Requests in flight.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.0.in_flight.load(Ordering::Relaxed)
    }

    /// How many there may be now; `None` without settings.
    #[must_use]
    pub fn limit(&self) -> Option<usize> {
        Some(self.0.max.load(Ordering::Relaxed)).filter(|max| *max != UNBOUNDED)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}
