//! What the client sees: the answers that are ours, and what we add to the upstream's.

mod accept;
mod cors;
pub mod fields;
mod list;
mod merge;
pub mod problem;
mod refusal;
pub mod template;
pub mod words;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use crate::check::Ruling;

/// `[headers]`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Settings {
    /// `RateLimit-Policy` and `RateLimit`, as in draft-ietf-httpapi-ratelimit-headers-10.
    pub ratelimit: bool,
    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    pub legacy: Legacy,
    /// On which answers.
    pub when: When,
    /// Whether the fields carry `pk`, an opaque name of whom the policy counts.
    pub partition_key: bool,
    /// At most so many percent, and 30 s, are added to `Retry-After`, so that clients do not return together.
    pub retry_after_jitter_percent: u8,
    /// What becomes of the upstream's own fields.
    pub upstream_ratelimit: UpstreamFields,
}

/// How the legacy fields say when.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Legacy {
    /// No such fields.
    None,
    /// Seconds from now.
    Seconds,
    /// Seconds since the epoch.
    Epoch,
}

/// On which answers the fields stand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum When {
    /// On all that were checked.
    Always,
    /// Once a policy has at most a fifth left, and on denials.
    NearLimit,
    /// On denials.
    Reject,
}

/// What becomes of the `RateLimit` fields that the upstream sent.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum UpstreamFields {
    /// Theirs stay, ours follow.
    Merge,
    /// Theirs stay, ours are left out where theirs are.
    Pass,
    /// Ours alone.
    Replace,
}

/// `[rejects.NAME]`: how a denial is put.
#[derive(Clone, Debug)]
pub struct Reject {
    /// 429 by default; 400 to 599.
    pub status: StatusCode,
    /// Title of the problem.
    pub title: template::Template,
    /// Detail of the problem.
    pub detail: template::Template,
    /// URI of the problem's type.
    pub problem_type: Box<str>,
    /// Further header fields.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Bodies to send instead of the problem, by media type.
    pub bodies: Vec<(Box<str>, template::Template)>,
    /// Origins whose scripts may read the denial; `*` is everybody.
    pub cors: Vec<Box<str>>,
}

/// An answer of our own, complete but for what the connection adds.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its header fields, `content-length` among them.
    pub headers: HeaderMap,
    /// Its body; empty for HEAD.
    pub body: Bytes,
}

/// Why we answer ourselves.
#[derive(Clone, Copy, Debug)]
pub enum Refusal<'a> {
    /// Policies deny.
    Quota,
    /// This policy's key is missing.
    MissingKey(&'a crate::check::Policy),
    /// The store gave no decision, and the policy then denies.
    StoreUnavailable,
    /// The gateway is full. Scripts may read so whom the configuration's `[rejects]` at this position let.
    Shed(usize),
    /// No route.
    Unmatched(StatusCode),
    /// The request makes no sense, or is too large: status and why.
    Refused(StatusCode, &'static str),
    /// The upstream gave no answer: 502, 503 or 504.
    Upstream(StatusCode),
}

/// What of the request shapes our answer.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// HEAD: no body.
    pub head: bool,
    /// The `Accept` field.
    pub accept: Option<&'a str>,
    /// The `Origin` field.
    pub origin: Option<&'a str>,
    /// Its id.
    pub request_id: &'a str,
    /// The wall clock, in seconds since the epoch.
    pub now_epoch_s: u64,
}

impl Default for Settings {
    /// The draft's fields on every checked answer, beside the upstream's, and a tenth of jitter.
    fn default() -> Self {
        Self {
            ratelimit: true,
            legacy: Legacy::None,
            when: When::Always,
            partition_key: false,
            retry_after_jitter_percent: 10,
            upstream_ratelimit: UpstreamFields::Merge,
        }
    }
}

impl Settings {
    fn silent(&self) -> bool {
        !self.ratelimit && self.legacy == Legacy::None
    }

    /// Whether an answer tells of these rulings.
    fn tells(&self, rulings: &[Ruling<'_>], denied: bool) -> bool {
        match self.when {
            _ if self.silent() => false,
            When::Always => true,
            When::NearLimit => denied || fields::is_near(rulings),
            When::Reject => denied,
        }
    }
}

impl Default for Reject {
    /// 429 with the problem type for exceeded quotas.
    fn default() -> Self {
        let filled = |text| template::Template::parse(text, template::PLACEHOLDERS);
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            title: template::Template::plain(problem::QUOTA_TITLE),
            detail: filled(problem::QUOTA_DETAIL).unwrap_or_default(),
            problem_type: problem::QUOTA_EXCEEDED.into(),
            headers: Vec::new(),
            bodies: Vec::new(),
            cors: Vec::new(),
        }
    }
}

impl Reject {
    /// Whether a configured field of this name is left out: it would break the body's framing, or let a cache hand one
    /// client's denial to another.
    #[must_use]
    pub fn is_reserved(name: &HeaderName) -> bool {
        [
            CACHE_CONTROL,
            CONNECTION,
            CONTENT_LENGTH,
            CONTENT_TYPE,
            TRANSFER_ENCODING,
        ]
        .contains(name)
    }
}

/// Puts a refusal into words.
///
/// `rulings` are all of the request's, denying or not, in the order of evaluation; `rejects` is the configuration's
/// list. Where several policies deny, the one with the longest wait chooses among `rejects`.
///
/// A HEAD request's answer has the fields of the GET's, `content-length` among them, and no body.
#[must_use]
pub fn refuse(
    settings: &Settings,
    rejects: &[Reject],
    refusal: Refusal<'_>,
    rulings: &[Ruling<'_>],
    asked: Asked<'_>,
) -> Answer {
    refusal::answer(settings, rejects, refusal, rulings, asked)
}

/// Adds our fields to an answer of the upstream. Returns whether its own fields were malformed and dropped.
///
/// Where nothing of ours is added, nothing of theirs is touched. An upstream's own 429 or 503 keeps its `Retry-After`;
/// it is only prolonged where a policy of ours has nothing left for longer than that.
pub fn annotate(
    settings: &Settings,
    rulings: &[Ruling<'_>],
    status: StatusCode,
    now_epoch_s: u64,
    headers: &mut HeaderMap,
) -> bool {
    if rulings.is_empty() || status.is_informational() {
        return false;
    }
    if matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    ) && let Some(wait_s) = fields::exhausted_for_s(rulings)
    {
        merge::prolong_retry_after(wait_s, headers);
    }
    if !settings.tells(rulings, false) {
        return false;
    }
    let items = fields::items(rulings, None);
    if items.is_empty() {
        return false;
    }
    merge::put(
        settings,
        &items,
        status.is_redirection(),
        now_epoch_s,
        headers,
    )
}

/// The fields of an upstream's answer that [`annotate`] reads and writes.
pub static FIELDS: [HeaderName; 8] = [
    HeaderName::from_static("ratelimit-policy"),
    HeaderName::from_static("ratelimit"),
    http::header::RETRY_AFTER,
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
    http::header::ACCESS_CONTROL_ALLOW_ORIGIN,
    http::header::ACCESS_CONTROL_EXPOSE_HEADERS,
];
