//! `[load_shedding]`.

use std::num::NonZeroU64;

use super::{Builder, by_name, non_zero_u32, value};
use crate::clock::micros;
use crate::config::error::{Code, Finding};
use crate::config::file::{File, GlobalMode};
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
        let Some(written) = &file.load_shedding else {
            let routes = by_name(file.routes.as_ref());
            let matters = |priority: &Priority| *priority != Priority::Normal;
            let first = routes.iter().find_map(|(name, (_, route))| {
                let priority = route.priority.as_ref()?;
                matters(&priority.value).then_some((name, priority.place))
            });
            if let Some((name, place)) = first {
                let message = format!(
                    "the priority of route `{name}` means nothing: nobody is turned away without `[load_shedding]`"
                );
                self.findings.add(
                    Finding::new(Code::W220, place, message)
                        .help("add [load_shedding] with max_in_flight = 2000"),
                );
            }
            return;
        };
        let connections = (file.server.as_ref())
            .and_then(|server| value(&server.value.max_connections))
            .map_or(u64::MAX, |count| count.0);
        if let Some(most) =
            (written.value.max_in_flight.as_ref()).filter(|most| most.value.0 > connections)
        {
            let message = format!(
                "`max_in_flight` is never reached: there are at most {connections} connections, with a request each"
            );
            self.findings
                .add(Finding::new(Code::W220, most.place, message).help(format!(
                    "write at most {connections}, or raise server.max_connections"
                )));
        }
    }
}
