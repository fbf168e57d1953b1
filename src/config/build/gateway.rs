//! `[server]`, `[listeners]`, `[client_ip]`, `[metrics]`, `[logs]`.

use std::net::SocketAddr;
use std::num::NonZeroUsize;

use http::StatusCode;

use super::{Builder, by_name, non_zero_usize, value};
use crate::client::address::Prefixes;
use crate::client::{self, Header, Trust};
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{File, LogFormat, RequestId, Unmatched};
use crate::config::source::Place;
use crate::config::{Listener, Logs, Metrics, Server};

impl Builder<'_> {
    pub(super) fn server(&self, file: &File) -> Option<Server> {
        let server = &file.server.as_ref()?.value;
        let limits = &server.limits.as_ref()?.value;
        let threads = match &server.threads {
            Some(threads) => non_zero_usize(threads.value.0)?,
            None => std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN),
        };
        Some(Server {
            threads,
            grace_period: value(&server.grace_period)?.0,
            unmatched: match value(&server.unmatched)? {
                Unmatched::NotFound => StatusCode::NOT_FOUND,
                Unmatched::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            },
            keep_request_id: matches!(value(&server.request_id)?, RequestId::Keep),
            max_header: usize::try_from(value(&limits.max_header)?.0).ok()?,
            max_body: value(&limits.max_body).map(|size| size.0),
            header_timeout: value(&limits.header_timeout)?.0,
            body_timeout: value(&limits.body_timeout)?.0,
            body_min_rate: value(&limits.body_min_rate)?.0,
            max_waiting: usize::try_from(value(&server.max_waiting)?.0).ok()?,
            max_connections: usize::try_from(value(&server.max_connections)?.0).ok()?,
            max_connections_per_ip: value(&server.max_connections_per_ip)
                .and_then(|count| usize::try_from(count.0).ok()),
        })
    }

    pub(super) fn listeners(&self, file: &File) -> Option<Vec<Listener>> {
        let table = file.listeners.as_ref()?;
        if table.value.entries.is_empty() && table.value.excused.is_empty() {
            self.error(
                Code::E016,
                table.place,
                "`[listeners]` defines no listener",
                "add [listeners.main] with address = \"127.0.0.1:8080\"",
            );
        }
        let built: Vec<Option<Listener>> = by_name(file.listeners.as_ref())
            .into_iter()
            .map(|(name, (_, listener))| {
                let tls = match &listener.tls {
                    Some(tls) => self.listening(name, &tls.value)?,
                    None if listener.unread.contains(&"tls") => return None,
                    None => None,
                };
                Some(Listener {
                    name: name.into(),
                    address: value(&listener.address)?,
                    tls,
                })
            })
            .collect();
        built.into_iter().collect()
    }

    pub(super) fn client_ip(&self, file: &File) -> Option<client::Settings> {
        let written = &file.client_ip.as_ref()?.value;
        let header = match value(&written.header)? {
            name if name == "x-forwarded-for" => Header::XForwardedFor,
            name if name == "forwarded" => Header::Forwarded,
            name => Header::Single(name),
        };
        if let (Some(_), Some(hops)) = (&written.trusted_proxies, &written.trusted_hops) {
            self.error(
                Code::E018,
                hops.place,
                "`trusted_hops` and `trusted_proxies` exclude each other",
                "keep trusted_proxies where the proxies' networks are known",
            );
        }
        let networks = written
            .trusted_proxies
            .as_ref()
            .map(|list| list.value.items.as_slice())
            .unwrap_or_default();
        if let (Header::Single(name), true) = (&header, networks.is_empty())
            && !written.unread.contains(&"trusted_proxies")
        {
            self.error(
                Code::E111,
                written.header.as_ref()?.place,
                format!(
                    "`{name}` holds a single address, and nothing says from whom to believe it"
                ),
                "set trusted_proxies to the networks of the CDN or proxy that sends it",
            );
        }
        for network in networks
            .iter()
            .filter(|network| network.value.prefix_len() == 0)
        {
            self.findings.add(
                Finding::new(
                    Code::W205,
                    network.place,
                    format!("`{}` trusts everybody to say who is calling", network.value),
                )
                .help("write the networks of your proxies; whoever reaches the gateway otherwise picks any address"),
            );
        }
        let trust = match &written.trusted_hops {
            Some(hops) => Trust::Hops(non_zero_usize(hops.value.0)?),
            None => Trust::Networks(networks.iter().map(|network| network.value).collect()),
        };
        let bits = |number: u64| u8::try_from(number).ok();
        Some(client::Settings {
            trust,
            header,
            prefixes: Prefixes {
                ipv4: bits(value(&written.ipv4_prefix)?.0)?,
                ipv6: bits(value(&written.ipv6_prefix)?.0)?,
            },
            tier_header: (file.identity.as_ref())
                .and_then(|identity| value(&identity.value.tier_header)),
        })
    }

    pub(super) fn metrics(&self, file: &File) -> Option<Option<Metrics>> {
        let metrics = &file.metrics.as_ref()?.value;
        let path = metrics.path.as_ref()?;
        if !path.value.starts_with('/') || path.value.contains(['?', '#', ' ']) {
            self.error(
                Code::E024,
                path.place,
                format!("`{}` is not a path to serve metrics at", path.value),
                "write \"/metrics\"",
            );
            return None;
        }
        Some(value(&metrics.address).map(|address| Metrics {
            address,
            path: path.value.as_str().into(),
        }))
    }

    pub(super) fn logs(&self, file: &File) -> Option<Logs> {
        let logs = &file.logs.as_ref()?.value;
        Some(Logs {
            level: value(&logs.level)?,
            json: matches!(value(&logs.format)?, LogFormat::Json),
            access_sample_percent: value(&logs.access_sample)?.0,
            client_ip: value(&logs.client_ip)?,
        })
    }

    /// Two listeners cannot share an address, nor can the admin API or the metrics have one of theirs.
    pub(super) fn check_addresses(&self, file: &File) {
        let listeners = by_name(file.listeners.as_ref());
        let admin = file
            .admin
            .as_ref()
            .and_then(|admin| admin.value.address.as_ref());
        let metrics = file
            .metrics
            .as_ref()
            .and_then(|metrics| metrics.value.address.as_ref());
        let mut used: Vec<(SocketAddr, Place)> = Vec::new();
        let addresses = listeners
            .values()
            .filter_map(|(_, listener)| listener.address.as_ref())
            .chain(admin)
            .chain(metrics);
        for At { value, place } in addresses {
            match used
                .iter()
                .find(|(address, _)| address == value && value.port() != 0)
            {
                Some((_, first)) => self.findings.add(
                    Finding::new(Code::E036, *place, format!("`{value}` is used twice"))
                        .label("here again")
                        .also(*first, "first here")
                        .help("give one of them another port"),
                ),
                None => used.push((*value, *place)),
            }
        }
    }
}
