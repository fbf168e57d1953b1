//! Leases in virtual time: gateways that take units ahead of their requests from one store, with calls that take their
//! time. What they let through together stays within the published bound, however they are asked.

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::time::{Duration, Instant};

use tollgate::check::{Check, Policy};
use tollgate::clock::{Clock, ManualClock, monotonic_now};
use tollgate::decide::{Decision, Timestamp, Verdict};
use tollgate::store::Settlement;
use tollgate::store::local::{LocalStore, Outage};
use tollgate::store::valkey::lease::{Asking, Leases};

use crate::support::policies::{check, limits, policy, rule};

const START_US: u64 = 1_700_000_000_000_000;
const SECOND_US: u64 = 1_000_000;
const TRIP_MAX_US: u64 = 2_000;

/// What a gateway or the store does next.
enum Event<'w> {
    Send(usize),
    Decide(Call<'w>),
    Answer(Call<'w>),
}

/// A request on its way.
struct Call<'w> {
    gateway: usize,
    check: Check<'w>,
    asking: Option<Asking<'w, 'w>>,
    decided: Option<(Timestamp, Decision)>,
}

struct World<'w> {
    policy: &'w Policy,
    gateways: &'w [Leases],
    store: LocalStore,
    clock: ManualClock,
    began: Instant,
    random: fastrand::Rng,
    events: BTreeMap<(u64, u64), Event<'w>>,
    number: u64,
    /// When units passed, and how many.
    passed: Vec<(u64, u64)>,
    seen: Seen,
}

#[derive(Debug, Default)]
struct Seen {
    requests: u64,
    calls: u64,
    spent: u64,
    denied: u64,
    lost: u64,
    /// Units that passed in a window beyond what its rule lets through.
    beyond: u64,
}

fn store() -> (LocalStore, ManualClock) {
    let clock = ManualClock::default();
    let most = NonZeroUsize::new(1000).unwrap();
    (LocalStore::new(most, Clock::Manual(clock.clone())), clock)
}

/// A policy of this kind that leases.
fn leasing(kind: &str, random: &mut fastrand::Rng) -> Policy {
    let count = random.choice([20, 100, 1_000]).unwrap();
    let window_us = random.choice([SECOND_US, 3 * SECOND_US]).unwrap();
    Policy {
        lease: NonZeroU64::new(random.choice([3, 20, 100]).unwrap()),
        ..policy("leased", rule(kind, count, window_us, count))
    }
}

impl<'w> World<'w> {
    fn new(policy: &'w Policy, gateways: &'w [Leases], random: fastrand::Rng) -> Self {
        let (store, clock) = store();
        Self {
            policy,
            gateways,
            store,
            clock,
            began: monotonic_now(),
            random,
            events: BTreeMap::new(),
            number: 0,
            passed: Vec::new(),
            seen: Seen::default(),
        }
    }

    fn plan(&mut self, at: u64, event: Event<'w>) {
        self.number += 1;
        self.events.insert((at, self.number), event);
    }

    fn trip(&mut self, at: u64) -> u64 {
        at + self.random.u64(0..TRIP_MAX_US)
    }

    fn at(&self, micros: u64) -> Instant {
        self.began + Duration::from_micros(micros)
    }

    fn play(&mut self) {
        let limit = self.policy.limits.rule.limit().unwrap();
        let (count, window_us) = (limit.count.get(), limit.window_us.get());
        let mut at = 0;
        // Now and then more than the limit, now and then less, now and then nothing.
        while at < 5 * window_us {
            let pace = self.random.choice([1, 4, 30]).unwrap();
            for _ in 0..self.random.u64(1..=count) {
                at += self.random.u64(0..=window_us * pace / count / 4);
                let gateway = self.random.usize(0..self.gateways.len());
                self.plan(at, Event::Send(gateway));
            }
            if self.random.bool() {
                at += self.random.u64(0..window_us);
            }
        }
        while let Some(((at, _), event)) = self.events.pop_first() {
            match event {
                Event::Send(gateway) => self.send(at, gateway),
                Event::Decide(call) => self.decide(at, call),
                Event::Answer(call) => self.answer(at, call),
            }
        }
    }

    fn send(&mut self, at: u64, gateway: usize) {
        self.seen.requests += 1;
        let cost = self.random.choice([1, 1, 1, 2]).unwrap();
        let check = check(self.policy, 1, cost);
        let (now, leases) = (self.at(at), &self.gateways[gateway]);
        if let Some(decision) = leases.spend(&check, now) {
            assert_eq!(decision.verdict, Verdict::Allow);
            assert!(decision.remaining <= self.policy.limits.rule.capacity());
            self.seen.spent += cost;
            self.passed.push((at, cost));
            return;
        }
        let asking = leases.ask(&check, u32::try_from(self.gateways.len()).unwrap(), now);
        self.call(at, gateway, check, asking);
    }

    fn call(&mut self, at: u64, gateway: usize, check: Check<'w>, asking: Option<Asking<'w, 'w>>) {
        self.seen.calls += 1;
        let there = self.trip(at);
        let call = Call {
            gateway,
            check,
            asking,
            decided: None,
        };
        self.plan(there, Event::Decide(call));
    }

    fn decide(&mut self, at: u64, mut call: Call<'w>) {
        self.clock.set(Timestamp::from_micros(START_US + at));
        let asked = call.asking.as_ref().map_or(call.check, Asking::raised);
        let (decided_at, decisions) = self.store.decide_now(&[asked]).unwrap();
        call.decided = Some((decided_at, decisions[0]));
        let back = self.trip(at);
        self.plan(back, Event::Answer(call));
    }

    fn answer(&mut self, at: u64, call: Call<'w>) {
        let Call {
            gateway,
            check,
            asking,
            decided,
        } = call;
        // Some answers come to nobody: what they charged is lost.
        if self.random.u8(..) < 10 {
            self.seen.lost += 1;
            return;
        }
        let (now, cost) = (self.at(at), check.cost.units());
        let (decided_at, decision) = decided.unwrap();
        match (decision.verdict, asking) {
            (Verdict::Allow, Some(asking)) => {
                let told = asking.granted(decided_at, decision, now);
                assert!(told.remaining <= self.policy.limits.rule.capacity());
                self.passed.push((at, cost));
            }
            (Verdict::Deny, Some(asking)) => {
                drop(asking);
                self.call(at, gateway, check, None);
            }
            (verdict, None) => {
                self.gateways[gateway].learn(&check, decision, None, now);
                if verdict == Verdict::Allow {
                    self.passed.push((at, cost));
                } else {
                    self.seen.denied += 1;
                }
            }
        }
    }

    /// No span of a window lets through more than the rule does, and what the gateways held before it.
    fn holds(&mut self, kind: &str) {
        let limit = self.policy.limits.rule.limit().unwrap();
        let (count, window_us) = (limit.count.get(), limit.window_us.get());
        let by_rule = match kind {
            "sliding-log" | "strict" => count,
            _ => 2 * count,
        };
        let gateways = u64::try_from(self.gateways.len()).unwrap();
        let published = by_rule + gateways * self.policy.lease.unwrap().get();
        self.passed.sort_unstable();
        // An answer is on its way for so long after it was charged: that blurs a span, with or without leases.
        let span = window_us - 2 * TRIP_MAX_US;
        let mut first = 0;
        let mut inside = 0;
        for &(at, units) in &self.passed {
            inside += units;
            while self.passed[first].0 + span <= at {
                inside -= self.passed[first].1;
                first += 1;
            }
            self.seen.beyond = self.seen.beyond.max(inside.saturating_sub(by_rule));
            assert!(
                inside <= published,
                "{inside} in a window, {published} at most"
            );
        }
    }
}

#[test]
fn gateways_that_lease_stay_within_the_published_bound() {
    for kind in ["fixed-window", "sliding-log", "strict", "token-bucket"] {
        let mut all = Seen::default();
        for seed in 0..100 {
            let mut random = fastrand::Rng::with_seed(seed);
            let policy = leasing(kind, &mut random);
            let gateways: Vec<_> = (0..random.usize(1..=4))
                .map(|_| Leases::default())
                .collect();
            let mut world = World::new(&policy, &gateways, random);
            world.play();
            world.holds(kind);
            all.requests += world.seen.requests;
            all.calls += world.seen.calls;
            all.spent += world.seen.spent;
            all.denied += world.seen.denied;
            all.lost += world.seen.lost;
            all.beyond = all.beyond.max(world.seen.beyond);
        }
        println!("{kind}: {all:?}");
        assert!(
            all.spent > all.requests / 10 && all.denied > 0 && all.lost > 0,
            "these histories are about nothing: {all:?}"
        );
    }
}

/// A gateway and its store, and a policy that leases up to `lease` of `count` a minute.
struct Pair {
    leases: Leases,
    policy: Policy,
    store: LocalStore,
    clock: ManualClock,
    began: Instant,
}

impl Pair {
    fn new(count: u64, lease: u64) -> Self {
        let (store, clock) = store();
        Self {
            leases: Leases::default(),
            policy: Policy {
                lease: NonZeroU64::new(lease),
                ..policy("leased", rule("fixed-window", count, 60 * SECOND_US, count))
            },
            store,
            clock,
            began: monotonic_now(),
        }
    }

    /// One request after so many milliseconds: whether it was spent here, and what it was told.
    fn request(&self, ms: u64) -> (bool, Decision) {
        let now = self.began + Duration::from_millis(ms);
        let check = check(&self.policy, 1, 1);
        if let Some(decision) = self.leases.spend(&check, now) {
            return (true, decision);
        }
        // The window of this minute began 20 s ago.
        self.clock
            .set(Timestamp::from_micros(START_US + ms * 1_000));
        let Some(asking) = self.leases.ask(&check, 1, now) else {
            let decision = self.store.decide_now(&[check]).unwrap().1[0];
            self.leases.learn(&check, decision, None, now);
            return (false, decision);
        };
        let (at, decisions) = self.store.decide_now(&[asking.raised()]).unwrap();
        (false, asking.granted(at, decisions[0], now))
    }

    fn left(&self) -> u64 {
        self.store
            .decide_now(&[check(&self.policy, 1, 0)])
            .unwrap()
            .1[0]
            .remaining
    }
}

#[test]
fn a_busy_key_asks_seldom_and_an_idle_one_each_time() {
    let busy = Pair::new(100_000, 500);
    let spent = (0..2_000).filter(|ms| busy.request(*ms).0).count();
    assert!(
        spent > 1_900,
        "only {spent} of 2,000 were spent from a lease"
    );
    let idle = Pair::new(100_000, 500);
    assert!((0..30).all(|request| !idle.request(request * 1_000).0));
    assert_eq!(idle.left(), 100_000 - 30, "an idle key takes nothing ahead");
}

#[test]
fn what_is_left_is_told_as_if_nothing_were_leased() {
    let pair = Pair::new(1_000, 50);
    for request in 0..600 {
        let (_, told) = pair.request(request);
        assert_eq!(told.remaining, 1_000 - request - 1);
    }
}

#[test]
fn near_the_limit_each_request_is_asked_for_and_the_edge_is_exact() {
    let pair = Pair::new(1_000, 50);
    let told: Vec<_> = (0..1_010).map(|request| pair.request(request)).collect();
    let allowed = |part: &[(bool, Decision)]| {
        part.iter()
            .filter(|(_, told)| told.verdict == Verdict::Allow)
            .count()
    };
    assert_eq!((allowed(&told), allowed(&told[1_000..])), (1_000, 0));
    let spent_late = told[860..].iter().filter(|(spent, _)| *spent).count();
    assert_eq!(spent_late, 0, "leases were spent near the limit");
}

#[test]
fn a_lease_ends_and_another_limit_has_none_of_it() {
    let pair = Pair::new(100_000, 500);
    while !pair.request(0).0 {}
    let check_at = |pair: &Pair, policy: &Policy, ms| {
        let now = pair.began + Duration::from_millis(ms);
        pair.leases.spend(&check(policy, 1, 1), now).is_some()
    };
    let edited = Policy {
        limits: limits(rule("fixed-window", 200_000, 60 * SECOND_US, 1)),
        ..pair.policy.clone()
    };
    assert!(!check_at(&pair, &edited, 1));
    // A tenth of the window.
    assert!(check_at(&pair, &pair.policy, 5_999));
    assert!(!check_at(&pair, &pair.policy, 6_000));
}

#[test]
fn a_call_that_is_given_up_asks_for_nothing_any_more() {
    let pair = Pair::new(100_000, 10);
    for ms in 0..20 {
        pair.request(ms);
    }
    let later = pair.began + Duration::from_millis(25);
    let check: Check<'_> = check(&pair.policy, 1, 11);
    let first = pair
        .leases
        .ask(&check, 1, later)
        .map(|asking| asking.raised().cost);
    let second = pair
        .leases
        .ask(&check, 1, later)
        .map(|asking| asking.raised().cost);
    assert_eq!(first, second);
    let held = pair.leases.ask(&check, 1, later);
    assert!(
        pair.leases.ask(&check, 1, later).is_none(),
        "the same units asked for twice"
    );
    drop(held);
}

#[test]
fn what_is_not_spent_is_given_back_at_the_end() {
    let pair = Pair::new(100_000, 500);
    let requests = 700;
    for ms in 0..requests {
        pair.request(ms);
    }
    let charged = 100_000 - pair.left();
    assert!(charged > requests, "nothing was leased");
    let policies = [std::sync::Arc::new(pair.policy.clone())];
    let unspent = pair.leases.take_all(&policies);
    assert_eq!(unspent.len(), 1);
    let unspent: Vec<_> = unspent
        .iter()
        .map(|unspent| Settlement::given_back(unspent.charged()))
        .collect();
    pair.store.settle(Outage::default(), &unspent);
    assert_eq!(pair.left(), 100_000 - requests);
    assert!(pair.leases.take_all(&policies).is_empty());
}
