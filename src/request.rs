//! What we look at in a request: borrowed, free of any server's types.

use http::HeaderMap;

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
