//! The scripts that decide, settle, and say what is held, how they are called, and what they reply. The contracts stand
//! in `lua/asked.lua`, `lua/decide.lua`, `lua/settle.lua` and `lua/hold.lua`.

use std::sync::LazyLock;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use sha1::{Digest, Sha1};

use super::asked;
pub(crate) use super::asked::Part;
use super::key::keys;
use super::slots::{Holder, Tell};
use crate::check::Check;
use crate::decide::{Decision, EXACT_MAX, Penalised, Timestamp, Verdict};
use crate::store::{Settlement, StoreError};

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

/// The script that settles.
pub(crate) static SETTLE: LazyLock<Script> = LazyLock::new(|| Script::new(settle_source()));

/// The script that says what is held.
pub(crate) static HOLD: LazyLock<Script> = LazyLock::new(|| Script::new(hold_source()));

/// The library of kinds, a file each, between what a call begins with and what it comes to.
macro_rules! with_kinds {
    ($settles:literal, $entry:literal) => {
        concat!(
            "#!lua\nlocal settles = ",
            $settles,
            "\n",
            include_str!("../../../lua/exact.lua"),
            include_str!("../../../lua/asked.lua"),
            include_str!("../../../lua/write.lua"),
            include_str!("../../../lua/bucket.lua"),
            include_str!("../../../lua/token_bucket.lua"),
            include_str!("../../../lua/leaky_bucket.lua"),
            include_str!("../../../lua/counts.lua"),
            include_str!("../../../lua/fixed_window.lua"),
            include_str!("../../../lua/sliding_counter.lua"),
            include_str!("../../../lua/sliding_log.lua"),
            include_str!("../../../lua/concurrency.lua"),
            include_str!("../../../lua/penalty.lua"),
            include_str!($entry),
        )
    };
}

/// The text that decides.
#[must_use]
pub const fn source() -> &'static str {
    with_kinds!(false, "../../../lua/decide.lua")
}

/// The text that settles.
#[must_use]
pub const fn settle_source() -> &'static str {
    with_kinds!(true, "../../../lua/settle.lua")
}

/// The text that says what is held.
#[must_use]
pub const fn hold_source() -> &'static str {
    concat!(
        "#!lua\n",
        include_str!("../../../lua/exact.lua"),
        include_str!("../../../lua/asked.lua"),
        include_str!("../../../lua/concurrency.lua"),
        include_str!("../../../lua/hold.lua"),
    )
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

/// The same by this holder of what is lent.
#[must_use]
pub fn call_by(
    holder: Holder,
    sha: &str,
    prefix: &str,
    checks: &[Check<'_>],
    now: Option<Timestamp>,
    slack_ms: u64,
) -> Cmd {
    let part = Part::new(prefix, checks, |_| holder);
    call_parts(sha, [&part], now, slack_ms)
}

/// The call that decides several requests one after the other, at one instant, as if each had come alone.
///
/// [`read_reply`] then takes the number of all their checks: some thousands at most, since Lua reads their keys at
/// once. Equal keys are of one kind, as their generation says. What is lent, one and the same holds.
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
        .map(|checks| Part::new(prefix, checks, |_| Holder::default()))
        .collect();
    call_parts(sha, &parts, now, slack_ms)
}

/// The call that decides these requests; see [`call_all`].
pub(crate) fn call_parts<'p>(
    sha: &str,
    parts: impl IntoIterator<Item = &'p Part, IntoIter: Clone>,
    now: Option<Timestamp>,
    slack_ms: u64,
) -> Cmd {
    let (keys, asked) = asked::decisions(parts.into_iter(), now, slack_ms);
    let mut call = redis::cmd("EVALSHA");
    call.arg(sha).arg(keys.len()).arg(keys).arg(asked);
    add_instant(&mut call, now);
    call
}

/// The call that says what is held. [`read_reply`] reads as what remains how much that is then.
#[must_use]
pub fn hold_call(sha: &str, tells: &[Tell], now: Option<Timestamp>, slack_ms: u64) -> Cmd {
    let mut call = redis::cmd("EVALSHA");
    call.arg(sha).arg(tells.len());
    for tell in tells {
        call.arg(&*tell.key);
    }
    call.arg(asked::held(tells, slack_ms));
    add_instant(&mut call, now);
    call
}

/// The call that settles these charges. [`read_reply`] reads what is left then.
///
/// Give it only those that were made: not one in shadow that denied, and none of a request that was denied.
#[must_use]
pub fn settle_call(
    sha: &str,
    prefix: &str,
    settlements: &[Settlement<'_>],
    now: Option<Timestamp>,
    slack_ms: u64,
) -> Cmd {
    let keys: Vec<_> = settlements
        .iter()
        .flat_map(|settlement| keys(prefix, &settlement.check))
        .collect();
    let mut call = redis::cmd("EVALSHA");
    call.arg(sha).arg(keys.len()).arg(keys);
    call.arg(asked::settlements(settlements, now, slack_ms));
    add_instant(&mut call, now);
    call
}

/// The text that looks.
#[must_use]
pub(super) const fn inspect_source() -> &'static str {
    with_kinds!(false, "../../../lua/inspect.lua")
}

fn add_instant(call: &mut Cmd, now: Option<Timestamp>) {
    if let Some(now) = now {
        call.arg(now.as_micros());
    }
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
    let (verdict, penalised) = match i64::from_be_bytes(allowed) {
        0 => (Verdict::Deny, Penalised::No),
        1 => (Verdict::Allow, Penalised::No),
        2 => (Verdict::Deny, Penalised::Runs),
        // It only looked.
        3 => (Verdict::Allow, Penalised::Runs),
        4 => (Verdict::Deny, Penalised::Begins),
        _ => return Err(bad_reply("a verdict that there is not")),
    };
    Ok(Decision {
        verdict,
        remaining: whole(remaining)?,
        retry_after_us: match i64::from_be_bytes(retry_after) {
            -1 => None,
            _ => Some(whole(retry_after)?),
        },
        reset_after_us: whole(reset_after)?,
        delay_us: whole(delay)?,
        penalised,
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
        for source in [source(), settle_source(), hold_source(), inspect_source()] {
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
            reply(&[7, 5, 2, 0, 4, 5]),
            reply(&[7, -1, 2, 0, 4, 5]),
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
