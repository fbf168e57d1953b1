//! The spelling of where a cost stands: `request.header:x-cost`, `response.json:/usage/total_tokens`.

use http::HeaderName;

use super::decode::{Decode, Reader};
use super::error::{Code, did_you_mean};
use super::shape::Shape;
use super::tree::Node;
use super::units::Refusal;
use crate::check::cost::request::RequestSource;
use crate::check::cost::response::ResponseSource;

/// Where a cost stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum CostSource {
    Request(RequestSource),
    Response(ResponseSource),
}

/// What stands before a colon, or alone, and an example of each.
const WORDS: [(&str, &str); 8] = [
    ("request.header", "request.header:x-cost"),
    ("request.query", "request.query:type"),
    ("request.json", "request.json:/max_tokens"),
    ("request.json-array-length", "request.json-array-length"),
    ("request.graphql-depth", "request.graphql-depth"),
    ("response.header", "response.header:x-cost"),
    ("response.json", "response.json:/usage/total_tokens"),
    ("response.bytes", "response.bytes"),
];

impl Decode for CostSource {
    fn shape() -> Shape {
        Shape::Text(
            "^(request\\.(header:.+|query:.+|json:/.*|json-array-length|graphql-depth)|response\\.(header:.+|json:/.*|bytes))$",
        )
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = reader.text(
            node,
            "a source such as \"response.json:/usage/total_tokens\"",
        )?;
        parse(text)
            .map_err(|help| {
                let why = format!("`{text}` is not a source of a cost");
                reader.refuse(Code::E038, node, Refusal::new(why, help));
            })
            .ok()
    }
}

/// Reads a source; where there is none, says what to write.
fn parse(text: &str) -> Result<CostSource, String> {
    let (word, name) = match text.split_once(':') {
        Some((word, name)) => (word, Some(name)),
        None => (text, None),
    };
    let field = |name: &str| -> Result<HeaderName, String> {
        name.parse()
            .map_err(|_| format!("`{name}` cannot be the name of a header field"))
    };
    let pointer = |name: &str| {
        name.parse().map_err(|_| {
            format!(
                "write a JSON pointer of at most 256 bytes, which begins with a slash: \"{word}:/usage/total_tokens\""
            )
        })
    };
    let request = |source| Ok(CostSource::Request(source));
    let response = |source| Ok(CostSource::Response(source));
    match (word, name) {
        ("request.header", Some(name)) => request(RequestSource::Header(field(name)?)),
        ("request.query", Some(name)) if !name.is_empty() => {
            request(RequestSource::Query(name.into()))
        }
        ("request.json", Some(name)) => request(RequestSource::Json(pointer(name)?)),
        ("request.json-array-length", None) => request(RequestSource::JsonArrayLength),
        ("request.graphql-depth", None) => request(RequestSource::GraphqlDepth),
        ("response.header", Some(name)) => response(ResponseSource::Header(field(name)?)),
        ("response.json", Some(name)) => response(ResponseSource::Json(pointer(name)?)),
        ("response.bytes", None) => response(ResponseSource::Bytes),
        _ => Err(meant(word, name)),
    }
}

fn meant(word: &str, name: Option<&str>) -> String {
    let is_alone = |example: &str| !example.contains(':');
    let near = did_you_mean(word, WORDS.iter().map(|(word, _)| *word))
        .and_then(|near| WORDS.iter().find(|(word, _)| *word == near));
    match (near, name) {
        (Some((word, example)), _) if is_alone(example) => format!("write \"{word}\""),
        (Some((near, _)), Some(name)) if *near != word && !name.is_empty() => {
            format!("did you mean \"{near}:{name}\"?")
        }
        (Some((_, example)), _) => format!("write which: \"{example}\""),
        (None, _) => "write request.header:NAME, request.query:NAME, request.json:/POINTER, request.json-array-length, \
                      request.graphql-depth, response.header:NAME, response.json:/POINTER or response.bytes"
            .to_owned(),
    }
}
