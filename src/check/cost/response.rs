//! What an answer says that its request cost.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};

use super::events::{Framing, Part, Stream};
use super::json::Json;
use super::pointer::{Pointer, Walk};
use super::{TOKEN_MAX, Tariff, is_encoded, is_json, media_type};
use crate::decide::UNITS_MAX;

/// A cost that the answer says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ResponsePrice {
    /// Where it stands.
    pub from: ResponseSource,
    /// What is taken before the answer is there, and stays taken where it does not say.
    pub reserve: u64,
    /// What it comes to.
    pub tariff: Tariff,
}

/// Where an answer says what its request cost.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ResponseSource {
    /// In a header field.
    Header(HeaderName),
    /// In a body of JSON; of a stream, in the last event that has it.
    Json(Pointer),
    /// As many units as its body has bytes.
    Bytes,
}

/// Reads what an answer says, while it passes. What it remembers does not grow with the answer.
#[derive(Debug)]
pub struct Reader {
    price: Arc<ResponsePrice>,
    body: Body,
    /// What was said last.
    said: Option<u64>,
}

#[derive(Debug)]
enum Body {
    /// It says nothing.
    Mute,
    /// Its bytes count: so many so far.
    Bytes(u64),
    /// It is a text of JSON.
    Json(Search),
    /// It has several.
    Stream(Stream, Search),
}

/// The way through a text of JSON.
#[derive(Debug)]
struct Search {
    json: Json,
    walk: Walk,
}

impl Reader {
    /// For an answer with these fields, whose body is still to come.
    #[must_use]
    pub fn new(price: Arc<ResponsePrice>, headers: &HeaderMap) -> Self {
        let mut said = None;
        let body = match &price.from {
            ResponseSource::Header(name) => {
                let lines = headers.get_all(name).into_iter();
                let units = lines.map(|line| price.of_text(line.as_bytes().trim_ascii()));
                said = units.max().flatten();
                Body::Mute
            }
            ResponseSource::Bytes => Body::Bytes(0),
            ResponseSource::Json(_) => Body::of_json(headers),
        };
        Self { price, body, said }
    }

    /// The price that it reads for.
    #[must_use]
    pub fn price(&self) -> &ResponsePrice {
        &self.price
    }

    /// Whether it knows all that the answer says.
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self.price.from, ResponseSource::Header(_))
    }

    /// The next piece of the body, as the upstream sent it.
    pub fn feed(&mut self, piece: &[u8]) {
        let price = &*self.price;
        let said = &mut self.said;
        match &mut self.body {
            Body::Mute => {}
            Body::Bytes(bytes) => {
                *bytes = bytes.saturating_add(u64::try_from(piece.len()).unwrap_or(u64::MAX));
            }
            Body::Json(search) => search.feed(price, piece, said),
            Body::Stream(stream, search) => stream.feed(piece, |part| match part {
                Part::Text(text) => search.feed(price, text, said),
                Part::End => search.begin(),
            }),
        }
    }

    /// The body is over: whether all of it came, or it was cut off. What the request cost, in units; `None` where the
    /// answer did not say, and the reserve stays taken.
    ///
    /// Of an answer that was cut off nobody knows the rest: it costs the reserve at least.
    #[must_use]
    pub fn finish(self, is_whole: bool) -> Option<u64> {
        let price = &*self.price;
        let units = match self.body {
            Body::Bytes(bytes) => price.tariff.capped(bytes).min(UNITS_MAX),
            Body::Mute | Body::Json(_) | Body::Stream(..) => self.said?,
        };
        Some(if is_whole {
            units
        } else {
            units.max(price.reserve)
        })
    }
}

impl ResponsePrice {
    fn of_text(&self, text: &[u8]) -> Option<u64> {
        let units = self.tariff.of_text(text)?;
        (units <= UNITS_MAX).then_some(units)
    }
}

impl Body {
    fn of_json(headers: &HeaderMap) -> Self {
        let media_type = media_type(headers).unwrap_or_default();
        match media_type.as_str() {
            _ if is_encoded(headers) => Self::Mute,
            "text/event-stream" => Self::Stream(Stream::new(Framing::Events), Search::new()),
            "application/x-ndjson" | "application/jsonl" => {
                Self::Stream(Stream::new(Framing::Lines), Search::new())
            }
            other if is_json(other) => Self::Json(Search::new()),
            _ => Self::Mute,
        }
    }
}

impl Search {
    const fn new() -> Self {
        Self {
            json: Json::new(TOKEN_MAX),
            walk: Walk::new(),
        }
    }

    /// Another text begins.
    fn begin(&mut self) {
        self.json.begin();
        self.walk = Walk::new();
    }

    fn feed(&mut self, price: &ResponsePrice, piece: &[u8], said: &mut Option<u64>) {
        let ResponseSource::Json(pointer) = &price.from else {
            return;
        };
        let mut see = self.walk.along(pointer, |scalar| {
            let units = price.tariff.of_scalar(scalar);
            *said = units.filter(|units| *units <= UNITS_MAX).or(*said);
        });
        // What was said before the text went wrong was said.
        let _ = self.json.feed(piece, &mut see);
    }
}

impl fmt::Display for ResponseSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "response.header:{name}"),
            Self::Json(pointer) => write!(f, "response.json:{pointer}"),
            Self::Bytes => f.write_str("response.bytes"),
        }
    }
}
