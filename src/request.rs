//! What we look at in a request: borrowed, free of any server's types.

use http::header::{ACCESS_CONTROL_REQUEST_METHOD, HeaderMap, ORIGIN};

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
    /// Whether a browser asks with this if it may send another request (the Fetch standard's CORS preflight). It carries
    /// no credentials.
    #[must_use]
    pub fn is_preflight(&self) -> bool {
        self.method == "OPTIONS"
            && self.headers.contains_key(ORIGIN)
            && self.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
    }
}
