//! How far a client lags behind the slowest pace that bytes may have. Only what we wait for the client counts: not an
//! upstream that is slow to take a body, nor one that is slow to give an answer.

use std::future::Future;
use std::pin::Pin;
use std::task::Context;
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

/// The most that is counted without a look: whoever was not asked meanwhile is blamed for so much at most.
const TICK: Duration = Duration::from_secs(1);

/// The lag of one direction of a connection. Waiting adds to it, bytes take from it, and it is never less than nothing.
#[derive(Debug)]
pub(super) struct Pace {
    lag_max: Duration,
    /// Bytes a second; with 0 any byte makes up for all.
    rate: u64,
    lag: Duration,
    waiting_since: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Pace {
    /// No lag so far; it may come to less than `lag_max` behind `rate` bytes a second.
    pub(super) fn new(lag_max: Duration, rate: u64) -> Self {
        Self {
            lag_max,
            rate,
            lag: Duration::ZERO,
            waiting_since: None,
            timer: None,
        }
    }

    /// The client makes us wait. Whether it has for too long; if not, the task is woken when it might have. `unseen`
    /// tells of bytes that moved nevertheless, since it was last asked.
    pub(super) fn is_late(&mut self, cx: &mut Context<'_>, unseen: impl Fn() -> u64) -> bool {
        while let Some(due) = self.wait(Instant::now(), &unseen) {
            // Left running while bytes come, and set anew once it has run: that is seldom, and bytes come often.
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
            if timer.as_mut().poll(cx).is_pending() {
                return false;
            }
            timer.as_mut().reset(due);
        }
        true
    }

    /// The client makes us wait at `now`: when to look again, or `None` if it is late.
    fn wait(&mut self, now: Instant, unseen: impl Fn() -> u64) -> Option<Instant> {
        let since = *self.waiting_since.get_or_insert(now);
        let waited = self.step();
        if now < since + waited {
            return Some(since + waited);
        }
        self.waiting_since = Some(now);
        self.lag = self.lag.saturating_add(waited);
        self.make_up(unseen());
        (self.lag < self.lag_max).then(|| now + self.step())
    }

    /// So many bytes moved.
    pub(super) fn moved(&mut self, bytes: u64) {
        if self.waiting_since.is_some() || !self.lag.is_zero() {
            self.moved_at(Instant::now(), bytes);
        }
    }

    fn moved_at(&mut self, now: Instant, bytes: u64) {
        if let Some(since) = self.waiting_since.take() {
            let waited = now.saturating_duration_since(since);
            self.lag = self.lag.saturating_add(waited.min(TICK));
        }
        self.make_up(bytes);
    }

    fn make_up(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let worth = bytes
            .saturating_mul(1_000_000)
            .checked_div(self.rate)
            .map_or(Duration::MAX, Duration::from_micros);
        self.lag = self.lag.saturating_sub(worth);
    }

    /// How long until the next look at who makes us wait.
    fn step(&self) -> Duration {
        self.lag_max.saturating_sub(self.lag).min(TICK)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Waits from `now` on for `patience`; when the client was late, if it was.
    fn waited(pace: &mut Pace, now: &mut Instant, patience: Duration) -> Option<Instant> {
        let until = *now + patience;
        while let Some(due) = pace.wait(*now, || 0) {
            assert!(due > *now);
            if due > until {
                *now = until;
                return None;
            }
            *now = due;
        }
        Some(*now)
    }

    #[test]
    fn who_sends_nothing_is_late_after_the_longest_lag() {
        let began = Instant::now();
        let mut pace = Pace::new(30 * SECOND + SECOND / 2, 240);
        let late = waited(&mut pace, &mut began.clone(), 100 * SECOND);
        assert_eq!(late, Some(began + 30 * SECOND + SECOND / 2));
    }

    #[test]
    fn who_drips_is_late_and_who_keeps_the_pace_is_not() {
        for (bytes, late) in [(1, true), (120, true), (240, false), (1_000_000, false)] {
            let mut now = Instant::now();
            let mut pace = Pace::new(30 * SECOND, 240);
            let was_late = (0..200).any(|_| {
                let late = waited(&mut pace, &mut now, SECOND).is_some();
                pace.moved_at(now, bytes);
                late
            });
            assert_eq!(was_late, late, "{bytes} a second");
        }
    }

    #[test]
    fn what_came_early_is_no_credit_for_a_silence() {
        let mut now = Instant::now();
        let began = now;
        let mut pace = Pace::new(5 * SECOND, 240);
        pace.moved_at(now, 1_000_000_000);
        let late = waited(&mut pace, &mut now, 100 * SECOND);
        assert_eq!(late, Some(began + 5 * SECOND));
    }

    #[test]
    fn a_time_in_which_nobody_asked_is_not_the_clients() {
        let mut now = Instant::now();
        let mut pace = Pace::new(5 * SECOND, 240);
        for _ in 0..10 {
            // Asked once; then the upstream keeps us for an hour, and what had come meanwhile is taken.
            assert!(pace.wait(now, || 0).is_some());
            now += 3600 * SECOND;
            pace.moved_at(now, 1000);
        }
        // Nor is it where nothing had come.
        assert!(pace.wait(now, || 0).is_some());
        now += 3600 * SECOND;
        assert!(pace.wait(now, || 0).is_some());
    }

    #[test]
    fn bytes_that_we_do_not_see_count_as_those_that_we_do() {
        for (rate, late) in [(0, true), (100, true), (240, false), (1000, false)] {
            let began = Instant::now();
            let mut pace = Pace::new(5 * SECOND, 240);
            let (mut now, asked) = (began, Cell::new(began));
            let was_late = loop {
                let unseen = || {
                    let micros = (now - asked.replace(now)).as_micros();
                    u64::try_from(micros).unwrap() * rate / 1_000_000
                };
                match pace.wait(now, unseen) {
                    Some(due) if due < began + 200 * SECOND => now = due,
                    Some(_) => break false,
                    None => break true,
                }
            };
            assert_eq!(was_late, late, "{rate} a second");
        }
    }

    #[test]
    fn without_a_rate_only_silence_counts() {
        let mut now = Instant::now();
        let mut pace = Pace::new(5 * SECOND, 0);
        for _ in 0..100 {
            assert!(waited(&mut pace, &mut now, 4 * SECOND).is_none());
            pace.moved_at(now, 1);
        }
        assert!(waited(&mut pace, &mut now, 100 * SECOND).is_some());
    }
}
