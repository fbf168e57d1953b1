//! The rules by which gateways count alone while the shared store gives no decision.

use std::num::NonZeroU32;
use std::sync::OnceLock;

use crate::decide::Rule;

/// Up to so many gateways each number has a rule of its own; above it, the next power of two has.
const EXACT_MAX: u32 = 64;

/// The most gateways that are told apart.
const INSTANCES_MAX: u32 = 16_384;

/// Slots for the numbers up to [`EXACT_MAX`], and for 128 to [`INSTANCES_MAX`].
const SLOTS: usize = 64 + 8;

/// One gateway's share of a rule, for each number of gateways. Each is made when it is first asked for.
///
/// Shares of one number add up to the rule, and at most a unit for each gateway more.
#[derive(Debug)]
pub struct Shares {
    rule: Rule,
    /// The least number of gateways, whatever is seen.
    instances: NonZeroU32,
    /// Not there before one is asked for: few policies' stores fail, and there may be many rules.
    slots: OnceLock<Box<[OnceLock<Rule>]>>,
}

impl Shares {
    /// The shares of `rule` among at least `instances`.
    #[must_use]
    pub fn new(rule: &Rule, instances: NonZeroU32) -> Self {
        Self {
            rule: rule.clone(),
            instances,
            slots: OnceLock::new(),
        }
    }

    /// The least number of gateways among which it is shared.
    #[must_use]
    pub const fn instances(&self) -> NonZeroU32 {
        self.instances
    }

    /// The share where so many gateways were seen alive, or as many as are configured if these are more.
    #[must_use]
    pub fn among(&self, alive: u32) -> &Rule {
        self.of(alive.max(self.instances.get()))
    }

    fn of(&self, instances: u32) -> &Rule {
        let (slot, instances) = slot_of(instances);
        let make = || self.rule.share(instances);
        let slots = || (0..SLOTS).map(|_| OnceLock::new()).collect();
        self.slots
            .get_or_init(slots)
            .get(slot)
            .map_or(&self.rule, |slot| slot.get_or_init(make))
    }
}

/// Where the share among so many stands, and among how many it is: as many, or a few more.
fn slot_of(instances: u32) -> (usize, NonZeroU32) {
    let among = if instances <= EXACT_MAX {
        instances.max(1)
    } else {
        instances.min(INSTANCES_MAX).next_power_of_two()
    };
    let slot = if among <= EXACT_MAX {
        among - 1
    } else {
        EXACT_MAX + among.ilog2() - (2 * EXACT_MAX).ilog2()
    };
    (
        usize::try_from(slot).unwrap_or(usize::MAX),
        NonZeroU32::new(among).unwrap_or(NonZeroU32::MIN),
    )
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;
    use crate::decide::{Limit, SlidingLog};

    fn limit_of(rule: &Rule) -> u64 {
        rule.count().get()
    }

    #[test]
    fn every_number_has_a_slot_and_is_not_rounded_down() {
        let mut last = None;
        for instances in 1..=INSTANCES_MAX {
            let (slot, among) = slot_of(instances);
            assert!(slot < SLOTS, "{instances}");
            assert!(among.get() >= instances && among.get() < instances * 2);
            assert!(instances > EXACT_MAX || among.get() == instances);
            assert!(Some(slot) >= last, "{instances}");
            last = Some(slot);
        }
        assert_eq!(slot_of(0), slot_of(1));
        assert_eq!(slot_of(u32::MAX), slot_of(INSTANCES_MAX));
    }

    #[test]
    fn a_share_is_of_the_gateways_that_were_seen_or_of_those_that_are_configured() {
        let limit = Limit {
            count: NonZeroU64::new(1200).unwrap(),
            window_us: NonZeroU64::new(1_000_000).unwrap(),
        };
        let rule = Rule::SlidingLog(SlidingLog::new(limit).unwrap());
        let shares = Shares::new(&rule, NonZeroU32::new(2).unwrap());
        for (alive, share) in [(0, 600), (2, 600), (3, 400), (7, 172), (100, 10)] {
            assert_eq!(limit_of(shares.among(alive)), share, "{alive}");
        }
    }
}
