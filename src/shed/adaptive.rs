//! How many requests may be unanswered for upstreams to answer in time.
//!
//! The gradient of [Netflix's concurrency-limits](https://github.com/Netflix/concurrency-limits) and of [Envoy's
//! adaptive
//! concurrency](https://www.envoyproxy.io/docs/envoy/latest/configuration/http/http_filters/adaptive_concurrency_filter):
//! once a window the limit is multiplied by what answers should take over what they took, by the window's median.
//! Theirs compare with what answers took when there was little to do, and measure that again and again with less
//! traffic let through; ours with what the operator says.
//!
//! At a steady load it comes to rest, for four reasons. Where requests queue, an answer takes as long as there are
//! requests before it: the multiplied limit is the right one at once, and only half of the step is made. A window spans
//! four of the answers that are aimed at, so that it shows what the step before did. Within an eighth of the target
//! nothing is changed. And the limit grows only where somebody was turned away for it, a quarter at most: what was
//! never tried is not let in.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::UNBOUNDED;

/// What the target is divided into.
const PARTS: u64 = 16;

/// Answers are sorted by how many parts of the target they took; four targets and all beyond are one.
const SLOTS: usize = 64;

/// Of these parts none is too few.
const TOO_FAST: u32 = 14;

/// Of these parts all are too many.
const TOO_SLOW: u32 = 18;

/// A window in targets.
const WINDOW: u64 = 4;

/// The shortest window: in less the machine's own pauses are all that is measured.
const WINDOW_MIN_US: u64 = 100_000;

/// A window goes on until it has so many answers; with fewer, chance decides.
const ANSWERS_MIN: u32 = 50;

/// So many windows without enough answers are too old to say anything.
const WINDOWS_MAX: u64 = 16;

/// So many may be unanswered whatever happens: or nobody would see that upstreams are fast again, nor would anybody be
/// served where they are slow for another reason.
const LEAST: u32 = 10;

/// The limit, and what the window has seen so far. No lock: of those who close a window at once one does, and an answer
/// that comes at that moment counts in this window or in the next.
#[derive(Debug)]
pub(super) struct Adaptive {
    began: Instant,
    /// 0 without one.
    target_us: AtomicU64,
    /// [`UNBOUNDED`] while nobody is turned away.
    limit: AtomicU32,
    /// When the window ends, in microseconds since `began`.
    ends_us: AtomicU64,
    answers: [AtomicU32; SLOTS],
    count: AtomicU32,
    most_unanswered: AtomicU32,
    turned_away: AtomicBool,
}

/// What a window has seen.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Half of the answers took no more than this, in parts of the target.
    median: u32,
    /// The most requests that were unanswered.
    most_unanswered: u32,
    /// Whether somebody was turned away since there were as many as may be.
    turned_away: bool,
}

impl Adaptive {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            began: now,
            target_us: AtomicU64::new(0),
            limit: AtomicU32::new(UNBOUNDED),
            ends_us: AtomicU64::new(0),
            answers: std::array::from_fn(|_| AtomicU32::new(0)),
            count: AtomicU32::new(0),
            most_unanswered: AtomicU32::new(0),
            turned_away: AtomicBool::new(false),
        }
    }

    /// Sets the target. Without one there is no limit.
    pub(super) fn aim_at(&self, target_us: Option<NonZeroU64>) {
        let target_us = target_us.map_or(0, NonZeroU64::get);
        if self.target_us.swap(target_us, Ordering::Relaxed) != target_us {
            // What was sorted by another target says nothing.
            let _ = self.close();
        }
        if target_us == 0 {
            self.limit.store(UNBOUNDED, Ordering::Relaxed);
        }
    }

    /// How many may be unanswered, where `max` may be in flight.
    pub(super) fn limit(&self, max: u32) -> u32 {
        self.limit.load(Ordering::Relaxed).min(max)
    }

    /// So many were unanswered at once.
    pub(super) fn has_seen(&self, unanswered: u32) {
        if self.target_us.load(Ordering::Relaxed) > 0 {
            self.most_unanswered
                .fetch_max(unanswered, Ordering::Relaxed);
        }
    }

    /// Somebody was turned away because of the limit.
    pub(super) fn has_turned_away(&self) {
        self.turned_away.store(true, Ordering::Relaxed);
    }

    /// Takes in an answer, beside so many requests that are unanswered; and sets the limit anew where that ends a
    /// window.
    pub(super) fn answered(&self, now: Instant, took: Duration, max: u32, unanswered: u32) {
        let Some(target_us) = NonZeroU64::new(self.target_us.load(Ordering::Relaxed)) else {
            return;
        };
        self.has_seen(unanswered);
        let parts = micros(took).saturating_mul(PARTS) / target_us;
        let slot = usize::try_from(parts).map_or(SLOTS - 1, |parts| parts.min(SLOTS - 1));
        if let Some(answers) = self.answers.get(slot) {
            answers.fetch_add(1, Ordering::Relaxed);
        }
        let count = self.count.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let span_us = target_us.get().saturating_mul(WINDOW).max(WINDOW_MIN_US);
        let now_us = micros(now.saturating_duration_since(self.began));
        let ends_us = self.ends_us.load(Ordering::Relaxed);
        if now_us < ends_us {
            return;
        }
        let is_old = now_us - ends_us > span_us.saturating_mul(WINDOWS_MAX);
        if count < ANSWERS_MIN && !is_old {
            return;
        }
        let next_us = now_us.saturating_add(span_us);
        let is_ours =
            self.ends_us
                .compare_exchange(ends_us, next_us, Ordering::AcqRel, Ordering::Relaxed);
        if is_ours.is_err() {
            return;
        }
        if let Some(window) = self.close()
            && count >= ANSWERS_MIN
            && !is_old
        {
            let next = next(self.limit(max), max, window);
            let next = if next >= max { UNBOUNDED } else { next };
            self.limit.store(next, Ordering::Relaxed);
        }
    }

    /// What the window has seen, if anything; another begins.
    fn close(&self) -> Option<Window> {
        let answers = self
            .answers
            .each_ref()
            .map(|slot| slot.swap(0, Ordering::Relaxed));
        self.count.store(0, Ordering::Relaxed);
        let most_unanswered = self.most_unanswered.swap(0, Ordering::Relaxed);
        let turned_away = self.turned_away.swap(false, Ordering::Relaxed);
        let half = answers
            .iter()
            .fold(0_u32, |sum, it| sum.saturating_add(*it))
            / 2;
        let mut seen = 0_u32;
        let median = answers.iter().position(|answers| {
            seen = seen.saturating_add(*answers);
            seen > half
        })?;
        Some(Window {
            median: u32::try_from(median).ok()?,
            most_unanswered,
            turned_away,
        })
    }
}

/// The limit after a window. Rounded down.
fn next(limit: u32, max: u32, window: Window) -> u32 {
    // Half of the way from here to here x target / median, the middle of the median's part taken for all of it.
    let fitted = |from: u32| {
        let (took, target) = (2 * u64::from(window.median) + 1, 2 * PARTS);
        let fitted = u64::from(from) * (took + target) / (2 * took);
        u32::try_from(fitted).unwrap_or(UNBOUNDED)
    };
    if window.median >= TOO_SLOW {
        // What is let in and does not come is let go first, or it would take long until anybody feels it. At full use
        // those of low priority alone fill four fifths.
        let used = window.most_unanswered;
        let used = used.saturating_add(used / 4).saturating_add(1);
        fitted(limit.min(used).max(limit / 2)).max(LEAST.min(max))
    } else if window.median < TOO_FAST && window.turned_away {
        let most = limit.saturating_add(limit / 4).saturating_add(1);
        fitted(limit).min(most).min(max)
    } else {
        limit
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(median: u32, most_unanswered: u32, turned_away: bool) -> Window {
        Window {
            median,
            most_unanswered,
            turned_away,
        }
    }

    #[test]
    fn the_limit_moves_as_far_as_is_said() {
        for (limit, seen, expected, reason) in [
            (100, window(32, 100, false), 74, "half of the way to 50"),
            (100, window(63, 100, true), 62, "four targets or more"),
            (
                1_000,
                window(32, 100, false),
                373,
                "what is not used first, to half",
            ),
            (12, window(63, 12, false), 10, "some are always let in"),
            (
                500,
                window(17, 500, true),
                500,
                "an eighth too slow is in time",
            ),
            (500, window(14, 500, true), 500, "so is an eighth too fast"),
            (500, window(13, 500, true), 546, "half of the way to 593"),
            (500, window(0, 500, true), 626, "a quarter more at most"),
            (990, window(0, 990, true), 1_000, "never above the most"),
            (500, window(0, 400, false), 500, "nobody asked for more"),
        ] {
            assert_eq!(next(limit, 1_000, seen), expected, "{reason}");
        }
    }

    #[test]
    fn no_number_breaks_it() {
        for limit in [0, 1, 2, u32::MAX] {
            for median in [0, 13, 14, 17, 18, 63] {
                for used in [0, 1, u32::MAX] {
                    next(limit, u32::MAX, window(median, used, true));
                    assert!(next(limit.min(2), 2, window(median, used, true)) <= 2);
                }
            }
        }
    }
}
