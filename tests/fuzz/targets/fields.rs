//! Any fields of an upstream's answer, beside ours; and our own answers.
//!
//! An input is bytes that choose settings and decisions, up to a line's end, and lines of the upstream's fields.

use std::collections::BTreeSet;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use sfv::{BareItem, List, ListEntry, Parser};
use tollgate::answer::{
    Asked, FIELDS, Legacy, Refusal, Reject, Settings, UpstreamFields, When, annotate, refuse,
};
use tollgate::check::{Check, EntityKey, Policy, Ruling, Source, Unit};
use tollgate::decide::{Cost, Decision, Penalised, Verdict};

use super::{Choices, lines, rules};
use crate::support::policies::policy;

const LISTS: [&str; 2] = ["ratelimit", "ratelimit-policy"];
const NAMES: [&str; 8] = [
    "ratelimit",
    "ratelimit-policy",
    "retry-after",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "access-control-allow-origin",
    "access-control-expose-headers",
];

/// What the upstream said stays, ours follows under names of its own, and a client can read all of it.
pub(super) fn fields(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let mut choices = Choices::of(parts.next().unwrap_or_default());
    let text = parts.next().unwrap_or_default();
    let settings = settings(&mut choices);
    let status = choices.among(&[200, 301, 304, 429, 503]);
    let policies = policies();
    let rulings: Vec<_> = (0..choices.next() % 5)
        .map(|_| {
            ruling(
                &policies[usize::from(choices.next()) % policies.len()],
                &mut choices,
            )
        })
        .collect();
    let mut theirs = HeaderMap::new();
    for (name, value) in lines(text, &NAMES) {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            theirs.append(name, value);
        }
    }
    let mut headers = theirs.clone();
    let malformed = annotate(
        &settings,
        &rulings,
        StatusCode::from_u16(status).unwrap(),
        1_800_000_000,
        &mut headers,
    );
    for name in headers.keys().chain(theirs.keys()) {
        let same = headers.get_all(name).iter().eq(theirs.get_all(name).iter());
        assert!(same || FIELDS.contains(name), "{name} was changed");
    }
    let unreadable = LISTS
        .iter()
        .filter(|name| list(&theirs, name).is_none())
        .count();
    if malformed {
        assert!(unreadable > 0 && settings.upstream_ratelimit == UpstreamFields::Merge);
    }
    let touched = LISTS.iter().any(|name| {
        headers
            .get_all(*name)
            .iter()
            .ne(theirs.get_all(*name).iter())
    });
    for name in LISTS.iter().filter(|_| touched) {
        let Some(all) = list(&headers, name) else {
            panic!("{name} cannot be read: {headers:?}");
        };
        let before = match settings.upstream_ratelimit {
            UpstreamFields::Replace => List::new(),
            _ => list(&theirs, name).unwrap_or_default(),
        };
        assert_eq!(all[..before.len()], before[..], "{name}: {theirs:?}");
        assert!(headers.get_all(*name).iter().count() <= 1);
        ours_are_ours(&before, &all[before.len()..], settings.partition_key);
    }
    refused(&settings, &rulings, text);
}

/// Names of ours, each once and none of theirs.
fn ours_are_ours(before: &[ListEntry], ours: &[ListEntry], partition_key: bool) {
    let mut names: BTreeSet<_> = before.iter().filter_map(name_of).collect();
    for entry in ours {
        let Some(name) = name_of(entry) else {
            panic!("{entry:?} has no name");
        };
        assert_eq!(name.1.is_some(), partition_key);
        assert!(names.insert(name), "{entry:?} stands there twice");
    }
}

/// Name and partition key.
fn name_of(entry: &ListEntry) -> Option<(String, Option<Vec<u8>>)> {
    let ListEntry::Item(item) = entry else {
        return None;
    };
    let name = item.bare_item.as_string()?.as_str().to_owned();
    let key = match item.params.get("pk") {
        Some(BareItem::ByteSequence(key)) => Some(key.clone()),
        _ => None,
    };
    Some((name, key))
}

/// All lines of a field as one list; `None` if it is none.
fn list(headers: &HeaderMap, name: &str) -> Option<List> {
    let lines: Vec<_> = headers
        .get_all(name)
        .iter()
        .map(|line| line.as_bytes().trim_ascii())
        .filter(|line| !line.is_empty())
        .collect();
    Parser::new(&lines.join(&b", "[..])).parse().ok()
}

/// A denial of ours, to whoever asks in this way.
fn refused(settings: &Settings, rulings: &[Ruling<'_>], asked: &[u8]) {
    let text = std::str::from_utf8(asked).ok();
    let denied = rulings.iter().any(Ruling::denies);
    let refusal = if denied {
        Refusal::Quota
    } else {
        Refusal::StoreUnavailable
    };
    for head in [false, true] {
        let asked = Asked {
            head,
            accept: text,
            origin: text,
            request_id: "0190a0b0-1111-7222-8333-444455556666",
            now_epoch_s: 1_800_000_000,
        };
        let answer = refuse(settings, &[Reject::default()], refusal, rulings, asked);
        assert_eq!(answer.status.as_u16(), if denied { 429 } else { 503 });
        for name in LISTS {
            assert!(
                list(&answer.headers, name).is_some(),
                "{:?}",
                answer.headers
            );
        }
        let number = |name: HeaderName| {
            let value = answer.headers.get(name)?.to_str().ok()?;
            Some(value.parse::<usize>().expect("a number"))
        };
        assert_ne!(number(http::header::RETRY_AFTER), Some(0));
        assert_eq!(answer.headers[http::header::CACHE_CONTROL], "no-store");
        let length = number(http::header::CONTENT_LENGTH);
        assert!(if head {
            answer.body.is_empty()
        } else {
            length == Some(answer.body.len())
        });
        if answer.headers[http::header::CONTENT_TYPE] == "application/problem+json" && !head {
            let problem: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
            assert_eq!(problem["status"], answer.status.as_u16());
        }
    }
}

fn settings(choices: &mut Choices<'_>) -> Settings {
    Settings {
        ratelimit: choices.next() % 4 != 3,
        legacy: choices.among(&[Legacy::None, Legacy::Seconds, Legacy::Epoch]),
        when: choices.among(&[When::Always, When::NearLimit, When::Reject]),
        partition_key: choices.next() % 2 == 1,
        retry_after_jitter_percent: 10,
        upstream_ratelimit: choices.among(&[
            UpstreamFields::Merge,
            UpstreamFields::Pass,
            UpstreamFields::Replace,
        ]),
    }
}

/// One of each kind, by names that an upstream of the same kind has too.
fn policies() -> Vec<Policy> {
    let names = ["login", "tollgate-login", "api", "a", "b", "c", "bytes"];
    let mut policies: Vec<_> = names
        .into_iter()
        .zip(rules())
        .map(|(name, rule)| policy(name, rule))
        .collect();
    policies[6].unit = Unit::ContentBytes;
    policies[5].unit = Unit::Custom("tokens".into());
    policies
}

fn ruling<'a>(policy: &'a Policy, choices: &mut Choices<'_>) -> Ruling<'a> {
    const NUMBERS: [u64; 8] = [
        0,
        1,
        9,
        999_999,
        1_000_001,
        59_999_999,
        1_000_000_000_000,
        tollgate::decide::EXACT_MAX,
    ];
    let allowed = choices.next().is_multiple_of(2);
    let wait = Some(choices.among(&NUMBERS)).filter(|wait| *wait > 0);
    Ruling {
        check: Check {
            policy,
            limits: &policy.limits,
            rule: &policy.limits.rule,
            entity: EntityKey([7; 16]),
            cost: Cost::ONE,
            shadow: choices.next() % 8 == 7,
        },
        decision: Decision {
            verdict: if allowed {
                Verdict::Allow
            } else {
                Verdict::Deny
            },
            remaining: choices.among(&NUMBERS),
            retry_after_us: if allowed { Some(0) } else { wait },
            reset_after_us: choices.among(&NUMBERS),
            delay_us: 0,
            penalised: Penalised::No,
        },
        source: choices.among(&Source::ALL),
    }
}
