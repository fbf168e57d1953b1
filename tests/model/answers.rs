//! What the client sees: every denial as bytes, and our fields beside the upstream's.

mod fields;
mod properties;
mod refusals;
mod upstream;

use std::collections::BTreeSet;
use std::num::NonZeroU64;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use tollgate::answer::template::{PLACEHOLDERS, Template, UnknownPlaceholder};
use tollgate::answer::words;
use tollgate::answer::{
    Answer, Asked, FIELDS, Legacy, Refusal, Reject, Settings, UpstreamFields, When, annotate,
    refuse,
};
use tollgate::check::{Check, EntityKey, Policy, Ruling, Source, Unit};
use tollgate::decide::{
    Anchor, Concurrency, Cost, Decision, FixedWindow, LeakyBucket, Limit, Penalised, Rule,
    SlidingCounter, SlidingLog, TokenBucket, Verdict,
};

use crate::support::policies::policy;

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

fn slots(count: u64) -> Rule {
    let limit = limit(count, MINUTE);
    Rule::Concurrency(Concurrency::new(limit.count, limit.window_us).unwrap())
}

fn ruling(policy: &Policy, decision: Decision) -> Ruling<'_> {
    Ruling {
        check: Check {
            policy,
            limits: &policy.limits,
            rule: &policy.limits.rule,
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
        penalised: Penalised::No,
    }
}

fn denied(remaining: u64, retry_after_us: Option<u64>, reset_after_us: u64) -> Decision {
    Decision {
        verdict: Verdict::Deny,
        remaining,
        retry_after_us,
        reset_after_us,
        delay_us: 0,
        penalised: Penalised::No,
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
