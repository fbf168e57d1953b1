//! Function, local store and script: one history, every field equal.

use redis::Value;
use tollgate::check::Check;
use tollgate::decide::{Cost, Decision, Timestamp};
use tollgate::store::valkey::script;

use crate::support::policies::{check, policy};
use crate::support::traces::cases;
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
