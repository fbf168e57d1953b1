//! A request's head: what we look at in it, and what cannot stand.

use http::header::{CONNECTION, CONTENT_LENGTH, HOST};
use http::{HeaderMap, HeaderValue, StatusCode, Version, request};
use uuid::fmt::Hyphenated;
use uuid::{Builder, Uuid};

use crate::answer::Refusal;
use crate::config::Server;
use crate::request::RequestView;

/// The longest request id that is kept.
const REQUEST_ID_MAX: usize = 128;

const STANDARD_METHODS: [&str; 9] = [
    "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH",
];

/// The fields of one connection that may be named, at most: Pingora takes no more.
const OPTIONS_MAX: usize = 9;

/// The fields that no client takes away from its upstream by calling them the connection's own.
const NEVER_OPTIONS: [&str; 4] = [
    "host",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
];

/// What we look at; refused where it makes no sense or is too large.
///
/// `raw_target` is its target as it came.
///
/// # Errors
///
/// The refusal: 400, 413 or 431.
pub fn view<'h>(
    server: &Server,
    head: &'h request::Parts,
    raw_target: &[u8],
) -> Result<RequestView<'h>, Refusal<'static>> {
    let size: usize = head
        .headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum();
    let target = head
        .uri
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    if size.saturating_add(target) > server.max_header {
        return Err(Refusal::Refused(
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "The request's head is too large.",
        ));
    }
    let length = length(&head.headers)?;
    if let (Some(length), Some(max)) = (length, server.max_body)
        && length > max
    {
        return Err(Refusal::Refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            "The request's body is too large.",
        ));
    }
    if is_misspelt(&head.method) {
        return Err(malformed("The method is a known one in another case."));
    }
    if !is_target(head, raw_target) {
        return Err(malformed("The request's target is malformed."));
    }
    if !has_fair_options(&head.headers) {
        return Err(malformed("The Connection field is malformed."));
    }
    let host = match head.headers.get(HOST) {
        Some(host) => host.to_str().ok().filter(|host| is_host(host)),
        None if head.version == Version::HTTP_10 => Some(""),
        None => head.uri.authority().map(http::uri::Authority::as_str),
    };
    let host = host.ok_or_else(|| malformed("The request names no host, or a malformed one."))?;
    Ok(RequestView {
        method: head.method.as_str(),
        host,
        path: head.uri.path(),
        query: head.uri.query(),
        headers: &head.headers,
    })
}

/// The length that the body is said to have. Said twice, if only in one way, it is not passed on: nobody knows what an
/// upstream makes of that.
fn length(headers: &HeaderMap) -> Result<Option<u64>, Refusal<'static>> {
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    let Some(line) = lines.next() else {
        return Ok(None);
    };
    let length = line.to_str().ok().and_then(|length| length.parse().ok());
    match (length, lines.next()) {
        (Some(length), None) => Ok(Some(length)),
        _ => Err(malformed("The request's length is malformed.")),
    }
}

const fn malformed(why: &'static str) -> Refusal<'static> {
    Refusal::Refused(StatusCode::BAD_REQUEST, why)
}

/// Whether the method is a standard one but for its case: such a one is another method, and not every upstream knows.
fn is_misspelt(method: &http::Method) -> bool {
    let name = method.as_str();
    name.bytes().any(|byte| byte.is_ascii_lowercase())
        && STANDARD_METHODS
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
}

/// Whether the target is one that a proxy is sent: a path; `*` of OPTIONS; or a whole URI, whose authority is then
/// the Host field's (Pingora refuses another) and is not believed without one.
fn is_target(head: &request::Parts, raw_target: &[u8]) -> bool {
    // Where a space is, somebody may read the end of the target.
    if raw_target.contains(&b' ') {
        return false;
    }
    if raw_target == b"*" {
        return head.method == http::Method::OPTIONS;
    }
    let is_uri = |scheme: &[u8]| {
        raw_target
            .get(..scheme.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    raw_target.starts_with(b"/")
        || (head.headers.contains_key(HOST) && (is_uri(b"http://") || is_uri(b"https://")))
}

/// Whether Pingora will take what the Connection field names. It would find out once the request has been charged.
fn has_fair_options(headers: &HeaderMap) -> bool {
    let mut options = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|option| !option.is_empty())
        .enumerate();
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    options.all(|(n, option)| {
        n < OPTIONS_MAX
            && option.iter().all(is_token)
            && !NEVER_OPTIONS
                .iter()
                .any(|name| name.as_bytes().eq_ignore_ascii_case(option))
    })
}

/// Whether a Host field is a name or an address with an optional port: whatever else an upstream may make of it, it
/// will not make another host of it than we did.
fn is_host(host: &str) -> bool {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port),
        _ => (host, ""),
    };
    let is_name = |name: &str| {
        let name = name.strip_suffix('.').unwrap_or(name);
        !name.is_empty()
            && name.split('.').all(|label| {
                !label.is_empty()
                    && label
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
            })
    };
    let is_literal = |name: &str| {
        name.strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'))
            .is_some_and(|literal| literal.parse::<std::net::Ipv6Addr>().is_ok())
    };
    port.bytes().all(|byte| byte.is_ascii_digit()) && (is_name(name) || is_literal(name))
}

/// The peer's id if it is to be kept and looks like one; else a new one, of this moment.
pub fn request_id(head: &request::Parts, keep: bool, now_us: u64) -> HeaderValue {
    let kept = keep
        .then(|| head.headers.get("x-request-id"))
        .flatten()
        .filter(|id| {
            (1..=REQUEST_ID_MAX).contains(&id.len())
                && id.as_bytes().iter().all(u8::is_ascii_graphic)
        });
    kept.map_or_else(|| new_request_id(now_us), HeaderValue::clone)
}

/// A UUID of version 7: it sorts by time, and nobody can guess the next one.
fn new_request_id(now_us: u64) -> HeaderValue {
    // Of a version 4 the bytes that are nothing but random.
    let [a, b, c, d, e, f, _, _, _, g, h, i, j, ..] = Uuid::new_v4().into_bytes();
    let random = [a, b, c, d, e, f, g, h, i, j];
    let id = Builder::from_unix_timestamp_millis(now_us / 1000, &random).into_uuid();
    let mut text = [0; Hyphenated::LENGTH];
    id.hyphenated().encode_lower(&mut text);
    HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static(""))
}
