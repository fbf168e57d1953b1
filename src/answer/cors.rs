//! What browsers let scripts see of an answer.
//!
//! A denial without these fields is a network error to the script, and its `Retry-After` invisible.

use http::{HeaderMap, HeaderValue, header};

use super::Legacy;

const EXPOSED: &str = "Retry-After, RateLimit, RateLimit-Policy, X-Request-Id";
const EXPOSED_WITH_LEGACY: &str = "Retry-After, RateLimit, RateLimit-Policy, X-Request-Id, \
     X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset";

/// Lets scripts of `origin` read an answer of ours, if it is among those `allowed`.
pub(super) fn allow(
    allowed: &[Box<str>],
    origin: Option<&str>,
    legacy: Legacy,
    headers: &mut HeaderMap,
) {
    let Some(origin) = origin else {
        return;
    };
    let value = if allowed.iter().any(|it| &**it == "*") {
        HeaderValue::from_static("*")
    } else if allowed.iter().any(|it| &**it == origin)
        && let Ok(origin) = HeaderValue::from_str(origin)
    {
        headers.append(header::VARY, HeaderValue::from_static("Origin"));
        origin
    } else {
        return;
    };
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, value);
    let exposed = if legacy == Legacy::None {
        EXPOSED
    } else {
        EXPOSED_WITH_LEGACY
    };
    let exposed = HeaderValue::from_static(exposed);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
}

/// Lets scripts that may read the upstream's answer read what we added to it as well.
pub(super) fn expose_added(headers: &mut HeaderMap) {
    if !headers.contains_key(header::ACCESS_CONTROL_ALLOW_ORIGIN) {
        return;
    }
    let mut exposed = Vec::new();
    for line in headers.get_all(header::ACCESS_CONTROL_EXPOSE_HEADERS) {
        exposed.extend(
            line.as_bytes()
                .split(|&b| b == b',')
                .map(<[u8]>::trim_ascii),
        );
    }
    if exposed.contains(&&b"*"[..]) {
        return;
    }
    let added = [
        "RateLimit",
        "RateLimit-Policy",
        "X-RateLimit-Limit",
        "X-RateLimit-Remaining",
        "X-RateLimit-Reset",
    ];
    let before = exposed.len();
    for name in added {
        let known = exposed
            .iter()
            .any(|it| it.eq_ignore_ascii_case(name.as_bytes()));
        if !known && headers.contains_key(name) {
            exposed.push(name.as_bytes());
        }
    }
    if exposed.len() > before
        && let Ok(value) = HeaderValue::from_bytes(&exposed.join(&b", "[..]))
    {
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, value);
    }
}
