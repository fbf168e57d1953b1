//! Function, local store and script: one history, every field equal.

use std::collections::HashMap;
use std::num::NonZeroUsize;

use redis::Value;
use tollgate::check::{Check, Policy};
use tollgate::clock::{Clock, ManualClock};
use tollgate::decide::{
    Anchor, Ask, Change, Cost, Decision, EXACT_MAX, FixedWindow, LeakyBucket, Rule, SlidingCounter,
    SlidingLog, State, Timestamp, TokenBucket, UNITS_MAX, Verdict, decide_all,
};
use tollgate::store::local::LocalStore;
use tollgate::store::valkey::script;

use crate::support::policies::{check, policy};
use crate::support::traces::{Gap, cases, limit, random_cost, random_rule, random_window, whole};
use crate::support::valkey::Valkey;

/// A test's clock is not the server's: its keys live longer than the test.
const SLACK_MS: u64 = 100_000_000;

/// Histories of each test; more of them have been tried by hand.
const SEEDS: u64 = 350;

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

/// What is kept at the key, byte by byte, and until when.
fn dump(script: &mut Script, key: &str) -> (Value, i64) {
    let value = redis::cmd("DUMP")
        .arg(key)
        .query(&mut script.connection)
        .unwrap();
    (
        value,
        redis::cmd("PEXPIRETIME")
            .arg(key)
            .query(&mut script.connection)
            .unwrap(),
    )
}

/// A policy of each kind, three per second.
fn every_kind() -> Vec<Policy> {
    let (limit, burst) = (limit(3, 1_000_000), whole(3));
    let rules = [
        Rule::FixedWindow(FixedWindow::new(limit, Anchor::Epoch).unwrap()),
        Rule::FixedWindow(FixedWindow::new(limit, Anchor::FirstRequest).unwrap()),
        Rule::SlidingLog(SlidingLog::new(limit).unwrap()),
        Rule::SlidingCounter(SlidingCounter::new(limit, false).unwrap()),
        Rule::TokenBucket(TokenBucket::new(limit, burst).unwrap()),
        Rule::LeakyBucket(LeakyBucket::new(limit, burst, None).unwrap()),
    ];
    let named = |(n, rule)| policy(&format!("kind-{n}"), rule);
    rules.into_iter().enumerate().map(named).collect()
}

#[test]
fn a_denial_and_a_look_write_nothing() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    for policy in every_kind() {
        let key = tollgate::store::valkey::key::key("t", &check(&policy, 1, 0));
        script.decide(&[check(&policy, 1, 0)], now);
        assert_eq!(dump(&mut script, &key).0, Value::Nil);
        script.decide(&[check(&policy, 1, 4)], now);
        assert_eq!(dump(&mut script, &key).0, Value::Nil);
        script.decide(&[check(&policy, 1, 3)], now);
        let kept = dump(&mut script, &key);
        for cost in [0, 1, 3, 4] {
            let decisions = script.decide(&[check(&policy, 1, cost)], now);
            assert_eq!(decisions[0].verdict == Verdict::Allow, cost == 0);
            assert_eq!(dump(&mut script, &key), kept);
        }
    }
}

#[test]
fn what_others_left_at_a_key_is_as_if_nothing_were_there() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let long = "x".repeat(100);
    let zeros = "\0".repeat(20);
    let leavings: [&[&str]; 8] = [
        &["SET", ""],
        &["SET", "1"],
        &["SET", &long],
        &["SET", &zeros],
        &["RPUSH", "a"],
        &["RPUSH", "a", "b", "c"],
        &["HSET", "a", "b"],
        &["ZADD", "1", "a"],
    ];
    for policy in every_kind() {
        let key = tollgate::store::valkey::key::key("t", &check(&policy, 1, 0));
        for left in leavings {
            let mut leave = redis::cmd(left[0]);
            leave.arg(&key).arg(&left[1..]);
            let _: i64 = redis::cmd("DEL")
                .arg(&key)
                .query(&mut script.connection)
                .unwrap();
            leave.exec(&mut script.connection).unwrap();
            let remaining: Vec<_> = [1, 1, 1, 1]
                .map(|cost| script.decide(&[check(&policy, 1, cost)], now)[0].remaining)
                .into();
            assert_eq!(
                remaining,
                [2, 1, 0, 0],
                "{} over {left:?}",
                policy.rule.kind()
            );
            script.expect_expiries();
        }
    }
}

#[test]
fn several_requests_in_one_call_are_decided_as_if_each_had_come_alone() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    let policies = every_kind();
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    let mut random = fastrand::Rng::with_seed(1);
    for round in 0..30_u64 {
        let request = |random: &mut fastrand::Rng, entity: u64| -> Vec<Check<'_>> {
            let asked = policies
                .iter()
                .filter(|_| random.bool())
                .collect::<Vec<_>>();
            asked
                .into_iter()
                .map(|p| check(p, entity, random.u64(0..4)))
                .collect()
        };
        let requests: Vec<_> = (0..6).map(|_| request(&mut random, 2 * round)).collect();
        let alone: Vec<_> = requests
            .iter()
            .flat_map(|checks| script.decide(checks, now))
            .collect();
        // The same ones for an entity that has not been seen.
        let again: Vec<Vec<Check<'_>>> = requests
            .iter()
            .map(|checks| {
                let entity = crate::support::policies::entity(2 * round + 1);
                checks.iter().map(|c| Check { entity, ..*c }).collect()
            })
            .collect();
        let slices: Vec<&[Check<'_>]> = again.iter().map(Vec::as_slice).collect();
        let call = script::call_all(&script.sha, "t", &slices, Some(now), SLACK_MS);
        let reply: Value = call.query(&mut script.connection).unwrap();
        let (_, together) = script::read_reply(&reply, alone.len()).unwrap();
        assert_eq!(together, alone);
    }
}

#[test]
fn the_server_tells_the_time_and_ends_what_has_no_meaning_any_more() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    for policy in every_kind() {
        let check = check(&policy, 1, 1);
        let key = tollgate::store::valkey::key::key("t", &check);
        let call = script::call(&script.sha, "t", &[check], None, 1_000);
        let reply: Value = call.query(&mut script.connection).unwrap();
        let (stood_at, decisions) = script::read_reply(&reply, 1).unwrap();
        let wall = tollgate::clock::wall_now_us();
        assert!(
            wall.abs_diff(stood_at.as_micros()) < 60_000_000,
            "{stood_at:?}"
        );
        let until: u64 = redis::cmd("PEXPIRETIME")
            .arg(&key)
            .query(&mut script.connection)
            .unwrap();
        let fresh_at_ms = (stood_at.as_micros() + decisions[0].reset_after_us).div_ceil(1_000);
        assert!(
            (fresh_at_ms + 999..=fresh_at_ms + 1_001).contains(&until),
            "{}: {until} {fresh_at_ms}",
            policy.name
        );
    }
}

/// Each command of a script costs the server about as much as a plain one: as few as there can be.
#[test]
fn a_decision_takes_no_more_commands_than_it_must() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    for policy in every_kind() {
        let is_log = matches!(policy.rule, Rule::SlidingLog(_));
        let mut commands = |cost: u64| {
            let reset: redis::RedisResult<()> = redis::cmd("CONFIG")
                .arg("RESETSTAT")
                .exec(&mut script.connection);
            reset.unwrap();
            let call = script::call(&script.sha, "t", &[check(&policy, 1, cost)], None, 1_000);
            let _: Value = call.query(&mut script.connection).unwrap();
            let stats: String = redis::cmd("INFO")
                .arg("commandstats")
                .query(&mut script.connection)
                .unwrap();
            let inner = [
                "get", "set", "time", "llen", "lindex", "rpush", "ltrim", "pexpire", "del", "lset",
            ];
            let count = |name: &str| {
                let line = stats
                    .lines()
                    .find_map(|l| l.strip_prefix(&format!("cmdstat_{name}:calls=")));
                line.map_or(0, |l| {
                    l.split(',').next().unwrap().parse::<usize>().unwrap()
                })
            };
            inner.map(count).iter().sum::<usize>()
        };
        let (first, second, denied) = (commands(1), commands(1), commands(3));
        if is_log {
            assert!(
                first <= 4 && second <= 7 && denied <= 6,
                "log: {first} {second} {denied}"
            );
        } else {
            assert_eq!((first, second, denied), (3, 3, 2), "{}", policy.rule.kind());
        }
    }
}
