//! Which route a request takes, however its path is spelled.

#![expect(clippy::unwrap_used, reason = "a test that stumbles has failed")]

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proptest::prelude::*;
use tollgate::request::RequestView;
use tollgate::route::path::{Normalised, PathError, resolved};
use tollgate::route::pattern::{Host, Path, PatternError, Segment, Value};
use tollgate::route::{Pattern, Table, Tie};

fn normal(path: &str) -> Vec<String> {
    Normalised::new(path).unwrap().segments
}

fn on(path: &str) -> Pattern {
    Pattern {
        paths: vec![Path::parse(path).unwrap()],
        ..Pattern::default()
    }
}

fn at(host: &str, path: &str) -> Pattern {
    Pattern {
        hosts: vec![Host::parse(host).unwrap()],
        ..on(path)
    }
}

fn with_methods(pattern: Pattern, methods: &[Method]) -> Pattern {
    Pattern {
        methods: methods.to_vec(),
        ..pattern
    }
}

fn with_header(mut pattern: Pattern, name: &'static str, value: Value) -> Pattern {
    let name = HeaderName::from_static(name);
    pattern.headers.push((name, value));
    pattern
}

fn with_query(mut pattern: Pattern, name: &str, value: Value) -> Pattern {
    pattern.query.push((name.into(), value));
    pattern
}

fn exactly(value: &str) -> Value {
    Value::Exact(value.into())
}

fn table(routes: &[(&'static str, Pattern)]) -> Table<&'static str> {
    let routes = routes
        .iter()
        .map(|(name, pattern)| (pattern.clone(), *name));
    Table::new(routes.collect()).unwrap()
}

fn ties(patterns: &[Pattern]) -> Vec<(usize, usize)> {
    let routes = patterns.iter().cloned().map(|pattern| (pattern, ()));
    match Table::new(routes.collect()) {
        Ok(_) => Vec::new(),
        Err(ties) => ties
            .iter()
            .map(|Tie { first, second }| (*first, *second))
            .collect(),
    }
}

#[derive(Clone, Copy)]
struct Ask<'a> {
    method: &'a str,
    host: &'a str,
    target: &'a str,
    headers: &'a [(&'static str, &'static str)],
}

const ASK: Ask<'static> = Ask {
    method: "GET",
    host: "api.example.com",
    target: "/",
    headers: &[],
};

fn taken(table: &Table<&'static str>, ask: Ask<'_>) -> Option<(&'static str, Vec<String>)> {
    let (path, query) = match ask.target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (ask.target, None),
    };
    let mut headers = HeaderMap::new();
    for (name, value) in ask.headers {
        headers.append(*name, HeaderValue::from_static(value));
    }
    let request = RequestView {
        method: ask.method,
        host: ask.host,
        path,
        query,
        headers: &headers,
    };
    let matched = table.find(request, &Normalised::new(path).unwrap())?;
    let params = matched
        .params
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    Some((matched.route, params.collect()))
}

fn route_of(table: &Table<&'static str>, ask: Ask<'_>) -> &'static str {
    taken(table, ask).map_or("none", |(route, _)| route)
}

#[test]
fn a_path_has_one_spelling() {
    for (raw, expected, reason) in [
        ("/v1/login", &["v1", "login"][..], "as it is"),
        ("/", &[], "the root"),
        ("", &[], "an empty path is the root"),
        (
            "/v1/login/",
            &["v1", "login"],
            "a trailing slash means nothing",
        ),
        ("//v1///login//", &["v1", "login"], "nor do empty segments"),
        (
            "/v1/%6Cogin",
            &["v1", "login"],
            "an unreserved character escaped",
        ),
        ("/v1/%6cogin", &["v1", "login"], "in lower case too"),
        ("/x/../v1/./login", &["v1", "login"], "dot segments"),
        (
            "/x/%2e%2E/v1/%2e/login",
            &["v1", "login"],
            "escaped dot segments",
        ),
        (
            "/../../v1/login",
            &["v1", "login"],
            "above the root is the root",
        ),
        ("/v1/login/..", &["v1"], "a dot segment at the end"),
        ("/v1/login/x/..", &["v1", "login"], "back to where it was"),
        ("/v1/...", &["v1", "..."], "three dots are a name"),
        (
            "/a%3Ab%40",
            &["a:b@"],
            "reserved characters escaped: upstreams decode them too",
        ),
        ("/a%2Fb", &["a/b"], "an escaped slash is within its segment"),
        ("/a%2fb", &["a/b"], "in lower case too"),
        ("/a\\b/%5C", &["a\\b", "\\"], "so is a backslash"),
        ("/a;x=1/b;", &["a;x=1", "b;"], "parameters stay"),
        ("/a%20b+c", &["a b+c"], "a plus is no space in a path"),
        ("/caf%C3%A9", &["café"], "UTF-8"),
        ("/caf%e9", &["caf%E9"], "what is no UTF-8 stays escaped"),
        ("/100%25", &["100%"], "an escaped percent sign"),
        ("/%256Cogin", &["%6Cogin"], "decoded once"),
        (
            "/Login",
            &["Login"],
            "case stays: it is folded where routes compare",
        ),
        ("*", &["*"], "OPTIONS *"),
    ] {
        assert_eq!(normal(raw), expected, "{reason}: {raw}");
    }
}

#[test]
fn a_path_that_upstreams_may_cut_short_is_refused() {
    for (raw, expected, reason) in [
        ("/v1/login%00", PathError::Control, "NUL ends a C string"),
        (
            "/v1/login%00.png",
            PathError::Control,
            "and hides an extension",
        ),
        ("/v1/login%0a", PathError::Control, "line feed"),
        ("/v1/login%7F", PathError::Control, "DEL"),
        ("/v1/login\u{1}", PathError::Control, "unescaped"),
        ("/v1/login%", PathError::Escape, "half an escape"),
        ("/v1/login%2", PathError::Escape, "half an escape"),
        ("/v1/%zz", PathError::Escape, "no hexadecimal digits"),
        ("/v1/%+1", PathError::Escape, "a sign is no digit"),
        ("/v1/%u002f", PathError::Escape, "an escape of IIS's own"),
        (
            "/v1/login#x",
            PathError::Delimiter,
            "a fragment is never sent",
        ),
        (
            "/v1/login x",
            PathError::Delimiter,
            "a space ends the target",
        ),
    ] {
        assert_eq!(Normalised::new(raw), Err(expected), "{reason}: {raw}");
    }
}

#[test]
fn a_path_has_at_most_256_segments_by_whatever_parts_them() {
    for part in ["/a", "/", "\\", "%2f", "%5C"] {
        assert!(Normalised::new(&part.repeat(256)).is_ok(), "{part}");
        let found = Normalised::new(&part.repeat(257));
        assert_eq!(found, Err(PathError::TooManySegments), "{part}");
    }
}

#[test]
fn no_spelling_of_a_path_evades_its_route() {
    let table = table(&[
        ("login", on("/v1/login")),
        ("v1", on("/v1/*")),
        ("rest", on("/*")),
    ]);
    for (target, reason) in [
        ("/v1/login", "as it is"),
        ("/v1/login/", "trailing slash"),
        ("/v1//login", "empty segment"),
        ("//v1/login", "empty segment in front"),
        ("/v1/%6Cogin", "escaped letter"),
        ("/x/../v1/login", "dot segments"),
        ("/v1/x/%2e%2e/login", "escaped dot segments"),
        ("/V1/LOGIN", "routers without case"),
        ("/v1/Login", "routers without case"),
        ("/v1/%4Cogin", "an escaped letter of the other case"),
        ("/v1/login;x=1", "servlets drop parameters"),
        ("/v1;a/login;b", "of every segment"),
        ("/v1/login%3Bx", "also when escaped, some"),
        ("/v1%2Flogin", "who decodes before parting"),
        ("/v1%2flogin", "in lower case too"),
        ("/v1\\login", "who reads a backslash as a slash"),
        ("/v1%5Clogin", "also when escaped"),
        ("/v1/login%2F", "a trailing slash, escaped"),
        ("/v1/login;a%2Fb", "a slash within a parameter"),
        ("/v1/login//..", "who takes back the empty segment"),
        ("//v1/login//..", "an empty segment that stays is none"),
        ("/v1/login/;/..", "or behind a parameter alone"),
    ] {
        assert_eq!(
            route_of(&table, Ask { target, ..ASK }),
            "login",
            "{reason}: {target}"
        );
    }
    for (target, expected) in [
        ("/v1/logins", "v1"),
        ("/v1/login/x", "v1"),
        ("/v1", "v1"),
        ("/v1/", "v1"),
        ("/v2/login", "rest"),
        ("/v1/login/..", "v1"),
        ("/", "rest"),
    ] {
        assert_eq!(
            route_of(&table, Ask { target, ..ASK }),
            expected,
            "{target}"
        );
    }
}

#[test]
fn what_is_forwarded_has_no_dot_segments_and_is_else_as_it_was_sent() {
    for (raw, expected, reason) in [
        (
            "/v1//%6Cogin;x/%2F/",
            "/v1//%6Cogin;x/%2F/",
            "nothing to resolve",
        ),
        ("/v1/x/../%6Cogin", "/v1/%6Cogin", "one back"),
        ("/v1/x/%2e%2E/login", "/v1/login", "escaped"),
        ("/./v1/.", "/v1/", "a dot at the end"),
        ("/v1/login/..", "/v1/", "two at the end"),
        ("/../..", "/", "above the root"),
        (
            "/v1/login//..",
            "/v1/login/",
            "an empty segment is taken back",
        ),
        ("/v1/...", "/v1/...", "a name"),
        ("*", "*", "OPTIONS *"),
    ] {
        assert_eq!(resolved(raw), expected, "{reason}");
    }
}

#[test]
fn an_escaped_slash_still_names_a_thing_with_a_slash() {
    let table = table(&[("project", on("/projects/{id}/issues")), ("rest", on("/*"))]);
    let found = taken(
        &table,
        Ask {
            target: "/projects/group%2Fname/issues",
            ..ASK
        },
    );
    assert_eq!(found, Some(("project", vec!["id=group/name".to_owned()])));
    let found = taken(
        &table,
        Ask {
            target: "/projects/a;v=1/issues",
            ..ASK
        },
    );
    assert_eq!(
        found,
        Some(("project", vec!["id=a;v=1".to_owned()])),
        "parameters are kept"
    );
}

#[test]
fn params_come_decoded_and_by_name() {
    let table = table(&[("item", on("/shops/{shop}/items/{item}/*"))]);
    let found = taken(
        &table,
        Ask {
            target: "/shops/caf%C3%A9/Items/7/a/b",
            ..ASK
        },
    );
    let params = vec!["shop=café".to_owned(), "item=7".to_owned()];
    assert_eq!(found, Some(("item", params)));
    assert_eq!(
        taken(
            &table,
            Ask {
                target: "/shops/x/items",
                ..ASK
            }
        ),
        None,
        "a parameter is a segment"
    );
}

#[test]
fn the_most_specific_path_wins() {
    let mut routes = vec![
        ("all", on("/*")),
        ("root", on("/")),
        ("a-open", on("/a/*")),
        ("a", on("/a")),
        ("a-param", on("/a/{x}")),
        ("a-param-open", on("/a/{x}/*")),
        ("a-b-open", on("/a/b/*")),
        ("a-b-c", on("/a/b/c")),
        ("a-param-c", on("/a/{x}/c")),
        ("param-b", on("/{x}/b")),
    ];
    for turned in [false, true] {
        if turned {
            routes.reverse();
        }
        let table = table(&routes);
        for (target, expected, reason) in [
            ("/", "root", "closed before open"),
            ("/a", "a", "closed before open"),
            (
                "/a/b",
                "a-b-open",
                "a literal before a parameter, though open",
            ),
            ("/a/z", "a-param", "closed before open"),
            ("/a/z/c", "a-param-c", "longer before shorter"),
            ("/a/z/d", "a-param-open", "longer before shorter"),
            ("/a/b/c", "a-b-c", "literal all the way"),
            ("/a/b/d/e", "a-b-open", "any number of segments may follow"),
            ("/z/b", "param-b", "a parameter before nothing"),
            ("/z/y", "all", "everything else"),
        ] {
            assert_eq!(
                route_of(&table, Ask { target, ..ASK }),
                expected,
                "{reason}: {target}"
            );
        }
        let order: Vec<_> = table.iter().copied().collect();
        assert_eq!(
            order,
            [
                "a-b-c",
                "a-b-open",
                "a-param-c",
                "a-param",
                "a-param-open",
                "a",
                "a-open",
                "param-b",
                "root",
                "all"
            ]
        );
    }
}

#[test]
fn the_most_specific_host_wins() {
    let table = table(&[
        ("any", on("/*")),
        ("any-x", on("/x")),
        ("com", at("*.com", "/*")),
        ("example", at("*.example.com", "/*")),
        ("api", at("api.example.com", "/*")),
        ("v6", at("2001:DB8::1", "/*")),
        ("v4", at("192.0.2.1", "/*")),
    ]);
    for (host, expected, reason) in [
        ("api.example.com", "api", "exact"),
        ("API.Example.COM", "api", "hosts have no case"),
        ("api.example.com:8443", "api", "nor a port"),
        ("api.example.com.", "api", "nor a trailing dot"),
        ("api.example.com.:80", "api", "nor both"),
        ("www.example.com", "example", "below"),
        ("a.b.example.com", "example", "far below"),
        ("example.com", "com", "not below itself"),
        ("badexample.com", "com", "a suffix begins at a dot"),
        ("com", "any", "not below itself"),
        ("[2001:db8::1]", "v6", "IPv6"),
        ("[2001:db8:0::1]:443", "v6", "in another spelling"),
        ("192.0.2.1:80", "v4", "IPv4"),
        ("", "any", "no host"),
        ("[", "any", "no host at all"),
    ] {
        assert_eq!(
            route_of(&table, Ask { host, ..ASK }),
            expected,
            "{reason}: {host}"
        );
    }
    let target = "/x";
    assert_eq!(
        route_of(&table, Ask { target, ..ASK }),
        "api",
        "the host is looked at before the path"
    );
}

#[test]
fn a_less_specific_host_is_asked_when_no_path_of_the_other_fits() {
    let table = table(&[("api", at("api.example.com", "/v1")), ("any", on("/*"))]);
    assert_eq!(
        route_of(
            &table,
            Ask {
                target: "/v2",
                ..ASK
            }
        ),
        "any"
    );
    let narrow = self::table(&[("api", at("api.example.com", "/v1"))]);
    assert_eq!(
        route_of(
            &narrow,
            Ask {
                target: "/v2",
                ..ASK
            }
        ),
        "none"
    );
}

#[test]
fn methods_header_fields_and_query_narrow_a_path() {
    let table = table(&[
        ("plain", on("/x")),
        ("get", with_methods(on("/x"), &[Method::GET])),
        (
            "get-beta",
            with_header(
                with_methods(on("/x"), &[Method::GET]),
                "x-beta",
                Value::Present,
            ),
        ),
        (
            "get-beta-2",
            with_header(
                with_methods(on("/x"), &[Method::GET]),
                "x-beta",
                exactly("2"),
            ),
        ),
        (
            "post-q",
            with_query(
                with_methods(on("/x"), &[Method::POST]),
                "q s",
                exactly("a&b"),
            ),
        ),
        ("any-q", with_query(on("/x"), "q", Value::Present)),
    ]);
    for (method, target, headers, expected, reason) in [
        ("GET", "/x", &[][..], "get", "the method"),
        ("HEAD", "/x", &[], "plain", "GET doesn't imply HEAD"),
        ("get", "/x", &[], "plain", "methods have case"),
        ("GET", "/x", &[("x-beta", "1")], "get-beta", "any value"),
        ("GET", "/x", &[("x-beta", "2")], "get-beta-2", "this value"),
        (
            "GET",
            "/x",
            &[("x-beta", "1"), ("x-beta", "2")],
            "get-beta-2",
            "on any line",
        ),
        ("PUT", "/x", &[("x-beta", "2")], "plain", "all must hold"),
        (
            "POST",
            "/x?q+s=a%26b",
            &[],
            "post-q",
            "name and value decoded",
        ),
        ("POST", "/x?a=1&q%20s=a%26b&b", &[], "post-q", "anywhere"),
        ("POST", "/x?q%20s=other", &[], "plain", "another value"),
        ("PUT", "/x?q", &[], "any-q", "present without a value"),
        ("PUT", "/x?qq=1", &[], "plain", "another name"),
        ("PUT", "/x?", &[], "plain", "an empty query"),
    ] {
        let ask = Ask {
            method,
            target,
            headers,
            ..ASK
        };
        assert_eq!(
            route_of(&table, ask),
            expected,
            "{reason}: {method} {target}"
        );
    }
}

#[test]
fn equal_right_to_one_request_is_a_tie() {
    let get = |path| with_methods(on(path), &[Method::GET]);
    for (patterns, expected, reason) in [
        (vec![on("/a"), on("/a")], &[(0, 1)][..], "the same"),
        (
            vec![on("/a"), on("/A/")],
            &[(0, 1)],
            "case and a trailing slash tell nothing apart",
        ),
        (
            vec![on("/a/{x}"), on("/a/{y}")],
            &[(0, 1)],
            "nor do names of parameters",
        ),
        (
            vec![on("/a/*"), on("/b"), on("/a/*")],
            &[(0, 2)],
            "positions are as given",
        ),
        (
            vec![on("/a"), on("/a"), on("/a")],
            &[(0, 1), (0, 2)],
            "each that ties, once",
        ),
        (
            vec![Pattern::default(), on("/*")],
            &[(0, 1)],
            "no path is every path",
        ),
        (vec![at("a.b", "/"), at("A.b.", "/")], &[(0, 1)], "one host"),
        (
            vec![at("*.b", "/"), at("*.b", "/")],
            &[(0, 1)],
            "one suffix",
        ),
        (
            vec![
                get("/a"),
                with_methods(on("/a"), &[Method::PUT, Method::GET]),
            ],
            &[(0, 1)],
            "GET",
        ),
        (
            vec![
                with_header(on("/a"), "x", Value::Present),
                with_header(on("/a"), "y", Value::Present),
            ],
            &[(0, 1)],
            "both fields can stand",
        ),
        (
            vec![
                with_header(on("/a"), "x", exactly("1")),
                with_header(on("/a"), "y", exactly("1")),
            ],
            &[(0, 1)],
            "both fields can stand",
        ),
        (
            vec![
                with_query(on("/a"), "x", exactly("1")),
                with_query(on("/a"), "x", exactly("1")),
            ],
            &[(0, 1)],
            "the same query",
        ),
        (vec![on("/a"), on("/b")], &[], "two literals"),
        (
            vec![on("/a"), on("/{x}")],
            &[],
            "a literal is more specific",
        ),
        (vec![on("/a"), on("/a/*")], &[], "closed is more specific"),
        (
            vec![at("a.b", "/"), on("/")],
            &[],
            "a host is more specific",
        ),
        (vec![at("a.b", "/"), at("a.c", "/")], &[], "two hosts"),
        (
            vec![at("a.b", "/"), at("*.b", "/")],
            &[],
            "exact is more specific",
        ),
        (
            vec![at("*.a.b", "/"), at("*.b", "/")],
            &[],
            "longer is more specific",
        ),
        (
            vec![get("/a"), with_methods(on("/a"), &[Method::PUT])],
            &[],
            "two methods",
        ),
        (vec![get("/a"), on("/a")], &[], "a method is more specific"),
        (
            vec![get("/a"), with_header(on("/a"), "x", Value::Present)],
            &[],
            "methods before fields",
        ),
        (
            vec![
                with_header(on("/a"), "x", exactly("1")),
                with_header(on("/a"), "x", exactly("2")),
            ],
            &[],
            "two values",
        ),
        (
            vec![
                with_header(on("/a"), "x", exactly("1")),
                with_header(on("/a"), "x", Value::Present),
            ],
            &[],
            "a value is more specific",
        ),
    ] {
        assert_eq!(ties(&patterns), expected, "{reason}: {patterns:?}");
    }
    let several = Pattern {
        paths: vec![Path::parse("/a").unwrap(), Path::parse("/b").unwrap()],
        ..Pattern::default()
    };
    assert_eq!(
        ties(&[several.clone(), on("/b")]),
        [(0, 1)],
        "one of several paths"
    );
    let twice = Pattern {
        paths: [several.paths.clone(), several.paths].concat(),
        ..Pattern::default()
    };
    assert_eq!(ties(&[twice]), [], "nobody ties with itself");
}

#[test]
fn a_path_pattern_is_read_or_refused_with_its_reason() {
    let literal = |text: &str| Segment::Literal(text.into());
    let param = |text: &str| Segment::Param(text.into());
    for (text, segments, open) in [
        ("/", vec![], false),
        ("/*", vec![], true),
        (
            "/v1/products/*",
            vec![literal("v1"), literal("products")],
            true,
        ),
        (
            "/v1/{id}/x/",
            vec![literal("v1"), param("id"), literal("x")],
            false,
        ),
        ("/caf%C3%A9", vec![literal("café")], false),
        ("/a%2Fb;c", vec![literal("a/b;c")], false),
    ] {
        assert_eq!(Path::parse(text), Ok(Path { segments, open }), "{text}");
    }
    for (text, expected) in [
        ("", "a path begins with `/`"),
        ("*", "a path begins with `/`"),
        ("v1/login", "a path begins with `/`"),
        (
            "/v1//login",
            "the path has an empty segment: requests are matched with `//` read as `/`",
        ),
        (
            "/v1/../login",
            "the path has the segment `..`: write the path that it leads to",
        ),
        (
            "/v1/%2e",
            "the path has the segment `%2e`: write the path that it leads to",
        ),
        (
            "/v1/log*",
            "`log*` has a `*`: only a last segment `/*` stands for all that follows; one segment is `{name}`",
        ),
        (
            "/v1/*/x",
            "`*` has a `*`: only a last segment `/*` stands for all that follows; one segment is `{name}`",
        ),
        (
            "/v1/{}",
            "`{}` is neither a literal nor `{name}`: a parameter is a whole segment, named by letters, digits, `_` and `-`",
        ),
        (
            "/v1/a{x}",
            "`a{x}` is neither a literal nor `{name}`: a parameter is a whole segment, named by letters, digits, `_` and `-`",
        ),
        ("/{x}/{x}", "the parameter `{x}` stands in the path twice"),
        (
            "/v1?x=1",
            "a path ends before `?`: match the query by `query`",
        ),
        (
            "/v1#x",
            "a path ends before `#`: match the query by `query`",
        ),
        (
            "/v1%2",
            "the path has a % that two hexadecimal digits don't follow",
        ),
        ("/v1 x", "the path has a space or # that isn't escaped"),
        ("/v1%00", "the path has a control character"),
    ] {
        assert_eq!(
            Path::parse(text).unwrap_err().to_string(),
            expected,
            "{text}"
        );
    }
}

#[test]
fn a_host_pattern_is_read_or_refused_with_its_reason() {
    for (text, expected) in [
        ("api.example.com", Host::Exact("api.example.com".into())),
        ("API.Example.com.", Host::Exact("api.example.com".into())),
        ("*.example.com", Host::Suffix("example.com".into())),
        ("localhost", Host::Exact("localhost".into())),
        ("192.0.2.1", Host::Exact("192.0.2.1".into())),
        ("[2001:DB8::1]", Host::Exact("[2001:db8::1]".into())),
        ("::1", Host::Exact("[::1]".into())),
    ] {
        assert_eq!(Host::parse(text), Ok(expected), "{text}");
    }
    let no_port = |text: &str| PatternError::Port(text.to_owned());
    let no_host = |text: &str| PatternError::NotAHost(text.to_owned());
    let star = |text: &str| PatternError::HostStar(text.to_owned());
    for (text, expected) in [
        ("", PatternError::NoHost),
        ("*", PatternError::NoHost),
        ("api.example.com:8080", no_port("api.example.com:8080")),
        ("[::1]:80", no_port("[::1]:80")),
        ("api.*.com", star("api.*.com")),
        ("*api.example.com", star("*api.example.com")),
        ("*.*.com", star("*.*.com")),
        ("*.", PatternError::NoHost),
        ("a..b", no_host("a..b")),
        ("bücher.example", no_host("bücher.example")),
        ("https://example.com", no_host("https://example.com")),
        ("user@example.com", no_host("user@example.com")),
    ] {
        assert_eq!(Host::parse(text), Err(expected), "{text}");
    }
}

proptest! {
    #[test]
    fn no_path_makes_it_stumble(
        raw in prop_oneof!["(/|%2f|%2e|\\.|;|\\\\|a|%|%5c|//|\\.\\.){0,24}", any::<String>()],
        host in "[a-z.:\\[\\]*]{0,12}",
    ) {
        let table = table(&[("a", at("*.a", "/a/{x}/*")), ("rest", on("/*"))]);
        if let Ok(path) = Normalised::new(&raw) {
            prop_assert!(path.segments.iter().all(|s| !s.is_empty() && s != "." && s != ".."));
            let forwarded = resolved(&raw);
            prop_assert_eq!(resolved(&forwarded), &*forwarded, "once is enough");
            prop_assert!(Normalised::new(&forwarded).is_ok());
            let headers = HeaderMap::new();
            let request = RequestView { method: "GET", host: &host, path: &raw, query: Some(&raw), headers: &headers };
            prop_assert!(table.find(request, &path).is_some());
        }
        let _ = (Path::parse(&raw), Host::parse(&raw), Host::parse(&host));
    }

    #[test]
    fn an_escape_of_any_letter_changes_no_route(which in proptest::collection::vec(any::<bool>(), 9)) {
        let spelled: String = "/v1/login"
            .chars()
            .zip(which)
            .map(|(c, escape)| if escape && c != '/' { format!("%{:02x}", u32::from(c)) } else { c.to_string() })
            .collect();
        prop_assert_eq!(normal(&spelled), ["v1", "login"]);
    }

    #[test]
    fn the_order_in_the_file_changes_nothing(
        paths in Just(vec!["/*", "/", "/a", "/a/*", "/a/{x}", "/{x}", "/{x}/b", "/a/b", "/a/b/*"]).prop_shuffle(),
        target in "(/[abc]){0,4}",
    ) {
        let routes: Vec<_> = paths.iter().map(|path| (*path, on(path))).collect();
        let mut sorted = routes.clone();
        sorted.sort_by_key(|(name, _)| *name);
        let one = route_of(&table(&routes), Ask { target: &target, ..ASK });
        prop_assert_eq!(one, route_of(&table(&sorted), Ask { target: &target, ..ASK }));
    }
}
