//! The scripts that decide and give back, how they are called, and what they reply. The contracts stand in
//! `lua/decide.lua` and `lua/refund.lua`.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use sha1::{Digest, Sha1};

use super::key::key;
use crate::check::Check;
use crate::decide::{Anchor, Charge, Decision, EXACT_MAX, Rule, Timestamp, Verdict};
use crate::store::StoreError;

/// Integers in the reply for each check.
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

/// The library of kinds, a file each, and an entry that composes them.
macro_rules! with_kinds {
    ($entry:literal) => {
        concat!(
            "#!lua\n",
            include_str!("../../../lua/exact.lua"),
            include_str!("../../../lua/bucket.lua"),
            include_str!("../../../lua/token_bucket.lua"),
            include_str!("../../../lua/leaky_bucket.lua"),
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
    with_kinds!("../../../lua/decide.lua")
}

/// The text that gives back.
#[must_use]
pub const fn refund_source() -> &'static str {
    with_kinds!("../../../lua/refund.lua")
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
/// [`read_reply`] then takes the number of all their checks.
#[must_use]
pub fn call_all(
    sha: &str,
    prefix: &str,
    requests: &[&[Check<'_>]],
    now: Option<Timestamp>,
    slack_ms: u64,
) -> Cmd {
    let parts: Vec<_> = requests
        .iter()
        .map(|checks| Part::new(prefix, checks))
        .collect();
    call_parts(sha, &parts, now, slack_ms)
}

/// One request, as it stands in a call.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    keys: Cmd,
    arguments: Cmd,
}

impl Part {
    pub(crate) fn new(prefix: &str, checks: &[Check<'_>]) -> Self {
        let (mut keys, mut arguments) = (Cmd::new(), Cmd::new());
        arguments.arg(checks.len());
        for check in checks {
            keys.arg(key(prefix, check));
            add_check(&mut arguments, check);
        }
        Self { keys, arguments }
    }

    /// How many checks it has.
    pub(crate) fn checks(&self) -> usize {
        self.keys.args_iter().len()
    }
}

/// The call that decides these requests; see [`call_all`].
pub(crate) fn call_parts<'p>(
    sha: &str,
    parts: impl IntoIterator<Item = &'p Part, IntoIter: Clone>,
    now: Option<Timestamp>,
    slack_ms: u64,
) -> Cmd {
    let parts = parts.into_iter();
    let mut call = redis::cmd("EVALSHA");
    call.arg(sha)
        .arg(parts.clone().map(Part::checks).sum::<usize>());
    for part in parts.clone() {
        add_all(&mut call, &part.keys);
    }
    add_instant(&mut call, now);
    call.arg(slack_ms);
    for part in parts {
        add_all(&mut call, &part.arguments);
    }
    call
}

fn add_all(call: &mut Cmd, from: &Cmd) {
    for argument in from.args_iter() {
        if let redis::Arg::Simple(bytes) = argument {
            call.arg(bytes);
        }
    }
}

/// Adds what one check takes: kind, cost, enforced, and the kind's numbers.
fn add_check(call: &mut Cmd, check: &Check<'_>) {
    let enforced = u8::from(!check.shadow);
    call.arg(check.rule.kind())
        .arg(check.cost.units())
        .arg(enforced);
    add_numbers(call, check.rule);
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
    for (check, _) in charged {
        call.arg(key(prefix, check));
    }
    add_instant(&mut call, now);
    call.arg(slack_ms);
    for (check, charge) in charged {
        call.arg(check.rule.kind())
            .arg(charge.at.as_micros())
            .arg(charge.cost.units())
            .arg(charge.reset_after_us);
        add_numbers(&mut call, check.rule);
    }
    call
}

fn add_instant(call: &mut Cmd, now: Option<Timestamp>) {
    match now {
        Some(now) => call.arg(now.as_micros()),
        None => call.arg(""),
    };
}

fn add_numbers(call: &mut Cmd, rule: &Rule) {
    match rule {
        Rule::FixedWindow(rule) => {
            let to_epoch = u8::from(rule.anchor() == Anchor::Epoch);
            call.arg(rule.limit().count.get())
                .arg(rule.limit().window_us.get())
                .arg(to_epoch);
        }
        Rule::SlidingLog(rule) => {
            call.arg(rule.limit().count.get())
                .arg(rule.limit().window_us.get());
        }
        Rule::SlidingCounter(rule) => {
            call.arg(rule.limit().count.get())
                .arg(rule.limit().window_us.get());
            call.arg(&rule.script_numbers());
        }
        Rule::TokenBucket(rule) => {
            call.arg(&rule.script_numbers());
        }
        Rule::LeakyBucket(rule) => {
            call.arg(&rule.script_numbers());
            match rule.max_wait_us() {
                Some(max_wait_us) => call.arg(max_wait_us),
                None => call.arg(-1),
            };
        }
    }
}

/// Reads the reply to [`call`]: the instant at which it was decided, and the decisions in the order of the checks.
///
/// # Errors
///
/// [`StoreError::BadReply`] when it is not what the script replies to so many checks.
pub fn read_reply(value: &Value, checks: usize) -> Result<(Timestamp, Vec<Decision>), StoreError> {
    let Value::Array(items) = value else {
        return Err(bad_reply("not an array"));
    };
    let Some((now, fields)) = items.split_first() else {
        return Err(bad_reply("an empty array"));
    };
    let now = Timestamp::from_micros(whole(now)?);
    let decisions: Vec<_> = fields
        .chunks(FIELDS)
        .map(decision)
        .collect::<Result<_, _>>()?;
    if decisions.len() != checks {
        return Err(bad_reply("another number of decisions than of checks"));
    }
    Ok((now, decisions))
}

fn decision(fields: &[Value]) -> Result<Decision, StoreError> {
    let [allowed, remaining, retry_after, reset_after, delay] = fields else {
        return Err(bad_reply("a decision that is cut short"));
    };
    Ok(Decision {
        verdict: match allowed {
            Value::Int(1) => Verdict::Allow,
            Value::Int(0) => Verdict::Deny,
            _ => return Err(bad_reply("a verdict other than 0 and 1")),
        },
        remaining: whole(remaining)?,
        retry_after_us: match retry_after {
            Value::Int(-1) => None,
            found => Some(whole(found)?),
        },
        reset_after_us: whole(reset_after)?,
        delay_us: whole(delay)?,
    })
}

fn whole(value: &Value) -> Result<u64, StoreError> {
    match value {
        Value::Int(found) => u64::try_from(*found)
            .ok()
            .filter(|number| *number <= EXACT_MAX)
            .ok_or_else(|| bad_reply("a number that no script can come to")),
        _ => Err(bad_reply("something other than an integer")),
    }
}

/// The reply itself is not shown: it may be anything, of any length.
fn bad_reply(found: &str) -> StoreError {
    StoreError::BadReply(format!("found {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ints(numbers: &[i64]) -> Value {
        Value::Array(numbers.iter().map(|&n| Value::Int(n)).collect())
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
        let Ok((now, decisions)) = read_reply(&ints(&[7, 1, 2, 0, 4, 5, 0, 0, -1, 9, 0]), 2) else {
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
            ints(&[]),
            ints(&[7]),
            ints(&[7, 1, 2, 0, 4]),
            ints(&[7, 1, 2, 0, 4, 5, 1]),
            ints(&[7, 2, 2, 0, 4, 5]),
            ints(&[7, 1, -2, 0, 4, 5]),
            ints(&[7, 1, 2, -2, 4, 5]),
            ints(&[-7, 1, 2, 0, 4, 5]),
            ints(&[7, 1, 2, 0, 4, 5, 1, 2, 0, 4, 5]),
            Value::Array(vec![
                Value::Int(7),
                Value::Nil,
                Value::Nil,
                Value::Nil,
                Value::Nil,
                Value::Nil,
            ]),
        ];
        for shape in shapes {
            assert!(
                matches!(read_reply(&shape, 1), Err(StoreError::BadReply(_))),
                "{shape:?}"
            );
        }
    }
}
