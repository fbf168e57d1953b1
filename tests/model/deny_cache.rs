//! Denials that are remembered, against a store that is asked each time, in virtual time: gateways with calls that take
//! their time, one store, several policies a request. What the cache denies the store would deny at that moment, by the
//! policies that are named, and lets pass after the wait that is told.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tollgate::check::{Check, Policy};
use tollgate::clock::{Clock, ManualClock, monotonic_now};
use tollgate::decide::{Cost, Decision, Penalised, Timestamp, Verdict};
use tollgate::store::local::LocalStore;
use tollgate::store::valkey::deny_cache::DenyCache;

use crate::support::policies::{check, policy};
use crate::support::traces::{KINDS, random_penalty, random_rule};

const START_US: u64 = 1_700_000_000_000_000;

/// The longest way of a call, there or back.
const TRIP_MAX_US: u64 = 30_000;

/// What a gateway or the store does next.
enum Event {
    Send(usize),
    Decide(Call),
    Answer(Call),
}

/// A request on its way.
struct Call {
    gateway: usize,
    asks: Asks,
    sent_at: u64,
    decided_at: u64,
    decided: Vec<Decision>,
}

/// Which policy, whom it counts, the cost, whether in shadow.
type Asks = Vec<(usize, u64, u64, bool)>;

struct World {
    policies: Vec<Policy>,
    caches: Vec<DenyCache>,
    store: LocalStore,
    clock: ManualClock,
    began: Instant,
    random: fastrand::Rng,
    events: BTreeMap<(u64, u64), Event>,
    number: u64,
    /// When a policy's entity was charged last, or a penalty of it began.
    charged_at: BTreeMap<(usize, u64), u64>,
    /// When a gateway's request was decided, of which it heard last.
    decided_at: BTreeMap<(usize, Asks), u64>,
    seen: Seen,
}

#[derive(Debug, Default)]
struct Seen {
    asked: u64,
    denied: u64,
    remembered: u64,
    /// Waits that nobody made longer meanwhile.
    undisturbed: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let policies = (0..random.usize(1..=3))
            .map(|index| {
                let window_us = random.u64(20_000..3_000_000);
                let kind = random.usize(..KINDS);
                let rule = random_rule(&mut random, kind, window_us);
                let punishes = random.u8(0..3) == 0;
                Policy {
                    index,
                    penalty: punishes.then(|| random_penalty(&mut random, window_us)),
                    ..policy(["a", "b", "c"][index], rule)
                }
            })
            .collect();
        let clock = ManualClock::default();
        Self {
            policies,
            caches: (0..random.usize(1..=3))
                .map(|_| DenyCache::default())
                .collect(),
            store: LocalStore::new(
                std::num::NonZeroUsize::new(1000).unwrap(),
                Clock::Manual(clock.clone()),
            ),
            clock,
            began: monotonic_now(),
            random,
            events: BTreeMap::new(),
            number: 0,
            charged_at: BTreeMap::new(),
            decided_at: BTreeMap::new(),
            seen: Seen::default(),
        }
    }

    fn at(&self, micros: u64) -> Instant {
        self.began + Duration::from_micros(micros)
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.number += 1;
        self.events.insert((at, self.number), event);
    }

    fn decide(&self, at: u64, checks: &[Check<'_>]) -> Vec<Decision> {
        self.clock.set(Timestamp::from_micros(START_US + at));
        self.store.decide_now(checks).unwrap().1
    }

    fn play(&mut self, requests: u64) {
        let mut at = 0;
        for _ in 0..requests {
            let longest = [100, 3_000, 200_000][self.random.usize(0..3)];
            at += self.random.u64(0..longest);
            let gateway = self.random.usize(0..self.caches.len());
            self.plan(at, Event::Send(gateway));
        }
        while let Some(((at, _), event)) = self.events.pop_first() {
            match event {
                Event::Send(gateway) => self.send(at, gateway),
                Event::Decide(mut call) => {
                    let policies = std::mem::take(&mut self.policies);
                    call.decided = self.decide(at, &checks(&policies, &call.asks));
                    call.decided_at = at;
                    self.policies = policies;
                    for ((policy, entity, ..), decision) in call.asks.iter().zip(&call.decided) {
                        let begins = decision.penalised == Penalised::Begins;
                        if begins || decision.verdict == Verdict::Allow {
                            self.charged_at.insert((*policy, *entity), at);
                        }
                    }
                    let back = at + self.random.u64(0..TRIP_MAX_US);
                    self.plan(back, Event::Answer(call));
                }
                Event::Answer(call) => {
                    let checks = checks(&self.policies, &call.asks);
                    let denies = denies(&checks, &call.decided);
                    self.seen.denied += u64::from(denies);
                    let decided: Vec<_> = checks.into_iter().zip(call.decided).collect();
                    self.caches[call.gateway].remember(
                        &decided,
                        self.at(call.sent_at),
                        self.at(at),
                    );
                    if denies {
                        let asked = (call.gateway, call.asks);
                        self.decided_at.insert(asked, call.decided_at);
                    }
                }
            }
        }
    }

    fn send(&mut self, at: u64, gateway: usize) {
        let random = &mut self.random;
        let entity = random.u64(0..2);
        let mut asks: Vec<_> = (0..self.policies.len())
            .map(|policy| {
                // Some routes have a policy of their own entity, in shadow, or another cost.
                let entity = if random.u8(..) < 40 { 7 } else { entity };
                let cost = random.choice([0, 1, 1, 1, 2, 5]).unwrap();
                (policy, entity, cost, random.u8(..) < 30)
            })
            .collect();
        asks.truncate(random.usize(1..=asks.len()));
        let checks = checks(&self.policies, &asks);
        let Some(found) = self.caches[gateway].find(&checks, self.at(at)) else {
            self.seen.asked += 1;
            let there = at + self.random.u64(0..TRIP_MAX_US);
            let call = Call {
                gateway,
                asks,
                sent_at: at,
                decided_at: 0,
                decided: Vec::new(),
            };
            self.plan(there, Event::Decide(call));
            return;
        };
        self.seen.remembered += 1;
        // A denial charges nothing: asking the store too changes nothing but that a penalty may begin.
        let truth = self.decide(at, &checks);
        assert!(denies(&checks, &truth), "denied what the store would allow");
        for (ask, decision) in asks.iter().zip(&truth) {
            if decision.penalised == Penalised::Begins {
                self.charged_at.insert((ask.0, ask.1), at);
            }
        }
        let decided_at = self.decided_at[&(gateway, asks.clone())];
        for (((check, told), true_one), ask) in found.iter().zip(&truth).zip(&asks) {
            // One that allowed then may deny by now: of that the answer tells nothing yet.
            if told.verdict == Verdict::Allow || check.shadow {
                continue;
            }
            assert_eq!(
                true_one.verdict,
                Verdict::Deny,
                "a policy is named for nothing"
            );
            let told_of = told;
            let (told, least) = (told.retry_after_us, true_one.retry_after_us);
            assert_eq!(told.is_none(), least.is_none());
            assert_ne!(told_of.penalised, Penalised::Begins, "it began before");
            let late = told.unwrap_or(0).saturating_sub(least.unwrap_or(0));
            assert!(late <= 2 * TRIP_MAX_US, "told to wait {late} µs too long");
            let charged_at = self.charged_at.get(&(ask.0, ask.1)).copied();
            if charged_at.unwrap_or(0) < decided_at {
                self.seen.undisturbed += 1;
                assert!(
                    told >= least,
                    "told to come back too early: {told:?}, {least:?}"
                );
            }
        }
    }
}

fn checks<'a>(policies: &'a [Policy], asks: &Asks) -> Vec<Check<'a>> {
    asks.iter()
        .map(|&(policy, entity, cost, shadow)| Check {
            shadow,
            ..check(&policies[policy], entity, cost)
        })
        .collect()
}

fn denies(checks: &[Check<'_>], decisions: &[Decision]) -> bool {
    checks
        .iter()
        .zip(decisions)
        .any(|(check, decision)| !check.shadow && decision.verdict == Verdict::Deny)
}

#[test]
fn what_is_denied_from_memory_the_store_would_deny() {
    let mut seen = Seen::default();
    for seed in 0..400 {
        let mut world = World::new(seed);
        world.play(300);
        seen.asked += world.seen.asked;
        seen.denied += world.seen.denied;
        seen.remembered += world.seen.remembered;
        seen.undisturbed += world.seen.undisturbed;
    }
    println!("{seen:?}");
    assert!(
        seen.undisturbed > 1_000 && seen.remembered > seen.undisturbed && seen.asked > seen.denied,
        "these histories are about nothing: {seen:?}"
    );
}

/// A denial of `wait_us`, and the store's answer at once.
fn denial(wait_us: Option<u64>) -> Decision {
    Decision {
        verdict: Verdict::Deny,
        remaining: 0,
        retry_after_us: wait_us,
        reset_after_us: 5_000_000,
        delay_us: 0,
        penalised: Penalised::No,
    }
}

#[test]
fn a_denial_is_forgotten_when_it_ends_and_after_a_second_at_most() {
    let rule = random_rule(&mut fastrand::Rng::with_seed(1), 0, 1_000_000);
    let policy = policy("p", rule);
    let checks = [check(&policy, 1, 1)];
    let (cache, sent_at) = (DenyCache::default(), monotonic_now());
    let after = |ms| sent_at + Duration::from_millis(ms);
    let found_after = |cache: &DenyCache, ms| cache.find(&checks, after(ms)).is_some();
    cache.remember(&[(checks[0], denial(Some(300_000)))], sent_at, after(10));
    assert!(found_after(&cache, 299) && !found_after(&cache, 300));
    // Known for long, or for ever.
    for wait in [Some(3_600_000_000), None] {
        cache.remember(&[(checks[0], denial(wait))], sent_at, after(10));
        assert!(found_after(&cache, 999) && !found_after(&cache, 1_000));
    }
    // An answer that took longer than the wait says nothing any more.
    let cache = DenyCache::default();
    cache.remember(&[(checks[0], denial(Some(5_000)))], sent_at, after(10));
    assert!(!found_after(&cache, 1));
}

#[test]
fn another_request_is_not_denied_for_it() {
    let rule = |seed| random_rule(&mut fastrand::Rng::with_seed(seed), 0, 1_000_000);
    let here = policy("p", rule(1));
    let edited = policy("p", rule(2));
    assert_ne!(here.limits.rule, edited.limits.rule);
    let other = policy("q", rule(1));
    let asked = check(&here, 1, 2);
    let (cache, sent_at) = (DenyCache::default(), monotonic_now());
    cache.remember(&[(asked, denial(Some(500_000)))], sent_at, sent_at);
    assert!(cache.find(&[asked], sent_at).is_some());
    let others = [
        check(&here, 2, 2),
        check(&edited, 1, 2),
        check(&other, 1, 2),
        Check {
            cost: Cost::new(1),
            ..asked
        },
        Check {
            shadow: true,
            ..asked
        },
    ];
    for other in others {
        assert!(cache.find(&[other], sent_at).is_none(), "{other:?}");
    }
    assert!(cache.find(&[asked, asked], sent_at).is_none());
    assert!(cache.find(&[], sent_at).is_none());
}

#[test]
fn it_is_bounded_and_what_is_pushed_out_is_only_asked_for_again() {
    let rule = random_rule(&mut fastrand::Rng::with_seed(1), 0, 1_000_000);
    let policy = policy("p", rule);
    let (cache, sent_at) = (DenyCache::default(), monotonic_now());
    let denied = 100_000;
    for entity in 0..denied {
        let wait_us = 100_000 + entity;
        let decided = [(check(&policy, entity, 1), denial(Some(wait_us)))];
        cache.remember(&decided, sent_at, sent_at);
    }
    let known = (0..denied)
        .filter(|entity| cache.find(&[check(&policy, *entity, 1)], sent_at).is_some())
        .count();
    assert!((8_000..=16_384).contains(&known), "{known} known");
}
