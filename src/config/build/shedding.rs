//! `[load_shedding]`.

use std::num::NonZeroU64;
use std::time::Duration;

use super::{Builder, by_name, non_zero_u32, value};
use crate::clock::micros;
use crate::config::error::{Code, Finding};
use crate::config::file::{File, GlobalMode, LoadShedding as Written};
use crate::config::source::Place;
use crate::shed::{Priority, Settings};

impl Builder<'_> {
    pub(super) fn load_shedding(&self, file: &File) -> Option<Option<Settings>> {
        let Some(written) = &file.load_shedding else {
            return Some(None);
        };
        let written = &written.value;
        let settings = Settings {
            max_in_flight: non_zero_u32(value(&written.max_in_flight)?.0)?,
            target_us: value(&written.target_latency)
                .and_then(|target| NonZeroU64::new(micros(target.0))),
        };
        // Shadow denies nothing.
        let in_shadow = value(&file.mode) == Some(GlobalMode::Shadow);
        Some(Some(settings).filter(|_| !in_shadow))
    }

    /// Settings that never turn anybody away.
    pub(super) fn warn_of_idle_shedding(&self, file: &File) {
        match &file.load_shedding {
            None => self.warn_of_idle_priority(file),
            Some(written) => {
                self.warn_of_idle_number(file, &written.value);
                self.warn_of_idle_target(file, &written.value);
            }
        }
    }

    fn warn_of_idle_priority(&self, file: &File) {
        let routes = by_name(file.routes.as_ref());
        let first = routes.iter().find_map(|(name, (_, route))| {
            let priority = route.priority.as_ref()?;
            (priority.value != Priority::Normal).then_some((name, priority.place))
        });
        if let Some((name, place)) = first {
            let message = format!(
                "the priority of route `{name}` means nothing: nobody is turned away without `[load_shedding]`"
            );
            self.idle(
                place,
                message,
                "add [load_shedding] with max_in_flight = 2000",
            );
        }
    }

    fn warn_of_idle_number(&self, file: &File, written: &Written) {
        let connections = (file.server.as_ref())
            .and_then(|server| value(&server.value.max_connections))
            .map_or(u64::MAX, |count| count.0);
        let most = written.max_in_flight.as_ref();
        if let Some(most) = most.filter(|most| most.value.0 > connections) {
            let message = format!(
                "`max_in_flight` is never reached: there are at most {connections} connections, with a request each"
            );
            let help = format!("write at most {connections}, or raise server.max_connections");
            self.idle(most.place, message, help);
        }
    }

    fn warn_of_idle_target(&self, file: &File, written: &Written) {
        let upstreams = by_name(file.upstreams.as_ref());
        let longest = upstreams
            .values()
            .filter(|(_, upstream)| upstream.servers.is_some())
            .filter_map(|(_, upstream)| value(&upstream.timeouts.as_ref()?.value.read))
            .map(|read| read.0)
            .max()
            .unwrap_or(Duration::ZERO);
        let target = written.target_latency.as_ref();
        if let Some(target) = target.filter(|target| target.value.0 >= longest) {
            self.idle(
                target.place,
                "`target_latency` is never missed: no upstream is given as long to answer",
                "write less than an upstream's timeouts.read: two or three times what it takes when there is little to do",
            );
        }
    }

    fn idle(&self, place: Place, message: impl Into<String>, help: impl Into<String>) {
        self.findings
            .add(Finding::new(Code::W220, place, message).help(help));
    }
}
