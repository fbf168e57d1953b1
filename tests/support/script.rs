//! The deciding script, called as the gateway calls it but at a time of the test's own.

use redis::Value;
use tollgate::check::Check;
use tollgate::decide::{Decision, Timestamp};
use tollgate::store::Settlement;
use tollgate::store::valkey::script;

use super::valkey::Valkey;

/// A test's clock is not the server's: its keys live longer than the test.
pub(crate) const SLACK_MS: u64 = 100_000_000;

/// The script, loaded on a server.
pub(crate) struct Script {
    pub(crate) connection: redis::Connection,
    pub(crate) sha: String,
    settle_sha: String,
}

impl Script {
    /// Loads it.
    pub(crate) fn load(valkey: &Valkey) -> Self {
        let mut connection = valkey.connect();
        let mut load = |source: &str| {
            redis::cmd("SCRIPT")
                .arg("LOAD")
                .arg(source)
                .query(&mut connection)
                .unwrap()
        };
        let (sha, settle_sha) = (load(script::source()), load(script::settle_source()));
        Self {
            connection,
            sha,
            settle_sha,
        }
    }

    /// Decides at `now`, which is not the server's.
    pub(crate) fn decide(&mut self, checks: &[Check<'_>], now: Timestamp) -> Vec<Decision> {
        let call = script::call(&self.sha, "t", checks, Some(now), SLACK_MS);
        let reply: Value = call.query(&mut self.connection).unwrap();
        let (stood_at, decisions) = script::read_reply(&reply, checks.len()).unwrap();
        assert_eq!(stood_at, now);
        decisions
    }

    /// Decides several requests in one call.
    pub(crate) fn decide_all(
        &mut self,
        requests: &[Vec<Check<'_>>],
        now: Timestamp,
    ) -> Vec<Decision> {
        let slices: Vec<_> = requests.iter().map(Vec::as_slice).collect();
        let call = script::call_all(&self.sha, "t", &slices, Some(now), SLACK_MS);
        let reply: Value = call.query(&mut self.connection).unwrap();
        let checks = requests.iter().map(Vec::len).sum();
        let (stood_at, decisions) = script::read_reply(&reply, checks).unwrap();
        assert_eq!(stood_at, now);
        decisions
    }

    /// Forgets everything.
    pub(crate) fn flush(&mut self) {
        redis::cmd("FLUSHALL").exec(&mut self.connection).unwrap();
    }

    /// Settles at `now`, and says what is left.
    pub(crate) fn settle(
        &mut self,
        settlements: &[Settlement<'_>],
        now: Timestamp,
    ) -> Vec<Decision> {
        let call = script::settle_call(&self.settle_sha, "t", settlements, Some(now), SLACK_MS);
        let reply: Value = call.query(&mut self.connection).unwrap();
        let (stood_at, left) = script::read_reply(&reply, settlements.len()).unwrap();
        assert_eq!(stood_at, now);
        left
    }

    /// Panics unless every key has an expiry.
    pub(crate) fn expect_expiries(&mut self) {
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
