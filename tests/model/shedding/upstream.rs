//! An upstream behind a gateway, in virtual time: requests come, are let in or not, queue and are answered.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::time::{Duration, Instant};

use tollgate::shed::{Load, Place, Priority};

const SECOND: Duration = Duration::from_secs(1);

/// An upstream: so many requests at once, the others queue.
#[derive(Clone, Copy)]
pub(super) struct Upstream {
    pub(super) at_once: u32,
    pub(super) takes: Duration,
    /// From so many seconds on it takes this.
    pub(super) later: Option<(u64, Duration)>,
    /// Whether what it takes is drawn from the exponential distribution around that.
    pub(super) by_chance: bool,
}

/// Those who call.
#[derive(Clone, Copy)]
pub(super) struct Clients {
    /// Requests of high, normal and low priority in 10 s, by chance.
    pub(super) in_ten_seconds: [u32; 3],
    /// How many of a thousand answers go on for a minute once they have begun.
    pub(super) streams: u32,
}

/// What was seen in a second.
#[derive(Clone, Debug, Default)]
pub(super) struct Second {
    pub(super) asked: [u32; 3],
    pub(super) let_in: [u32; 3],
    pub(super) answered: u32,
    /// What half of the answers took at most.
    pub(super) median: Duration,
    /// How many might be unanswered at its end.
    pub(super) limit: u32,
}

#[derive(Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    Comes(usize),
    Answered(u64),
    Ends(u64),
    SecondEnds,
}

struct World<'l> {
    load: &'l Load,
    began: Instant,
    now: Duration,
    upstream: Upstream,
    random: fastrand::Rng,
    events: BinaryHeap<Reverse<(Duration, Event)>>,
    /// Each with its place, and when it was sent.
    requests: BTreeMap<u64, (Place, Duration)>,
    queue: VecDeque<u64>,
    busy: u32,
    took: Vec<Duration>,
}

/// So many seconds, one after the other.
pub(super) fn seconds(
    load: &Load,
    began: Instant,
    (upstream, clients): (Upstream, Clients),
    count: usize,
    seed: u64,
) -> Vec<Second> {
    let mut world = World {
        load,
        began,
        now: Duration::ZERO,
        upstream,
        random: fastrand::Rng::with_seed(seed),
        events: BinaryHeap::new(),
        requests: BTreeMap::new(),
        queue: VecDeque::new(),
        busy: 0,
        took: Vec::new(),
    };
    world.after(SECOND, Event::SecondEnds);
    for (which, rate) in clients.in_ten_seconds.into_iter().enumerate() {
        if rate > 0 {
            world.after(Duration::ZERO, Event::Comes(which));
        }
    }
    let mut seen = Vec::new();
    let mut second = Second::default();
    while let Some(Reverse((now, event))) = world.events.pop() {
        world.now = now;
        match event {
            Event::Comes(which) => {
                let gap = world.by_chance(10 * SECOND / clients.in_ten_seconds[which]);
                world.after(gap, Event::Comes(which));
                second.asked[which] += 1;
                second.let_in[which] += u32::from(world.comes(which));
            }
            Event::Answered(number) => {
                second.answered += 1;
                let is_stream = world.random.u32(..1_000) < clients.streams;
                world.answered(number, is_stream);
            }
            Event::Ends(number) => {
                world.requests.remove(&number);
            }
            Event::SecondEnds => {
                second.limit = load.limits().unwrap().unanswered;
                world.took.sort_unstable();
                let median = world.took.get(world.took.len() / 2);
                second.median = median.copied().unwrap_or_default();
                world.took.clear();
                seen.push(std::mem::take(&mut second));
                if seen.len() == count {
                    break;
                }
                world.after(SECOND, Event::SecondEnds);
            }
        }
        world.work();
    }
    seen
}

impl World<'_> {
    fn after(&mut self, span: Duration, event: Event) {
        self.events.push(Reverse((self.now + span, event)));
    }

    /// Around `mean`, by the exponential distribution.
    fn by_chance(&mut self, mean: Duration) -> Duration {
        mean.mul_f64(-(1.0 - self.random.f64()).ln())
    }

    fn comes(&mut self, which: usize) -> bool {
        let Ok(place) = self.load.take(Priority::ALL[which]) else {
            return false;
        };
        let number = self.random.u64(..);
        self.requests.insert(number, (place, self.now));
        self.queue.push_back(number);
        true
    }

    fn answered(&mut self, number: u64, is_stream: bool) {
        self.busy -= 1;
        let (mut place, sent) = self.requests.remove(&number).unwrap();
        place.rest();
        let took = self.now - sent;
        self.took.push(took);
        self.load.answered(self.began + self.now, took);
        if is_stream {
            self.requests.insert(number, (place, sent));
            self.after(60 * SECOND, Event::Ends(number));
        }
    }

    fn work(&mut self) {
        let upstream = self.upstream;
        let later = upstream
            .later
            .filter(|(from, _)| self.now.as_secs() >= *from);
        let takes = later.map_or(upstream.takes, |(_, takes)| takes);
        while self.busy < upstream.at_once
            && let Some(number) = self.queue.pop_front()
        {
            self.busy += 1;
            let takes = if upstream.by_chance {
                self.by_chance(takes)
            } else {
                takes
            };
            self.after(takes, Event::Answered(number));
        }
    }
}
