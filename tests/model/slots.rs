//! Gateways that share slots, in virtual time: calls that are late or lost, gateways that die, a store that forgets.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tollgate::check::Policy;
use tollgate::clock::monotonic_now;
use tollgate::store::valkey::slots::{Asking, Heard, Holder, Slots, Tell};

use crate::support::holders::{Holders, Number};
use crate::support::policies::{check, policy, rule};

const MS: u64 = 1_000;
const LEASE: u64 = 1_000 * MS;
/// How long a call may be on its way, and how long it is waited for.
const TRIP_MAX: u64 = 10 * MS;
const PATIENCE: u64 = 50 * MS;
const LOOK_EVERY: u64 = 100 * MS;
/// Until when requests come, and until when there are faults.
const BUSY: u64 = 10 * LEASE;
const CALM: u64 = 7 * LEASE;

/// What may go wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// Calls that are lost, or whose answers are, of a hundred.
    lost: u8,
    /// Gateways that die.
    deaths: usize,
    /// How often the store loses all it knows.
    wipes: usize,
}

enum Event {
    Come(usize),
    Asked(usize, Asking<'static>, Number),
    Answered(usize, Asking<'static>, bool),
    GivenUp(usize, Asking<'static>),
    Ended(usize),
    Told(usize, Tell),
    Heard(usize, Tell, Heard),
    Look(usize),
    Die(usize),
    Wipe,
}

impl Event {
    /// Whether it is of a call that is under way.
    const fn is_call(&self) -> bool {
        !matches!(self, Self::Ended(_) | Self::Look(_) | Self::Come(_))
    }
}

struct Gateway {
    number: u64,
    /// One that died has another place among the gateways.
    is_alive: bool,
    slots: &'static Slots,
    in_flight: u64,
}

struct World {
    began: Instant,
    now: u64,
    random: fastrand::Rng,
    events: BTreeMap<(u64, u64), Event>,
    scheduled: u64,
    policy: Policy,
    limit: u64,
    store: Holders,
    gateways: Vec<Gateway>,
    faults: Faults,
    /// Requests may stay until here.
    longest: u64,
    most_in_flight: u64,
    passed: u64,
}

impl World {
    fn new(seed: u64, faults: Faults) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let limit = random.u64(1..20);
        let mut world = Self {
            began: monotonic_now(),
            now: 0,
            events: BTreeMap::new(),
            scheduled: 0,
            policy: policy("slots", rule("concurrency", limit, LEASE, 1)),
            limit,
            store: Holders::default(),
            gateways: Vec::new(),
            faults,
            longest: [20 * MS, LEASE, 4 * LEASE][random.usize(..3)],
            most_in_flight: 0,
            passed: 0,
            random,
        };
        for number in 0..world.random.u64(1..=4) {
            world.join(number);
        }
        for _ in 0..faults.deaths {
            let (who, at) = (
                world.random.usize(..world.gateways.len()),
                world.random.u64(LEASE..CALM),
            );
            world.at(at, Event::Die(who));
        }
        for _ in 0..faults.wipes {
            let at = world.random.u64(LEASE..CALM);
            world.at(at, Event::Wipe);
        }
        world
    }

    fn join(&mut self, number: u64) {
        let index = self.gateways.len();
        self.gateways.push(Gateway {
            number,
            is_alive: true,
            slots: Box::leak(Box::new(Slots::new(number, "t".into()))),
            in_flight: 0,
        });
        self.at(self.now, Event::Come(index));
        self.at(self.now, Event::Look(index));
    }

    fn at(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    fn trip(&mut self) -> u64 {
        self.now + self.random.u64(1..TRIP_MAX)
    }

    fn goes_wrong(&mut self) -> bool {
        self.now < CALM && self.random.u8(0..100) < self.faults.lost
    }

    fn instant(&self) -> Instant {
        self.began + Duration::from_micros(self.now)
    }

    fn number_of(&self, gateway: usize, holder: Holder) -> Number {
        let number = self.gateways[gateway].number;
        let field = (0..).find(|field| Holder::new(number, *field) == holder);
        (number, field.unwrap())
    }

    /// Plays until `end`, or until nothing happens any more.
    fn play(&mut self, end: u64) {
        while let Some(next) = self.events.first_entry() {
            if next.key().0 > end {
                break;
            }
            let ((at, _), event) = next.remove_entry();
            self.now = at;
            self.happens(event);
            let in_flight = self.in_flight();
            self.most_in_flight = self.most_in_flight.max(in_flight);
            if self.faults.wipes == 0 {
                assert!(
                    in_flight <= self.limit,
                    "{in_flight} of {} in flight at {at}",
                    self.limit
                );
            }
        }
        self.now = end;
    }

    fn in_flight(&self) -> u64 {
        let alive = self.gateways.iter().filter(|gateway| gateway.is_alive);
        alive.map(|gateway| gateway.in_flight).sum()
    }

    fn happens(&mut self, event: Event) {
        let now = self.instant();
        match event {
            Event::Come(gateway) => {
                if self.now < BUSY && self.gateways[gateway].is_alive {
                    self.ask(gateway);
                    let pause = self.random.u64(1..40 * MS);
                    self.at(self.now + pause, Event::Come(gateway));
                }
            }
            Event::Asked(gateway, asking, by) => {
                let fits = self.store.take(by, self.limit, LEASE, 1, self.now);
                if self.goes_wrong() {
                    drop(asking);
                } else {
                    let at = self.trip();
                    self.at(at, Event::Answered(gateway, asking, fits));
                }
            }
            Event::Answered(gateway, asking, fits) => {
                asking.end(|_| fits);
                if fits && self.gateways[gateway].is_alive {
                    self.gateways[gateway].in_flight += 1;
                    self.passed += 1;
                    let lasts = self.random.u64(1..self.longest);
                    self.at(self.now + lasts, Event::Ended(gateway));
                }
            }
            Event::GivenUp(gateway, asking) => {
                let holder = asking.holder_of(&check(&self.policy, 1, 1));
                let by = self.number_of(gateway, holder);
                drop(asking);
                // It was only late.
                if self.random.bool() {
                    self.store.take(by, self.limit, LEASE, 1, self.now);
                }
            }
            Event::Ended(gateway) => {
                if self.gateways[gateway].is_alive {
                    self.gateways[gateway].in_flight -= 1;
                    let check = check(&self.policy, 1, 1);
                    self.gateways[gateway].slots.release(&check, now);
                }
            }
            Event::Told(gateway, tell) => {
                let by = self.number_of(gateway, tell.holder);
                let units = self.store.hold(by, LEASE, tell.more, self.now);
                let (at, heard) = if self.goes_wrong() {
                    (self.now + PATIENCE, Heard::Unknown)
                } else {
                    (self.trip(), Heard::Units(units))
                };
                self.at(at, Event::Heard(gateway, tell, heard));
            }
            Event::Heard(gateway, tell, heard) => {
                self.gateways[gateway].slots.heard(&tell, heard, now);
            }
            Event::Look(gateway) => {
                if self.gateways[gateway].is_alive {
                    self.gateways[gateway].slots.renew(false, now);
                    self.at(self.now + LOOK_EVERY, Event::Look(gateway));
                }
            }
            Event::Die(gateway) => {
                if self.gateways[gateway].is_alive {
                    self.gateways[gateway].is_alive = false;
                    let number = 100 + self.gateways.len() as u64;
                    self.join(number);
                }
            }
            Event::Wipe => self.store = Holders::default(),
        }
        self.tell_all();
    }

    fn ask(&mut self, gateway: usize) {
        let now = self.instant();
        let check = check(&self.policy, 1, 1);
        let asking = self.gateways[gateway].slots.ask(&[check], now);
        let asking = asking.unwrap();
        let by = self.number_of(gateway, asking.holder_of(&check));
        if !self.goes_wrong() {
            let at = self.trip();
            self.at(at, Event::Asked(gateway, asking, by));
        } else if self.random.bool() {
            // There was no connection.
            asking.end(|_| false);
        } else {
            self.at(self.now + PATIENCE, Event::GivenUp(gateway, asking));
        }
    }

    fn tell_all(&mut self) {
        for gateway in 0..self.gateways.len() {
            if !self.gateways[gateway].is_alive {
                continue;
            }
            for tell in self.gateways[gateway].slots.due(8, self.instant()) {
                if !self.goes_wrong() {
                    let at = self.trip();
                    self.at(at, Event::Told(gateway, tell));
                } else if self.random.bool() {
                    self.gateways[gateway]
                        .slots
                        .heard(&tell, Heard::NotMade, self.instant());
                } else {
                    let at = self.now + PATIENCE;
                    self.at(at, Event::Heard(gateway, tell, Heard::Unknown));
                }
            }
        }
    }

    /// What holds once nothing has gone wrong for a while: the store knows what is in flight, and then that nothing is.
    fn settles(&mut self) {
        self.play(BUSY + LEASE);
        while self.events.values().any(Event::is_call) {
            self.play(self.now + MS);
        }
        assert_eq!(
            self.store.live(self.now),
            self.in_flight(),
            "no call is under way"
        );
        self.play(BUSY + 6 * LEASE);
        assert_eq!(self.in_flight(), 0);
        assert_eq!(self.store.live(self.now), 0);
        for gateway in self.gateways.iter().filter(|gateway| gateway.is_alive) {
            assert_eq!((gateway.slots.units(), gateway.slots.len()), (0, 0));
        }
    }
}

fn play(seeds: std::ops::Range<u64>, faults: Faults) {
    let mut full = 0;
    for seed in seeds {
        let mut world = World::new(seed, faults);
        world.settles();
        assert!(world.passed > 0, "{seed}");
        full += usize::from(world.most_in_flight >= world.limit);
    }
    assert!(full > 20, "the limit is seldom reached: {full}");
}

#[test]
fn never_more_are_in_flight_than_the_limit_and_in_the_end_none() {
    play(0..60, Faults::default());
}

#[test]
fn calls_that_are_lost_or_late_free_no_slot_that_is_held_and_keep_none_that_is_not() {
    let lost = 20;
    let faults = Faults {
        lost,
        ..Faults::default()
    };
    play(100..160, faults);
}

#[test]
fn the_slots_of_gateways_that_die_come_back_and_no_others() {
    let (lost, deaths) = (5, 3);
    let faults = Faults {
        lost,
        deaths,
        ..Faults::default()
    };
    play(200..260, faults);
}

#[test]
fn a_store_that_forgets_is_told_again() {
    let faults = Faults {
        lost: 5,
        deaths: 2,
        wipes: 3,
    };
    play(300..360, faults);
}

#[test]
fn what_a_dead_gateway_held_is_free_after_one_lease_and_not_before() {
    let policy = policy("slots", rule("concurrency", 50, LEASE, 1));
    let began = monotonic_now();
    let mut store = Holders::default();
    let slots = Slots::new(7, "t".into());
    let all = check(&policy, 1, 50);
    let asking = slots.ask(&[all], began).unwrap();
    assert!(store.take((7, 0), 50, LEASE, 50, 0));
    asking.end(|_| true);
    // It says so as long as it lives, three times a lease.
    for time in 1..=9 {
        let at = 400 * MS * time;
        let now = began + Duration::from_micros(at);
        slots.renew(false, now);
        let tells = slots.due(8, now);
        assert_eq!(tells.len(), 1, "{time}");
        assert_eq!(tells[0].more, 0);
        let units = store.hold((7, 0), LEASE, 0, at);
        slots.heard(&tells[0], Heard::Units(units), now);
        assert!(!store.clone().take((8, 0), 50, LEASE, 1, at + LEASE - 1));
    }
    let last = 9 * 400 * MS;
    assert!(store.take((8, 0), 50, LEASE, 50, last + LEASE));
    assert_eq!(slots.restored(), 0);
}

#[test]
fn what_is_given_back_is_told_once_and_not_below_nothing() {
    let policy = policy("slots", rule("concurrency", 5, LEASE, 1));
    let now = monotonic_now();
    let slots = Slots::new(7, "t".into());
    let one = check(&policy, 1, 1);
    for _ in 0..2 {
        slots.ask(&[one], now).unwrap().end(|_| true);
    }
    slots.release(&one, now);
    let told = slots.due(8, now);
    assert_eq!(told[0].more, -1);
    // While that is under way nothing else is told of the key: what comes meanwhile is told with the next call.
    slots.release(&one, now);
    slots.release(&one, now);
    assert!(slots.due(8, now).is_empty());
    slots.heard(&told[0], Heard::Units(1), now);
    let told = slots.due(8, now);
    assert_eq!((told.len(), told[0].more), (1, -1));
    slots.heard(&told[0], Heard::Units(0), now);
    assert!(slots.due(8, now).is_empty() && slots.is_empty());
}

#[test]
fn a_gateway_alone_counts_all_that_it_holds_and_tells_of_it_later() {
    let policy = policy("slots", rule("concurrency", 4, LEASE, 1));
    let now = monotonic_now();
    let slots = Slots::new(7, "t".into());
    let one = check(&policy, 1, 1);
    for _ in 0..2 {
        slots.ask(&[one], now).unwrap().end(|_| true);
    }
    // The store is away: of four, two are in flight here.
    let remaining: Vec<_> = (0..3)
        .map(|_| slots.take_alone(&one, now).unwrap().remaining)
        .collect();
    assert_eq!(remaining, [1, 0, 0]);
    assert_eq!(slots.units(), 4);
    let told = slots.due(8, now);
    assert_eq!(told[0].more, 2);
    slots.heard(&told[0], Heard::NotMade, now);
    assert!(slots.due(8, now).is_empty());
    slots.release(&one, now);
    // Whoever looks again finds it.
    slots.renew(false, now);
    let told = slots.due(8, now);
    assert_eq!(told[0].more, 1);
    slots.heard(&told[0], Heard::Units(3), now);
    assert_eq!(slots.units(), 3);
}
