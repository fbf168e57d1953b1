//! Any bytes as what a request or an answer says that it costs: the first two choose where it stands and how the rest
//! is cut.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};
use tollgate::check::cost::request::{RequestPrice, RequestSource};
use tollgate::check::cost::response::{Reader, ResponsePrice, ResponseSource};
use tollgate::check::cost::{Body, Tariff};
use tollgate::request::RequestView;

use super::Choices;

/// The most that may be claimed.
const MAX: u64 = 1000;

/// A cost is within its bounds, and the same however it comes.
pub(super) fn cost(data: &[u8]) {
    let Some((chosen, said)) = data.split_at_checked(2) else {
        return;
    };
    let mut choices = Choices::of(chosen);
    let pointer = || "/usage/total".parse().unwrap();
    match choices.among(&[0, 1, 2, 3, 4, 5, 6, 7]) {
        0 => answer(
            &ResponseSource::Json(pointer()),
            "application/json",
            said,
            &mut choices,
        ),
        1 => answer(
            &ResponseSource::Json(pointer()),
            "text/event-stream",
            said,
            &mut choices,
        ),
        2 => answer(
            &ResponseSource::Json(pointer()),
            "application/x-ndjson",
            said,
            &mut choices,
        ),
        3 => request(RequestSource::GraphqlDepth, said),
        4 => request(RequestSource::JsonArrayLength, said),
        5 => request(RequestSource::Json(pointer()), said),
        6 => request(RequestSource::Header(header::AGE), said),
        _ => request(RequestSource::Query("query".into()), said),
    }
}

fn tariff() -> Tariff {
    Tariff {
        max: Some(MAX),
        ..Tariff::default()
    }
}

fn answer(from: &ResponseSource, media_type: &'static str, body: &[u8], choices: &mut Choices<'_>) {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    let price = Arc::new(ResponsePrice {
        from: from.clone(),
        reserve: 100,
        tariff: tariff(),
    });
    let size = usize::from(choices.next()).max(1);
    let said = |size, is_whole| {
        let mut reader = Reader::new(Arc::clone(&price), &headers);
        for piece in body.chunks(size) {
            reader.feed(piece);
        }
        reader.finish(is_whole)
    };
    let whole = said(body.len().max(1), true);
    assert_eq!(said(size, true), whole, "by {size}");
    assert!(whole.is_none_or(|units| units <= MAX));
    assert_eq!(said(size, false), whole.map(|units| units.max(100)));
}

fn request(from: RequestSource, said: &[u8]) {
    let mut headers = HeaderMap::new();
    for line in said.split(|byte| *byte == b'\n') {
        if let Ok(value) = HeaderValue::from_bytes(line) {
            headers.append(header::AGE, value);
        }
    }
    let text = String::from_utf8_lossy(said);
    let price = RequestPrice {
        from,
        tariff: tariff(),
        default: 7,
    };
    for (query, body) in [
        (None, Body::Json(said)),
        (Some(&*text), Body::None),
        (Some(&*text), Body::Unread),
    ] {
        let view = RequestView {
            method: "GET",
            host: "a.example",
            path: "/",
            query,
            headers: &headers,
        };
        let priced = price.read(view, body);
        assert!((1..=MAX).contains(&priced.cost.units()));
        assert!(!priced.missing || priced.cost.units() >= 7);
    }
}
