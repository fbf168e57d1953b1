//! What the client sees: every denial as bytes, and our fields beside the upstream's.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that stumbles has failed"
)]

use std::num::NonZeroU64;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use tollgate::answer::template::{PLACEHOLDERS, Template, UnknownPlaceholder};
use tollgate::answer::words;
use tollgate::answer::{
    Answer, Asked, Legacy, Refusal, Reject, Settings, UpstreamFields, When, annotate, refuse,
};
use tollgate::check::{
    Check, EntityKey, Generation, KeySource, Mode, OnMissingKey, OnStoreFailure, Policy, Ruling,
    Scope, Source, Unit,
};
use tollgate::decide::{
    Anchor, Cost, Decision, FixedWindow, LeakyBucket, Limit, Rule, SlidingCounter, SlidingLog,
    TokenBucket, Verdict,
};

const SECOND: u64 = 1_000_000;
const MINUTE: u64 = 60 * SECOND;
const ID: &str = "0190a0b0-1111-7222-8333-444455556666";

fn limit(count: u64, window_us: u64) -> Limit {
    Limit {
        count: NonZeroU64::new(count).unwrap(),
        window_us: NonZeroU64::new(window_us).unwrap(),
    }
}

fn fixed(count: u64, window_us: u64) -> Rule {
    Rule::FixedWindow(FixedWindow::new(limit(count, window_us), Anchor::Epoch).unwrap())
}

fn log(count: u64, window_us: u64) -> Rule {
    Rule::SlidingLog(SlidingLog::new(limit(count, window_us)).unwrap())
}

fn counter(count: u64, window_us: u64) -> Rule {
    Rule::SlidingCounter(SlidingCounter::new(limit(count, window_us), false).unwrap())
}

fn bucket(count: u64, window_us: u64, burst: u64) -> Rule {
    let burst = NonZeroU64::new(burst).unwrap();
    Rule::TokenBucket(TokenBucket::new(limit(count, window_us), burst).unwrap())
}

fn leaky(count: u64, window_us: u64, burst: u64) -> Rule {
    let burst = NonZeroU64::new(burst).unwrap();
    Rule::LeakyBucket(LeakyBucket::new(limit(count, window_us), burst, None).unwrap())
}

fn policy(name: &str, rule: Rule) -> Policy {
    Policy {
        name: name.into(),
        index: 0,
        generation: Generation(1),
        share: rule.clone(),
        rule,
        key: Box::new([KeySource::Ip]),
        on_missing_key: OnMissingKey::Skip,
        on_store_failure: OnStoreFailure::Local,
        scope: Scope::Shared,
        mode: Mode::Enforce,
        unit: Unit::Requests,
        reject: 0,
        advertise: true,
    }
}

fn ruling(policy: &Policy, decision: Decision) -> Ruling<'_> {
    Ruling {
        check: Check {
            policy,
            rule: &policy.rule,
            entity: EntityKey([7; 16]),
            cost: Cost::ONE,
            shadow: false,
        },
        decision,
        source: Source::Store,
    }
}

fn allowed(remaining: u64, reset_after_us: u64) -> Decision {
    Decision {
        verdict: Verdict::Allow,
        remaining,
        retry_after_us: Some(0),
        reset_after_us,
        delay_us: 0,
    }
}

fn denied(remaining: u64, retry_after_us: Option<u64>, reset_after_us: u64) -> Decision {
    Decision {
        verdict: Verdict::Deny,
        remaining,
        retry_after_us,
        reset_after_us,
        delay_us: 0,
    }
}

fn settings() -> Settings {
    Settings {
        retry_after_jitter_percent: 0,
        ..Settings::default()
    }
}

fn asked() -> Asked<'static> {
    Asked {
        head: false,
        accept: None,
        origin: None,
        request_id: ID,
        now_epoch_s: 1_800_000_000,
    }
}

/// The fields in the order of their names, then the body.
fn shown(answer: &Answer) -> String {
    let mut lines: Vec<String> = answer
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    let body = std::str::from_utf8(&answer.body).unwrap();
    format!("{}\n{}\n\n{body}", answer.status.as_u16(), lines.join("\n"))
}

fn field<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    let mut lines = headers.get_all(name).iter();
    let first = lines.next().map(|value| value.to_str().unwrap());
    assert!(lines.next().is_none(), "{name} on one line");
    first
}

/// Name and parameters of each member, read by the rules of structured fields.
fn members(headers: &HeaderMap, name: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let Some(value) = field(headers, name) else {
        return Vec::new();
    };
    let list: List = Parser::new(value).parse().expect(value);
    list.into_iter()
        .map(|entry| {
            let ListEntry::Item(item) = entry else {
                panic!("an inner list in {value}");
            };
            let name = item.bare_item.as_string().expect(value).as_str().to_owned();
            let params = item.params.iter().filter_map(|(key, value)| match value {
                BareItem::Integer(number) => Some((key.as_str().to_owned(), i64::from(*number))),
                _ => None,
            });
            (name, params.collect())
        })
        .collect()
}

/// What `annotate` adds to an empty answer of the upstream.
fn told(settings: &Settings, rulings: &[Ruling<'_>]) -> (String, String) {
    let mut headers = HeaderMap::new();
    assert!(!annotate(
        settings,
        rulings,
        StatusCode::OK,
        0,
        &mut headers
    ));
    for name in ["ratelimit", "ratelimit-policy"] {
        members(&headers, name);
    }
    let value = |name| field(&headers, name).unwrap_or_default().to_owned();
    (value("ratelimit-policy"), value("ratelimit"))
}

#[test]
fn each_refusal_is_these_bytes() {
    let login = policy("login", log(5, MINUTE));
    let quota = [ruling(&login, denied(0, Some(12_400_000), 40 * SECOND))];
    let never = [ruling(&login, denied(5, None, 0))];
    let queue = policy("sms", leaky(10, SECOND, 30));
    let waiting = [ruling(
        &queue,
        Decision {
            delay_us: 2_100_000,
            ..allowed(9, 2_100_000)
        },
    )];
    let id = format!("x-request-id: {ID}");
    for (refusal, rulings, status, fields, body, reason) in [
        (
            Refusal::Quota,
            &quota[..],
            429,
            "ratelimit-policy: \"login\";q=5;w=60\nratelimit: \"login\";r=0;t=13\nretry-after: 13\n",
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Policy login allows 5 per 1 min. Try again in 13 seconds.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666","violated-policies":["login"],"retry_after_seconds":13}"#,
            "out of quota",
        ),
        (
            Refusal::Quota,
            &never,
            429,
            "ratelimit-policy: \"login\";q=5;w=60\nratelimit: \"login\";r=5\n",
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Policy login never allows a request of this cost, however long it waits.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666","violated-policies":["login"]}"#,
            "no wait helps",
        ),
        (
            Refusal::QueueFull(&queue),
            &waiting,
            429,
            "ratelimit-policy: \"sms\";q=10;w=1;tollgate-burst=30\nratelimit: \"sms\";r=9\nretry-after: 3\n",
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Policy sms allows 10 per 1 s. Try again in 3 seconds.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666","violated-policies":["sms"],"retry_after_seconds":3}"#,
            "no room to wait",
        ),
        (
            Refusal::MissingKey(&login),
            &[],
            403,
            "",
            r#"{"type":"about:blank","title":"Forbidden","status":403,"detail":"The request lacks what policy login knows callers by.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666"}"#,
            "no key",
        ),
        (
            Refusal::StoreUnavailable,
            &[],
            503,
            "retry-after: 1\n",
            r#"{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"Limits cannot be checked at the moment.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666","retry_after_seconds":1}"#,
            "no quota was exceeded",
        ),
        (
            Refusal::Unmatched(StatusCode::NOT_FOUND),
            &[],
            404,
            "",
            r#"{"type":"about:blank","title":"Not Found","status":404,"detail":"No route matches this request.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666"}"#,
            "no route",
        ),
        (
            Refusal::Unmatched(StatusCode::MISDIRECTED_REQUEST),
            &[],
            421,
            "",
            r#"{"type":"about:blank","title":"Misdirected Request","status":421,"detail":"No route matches this request.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666"}"#,
            "no route",
        ),
        (
            Refusal::Refused(StatusCode::BAD_REQUEST, "The path has a control character."),
            &[],
            400,
            "",
            r#"{"type":"about:blank","title":"Bad Request","status":400,"detail":"The path has a control character.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666"}"#,
            "makes no sense",
        ),
        (
            Refusal::Refused(StatusCode::PAYLOAD_TOO_LARGE, "The body is too large."),
            &[],
            413,
            "",
            r#"{"type":"about:blank","title":"Payload Too Large","status":413,"detail":"The body is too large.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666"}"#,
            "too large",
        ),
        (
            Refusal::Upstream(StatusCode::BAD_GATEWAY),
            &[],
            502,
            "",
            r#"{"type":"about:blank","title":"Bad Gateway","status":502,"detail":"The upstream could not be reached, or its answer not be read.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666"}"#,
            "no upstream",
        ),
        (
            Refusal::Upstream(StatusCode::GATEWAY_TIMEOUT),
            &[],
            504,
            "",
            r#"{"type":"about:blank","title":"Gateway Timeout","status":504,"detail":"The upstream did not answer in time.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666"}"#,
            "a slow upstream",
        ),
    ] {
        let answer = refuse(&settings(), &[Reject::default()], refusal, rulings, asked());
        let length = body.len();
        let expected = format!(
            "{status}\ncache-control: no-store\ncontent-length: {length}\ncontent-type: application/problem+json\n{fields}{id}\n\n{body}"
        );
        assert_eq!(shown(&answer), expected, "{reason}");
        let head = refuse(
            &settings(),
            &[],
            refusal,
            rulings,
            Asked {
                head: true,
                ..asked()
            },
        );
        assert_eq!(
            (head.status, &head.headers),
            (answer.status, &answer.headers),
            "HEAD: {reason}"
        );
        assert!(head.body.is_empty(), "HEAD has no body: {reason}");
    }
}

#[test]
fn retry_after_is_whole_seconds_and_enough() {
    let login = policy("login", log(5, MINUTE));
    for (wait_us, expected, reason) in [
        (1, "1", "never 0"),
        (0, "1", "even with nothing to wait for"),
        (5_000, "1", "the last 5 ms of a window"),
        (SECOND, "1", "exactly one"),
        (SECOND + 1, "2", "rounded up"),
        (59_000_001, "60", "rounded up"),
        (86_400 * SECOND, "86400", "the true long wait"),
    ] {
        let rulings = [ruling(&login, denied(0, Some(wait_us), MINUTE))];
        let answer = refuse(&settings(), &[], Refusal::Quota, &rulings, asked());
        assert_eq!(
            field(&answer.headers, "retry-after"),
            Some(expected),
            "{reason}"
        );
    }
}

#[test]
fn jitter_only_adds_and_at_most_its_percentage_or_thirty_seconds() {
    let login = policy("login", log(5, MINUTE));
    let jittery = Settings::default();
    for (wait_s, most, reason) in [
        (5, 5, "a tenth of 5 s is no whole second"),
        (40, 44, "a tenth"),
        (36_000, 36_030, "half a minute"),
    ] {
        let rulings = [ruling(
            &login,
            denied(0, Some(wait_s * SECOND), wait_s * SECOND),
        )];
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..500 {
            let answer = refuse(&jittery, &[], Refusal::Quota, &rulings, asked());
            let seconds: u64 = field(&answer.headers, "retry-after")
                .unwrap()
                .parse()
                .unwrap();
            assert!((wait_s..=most).contains(&seconds), "{reason}: {seconds}");
            let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!(body["retry_after_seconds"], seconds, "one truth");
            seen.insert(seconds);
        }
        assert!(seen.len() > 1 || most == wait_s, "{reason}");
    }
}

#[test]
fn the_longest_wait_of_those_that_deny_counts_and_all_of_them_are_named() {
    let rejects = [
        Reject::default(),
        Reject {
            status: StatusCode::SERVICE_UNAVAILABLE,
            ..Reject::default()
        },
    ];
    let edge = policy("edge", bucket(50, SECOND, 100));
    let login = policy("login", log(5, MINUTE));
    let daily = Policy {
        reject: 1,
        ..policy("daily", fixed(100, 1_440 * MINUTE))
    };
    let watched = policy("watched", log(1, MINUTE));
    let mut shadow = ruling(&watched, denied(0, Some(50_000 * SECOND), MINUTE));
    shadow.check.shadow = true;
    let rulings = [
        shadow,
        ruling(&login, denied(0, Some(12 * SECOND), MINUTE)),
        ruling(&edge, allowed(99, 20_000)),
        ruling(&daily, denied(0, Some(7_200 * SECOND), 7_200 * SECOND)),
    ];
    let answer = refuse(&settings(), &rejects, Refusal::Quota, &rulings, asked());
    assert_eq!(
        answer.status,
        StatusCode::SERVICE_UNAVAILABLE,
        "its own way to put it"
    );
    assert_eq!(field(&answer.headers, "retry-after"), Some("7200"));
    let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!(
        body["violated-policies"],
        serde_json::json!(["login", "daily"])
    );
    assert_eq!(
        body["detail"],
        "Policy daily allows 100 per 1 d. Try again in 7200 seconds."
    );
    assert_eq!(body["status"], 503, "as on the wire");
    let limits = field(&answer.headers, "ratelimit").unwrap();
    assert_eq!(
        limits, r#""daily";r=0;t=7200, "login";r=0;t=12, "edge";r=99;t=2"#,
        "what bit comes first; what only watches is not told of"
    );

    let never = [rulings[1], ruling(&daily, denied(100, None, 0))];
    let answer = refuse(&settings(), &rejects, Refusal::Quota, &never, asked());
    assert_eq!(
        field(&answer.headers, "retry-after"),
        None,
        "one that never passes outlasts all"
    );
}

#[test]
fn retry_after_is_never_before_a_reset_that_stands_beside_it() {
    let reports = policy("reports", bucket(100, 60 * MINUTE, 100));
    let daily = policy("daily", fixed(10_000, 1_440 * MINUTE));
    // 16 left, 20 asked for: 4 units are earned in 144 s, while 16 take 576 s.
    let mut denying = ruling(&reports, denied(16, Some(144 * SECOND), 84 * 36 * SECOND));
    denying.check.cost = Cost::new(20);
    let rulings = [ruling(&daily, allowed(9_000, 40_000 * SECOND)), denying];
    let answer = refuse(&settings(), &[], Refusal::Quota, &rulings, asked());
    assert_eq!(field(&answer.headers, "retry-after"), Some("144"));
    assert_eq!(
        field(&answer.headers, "ratelimit"),
        Some(r#""reports";r=16;t=144, "daily";r=4629"#),
        "a later moment is left out rather than belied"
    );
}

#[test]
fn each_kind_says_its_quota_and_when_there_is_more() {
    for (rule, decision, policies, limits, reason) in [
        (
            fixed(5, MINUTE),
            allowed(3, 30 * SECOND),
            "q=5;w=60",
            "r=2;t=30",
            "half a window left: at most ten times the pace of it",
        ),
        (
            fixed(10_000, 1_000 * SECOND),
            allowed(10_000, 10 * SECOND),
            "q=10000;w=1000",
            "r=1000;t=10",
            "the draft's own trap",
        ),
        (
            fixed(5, MINUTE),
            allowed(5, SECOND),
            "q=5;w=60",
            "r=1;t=1",
            "never none of some",
        ),
        (
            fixed(5, MINUTE),
            denied(0, Some(SECOND), SECOND),
            "q=5;w=60",
            "r=0;t=1",
            "refused at second 59",
        ),
        (
            fixed(5, MINUTE),
            denied(0, Some(1), 1),
            "q=5;w=60",
            "r=0;t=1",
            "rounded up",
        ),
        (
            fixed(5, MINUTE),
            allowed(5, 0),
            "q=5;w=60",
            "r=5",
            "nothing used",
        ),
        (
            bucket(50, SECOND, 100),
            allowed(99, 20_000),
            "q=50;w=1;tollgate-burst=100",
            "r=99;t=2",
            "what is left, at the sustained rate",
        ),
        (
            bucket(100, MINUTE, 100),
            allowed(87, 7_800_000),
            "q=100;w=60",
            "r=87;t=53",
            "the same",
        ),
        (
            bucket(100, MINUTE, 100),
            allowed(100, 0),
            "q=100;w=60",
            "r=100",
            "full",
        ),
        (
            bucket(5, MINUTE, 5),
            allowed(0, 60 * SECOND),
            "q=5;w=60",
            "r=0;t=12",
            "empty: the next unit",
        ),
        (
            bucket(5, MINUTE, 5),
            denied(0, Some(SECOND), 49 * SECOND),
            "q=5;w=60",
            "r=0;t=1",
            "nearly earned",
        ),
        (
            bucket(3, SECOND, 3),
            allowed(0, 2 * SECOND),
            "q=3;w=1",
            "r=0;t=2",
            "in debt: 1.333 s, rounded once and up",
        ),
        (
            bucket(3, 3 * SECOND, 3),
            denied(0, Some(SECOND), 3 * SECOND),
            "q=3;w=3",
            "r=0;t=1",
            "exactly a second is one",
        ),
        (
            bucket(1, SECOND, 5),
            allowed(4, SECOND),
            "q=1;w=1;tollgate-burst=5",
            "r=4;t=4",
            "burst above limit",
        ),
        (
            bucket(100, MINUTE, 1),
            denied(0, Some(600_000), 600_000),
            "q=100;w=60;tollgate-burst=1",
            "r=0;t=1",
            "burst below limit",
        ),
        (
            leaky(10, SECOND, 30),
            allowed(12, 1_800_000),
            "q=10;w=1;tollgate-burst=30",
            "r=12",
            "places in the queue",
        ),
        (
            leaky(1, 10 * SECOND, 2),
            denied(0, Some(4 * SECOND), 14 * SECOND),
            "q=1;w=10;tollgate-burst=2",
            "r=0;t=4",
            "no place: until one is drained",
        ),
        (
            counter(10, MINUTE),
            denied(0, Some(3_100_000), 70 * SECOND),
            "q=10;w=60",
            "r=0;t=4",
            "until one fits",
        ),
        (
            counter(10, MINUTE),
            allowed(4, 70 * SECOND),
            "q=10;w=60",
            "r=4;t=11",
            "until this window begins to pass",
        ),
        (
            counter(10, MINUTE),
            allowed(4, 20 * SECOND),
            "q=10;w=60",
            "r=4;t=20",
            "until the last one has passed",
        ),
        (
            counter(10, MINUTE),
            allowed(4, 60 * SECOND),
            "q=10;w=60",
            "r=4;t=60",
            "nothing in this window yet, and it has just begun",
        ),
        (
            log(5, MINUTE),
            denied(0, Some(12_400_000), 40 * SECOND),
            "q=5;w=60",
            "r=0;t=13",
            "until one fits",
        ),
        (
            log(5, MINUTE),
            allowed(2, 60 * SECOND),
            "q=5;w=60",
            "r=2;t=60",
            "surely by then",
        ),
        (
            fixed(10, 250_000),
            allowed(9, 0),
            "q=10",
            "r=9",
            "a window under a second is none of whole seconds",
        ),
        (
            fixed(10, 1_500_000),
            allowed(9, 0),
            "q=10",
            "r=9",
            "nor is this",
        ),
    ] {
        let policy = policy("p", rule);
        let expected = (format!("\"p\";{policies}"), format!("\"p\";{limits}"));
        let found = told(&settings(), &[ruling(&policy, decision)]);
        assert_eq!(found, expected, "{reason}");
    }
}

#[test]
fn the_vectors_of_the_draft_come_out() {
    let edge = policy("edge", bucket(50, SECOND, 100));
    let products = policy("products-key", bucket(100, MINUTE, 100));
    let rulings = [
        ruling(&edge, allowed(99, 20_000)),
        ruling(&products, allowed(87, 7_800_000)),
    ];
    let (policies, limits) = told(&settings(), &rulings);
    assert_eq!(
        policies,
        r#""edge";q=50;w=1;tollgate-burst=100, "products-key";q=100;w=60"#
    );
    assert_eq!(limits, r#""products-key";r=87;t=53, "edge";r=99;t=2"#);

    let keyed = Settings {
        partition_key: true,
        ..settings()
    };
    let (policies, limits) = told(&keyed, &rulings);
    let keys: Vec<_> = [&policies, &limits]
        .iter()
        .flat_map(|value| Parser::new(value.as_str()).parse::<List>().unwrap())
        .map(|entry| match entry {
            ListEntry::Item(item) => (
                item.bare_item.as_string().unwrap().as_str().to_owned(),
                item.params["pk"].as_byte_sequence().unwrap().to_vec(),
            ),
            ListEntry::InnerList(_) => panic!("an inner list"),
        })
        .collect();
    assert!(
        keys.iter()
            .all(|(_, key)| key.len() == 16 && *key != [7; 16]),
        "not the store's key"
    );
    assert_eq!(
        (&keys[0], &keys[1]),
        (&keys[3], &keys[2]),
        "one key for one policy in both fields"
    );
    assert_ne!(keys[0].1, keys[1].1, "another one for another policy");
}

#[test]
fn only_what_may_be_told_is_told_and_no_more_than_three() {
    let plain = policy("plain", log(5, MINUTE));
    let hidden = Policy {
        advertise: false,
        ..policy("hidden", log(5, MINUTE))
    };
    let tokens = Policy {
        unit: Unit::Custom("tokens".into()),
        ..policy("tokens", log(5, MINUTE))
    };
    let bytes = Policy {
        unit: Unit::ContentBytes,
        ..policy("bytes", log(5_000, MINUTE))
    };
    let now = allowed(0, MINUTE);
    let mut watched = ruling(&plain, now);
    watched.check.shadow = true;
    for (rulings, policies, reason) in [
        (vec![ruling(&hidden, now)], "", "not advertised"),
        (
            vec![ruling(&tokens, now)],
            "",
            "a unit of the operator's own",
        ),
        (vec![watched], "", "a shadow"),
        (
            vec![ruling(&bytes, now)],
            r#""bytes";q=5000;qu="content-bytes";w=60"#,
            "a registered unit",
        ),
        (
            vec![ruling(&plain, now), ruling(&plain, now)],
            r#""plain";q=5;w=60"#,
            "twice on the route",
        ),
        (vec![], "", "nothing checked"),
    ] {
        assert_eq!(told(&settings(), &rulings).0, policies, "{reason}");
    }
    let many: Vec<_> = (0..5)
        .map(|n| policy(&format!("p{n}"), log(10, MINUTE)))
        .collect();
    let left = [9, 1, 5, 0, 7];
    let rulings: Vec<_> = many
        .iter()
        .zip(left)
        .map(|(p, left)| ruling(p, allowed(left, MINUTE)))
        .collect();
    let (policies, limits) = told(&settings(), &rulings);
    assert_eq!(
        limits, r#""p3";r=0;t=60, "p1";r=1;t=60, "p2";r=5;t=60"#,
        "the tightest"
    );
    assert_eq!(
        policies, r#""p1";q=10;w=60, "p2";q=10;w=60, "p3";q=10;w=60"#,
        "in the route's order"
    );
}

#[test]
fn a_fallback_tells_the_published_limit_and_the_share_that_is_left() {
    let shared = Policy {
        share: bucket(20, MINUTE, 20),
        ..policy("shared", bucket(60, MINUTE, 60))
    };
    let mut fallback = ruling(&shared, allowed(4, 48 * SECOND));
    fallback.check.rule = &shared.share;
    fallback.source = Source::Fallback;
    let expected = (
        r#""shared";q=60;w=60"#.to_owned(),
        r#""shared";r=4;t=12"#.to_owned(),
    );
    assert_eq!(told(&settings(), &[fallback]), expected);
}

#[test]
fn numbers_beyond_fifteen_digits_are_cut() {
    let huge = policy("huge", bucket(1, 10_000_000_000_000_000, 1_000_000_000_000));
    let (_, limits) = told(
        &settings(),
        &[ruling(&huge, allowed(999_999_999_999, u64::MAX))],
    );
    assert_eq!(limits, r#""huge";r=999999999999;t=999999999999999"#);
}

#[test]
fn when_decides_on_which_answers_the_fields_stand() {
    let login = policy("login", log(10, MINUTE));
    let (far, near) = (allowed(3, MINUTE), allowed(2, MINUTE));
    let over = denied(0, Some(SECOND), MINUTE);
    for (when, on_far, on_near, on_denial) in [
        (When::Always, true, true, true),
        (When::NearLimit, false, true, true),
        (When::Reject, false, false, true),
    ] {
        let settings = Settings {
            when,
            legacy: Legacy::Seconds,
            ..settings()
        };
        for (decision, expected) in [(far, on_far), (near, on_near)] {
            let mut headers = HeaderMap::new();
            annotate(
                &settings,
                &[ruling(&login, decision)],
                StatusCode::OK,
                0,
                &mut headers,
            );
            assert_eq!(
                headers.len(),
                if expected { 5 } else { 0 },
                "{when:?} {decision:?}"
            );
        }
        let answer = refuse(
            &settings,
            &[],
            Refusal::Quota,
            &[ruling(&login, over)],
            asked(),
        );
        assert_eq!(
            answer.headers.contains_key("ratelimit"),
            on_denial,
            "{when:?}"
        );
    }
    let off = Settings {
        ratelimit: false,
        ..settings()
    };
    let answer = refuse(&off, &[], Refusal::Quota, &[ruling(&login, over)], asked());
    assert!(
        !answer.headers.contains_key("ratelimit") && answer.headers.contains_key("retry-after")
    );
}

#[test]
fn a_redirect_says_the_policy_but_not_what_is_left() {
    let login = policy("login", log(10, MINUTE));
    let rulings = [ruling(&login, allowed(0, MINUTE))];
    for (status, policies, limits) in [
        (301, true, false),
        (304, true, false),
        (103, false, false),
        (404, true, true),
    ] {
        let mut headers = HeaderMap::new();
        let status = StatusCode::from_u16(status).unwrap();
        annotate(&settings(), &rulings, status, 0, &mut headers);
        assert_eq!(
            headers.contains_key("ratelimit-policy"),
            policies,
            "{status}"
        );
        assert_eq!(headers.contains_key("ratelimit"), limits, "{status}");
    }
}

fn annotated(
    settings: &Settings,
    status: u16,
    theirs: &[(&'static str, &str)],
) -> (bool, Vec<String>) {
    let login = policy("login", log(10, MINUTE));
    let rulings = [ruling(&login, allowed(0, 20 * SECOND))];
    annotated_by(settings, &rulings, status, theirs)
}

fn annotated_by(
    settings: &Settings,
    rulings: &[Ruling<'_>],
    status: u16,
    theirs: &[(&'static str, &str)],
) -> (bool, Vec<String>) {
    let mut headers = HeaderMap::new();
    for (name, value) in theirs {
        headers.append(*name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    let status = StatusCode::from_u16(status).unwrap();
    let malformed = annotate(settings, rulings, status, 1_800_000_000, &mut headers);
    let mut lines: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
        .collect();
    lines.sort();
    (malformed, lines)
}

#[test]
fn the_upstreams_fields_stay_byte_for_byte_and_ours_follow() {
    let ours = r#""login";r=0;t=20"#;
    let our_policy = r#""login";q=10;w=60"#;
    for (theirs, malformed, policies, limits, reason) in [
        (
            vec![],
            false,
            our_policy.to_owned(),
            ours.to_owned(),
            "none of theirs",
        ),
        (
            vec![
                ("ratelimit", r#""api";t=5;r=7 ,  "b";r=1"#),
                ("ratelimit-policy", r#""api";q=10;x="y""#),
            ],
            false,
            format!(r#""api";q=10;x="y", {our_policy}"#),
            format!(r#""api";t=5;r=7 ,  "b";r=1, {ours}"#),
            "not rewritten",
        ),
        (
            vec![("ratelimit", r#""a";r=7"#), ("ratelimit", r#""b";r=1"#)],
            false,
            our_policy.to_owned(),
            format!(r#""a";r=7, "b";r=1, {ours}"#),
            "several lines are one list",
        ),
        (
            vec![
                ("ratelimit", "limit=10, remaining=9, reset=3"),
                ("ratelimit-policy", "10;w=60"),
            ],
            true,
            format!("10;w=60, {our_policy}"),
            ours.to_owned(),
            "an older draft's shape is dropped where nobody could read it",
        ),
        (
            vec![("ratelimit", "\"\u{e9}\";r=1")],
            true,
            our_policy.to_owned(),
            ours.to_owned(),
            "bytes that are no ASCII",
        ),
        (
            vec![("ratelimit", "")],
            false,
            our_policy.to_owned(),
            ours.to_owned(),
            "an empty field",
        ),
        (
            vec![
                ("ratelimit-policy", r#""login";q=3;w=1"#),
                ("ratelimit", r#""login";r=2"#),
            ],
            false,
            r#""login";q=3;w=1, "tollgate-login";q=10;w=60"#.to_owned(),
            r#""login";r=2, "tollgate-login";r=0;t=20"#.to_owned(),
            "one name for two policies",
        ),
        (
            vec![(
                "ratelimit-policy",
                r#""login";q=3;w=1, "tollgate-login";q=9;w=1"#,
            )],
            false,
            r#""login";q=3;w=1, "tollgate-login";q=9;w=1, "tollgate-tollgate-login";q=10;w=60"#
                .to_owned(),
            r#""tollgate-tollgate-login";r=0;t=20"#.to_owned(),
            "behind another gateway of this kind; the name is one in both fields",
        ),
        (
            vec![("ratelimit-policy", r#""login";q=3;w=1;pk=:AQ==:"#)],
            false,
            format!(r#""login";q=3;w=1;pk=:AQ==:, {our_policy}"#),
            ours.to_owned(),
            "the same name of another partition is another item",
        ),
    ] {
        let (dropped, lines) = annotated(&settings(), 200, &theirs);
        let expected = [
            format!("ratelimit-policy: {policies}"),
            format!("ratelimit: {limits}"),
        ];
        assert_eq!(lines, expected, "{reason}");
        assert_eq!(dropped, malformed, "{reason}");
    }
}

#[test]
fn pass_and_replace_do_what_they_say() {
    let theirs = [
        ("ratelimit", r#""api";r=7"#),
        ("x-ratelimit-limit", "9"),
        ("x-ratelimit-reset", "3"),
    ];
    let with = |upstream_ratelimit| Settings {
        upstream_ratelimit,
        legacy: Legacy::Seconds,
        ..settings()
    };
    let (_, passed) = annotated(&with(UpstreamFields::Pass), 200, &theirs);
    assert_eq!(
        passed,
        [
            r#"ratelimit: "api";r=7"#,
            "x-ratelimit-limit: 9",
            "x-ratelimit-reset: 3"
        ]
    );
    let (_, replaced) = annotated(&with(UpstreamFields::Replace), 200, &theirs);
    assert_eq!(
        replaced,
        [
            r#"ratelimit-policy: "login";q=10;w=60"#,
            r#"ratelimit: "login";r=0;t=20"#,
            "x-ratelimit-limit: 10",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 20",
        ]
    );
    let off = Settings {
        ratelimit: false,
        upstream_ratelimit: UpstreamFields::Replace,
        ..settings()
    };
    let (dropped, untouched) = annotated(&off, 200, &[("ratelimit", "no list (")]);
    assert_eq!(
        (dropped, untouched),
        (false, vec!["ratelimit: no list (".to_owned()]),
        "off is off"
    );
}

#[test]
fn the_legacy_triple_is_never_mixed() {
    let seconds = Settings {
        ratelimit: false,
        legacy: Legacy::Seconds,
        ..settings()
    };
    let epoch = Settings {
        legacy: Legacy::Epoch,
        ..seconds
    };
    let login = policy("login", log(10, MINUTE));
    let tokens = Policy {
        unit: Unit::ContentBytes,
        ..policy("bytes", log(10, MINUTE))
    };
    let spent = [
        ruling(&tokens, allowed(0, MINUTE)),
        ruling(&login, allowed(0, 20 * SECOND)),
    ];
    let left = [ruling(&login, allowed(4, 20 * SECOND))];
    let theirs = [("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", "59")];
    let triple = |limit, remaining, reset| {
        let lines = [("limit", limit), ("remaining", remaining), ("reset", reset)];
        lines
            .map(|(name, value)| format!("x-ratelimit-{name}: {value}"))
            .to_vec()
    };
    assert_eq!(
        annotated_by(&seconds, &spent, 200, &[]).1,
        triple("10", "0", "20"),
        "requests only"
    );
    assert_eq!(
        annotated_by(&epoch, &spent, 200, &[]).1,
        triple("10", "0", "1800000020")
    );
    assert_eq!(
        annotated_by(&seconds, &spent, 200, &theirs).1,
        triple("10", "0", "20"),
        "ours stops the client"
    );
    assert_eq!(
        annotated_by(&seconds, &left, 200, &theirs).1,
        ["x-ratelimit-limit: 60", "x-ratelimit-remaining: 59"],
        "theirs stay"
    );
}

#[test]
fn an_upstreams_refusal_keeps_its_retry_after_unless_ours_is_longer() {
    let off = Settings {
        ratelimit: false,
        ..settings()
    };
    for (status, theirs, expected, reason) in [
        (429, "5", "retry-after: 20", "ours would refuse until then"),
        (503, "60", "retry-after: 60", "theirs is longer"),
        (
            429,
            "Sun, 06 Nov 2094 08:49:37 GMT",
            "retry-after: Sun, 06 Nov 2094 08:49:37 GMT",
            "a date is left",
        ),
        (200, "5", "retry-after: 5", "no refusal"),
    ] {
        assert_eq!(
            annotated(&off, status, &[("retry-after", theirs)]).1,
            [expected],
            "{reason}"
        );
    }
    assert_eq!(
        annotated(&off, 429, &[]).1,
        Vec::<String>::new(),
        "none stays none"
    );
}

#[test]
fn scripts_that_may_read_the_answer_may_read_what_we_added() {
    let cors = |exposed: Option<&'static str>| {
        let mut theirs = vec![("access-control-allow-origin", "https://shop.example")];
        theirs.extend(exposed.map(|names| ("access-control-expose-headers", names)));
        annotated(&settings(), 200, &theirs)
            .1
            .into_iter()
            .find(|line| line.starts_with("access-control-expose"))
    };
    let line = |names: &str| Some(format!("access-control-expose-headers: {names}"));
    assert_eq!(cors(None), line("RateLimit, RateLimit-Policy"));
    assert_eq!(
        cors(Some("ETag, ratelimit")),
        line("ETag, ratelimit, RateLimit-Policy")
    );
    assert_eq!(cors(Some("*")), line("*"));
    assert!(
        !annotated(&settings(), 200, &[])
            .1
            .iter()
            .any(|line| line.starts_with("access"))
    );
}

#[test]
fn a_denial_is_readable_by_the_scripts_of_listed_origins() {
    let login = policy("login", log(5, MINUTE));
    let rulings = [ruling(&login, denied(0, Some(SECOND), MINUTE))];
    for (cors, origin, expected, vary, reason) in [
        (
            &["https://shop.example"][..],
            Some("https://shop.example"),
            Some("https://shop.example"),
            true,
            "listed",
        ),
        (
            &["https://shop.example"],
            Some("https://evil.example"),
            None,
            false,
            "not listed",
        ),
        (
            &["https://shop.example"],
            Some("https://shop.example.evil"),
            None,
            false,
            "listed is all of it",
        ),
        (
            &["https://shop.example"],
            None,
            None,
            false,
            "no script asks",
        ),
        (
            &["*"],
            Some("https://any.example"),
            Some("*"),
            false,
            "everybody",
        ),
        (&[], Some("https://shop.example"), None, false, "nobody"),
        (
            &["null"],
            Some("null"),
            Some("null"),
            true,
            "only if listed",
        ),
    ] {
        let reject = Reject {
            cors: cors.iter().map(|it| (*it).into()).collect(),
            ..Reject::default()
        };
        let answer = refuse(
            &settings(),
            &[reject],
            Refusal::Quota,
            &rulings,
            Asked { origin, ..asked() },
        );
        assert_eq!(
            field(&answer.headers, "access-control-allow-origin"),
            expected,
            "{reason}"
        );
        assert_eq!(
            field(&answer.headers, "vary"),
            vary.then_some("Origin"),
            "{reason}"
        );
        let exposed = expected.map(|_| "Retry-After, RateLimit, RateLimit-Policy, X-Request-Id");
        assert_eq!(
            field(&answer.headers, "access-control-expose-headers"),
            exposed,
            "{reason}"
        );
    }
}

#[test]
fn a_page_is_sent_only_to_who_would_rather_read_one() {
    let login = policy("login", log(5, MINUTE));
    let rulings = [ruling(&login, denied(0, Some(SECOND), MINUTE))];
    let (json, html) = ("application/problem+json", "text/html; charset=utf-8");
    for (accept, expected, reason) in [
        (None, json, "no wish"),
        (Some(""), json, "an empty wish"),
        (Some("*/*"), json, "anything"),
        (Some("application/json"), json, "JSON"),
        (
            Some("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"),
            html,
            "a browser",
        ),
        (Some("text/html, application/json"), json, "equally welcome"),
        (
            Some("text/html;q=0.5, application/json;q=0.9"),
            json,
            "JSON rather",
        ),
        (
            Some("text/html;q=0.9, application/problem+json;q=0.5"),
            html,
            "a page rather",
        ),
        (Some("TEXT/HTML"), html, "no case"),
        (Some("text/*"), html, "a range"),
        (Some("text/plain"), json, "neither"),
        (
            Some("*/*;q=0.9, application/*;q=0.1, text/html;q=0.5"),
            html,
            "the closest range counts, not the kindest",
        ),
        (Some("text/html;q=0"), json, "not a page"),
        (Some(";;q=,/,text/"), json, "nonsense"),
    ] {
        let answer = refuse(
            &settings(),
            &[],
            Refusal::Quota,
            &rulings,
            Asked { accept, ..asked() },
        );
        assert_eq!(
            field(&answer.headers, "content-type"),
            Some(expected),
            "{reason}"
        );
    }
}

#[test]
fn a_page_escapes_everything() {
    let title = Template::parse("<b>{policy}</b> & {request_id}", PLACEHOLDERS).unwrap();
    let reject = Reject {
        title,
        ..Reject::default()
    };
    let login = policy("login", log(5, MINUTE));
    let rulings = [ruling(&login, denied(0, Some(SECOND), MINUTE))];
    let request_id = "<script>'\"";
    let accept = Some("text/html");
    let answer = refuse(
        &settings(),
        &[reject],
        Refusal::Quota,
        &rulings,
        Asked {
            accept,
            request_id,
            ..asked()
        },
    );
    let body = String::from_utf8(answer.body.to_vec()).unwrap();
    assert_eq!(
        body,
        "<!doctype html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>429 &lt;b&gt;login&lt;/b&gt; &amp; &lt;script&gt;&#39;&quot;</title></head>\n\
         <body>\n<h1>&lt;b&gt;login&lt;/b&gt; &amp; &lt;script&gt;&#39;&quot;</h1>\n\
         <p>Policy login allows 5 per 1 min. Try again in 1 second.</p>\n<p><small>429 </small></p>\n</body>\n</html>\n"
    );
}

fn bodies(bodies: &[(&str, &str)]) -> [Reject; 1] {
    let bodies = bodies.iter().map(|(media_type, text)| {
        let template = Template::parse(text, PLACEHOLDERS).unwrap();
        (Box::from(*media_type), template)
    });
    [Reject {
        bodies: bodies.collect(),
        ..Reject::default()
    }]
}

#[test]
fn the_operators_bodies_stand_instead_of_ours() {
    let login = policy("login", log(5, MINUTE));
    let over = [ruling(&login, denied(0, Some(9 * SECOND), MINUTE))];
    let never = [ruling(&login, denied(5, None, 0))];
    let json = (
        "application/json",
        r#"{{"policy":"{policy}","id":"{request_id}","wait":{retry_after}}}"#,
    );
    let xml = (
        "application/xml",
        "<e id=\"{request_id}\">{limit} per {window}</e>",
    );
    let text = ("text/plain", "wait {retry_after}, {request_id}");
    for (own, rulings, accept, kind, body, reason) in [
        (
            &[json][..],
            &over,
            None,
            "application/json",
            r#"{"policy":"login","id":"a\"\\<&","wait":9}"#,
            "escaped for JSON",
        ),
        (
            &[json],
            &never,
            None,
            "application/json",
            r#"{"policy":"login","id":"a\"\\<&","wait":null}"#,
            "JSON's word for none",
        ),
        (
            &[xml],
            &over,
            Some("application/xml"),
            "application/xml",
            "<e id=\"a&quot;\\&lt;&amp;\">5 per 1 min</e>",
            "escaped for XML",
        ),
        (
            &[text],
            &over,
            None,
            "text/plain",
            "wait 9, a\"\\<&",
            "as it is",
        ),
        (
            &[text],
            &never,
            None,
            "text/plain",
            "wait never, a\"\\<&",
            "no number",
        ),
        (
            &[xml, json],
            &over,
            Some("application/json"),
            "application/json",
            r#"{"policy":"login","id":"a\"\\<&","wait":9}"#,
            "what is asked for",
        ),
        (
            &[text, json],
            &over,
            Some("*/*"),
            "text/plain",
            "wait 9, a\"\\<&",
            "the first of equals",
        ),
    ] {
        let asked = Asked {
            accept,
            request_id: "a\"\\<&",
            ..asked()
        };
        let answer = refuse(&settings(), &bodies(own), Refusal::Quota, rulings, asked);
        assert_eq!(
            field(&answer.headers, "content-type"),
            Some(kind),
            "{reason}"
        );
        assert_eq!(std::str::from_utf8(&answer.body), Ok(body), "{reason}");
        assert_eq!(
            field(&answer.headers, "content-length"),
            Some(body.len().to_string().as_str())
        );
    }
    for (own, accept, kind, reason) in [
        (
            text,
            "application/json",
            "application/problem+json",
            "ours where none of theirs is wanted",
        ),
        (
            text,
            "text/html",
            "text/html; charset=utf-8",
            "a page where one is wanted",
        ),
        (
            ("text/html", "<p>no</p>"),
            "*/*",
            "application/problem+json",
            "a page is wanted more, or not sent",
        ),
        (
            ("text/html", "<p>no</p>"),
            "text/html",
            "text/html",
            "their page",
        ),
    ] {
        let asked = Asked {
            accept: Some(accept),
            ..asked()
        };
        let answer = refuse(&settings(), &bodies(&[own]), Refusal::Quota, &over, asked);
        assert_eq!(
            field(&answer.headers, "content-type"),
            Some(kind),
            "{reason}"
        );
    }
}

#[test]
fn a_reject_says_it_in_its_own_words() {
    let parse = |text| Template::parse(text, PLACEHOLDERS).unwrap();
    let login = Policy {
        reject: 1,
        ..policy("login", log(5, MINUTE))
    };
    let rejects = [
        Reject::default(),
        Reject {
            status: StatusCode::FORBIDDEN,
            title: parse("Too many sign-in attempts"),
            detail: parse("Wait {retry_after} seconds, then try again."),
            problem_type: "https://shop.example/problems/sign-in".into(),
            headers: vec![
                (
                    HeaderName::from_static("x-why"),
                    HeaderValue::from_static("login"),
                ),
                (
                    HeaderName::from_static("cache-control"),
                    HeaderValue::from_static("private"),
                ),
                (
                    HeaderName::from_static("content-length"),
                    HeaderValue::from_static("1"),
                ),
            ],
            ..Reject::default()
        },
    ];
    let rulings = [ruling(&login, denied(0, Some(9 * SECOND), MINUTE))];
    let request_id = "not-a-uuid";
    let answer = refuse(
        &settings(),
        &rejects,
        Refusal::Quota,
        &rulings,
        Asked {
            request_id,
            ..asked()
        },
    );
    let body = r#"{"type":"https://shop.example/problems/sign-in","title":"Too many sign-in attempts","status":403,"detail":"Wait 9 seconds, then try again.","violated-policies":["login"],"retry_after_seconds":9}"#;
    let expected = format!(
        "403\ncache-control: no-store\ncontent-length: {}\ncontent-type: application/problem+json\nratelimit-policy: \"login\";q=5;w=60\nratelimit: \"login\";r=0;t=9\nretry-after: 9\nx-request-id: not-a-uuid\nx-why: login\n\n{body}",
        body.len()
    );
    assert_eq!(shown(&answer), expected);
}

#[test]
fn a_limit_that_is_not_told_of_does_not_show_in_the_detail() {
    let hidden = Policy {
        advertise: false,
        ..policy("provider", log(777, MINUTE))
    };
    let rulings = [ruling(&hidden, denied(0, Some(9 * SECOND), MINUTE))];
    let answer = refuse(&settings(), &[], Refusal::Quota, &rulings, asked());
    let body = String::from_utf8(answer.body.to_vec()).unwrap();
    assert!(
        body.contains("Policy provider is over its limit. Try again in 9 seconds."),
        "{body}"
    );
    assert!(!body.contains("777"), "{body}");
    assert!(!answer.headers.contains_key("ratelimit"));
}

#[test]
fn a_template_is_read_or_its_unknown_placeholder_named() {
    for (text, expected, reason) in [
        ("{policy}", Ok(()), "known"),
        ("{{policy}}", Ok(()), "no placeholder"),
        ("{{\"a\":{limit}}}", Ok(()), "JSON"),
        ("a } b", Ok(()), "a closing brace alone"),
        ("{polcy}", Err("polcy"), "misspelt"),
        ("{}", Err(""), "no name"),
        ("{ policy }", Err(" policy "), "spaces are part of a name"),
        ("{\"a\":1}", Err("\"a\":1"), "JSON with single braces"),
        ("{policy", Err(""), "never closed"),
    ] {
        let found = Template::parse(text, PLACEHOLDERS).map(drop);
        let expected = match (expected, reason) {
            (Err(_), "never closed") => Ok(()),
            (Err(name), _) => Err(UnknownPlaceholder {
                name: name.to_owned(),
            }),
            (Ok(()), _) => Ok(()),
        };
        assert_eq!(found, expected, "{reason}");
    }
}

#[test]
fn a_window_is_said_in_its_largest_unit() {
    for (window_us, expected) in [
        (250_000, "250 ms"),
        (1_500_000, "1500 ms"),
        (10 * SECOND, "10 s"),
        (90 * SECOND, "90 s"),
        (MINUTE, "1 min"),
        (15 * MINUTE, "15 min"),
        (60 * MINUTE, "1 h"),
        (1_440 * MINUTE, "1 d"),
        (7, "7 µs"),
    ] {
        assert_eq!(words::window(window_us), expected);
    }
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let window = prop_oneof![1_u64..=5_000_000, Just(MINUTE), Just(86_400 * SECOND)];
    (0_u8..5, 1_u64..=1_000_000, window, 1_u64..=1_000_000).prop_map(
        |(kind, count, window, burst)| match kind {
            0 => fixed(count, window),
            1 => log(count, window),
            2 => counter(count, window),
            3 => bucket(count, window, burst),
            _ => leaky(count, window, burst),
        },
    )
}

proptest! {
    #[test]
    fn no_bytes_of_an_upstream_make_it_stumble_or_spoil_ours(
        lines in proptest::collection::vec(
            prop_oneof!["[ -~]{0,30}".prop_map(String::into_bytes), "(\"[a-z]{1,5}\";r=[0-9],? ?){0,3}".prop_map(String::into_bytes), proptest::collection::vec(any::<u8>(), 0..40)],
            0..4,
        ),
        exposed in "[ -~]{0,20}",
    ) {
        let mut headers = HeaderMap::new();
        headers.insert("access-control-allow-origin", HeaderValue::from_static("*"));
        headers.insert("access-control-expose-headers", HeaderValue::from_str(&exposed).unwrap());
        for line in &lines {
            if let Ok(value) = HeaderValue::from_bytes(line) {
                headers.append("ratelimit", value.clone());
                headers.append("ratelimit-policy", value.clone());
                headers.append("retry-after", value);
            }
        }
        let login = policy("login", log(10, MINUTE));
        annotate(&settings(), &[ruling(&login, allowed(0, MINUTE))], StatusCode::TOO_MANY_REQUESTS, 0, &mut headers);
        for name in ["ratelimit", "ratelimit-policy"] {
            let value = headers.get(name).unwrap();
            let list: List = Parser::new(value.as_bytes()).parse().unwrap();
            prop_assert!(list.iter().any(|entry| matches!(entry, ListEntry::Item(item) if item.bare_item.as_string().is_some_and(|s| s.as_str().ends_with("login")))));
        }
    }

    #[test]
    fn no_answer_invites_more_than_the_policy_lets_through(
        rule in any_rule(), remaining: u64, reset_after_us in 0..=(1_u64 << 53), retry in proptest::option::of(0..=(1_u64 << 53)), denies: bool,
    ) {
        let policy = policy("p", rule);
        let remaining = remaining % policy.rule.capacity().saturating_add(1);
        let decision = if denies { denied(remaining, retry, reset_after_us) } else { allowed(remaining, reset_after_us) };
        let rulings = [ruling(&policy, decision)];
        let answer = refuse(&Settings::default(), &[], Refusal::Quota, &rulings, asked());
        let told = members(&answer.headers, "ratelimit");
        let retry_after = field(&answer.headers, "retry-after").map(|s| s.parse::<i64>().unwrap());
        for (name, value) in &told[0].1 {
            prop_assert!(*value >= 0);
            if name == "t" {
                prop_assert!(*value >= 1);
                if denies && let Some(retry_after) = retry_after {
                    prop_assert!(*value <= retry_after);
                }
            } else {
                prop_assert!(u64::try_from(*value).unwrap() <= remaining);
            }
        }
        prop_assert_eq!(members(&answer.headers, "ratelimit-policy").len(), 1);
        prop_assert!(serde_json::from_slice::<serde_json::Value>(&answer.body).is_ok());
    }

    #[test]
    fn no_wish_makes_it_stumble(accept in any::<String>(), origin in any::<String>(), request_id in any::<String>()) {
        let login = policy("login", log(5, MINUTE));
        let rulings = [ruling(&login, denied(0, Some(SECOND), MINUTE))];
        let asked = Asked { head: false, accept: Some(&accept), origin: Some(&origin), request_id: &request_id, now_epoch_s: u64::MAX };
        let reject = Reject { cors: vec![origin.clone().into()], ..Reject::default() };
        let settings = Settings { legacy: Legacy::Epoch, ..settings() };
        let answer = refuse(&settings, &[reject], Refusal::Quota, &rulings, asked);
        prop_assert!(!answer.body.is_empty());
        let _ = Template::parse(&accept, PLACEHOLDERS);
    }
}
