//! What a request costs: so much, or what it says itself, or what its answer says.
//!
//! What clients and upstreams say is bytes from outside. It is read in a fixed amount of memory, never below nothing,
//! and never above what the operator lets it claim.

mod decimal;
mod events;
mod graphql;
mod json;
mod pointer;
pub mod request;
pub mod response;

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

pub use pointer::{BadPointer, Pointer};
pub use request::{Body, RequestPrice};
pub use response::{Reader, ResponsePrice};

use crate::decide::Cost;
use json::{Scalar, Token};
use response::ResponseSource;

/// What a policy takes of a request at its place on a route.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Price {
    /// So many units.
    Fixed(Cost),
    /// What the request says.
    Request(RequestPrice),
    /// What the answer says; so much is taken at first.
    Response(Arc<ResponsePrice>),
}

/// What a value that was read comes to.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Tariff {
    /// Units by value; where it is empty, a value is a number of units itself.
    pub values: BTreeMap<Box<str>, u64>,
    /// The most that a value may come to.
    pub max: Option<u64>,
}

impl Price {
    /// Whether it stands in the body of a request.
    #[must_use]
    pub const fn is_in_request_body(&self) -> bool {
        matches!(self, Self::Request(price) if price.from.is_in_body())
    }

    /// Whether it stands in the body of an answer, as text.
    #[must_use]
    pub fn is_in_response_body(&self) -> bool {
        matches!(self, Self::Response(price) if matches!(price.from, ResponseSource::Json(_)))
    }
}

impl Tariff {
    /// What a text comes to; `None` if it says nothing of a cost.
    fn of_text(&self, text: &[u8]) -> Option<u64> {
        let units = if self.values.is_empty() {
            decimal::units(text)?
        } else {
            *self.values.get(std::str::from_utf8(text).ok()?)?
        };
        Some(self.capped(units))
    }

    /// The same of a value of JSON.
    fn of_scalar(&self, scalar: Scalar<'_>) -> Option<u64> {
        match scalar {
            Scalar::Text(Token { bytes, whole }) | Scalar::Number(Token { bytes, whole }) => {
                self.of_text(bytes).filter(|_| whole)
            }
            Scalar::Word => None,
        }
    }

    fn capped(&self, units: u64) -> u64 {
        units.min(self.max.unwrap_or(u64::MAX))
    }
}

/// How much of a key or a value is looked at: more is no number, and no name of anything.
const TOKEN_MAX: usize = 256;

/// The media type of what these fields head, in small letters and without parameters.
fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let essence = value.split(';').next()?.trim();
    Some(essence.to_ascii_lowercase())
}

fn is_json(media_type: &str) -> bool {
    media_type == "application/json" || media_type.ends_with("+json")
}

/// Whether what these fields head is compressed, or encoded in another way that is not undone here.
fn is_encoded(headers: &HeaderMap) -> bool {
    let mut lines = headers.get_all(CONTENT_ENCODING).iter();
    !lines.all(|line| {
        let coding = line.as_bytes().trim_ascii();
        coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
    })
}
