//! What requests and answers say that they cost, and what they cannot make of it.

use std::sync::Arc;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use serde_json::{Value, json};
use tollgate::check::cost::request::{RequestPrice, RequestSource};
use tollgate::check::cost::response::{Reader, ResponsePrice, ResponseSource};
use tollgate::check::cost::{Body, Tariff};
use tollgate::request::RequestView;

fn tariff(max: Option<u64>, values: &[(&str, u64)]) -> Tariff {
    Tariff {
        values: values
            .iter()
            .map(|(name, units)| ((*name).into(), *units))
            .collect(),
        max,
    }
}

/// A price of at most 1,000, and 7 by default.
fn price(from: RequestSource) -> RequestPrice {
    RequestPrice {
        from,
        tariff: tariff(Some(1000), &[]),
        default: 7,
    }
}

fn header() -> RequestSource {
    RequestSource::Header("x-cost".parse().unwrap())
}

fn json_at(pointer: &str) -> RequestSource {
    RequestSource::Json(pointer.parse().unwrap())
}

/// What a request takes, and whether it did not say so.
fn read(price: &RequestPrice, lines: &[&str], query: &str, body: Body<'_>) -> (u64, bool) {
    let mut headers = HeaderMap::new();
    for line in lines {
        headers.append("x-cost", HeaderValue::from_bytes(line.as_bytes()).unwrap());
    }
    let view = RequestView {
        method: "POST",
        host: "api.example",
        path: "/",
        query: Some(query),
        headers: &headers,
    };
    let priced = price.read(view, body);
    (priced.cost.units(), priced.missing)
}

#[test]
fn a_cost_that_a_client_claims_is_bounded_on_both_sides() {
    let price = price(header());
    for (lines, expected) in [
        (&["5"] as &[&str], (5, false)),
        (&[" 5 "], (5, false)),
        (&["1.5"], (2, false)),
        (&["0"], (1, false)),
        (&["1e2"], (100, false)),
        (&["1000"], (1000, false)),
        (&["1001"], (1000, false)),
        (&["1e9"], (1000, false)),
        (&["4294967296"], (1000, false)),
        (&["18446744073709551617"], (1000, false)),
        (&["1e400"], (1000, false)),
        (&["-1"], (7, true)),
        (&[""], (7, true)),
        (&[], (7, true)),
        (&["NaN"], (7, true)),
        (&["inf"], (7, true)),
        (&["0x10"], (7, true)),
        (&["5, 6"], (7, true)),
        (&["\u{665}"], (7, true)),
        // Whichever the application believes.
        (&["5", "6"], (6, false)),
        (&["5", "x"], (7, true)),
        (&["9", "x"], (9, true)),
    ] {
        assert_eq!(read(&price, lines, "", Body::None), expected, "{lines:?}");
    }
    let unbounded = RequestPrice {
        tariff: tariff(None, &[]),
        ..price
    };
    // More than any limit: it never passes.
    let (units, _) = read(&unbounded, &["1e400"], "", Body::None);
    assert_eq!(units, 1_000_000_000_001);
}

#[test]
fn a_cost_may_be_listed_by_value() {
    let listed = RequestPrice {
        from: RequestSource::Query("type".into()),
        tariff: tariff(None, &[("search", 100), ("list", 1), ("ping", 0)]),
        default: 100,
    };
    for (query, expected) in [
        ("type=search", (100, false)),
        ("type=list", (1, false)),
        ("a=b&type=list&c", (1, false)),
        ("type=ping", (0, false)),
        ("t%79pe=l%69st", (1, false)),
        ("type=LIST", (100, true)),
        ("type=5", (100, true)),
        ("type=", (100, true)),
        ("", (100, true)),
        ("type=list&type=search", (100, false)),
        ("type=ping&type=list", (1, false)),
    ] {
        assert_eq!(read(&listed, &[], query, Body::None), expected, "{query}");
    }
}

#[test]
fn a_cost_in_a_body_is_read_where_it_stands() {
    let tokens = price(json_at("/max_tokens"));
    let long = format!("{{\"x\":\"{}\",\"max_tokens\":5}}", "y".repeat(60_000));
    let (open, close) = ("[".repeat(128), "]".repeat(128));
    let nested = format!("{{\"x\":{open}{close},\"max_tokens\":5}}");
    let endless = format!("{{\"max_tokens\":10.{}}}", "0".repeat(300));
    for (body, expected) in [
        (r#"{"max_tokens":5}"#, (5, false)),
        (r#"{"max_tokens":3.0}"#, (3, false)),
        (r#"{"max_tokens":"3"}"#, (3, false)),
        (r#"{"max_tokens":2.1}"#, (3, false)),
        (r#"{"max_tokens":0}"#, (1, false)),
        (r#"{"max_tokens":1e300}"#, (1000, false)),
        ("\u{feff}{\"max_tokens\":5}", (5, false)),
        (r#"{"m\u0061x_tokens":5}"#, (5, false)),
        (&long, (5, false)),
        (r#"{"max_tokens":-3}"#, (7, true)),
        (r#"{"max_tokens":null}"#, (7, true)),
        (r#"{"max_tokens":{"a":5}}"#, (7, true)),
        (r#"{"max_tokens":[5]}"#, (7, true)),
        (r#"{"a":{"max_tokens":5}}"#, (7, true)),
        (r#"[{"max_tokens":5}]"#, (7, true)),
        // What cannot be read an upstream may read.
        (r#"{"max_tokens":9}{"#, (1000, true)),
        (r#"{"max_tokens":5"#, (1000, true)),
        (r#"{"max_tokens":5}"x"#, (1000, true)),
        (r#"{"x":NaN,"max_tokens":10}"#, (1000, true)),
        (&nested, (1000, true)),
        (&endless, (1000, true)),
        ("", (7, true)),
        ("5", (7, true)),
        // Whichever the application believes.
        (r#"{"max_tokens":5,"max_tokens":6}"#, (6, false)),
        (r#"{"max_tokens":8,"max_tokens":null}"#, (8, true)),
    ] {
        let found = read(&tokens, &[], "", Body::Json(body.as_bytes()));
        assert_eq!(found, expected, "{body}");
    }
    assert_eq!(read(&tokens, &[], "", Body::None), (7, true));
    assert_eq!(read(&tokens, &[], "", Body::Unread), (1000, true));
    let without_max = RequestPrice {
        tariff: tariff(None, &[]),
        ..tokens
    };
    assert_eq!(read(&without_max, &[], "", Body::Unread), (7, true));
}

#[test]
fn a_batch_costs_as_many_as_it_has_items() {
    let batch = price(RequestSource::JsonArrayLength);
    let many = format!("[{}0]", "{},".repeat(5000));
    for (body, expected) in [
        ("[]", (1, false)),
        ("[1]", (1, false)),
        (r#"[{"a":[1,2]},[],null,"x",[[3]]]"#, (5, false)),
        ("{}", (1, false)),
        (r#"{"a":[1,2,3]}"#, (1, false)),
        (&many, (1000, false)),
        ("[1,2", (1000, true)),
        ("[1,]", (1000, true)),
        ("3", (7, true)),
        ("\"[1,2]\"", (7, true)),
        ("", (7, true)),
    ] {
        let found = read(&batch, &[], "", Body::Json(body.as_bytes()));
        assert_eq!(found, expected, "{}", &body[..body.len().min(40)]);
    }
}

#[test]
fn a_graphql_document_costs_as_much_as_it_is_deep() {
    let depth = price(RequestSource::GraphqlDepth);
    let deep = "{ a { b { c } } }";
    let too_deep = format!("{}{}", "{a".repeat(501), "}".repeat(501));
    for (query, body, expected) in [
        ("", json!({ "query": deep }), (3, false)),
        (
            "",
            json!({ "query": "{ a }", "variables": { "query": deep } }),
            (1, false),
        ),
        (
            "",
            json!([{ "query": deep }, { "query": "{ a }" }]),
            (4, false),
        ),
        ("", json!({ "operationName": "x" }), (7, true)),
        ("", json!([{ "query": "{ a }" }, {}]), (8, false)),
        ("", json!({ "query": "{ a" }), (1000, true)),
        ("", json!({ "query": too_deep }), (1000, true)),
        ("", json!({ "query": 5 }), (7, true)),
        ("", json!([]), (7, true)),
        ("", json!([[{ "query": deep }]]), (7, true)),
        ("query=%7Ba%7Bb%7D%7D", Value::Null, (7, true)),
        ("query=%7Ba%7Bb%7D%7D", json!({ "query": deep }), (3, false)),
        ("query=%7Ba%7B", json!({ "query": deep }), (1000, true)),
    ] {
        let body = body.to_string();
        let found = read(&depth, &[], query, Body::Json(body.as_bytes()));
        assert_eq!(found, expected, "{query} {body}");
    }
    let get = |query| read(&depth, &[], query, Body::None);
    assert_eq!(get("query=%7Ba%7Bb%7D%7D"), (2, false));
    assert_eq!(get("query={a{b+{c}}}"), (3, false));
    assert_eq!(get(""), (7, true));
}

fn fields(media_type: &str, encoding: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in [(CONTENT_TYPE, media_type), (CONTENT_ENCODING, encoding)] {
        if !value.is_empty() {
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
    }
    headers
}

/// A price by `/usage/total`, of which 500 are reserved.
fn total(max: Option<u64>) -> Arc<ResponsePrice> {
    Arc::new(ResponsePrice {
        from: ResponseSource::Json("/usage/total".parse().unwrap()),
        reserve: 500,
        tariff: tariff(max, &[]),
    })
}

/// What an answer comes to whose body comes in pieces of `size` bytes.
fn said(
    price: &Arc<ResponsePrice>,
    headers: &HeaderMap,
    body: &[u8],
    size: usize,
    is_whole: bool,
) -> Option<u64> {
    let mut reader = Reader::new(Arc::clone(price), headers);
    for piece in body.chunks(size) {
        reader.feed(piece);
    }
    reader.finish(is_whole)
}

#[test]
fn an_answer_says_its_cost_however_it_is_cut() {
    let image = format!(
        r#"{{"b64":"{}","usage":{{"total":9}}}}"#,
        "A".repeat(300_000)
    );
    let json = "application/json; charset=utf-8";
    let events = "Text/Event-Stream";
    for (media_type, body, expected) in [
        (json, r#"{"usage":{"total":300}}"#, Some(300)),
        (
            "application/problem+json",
            r#"{"usage":{"total":3.2}}"#,
            Some(4),
        ),
        (json, r#"{"usage":{"total":0}}"#, Some(0)),
        (json, r#"{"usage":{"total":"300"}}"#, Some(300)),
        (json, &image, Some(9)),
        (json, "\u{feff} {\"usage\":{\"total\":1}}", Some(1)),
        (json, r#"{"usage":{"total":-1}}"#, None),
        (json, r#"{"usage":{"total":null}}"#, None),
        (json, r#"{"usage":null}"#, None),
        (json, r#"{"usage":{"total":1e30}}"#, None),
        (json, r#"{"total":5}"#, None),
        (json, r#"{"error":"#, None),
        (json, "", None),
        (json, "<html>", None),
        // Said, and then cut off.
        (json, r#"{"usage":{"total":300},"x":"#, Some(300)),
        (json, r#"{"usage":{"total":30"#, None),
        ("text/html", r#"{"usage":{"total":300}}"#, None),
        ("", r#"{"usage":{"total":300}}"#, None),
        (
            events,
            "data: {\"usage\":null}\n\ndata: {\"usage\":{\"total\":300}}\n\ndata: [DONE]\n\n",
            Some(300),
        ),
        (
            events,
            "data: {\"usage\":{\"total\":1}}\r\n\r\ndata: {\"usage\":{\"total\":2}}\r\n\r\ndata: {\"x\":1}\r\n\r\n",
            Some(2),
        ),
        (
            events,
            "event: end\ndata: {\"usage\":\ndata: {\"total\":\ndata: 12}}\n\n",
            Some(12),
        ),
        (events, "data: {\"usage\":{\"total\":4}}", Some(4)),
        (events, ": {\"usage\":{\"total\":4}}\n\n", None),
        (events, "id: {\"usage\":{\"total\":4}}\n\n", None),
        (
            "application/x-ndjson",
            "{\"done\":false}\n{\"usage\":{\"total\":5}}\n",
            Some(5),
        ),
    ] {
        let headers = fields(media_type, "");
        let sizes = (1..=body.len().max(1)).take(60).chain([body.len().max(1)]);
        for size in sizes {
            let found = said(&total(None), &headers, body.as_bytes(), size, true);
            assert_eq!(found, expected, "{media_type} by {size}: {body:.80}");
        }
    }
}

#[test]
fn an_answer_that_is_cut_off_costs_what_was_reserved_at_least() {
    let headers = fields("application/json", "identity");
    for (units, whole, cut) in [(0, 0, 500), (300, 300, 500), (700, 700, 700)] {
        let body = json!({ "usage": { "total": units } }).to_string();
        let found = |is_whole| said(&total(None), &headers, body.as_bytes(), 7, is_whole);
        assert_eq!((found(true), found(false)), (Some(whole), Some(cut)));
    }
    assert_eq!(said(&total(None), &headers, b"{", 1, false), None);
}

#[test]
fn an_answer_claims_no_more_than_it_may() {
    let headers = fields("application/json", "");
    for (units, expected) in [("799", 799), ("801", 800), ("1e300", 800)] {
        let body = format!("{{\"usage\":{{\"total\":{units}}}}}");
        let found = said(&total(Some(800)), &headers, body.as_bytes(), 5, true);
        assert_eq!(found, Some(expected));
    }
}

#[test]
fn what_is_compressed_says_nothing() {
    for encoding in ["gzip", "br", "identity, gzip", "x"] {
        let headers = fields("application/json", encoding);
        let body = br#"{"usage":{"total":300}}"#;
        assert_eq!(said(&total(None), &headers, body, 9, true), None);
    }
}

#[test]
fn an_answer_may_cost_its_bytes_or_what_a_field_says() {
    let of = |from| {
        Arc::new(ResponsePrice {
            from,
            reserve: 10,
            tariff: tariff(Some(1000), &[]),
        })
    };
    let headers = fields("image/png", "gzip");
    let bytes = of(ResponseSource::Bytes);
    for (length, whole, cut) in [(0, 0, 10), (5, 5, 10), (50, 50, 50), (5000, 1000, 1000)] {
        let found = |is_whole| said(&bytes, &headers, &vec![0; length], 7, is_whole);
        assert_eq!((found(true), found(false)), (Some(whole), Some(cut)));
    }
    let field = of(ResponseSource::Header("x-cost".parse().unwrap()));
    for (lines, expected) in [
        (&["25"] as &[&str], Some(25)),
        (&["0"], Some(0)),
        (&["1e9"], Some(1000)),
        (&["2", "3"], Some(3)),
        (&["x"], None),
        (&[], None),
    ] {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append("x-cost", HeaderValue::from_str(line).unwrap());
        }
        assert_eq!(
            said(&field, &headers, b"25", 1, true),
            expected,
            "{lines:?}"
        );
    }
}

/// Any JSON, with keys that pointers may meet.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0_u64..1000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        "[\"\\\\/\\x00-\\x1f]{0,4}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map("[ab0/~]{0,2}", inner, 0..5)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// What `serde_json` finds at a pointer, as units.
fn found_by_serde(value: &Value, pointer: &str) -> Option<u64> {
    match value.pointer(pointer)? {
        Value::Number(number) => {
            let units = match number.as_u64() {
                Some(units) => units,
                None => {
                    let number = number.as_f64().filter(|number| *number >= 0.0)?;
                    // Exact where it matters: what is larger says nothing.
                    if number > 1e12 {
                        return None;
                    }
                    format!("{:.0}", number.ceil().abs()).parse().unwrap()
                }
            };
            (units <= 1_000_000_000_000).then_some(units)
        }
        Value::String(text) => {
            let number = serde_json::from_str::<Value>(text).ok();
            let spelled = text.trim_ascii() == text;
            let number = number.filter(|it| it.is_number() && spelled)?;
            found_by_serde(&json!({ "x": number }), "/x")
        }
        _ => None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_json_says_what_serde_json_finds_in_it(
        value in any_json(),
        pointer in "(/[ab0]{0,2}|/~0|/~1|/1|/2){1,3}",
        sizes in prop::collection::vec(1_usize..9, 1..20),
        pretty in any::<bool>(),
    ) {
        let text = if pretty {
            serde_json::to_string_pretty(&value).unwrap()
        } else {
            value.to_string()
        };
        let price = Arc::new(ResponsePrice {
            from: ResponseSource::Json(pointer.parse().unwrap()),
            reserve: 1,
            tariff: Tariff::default(),
        });
        let headers = fields("application/json", "");
        let mut reader = Reader::new(Arc::clone(&price), &headers);
        let mut rest = text.as_bytes();
        for size in sizes.iter().cycle() {
            let (piece, after) = rest.split_at((*size).min(rest.len()));
            reader.feed(piece);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(reader.finish(true), found_by_serde(&value, &pointer), "{}", text);
    }

    #[test]
    fn what_is_json_is_what_serde_json_says(text in "[\\[\\]{}:,\" \\\\untrfalse0-9eE.+-]{0,14}") {
        let parsed = serde_json::from_str::<Value>(&text);
        let batch = RequestPrice {
            from: RequestSource::JsonArrayLength,
            tariff: Tariff::default(),
            default: 0,
        };
        let (units, missing) = read(&batch, &[], "", Body::Json(text.as_bytes()));
        match parsed {
            Ok(Value::Array(items)) => {
                prop_assert_eq!(units, u64::try_from(items.len()).unwrap().max(1));
            }
            Ok(Value::Object(_)) => prop_assert_eq!(units, 1),
            Ok(_) => prop_assert!(missing),
            // Numbers that no double holds are numbers here.
            Err(error) if error.to_string().contains("number out of range") => {}
            Err(_) => prop_assert!(missing, "{}", text),
        }
    }
}
