//! Gateways that share a store which stalls, dies, comes back, loses its last writes or is out of reach of some, in
//! virtual time: what their breakers, shares and stores in process let through together.
//!
//! Each seed is one history, the same each time. What a history broke is told with its seed.

mod events;
mod gateway;
mod history;
mod server;
mod world;

use self::events::{Fault, Passed};
use self::history::{CALM, History, Seen, TROUBLE, shared, spans, units};
use self::server::Health;
use self::world::{MS, SECOND, World};
use crate::support::policies::rule;

/// Tells which history it was.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the history of seed {}", self.0);
        }
    }
}

/// Plays histories of this kind.
fn play(kind: &'static str, seeds: u64) {
    let mut seen = Seen::default();
    for seed in 0..seeds {
        let _told = Told(seed);
        let mut random = fastrand::Rng::with_seed(seed);
        let (history, pause) = History::random(kind, &mut random);
        let mut world = World::new(seed, &history.policy, history.gateways, pause);
        history.trouble(&mut world);
        history.holds(&mut world, &mut seen);
    }
    println!("{kind}: {seen:?}");
    let happened = seen.late > 0 && seen.outages > 0 && seen.forgiven > 0 && seen.full > 0;
    assert!(happened, "these histories are about nothing: {seen:?}");
}

#[test]
fn fixed_windows_hold_through_any_outage() {
    play("fixed-window", 60);
    play("first-request", 20);
}

#[test]
fn sliding_logs_hold_through_any_outage() {
    play("sliding-log", 60);
}

#[test]
fn sliding_counters_hold_through_any_outage() {
    play("sliding-counter", 40);
    play("strict", 40);
}

#[test]
fn token_buckets_hold_through_any_outage() {
    play("token-bucket", 60);
}

#[test]
fn leaky_buckets_hold_through_any_outage() {
    play("leaky-bucket", 60);
}

const KINDS: [&str; 7] = [
    "fixed-window",
    "first-request",
    "sliding-log",
    "sliding-counter",
    "strict",
    "token-bucket",
    "leaky-bucket",
];

/// A fleet that nothing happens to until it is told, and that knows how many it is by what it sees alone.
fn fleet(kind: &'static str, gateways: usize) -> History {
    let window_us = 2 * SECOND;
    History {
        kind,
        window_us,
        policy: shared(rule(kind, 50, window_us, 20), 1),
        counted: false,
        gateways,
    }
}

#[test]
fn an_outage_of_all_costs_a_unit_a_gateway_and_its_edge_the_limit_once_more() {
    for (seed, kind) in (0..).zip(KINDS) {
        for gateways in 1..=8 {
            let _told = Told(seed);
            let history = fleet(kind, gateways);
            let mut world = World::new(seed, &history.policy, gateways, 10 * MS);
            world.schedule(TROUBLE, Fault::Health(Health::Dead));
            world.schedule(CALM, Fault::Health(Health::Well));
            world.run_until(CALM + 10 * SECOND);
            let mut passed = std::mem::take(&mut world.passed);
            passed.sort_by_key(|passed| passed.at);
            let (limit, shares) = (
                history.most(&history.policy.limits.rule),
                history.most_alone(gateways),
            );
            let most_of = |passed: &[Passed]| spans(passed, history.window_us).map(units).max();
            assert!(
                most_of(&passed) <= Some(limit + shares),
                "{kind} by {gateways}"
            );
            passed.retain(|passed| passed.alone.is_some());
            let most = most_of(&passed);
            assert!(
                most <= Some(shares),
                "{kind} by {gateways}: {most:?} of {shares}"
            );
            // All of the limit can still be used.
            assert!(most >= Some(50), "{kind} by {gateways}: {most:?}");
        }
    }
}

#[test]
fn a_store_that_comes_back_for_a_moment_makes_no_gateway_the_only_one() {
    for (seed, kind) in (0..).zip(KINDS) {
        let _told = Told(seed);
        let history = fleet(kind, 6);
        let mut world = World::new(seed, &history.policy, 6, 10 * MS);
        let away_again = TROUBLE + 9 * SECOND;
        for (at, health) in [
            (TROUBLE, Health::Dead),
            // By then every announcement has lapsed.
            (away_again - 300 * MS, Health::Well),
            (away_again, Health::Dead),
        ] {
            world.schedule(at, Fault::Health(health));
        }
        world.run_until(CALM);
        let mut passed = std::mem::take(&mut world.passed);
        passed.retain(|passed| passed.at > away_again + SECOND);
        passed.sort_by_key(|passed| passed.at);
        let most = spans(&passed, history.window_us).map(units).max();
        let shares = history.most_alone(6);
        assert!(most <= Some(shares), "{kind}: {most:?} of {shares}");
        assert_eq!(world.seen(), [6; 6], "{kind}");
    }
}

#[test]
fn a_gateway_that_is_cut_off_has_its_share_and_the_others_go_on() {
    for (seed, kind) in (0..).zip(KINDS) {
        let _told = Told(seed);
        let history = fleet(kind, 5);
        let mut world = World::new(seed, &history.policy, 5, 10 * MS);
        world.schedule(TROUBLE, Fault::Cut(0, true));
        world.run_until(CALM);
        let (alone, by_store): (Vec<_>, Vec<_>) = std::mem::take(&mut world.passed)
            .into_iter()
            .filter(|passed| passed.at > TROUBLE)
            .partition(|passed| passed.alone.is_some());
        let share = history.policy.limits.shares.among(5);
        assert!(alone.len() > 20 && by_store.len() > 100, "{kind}");
        for span in spans(&alone, history.window_us) {
            assert!(span.iter().all(|passed| {
                passed
                    .alone
                    .as_ref()
                    .is_some_and(|(outage, _)| outage.0 == 0)
            }));
            assert!(
                units(span) <= history.most(share),
                "{kind}: {}",
                units(span)
            );
        }
        // It is gone for those who are left, and they are not for it.
        assert_eq!(world.seen(), [5, 4, 4, 4, 4], "{kind}");
    }
}

#[test]
fn what_came_too_late_was_charged_once_and_stays_charged() {
    for (seed, kind) in (0..).zip([
        "fixed-window",
        "sliding-log",
        "sliding-counter",
        "token-bucket",
    ]) {
        let _told = Told(seed);
        // So much that it denies nobody, so long that nothing is earned back that would count.
        let limit = 1_000_000;
        let policy = shared(rule(kind, limit, 366 * 86_400 * SECOND, limit), 1);
        let mut world = World::new(seed, &policy, 4, 10 * MS);
        world.schedule(TROUBLE, Fault::Latency(14 * MS));
        world.schedule(CALM, Fault::Health(Health::Stalled));
        world.schedule(CALM + SECOND, Fault::Health(Health::Well));
        world.run_until(CALM + 2 * SECOND);
        let in_time: u64 = world
            .passed
            .iter()
            .filter(|passed| passed.alone.is_none())
            .map(|passed| passed.units)
            .sum();
        let late: u64 = world.late.iter().sum();
        assert!(late > 100 && in_time > 100, "{kind}: {late} {in_time}");
        let under_way = world.under_way();
        assert_eq!(limit - world.left(), in_time + late + under_way, "{kind}");
    }
}
