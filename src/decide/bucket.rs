//! What both buckets are made of: a debt that is paid back at a steady rate.
//!
//! One unit costs `unit` credit and `refill` credit is earned each tick. Both are whole, so no rounding ever makes
//! or loses a unit. No debt is the same as never seen. Ticks are counted from the stamp, not from the epoch, so
//! that a wait is late by less than one of them, and never early.
//!
//! Lua twin: `lua/bucket.lua`, line for line.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::exact::{Tick, lowest_terms, ticks_of};
use super::{Charge, Cost, EXACT_MAX, Limit, Timestamp, TooLarge, UNITS_MAX};

/// What a store keeps for each entity of a bucket.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct State {
    /// Credit owed at `stamp`.
    pub debt: u64,
    /// When the debt was counted.
    pub stamp: Timestamp,
    /// Credit that a unit cost then: an edited limit counts in another one.
    pub unit: NonZeroU64,
}

/// The arithmetic of one bucket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Meter {
    limit: Limit,
    burst: NonZeroU64,
    /// Credit that one unit costs.
    unit: NonZeroU64,
    /// Credit earned each tick.
    refill: NonZeroU64,
    tick_us: NonZeroU64,
    /// The debt that `burst` units make.
    capacity: u64,
    /// The most debt that is told apart; a price or a refill on top is still exact, and so is the time to earn it.
    debt_max: u64,
}

/// A debt as of now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Owed {
    pub(super) debt: u64,
    /// The last tick before now, by the phase of the stamp that was kept.
    stamp: Timestamp,
    /// Whether the kept stamp was later than now.
    pub(super) stepped_back: bool,
}

impl Meter {
    pub(super) fn new(limit: Limit, burst: NonZeroU64) -> Result<Self, TooLarge> {
        ticks_of(limit.window_us)
            .find_map(|tick| Self::counted_in(tick, limit, burst))
            .ok_or_else(|| TooLarge {
                found: burst.get(),
                largest: largest_burst(limit),
            })
    }

    /// The meter that counts in this tick, if everything it can come to is exact.
    fn counted_in(tick: Tick, limit: Limit, burst: NonZeroU64) -> Option<Self> {
        let (refill, unit) = lowest_terms(limit.count, tick.per_window);
        let capacity = unit.get().checked_mul(burst.get())?;
        let exact = EXACT_MAX.checked_sub(capacity)?.checked_sub(refill.get())?;
        let earned_in_time = (EXACT_MAX / tick.us).saturating_mul(refill.get());
        let debt_max = exact.min(earned_in_time);
        (capacity <= debt_max && burst.get() <= UNITS_MAX).then_some(Self {
            limit,
            burst,
            unit,
            refill,
            tick_us: tick.us,
            capacity,
            debt_max,
        })
    }

    pub(super) const fn limit(&self) -> Limit {
        self.limit
    }

    pub(super) const fn burst(&self) -> u64 {
        self.burst.get()
    }

    pub(super) const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// What is still owed at `now`.
    pub(super) fn owed(&self, kept: Option<State>, now: Timestamp) -> Owed {
        let Some(kept) = kept else {
            return Owed {
                debt: 0,
                stamp: now,
                stepped_back: false,
            };
        };
        // A stamp from the future means that the clock stepped back: read it as if it were now.
        let stamp = kept.stamp.min(now);
        let stepped_back = kept.stamp > now;
        let then = self.in_own_unit(kept);
        let elapsed = now.micros_since(stamp) / self.tick_us;
        // Capped first, so that the product stays exact however long nobody called.
        let earning = elapsed.min(then.div_ceil(self.refill.get()));
        let debt = then.saturating_sub(earning.saturating_mul(self.refill.get()));
        if debt == 0 {
            return Owed {
                debt,
                stamp: now,
                stepped_back,
            };
        }
        let ticked = stamp
            .as_micros()
            .saturating_add(elapsed.saturating_mul(self.tick_us.get()));
        Owed {
            debt,
            stamp: Timestamp::from_micros(ticked),
            stepped_back,
        }
    }

    /// The kept debt. What an edited limit finds is carried over as used units, rounded up.
    fn in_own_unit(&self, kept: State) -> u64 {
        if kept.unit == self.unit {
            return kept.debt.min(self.debt_max);
        }
        let used = kept.debt.div_ceil(kept.unit.get());
        used.min(self.debt_max / self.unit)
            .saturating_mul(self.unit.get())
    }

    /// What `cost` takes; only asked of a cost whose price can be owed.
    pub(super) fn price(&self, cost: Cost) -> u64 {
        cost.units().saturating_mul(self.unit.get())
    }

    /// What is owed once `price` is charged.
    ///
    /// The phase of the ticks stays, so that no part of a tick is lost. But a debt that the tick under way pays off
    /// earns nothing for the rest of that tick: then it is paid by the microsecond, and ticks begin now.
    pub(super) fn charge(&self, owed: Owed, price: u64, now: Timestamp) -> Owed {
        let under_way = now.micros_since(owed.stamp);
        if owed.debt >= self.refill.get() || under_way == 0 {
            return Owed {
                debt: owed.debt.saturating_add(price),
                ..owed
            };
        }
        let (refill, tick_us) = (self.refill.get(), self.tick_us.get());
        // refill * under_way / tick_us, in products that stay exact.
        let odd = (refill % tick_us).saturating_mul(under_way) / tick_us;
        let earned = (refill / tick_us)
            .saturating_mul(under_way)
            .saturating_add(odd);
        let debt = owed.debt.saturating_sub(earned).saturating_add(price);
        Owed {
            debt,
            stamp: now,
            ..owed
        }
    }

    /// The state to keep.
    pub(super) const fn keep(&self, owed: Owed) -> State {
        State {
            debt: owed.debt,
            stamp: owed.stamp,
            unit: self.unit,
        }
    }

    /// Time to earn `credit`. Rounded up: an answer is never early.
    pub(super) fn micros_to_earn(&self, credit: u64, owed: Owed, now: Timestamp) -> u64 {
        let ticks = credit.div_ceil(self.refill.get());
        ticks
            .saturating_mul(self.tick_us.get())
            .saturating_sub(now.micros_since(owed.stamp))
    }

    /// Time until nothing is owed.
    pub(super) fn paid_after(&self, owed: Owed, now: Timestamp) -> u64 {
        self.micros_to_earn(owed.debt, owed, now)
    }

    /// Units that fit on top of what is owed.
    pub(super) fn room(&self, owed: Owed) -> u64 {
        self.capacity.saturating_sub(owed.debt) / self.unit
    }

    /// Charges `cost` whatever the burst, as far as the debt can be told apart.
    pub(super) fn charge_late(&self, kept: Option<State>, cost: Cost, now: Timestamp) -> State {
        let owed = self.owed(kept, now);
        let room = self.debt_max.saturating_sub(owed.debt) / self.unit;
        let price = self.price(Cost::new(cost.units().min(room)));
        self.keep(self.charge(owed, price, now))
    }

    /// Gives back what `charge` took, but for what has been refilled since.
    ///
    /// Some of that would have been refilled without it, too, or all. But nobody knows what the bucket would have come
    /// to without others that were given back, and to give back too much is to let more pass than the limit.
    pub(super) fn refund(&self, kept: State, charge: Charge, now: Timestamp) -> Option<State> {
        let owed = self.owed(Some(kept), now);
        let ticks = now.micros_since(charge.at).div_ceil(self.tick_us.get());
        let refilled = ticks.saturating_mul(self.refill.get());
        let given = self.price(charge.cost).saturating_sub(refilled);
        let debt = owed.debt.saturating_sub(given);
        (debt > 0).then(|| self.keep(Owed { debt, ..owed }))
    }

    /// The rule of one of `instances`: as fast as its part of the limit, rounded up where it has to be. At the end of
    /// what can be counted the burst gives way.
    pub(super) fn share(&self, instances: NonZeroU64) -> Option<Self> {
        let burst = share_of(self.burst, instances);
        let slower = self.limit.window_us.checked_mul(instances);
        let slower = slower.map(|window_us| Limit {
            window_us,
            ..self.limit
        });
        let count = share_of(self.limit.count, instances);
        let smaller = Limit {
            count,
            ..self.limit
        };
        let fitting = |limit| {
            Self::new(limit, burst).or_else(|e| {
                let largest = NonZeroU64::new(e.largest).ok_or(e)?;
                Self::new(limit, burst.min(largest))
            })
        };
        let exact = slower.and_then(|limit| Self::new(limit, burst).ok());
        exact
            .or_else(|| fitting(smaller).ok())
            .or_else(|| slower.and_then(|limit| fitting(limit).ok()))
    }

    /// What the script takes: burst (units), unit, refill (credit), tick (µs), debt_max (credit).
    pub(super) const fn script_numbers(&self) -> [u64; 5] {
        [
            self.burst.get(),
            self.unit.get(),
            self.refill.get(),
            self.tick_us.get(),
            self.debt_max,
        ]
    }
}

/// One part of `whole`, rounded up: at least 1.
pub(super) fn share_of(whole: NonZeroU64, instances: NonZeroU64) -> NonZeroU64 {
    NonZeroU64::new(whole.get().div_ceil(instances.get())).unwrap_or(NonZeroU64::MIN)
}

/// The largest burst that some tick counts exactly: [`Meter::counted_in`] solved for it.
fn largest_burst(limit: Limit) -> u64 {
    let largest = ticks_of(limit.window_us).map(|tick| {
        let (refill, unit) = lowest_terms(limit.count, tick.per_window);
        let exact = EXACT_MAX.saturating_sub(refill.get()) / unit / 2;
        let earned_in_time = (EXACT_MAX / tick.us).saturating_mul(refill.get()) / unit;
        exact.min(earned_in_time)
    });
    largest.max().unwrap_or(0).min(UNITS_MAX)
}
