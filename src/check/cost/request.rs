//! What a request says that it costs.

use std::fmt;

use http::{HeaderMap, HeaderName};

use super::json::{Json, Malformed, Scalar, See, Token};
use super::pointer::{Pointer, Walk};
use super::{TOKEN_MAX, Tariff, graphql, is_encoded, is_json, media_type};
use crate::client::sent::queries;
use crate::decide::Cost;
use crate::request::RequestView;

/// A body up to this size is read before the decision, and sent on later.
pub const BODY_MAX: usize = 64 * 1024;

/// A cost that the request says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RequestPrice {
    /// Where it stands.
    pub from: RequestSource,
    /// What it comes to.
    pub tariff: Tariff,
    /// What is taken where the request does not say, or not so that it can be read.
    pub default: u64,
}

/// Where a request says what it costs.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RequestSource {
    /// In a header field.
    Header(HeaderName),
    /// In a query parameter.
    Query(Box<str>),
    /// In a body of JSON.
    Json(Pointer),
    /// As many as a body of JSON, an array, has items; anything else is one.
    JsonArrayLength,
    /// As deep as its GraphQL document nests; several in one body add up.
    GraphqlDepth,
}

/// A request's body, as far as it is known.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Body<'a> {
    /// There is none, none of JSON, or nobody wants to know.
    #[default]
    None,
    /// All of a body that is said to be JSON.
    Json(&'a [u8]),
    /// There is one of JSON, and it is too large, or encoded.
    Unread,
}

/// A cost that was read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Priced {
    /// What the request takes.
    pub cost: Cost,
    /// Whether the request did not say so, or not so that it could be read.
    pub missing: bool,
}

/// What is to be done with a request's body where a cost depends on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reading {
    /// Nothing: it is no JSON.
    No,
    /// It is read.
    Yes,
    /// It would be, but it is encoded.
    Encoded,
}

impl Reading {
    /// What the head says of the body.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        if !media_type(headers).is_some_and(|it| is_json(&it)) {
            Self::No
        } else if is_encoded(headers) {
            Self::Encoded
        } else {
            Self::Yes
        }
    }
}

impl RequestSource {
    /// Whether it stands in the body.
    #[must_use]
    pub const fn is_in_body(&self) -> bool {
        matches!(
            self,
            Self::Json(_) | Self::JsonArrayLength | Self::GraphqlDepth
        )
    }
}

impl RequestPrice {
    /// Reads the cost. Where the request says it several times, the highest counts, since nobody knows which of them
    /// the application believes. A number is at least one unit: nobody says of himself that he is free.
    #[must_use]
    pub fn read(&self, request: RequestView<'_>, body: Body<'_>) -> Priced {
        if self.from.is_in_body() && body == Body::Unread {
            return priced(self.unreadable(), true);
        }
        let mut said = Said {
            price: self,
            most: None,
            missing: false,
        };
        match &self.from {
            RequestSource::Header(name) => {
                for line in request.headers.get_all(name) {
                    said.text(line.as_bytes().trim_ascii());
                }
            }
            RequestSource::Query(name) => {
                for value in queries(request.query.unwrap_or_default(), name) {
                    said.text(&value);
                }
            }
            RequestSource::Json(pointer) => {
                let mut walk = Walk::new();
                let read = whole(body, TOKEN_MAX, || {
                    walk.along(pointer, |scalar| match scalar {
                        Scalar::Text(token) | Scalar::Number(token) if !token.whole => {
                            said.unreadable();
                        }
                        scalar => said.units(self.of_scalar(scalar)),
                    })
                });
                if read.is_err() {
                    said.not_understood(body);
                }
            }
            RequestSource::JsonArrayLength => {
                let mut items = Items::default();
                match whole(body, 0, || &mut items) {
                    Ok(()) => said.units(items.count().map(|count| self.number(count))),
                    Err(_) => said.not_understood(body),
                }
            }
            RequestSource::GraphqlDepth => {
                for document in queries(request.query.unwrap_or_default(), "query") {
                    match self.depth(&document) {
                        None => said.unreadable(),
                        depth => said.units(depth),
                    }
                }
                let mut documents = Documents::new(self);
                match whole(body, BODY_MAX, || &mut documents) {
                    Ok(()) if documents.unreadable => said.unreadable(),
                    Ok(()) => said.units(documents.sum()),
                    // It may stand in the query alone.
                    Err(_) if matches!(body, Body::None | Body::Json([])) => {}
                    Err(_) => said.unreadable(),
                }
            }
        }
        said.priced()
    }

    /// What is there and cannot be read costs the most: an upstream may read more than we do.
    fn unreadable(&self) -> u64 {
        self.tariff.max.unwrap_or(self.default).max(self.default)
    }

    fn of_scalar(&self, scalar: Scalar<'_>) -> Option<u64> {
        let units = self.tariff.of_scalar(scalar)?;
        Some(if self.tariff.values.is_empty() {
            units.max(1)
        } else {
            units
        })
    }

    fn number(&self, number: u64) -> u64 {
        self.tariff.capped(number.max(1))
    }

    fn depth(&self, document: &[u8]) -> Option<u64> {
        let document = std::str::from_utf8(document).ok()?;
        graphql::depth(document).map(|depth| self.number(depth))
    }
}

/// What a request has said so far.
struct Said<'p> {
    price: &'p RequestPrice,
    most: Option<u64>,
    missing: bool,
}

impl Said<'_> {
    fn text(&mut self, text: &[u8]) {
        let token = Token {
            bytes: text,
            whole: text.len() <= TOKEN_MAX,
        };
        self.units(self.price.of_scalar(Scalar::Text(token)));
    }

    fn units(&mut self, units: Option<u64>) {
        self.missing |= units.is_none();
        self.most = self.most.max(Some(units.unwrap_or(self.price.default)));
    }

    /// Something is there that cannot be read.
    fn unreadable(&mut self) {
        self.missing = true;
        self.most = self.most.max(Some(self.price.unreadable()));
    }

    /// The body is no JSON that we understand: none at all says nothing.
    fn not_understood(&mut self, body: Body<'_>) {
        match body {
            Body::None | Body::Json([]) => self.missing = true,
            _ => self.unreadable(),
        }
    }

    fn priced(self) -> Priced {
        let most = self.most.unwrap_or(self.price.default);
        priced(
            if self.missing {
                most.max(self.price.default)
            } else {
                most
            },
            self.missing || self.most.is_none(),
        )
    }
}

const fn priced(units: u64, missing: bool) -> Priced {
    Priced {
        cost: Cost::new(units),
        missing,
    }
}

/// Goes through all of a body.
fn whole<S: See>(
    body: Body<'_>,
    token_max: usize,
    see: impl FnOnce() -> S,
) -> Result<(), Malformed> {
    let Body::Json(text) = body else {
        return Err(Malformed);
    };
    let mut json = Json::new(token_max.max(TOKEN_MAX));
    let mut see = see();
    json.feed(text, &mut see)?;
    json.end(&mut see)
}

impl<S: See> See for &mut S {
    fn open(&mut self, array: bool) {
        (**self).open(array);
    }

    fn close(&mut self) {
        (**self).close();
    }

    fn key(&mut self, key: Token<'_>) {
        (**self).key(key);
    }

    fn scalar(&mut self, scalar: Scalar<'_>) {
        (**self).scalar(scalar);
    }
}

/// Counts the items of the outermost array.
#[derive(Default)]
struct Items {
    depth: u64,
    /// `None` until it is known to be an array.
    items: Option<u64>,
    is_object: bool,
}

impl Items {
    fn count(&self) -> Option<u64> {
        self.items.or(self.is_object.then_some(1))
    }

    fn value(&mut self) {
        if let (1, Some(items)) = (self.depth, &mut self.items) {
            *items = items.saturating_add(1);
        }
    }
}

impl See for Items {
    fn open(&mut self, array: bool) {
        self.value();
        if self.depth == 0 {
            self.items = array.then_some(0);
            self.is_object = !array;
        }
        self.depth = self.depth.saturating_add(1);
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    fn key(&mut self, _key: Token<'_>) {}

    fn scalar(&mut self, _scalar: Scalar<'_>) {
        self.value();
    }
}

/// The GraphQL documents of a body: that of an object, or those of the objects of an array.
struct Documents<'p> {
    price: &'p RequestPrice,
    depth: usize,
    is_batch: bool,
    is_query: bool,
    /// The deepest document of the object that is open.
    here: Option<u64>,
    sum: Option<u64>,
    /// Whether an object has none.
    missing: bool,
    /// Whether one of them cannot be followed.
    unreadable: bool,
}

impl<'p> Documents<'p> {
    const fn new(price: &'p RequestPrice) -> Self {
        Self {
            price,
            depth: 0,
            is_batch: false,
            is_query: false,
            here: None,
            sum: None,
            missing: false,
            unreadable: false,
        }
    }

    /// What all of them come to; `None` if one of them is missing and that is no more than the default.
    fn sum(&self) -> Option<u64> {
        let sum = self.price.tariff.capped(self.sum?);
        (!self.missing || sum > self.price.default).then_some(sum)
    }

    /// Whether what is open is an object that holds a document.
    fn is_in_request(&self) -> bool {
        self.depth == 1 + usize::from(self.is_batch)
    }
}

impl See for Documents<'_> {
    fn open(&mut self, array: bool) {
        if self.depth == 0 {
            self.is_batch = array;
        }
        self.is_query = false;
        self.depth = self.depth.saturating_add(1);
    }

    fn close(&mut self) {
        if self.is_in_request() {
            self.missing |= self.here.is_none();
            let here = self.here.take().unwrap_or(self.price.default);
            self.sum = Some(self.sum.unwrap_or_default().saturating_add(here));
        }
        self.depth = self.depth.saturating_sub(1);
    }

    fn key(&mut self, key: Token<'_>) {
        self.is_query = self.is_in_request() && key.whole && key.bytes == b"query";
    }

    fn scalar(&mut self, scalar: Scalar<'_>) {
        if let (true, true, Scalar::Text(token)) = (self.is_query, self.is_in_request(), scalar) {
            let depth = self.price.depth(token.bytes).filter(|_| token.whole);
            self.unreadable |= depth.is_none();
            self.here = self.here.max(depth);
        }
        self.is_query = false;
    }
}

impl fmt::Display for RequestSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "request.header:{name}"),
            Self::Query(name) => write!(f, "request.query:{name}"),
            Self::Json(pointer) => write!(f, "request.json:{pointer}"),
            Self::JsonArrayLength => f.write_str("request.json-array-length"),
            Self::GraphqlDepth => f.write_str("request.graphql-depth"),
        }
    }
}
