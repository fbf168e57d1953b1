//! Our own answers: status, fields and body of each refusal.

use std::borrow::Cow;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use uuid::Uuid;

use super::problem::{
    ABNORMAL_TITLE, ABNORMAL_USAGE, ABOUT_BLANK, Body, PROBLEM_JSON, Problem, QUOTA_EXCEEDED,
    QUOTA_TITLE, REDUCED_CAPACITY, REDUCED_CAPACITY_TITLE,
};
use super::template::Escape;
use super::{Answer, Asked, Legacy, Refusal, Reject, Settings, cors, fields, words};
use crate::check::{Policy, Ruling};
use crate::decide::{Penalised, Rule};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The most seconds that are added to `Retry-After`.
const JITTER_MAX_S: u64 = 30;

/// What stands for a policy in the answer to a request that was turned away.
const LOAD_SHEDDING: &str = "load-shedding";

/// The longest wait that those are told who are turned away, in seconds. Nobody knows when there will be room; they are
/// told different times, so that they do not return together.
const SHED_WAIT_MAX_S: u64 = 4;

/// Room for the fields that an answer of ours usually has.
const FIELDS_USUAL: usize = 12;

pub(super) fn answer(
    settings: &Settings,
    rejects: &[Reject],
    refusal: Refusal<'_>,
    rulings: &[Ruling<'_>],
    asked: Asked<'_>,
) -> Answer {
    match refusal {
        Refusal::Quota => denial(
            settings,
            rejects,
            &Denial::by_quota(rulings),
            rulings,
            asked,
        ),
        other => plain(settings, rejects, other, rulings, asked),
    }
}

/// Which policies deny, and for how long.
struct Denial<'a> {
    /// The one with the longest wait, and its published rule. None only if no ruling denies after all.
    foremost: Option<(&'a Policy, &'a Rule)>,
    violated: Vec<&'a str>,
    /// `None` is never.
    wait_us: Option<u64>,
    /// Whether one of them denies by a penalty.
    penalised: bool,
}

impl<'a> Denial<'a> {
    fn by_quota(rulings: &[Ruling<'a>]) -> Self {
        let mut denial = Self {
            foremost: None,
            violated: Vec::new(),
            wait_us: Some(0),
            penalised: false,
        };
        for ruling in rulings.iter().filter(|ruling| ruling.denies()) {
            let policy = ruling.check.policy;
            if !denial.violated.contains(&&*policy.name) {
                denial.violated.push(&policy.name);
            }
            denial.penalised |= ruling.decision.penalised != Penalised::No;
            let wait_us = ruling.decision.retry_after_us;
            if denial.foremost.is_none() || is_longer(wait_us, denial.wait_us) {
                denial.foremost = Some((policy, fields::nominal(ruling)));
                denial.wait_us = wait_us;
            }
        }
        denial
    }
}

fn is_longer(wait_us: Option<u64>, than_us: Option<u64>) -> bool {
    match (wait_us, than_us) {
        (_, None) => false,
        (None, Some(_)) => true,
        (Some(wait_us), Some(than_us)) => wait_us > than_us,
    }
}

/// The seconds of `Retry-After`: never early, never 0 (which clients take for none), a little later for some.
fn retry_after_s(settings: &Settings, denial: &Denial<'_>, wait_us: u64) -> u64 {
    let percent = u128::from(settings.retry_after_jitter_percent);
    let jitter_us = u128::from(wait_us).saturating_mul(percent) / 100;
    let jitter_max_s = u64::try_from(jitter_us / 1_000_000)
        .unwrap_or(u64::MAX)
        .min(JITTER_MAX_S);
    // When one may pass nobody knows, and all who were denied at once are told the same.
    let is_guess = denial.foremost.is_some_and(|(_, rule)| rule.lends());
    let jitter_max_s = jitter_max_s.max(u64::from(is_guess && percent > 0));
    let jitter_s = if jitter_max_s == 0 {
        0
    } else {
        fastrand::u64(0..=jitter_max_s)
    };
    words::seconds_up(wait_us).max(1).saturating_add(jitter_s)
}

fn denial(
    settings: &Settings,
    rejects: &[Reject],
    denial: &Denial<'_>,
    rulings: &[Ruling<'_>],
    asked: Asked<'_>,
) -> Answer {
    let builtin;
    let chosen = denial
        .foremost
        .and_then(|(policy, _)| rejects.get(policy.reject));
    let reject = if let Some(reject) = chosen.or(rejects.first()) {
        reject
    } else {
        builtin = Reject::default();
        &builtin
    };
    let retry_after_s = denial
        .wait_us
        .map(|wait_us| retry_after_s(settings, denial, wait_us));
    let value = |name: &str, escape: Escape| value(denial, retry_after_s, asked, name, escape);
    let (problem_type, title) = kind_of(reject, denial, |name| value(name, Escape::None));
    let problem = Problem {
        problem_type,
        title,
        status: reject.status,
        detail: detail(reject, denial, retry_after_s, |name| {
            value(name, Escape::None)
        }),
        instance: instance(asked.request_id),
        violated_policies: denial.violated.clone(),
        retry_after_seconds: retry_after_s,
    };
    let mut headers = own_fields(settings, rulings, retry_after_s, true, asked);
    cors::allow(&reject.cors, asked.origin, settings.legacy, &mut headers);
    let body = problem.body(&reject.bodies, asked.accept, value);
    let mut answer = finish(reject.status, headers, body, asked);
    add_configured(&reject.headers, &mut answer.headers);
    answer
}

/// Every refusal that is not the quota's: no quota is claimed, and the status says what there is to say, but where
/// there is a problem type for it.
fn plain(
    settings: &Settings,
    rejects: &[Reject],
    refusal: Refusal<'_>,
    rulings: &[Ruling<'_>],
    asked: Asked<'_>,
) -> Answer {
    let (status, detail): (StatusCode, Cow<'_, str>) = match refusal {
        Refusal::Quota => (StatusCode::TOO_MANY_REQUESTS, "".into()),
        // Which part is missing is not said: it may be what tells accounts apart.
        Refusal::MissingKey(policy) => (
            StatusCode::FORBIDDEN,
            format!(
                "The request lacks what policy {} knows callers by.",
                policy.name
            )
            .into(),
        ),
        Refusal::StoreUnavailable => (
            StatusCode::SERVICE_UNAVAILABLE,
            "Limits cannot be checked at the moment.".into(),
        ),
        Refusal::Shed(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "There are too many requests at the moment.".into(),
        ),
        Refusal::Unmatched(status) => (status, "No route matches this request.".into()),
        Refusal::Refused(status, why) => (status, why.into()),
        Refusal::Upstream(status) => (status, upstream_detail(status).into()),
    };
    let retry_after_s = match refusal {
        Refusal::StoreUnavailable => Some(1),
        Refusal::Shed(_) => Some(fastrand::u64(1..=SHED_WAIT_MAX_S)),
        _ => None,
    };
    let is_shed = matches!(refusal, Refusal::Shed(_));
    let (problem_type, title) = if is_shed {
        (REDUCED_CAPACITY, REDUCED_CAPACITY_TITLE)
    } else {
        (ABOUT_BLANK, status.canonical_reason().unwrap_or("Error"))
    };
    let problem = Problem {
        problem_type,
        title: title.into(),
        status,
        detail,
        instance: instance(asked.request_id),
        violated_policies: is_shed.then_some(LOAD_SHEDDING).into_iter().collect(),
        retry_after_seconds: retry_after_s,
    };
    let mut headers = own_fields(settings, rulings, retry_after_s, false, asked);
    let its_own = match refusal {
        Refusal::MissingKey(policy) => rejects.get(policy.reject),
        Refusal::Shed(reject) => rejects.get(reject),
        _ => None,
    };
    if let Some(reject) = its_own.or(rejects.first()) {
        cors::allow(&reject.cors, asked.origin, settings.legacy, &mut headers);
    }
    let body = problem.body(&[], asked.accept, |_, _| "".into());
    finish(status, headers, body, asked)
}

/// What kind of problem it is. The operator's own words stay.
fn kind_of<'r, 'v>(
    reject: &'r Reject,
    denial: &Denial<'_>,
    value: impl Fn(&str) -> Cow<'v, str>,
) -> (&'r str, Cow<'r, str>) {
    let title = reject.title.render(Escape::None, value);
    if !denial.penalised || *reject.problem_type != *QUOTA_EXCEEDED {
        return (&reject.problem_type, title);
    }
    let is_own = title != QUOTA_TITLE;
    let title = if is_own { title } else { ABNORMAL_TITLE.into() };
    (ABNORMAL_USAGE, title)
}

fn upstream_detail(status: StatusCode) -> &'static str {
    match status {
        StatusCode::GATEWAY_TIMEOUT => "The upstream did not answer in time.",
        StatusCode::SERVICE_UNAVAILABLE => "The upstream is not available.",
        _ => "The upstream could not be reached, or its answer not be read.",
    }
}

/// What went wrong. Says nothing of which part of a key matched, nor how much a policy allows that isn't told of.
fn detail<'r, 'v>(
    reject: &'r Reject,
    denial: &Denial<'_>,
    retry_after_s: Option<u64>,
    value: impl Fn(&str) -> Cow<'v, str>,
) -> Cow<'r, str> {
    let Some((policy, rule)) = denial.foremost else {
        return "Too many requests.".into();
    };
    let name = &policy.name;
    let Some(seconds) = retry_after_s else {
        return format!(
            "Policy {name} never allows a request of this cost, however long it waits."
        )
        .into();
    };
    let hidden = !policy.advertise && reject.detail.names(&["limit", "window"]);
    let text = if hidden {
        format!("Policy {name} is over its limit. Try again in {seconds} seconds.").into()
    } else if rule.lends() && reject.detail.names(&["window"]) {
        let limit = rule.count();
        format!("Policy {name} allows {limit} at once. Try again in {seconds} seconds.").into()
    } else {
        reject.detail.render(Escape::None, value)
    };
    if seconds == 1 {
        // Templates know no grammar, and this is the commonest wait of all.
        return text.replace(" 1 seconds", " 1 second").into();
    }
    text
}

/// What a placeholder stands for.
fn value<'a>(
    denial: &Denial<'a>,
    retry_after_s: Option<u64>,
    asked: Asked<'a>,
    name: &str,
    escape: Escape,
) -> Cow<'a, str> {
    let rule = denial.foremost.map(|(_, rule)| rule);
    match name {
        "policy" => denial
            .foremost
            .map_or("", |(policy, _)| &policy.name)
            .into(),
        "limit" => rule
            .map_or_else(String::new, |rule| rule.count().to_string())
            .into(),
        "window" => rule.map_or_else(String::new, words::window_of).into(),
        "request_id" => asked.request_id.into(),
        "retry_after" => match (retry_after_s, escape) {
            (Some(seconds), _) => seconds.to_string().into(),
            // A number is missing there, and JSON has a word for that.
            (None, Escape::Json) => "null".into(),
            (None, _) => "never".into(),
        },
        _ => "".into(),
    }
}

fn instance(request_id: &str) -> Option<String> {
    let id = Uuid::try_parse(request_id).ok()?;
    let mut text = Uuid::encode_buffer();
    Some(id.urn().encode_lower(&mut text).to_owned())
}

/// When to come back, and what the limits are. `denied`: by a policy.
fn own_fields(
    settings: &Settings,
    rulings: &[Ruling<'_>],
    retry_after_s: Option<u64>,
    denied: bool,
    asked: Asked<'_>,
) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(FIELDS_USUAL);
    if let Some(seconds) = retry_after_s {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if !settings.tells(rulings, denied) {
        return headers;
    }
    let items = fields::items(rulings, retry_after_s);
    if settings.ratelimit {
        let policies = fields::policy_field(settings, &items, None);
        let limits = fields::limit_field(settings, &items, None);
        for (name, value) in [
            (fields::RATELIMIT_POLICY, policies),
            (fields::RATELIMIT, limits),
        ] {
            if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
                headers.insert(name, value);
            }
        }
    }
    if settings.legacy != Legacy::None {
        fields::put_legacy(settings, &items, asked.now_epoch_s, &mut headers);
    }
    headers
}

fn finish(status: StatusCode, mut headers: HeaderMap, body: Body<'_>, asked: Asked<'_>) -> Answer {
    let media_type = match body.media_type {
        PROBLEM_JSON => Ok(HeaderValue::from_static(PROBLEM_JSON)),
        other => HeaderValue::from_str(other),
    };
    if let Ok(media_type) = media_type {
        headers.insert(header::CONTENT_TYPE, media_type);
    }
    let body = body.text.into_owned();
    // A 429 must not be stored, and no other answer of ours is worth it.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    if let Ok(id) = HeaderValue::from_str(asked.request_id)
        && !id.is_empty()
    {
        headers.insert(X_REQUEST_ID, id);
    }
    let body = if asked.head {
        Bytes::new()
    } else {
        Bytes::from(body)
    };
    Answer {
        status,
        headers,
        body,
    }
}

/// The operator's fields stand instead of ours, but for those that are reserved; `Vary` stands beside it.
fn add_configured(configured: &[(HeaderName, HeaderValue)], headers: &mut HeaderMap) {
    let theirs = || {
        configured
            .iter()
            .filter(|(name, _)| !Reject::is_reserved(name))
    };
    for (name, _) in theirs().filter(|(name, _)| *name != header::VARY) {
        headers.remove(name);
    }
    for (name, value) in theirs() {
        headers.append(name.clone(), value.clone());
    }
}
