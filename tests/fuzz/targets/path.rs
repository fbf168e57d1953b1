//! Any text as a request's path, and its other spellings.
//!
//! An input is the path, and behind a line's end the bytes that choose how it is spelt anew.

use std::sync::{Arc, OnceLock};

use http::HeaderMap;
use tollgate::request::RequestView;
use tollgate::route::path::{Normalised, resolved, without_prefix};
use tollgate::route::pattern::{Path, Segment};
use tollgate::route::{Pattern, Table};

const PATTERNS: [&str; 9] = [
    "/",
    "/a",
    "/a/b",
    "/a/{x}",
    "/a/*",
    "/{x}/b",
    "/v1/login",
    "/v1/{x}/reports/*",
    "/*",
];

/// One endpoint's spellings are one path, and what is forwarded met the limits of where it leads.
pub(super) fn path(data: &[u8]) {
    let mut parts = data.splitn(2, |byte| *byte == b'\n');
    let raw = parts.next().and_then(|raw| std::str::from_utf8(raw).ok());
    let Some(raw) = raw else {
        return;
    };
    let _ = resolved(raw);
    for prefix in ["/", "/a", "/v1/login"] {
        if let Some(rest) = without_prefix(raw, prefix) {
            assert!(rest == "/" || raw.ends_with(rest));
        }
    }
    let Ok(normal) = Normalised::new(raw) else {
        return;
    };
    for segment in &normal.segments {
        assert!(!matches!(&**segment, "" | "." | ".."), "{normal:?}");
        assert!(!segment.chars().any(|c| c.is_ascii_control()), "{normal:?}");
    }
    // As requests have them.
    if raw.starts_with('/') {
        let canonical = canonical(&normal.segments);
        let again = Normalised::new(&canonical).map(|normal| normal.segments);
        assert_eq!(again, Ok(normal.segments.clone()), "{canonical}");
    }
    let spelt = spelt_anew(raw, parts.next().unwrap_or_default());
    assert_eq!(Normalised::new(&spelt).as_ref(), Ok(&normal), "{spelt}");
    let table = TABLE.get_or_init(table);
    let route = |normal: &Normalised| table.find(view(raw), normal).map(|found| *found.route);
    assert!(route(&normal).is_some());

    let forwarded = resolved(raw);
    let leads_to = Normalised::new(&forwarded).expect("what is forwarded can be read");
    assert_eq!(resolved(&forwarded), forwarded);
    let limited = table_of(&leads_to.segments);
    let found = limited.find(view(raw), &normal).map(|found| *found.route);
    assert_eq!(found, Some(0), "{raw} is forwarded as {forwarded}");
}

static TABLE: OnceLock<Table<usize>> = OnceLock::new();

fn table() -> Table<usize> {
    let pattern = |text: &str| Pattern {
        paths: vec![Path::parse(text).unwrap()],
        ..Pattern::default()
    };
    let routes = PATTERNS.iter().enumerate();
    Table::new(routes.map(|(at, text)| (pattern(text), at)).collect()).unwrap()
}

/// A route for this path alone, and one for all others.
fn table_of(segments: &[String]) -> Table<usize> {
    let literal = |segment: &String| Segment::Literal(Arc::from(&**segment));
    let this = Path {
        segments: segments.iter().map(literal).collect(),
        open: false,
    };
    let only = |path| Pattern {
        paths: vec![path],
        ..Pattern::default()
    };
    let any = Path::parse("/*").unwrap();
    Table::new(vec![(only(this), 0), (only(any), 1)]).unwrap()
}

fn view(raw: &str) -> RequestView<'_> {
    static NONE: OnceLock<HeaderMap> = OnceLock::new();
    RequestView {
        method: "GET",
        // Whatever it is, it is a host.
        host: raw,
        path: raw,
        query: None,
        headers: NONE.get_or_init(HeaderMap::new),
    }
}

/// Every byte escaped.
fn canonical(segments: &[String]) -> String {
    let mut path = String::new();
    for segment in segments {
        path.push('/');
        segment
            .bytes()
            .for_each(|byte| escape(byte, true, &mut path));
    }
    path
}

fn escape(byte: u8, upper: bool, spelt: &mut String) {
    let digits = format!("%{byte:02x}");
    spelt.push_str(&if upper {
        digits.to_ascii_uppercase()
    } else {
        digits
    });
}

/// The same path with some characters escaped that were not, and digits of escapes in another case.
fn spelt_anew(raw: &str, choices: &[u8]) -> String {
    let mut choices = choices.iter().cycle();
    let mut spelt = String::new();
    let mut chars = raw.chars();
    while let Some(char) = chars.next() {
        let choice = choices.next().copied().unwrap_or(0);
        match char {
            '%' => {
                let digits: String = chars.by_ref().take(2).collect();
                spelt.push('%');
                spelt.push_str(&match choice % 3 {
                    0 => digits,
                    1 => digits.to_ascii_lowercase(),
                    _ => digits.to_ascii_uppercase(),
                });
            }
            '/' => spelt.push('/'),
            _ if choice % 2 == 0 => spelt.push(char),
            _ => {
                let mut bytes = [0; 4];
                for byte in char.encode_utf8(&mut bytes).bytes() {
                    escape(byte, choice & 2 == 0, &mut spelt);
                }
            }
        }
    }
    spelt
}
