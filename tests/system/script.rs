//! What the script writes, and what it costs the server.

use redis::Value;
use tollgate::check::{Check, Policy};
use tollgate::decide::{
    Anchor, FixedWindow, LeakyBucket, Rule, SlidingCounter, SlidingLog, Timestamp, TokenBucket,
    Verdict,
};
use tollgate::store::valkey::key::{key, keys};
use tollgate::store::valkey::script;

use crate::support::policies::{check, entity, policy};
use crate::support::script::Script;
use crate::support::traces::{
    Gap, KINDS, limit, random_cost, random_penalty, random_rule, random_window, whole,
};
use crate::support::valkey::Valkey;

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
        // The allocator may hand out a piece a little larger than asked for: the smallest of a few is what it takes.
        let sizes: Vec<_> = (1..=3)
            .map(|entity| sizes_after_a_thousand(&mut script, &check(&policy, entity, 1), usual))
            .collect();
        let ours = sizes.iter().map(|(ours, _)| *ours).min().unwrap();
        let theirs = sizes.iter().map(|(_, theirs)| *theirs).min().unwrap();
        println!("{name}: {ours} bytes, {usual} {theirs}");
        assert!(
            ours * 100 <= theirs * percent_max,
            "{name}: {ours} bytes, {usual} {theirs}"
        );
    }
}

/// What the check's key takes after 1,000 requests in an hour, and what the usual state takes.
fn sizes_after_a_thousand(script: &mut Script, check: &Check<'_>, usual: &str) -> (i64, i64) {
    let hour_us = 3_600_000_000;
    let key = key("t", check);
    // The same length, whatever the kind.
    let usual_key = key.replace(&*check.policy.name, "usual");
    let start = 1_700_000_000_000_000 / hour_us * hour_us;
    let connection = |script: &mut Script, cmd: &redis::Cmd| -> i64 {
        cmd.query(&mut script.connection).unwrap()
    };
    for n in 0..1_000_u64 {
        let now = start + n * hour_us / 1_000;
        let decisions = script.decide(&[*check], Timestamp::from_micros(now));
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
        connection(script, &usual_call);
    }
    connection(script, redis::cmd("PEXPIRE").arg(&usual_key).arg(7_200_000));
    let mut size = |key: &str| {
        let usage = redis::cmd("MEMORY")
            .arg("USAGE")
            .arg(key)
            .arg("SAMPLES")
            .arg(0)
            .clone();
        connection(script, &usage)
    };
    let sizes = (size(&key), size(&usual_key));
    connection(script, redis::cmd("DEL").arg(&usual_key));
    sizes
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
        let key = key("t", &check(&policy, 1, 0));
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

/// What others may leave at a key.
const LEAVINGS: [&[&str]; 8] = [
    &["SET", ""],
    &["SET", "1"],
    &[
        "SET",
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    ],
    &["SET", "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"],
    &["RPUSH", "a"],
    &["RPUSH", "a", "b", "c"],
    &["HSET", "a", "b"],
    &["ZADD", "1", "a"],
];

/// Leaves it there.
fn leave(script: &mut Script, key: &str, left: &[&str]) {
    let mut both = redis::pipe();
    both.cmd("DEL").arg(key);
    both.cmd(left[0]).arg(key).arg(&left[1..]);
    both.exec(&mut script.connection).unwrap();
}

#[test]
fn what_others_left_at_a_key_is_as_if_nothing_were_there() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    let now = Timestamp::from_micros(1_700_000_000_000_000);
    for policy in every_kind() {
        let key = key("t", &check(&policy, 1, 0));
        for left in LEAVINGS {
            leave(&mut script, &key, left);
            let remaining: Vec<_> = [1, 1, 1, 1]
                .map(|cost| script.decide(&[check(&policy, 1, cost)], now)[0].remaining)
                .into();
            assert_eq!(
                remaining,
                [2, 1, 0, 0],
                "{} over {left:?}",
                policy.limits.rule.kind()
            );
            script.expect_expiries();
        }
    }
}

/// What is kept at a key, whichever way it is laid out, and for how long: seconds.
fn kept_at(script: &mut Script, key: &str) -> (Value, Value, u64) {
    let mut ask = |name: &str, arguments: &[&str]| -> Value {
        let mut command = redis::cmd(name);
        command.arg(key).arg(arguments);
        command.query(&mut script.connection).unwrap()
    };
    let kind = ask("TYPE", &[]);
    let value = match &kind {
        Value::SimpleString(list) if list == "list" => ask("LRANGE", &["0", "-1"]),
        Value::SimpleString(text) if text == "string" => ask("GET", &[]),
        _ => ask("DUMP", &[]),
    };
    let Value::Int(left_ms) = ask("PTTL", &[]) else {
        panic!("it is a number")
    };
    (kind, value, u64::try_from(left_ms / 1_000).unwrap_or(0))
}

/// Histories of the next test; more of them have been tried by hand.
const HISTORIES: u64 = 40;

/// Requests of equal and of different entities, each of several checks of any kind, enforced or not, of any cost, by
/// rules that are edited meanwhile, on keys at which others left something, at a time that steps forth and back.
#[test]
fn several_requests_in_one_call_are_decided_as_if_each_had_come_alone() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    for seed in 0..HISTORIES {
        let mut random = fastrand::Rng::with_seed(seed);
        let window_us = random_window(&mut random);
        let policies: Vec<Policy> = (0..KINDS)
            .map(|kind| {
                let rule = random_rule(&mut random, kind, window_us);
                let penalty = random
                    .bool()
                    .then(|| random_penalty(&mut random, window_us));
                Policy {
                    penalty,
                    ..policy(&format!("kind-{kind}-{seed}"), rule)
                }
            })
            .collect();
        let edited: Vec<Rule> = (0..KINDS)
            .map(|kind| random_rule(&mut random, kind, window_us))
            .collect();
        let mut now = match seed % 8 {
            0 => random.u64(0..window_us),
            _ => 1_700_000_000_000_000 + random.u64(0..window_us),
        };
        let mut last = None;
        for _ in 0..12 {
            now = Gap::random(&mut random, window_us).after(now, last.as_ref());
            let at = Timestamp::from_micros(now);
            // Entities 0, 1 and 2 come alone, 10, 11 and 12 come together.
            if random.u8(0..4) == 0 {
                let left = LEAVINGS[random.usize(..LEAVINGS.len())];
                let (policy, entity) = (random.choice(&policies).unwrap(), random.u64(0..3));
                for entity in [entity, entity + 10] {
                    leave(&mut script, &key("t", &check(policy, entity, 0)), left);
                }
            }
            let entities_max = random.u64(1..=3);
            let requests: Vec<Vec<Check<'_>>> = (0..random.usize(1..=16))
                .map(|_| {
                    let entity = random.u64(0..entities_max);
                    let asked: Vec<_> = (0..KINDS).filter(|_| random.u8(0..3) == 0).collect();
                    let ask = |n: usize| Check {
                        rule: [&policies[n].limits.rule, &edited[n]]
                            [usize::from(random.u8(0..8) == 0)],
                        shadow: random.u8(0..4) == 0,
                        ..check(
                            &policies[n],
                            entity,
                            random_cost(
                                &mut random,
                                policies[n].limits.rule.capacity(),
                                last.as_ref(),
                            ),
                        )
                    };
                    asked.into_iter().map(ask).collect()
                })
                .collect();
            let alone: Vec<_> = requests
                .iter()
                .flat_map(|checks| script.decide(checks, at))
                .collect();
            let again: Vec<Vec<Check<'_>>> = requests
                .iter()
                .map(|checks| checks.iter().map(|check| moved(check, 10)).collect())
                .collect();
            let together = script.decide_all(&again, at);
            assert_eq!(together, alone, "seed {seed} at {now}: {requests:?}");
            let one_each = policies.iter().flat_map(|p| (0..3).map(move |e| (p, e)));
            for (policy, entity, place) in one_each.flat_map(|(p, e)| [(p, e, 0), (p, e, 1)]) {
                let kept = |script: &mut Script, entity| {
                    let key = keys("t", &check(policy, entity, 0)).nth(place)?;
                    let kept = kept_at(script, &key);
                    Some(((kept.0, kept.1), kept.2))
                };
                let (Some(alone), Some(together)) =
                    (kept(&mut script, entity), kept(&mut script, entity + 10))
                else {
                    continue;
                };
                assert_eq!(together.0, alone.0, "seed {seed}: {}", policy.name);
                assert!(
                    together.1.abs_diff(alone.1) < 20,
                    "seed {seed}: {} is kept for {} s and {} s",
                    policy.name,
                    together.1,
                    alone.1
                );
            }
            last = alone.last().copied();
        }
        script.flush();
    }
}

/// The same check of the entity whose number is larger by so much.
fn moved<'a>(asked: &Check<'a>, by: u64) -> Check<'a> {
    let number = (0..10).find(|n| entity(*n) == asked.entity).unwrap();
    Check {
        entity: entity(number + by),
        ..*asked
    }
}

#[test]
fn the_server_tells_the_time_and_ends_what_has_no_meaning_any_more() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    for policy in every_kind() {
        let check = check(&policy, 1, 1);
        let key = key("t", &check);
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
        let is_log = matches!(policy.limits.rule, Rule::SlidingLog(_));
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
            let ours = ["evalsha", "config|resetstat"];
            let calls = stats.lines().filter_map(|line| {
                let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let calls = rest.split(',').next()?.parse::<usize>().ok()?;
                (!ours.contains(&name)).then_some(calls)
            });
            calls.sum::<usize>()
        };
        let (first, second, denied) = (commands(1), commands(1), commands(3));
        if is_log {
            assert_eq!((first, second, denied), (4, 4, 3), "log");
        } else {
            assert_eq!(
                (first, second, denied),
                (3, 3, 2),
                "{}",
                policy.limits.rule.kind()
            );
        }
    }
}
