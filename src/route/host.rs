//! Hosts, from the most specific to any.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::Arc;

use super::pattern::Host;

/// Something for each host that a pattern names.
#[derive(Debug)]
pub(super) struct Hosts<G> {
    exact: HashMap<Arc<str>, G>,
    below: HashMap<Arc<str>, G>,
    any: Option<G>,
}

impl<G> Default for Hosts<G> {
    fn default() -> Self {
        Self {
            exact: HashMap::new(),
            below: HashMap::new(),
            any: None,
        }
    }
}

impl<G> Hosts<G> {
    /// `None` is any host.
    pub(super) fn insert(&mut self, host: Option<&Host>, group: G) {
        match host {
            Some(Host::Exact(name)) => drop(self.exact.insert(Arc::clone(name), group)),
            Some(Host::Suffix(name)) => drop(self.below.insert(Arc::clone(name), group)),
            None => self.any = Some(group),
        }
    }

    /// What there is for the host of a request, the most specific first.
    pub(super) fn of(&self, host: &str) -> impl Iterator<Item = &G> {
        let name = normal(host);
        let exact = self.exact.get(name.as_ref());
        let mut from = (!self.below.is_empty()).then_some(0_usize);
        let below = std::iter::from_fn(move || {
            let rest = name.get(from?..)?;
            let dot = rest.find('.');
            from = dot.and_then(|dot| from?.checked_add(dot)?.checked_add(1));
            Some(from.and_then(|from| self.below.get(name.get(from..)?)))
        });
        exact.into_iter().chain(below.flatten()).chain(&self.any)
    }
}

/// A host as patterns have it: lower case, no port, no trailing dot, an IPv6 address in its shortest form.
fn normal(host: &str) -> Cow<'_, str> {
    if let Some((ip, _port)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return match ip.parse::<Ipv6Addr>() {
            Ok(ip) => Cow::Owned(format!("[{ip}]")),
            Err(_) => lower_case(host),
        };
    }
    let name = host.split_once(':').map_or(host, |(name, _port)| name);
    lower_case(name.strip_suffix('.').unwrap_or(name))
}

/// Allocates only where there is something to lower.
pub(super) fn lower_case(text: &str) -> Cow<'_, str> {
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(text.to_ascii_lowercase())
    } else {
        Cow::Borrowed(text)
    }
}
