//! stub
use crate::check::Check;
use crate::decide::{Decision, Timestamp};
use crate::store::StoreError;
pub(crate) const SLACK_MS: u64 = 1000;
pub(crate) fn sha1() -> &'static str {
    ""
}
pub(crate) fn source() -> &'static str {
    ""
}
pub(crate) fn call(
    _sha: &str,
    _prefix: &str,
    _checks: &[Check<'_>],
    _now: Option<Timestamp>,
    _slack_ms: u64,
) -> redis::Cmd {
    unimplemented!()
}
pub(crate) fn read_reply(
    _value: &redis::Value,
    _checks: usize,
) -> Result<(Timestamp, Vec<Decision>), StoreError> {
    unimplemented!()
}
