//! Whole numbers that stay exact in both stores, and the ticks that time is counted in.

use std::num::NonZeroU64;

/// The ticks a policy may count its time in: the finest that fits is taken.
const TICKS_US: [u64; 7] = [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000];

/// A length to count time in, and how many of it make up a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Tick {
    pub(super) us: NonZeroU64,
    pub(super) per_window: NonZeroU64,
}

/// The ticks that divide the window, the finest first. There is always one: a microsecond.
pub(super) fn ticks_of(window_us: NonZeroU64) -> impl Iterator<Item = Tick> {
    TICKS_US.into_iter().filter_map(move |us| {
        let us = NonZeroU64::new(us)?;
        let whole = window_us.get().is_multiple_of(us.get());
        let per_window = NonZeroU64::new(window_us.get() / us)?;
        whole.then_some(Tick { us, per_window })
    })
}

/// Divides both by their greatest common divisor.
pub(super) fn lowest_terms(a: NonZeroU64, b: NonZeroU64) -> (NonZeroU64, NonZeroU64) {
    let (mut divisor, mut rest) = (a, b.get());
    while let Some(next) = NonZeroU64::new(rest) {
        rest = divisor.get() % next;
        divisor = next;
    }
    let reduce = |n: NonZeroU64| NonZeroU64::new(n.get() / divisor).unwrap_or(NonZeroU64::MIN);
    (reduce(a), reduce(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(n: u64) -> NonZeroU64 {
        NonZeroU64::new(n).unwrap_or(NonZeroU64::MIN)
    }

    #[test]
    fn a_tick_divides_its_window() {
        let found: Vec<_> = ticks_of(whole(1_500))
            .map(|t| (t.us.get(), t.per_window.get()))
            .collect();
        assert_eq!(found, [(1, 1_500), (10, 150), (100, 15)]);
    }

    #[test]
    fn a_fraction_in_lowest_terms_keeps_its_value() {
        let (a, b) = lowest_terms(whole(10), whole(10_000_000));
        assert_eq!((a.get(), b.get()), (1, 1_000_000));
        let (a, b) = lowest_terms(whole(7), whole(1_000));
        assert_eq!((a.get(), b.get()), (7, 1_000));
    }
}
