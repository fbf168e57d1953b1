//! Function, local store and script: one history, every field equal.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use redis::Value;
use tollgate::check::{Check, Policy};
use tollgate::clock::{Clock, ManualClock};
use tollgate::decide::{
    Anchor, Ask, Change, Cost, Decision, FixedWindow, LeakyBucket, Rule, SlidingCounter,
    SlidingLog, State, Timestamp, TokenBucket, Verdict, decide_all,
};
use tollgate::store::local::LocalStore;
use tollgate::store::valkey::script;

use crate::support::policies::{check, policy};
use crate::support::traces::{Gap, cases, limit, random_cost, random_rule, random_window, whole};
use crate::support::valkey::Valkey;

/// A test's clock is not the server's: its keys live longer than the test.
const SLACK_MS: u64 = 100_000_000;

/// The script on a server.
struct Script {
    connection: redis::Connection,
    sha: String,
}

impl Script {
    fn load(valkey: &Valkey) -> Self {
        let mut connection = valkey.connect();
        let sha = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(script::source())
            .query(&mut connection)
            .unwrap();
        Self { connection, sha }
    }

    fn decide(&mut self, checks: &[Check<'_>], now: Timestamp) -> Vec<Decision> {
        let call = script::call(&self.sha, "t", checks, Some(now), SLACK_MS);
        let reply: Value = call.query(&mut self.connection).unwrap();
        let (stood_at, decisions) = script::read_reply(&reply, checks.len()).unwrap();
        assert_eq!(stood_at, now);
        decisions
    }

    /// Every key has an expiry.
    fn expect_expiries(&mut self) {
        let keys: Vec<String> = redis::cmd("KEYS")
            .arg("*")
            .query(&mut self.connection)
            .unwrap();
        for key in keys {
            let ttl: i64 = redis::cmd("PTTL")
                .arg(&key)
                .query(&mut self.connection)
                .unwrap();
            assert!(ttl > 0, "{key} has no expiry: {ttl}");
        }
    }
}

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
        let ask = |check: &Check<'a>| Ask {
            rule: check.rule,
            kept: self.0.get(&key(check)),
            cost: check.cost,
            shadow: check.shadow,
        };
        let steps = decide_all(&checks.iter().map(ask).collect::<Vec<_>>(), now);
        let keep = |(check, (change, decision)): (&Check<'a>, (Change, Decision))| {
            let mut kept = self.0.remove(&key(check));
            change.apply(&mut kept);
            self.0.extend(kept.map(|kept| (key(check), kept)));
            decision
        };
        checks.iter().zip(steps).map(keep).collect()
    }
}

/// All three, driven by one history.
struct Triple {
    function: Function,
    clock: ManualClock,
    local: LocalStore,
    script: Script,
}

impl Triple {
    fn new(valkey: &Valkey) -> Self {
        let clock = ManualClock::default();
        Self {
            function: Function::default(),
            local: LocalStore::new(
                NonZeroUsize::new(100_000).unwrap(),
                Clock::Manual(clock.clone()),
            ),
            clock,
            script: Script::load(valkey),
        }
    }

    /// Decides by all three, and panics where they differ.
    fn decide(&mut self, checks: &[Check<'_>], now: Timestamp) -> Vec<Decision> {
        let expected = self.function.decide(checks, now);
        self.clock.set(now);
        let (_, local) = self.local.decide_now(checks).unwrap();
        assert_eq!(local, expected, "local store at {now:?}: {checks:?}");
        let scripted = self.script.decide(checks, now);
        assert_eq!(scripted, expected, "script at {now:?}: {checks:?}");
        expected
    }
}

#[test]
fn the_three_agree_on_random_histories() {
    let valkey = Valkey::start();
    let mut triple = Triple::new(&valkey);
    for seed in 0..350_u64 {
        let mut random = fastrand::Rng::with_seed(seed);
        let window_us = random_window(&mut random);
        let kind = usize::try_from(seed).unwrap();
        let mut policy = policy("alone", random_rule(&mut random, kind, window_us));
        let mut now = 1_700_000_000_000_000 + random.u64(0..window_us);
        let mut last = None;
        for _ in 0..40 {
            now = Gap::random(&mut random, window_us).after(now, last.as_ref());
            if random.u8(0..20) == 0 {
                // An edit of limit and burst, in the middle of a life.
                policy.rule = random_rule(&mut random, kind, window_us);
            }
            let cost = random_cost(&mut random, policy.rule.capacity(), last.as_ref());
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
            let kind = random.usize(..7);
            let rule = random_rule(random, kind, window_us);
            policy(&format!("policy-{n}-{seed}"), rule)
        };
        let policies: Vec<Policy> = (0..4).map(|n| named(n, &mut random)).collect();
        let mut now = 1_700_000_000_000_000;
        let mut last = Vec::new();
        for _ in 0..40 {
            let aimed = random.usize(..4);
            now = Gap::random(&mut random, window_us).after(now, last.get(aimed));
            let asked = random.usize(0..=policies.len());
            let checks: Vec<_> = policies[..asked]
                .iter()
                .enumerate()
                .map(|(n, policy)| Check {
                    shadow: random.u8(0..3) == 0,
                    ..check(
                        policy,
                        random.u64(0..2),
                        random_cost(&mut random, policy.rule.capacity(), last.get(n)),
                    )
                })
                .collect();
            last = triple.decide(&checks, Timestamp::from_micros(now));
        }
    }
    triple.script.expect_expiries();
}

/// What a key costs the server, after 1,000 requests at 1,000 an hour, against the usual state of each kind: a string
/// counter for windows, a sorted set with a member a request for the log, hashes for buckets.
#[test]
fn a_key_is_as_small_as_promised() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    let hour_us = 3_600_000_000;
    let limit = limit(1_000, hour_us);
    let burst = whole(1_000);
    let rules = [
        (
            "fixed",
            Rule::FixedWindow(FixedWindow::new(limit, Anchor::Epoch).unwrap()),
            "string",
            130,
        ),
        (
            "count",
            Rule::SlidingCounter(SlidingCounter::new(limit, false).unwrap()),
            "string",
            130,
        ),
        (
            "token",
            Rule::TokenBucket(TokenBucket::new(limit, burst).unwrap()),
            "hash",
            100,
        ),
        (
            "leaky",
            Rule::LeakyBucket(LeakyBucket::new(limit, burst, None).unwrap()),
            "hash",
            100,
        ),
        (
            "s-log",
            Rule::SlidingLog(SlidingLog::new(limit).unwrap()),
            "zset",
            20,
        ),
    ];
    for (name, rule, usual, percent_max) in rules {
        let policy = policy(name, rule);
        let check = check(&policy, 1, 1);
        let key = tollgate::store::valkey::key::key("t", &check);
        // The same length, whatever the kind.
        let usual_key = key.replace(name, "usual");
        let start = 1_700_000_000_000_000 / hour_us * hour_us;
        let connection = |script: &mut Script, cmd: &redis::Cmd| -> i64 {
            cmd.query(&mut script.connection).unwrap()
        };
        for n in 0..1_000_u64 {
            let now = start + n * hour_us / 1_000;
            let decisions = script.decide(&[check], Timestamp::from_micros(now));
            assert_eq!(decisions[0].verdict, Verdict::Allow);
            let now_ms = now / 1_000;
            let mut usual_call = redis::Cmd::new();
            match usual {
                "string" => usual_call.arg("INCR").arg(&usual_key),
                "hash" => usual_call
                    .arg("HSET")
                    .arg(&usual_key)
                    .arg("tokens")
                    .arg("999.0003")
                    .arg("ts")
                    .arg(now_ms),
                _ => usual_call
                    .arg("ZADD")
                    .arg(&usual_key)
                    .arg(now_ms)
                    .arg(format!("{now_ms}-{n}")),
            };
            connection(&mut script, &usual_call);
        }
        connection(
            &mut script,
            redis::cmd("PEXPIRE").arg(&usual_key).arg(7_200_000),
        );
        let mut size = |key: &str| {
            let usage = redis::cmd("MEMORY")
                .arg("USAGE")
                .arg(key)
                .arg("SAMPLES")
                .arg(0)
                .clone();
            connection(&mut script, &usage)
        };
        let (ours, theirs) = (size(&key), size(&usual_key));
        println!("{name}: {ours} bytes, {usual} {theirs}");
        assert!(
            ours * 100 <= theirs * percent_max,
            "{name}: {ours} bytes, {usual} {theirs}"
        );
        connection(&mut script, redis::cmd("DEL").arg(&usual_key));
    }
}
