//! Turned away because we are full: how many requests are in flight, and who may still come.
//!
//! A request is in flight from when its route is known until the last byte of its answer, the wait for its turn in a
//! leaky bucket included; one that is refused is not. As long as it asks something of an upstream, and has no answer
//! yet, it is unanswered too: `adaptive` says how many of those there may be. A stream is answered once it has begun.

mod adaptive;

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use adaptive::Adaptive;

/// How much a request matters when not all can be served.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Priority {
    /// Served as long as there is any room, however long upstreams take.
    High,
    /// Leaves the last twentieth of the room to `High`.
    Normal,
    /// Leaves the last fifth of the room to the others.
    Low,
}

/// Why a request is turned away.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason {
    /// As many as its priority lets are in flight.
    InFlight,
    /// As many as its priority lets are unanswered, of those that upstreams answer in time.
    Latency,
}

/// `[load_shedding]`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Settings {
    /// The most requests in flight.
    pub max_in_flight: NonZeroU32,
    /// How long upstreams may take to begin an answer, in microseconds: while they take longer, fewer are let in.
    pub target_us: Option<NonZeroU64>,
}

/// The requests in flight, and how many there may be. Clones count together.
#[derive(Clone, Debug)]
pub struct Load(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// [`UNBOUNDED`] without settings.
    max: AtomicU32,
    /// Both counts in one word, so that they are asked and changed in one step: see [`Counts`].
    counts: AtomicU64,
    adaptive: Adaptive,
}

/// A place among the requests in flight, until it is dropped.
#[derive(Debug)]
pub struct Place {
    load: Load,
    is_unanswered: bool,
}

/// So many requests, or how many there may be.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// In flight.
    pub in_flight: u32,
    /// In flight and without an answer, of those that an upstream is to answer.
    pub unanswered: u32,
}

const UNBOUNDED: u32 = u32::MAX;

/// One in flight, in the word that holds both counts.
const IN_FLIGHT: u64 = 1 << 32;

/// One unanswered.
const UNANSWERED: u64 = 1;

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

    /// How many requests there may be, its own included, of `all`. Rounded down, so that one place at least is kept for
    /// those that matter more; but one may always be.
    #[must_use]
    pub const fn share_of(self, all: u32) -> u32 {
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

impl Counts {
    fn of(word: u64) -> Self {
        let part = |part: u64| u32::try_from(part).unwrap_or(u32::MAX);
        Self {
            in_flight: part(word >> 32),
            unanswered: part(word & u64::from(u32::MAX)),
        }
    }
}

impl Load {
    /// Nothing in flight `now`. Without settings everybody may come, and is counted all the same.
    #[must_use]
    pub fn new(settings: Option<Settings>, now: Instant) -> Self {
        let load = Self(Arc::new(Shared {
            max: AtomicU32::new(UNBOUNDED),
            counts: AtomicU64::new(0),
            adaptive: Adaptive::new(now),
        }));
        load.apply(settings);
        load
    }

    /// Puts other settings in force, for whoever comes from now on. Those in flight stay so, and count.
    pub fn apply(&self, settings: Option<Settings>) {
        let max = settings.map_or(UNBOUNDED, |settings| settings.max_in_flight.get());
        self.0.max.store(max, Ordering::Relaxed);
        self.0
            .adaptive
            .aim_at(settings.and_then(|settings| settings.target_us));
    }

    /// A place for a request, if one of its priority may still come. Asked and taken in one step: however many ask at
    /// once, no more get one than may. The request is unanswered at first.
    ///
    /// # Errors
    ///
    /// Why it may not.
    pub fn take(&self, priority: Priority) -> Result<Place, Reason> {
        let Shared {
            max,
            counts,
            adaptive,
        } = &*self.0;
        let max = max.load(Ordering::Relaxed);
        let most = Counts {
            in_flight: priority.share_of(max),
            unanswered: match priority {
                Priority::High => UNBOUNDED,
                other => other.share_of(adaptive.limit(max)),
            },
        };
        let taken = counts.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |word| {
            let now = Counts::of(word);
            let fits = now.in_flight < most.in_flight && now.unanswered < most.unanswered;
            fits.then(|| word.saturating_add(IN_FLIGHT + UNANSWERED))
        });
        match taken.map(Counts::of).map_err(Counts::of) {
            Ok(before) => {
                adaptive.has_seen(before.unanswered.saturating_add(1));
                Ok(Place {
                    load: self.clone(),
                    is_unanswered: true,
                })
            }
            Err(now) if now.in_flight >= most.in_flight => Err(Reason::InFlight),
            Err(_) => {
                adaptive.has_turned_away();
                Err(Reason::Latency)
            }
        }
    }

    /// An upstream began its answer `now`, so long after it had the whole request; or was given up after so long.
    pub fn answered(&self, now: Instant, took: Duration) {
        let max = self.0.max.load(Ordering::Relaxed);
        self.0
            .adaptive
            .answered(now, took, max, self.requests().unanswered);
    }

    /// The requests there are.
    #[must_use]
    pub fn requests(&self) -> Counts {
        Counts::of(self.0.counts.load(Ordering::Relaxed))
    }

    /// How many there may be now; `None` without settings.
    #[must_use]
    pub fn limits(&self) -> Option<Counts> {
        let max = self.0.max.load(Ordering::Relaxed);
        (max != UNBOUNDED).then(|| Counts {
            in_flight: max,
            unanswered: self.0.adaptive.limit(max),
        })
    }
}

impl Place {
    /// Its request asks nothing of an upstream any more, since its answer has begun, or nothing yet, since it waits for
    /// its turn.
    pub fn rest(&mut self) {
        if std::mem::replace(&mut self.is_unanswered, false) {
            self.load.0.counts.fetch_sub(UNANSWERED, Ordering::AcqRel);
        }
    }

    /// It does again. It is not turned away any more.
    pub fn wake(&mut self) {
        if !std::mem::replace(&mut self.is_unanswered, true) {
            self.load.0.counts.fetch_add(UNANSWERED, Ordering::AcqRel);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let unanswered = if self.is_unanswered { UNANSWERED } else { 0 };
        self.load
            .0
            .counts
            .fetch_sub(IN_FLIGHT + unanswered, Ordering::AcqRel);
    }
}
