//! Whether a server is healthy, as its checks come out.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::config::Health;

/// What is known of an address of a server. Configurations that both have it share it.
#[derive(Debug, Default)]
pub(super) struct Condition(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// `None` until its first check, which alone decides.
    healthy: Option<bool>,
    /// Checks in a row that came out otherwise.
    against: u32,
    /// When its next check is due; at once if none.
    due: Option<Instant>,
}

impl Condition {
    /// Whether it may have requests: what was never checked may.
    pub(super) fn is_healthy(&self) -> bool {
        self.known().healthy != Some(false)
    }

    /// When its next check is due; at once if `None`.
    pub(super) fn due(&self) -> Option<Instant> {
        self.known().due
    }

    /// Notes a check; the next is `due`. Returns whether it is healthy where that changes.
    pub(super) fn note(&self, passed: bool, health: &Health, due: Instant) -> Option<bool> {
        let mut known = self.known();
        known.due = Some(due);
        let was = known.healthy;
        if was == Some(passed) {
            known.against = 0;
            return None;
        }
        known.against = known.against.saturating_add(1);
        let needed = if passed {
            health.healthy_after
        } else {
            health.unhealthy_after
        };
        if was.is_some() && known.against < needed {
            return None;
        }
        known.healthy = Some(passed);
        known.against = 0;
        // It was in the rotation all the while.
        (was.is_some() || !passed).then_some(passed)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::monotonic_now;
    use crate::config::Probe;

    fn changes(checks: &[bool]) -> Vec<Option<bool>> {
        let health = Health {
            probe: Probe::Connect,
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            healthy_after: 2,
            unhealthy_after: 3,
        };
        let condition = Condition::default();
        let now = monotonic_now();
        let note = |passed: &bool| condition.note(*passed, &health, now);
        checks.iter().map(note).collect()
    }

    #[test]
    fn the_first_check_alone_decides() {
        assert!(Condition::default().is_healthy());
        assert_eq!(changes(&[true]), [None]);
        assert_eq!(changes(&[false]), [Some(false)]);
    }

    #[test]
    fn later_ones_decide_once_so_many_in_a_row_agree() {
        assert_eq!(
            changes(&[true, false, false, false, false]),
            [None, None, None, Some(false), None]
        );
        assert_eq!(
            changes(&[true, false, false, true, false, false, false]),
            [None, None, None, None, None, None, Some(false)]
        );
        assert_eq!(
            changes(&[false, true, false, true, true, true]),
            [Some(false), None, None, None, Some(true), None]
        );
    }
}
