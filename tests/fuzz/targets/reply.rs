//! Any bytes as the store's reply: the first says how many checks were asked for, the rest is what the server sent.

use redis::Value;
use tollgate::decide::{Decision, EXACT_MAX, Timestamp, Verdict};
use tollgate::store::StoreError;
use tollgate::store::valkey::script::read_reply;

/// A reply is a decision for each check, in numbers that a script can come to, or it is none.
pub(super) fn reply(data: &[u8]) {
    let Some((&checks, sent)) = data.split_first() else {
        return;
    };
    let checks = usize::from(checks % 16);
    let Ok(Ok(value)) = redis::parse_redis_value(sent).map(Value::extract_error) else {
        return;
    };
    match read_reply(&value, checks) {
        Ok((now, decisions)) => {
            assert_eq!(decisions.len(), checks);
            assert!(now.as_micros() <= EXACT_MAX);
            for decision in &decisions {
                let numbers = [
                    decision.remaining,
                    decision.retry_after_us.unwrap_or(0),
                    decision.reset_after_us,
                    decision.delay_us,
                ];
                assert!(numbers.into_iter().all(|number| number <= EXACT_MAX));
            }
            // Nothing was left out, and nothing was read in two ways.
            let written = written(now, &decisions);
            assert_eq!(written, value);
            assert!(read_reply(&written, checks + 1).is_err());
        }
        Err(StoreError::BadReply(why)) => assert!(why.len() < 100, "{why}"),
        Err(other) => panic!("{other:?}"),
    }
}

/// What the script replies to be read so.
fn written(now: Timestamp, decisions: &[Decision]) -> Value {
    let each = decisions.iter().flat_map(|decision| {
        [
            u64::from(decision.verdict == Verdict::Allow),
            decision.remaining,
            decision.retry_after_us.unwrap_or(u64::MAX),
            decision.reset_after_us,
            decision.delay_us,
        ]
    });
    let numbers = std::iter::once(now.as_micros()).chain(each);
    Value::BulkString(numbers.flat_map(u64::to_be_bytes).collect())
}
