//! The script of concurrency against its definition: several gateways, clocks that step, calls that come late.

use redis::Value;
use tollgate::check::Check;
use tollgate::decide::{Decision, Penalised, Timestamp, Verdict};
use tollgate::store::valkey::script;
use tollgate::store::valkey::slots::Tell;

use crate::support::holders::{Holders, Number, holder};
use crate::support::policies::{check, limits, policy, rule};
use crate::support::script::{SLACK_MS, Script};
use crate::support::valkey::Valkey;

const LEASE_US: u64 = 1_000_000;

/// The scripts, by several holders.
struct Scripts {
    script: Script,
    hold_sha: String,
}

impl Scripts {
    fn load(valkey: &Valkey) -> Self {
        let mut script = Script::load(valkey);
        let hold_sha = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(script::hold_source())
            .query(&mut script.connection)
            .unwrap();
        Self { script, hold_sha }
    }

    fn decide(&mut self, by: Number, checks: &[Check<'_>], now: u64) -> Vec<Decision> {
        let at = Some(Timestamp::from_micros(now));
        let sha = &self.script.sha;
        let call = script::call_by(holder(by), sha, "t", checks, at, SLACK_MS);
        let reply: Value = call.query(&mut self.script.connection).unwrap();
        script::read_reply(&reply, checks.len()).unwrap().1
    }

    fn hold(&mut self, by: Number, checks: &[(Check<'_>, i64)], now: u64) -> Vec<u64> {
        let tells: Vec<_> = checks
            .iter()
            .map(|(check, more)| Tell {
                key: script_key(check).into(),
                entity: check.entity,
                rule: check.rule.clone(),
                holder: holder(by),
                more: *more,
            })
            .collect();
        let at = Some(Timestamp::from_micros(now));
        let call = script::hold_call(&self.hold_sha, &tells, at, SLACK_MS);
        let reply: Value = call.query(&mut self.script.connection).unwrap();
        let (_, held) = script::read_reply(&reply, tells.len()).unwrap();
        held.iter().map(|held| held.remaining).collect()
    }

    fn keys(&mut self) -> Vec<String> {
        let mut all = redis::cmd("KEYS");
        all.arg("*").query(&mut self.script.connection).unwrap()
    }
}

fn script_key(check: &Check<'_>) -> String {
    tollgate::store::valkey::key::key("t", check)
}

#[test]
fn the_script_and_the_definition_agree_on_who_holds_what() {
    let valkey = Valkey::start();
    let mut scripts = Scripts::load(&valkey);
    for seed in 0..150_u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut model = Holders::default();
        let limit = random.u64(1..12);
        let mut policy = policy("slots", rule("concurrency", limit, LEASE_US, 1));
        let (mut now, mut limit) = (1_700_000_000_000_000_u64, limit);
        for _ in 0..60 {
            now = match random.u8(0..12) {
                0 => now - random.u64(0..3 * LEASE_US),
                1 => now + random.u64(0..3 * LEASE_US),
                2 => now + LEASE_US,
                3 => now + LEASE_US - 1,
                _ => now + random.u64(0..LEASE_US / 3),
            };
            if random.u8(0..15) == 0 {
                limit = random.u64(1..12);
                policy.limits = limits(rule("concurrency", limit, LEASE_US, 1));
            }
            let by = (random.u64(1..4), random.u32(0..2));
            let cost = random.u64(0..=limit + 1);
            let check = check(&policy, seed, cost);
            if random.bool() {
                let found = scripts.decide(by, &[check], now)[0];
                let used_before = model.live(now);
                let allowed = model.take(by, limit, LEASE_US, cost, now);
                let used = model.live(now);
                assert_eq!(
                    found,
                    Decision {
                        verdict: if allowed {
                            Verdict::Allow
                        } else {
                            Verdict::Deny
                        },
                        remaining: limit.saturating_sub(used),
                        retry_after_us: match (allowed, cost <= limit) {
                            (true, _) => Some(0),
                            (false, true) => Some(1_000_000),
                            (false, false) => None,
                        },
                        reset_after_us: if used > 0 { LEASE_US } else { 0 },
                        delay_us: 0,
                        penalised: Penalised::No,
                    },
                    "{seed}: {by:?} takes {cost} of {limit}, {used_before} in use, at {now}"
                );
            } else {
                let more = random.i64(-4..=2);
                let found = scripts.hold(by, &[(check, more)], now);
                let held = model.hold(by, LEASE_US, more, now);
                assert_eq!(found, [held], "{seed}: {by:?} holds {more} more at {now}");
            }
        }
    }
    scripts.script.expect_expiries();
}

#[test]
fn all_or_nothing_holds_with_slots_too_and_what_is_given_back_leaves_no_key() {
    let valkey = Valkey::start();
    let mut scripts = Scripts::load(&valkey);
    let now = 1_700_000_000_000_000;
    let slots = policy("slots", rule("concurrency", 2, LEASE_US, 1));
    let mut rate = policy("rate", rule("fixed-window", 3, 60_000_000, 1));
    rate.index = 1;
    let both = [check(&slots, 1, 1), check(&rate, 1, 1)];
    let passes = |decisions: &[Decision]| {
        let denied = decisions.iter().any(|it| it.verdict == Verdict::Deny);
        (!denied, decisions[0].remaining, decisions[1].remaining)
    };
    assert_eq!(passes(&scripts.decide((1, 0), &both, now)), (true, 1, 2));
    assert_eq!(passes(&scripts.decide((2, 0), &both, now)), (true, 0, 1));
    // The slots are out: the rate is spared.
    assert_eq!(passes(&scripts.decide((2, 0), &both, now)), (false, 0, 1));
    assert_eq!(scripts.hold((1, 0), &[(both[0], -1)], now), [0]);
    assert_eq!(passes(&scripts.decide((2, 0), &both, now)), (true, 0, 0));
    assert_eq!(scripts.hold((2, 0), &[(both[0], -1)], now), [1]);
    // The rate is out: no slot is taken.
    assert_eq!(passes(&scripts.decide((2, 0), &both, now)), (false, 1, 0));
    // What is given back twice is given back once, and nothing below nothing.
    assert_eq!(scripts.hold((1, 0), &[(both[0], -1)], now), [0]);
    assert_eq!(passes(&scripts.decide((1, 0), &both, now)), (false, 1, 0));
    assert_eq!(scripts.hold((2, 0), &[(both[0], -7)], now), [0]);
    assert_eq!(scripts.keys(), [script_key(&both[1])]);
}

#[test]
fn what_somebody_else_wrote_counts_as_nothing() {
    let valkey = Valkey::start();
    let mut scripts = Scripts::load(&valkey);
    let slots = policy("slots", rule("concurrency", 2, LEASE_US, 1));
    let one = check(&slots, 1, 1);
    let key = script_key(&one);
    let foreign: [&[&str]; 3] = [
        &["SET", &key, "x"],
        &["RPUSH", &key, "x", "y", "z"],
        &[
            "HSET",
            &key,
            "who",
            "20 bytes of nonsense",
            "holder-of-12",
            "what",
        ],
    ];
    for command in foreign {
        scripts.script.flush();
        let mut call = redis::cmd(command[0]);
        call.arg(&command[1..]);
        call.exec(&mut scripts.script.connection).unwrap();
        // By the clock of the server: no stamp of nonsense is close to it.
        let now = 1_700_000_000_000_000;
        assert_eq!(
            scripts.decide((1, 0), &[one], now)[0].remaining,
            1,
            "{command:?}"
        );
        assert_eq!(scripts.hold((1, 0), &[(one, -1)], now), [0], "{command:?}");
        assert_eq!(scripts.keys(), [""; 0], "{command:?}");
    }
}

#[test]
fn a_batch_decides_as_one_by_one_and_keeps_one_expiry() {
    let valkey = Valkey::start();
    let mut scripts = Scripts::load(&valkey);
    let slots = policy("slots", rule("concurrency", 3, LEASE_US, 1));
    let mut rate = policy("rate", rule("token-bucket", 100, 60_000_000, 100));
    rate.index = 1;
    let requests: Vec<Vec<Check<'_>>> = (0..10)
        .map(|number| match number % 2 {
            0 => vec![check(&slots, 1, 1), check(&rate, 1, 1)],
            _ => vec![check(&rate, 1, 1)],
        })
        .collect();
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let decisions = scripts.script.decide_all(&requests, now);
    let allowed: Vec<_> = decisions
        .iter()
        .map(|decision| decision.verdict == Verdict::Allow)
        .collect();
    // Two checks, one, two, …: the slots go to the first three that ask for one.
    let slots_asked: Vec<_> = allowed.iter().step_by(3).copied().collect();
    assert_eq!(slots_asked, [true, true, true, false, false]);
    // Of the two that were denied the rate was spared.
    assert_eq!(decisions.last().unwrap().remaining, 100 - 8);
    scripts.script.expect_expiries();
}
