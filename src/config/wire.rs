//! Values as the network knows them: addresses, header fields, methods, hosts.

use std::net::SocketAddr;

use http::{HeaderName, HeaderValue};
use ipnet::IpNet;

use super::decode::{Decode, Reader, quoted};
use super::error::{Code, Finding};
use super::shape::Shape;
use super::tree::{Node, Value};
use super::units::Refusal;
use crate::check::outcome::Statuses;

/// The value of a header field.
#[derive(Clone, Debug)]
pub(crate) struct FieldValue(pub(crate) HeaderValue);

/// Statuses: one of them, or a class such as "4xx".
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatusItem(pub(crate) Statuses);

/// A value to match: a text, or `true` for any.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Any,
    Text(String),
}

/// `"keep"`, or a host to send.
#[derive(Clone, Debug)]
pub(crate) enum HostField {
    Keep,
    Send(HeaderValue),
}

impl Decode for StatusItem {
    fn shape() -> Shape {
        Shape::AnyOf(vec![Shape::Whole(100, 599), Shape::Text("^[1-5]xx$")])
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let found = match &node.value {
            Value::Whole(code) => u16::try_from(*code)
                .ok()
                .filter(|code| (100..600).contains(code))
                .map(|code| Statuses::default().with(code)),
            Value::Text(text) => match text.as_bytes() {
                [class @ b'1'..=b'5', b'x', b'x'] => {
                    Some(Statuses::of_class(u16::from(class - b'0')))
                }
                _ => None,
            },
            _ => None,
        };
        if found.is_none() {
            reader.wrong_type(
                node,
                "a status such as 401 or \"4xx\"",
                "write a number from 100 to 599, or \"1xx\" to \"5xx\" for all that begin so",
            );
        }
        found.map(Self)
    }
}

impl Decode for SocketAddr {
    fn shape() -> Shape {
        Shape::Text(":[0-9]+$")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = reader.text(node, "an address such as \"127.0.0.1:8080\"")?;
        if let Ok(address) = text.parse() {
            return Some(address);
        }
        reader.refuse(
            Code::E025,
            node,
            Refusal::new(
                format!("`{text}` is not an address to listen on"),
                listen_advice(text),
            ),
        );
        None
    }
}

fn listen_advice(text: &str) -> String {
    if let Some(port) = text.strip_prefix(':').or(Some(text))
        && port.parse::<u16>().is_ok()
    {
        return format!("write the address too: \"0.0.0.0:{port}\" or \"127.0.0.1:{port}\"");
    }
    if let Some((host, port)) = text.rsplit_once(':') {
        if host == "localhost" {
            return format!("write the address: \"127.0.0.1:{port}\"");
        }
        let bracketed = format!("[{host}]:{port}");
        if bracketed.parse::<SocketAddr>().is_ok() {
            return format!("write \"{bracketed}\"");
        }
    }
    if text.parse::<std::net::Ipv4Addr>().is_ok() {
        return format!("write the port too: \"{text}:8080\"");
    }
    "write an IP address and a port: \"127.0.0.1:8080\", \"[::]:8080\"".to_owned()
}

impl Decode for IpNet {
    fn shape() -> Shape {
        Shape::Text("^[0-9a-fA-F.:]+(/[0-9]+)?$")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = reader.text(node, "a network such as \"10.0.0.0/8\"")?;
        // One address is the network of itself.
        if let Ok(address) = text.parse::<std::net::IpAddr>() {
            return Some(Self::from(address));
        }
        let help = match text.parse::<Self>() {
            Ok(network) if network.addr() == network.network() => return Some(network),
            Ok(network) => format!("write the network: \"{}\"", network.trunc()),
            Err(_) => {
                "write a network: \"10.0.0.0/8\", \"2001:db8::/32\", or an address".to_owned()
            }
        };
        reader.refuse(
            Code::E023,
            node,
            Refusal::new(format!("`{text}` is not a network"), help),
        );
        None
    }
}

impl Decode for FieldValue {
    fn shape() -> Shape {
        Shape::Text("")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = reader.text(node, "a text")?;
        // The text may be a credential: it is not repeated.
        HeaderValue::from_str(text)
            .map(Self)
            .map_err(|_| {
                reader.report(
                    Finding::new(
                        Code::E028,
                        node.place,
                        format!(
                            "the value of `{}` cannot stand in a header field",
                            reader.key()
                        ),
                    )
                    .help("a header field has visible characters and spaces, no line breaks"),
                );
            })
            .ok()
    }
}

impl Decode for HeaderName {
    fn shape() -> Shape {
        Shape::Text("^[A-Za-z0-9!#$%&'*+.^_`|~-]+$")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = reader.text(node, "the name of a header field")?;
        Self::from_bytes(text.as_bytes())
            .map_err(|_| {
                reader.refuse(
                    Code::E028,
                    node,
                    Refusal::new(
                        format!("`{text}` is not the name of a header field"),
                        "a name has letters, digits and -",
                    ),
                );
            })
            .ok()
    }
}

impl Decode for http::Method {
    fn shape() -> Shape {
        Shape::Text("^[A-Z!#$%&'*+.^_`|~0-9-]+$")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = reader.text(node, "a method such as \"GET\"")?;
        let upper = text.to_ascii_uppercase();
        match Self::from_bytes(text.as_bytes()) {
            Ok(method) if text == upper => Some(method),
            found => {
                let help = match found {
                    Ok(_) => format!("methods are case-sensitive: write \"{upper}\""),
                    Err(_) => "write a method: \"GET\", \"POST\"".to_owned(),
                };
                reader.refuse(
                    Code::E028,
                    node,
                    Refusal::new(format!("`{text}` is not a method"), help),
                );
                None
            }
        }
    }
}

impl Decode for Wanted {
    fn shape() -> Shape {
        Shape::AnyOf(vec![Shape::Text(""), Shape::True])
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        match &node.value {
            Value::Text(text) => Some(Self::Text(text.clone())),
            Value::Flag(true) => Some(Self::Any),
            Value::Flag(false) => {
                reader.wrong_type(
                    node,
                    "a text, or true for any value",
                    "a route cannot ask for something to be absent; let a less specific route take those",
                );
                None
            }
            _ => {
                reader.wrong_type(node, "a text, or true for any value", "");
                None
            }
        }
    }
}

impl Decode for HostField {
    fn shape() -> Shape {
        Shape::Text("")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = reader.text(node, &quoted(&["keep", "a host"]))?;
        if text == "keep" {
            return Some(Self::Keep);
        }
        let host = text.parse::<http::uri::Authority>().ok();
        match host.and_then(|_| HeaderValue::from_str(text).ok()) {
            Some(value) if !text.contains('@') => Some(Self::Send(value)),
            _ => {
                reader.refuse(
                    Code::E025,
                    node,
                    Refusal::new(
                        format!("`{text}` is not a host"),
                        "write \"keep\" for the client's, or a host: \"internal.example\"",
                    ),
                );
                None
            }
        }
    }
}
