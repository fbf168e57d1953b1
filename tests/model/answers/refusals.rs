//! Every refusal as bytes, and the words that operators choose.

use super::*;

#[test]
fn who_is_turned_away_is_told_why_and_comes_back_when_others_do_not() {
    let rejects = [
        Reject::default(),
        Reject {
            cors: vec!["https://shop.example".into()],
            ..Reject::default()
        },
    ];
    let asked = Asked {
        origin: Some("https://shop.example"),
        ..asked()
    };
    let mut waits = BTreeSet::new();
    for _ in 0..200 {
        let answer = refuse(&Settings::default(), &rejects, Refusal::Shed(1), &[], asked);
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        let field = |name: &str| answer.headers.get(name).unwrap().to_str().unwrap();
        assert_eq!(field("cache-control"), "no-store");
        assert_eq!(field("access-control-allow-origin"), "https://shop.example");
        let wait: u64 = field("retry-after").parse().unwrap();
        assert_eq!(
            std::str::from_utf8(&answer.body).unwrap(),
            format!(
                r#"{{"type":"https://iana.org/assignments/http-problem-types#temporary-reduced-capacity","title":"Request cannot be satisfied due to temporary server capacity constraints","status":503,"detail":"There are too many requests at the moment.","instance":"urn:uuid:{ID}","violated-policies":["load-shedding"],"retry_after_seconds":{wait}}}"#
            )
        );
        waits.insert(wait);
    }
    assert_eq!(Vec::from_iter(waits), [1, 2, 3, 4]);
}

#[test]
fn each_refusal_is_these_bytes() {
    let login = policy("login", log(5, MINUTE));
    let quota = [ruling(&login, denied(0, Some(12_400_000), 40 * SECOND))];
    let never = [ruling(&login, denied(5, None, 0))];
    let reports = policy("report-slots", slots(2));
    let in_use = [ruling(&reports, denied(0, Some(SECOND), MINUTE))];
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
            Refusal::Quota,
            &in_use,
            429,
            "ratelimit-policy: \"report-slots\";q=2;qu=\"concurrent-requests\"\nratelimit: \"report-slots\";r=0\nretry-after: 1\n",
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"Policy report-slots allows 2 at once. Try again in 1 second.","instance":"urn:uuid:0190a0b0-1111-7222-8333-444455556666","violated-policies":["report-slots"],"retry_after_seconds":1}"#,
            "no slot is free",
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
    let reports = policy("report-slots", slots(2));
    for (policy, wait_s, most, reason) in [
        (&login, 5, 5, "a tenth of 5 s is no whole second"),
        (&login, 40, 44, "a tenth"),
        (&login, 36_000, 36_030, "half a minute"),
        (&reports, 1, 2, "a guess"),
    ] {
        let rulings = [ruling(
            policy,
            denied(0, Some(wait_s * SECOND), wait_s * SECOND),
        )];
        let mut seen = BTreeSet::new();
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
fn who_is_in_a_penalty_is_told_so_but_in_the_operators_own_words_if_there_are_any() {
    let punished = |reject: Reject, penalised: Penalised| {
        let login = policy("login", log(5, MINUTE));
        let decision = Decision {
            penalised,
            ..denied(0, Some(10 * MINUTE), 10 * MINUTE)
        };
        let rulings = [ruling(&login, decision)];
        let answer = refuse(&settings(), &[reject], Refusal::Quota, &rulings, asked());
        assert_eq!(
            field(&answer.headers, "ratelimit"),
            Some("\"login\";r=0;t=600")
        );
        assert_eq!(field(&answer.headers, "retry-after"), Some("600"));
        let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        assert_eq!(body["violated-policies"][0], "login");
        (body["type"].to_string(), body["title"].to_string())
    };
    let quota = punished(Reject::default(), Penalised::No);
    assert!(quota.0.ends_with("#quota-exceeded\""), "{quota:?}");
    for penalised in [Penalised::Begins, Penalised::Runs] {
        let (kind, title) = punished(Reject::default(), penalised);
        assert!(kind.ends_with("#abnormal-usage-detected\""), "{kind}");
        assert!(title.contains("abnormal request pattern"), "{title}");
        let titled = Reject {
            title: Template::parse("Slow down", &[]).unwrap(),
            ..Reject::default()
        };
        let (kind, title) = punished(titled, penalised);
        assert!(kind.ends_with("#abnormal-usage-detected\""), "{kind}");
        assert_eq!(title, "\"Slow down\"");
        let own = Reject {
            problem_type: "https://example.com/p".into(),
            ..Reject::default()
        };
        assert_eq!(
            punished(own, penalised),
            ("\"https://example.com/p\"".to_owned(), quota.1.clone())
        );
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
        ("{policy", Err("policy"), "never closed"),
    ] {
        let found = Template::parse(text, PLACEHOLDERS).map(drop);
        let expected = expected.map_err(|name: &str| UnknownPlaceholder {
            name: name.to_owned(),
        });
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
