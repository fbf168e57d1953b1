//! When to ask the server, and when to leave it alone: a circuit breaker. It does no I/O, and is told the time.
//!
//! Closed, every decision asks. Open, none does, so that none waits: one probe after another finds out when the
//! server is there again. It opens after [`IN_A_ROW_MAX`] failures in a row, or when more than half of at least
//! [`CALLS_MIN`] calls of a second failed, or at once when the connection is lost; it closes after [`PROBES`] good
//! probes in a row.

use std::time::{Duration, Instant};

/// So many failures in a row, and the server is left alone.
pub const IN_A_ROW_MAX: u32 = 5;

/// So many calls of a second say enough about the half that failed.
pub const CALLS_MIN: u64 = 20;
const WINDOW: Duration = Duration::from_secs(1);

/// So many good probes in a row, and the server is asked again.
pub const PROBES: u32 = 3;

/// The pause before a probe doubles with each that fails. It stops at a second, not later, so that limits are shared
/// again within two seconds of the server's return: the pause, and the probe that was waiting for an answer.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Between good probes: long enough to tell a server that is back from one that answered once.
const PROBE_GAP: Duration = Duration::from_millis(10);

/// The least part of a pause that chance leaves of it: a half. Gateways that lost one server do not return as one.
const PER_MILLE: u32 = 1000;

/// The state. Its numbers start afresh each time it closes.
#[derive(Debug)]
pub struct Breaker {
    state: State,
    /// The longest that the next pause may be.
    pause: Duration,
}

#[derive(Debug)]
enum State {
    Closed(Calls),
    Open {
        probe_at: Instant,
        good: u32,
        needed: u32,
    },
}

/// The calls since it closed. Answers are counted elsewhere, without a lock; a failure brings their number along.
#[derive(Debug, Default)]
struct Calls {
    in_a_row: u32,
    /// How many answers there were at the last failure.
    answered: u64,
    window: Option<Window>,
}

/// The second that began with a failure.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: Instant,
    answered_before: u64,
    failures: u64,
}

impl Breaker {
    /// Open, since nobody is connected; one probe closes it, since nothing failed yet.
    pub const fn new(now: Instant) -> Self {
        Self {
            state: State::Open {
                probe_at: now,
                good: 0,
                needed: 1,
            },
            pause: PAUSE_MIN,
        }
    }

    /// Whether decisions may ask the server.
    pub const fn is_closed(&self) -> bool {
        matches!(self.state, State::Closed(_))
    }

    /// When to probe; never while it is closed.
    pub const fn probe_at(&self) -> Option<Instant> {
        match self.state {
            State::Closed(_) => None,
            State::Open { probe_at, .. } => Some(probe_at),
        }
    }

    /// A call failed, `answered` others did not so far. Says whether that opens it. `chance` is of 0 to 1000.
    pub fn failed(&mut self, now: Instant, answered: u64, chance: u32) -> bool {
        let State::Closed(calls) = &mut self.state else {
            return false;
        };
        let opens = calls.failed(now, answered);
        if opens {
            self.open(now, chance);
        }
        opens
    }

    /// The connection is no good: nobody can be asked. Says whether that opens it.
    pub fn lost(&mut self, now: Instant, chance: u32) -> bool {
        let opens = self.is_closed();
        if opens {
            self.open(now, chance);
        }
        opens
    }

    /// The server says that another one is to be asked: that is found at once, by one good probe, unless this has just
    /// been tried. Says whether that opens it.
    pub(crate) fn demoted(&mut self, now: Instant, chance: u32) -> bool {
        let is_first = self.pause == PAUSE_MIN;
        let opens = self.lost(now, chance);
        if let (
            State::Open {
                probe_at, needed, ..
            },
            true,
            true,
        ) = (&mut self.state, opens, is_first)
        {
            *probe_at = now;
            *needed = 1;
        }
        opens
    }

    /// A probe found the server well, or not. Says whether that closes it.
    pub fn probed(&mut self, well: bool, now: Instant, chance: u32) -> bool {
        let State::Open {
            probe_at,
            good,
            needed,
        } = &mut self.state
        else {
            return false;
        };
        if !well {
            self.open(now, chance);
            return false;
        }
        *good += 1;
        let closes = *good >= *needed;
        if closes {
            self.state = State::Closed(Calls::default());
        } else {
            *probe_at = now + PROBE_GAP;
        }
        closes
    }

    /// A decision was made since it closed: only that ends an outage. Until then pauses go on growing, so that a
    /// server that answers probes and nothing else is not asked again and again.
    pub const fn proved(&mut self) {
        self.pause = PAUSE_MIN;
    }

    fn open(&mut self, now: Instant, chance: u32) {
        let half = self.pause / 2;
        let more = half * chance.min(PER_MILLE) / PER_MILLE;
        self.state = State::Open {
            probe_at: now + half + more,
            good: 0,
            needed: PROBES,
        };
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}

impl Calls {
    /// Whether it is one too many.
    fn failed(&mut self, now: Instant, answered: u64) -> bool {
        if answered != self.answered {
            self.in_a_row = 0;
            self.answered = answered;
        }
        self.in_a_row += 1;
        let same = self
            .window
            .filter(|window| now.saturating_duration_since(window.began) < WINDOW);
        let mut window = same.unwrap_or(Window {
            began: now,
            answered_before: answered,
            failures: 0,
        });
        window.failures += 1;
        self.window = Some(window);
        let calls = window.failures + answered.saturating_sub(window.answered_before);
        let most_failed = calls >= CALLS_MIN && window.failures * 2 > calls;
        self.in_a_row >= IN_A_ROW_MAX || most_failed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::monotonic_now;

    fn ms(number: u64) -> Duration {
        Duration::from_millis(number)
    }

    /// One that closed at this moment.
    fn closed(now: Instant) -> Breaker {
        let mut breaker = Breaker::new(now);
        assert!(breaker.probed(true, now, 0));
        breaker
    }

    #[test]
    fn nobody_asks_before_the_first_probe_and_one_is_enough() {
        let now = monotonic_now();
        let mut breaker = Breaker::new(now);
        assert!(!breaker.is_closed());
        assert_eq!(breaker.probe_at(), Some(now));
        assert!(breaker.probed(true, now, 0));
        assert!(breaker.is_closed());
        assert_eq!(breaker.probe_at(), None);
    }

    #[test]
    fn five_failures_in_a_row_open_it_and_an_answer_between_them_does_not_let_them() {
        let now = monotonic_now();
        let mut breaker = closed(now);
        // Each failure in a second of its own, so that the half of them is never in question.
        for (second, answered) in [0, 0, 0, 0, 1, 1, 1, 1].into_iter().enumerate() {
            let at = now + ms(2000) * u32::try_from(second).unwrap();
            assert!(!breaker.failed(at, answered, 0), "{second}");
        }
        assert!(breaker.failed(now + ms(60_000), 1, 0));
        assert!(!breaker.is_closed());
    }

    #[test]
    fn more_than_half_of_twenty_calls_of_a_second_open_it() {
        for (answers_a_failure, apart_ms, opens) in [
            // Three answers to two failures.
            (&[2_u64, 1] as &[u64], 10, false),
            // Three answers to four failures.
            (&[1, 1, 1, 0], 10, true),
            // The same, too few of them in a second.
            (&[1, 1, 1, 0], 150, false),
        ] {
            let now = monotonic_now();
            let mut breaker = closed(now);
            let mut answered = 0;
            let mut opened = false;
            for (step, more) in (0_u32..200).zip(answers_a_failure.iter().cycle()) {
                opened |= breaker.failed(now + ms(apart_ms) * step, answered, 0);
                answered += more;
            }
            assert_eq!(opened, opens, "{answers_a_failure:?} every {apart_ms} ms");
        }
    }

    #[test]
    fn a_lost_connection_opens_it_at_once() {
        let now = monotonic_now();
        let mut breaker = closed(now);
        assert!(breaker.lost(now, 0));
        assert!(!breaker.lost(now, 0));
        assert_eq!(breaker.probe_at(), Some(now + ms(50)));
    }

    #[test]
    fn a_demoted_server_is_replaced_at_once_but_not_again_and_again() {
        let now = monotonic_now();
        let mut breaker = closed(now);
        assert!(breaker.demoted(now, 0));
        assert_eq!(breaker.probe_at(), Some(now));
        assert!(breaker.probed(true, now, 0));
        // Nothing was decided since: the one that was found is no better.
        assert!(breaker.demoted(now, 0));
        assert_eq!(breaker.probe_at(), Some(now + ms(100)));
        while !breaker.probed(true, now, 0) {}
        breaker.proved();
        assert!(breaker.demoted(now, 0));
        assert_eq!(breaker.probe_at(), Some(now));
    }

    #[test]
    fn it_closes_after_three_good_probes_in_a_row() {
        let now = monotonic_now();
        let mut breaker = closed(now);
        breaker.lost(now, 0);
        for (well, closes) in [
            (true, false),
            (true, false),
            (false, false),
            (true, false),
            (true, false),
            (true, true),
        ] {
            assert_eq!(breaker.probed(well, now, 0), closes);
        }
    }

    #[test]
    fn pauses_double_up_to_a_second_until_a_decision_is_made() {
        let now = monotonic_now();
        let mut breaker = closed(now);
        breaker.lost(now, 1000);
        let mut pauses = Vec::new();
        for _ in 0..5 {
            pauses.push(breaker.probe_at().unwrap() - now);
            breaker.probed(false, now, 1000);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1000].map(ms));
        let reopened = |breaker: &mut Breaker| {
            while !breaker.probed(true, now, 1000) {}
            breaker.lost(now, 1000);
            breaker.probe_at().unwrap() - now
        };
        assert_eq!(reopened(&mut breaker), ms(1000));
        breaker.proved();
        assert_eq!(reopened(&mut breaker), ms(100));
    }

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Answer,
        Failure,
        Lost,
        Probe(bool),
        Proved,
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            6 => Just(Event::Answer),
            6 => Just(Event::Failure),
            1 => Just(Event::Lost),
            6 => any::<bool>().prop_map(Event::Probe),
            1 => Just(Event::Proved),
        ]
    }

    proptest! {
        /// Whatever happens: five failures in a row are never answered by a sixth call; an open one says when to
        /// probe, within a second; it closes by a good probe, and no sooner than three of them once it had closed.
        #[test]
        fn it_is_open_or_asked_never_both(
            events in prop::collection::vec((event(), 0_u64..400, 0_u32..=1000), 1..200),
        ) {
            let mut now = monotonic_now();
            let mut breaker = Breaker::new(now);
            let (mut answered, mut in_a_row, mut good, mut was_closed) = (0, 0, 0, false);
            for (event, later, chance) in events {
                now += ms(later);
                let before = breaker.is_closed();
                match event {
                    Event::Answer if before => {
                        answered += 1;
                        in_a_row = 0;
                    }
                    Event::Failure => {
                        let opened = breaker.failed(now, answered, chance);
                        prop_assert_eq!(opened, before && !breaker.is_closed());
                        in_a_row += u32::from(before);
                    }
                    Event::Lost => {
                        breaker.lost(now, chance);
                        prop_assert!(!breaker.is_closed());
                    }
                    Event::Probe(well) => {
                        good = if well && !before { good + 1 } else { 0 };
                        let closed = breaker.probed(well, now, chance);
                        prop_assert_eq!(closed, !before && breaker.is_closed());
                        prop_assert!(!closed || !was_closed || good >= PROBES);
                    }
                    Event::Proved => breaker.proved(),
                    Event::Answer => {}
                }
                if breaker.is_closed() {
                    was_closed = true;
                    prop_assert!(in_a_row < IN_A_ROW_MAX);
                } else {
                    in_a_row = 0;
                    let probe_at = breaker.probe_at();
                    prop_assert!(probe_at.is_some_and(|at| at <= now + PAUSE_MAX));
                }
                if before && !breaker.is_closed() {
                    good = 0;
                }
                prop_assert_eq!(breaker.probe_at().is_none(), breaker.is_closed());
            }
        }
    }
}
