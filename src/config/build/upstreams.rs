//! `[upstreams]`.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use super::{Builder, by_name, non_zero_u32, value};
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{File, Upstream as Written};
use crate::config::source::without_credentials;
use crate::config::wire::HostField;
use crate::config::{Target, Timeouts, Upstream};

impl Builder<'_> {
    pub(super) fn upstreams(&self, file: &File) -> Option<Vec<Upstream>> {
        let built: Vec<Option<Upstream>> = by_name(file.upstreams.as_ref())
            .into_iter()
            .map(|(name, (at, upstream))| self.upstream(name, at, upstream))
            .collect();
        built.into_iter().collect()
    }

    fn upstream(&self, name: &str, at: &At<String>, written: &Written) -> Option<Upstream> {
        let target = self.target(at, written);
        let tls = self.upstream_tls(name, written);
        let health = self.health(name, written);
        let timeouts = value(&written.timeouts)?;
        Some(Upstream {
            name: name.into(),
            target: target?,
            tls: tls?,
            health: health?,
            timeouts: Timeouts {
                connect: timeouts.connect?.value.0,
                read: timeouts.read?.value.0,
                write: timeouts.write?.value.0,
                idle: timeouts.idle?.value.0,
            },
            host_header: match value(&written.host_header)? {
                HostField::Keep => None,
                HostField::Send(host) => Some(host),
            },
            retries: usize::try_from(value(&written.retries)?.0).ok()?,
        })
    }

    fn target(&self, at: &At<String>, written: &Written) -> Option<Target> {
        let servers = match (&written.servers, &written.builtin) {
            (Some(servers), None) => servers,
            (None, Some(_)) => return Some(Target::Echo),
            (Some(_), Some(builtin)) => {
                self.error(
                    Code::E018,
                    builtin.place,
                    "`servers` and `builtin` exclude each other",
                    "keep one of them",
                );
                return None;
            }
            // Where one of them is there but could not be read, that is the mistake.
            (None, None) if !written.unread.is_empty() => return None,
            (None, None) => {
                self.error(
                    Code::E016,
                    at.place,
                    format!("upstream `{}` has no `servers`", at.value),
                    "add servers = [\"127.0.0.1:9000\"], or builtin = \"echo\"",
                );
                return None;
            }
        };
        if servers.value.items.is_empty() && servers.value.complete {
            self.error(
                Code::E016,
                servers.place,
                format!("upstream `{}` has no `servers`", at.value),
                "name one at least: servers = [\"127.0.0.1:9000\"]",
            );
            return None;
        }
        let built: Vec<Option<(Arc<str>, NonZeroU32)>> = servers
            .value
            .items
            .iter()
            .map(|server| {
                let address = &server.value.address;
                if !is_host_and_port(&address.value) {
                    self.error(
                        Code::E025,
                        address.place,
                        format!(
                            "`{}` is not the address of a server",
                            without_credentials(&address.value)
                        ),
                        advice(&address.value),
                    );
                    return None;
                }
                let weight = non_zero_u32(server.value.weight)?;
                Some((address.value.as_str().into(), weight))
            })
            .collect();
        built
            .into_iter()
            .collect::<Option<_>>()
            .map(Target::Servers)
    }
}

impl Builder<'_> {
    /// Servers that are the gateway itself: a request to one of them would come back until its header is too large.
    pub(super) fn check_loops(&self, file: &File) {
        let listeners = by_name(file.listeners.as_ref());
        let own: Vec<(&str, &At<SocketAddr>)> = listeners
            .iter()
            .filter_map(|(name, (_, listener))| Some((*name, listener.address.as_ref()?)))
            .collect();
        for (name, (_, upstream)) in by_name(file.upstreams.as_ref()) {
            let servers = upstream.servers.iter().flat_map(|list| &list.value.items);
            for server in servers.map(|server| &server.value.address) {
                let Some((listener, at)) =
                    own.iter().find(|(_, at)| reaches(&server.value, at.value))
                else {
                    continue;
                };
                self.findings.add(
                    Finding::new(
                        Code::W212,
                        server.place,
                        format!("upstream `{name}` leads back to listener `{listener}`: the gateway would call itself"),
                    )
                    .also(at.place, "the listener")
                    .help("write the address of your application, or give the listener another port"),
                );
            }
        }
    }
}

/// Whether a server's `host:port` is where the gateway listens, as far as that can be told without asking the DNS.
fn reaches(server: &str, listener: SocketAddr) -> bool {
    let Some((host, port)) = server.rsplit_once(':') else {
        return false;
    };
    if port.parse() != Ok(listener.port()) {
        return false;
    }
    let own = listener.ip();
    if host.eq_ignore_ascii_case("localhost") {
        return own.is_unspecified() || own.is_loopback();
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let Ok(ip) = bare.parse::<IpAddr>() else {
        return false;
    };
    // `[::]` takes IPv4 as well.
    let reached = own.is_ipv6() || ip.is_ipv4();
    ip == own || (own.is_unspecified() && reached && (ip.is_loopback() || ip.is_unspecified()))
}

/// Whether it is `host:port`, with brackets around an IPv6 address.
pub(super) fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let good_port = port.parse::<u16>().is_ok_and(|port| port > 0) && !port.starts_with('+');
    let good_host = match host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.len() <= 253
                && host
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        }
    };
    good_port && good_host
}

fn advice(text: &str) -> String {
    if let Some((scheme, rest)) = text.split_once("://") {
        let host = rest.split('/').next().unwrap_or_default();
        if scheme == "http" && is_host_and_port(host) {
            return format!("write \"{host}\"");
        }
        if scheme == "http" && is_host_and_port(&format!("{host}:80")) {
            return format!("write \"{host}:80\"");
        }
        if scheme == "https" {
            let port = if is_host_and_port(host) { "" } else { ":443" };
            return format!("write \"{host}{port}\", and tls = {{}} beside `servers`");
        }
    }
    if text.parse::<std::net::Ipv6Addr>().is_ok() {
        return format!("write \"[{text}]:8080\"");
    }
    if is_host_and_port(&format!("{text}:8080")) {
        return format!("write the port too: \"{text}:8080\"");
    }
    "write host:port: \"10.0.1.11:8080\"".to_owned()
}
