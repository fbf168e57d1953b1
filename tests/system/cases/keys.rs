//! Reports about what is kept in the server, and for how long.

use tollgate::decide::{Timestamp, Verdict};
use tollgate::store::valkey::key::key;
use tollgate::store::valkey::script;

use crate::support::policies::{check, policy};
use crate::support::reports::{read_rule, reports};
use crate::support::script::Script;
use crate::support::valkey::Valkey;

#[test]
fn no_reported_fault_is_one_of_the_script() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    for (number, report) in (0..).zip(reports()) {
        report.play(number, |check, now| script.decide(&[*check], now)[0]);
    }
    script.expect_expiries();
}

/// stefanprodan/AspNetCoreRateLimit #253, apache/apisix #5588: a key without a time to live denied its caller for ever.
#[test]
fn a_key_that_lost_its_expiry_denies_nobody_for_longer_and_gets_another() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    let kinds = [
        "fixed-window 5/1s",
        "fixed-window 5/1s first-request",
        "sliding-log 5/1s",
        "sliding-counter 5/1s",
        "token-bucket 5/1s",
        "leaky-bucket 5/1s",
    ];
    for (entity, kind) in (0..).zip(kinds) {
        let policy = policy("bare", read_rule(kind));
        let at = |ms: u64| Timestamp::from_micros(1_700_000_000_000_000 + ms * 1_000);
        let spent = check(&policy, entity, 5);
        assert_eq!(script.decide(&[spent], at(0))[0].verdict, Verdict::Allow);
        let persisted: bool = redis::cmd("PERSIST")
            .arg(key("t", &spent))
            .query(&mut script.connection)
            .unwrap();
        assert!(persisted, "{kind}");
        assert_eq!(script.decide(&[spent], at(1))[0].verdict, Verdict::Deny);
        // The windows of a sliding counter count for two.
        assert_eq!(
            script.decide(&[spent], at(2_000))[0].verdict,
            Verdict::Allow
        );
        script.expect_expiries();
    }
}

/// brandur/redis-cell #11: the key ended between two readings of one command.
#[test]
fn a_key_that_ends_while_it_is_read_was_never_there() {
    let valkey = Valkey::start();
    let mut script = Script::load(&valkey);
    for kind in [
        "token-bucket 8000/1s burst 1",
        "leaky-bucket 8000/1s burst 1",
        "fixed-window 8/1ms",
        "sliding-log 8/1ms",
        "sliding-counter 8/1ms",
    ] {
        let policy = policy("brief", read_rule(kind));
        let mut allowed = 0;
        for _ in 0..500 {
            let call = script::call(&script.sha, "t", &[check(&policy, 0, 1)], None, 0);
            let reply = call.query(&mut script.connection).unwrap();
            let (_, decisions) = script::read_reply(&reply, 1).unwrap();
            allowed += usize::from(decisions[0].verdict == Verdict::Allow);
        }
        assert!(allowed > 0, "{kind}");
    }
}
