//! The scripts that decide and give back, how they are called, and what they reply. The contracts stand in
//! `lua/asked.lua`, `lua/decide.lua` and `lua/refund.lua`.

use std::collections::HashMap;
use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use sha1::{Digest, Sha1};

use super::key::key;
use crate::check::{Check, EntityKey, Generation};
use crate::decide::{Anchor, Charge, Decision, EXACT_MAX, Rule, Timestamp, Verdict};
use crate::store::StoreError;

/// Numbers in the reply for each check.
const FIELDS: usize = 5;

/// A script, and the digest by which servers know it.
#[derive(Debug)]
pub(crate) struct Script {
    source: &'static str,
    sha: String,
}

impl Script {
    pub(crate) fn new(source: &'static str) -> Self {
        let digest = Sha1::digest(source);
        let sha = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { source, sha }
    }

    /// What `EVALSHA` calls it.
    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }

    /// Has the server know it.
    pub(crate) async fn load(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(self.source)
            .exec_async(connection)
            .await
    }
}

/// The script that decides.
pub(crate) static DECIDE: LazyLock<Script> = LazyLock::new(|| Script::new(source()));

/// The script that gives back.
pub(crate) static REFUND: LazyLock<Script> = LazyLock::new(|| Script::new(refund_source()));

/// The library of kinds, a file each, between what a call begins with and what it comes to.
macro_rules! with_kinds {
    ($gives_back:literal, $entry:literal) => {
        concat!(
            "#!lua\nlocal gives_back = ",
            $gives_back,
            "\n",
            include_str!("../../../lua/exact.lua"),
            include_str!("../../../lua/asked.lua"),
            include_str!("../../../lua/bucket.lua"),
            include_str!("../../../lua/token_bucket.lua"),
            include_str!("../../../lua/leaky_bucket.lua"),
            include_str!("../../../lua/counts.lua"),
            include_str!("../../../lua/fixed_window.lua"),
            include_str!("../../../lua/sliding_counter.lua"),
            include_str!("../../../lua/sliding_log.lua"),
            include_str!($entry),
        )
    };
}

/// The text that decides.
#[must_use]
pub const fn source() -> &'static str {
    with_kinds!(false, "../../../lua/decide.lua")
}

/// The text that gives back.
#[must_use]
pub const fn refund_source() -> &'static str {
    with_kinds!(true, "../../../lua/refund.lua")
}

/// The call that decides `checks` at one instant: the server's own, or `now` in a test.
///
/// A key outlives its meaning by `slack_ms`. Policies must be distinct: one that stands there twice is charged once.
#[must_use]
pub fn call(
    sha: &str,
    prefix: &str,
    checks: &[Check<'_>],
    now: Option<Timestamp>,
    slack_ms: u64,
) -> Cmd {
    call_all(sha, prefix, &[checks], now, slack_ms)
}

/// The call that decides several requests one after the other, at one instant, as if each had come alone.
///
/// [`read_reply`] then takes the number of all their checks: some thousands at most, since Lua reads their keys at once.
/// Equal keys are of one kind, as their generation says.
#[must_use]
pub fn call_all(
    sha: &str,
    prefix: &str,
    requests: &[&[Check<'_>]],
    now: Option<Timestamp>,
    slack_ms: u64,
) -> Cmd {
    let mut keys = Keys::default();
    let checks = || requests.iter().copied().flatten();
    let rules = Rules::of(checks().map(|check| check.rule));
    let mut asked = rules.head(slack_ms);
    for checks in requests {
        for (place, check) in checks.iter().enumerate() {
            let is_last = place.saturating_add(1) == checks.len();
            asked.extend(keys.number_of(prefix, check).to_be_bytes());
            asked.extend(rules.number_of(check.rule).to_be_bytes());
            add_six(&mut asked, check.cost.units());
            asked.push(u8::from(!check.shadow) | u8::from(is_last) << 1);
        }
    }
    let mut call = redis::cmd("EVALSHA");
    call.arg(sha).arg(keys.names.len()).arg(&keys.names);
    call.arg(asked);
    add_instant(&mut call, now);
    call
}

/// The keys of a call, each once.
#[derive(Default)]
struct Keys<'a> {
    names: Vec<String>,
    numbers: HashMap<(EntityKey, &'a str, Generation), u16>,
}

impl<'a> Keys<'a> {
    fn number_of(&mut self, prefix: &str, check: &Check<'a>) -> u16 {
        let policy = check.policy;
        let whose = (check.entity, &*policy.name, policy.generation);
        let names = &mut self.names;
        *self.numbers.entry(whose).or_insert_with(|| {
            names.push(key(prefix, check));
            number(names.len())
        })
    }
}

/// The rules of a call, each once, by kind.
struct Rules<'a>(Vec<&'a Rule>);

impl<'a> Rules<'a> {
    fn of(rules: impl Iterator<Item = &'a Rule>) -> Self {
        let mut distinct: Vec<&Rule> = Vec::new();
        for rule in rules {
            if !distinct.contains(&rule) {
                distinct.push(rule);
            }
        }
        distinct.sort_by_key(|rule| place_of(rule));
        Self(distinct)
    }

    fn number_of(&self, rule: &Rule) -> u16 {
        let place = self.0.iter().position(|known| *known == rule);
        number(place.map_or(0, |place| place.saturating_add(1)))
    }

    /// What a call begins with: `lua/asked.lua`.
    fn head(&self, slack_ms: u64) -> Vec<u8> {
        let mut head = Vec::with_capacity(128);
        add_seven(&mut head, slack_ms);
        for kind in 0..KINDS {
            let of_kind = self.0.iter().filter(|rule| place_of(rule) == kind);
            head.extend(number(of_kind.count()).to_be_bytes());
        }
        for rule in &self.0 {
            add_numbers(&mut head, rule);
        }
        head
    }
}

const KINDS: usize = 5;

/// The place of a rule's kind among those of the scripts.
const fn place_of(rule: &Rule) -> usize {
    match rule {
        Rule::TokenBucket(_) => 0,
        Rule::LeakyBucket(_) => 1,
        Rule::FixedWindow(_) => 2,
        Rule::SlidingCounter(_) => 3,
        Rule::SlidingLog(_) => 4,
    }
}

/// The number of something in a call, from 1. So many that they have none are more than any script takes.
fn number(of: usize) -> u16 {
    u16::try_from(of).unwrap_or(u16::MAX)
}

/// The call that gives back what these checks were charged. [`read_reply`] reads what is left then.
///
/// Give it only those that charged: not one in shadow that denied, and none of a request that was denied.
#[must_use]
pub fn refund_call(
    sha: &str,
    prefix: &str,
    charged: &[(Check<'_>, Charge)],
    now: Option<Timestamp>,
    slack_ms: u64,
) -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(sha).arg(charged.len());
    let rules = Rules::of(charged.iter().map(|(check, _)| check.rule));
    let mut asked = rules.head(slack_ms);
    for (check, charge) in charged {
        call.arg(key(prefix, check));
        asked.extend(rules.number_of(check.rule).to_be_bytes());
        add_seven(&mut asked, charge.at.as_micros());
        add_six(&mut asked, charge.cost.units());
        add_seven(&mut asked, charge.reset_after_us);
    }
    call.arg(asked);
    add_instant(&mut call, now);
    call
}

fn add_instant(call: &mut Cmd, now: Option<Timestamp>) {
    if let Some(now) = now {
        call.arg(now.as_micros());
    }
}

/// Adds what the kind's script says of its numbers.
fn add_numbers(bytes: &mut Vec<u8>, rule: &Rule) {
    let mut add = |numbers: &[u64]| {
        for number in numbers {
            add_seven(bytes, *number);
        }
    };
    let (count, window_us) = (rule.limit().count.get(), rule.limit().window_us.get());
    match rule {
        Rule::TokenBucket(rule) => add(&rule.script_numbers()),
        Rule::LeakyBucket(rule) => {
            add(&rule.script_numbers());
            // All bits set are -1.
            add(&[rule.max_wait_us().unwrap_or(u64::MAX)]);
        }
        Rule::FixedWindow(rule) => {
            add(&[count, window_us]);
            bytes.push(u8::from(rule.anchor() == Anchor::Epoch));
        }
        Rule::SlidingCounter(rule) => {
            add(&[count, window_us]);
            add(&rule.script_numbers());
        }
        Rule::SlidingLog(_) => add(&[count, window_us]),
    }
}

/// Adds a number that is less than 2^56, as all of ours are.
fn add_seven(bytes: &mut Vec<u8>, number: u64) {
    let [_, seven @ ..] = number.to_be_bytes();
    bytes.extend(seven);
}

/// Adds a cost: less than 2^48.
fn add_six(bytes: &mut Vec<u8>, units: u64) {
    let [_, _, six @ ..] = units.to_be_bytes();
    bytes.extend(six);
}

/// Reads the reply to [`call`]: the instant at which it was decided, and the decisions in the order of the checks.
///
/// # Errors
///
/// [`StoreError::BadReply`] when it is not what the script replies to so many checks.
pub fn read_reply(value: &Value, checks: usize) -> Result<(Timestamp, Vec<Decision>), StoreError> {
    let Value::BulkString(bytes) = value else {
        return Err(bad_reply("something other than a string"));
    };
    let (numbers, rest) = bytes.as_chunks();
    let Some((now, fields)) = numbers.split_first().filter(|_| rest.is_empty()) else {
        return Err(bad_reply("a number that is cut short"));
    };
    let now = Timestamp::from_micros(whole(*now)?);
    let (fields, rest) = fields.as_chunks();
    if fields.len() != checks || !rest.is_empty() {
        return Err(bad_reply("another number of decisions than of checks"));
    }
    let decisions = fields.iter().map(decision).collect::<Result<_, _>>()?;
    Ok((now, decisions))
}

/// A number of the reply.
type Number = [u8; 8];

fn decision(fields: &[Number; FIELDS]) -> Result<Decision, StoreError> {
    let [allowed, remaining, retry_after, reset_after, delay] = *fields;
    Ok(Decision {
        verdict: match i64::from_be_bytes(allowed) {
            1 => Verdict::Allow,
            0 => Verdict::Deny,
            _ => return Err(bad_reply("a verdict other than 0 and 1")),
        },
        remaining: whole(remaining)?,
        retry_after_us: match i64::from_be_bytes(retry_after) {
            -1 => None,
            _ => Some(whole(retry_after)?),
        },
        reset_after_us: whole(reset_after)?,
        delay_us: whole(delay)?,
    })
}

fn whole(number: Number) -> Result<u64, StoreError> {
    let number = u64::from_be_bytes(number);
    if number > EXACT_MAX {
        return Err(bad_reply("a number that no script can come to"));
    }
    Ok(number)
}

/// The reply itself is not shown: it may be anything, of any length.
fn bad_reply(found: &str) -> StoreError {
    StoreError::BadReply(format!("found {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(numbers: &[i64]) -> Value {
        Value::BulkString(numbers.iter().flat_map(|n| n.to_be_bytes()).collect())
    }

    #[test]
    fn the_sources_have_one_first_line() {
        for source in [source(), refund_source()] {
            assert!(source.starts_with("#!lua\n"));
            assert_eq!(source.matches("#!").count(), 1);
        }
    }

    #[test]
    fn a_reply_is_read_as_it_was_meant() {
        let Ok((now, decisions)) = read_reply(&reply(&[7, 1, 2, 0, 4, 5, 0, 0, -1, 9, 0]), 2)
        else {
            panic!("it is a reply")
        };
        assert_eq!(now, Timestamp::from_micros(7));
        let [allowed, denied] = decisions[..] else {
            panic!("there are two")
        };
        assert_eq!(
            (allowed.verdict, allowed.remaining, allowed.retry_after_us),
            (Verdict::Allow, 2, Some(0))
        );
        assert_eq!((allowed.reset_after_us, allowed.delay_us), (4, 5));
        assert_eq!(
            (denied.verdict, denied.retry_after_us),
            (Verdict::Deny, None)
        );
    }

    #[test]
    fn a_reply_of_any_other_shape_is_refused() {
        let shapes = [
            Value::Nil,
            Value::Okay,
            Value::Int(1),
            reply(&[]),
            reply(&[7]),
            reply(&[7, 1, 2, 0, 4]),
            reply(&[7, 1, 2, 0, 4, 5, 1]),
            reply(&[7, 2, 2, 0, 4, 5]),
            reply(&[7, 1, -2, 0, 4, 5]),
            reply(&[7, 1, 2, -2, 4, 5]),
            reply(&[-7, 1, 2, 0, 4, 5]),
            reply(&[7, 1, 2, 0, 4, 5, 1, 2, 0, 4, 5]),
            Value::Array(vec![reply(&[7, 1, 2, 0, 4, 5])]),
            Value::BulkString(vec![0; 6 * 8 - 1]),
            Value::BulkString(vec![0; 6 * 8 + 1]),
            reply(&[7, 1, 2, 0, 4, 1 << 53]),
        ];
        for shape in shapes {
            assert!(
                matches!(read_reply(&shape, 1), Err(StoreError::BadReply(_))),
                "{shape:?}"
            );
        }
    }
}
