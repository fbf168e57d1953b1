//! What a store has of concurrency, as it is defined: who holds how much, and how long that counts.

use std::collections::BTreeMap;

use tollgate::store::valkey::slots::Holder;

/// The holders of one key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holders(BTreeMap<(u64, u32), Held>);

#[derive(Clone, Copy, Debug)]
struct Held {
    units: u64,
    stamp: u64,
    lease: u64,
}

/// A gateway, and the number of its field.
pub(crate) type Number = (u64, u32);

/// Whom such a number stands for.
pub(crate) fn holder((gateway, field): Number) -> Holder {
    Holder::new(gateway, field)
}

impl Holders {
    /// Units that count at `now`.
    pub(crate) fn live(&self, now: u64) -> u64 {
        let lives = |held: &&Held| held.stamp.min(now) + held.lease > now;
        self.0.values().filter(lives).map(|held| held.units).sum()
    }

    /// Whether so many more fit under the limit; then they are held.
    pub(crate) fn take(
        &mut self,
        by: Number,
        limit: u64,
        lease: u64,
        units: u64,
        now: u64,
    ) -> bool {
        if units == 0 {
            return true;
        }
        let fits = self.live(now) + units <= limit;
        // A denial writes only if the clock stepped back.
        if fits || self.0.values().any(|held| held.stamp > now) {
            self.look(now);
        }
        if fits {
            self.add(by, lease, i64::try_from(units).unwrap(), now);
        }
        fits
    }

    /// Has the holder hold so many more or less, and its gateway nothing in earlier fields. Returns how many it holds
    /// then.
    pub(crate) fn hold(&mut self, by: Number, lease: u64, more: i64, now: u64) -> u64 {
        self.look(now);
        self.0.retain(|of, _| of.0 != by.0 || *of >= by);
        self.add(by, lease, more, now)
    }

    fn add(&mut self, by: Number, lease: u64, more: i64, now: u64) -> u64 {
        let before = self.0.remove(&by).map_or(0, |held| held.units);
        let units = before.saturating_add_signed(more);
        if units > 0 {
            let stamp = now;
            self.0.insert(
                by,
                Held {
                    units,
                    stamp,
                    lease,
                },
            );
        }
        units
    }

    /// What does not count goes, and what is from the future is of now.
    fn look(&mut self, now: u64) {
        for held in self.0.values_mut() {
            held.stamp = held.stamp.min(now);
        }
        self.0.retain(|_, held| held.stamp + held.lease > now);
    }
}
