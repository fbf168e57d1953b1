//! What a route matches: host, path, methods, header fields, query parameters.
//!
//! Literal segments match without regard to ASCII case. By the standard paths have case, but many an upstream's router
//! has none, and where `/Login` is answered like `/login` it must meet the same limit. The price is that `/Users` and
//! `/users` cannot be two routes: they tie.

use std::cmp::{Ordering, Reverse};
use std::net::Ipv6Addr;
use std::sync::Arc;

use percent_encoding::percent_decode;
use thiserror::Error;

use super::path;
use crate::request::RequestView;

/// `match = { … }` of a route. A part that is empty matches everything.
#[derive(Clone, Debug, Default)]
pub struct Pattern {
    /// Any of these hosts.
    pub hosts: Vec<Host>,
    /// Any of these paths.
    pub paths: Vec<Path>,
    /// Any of these methods, exactly: GET doesn't imply HEAD.
    pub methods: Vec<http::Method>,
    /// All of these header fields, on any of their lines.
    pub headers: Vec<(http::HeaderName, Value)>,
    /// All of these query parameters, decoded, on any of their places.
    pub query: Vec<(Arc<str>, Value)>,
}

/// A host to match.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
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
    /// Exactly this, but for ASCII case.
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

/// What keeps a text from being a path or a host to match.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum PatternError {
    /// A path begins elsewhere than at the root.
    #[error("a path begins with `/`")]
    NotFromRoot,
    /// `//`.
    #[error("the path has an empty segment: requests are matched with `//` read as `/`")]
    EmptySegment,
    /// `.` or `..`.
    #[error("the path has the segment `{0}`: write the path that it leads to")]
    DotSegment(String),
    /// A `*` that is not the last segment.
    #[error(
        "`{0}` has a `*`: only a last segment `/*` stands for all that follows; one segment is `{{name}}`"
    )]
    Star(String),
    /// A brace that does not span the segment, or holds no name.
    #[error(
        "`{0}` is neither a literal nor `{{name}}`: a parameter is a whole segment, named by letters, digits, `_` and `-`"
    )]
    Param(String),
    /// Two parameters of one name.
    #[error("the parameter `{{{0}}}` stands in the path twice")]
    TwiceNamed(String),
    /// `?` or `#`.
    #[error("a path ends before `{0}`: match the query by `query`")]
    NotOfPath(char),
    /// An escape without digits, a space or a control character.
    #[error(transparent)]
    Spelling(#[from] path::PathError),
    /// Nothing, or `*`.
    #[error("a host has a name: to match any, leave the host out")]
    NoHost,
    /// `host:port`.
    #[error("`{0}` has a port: hosts are matched without one")]
    Port(String),
    /// A `*` elsewhere than in front.
    #[error(
        "`{0}` has a `*` elsewhere than as its first label: `*.example.com` is everything below `example.com`"
    )]
    HostStar(String),
    /// Something that is no name in the DNS, nor an address.
    #[error(
        "`{0}` is no host name: labels are letters, digits, `-` and `_`; write others in their `xn--` form"
    )]
    NotAHost(String),
}

impl Path {
    /// Reads a path: literal segments, `{param}`, and a trailing `/*` for any number of further segments, also none.
    ///
    /// A trailing slash means nothing, as in requests.
    ///
    /// # Errors
    ///
    /// [`PatternError`]: what was found and what to write instead.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let from_root = text.strip_prefix('/').ok_or(PatternError::NotFromRoot)?;
        if let Some(found) = text.chars().find(|c| matches!(c, '?' | '#')) {
            return Err(PatternError::NotOfPath(found));
        }
        path::check(text)?;
        let (closed, open) = match from_root.strip_suffix('*') {
            Some("") => ("", true),
            Some(before) if before.ends_with('/') => (before, true),
            _ => (from_root, false),
        };
        let closed = closed.strip_suffix('/').unwrap_or(closed);
        let mut segments = Vec::new();
        if !closed.is_empty() {
            for raw in closed.split('/') {
                let segment = Segment::parse(raw)?;
                if let (Segment::Param(name), true) = (&segment, segments.contains(&segment)) {
                    return Err(PatternError::TwiceNamed(name.to_string()));
                }
                segments.push(segment);
            }
        }
        Ok(Self { segments, open })
    }

    /// Every path.
    #[must_use]
    pub const fn any() -> Self {
        Self {
            segments: Vec::new(),
            open: true,
        }
    }

    /// Whether these segments, decoded, are matched.
    pub(super) fn matches(&self, segments: &[String]) -> bool {
        let fits = match segments.len().cmp(&self.segments.len()) {
            Ordering::Less => false,
            Ordering::Equal => true,
            Ordering::Greater => self.open,
        };
        fits && self
            .segments
            .iter()
            .zip(segments)
            .all(|(pattern, found)| match pattern {
                Segment::Literal(literal) => literal.eq_ignore_ascii_case(found),
                Segment::Param(_) => true,
            })
    }

    /// The values of the parameters in segments that are matched.
    pub(super) fn params(&self, segments: &[String]) -> Vec<(Arc<str>, String)> {
        let places = self.segments.iter().zip(segments);
        places
            .filter_map(|(pattern, found)| match pattern {
                Segment::Literal(_) => None,
                Segment::Param(name) => Some((Arc::clone(name), found.clone())),
            })
            .collect()
    }

    /// [`Ordering::Less`] is more specific: segment by segment a literal before a parameter, then the longer one,
    /// then the closed one.
    pub(super) fn cmp_specificity(&self, other: &Self) -> Ordering {
        self.ranks().cmp(other.ranks())
    }

    fn ranks(&self) -> impl Iterator<Item = u8> {
        let end = if self.open { 3 } else { 2 };
        let segments = self.segments.iter().map(|segment| match segment {
            Segment::Literal(_) => 0,
            Segment::Param(_) => 1,
        });
        segments.chain([end])
    }

    /// What paths that match the same requests with equal right have in common.
    pub(super) fn shape(&self) -> (Vec<Option<String>>, bool) {
        let segments = self.segments.iter().map(|segment| match segment {
            Segment::Literal(literal) => Some(literal.to_ascii_lowercase()),
            Segment::Param(_) => None,
        });
        (segments.collect(), self.open)
    }

    pub(super) fn first_literal(&self) -> Option<&str> {
        match self.segments.first()? {
            Segment::Literal(literal) => Some(literal),
            Segment::Param(_) => None,
        }
    }
}

impl Segment {
    fn parse(raw: &str) -> Result<Self, PatternError> {
        if raw.is_empty() {
            return Err(PatternError::EmptySegment);
        }
        if raw.contains('*') {
            return Err(PatternError::Star(raw.to_owned()));
        }
        if raw.contains(['{', '}']) {
            let name = raw
                .strip_prefix('{')
                .and_then(|rest| rest.strip_suffix('}'));
            return match name {
                Some(name) if is_param_name(name) => Ok(Self::Param(name.into())),
                _ => Err(PatternError::Param(raw.to_owned())),
            };
        }
        let literal = path::decode(raw)?;
        if matches!(&*literal, "." | "..") {
            return Err(PatternError::DotSegment(raw.to_owned()));
        }
        Ok(Self::Literal(literal.into()))
    }
}

fn is_param_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

impl Host {
    /// Reads a host: `api.example.com`, `*.example.com` for everything below `example.com`, or an address, an IPv6 one
    /// with or without its brackets. Upper case is lowered, a trailing dot dropped.
    ///
    /// # Errors
    ///
    /// [`PatternError`]: what was found and what to write instead.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
        if let Ok(ip) = bare.unwrap_or(text).parse::<Ipv6Addr>() {
            return Ok(Self::Exact(format!("[{ip}]").into()));
        }
        let lower = text.to_ascii_lowercase();
        let name = lower.strip_suffix('.').unwrap_or(&lower);
        if matches!(name, "" | "*") {
            return Err(PatternError::NoHost);
        }
        if let Some((_, port)) = name.rsplit_once(':')
            && port.bytes().all(|b| b.is_ascii_digit())
        {
            return Err(PatternError::Port(text.to_owned()));
        }
        let below = name.strip_prefix("*.");
        let labels = below.unwrap_or(name);
        if labels.contains('*') {
            return Err(PatternError::HostStar(text.to_owned()));
        }
        if labels.len() > 253 || !labels.split('.').all(is_label) {
            return Err(PatternError::NotAHost(text.to_owned()));
        }
        Ok(match below {
            Some(below) => Self::Suffix(below.into()),
            None => Self::Exact(name.into()),
        })
    }
}

fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

impl Value {
    /// Whether a request can be expected to have both. A request that sends one field twice can; that is not a reason
    /// to refuse routes told apart by its value.
    fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(a), Self::Exact(b)) => a == b,
            _ => true,
        }
    }

    fn matches(&self, found: &[u8]) -> bool {
        match self {
            Self::Present => true,
            Self::Exact(value) => value.as_bytes() == found,
        }
    }
}

impl Pattern {
    /// How much is asked beside host and path: methods before header fields before query, exact values before any.
    pub(super) fn demands(&self) -> (bool, [usize; 4]) {
        let headers = self.headers.iter().map(|(_, value)| value);
        let query = self.query.iter().map(|(_, value)| value);
        let exact = |value: &&Value| matches!(value, Value::Exact(_));
        let counts = [
            self.headers.len(),
            headers.filter(exact).count(),
            self.query.len(),
            query.filter(exact).count(),
        ];
        (!self.methods.is_empty(), counts)
    }

    /// Whether the request has the method, all header fields and all query parameters.
    pub(super) fn demands_hold(&self, request: RequestView<'_>) -> bool {
        let method = self.methods.is_empty() || self.methods.iter().any(|m| m == request.method);
        method
            && self.headers.iter().all(|(name, value)| {
                let mut lines = request.headers.get_all(name).iter();
                lines.any(|line| value.matches(line.as_bytes().trim_ascii()))
            })
            && self.query.iter().all(|(name, value)| {
                let mut pairs = request.query.unwrap_or_default().split('&');
                pairs.any(|pair| {
                    let (found, its_value) = pair.split_once('=').unwrap_or((pair, ""));
                    form_decoded(found) == name.as_bytes()
                        && value.matches(&form_decoded(its_value))
                })
            })
    }

    /// [`Ordering::Less`] is more specific, by the most specific host and path of each.
    pub(super) fn cmp_specificity(&self, other: &Self) -> Ordering {
        let any = Path::any();
        let best = |paths: &[Path]| {
            let path = paths.iter().min_by(|a, b| a.cmp_specificity(b));
            path.unwrap_or(&any).clone()
        };
        self.host_rank()
            .cmp(&other.host_rank())
            .then_with(|| best(&self.paths).cmp_specificity(&best(&other.paths)))
            .then_with(|| other.demands().cmp(&self.demands()))
    }

    fn host_rank(&self) -> (u8, Reverse<usize>) {
        let rank = |host: &Host| match host {
            Host::Exact(_) => (0, Reverse(0)),
            Host::Suffix(name) => (1, Reverse(name.len())),
        };
        self.hosts.iter().map(rank).min().unwrap_or((2, Reverse(0)))
    }

    /// Whether methods, header fields and query of both could hold for one request.
    pub(super) fn demands_overlap(&self, other: &Self) -> bool {
        let methods = self.methods.is_empty()
            || other.methods.is_empty()
            || self.methods.iter().any(|m| other.methods.contains(m));
        methods && all_agree(&self.headers, &other.headers) && all_agree(&self.query, &other.query)
    }
}

/// A name or value of the query without its escapes, as forms write them.
fn form_decoded(text: &str) -> Vec<u8> {
    let spaced: Vec<u8> = text
        .bytes()
        .map(|b| if b == b'+' { b' ' } else { b })
        .collect();
    percent_decode(&spaced).collect()
}

fn all_agree<N: PartialEq>(ours: &[(N, Value)], theirs: &[(N, Value)]) -> bool {
    ours.iter().all(|(name, value)| {
        let mut same = theirs.iter().filter(|(other, _)| other == name);
        same.all(|(_, other)| value.agrees(other))
    })
}
