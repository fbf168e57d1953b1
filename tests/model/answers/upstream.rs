//! Our fields beside the upstream's.

use super::*;

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
    let before = headers.clone();
    let malformed = annotate(settings, rulings, status, 1_800_000_000, &mut headers);
    // The proxy hands over and takes back these fields alone.
    for name in headers.keys().chain(before.keys()) {
        let changed = !headers.get_all(name).iter().eq(before.get_all(name).iter());
        assert!(!changed || FIELDS.contains(name), "{name} is not in FIELDS");
    }
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
fn a_name_that_gives_way_to_the_upstreams_takes_none_of_ours() {
    let (login, ours) = (
        policy("login", log(10, MINUTE)),
        policy("tollgate-login", log(9, MINUTE)),
    );
    let rulings = [
        ruling(&login, allowed(0, 20 * SECOND)),
        ruling(&ours, allowed(1, 20 * SECOND)),
    ];
    for (theirs, sent, reason) in [
        (
            r#""login""#,
            [r#""tollgate-tollgate-login""#, r#""tollgate-login""#],
            "ours stays",
        ),
        (
            r#""login", "tollgate-login""#,
            [
                r#""tollgate-tollgate-login""#,
                r#""tollgate-tollgate-tollgate-login""#,
            ],
            "both give way",
        ),
    ] {
        let (_, lines) = annotated_by(&settings(), &rulings, 200, &[("ratelimit", theirs)]);
        let [first, second] = sent;
        let limits = format!("ratelimit: {theirs}, {first};r=0;t=20, {second};r=1;t=20");
        let policies = format!("ratelimit-policy: {first};q=10;w=60, {second};q=9;w=60");
        assert_eq!(lines, [policies, limits], "{reason}");
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
