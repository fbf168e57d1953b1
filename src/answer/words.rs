//! Numbers as people read them.

use crate::decide::Rule;

/// The window of a rule: as [`window`], or the unit of its calendar. Empty for what counts no window.
#[must_use]
pub fn window_of(rule: &Rule) -> String {
    match rule.calendar() {
        Some(calendar) => calendar.unit().as_str().to_owned(),
        None => rule
            .limit()
            .map_or_else(String::new, |limit| window(limit.window_us.get())),
    }
}

/// A window in the largest unit that divides it: `1 min`, `15 min`, `10 s`, `1 h`, `1 d`, `250 ms`.
#[must_use]
pub fn window(window_us: u64) -> String {
    const UNITS: [(u64, &str); 5] = [
        (86_400_000_000, "d"),
        (3_600_000_000, "h"),
        (60_000_000, "min"),
        (1_000_000, "s"),
        (1_000, "ms"),
    ];
    let fits = |&&(unit_us, _): &&(u64, &str)| window_us > 0 && window_us.is_multiple_of(unit_us);
    match UNITS.iter().find(fits) {
        Some((unit_us, name)) => format!("{} {name}", window_us / unit_us),
        None => format!("{window_us} µs"),
    }
}

/// Whole seconds that are surely enough.
#[must_use]
pub const fn seconds_up(micros: u64) -> u64 {
    micros.div_ceil(1_000_000)
}
