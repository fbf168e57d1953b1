//! Who may use the admin API: whoever names its token, and without one whoever is on this machine, but no page that a
//! browser on this machine shows. Such a page may post wherever it likes; then its request has an `Origin`. Or its own
//! name may be made to lead here; then that name stands in `Host`.

use std::net::{IpAddr, SocketAddr};

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::uri::Authority;
use http::{HeaderName, HeaderValue, StatusCode};

use super::reply::Reply;
use crate::config::Token;

/// Whether the API at `address` serves this request.
///
/// # Errors
///
/// The answer to it, if not.
pub fn admit(head: &Parts, token: Option<Token>, address: SocketAddr) -> Result<(), Reply> {
    if head.headers.contains_key(ORIGIN) {
        return Err(Reply::problem(
            StatusCode::FORBIDDEN,
            "Pages cannot use the admin API: the request has an Origin.",
        ));
    }
    match token {
        Some(token) if named(head).is_some_and(|named| token.is(named)) => Ok(()),
        Some(_) => Err(Reply::unauthorized()),
        None if names_this_machine(head, address.ip()) => Ok(()),
        None => Err(Reply::problem(
            StatusCode::FORBIDDEN,
            "Without a token the admin API is used as localhost, 127.0.0.1 or [::1]: another Host was asked for.",
        )),
    }
}

/// The token that the request names.
fn named(head: &Parts) -> Option<&[u8]> {
    let value = only(head, AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme
        .eq_ignore_ascii_case(b"Bearer ")
        .then(|| token.trim_ascii())
}

fn names_this_machine(head: &Parts, address: IpAddr) -> bool {
    let host = only(head, HOST)
        .and_then(|host| host.to_str().ok())
        .and_then(|host| host.parse().ok());
    let here = |authority: &Authority| is_this_machine(authority, address);
    // A target with an authority of its own is asked for by that one.
    host.as_ref().is_some_and(here) && head.uri.authority().is_none_or(here)
}

fn is_this_machine(authority: &Authority, address: IpAddr) -> bool {
    let host = authority.host();
    let ip: Option<IpAddr> = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse()
        .ok();
    match ip {
        Some(ip) => ip.to_canonical().is_loopback() || ip == address,
        None => host.eq_ignore_ascii_case("localhost"),
    }
}

/// The field, if it stands there once.
fn only(head: &Parts, name: HeaderName) -> Option<&HeaderValue> {
    let mut values = head.headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(target: &str, fields: &[(&str, &str)], token: Option<&str>) -> u16 {
        let mut request = http::Request::post(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let token = token.map(|token| Token::from_bytes(token.as_bytes()).unwrap());
        let address = "127.0.0.1:9901".parse().unwrap();
        admit(&head, token, address).map_or_else(|reply| reply.status.as_u16(), |()| 200)
    }

    #[test]
    fn without_a_token_only_this_machine_is_asked_for() {
        for (hosts, expected) in [
            (&["127.0.0.1:9901"] as &[_], 200),
            (&["127.9.9.9"], 200),
            (&["localhost:9901"], 200),
            (&["LocalHost"], 200),
            (&["[::1]:9901"], 200),
            (&["[::ffff:127.0.0.1]"], 200),
            (&[], 403),
            (&[""], 403),
            (&["evil.example:9901"], 403),
            (&["localhost.evil.example"], 403),
            (&["127.0.0.1.evil.example"], 403),
            (&["10.0.0.1:9901"], 403),
            (&["0.0.0.0:9901"], 403),
            (&["localhost", "evil.example"], 403),
            (&["evil.example/localhost"], 403),
        ] {
            let fields: Vec<_> = hosts.iter().map(|host| ("host", *host)).collect();
            assert_eq!(status("/v1/reload", &fields, None), expected, "{hosts:?}");
        }
        let here = ("host", "localhost");
        let target = "http://evil.example/v1/reload";
        assert_eq!(status(target, &[here], None), 403);
        assert_eq!(status("/v1/reload", &[here, ("origin", "null")], None), 403);
    }

    #[test]
    fn with_a_token_the_token_counts() {
        let token = "0123456789abcdef";
        let ask = |value: &str| {
            let fields = [("host", "gateway.example"), ("authorization", value)];
            status("/v1/reload", &fields, Some(token))
        };
        for (value, expected) in [
            ("Bearer 0123456789abcdef", 200),
            ("bearer 0123456789abcdef", 200),
            ("Bearer  0123456789abcdef ", 200),
            ("Bearer 0123456789abcdeF", 401),
            ("Bearer 0123456789abcde", 401),
            ("Bearer", 401),
            ("Basic 0123456789abcdef", 401),
            ("0123456789abcdef", 401),
            ("", 401),
        ] {
            assert_eq!(ask(value), expected, "{value}");
        }
        let right = ("authorization", "Bearer 0123456789abcdef");
        for (fields, expected) in [
            (&[] as &[_], 401),
            (&[right], 200),
            (&[right, right], 401),
            (&[right, ("origin", "http://localhost")], 403),
        ] {
            assert_eq!(status("/v1/reload", fields, Some(token)), expected);
        }
    }
}
