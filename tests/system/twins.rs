//! Function, local store and script: one history, every field equal.

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::Arc;

use tollgate::check::{Check, Policy};
use tollgate::clock::{Clock, ManualClock};
use tollgate::decide::{
    Anchor, Ask, Calendar, Charge, Cost, Decision, EXACT_MAX, FixedWindow, Rule, Settled,
    SlidingLog, State, Step, Timestamp, UNITS_MAX, Verdict, decide_all,
};
use tollgate::store::Settlement;
use tollgate::store::local::{LocalStore, Outage};

use crate::support::policies::{check, limits, policy};
use crate::support::script::Script;
use crate::support::traces::{
    CALENDARS, Gap, KINDS, cases, limit, random_cost, random_penalty, random_rule, random_window,
};
use crate::support::valkey::Valkey;

/// Histories of each test; more of them have been tried by hand.
const SEEDS: u64 = 350;

#[test]
fn the_script_decides_as_recorded() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    for (number, case) in (0..).zip(cases()) {
        let policy = policy("recorded", case.rule());
        for (index, step) in case.steps.iter().enumerate() {
            let now = Timestamp::from_micros(step.time_ms * 1_000);
            let check = Check {
                cost: Cost::new(step.cost),
                ..check(&policy, number, 0)
            };
            let decisions = script.decide(&[check], now);
            case.compare(index, &decisions[0]);
        }
    }
    script.expect_expiries();
}

/// The pure function, with what it said to keep.
#[derive(Default)]
struct Function(HashMap<(String, [u8; 16]), State>);

impl Function {
    fn decide<'a>(&mut self, checks: &[Check<'a>], now: Timestamp) -> Vec<Decision> {
        let key = |check: &Check<'_>| (check.policy.name.to_string(), check.entity.0);
        let penalty_of = |check: &Check<'_>| {
            let (name, entity) = key(check);
            (name + ":penalty", entity)
        };
        let ask = |check: &Check<'a>| Ask {
            rule: check.rule,
            kept: self.0.get(&key(check)),
            cost: check.cost,
            shadow: check.shadow,
            beside: check.beside(self.0.get(&penalty_of(check)).and_then(State::as_penalty)),
        };
        let steps = decide_all(&checks.iter().map(ask).collect::<Vec<_>>(), now);
        let keep = |(check, step): (&Check<'a>, Step)| {
            let mut kept = self.0.remove(&key(check));
            step.change.apply(&mut kept);
            self.0.extend(kept.map(|kept| (key(check), kept)));
            let punished = step
                .penalty
                .map(|it| (penalty_of(check), State::Penalty(it)));
            self.0.extend(punished);
            step.decision
        };
        checks.iter().zip(steps).map(keep).collect()
    }

    fn settle(&mut self, settlements: &[Settlement<'_>], now: Timestamp) -> Vec<Decision> {
        for settlement in settlements {
            let check = settlement.check;
            let key = (check.policy.name.to_string(), check.entity.0);
            let kept = self.0.remove(&key);
            let left = check
                .rule
                .settle(kept, settlement.charge, settlement.settled, now);
            if settlement.settled == Settled::Forgotten {
                self.0.remove(&(key.0.clone() + ":penalty", key.1));
            }
            self.0.extend(left.map(|left| (key, left)));
        }
        self.decide(&looks(settlements), now)
    }
}

/// Checks that only look, where these have charged.
fn looks<'a>(settlements: &[Settlement<'a>]) -> Vec<Check<'a>> {
    settlements
        .iter()
        .map(|settlement| Check {
            cost: Cost::NONE,
            ..settlement.check
        })
        .collect()
}

/// All three, driven by one history.
struct Triple {
    function: Function,
    clock: ManualClock,
    local: Option<LocalStore>,
    script: Script,
}

impl Triple {
    fn new(valkey: &Valkey) -> Self {
        Self {
            function: Function::default(),
            clock: ManualClock::default(),
            local: None,
            script: Script::load(valkey),
        }
    }

    /// Begins a history in an empty local store. That drops what is fresh as others come, and does not know it again
    /// when the clock steps back: so it takes part in histories of several keys only if the clock does not.
    fn begin(&mut self, with_local: bool) {
        let clock = Clock::Manual(self.clock.clone());
        self.local = with_local.then(|| LocalStore::new(NonZeroUsize::new(100).unwrap(), clock));
    }

    /// Decides by all three, and panics where they differ.
    fn decide(&mut self, checks: &[Check<'_>], now: Timestamp) -> Vec<Decision> {
        let expected = self.function.decide(checks, now);
        if let Some(local) = &self.local {
            self.clock.set(now);
            let (_, found) = local.decide_now(checks).unwrap();
            assert_eq!(found, expected, "local store at {now:?}: {checks:?}");
        }
        let scripted = self.script.decide(checks, now);
        assert_eq!(scripted, expected, "script at {now:?}: {checks:?}");
        expected
    }

    /// Settles in all three, and panics where they differ in what is left.
    fn settle(&mut self, settlements: &[Settlement<'_>], now: Timestamp) {
        let expected = self.function.settle(settlements, now);
        if let Some(local) = &self.local {
            self.clock.set(now);
            local.settle(Outage::default(), settlements);
            let (_, found) = local.decide_now(&looks(settlements)).unwrap();
            assert_eq!(found, expected, "local store at {now:?}: {settlements:?}");
        }
        let scripted = self.script.settle(settlements, now);
        assert_eq!(scripted, expected, "script at {now:?}: {settlements:?}");
    }
}

/// What an allowed request was charged at `at`, if it was.
fn charge_of(check: &Check<'_>, decision: &Decision, at: Timestamp) -> Option<Charge> {
    (decision.verdict == Verdict::Allow && check.cost.units() > 0).then_some(Charge {
        at,
        cost: check.cost,
        reset_after_us: decision.reset_after_us,
    })
}

/// What becomes of a charge: mostly less than it took or more, sometimes far more than any limit.
fn random_end(random: &mut fastrand::Rng, charged: Cost) -> Settled {
    let units = charged.units();
    Settled::Spent(Cost::new(match random.u8(0..10) {
        0..=2 => 0,
        3 | 4 => random.u64(0..=units),
        5..=7 => units + random.u64(0..=units.saturating_mul(2)),
        8 => UNITS_MAX,
        _ => return Settled::Forgotten,
    }))
}

#[test]
fn the_three_agree_on_what_is_settled() {
    let valkey = Valkey::start();
    let mut triple = Triple::new(&valkey);
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let window_us = random_window(&mut random);
        let kind = usize::try_from(seed).unwrap();
        let mut policy = policy("settled", random_rule(&mut random, kind, window_us));
        let mut now = 1_700_000_000_000_000 + random.u64(0..window_us);
        let (mut last, mut charges) = (None, Vec::new());
        triple.begin(true);
        for _ in 0..40 {
            now = Gap::random(&mut random, window_us).after(now, last.as_ref());
            let at = Timestamp::from_micros(now);
            if random.u8(0..20) == 0 {
                policy.limits = limits(random_rule(&mut random, kind, window_us));
                charges.clear();
            }
            if !charges.is_empty() && random.u8(0..3) == 0 {
                // Any of them, not only the last; and never twice.
                let charge = charges.swap_remove(random.usize(..charges.len()));
                let settlement = Settlement {
                    check: check(&policy, seed, 1),
                    charge,
                    settled: random_end(&mut random, charge.cost),
                };
                triple.settle(&[settlement], at);
            } else {
                let cost = random_cost(&mut random, policy.limits.rule.capacity(), last.as_ref());
                let check = check(&policy, seed, cost);
                last = triple.decide(&[check], at).pop();
                charges.extend(last.and_then(|decision| charge_of(&check, &decision, at)));
            }
        }
    }
    triple.script.expect_expiries();
}

#[test]
fn the_three_agree_on_random_histories() {
    let valkey = Valkey::start();
    let mut triple = Triple::new(&valkey);
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let window_us = random_window(&mut random);
        let kind = usize::try_from(seed).unwrap();
        let mut policy = policy("alone", random_rule(&mut random, kind, window_us));
        // Mostly this decade; the ends of what a clock can show, too.
        let mut now = match seed % 16 {
            0 => random.u64(0..window_us),
            1 => EXACT_MAX - random.u64(0..window_us),
            _ => 1_700_000_000_000_000 + random.u64(0..window_us),
        };
        let mut last = None;
        triple.begin(true);
        for _ in 0..40 {
            now = Gap::random(&mut random, window_us).after(now, last.as_ref());
            if random.u8(0..20) == 0 {
                // An edit of limit and burst, in the middle of a life.
                policy.limits = limits(random_rule(&mut random, kind, window_us));
            }
            let cost = random_cost(&mut random, policy.limits.rule.capacity(), last.as_ref());
            let check = check(&policy, seed, cost);
            last = triple.decide(&[check], Timestamp::from_micros(now)).pop();
        }
    }
    triple.script.expect_expiries();
}

#[test]
fn the_three_agree_on_several_checks_at_once() {
    let valkey = Valkey::start();
    let mut triple = Triple::new(&valkey);
    for seed in 0..150_u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        let window_us = random_window(&mut random).min(100_000_000);
        let named = |n: usize, random: &mut fastrand::Rng| {
            let kind = random.usize(..KINDS);
            let rule = random_rule(random, kind, window_us);
            let penalty = (seed % 3 == 0).then(|| random_penalty(random, window_us));
            Policy {
                penalty,
                ..policy(&format!("policy-{n}-{seed}"), rule)
            }
        };
        let policies: Vec<Policy> = (0..4).map(|n| named(n, &mut random)).collect();
        let mut now = 1_700_000_000_000_000;
        let mut last = Vec::new();
        let steps_back = seed % 2 == 1;
        triple.begin(!steps_back);
        for _ in 0..40 {
            let aimed = random.usize(..4);
            let gap = match Gap::random(&mut random, window_us) {
                Gap::Back(us) if !steps_back => Gap::Forward(us),
                gap => gap,
            };
            now = gap.after(now, last.get(aimed));
            let asked = random.usize(0..=policies.len());
            let checks: Vec<_> = policies[..asked]
                .iter()
                .enumerate()
                .map(|(n, policy)| Check {
                    shadow: random.u8(0..3) == 0,
                    ..check(
                        policy,
                        random.u64(0..2),
                        random_cost(&mut random, policy.limits.rule.capacity(), last.get(n)),
                    )
                })
                .collect();
            last = triple.decide(&checks, Timestamp::from_micros(now));
        }
    }
    triple.script.expect_expiries();
}

/// A penalty beside each kind, edited meanwhile, with settlements and refunds between.
#[test]
fn the_three_agree_on_penalties() {
    let valkey = Valkey::start();
    let mut triple = Triple::new(&valkey);
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let window_us = random_window(&mut random);
        let kind = usize::try_from(seed).unwrap();
        let mut policy = Policy {
            penalty: Some(random_penalty(&mut random, window_us)),
            ..policy("punishing", random_rule(&mut random, kind, window_us))
        };
        // Also where time stands still.
        let mut now = match seed % 16 {
            0 => EXACT_MAX - random.u64(0..window_us),
            _ => 1_700_000_000_000_000 + random.u64(0..window_us),
        };
        let steps_back = seed % 2 == 1;
        let (mut last, mut charges) = (None, Vec::new());
        triple.begin(!steps_back);
        for _ in 0..60 {
            let gap = match Gap::random(&mut random, window_us) {
                Gap::Back(us) if !steps_back => Gap::Forward(us),
                gap => gap,
            };
            now = gap.after(now, last.as_ref());
            let at = Timestamp::from_micros(now);
            // The local store drops what was to be forgotten by then, whatever is edited since.
            if steps_back && random.u8(0..30) == 0 {
                policy.penalty = Some(random_penalty(&mut random, window_us));
            }
            let shadow = random.u8(0..4) == 0;
            if !charges.is_empty() && random.u8(0..6) == 0 {
                let charge: Charge = charges.swap_remove(random.usize(..charges.len()));
                let settlement = Settlement {
                    check: check(&policy, seed, 1),
                    charge,
                    settled: random_end(&mut random, charge.cost),
                };
                triple.settle(&[settlement], at);
            } else {
                let cost = random_cost(&mut random, policy.limits.rule.capacity(), last.as_ref());
                let asked = Check {
                    shadow,
                    ..check(&policy, seed, cost)
                };
                last = triple.decide(&[asked], at).pop();
                charges.extend(last.and_then(|decision| charge_of(&asked, &decision, at)));
            }
        }
    }
    triple.script.expect_expiries();
}

/// Around the changes of clocks, and where the two clocks are so far apart that the edges that the script was handed
/// are none of those around its own now: it is handed no more than these, whatever its now is.
#[test]
fn the_three_agree_on_calendars_within_the_edges_handed_and_beyond() {
    let valkey = Valkey::start();
    let mut triple = Triple::new(&valkey);
    for seed in 0..SEEDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let whole = &CALENDARS[random.usize(..CALENDARS.len())];
        // The last Sunday of March 2026, the first of October 2025, and any moment.
        let start = match random.u8(0..3) {
            0 => 1_774_742_400_000_000,
            1 => 1_759_590_000_000_000,
            _ => random.u64(0..4_200_000_000_000_000),
        };
        let edges = whole.edges_around(Timestamp::from_micros(start)).to_vec();
        let few = Calendar::of_edges(whole.unit(), "few", edges).map(Arc::new);
        // Before the third midnight of 1970 there are no four around.
        let few = few.filter(|_| seed % 3 > 0);
        let calendar = few.unwrap_or_else(|| Arc::clone(whole));
        let nominal_us = calendar.unit().nominal_us();
        let rule = FixedWindow::new(limit(random.u64(1..300), 1_000), Anchor::Calendar(calendar));
        let policy = policy("calendar", Rule::FixedWindow(rule.unwrap()));
        let (mut now, mut last, mut charges) = (start, None, Vec::new());
        triple.begin(true);
        for _ in 0..40 {
            now = Gap::random(&mut random, nominal_us).after(now, last.as_ref());
            let at = Timestamp::from_micros(now);
            if !charges.is_empty() && random.u8(0..4) == 0 {
                let charge = charges.swap_remove(random.usize(..charges.len()));
                let settlement = Settlement {
                    check: check(&policy, seed, 1),
                    charge,
                    settled: random_end(&mut random, charge.cost),
                };
                triple.settle(&[settlement], at);
                continue;
            }
            let cost = random_cost(&mut random, policy.limits.rule.capacity(), last.as_ref());
            let asked = check(&policy, seed, cost);
            let decision = triple.decide(&[asked], at).remove(0);
            charges.extend(charge_of(&asked, &decision, at));
            last = Some(decision);
        }
    }
    triple.script.expect_expiries();
}

#[test]
fn a_log_whose_running_total_comes_round_goes_on() {
    let valkey = Valkey::start();
    let mut triple = Triple::new(&valkey);
    triple.begin(true);
    let most = UNITS_MAX;
    let policy = policy(
        "round",
        Rule::SlidingLog(SlidingLog::new(limit(most, 1_000)).unwrap()),
    );
    // The total comes round at 2^48, after some 281 of these.
    for n in 0..600 {
        let now = Timestamp::from_micros(1_700_000_000_000_000 + n * 500);
        let decisions = triple.decide(&[check(&policy, 1, most)], now);
        assert_eq!(decisions[0].verdict == Verdict::Allow, n % 2 == 0, "{n}");
    }
}
