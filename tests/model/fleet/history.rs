//! A random history of a fleet, and what must hold of any.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;

use tollgate::check::{Limits, Policy};
use tollgate::decide::Rule;

use super::events::{Fault, Passed};
use super::server::{Health, LAG_MAX, LEASE};
use super::world::{BACK_WITHIN, MS, SECOND, World};
use crate::support::policies::{policy, rule};

/// When faults begin, and when all are over.
pub(super) const TROUBLE: u64 = 3 * SECOND;
pub(super) const CALM: u64 = 25 * SECOND;

/// The most gateways that join.
const JOINING: usize = 3;

/// What happened in some histories, so that none is about nothing.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) late: usize,
    pub(super) outages: usize,
    pub(super) forgiven: u64,
    /// Spans in which all that a bound allows did pass.
    pub(super) full: usize,
    /// The latest that the store was not asked after its return.
    pub(super) back_after_us: u64,
}

/// A policy of which each gateway has a share among at least `instances`.
pub(super) fn shared(rule: Rule, instances: usize) -> Policy {
    let instances = u32::try_from(instances).ok().and_then(NonZeroU32::new);
    Policy {
        limits: Arc::new(Limits::new(rule.clone(), instances.unwrap())),
        ..policy("shared", rule)
    }
}

/// The most units that a rule lets through in any span of so long, which is the policy's window.
fn most(rule: &Rule, strict: bool, span_us: u64) -> u64 {
    let limit = rule.limit().unwrap();
    let (count, window_us) = (limit.count.get(), limit.window_us.get());
    match rule {
        Rule::SlidingLog(_) => count,
        Rule::SlidingCounter(_) if strict => count,
        Rule::FixedWindow(_) | Rule::SlidingCounter(_) => 2 * count,
        Rule::TokenBucket(_) | Rule::LeakyBucket(_) => {
            rule.capacity() + (count * span_us).div_ceil(window_us)
        }
        Rule::Concurrency(_) => unreachable!("it has no window"),
    }
}

/// One history: what happens to `policy`, and what must hold of it.
pub(super) struct History {
    pub(super) kind: &'static str,
    pub(super) window_us: u64,
    pub(super) policy: Policy,
    /// Whether the configuration says how many gateways there are.
    pub(super) counted: bool,
    pub(super) gateways: usize,
}

impl History {
    pub(super) fn random(kind: &'static str, random: &mut fastrand::Rng) -> (Self, u64) {
        let gateways = random.usize(2..=8);
        let window_us = [SECOND, 2 * SECOND, 5 * SECOND][random.usize(..3)];
        let count = random.u64(gateways as u64..=60);
        let rule = rule(kind, count, window_us, random.u64(4..=count * 2));
        let counted = random.bool();
        let policy = shared(rule, if counted { gateways + JOINING } else { 1 });
        // From a little to four times the limit, all gateways together.
        let pause = window_us * gateways as u64 / count / random.u64(1..=4);
        (
            Self {
                kind,
                window_us,
                policy,
                counted,
                gateways,
            },
            pause,
        )
    }

    pub(super) fn most(&self, rule: &Rule) -> u64 {
        most(rule, self.kind == "strict", self.window_us)
    }

    /// The most that all shares of an outage let through: the limit, and a unit for each gateway.
    pub(super) fn most_alone(&self, gateways: usize) -> u64 {
        let gateways = gateways as u64;
        let limit = self.policy.limits.rule.count().get();
        match &self.policy.limits.rule {
            Rule::TokenBucket(_) | Rule::LeakyBucket(_) => {
                self.policy.limits.rule.capacity() + limit + gateways
            }
            Rule::SlidingLog(_) => limit + gateways,
            Rule::SlidingCounter(_) if self.kind == "strict" => limit + gateways,
            Rule::FixedWindow(_) | Rule::SlidingCounter(_) => 2 * (limit + gateways),
            Rule::Concurrency(_) => unreachable!("it has no window"),
        }
    }

    /// Plays some faults, then none.
    pub(super) fn trouble(&self, world: &mut World<'_>) {
        let (mut left, mut joining) = (0, JOINING);
        for _ in 0..world.random.usize(1..=8) {
            let at = world.random.u64(TROUBLE..CALM);
            let until = (at + world.random.u64(10 * MS..=8 * SECOND)).min(CALM);
            let gateway = world.random.usize(..self.gateways);
            match world.random.u8(..9) {
                0 => world.schedule(at, Fault::Health(Health::Stalled)),
                1 => world.schedule(at, Fault::Health(Health::Dead)),
                2 => {
                    let lag = world.random.u64(..LAG_MAX);
                    world.schedule(at, Fault::FailOver { lag });
                }
                3 | 4 => {
                    world.schedule(at, Fault::Cut(gateway, true));
                    world.schedule(until, Fault::Cut(gateway, false));
                    continue;
                }
                5 => {
                    for gateway in 0..self.gateways {
                        world.schedule(at, Fault::Cut(gateway, true));
                        world.schedule(until, Fault::Cut(gateway, false));
                    }
                    continue;
                }
                6 => {
                    let latency = world.random.u64(10 * MS..40 * MS);
                    world.schedule(at, Fault::Latency(latency));
                    world.schedule(until, Fault::Latency(MS));
                    continue;
                }
                7 if joining > 0 => {
                    joining -= 1;
                    world.schedule(at, Fault::Join);
                    continue;
                }
                // One stays.
                8 if left + 1 < self.gateways => {
                    world.schedule(at, Fault::Leave(left));
                    left += 1;
                    continue;
                }
                _ => continue,
            }
            world.schedule(until, Fault::Health(Health::Well));
        }
        world.schedule(CALM, Fault::Health(Health::Well));
        world.schedule(CALM, Fault::Latency(MS));
        world.run_until(CALM + BACK_WITHIN + LEASE + 2 * SECOND + 2 * self.window_us);
    }

    /// What has to hold whatever happened.
    pub(super) fn holds(&self, world: &mut World<'_>, seen: &mut Seen) {
        let mut passed = std::mem::take(&mut world.passed);
        passed.sort_by_key(|passed| passed.at);
        let (alone, by_store): (Vec<_>, Vec<_>) = passed
            .into_iter()
            .partition(|passed| passed.alone.is_some());
        self.store_kept_its_limit(world, &by_store, seen);
        self.each_kept_its_share(&alone, seen);
        self.shares_came_to_the_limit(&alone, seen);
        let without = world.ruled.iter().filter(|ruled| !ruled.by_store);
        if let Some(last) = without.map(|ruled| ruled.asked_at).max() {
            let after = last.saturating_sub(world.settled_at);
            assert!(
                after < BACK_WITHIN,
                "not back after two seconds: {after} µs"
            );
            seen.back_after_us = seen.back_after_us.max(after);
        }
        let alive = u32::try_from(world.seen().len()).unwrap();
        assert!(
            world.seen().iter().all(|seen| *seen == alive),
            "{:?}",
            world.seen()
        );
        seen.late += world.late.len();
    }

    /// What the store let through, of whom only failovers forgive.
    fn store_kept_its_limit(&self, world: &World<'_>, by_store: &[Passed], seen: &mut Seen) {
        let most = self.most(&self.policy.limits.rule);
        for span in spans(by_store, self.window_us) {
            let (first, last) = (span[0].at, span[span.len() - 1].at);
            let within = world
                .server
                .forgiven
                .iter()
                .filter(|(at, _)| (first..=last).contains(at));
            let forgiven: u64 = within.map(|(_, units)| units).sum();
            assert!(
                units(span) <= most + forgiven,
                "{} of {most} and {forgiven} until {last}",
                units(span)
            );
            seen.full += usize::from(units(span) >= most);
        }
        seen.forgiven += world
            .server
            .forgiven
            .iter()
            .map(|(_, units)| units)
            .sum::<u64>();
    }

    /// What a gateway let through in one outage.
    fn each_kept_its_share(&self, alone: &[Passed], seen: &mut Seen) {
        let mut outages: BTreeMap<(usize, u32), (Vec<Passed>, u64)> = BTreeMap::new();
        for passed in alone {
            if let Some((outage, share)) = &passed.alone {
                let (its, most) = outages.entry(*outage).or_default();
                its.push(passed.clone());
                // A gateway that sees another number of them goes on with what it has counted.
                *most = self.most(share).max(*most);
            }
        }
        for (outage, (its, most)) in &outages {
            for span in spans(its, self.window_us) {
                assert!(
                    units(span) <= *most,
                    "{} of {most} in {outage:?}",
                    units(span)
                );
                seen.full += usize::from(units(span) == *most);
            }
        }
        seen.outages += outages.len();
    }

    /// What all gateways let through where each has had one outage.
    fn shares_came_to_the_limit(&self, alone: &[Passed], seen: &mut Seen) {
        if !self.counted {
            return;
        }
        let most = self.most_alone(self.gateways + JOINING);
        for span in spans(alone, self.window_us) {
            let outages: BTreeSet<_> = span
                .iter()
                .filter_map(|passed| Some(passed.alone.as_ref()?.0))
                .collect();
            let gateways: BTreeSet<_> = outages.iter().map(|(gateway, _)| gateway).collect();
            if outages.len() == gateways.len() {
                assert!(
                    units(span) <= most,
                    "{} of {most} by {gateways:?}",
                    units(span)
                );
                seen.full += usize::from(units(span) >= self.policy.limits.rule.count().get());
            }
        }
    }
}

/// All that passed up to each moment at which something did, and not longer than this before.
pub(super) fn spans(passed: &[Passed], length_us: u64) -> impl Iterator<Item = &[Passed]> {
    let mut first = 0;
    passed.iter().enumerate().map(move |(last, latest)| {
        while passed[first].at + length_us <= latest.at {
            first += 1;
        }
        &passed[first..=last]
    })
}

pub(super) fn units(passed: &[Passed]) -> u64 {
    passed.iter().map(|passed| passed.units).sum()
}
