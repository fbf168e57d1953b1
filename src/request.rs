//! What we look at in a request: borrowed, free of any server's types.

use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONTENT_LENGTH, COOKIE, HeaderMap, HeaderName,
    ORIGIN, TRANSFER_ENCODING,
};

/// One request as the client sent it; nothing in it is trusted or normalised yet.
#[derive(Clone, Copy, Debug)]
pub struct RequestView<'a> {
    /// The method, as sent: methods are case-sensitive.
    pub method: &'a str,
    /// The host of the authority or of the `Host` field, with its port if there is one; empty if there is none.
    pub host: &'a str,
    /// The path of the target, percent-encoded as sent.
    pub path: &'a str,
    /// What follows the `?`, as sent.
    pub query: Option<&'a str>,
    /// Every header field.
    pub headers: &'a HeaderMap,
}

impl RequestView<'_> {
    /// Whether a browser asks with this if it may send another request (the Fetch standard's CORS preflight). That
    /// carries neither credentials nor a body: whatever does is a request like others.
    #[must_use]
    pub fn is_preflight(&self) -> bool {
        self.method == "OPTIONS"
            && self.says(&ORIGIN)
            && self.says(&ACCESS_CONTROL_REQUEST_METHOD)
            && ![AUTHORIZATION, COOKIE, TRANSFER_ENCODING]
                .iter()
                .any(|field| self.headers.contains_key(field))
            && self
                .headers
                .get(CONTENT_LENGTH)
                .is_none_or(|length| length == "0")
    }

    /// Whether the field is there once, and not empty.
    fn says(&self, field: &HeaderName) -> bool {
        let mut lines = self.headers.get_all(field).iter();
        lines.next().is_some_and(|line| !line.is_empty()) && lines.next().is_none()
    }
}
