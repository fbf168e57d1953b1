//! Checks of an upstream's servers.

use super::{Builder, value};
use crate::check::outcome::Statuses;
use crate::config::error::Code;
use crate::config::file::{Health as WrittenHealth, Upstream as Written};
use crate::config::source::Place;
use crate::config::{Health, Probe};

impl Builder<'_> {
    /// What `health` of an upstream says; an inner `None` without.
    pub(super) fn health(&self, name: &str, written: &Written) -> Option<Option<Health>> {
        let Some(health) = &written.health else {
            return (!written.unread.contains(&"health")).then_some(None);
        };
        if written.builtin.is_some() {
            self.error(
                Code::E018,
                health.place,
                format!("upstream `{name}` is the gateway itself: there is no server to check"),
                "take `health` out",
            );
            return None;
        }
        let probe = self.probe(health.place, &health.value);
        let health = &health.value;
        let times = |count: u64| u32::try_from(count).ok();
        Some(Some(Health {
            interval: value(&health.interval)?.0,
            timeout: value(&health.timeout)?.0,
            healthy_after: times(value(&health.healthy_after)?.0)?,
            unhealthy_after: times(value(&health.unhealthy_after)?.0)?,
            probe: probe?,
        }))
    }

    fn probe(&self, place: Place, health: &WrittenHealth) -> Option<Probe> {
        let connect = health.tcp.as_ref().filter(|tcp| tcp.value);
        let expect = match &health.expect {
            Some(list) if !list.value.complete => return None,
            Some(list) if list.value.items.is_empty() => {
                self.error(
                    Code::E016,
                    list.place,
                    "`expect` names no status: no check would ever pass",
                    "write expect = [200], or take it out",
                );
                return None;
            }
            Some(list) => {
                let items = list.value.items.iter();
                items.fold(Statuses::default(), |all, item| all.and(item.value.0))
            }
            None => Statuses::default().with(200),
        };
        match (&health.path, connect) {
            (Some(path), None) => {
                if !is_target(&path.value) {
                    self.error(
                        Code::E024,
                        path.place,
                        format!("`{}` is not a path to ask for", path.value),
                        "write a path that begins with /: \"/healthz\"",
                    );
                    return None;
                }
                Some(Probe::Get(path.value.as_str().into(), expect))
            }
            (None, Some(_)) => {
                if let Some(expect) = &health.expect {
                    self.error(
                        Code::E018,
                        expect.place,
                        "`expect` goes with `path`: a connection has no status",
                        "take it out, or write path = \"/healthz\" instead of `tcp`",
                    );
                    return None;
                }
                Some(Probe::Connect)
            }
            (Some(_), Some(tcp)) => {
                self.error(
                    Code::E018,
                    tcp.place,
                    "`path` and `tcp` exclude each other",
                    "keep `path`, where the application answers it",
                );
                None
            }
            // What is there but could not be read is reported already.
            (None, None) if !health.unread.is_empty() => None,
            (None, None) => {
                self.error(
                    Code::E016,
                    place,
                    "`health` does not say what to ask of a server",
                    "write health = { path = \"/healthz\" }, or health = { tcp = true }",
                );
                None
            }
        }
    }
}

/// Whether it can stand in a request as it is.
fn is_target(text: &str) -> bool {
    text.starts_with('/')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'#')
}
