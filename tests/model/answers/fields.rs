//! What the fields say of each kind of policy.

use super::*;

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
        (
            slots(2),
            allowed(1, MINUTE),
            "q=2;qu=\"concurrent-requests\"",
            "r=1",
            "slots: no window, and nobody knows when",
        ),
        (
            slots(2),
            denied(0, Some(SECOND), MINUTE),
            "q=2;qu=\"concurrent-requests\"",
            "r=0",
            "none is free",
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
    let shared = policy("shared", bucket(60, MINUTE, 60));
    let share = bucket(20, MINUTE, 20);
    let mut fallback = ruling(&shared, allowed(4, 48 * SECOND));
    fallback.check.rule = &share;
    fallback.source = Source::Fallback;
    let expected = (
        r#""shared";q=60;w=60"#.to_owned(),
        r#""shared";r=4;t=12"#.to_owned(),
    );
    assert_eq!(told(&settings(), &[fallback]), expected);
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
