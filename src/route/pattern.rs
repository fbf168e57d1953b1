//! What a route matches: host, path, methods, header fields, query parameters.

use std::sync::Arc;

/// `match = { … }` of a route. A part that is empty matches everything.
#[derive(Clone, Debug, Default)]
pub struct Pattern {
    /// Any of these hosts.
    pub hosts: Vec<Host>,
    /// Any of these paths.
    pub paths: Vec<Path>,
    /// Any of these methods.
    pub methods: Vec<http::Method>,
    /// All of these header fields.
    pub headers: Vec<(http::HeaderName, Value)>,
    /// All of these query parameters.
    pub query: Vec<(Arc<str>, Value)>,
}

/// A host to match.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Host {
    /// This one: lower case, without port.
    Exact(Arc<str>),
    /// Everything below this one: `*.example.com` holds `example.com`.
    Suffix(Arc<str>),
}

/// A path to match, by segments.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Path {
    /// The segments, decoded.
    pub segments: Vec<Segment>,
    /// Whether more segments may follow: a trailing `/*`.
    pub open: bool,
}

/// One segment of a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Segment {
    /// Exactly this.
    Literal(Arc<str>),
    /// Anything, under this name.
    Param(Arc<str>),
}

/// A value to match.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Value {
    /// Any value, but there must be one.
    Present,
    /// Exactly this.
    Exact(Arc<str>),
}
