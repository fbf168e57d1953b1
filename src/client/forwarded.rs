//! Forwarding headers, read right to left.

/// The most entries of a forwarding header that are read.
pub const ENTRIES_MAX: usize = 64;

/// stub
pub fn outgoing(
    _h: &http::HeaderMap,
    _p: Option<std::net::IpAddr>,
    _c: super::Client,
) -> Vec<(http::HeaderName, Option<http::HeaderValue>)> {
    Vec::new()
}
