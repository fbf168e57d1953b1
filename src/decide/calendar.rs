//! Days, weeks and months of a time zone, as a table of their edges.
//!
//! The table is made once, of the time zone database that this program carries: no clock is read for it, it stays as it
//! is while gateways run, and those of one release have the same one. A day of 23 or 25 hours, a month of 28 or 31
//! days, and a day that a country left out are as long as they are.

use std::fmt;

use jiff::ToSpan;
use jiff::civil::{Date, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::Timestamp;

/// The edges that a script is handed: those of the window that it is in, of the one before and of the one after.
pub const EDGES: usize = 4;

/// What a calendar's windows are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// From Monday to Monday.
    Week,
    /// From the first to the first.
    Month,
}

/// The windows of a unit in a time zone, since the epoch and until 2106.
#[derive(Clone)]
pub struct Calendar {
    unit: CalendarUnit,
    zone: Box<str>,
    /// When each window begins, which is when the one before ends: seconds since the epoch, in order, at least
    /// [`EDGES`].
    edges: Box<[u32]>,
}

/// A window that a moment is in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Within {
    /// When it began.
    pub start: Timestamp,
    /// How long until it ends.
    pub left_us: u64,
}

impl CalendarUnit {
    /// Every unit.
    pub const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];

    /// As the configuration has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// How long its windows are said to be. None of a month is longer.
    #[must_use]
    pub const fn nominal_us(self) -> u64 {
        const DAY_US: u64 = 86_400_000_000;
        match self {
            Self::Day => DAY_US,
            Self::Week => 7 * DAY_US,
            Self::Month => 31 * DAY_US,
        }
    }

    /// The dates that windows begin with, from the one that the epoch is in.
    fn dates(self) -> impl Iterator<Item = Date> {
        let epoch = Date::constant(1970, 1, 1);
        let (first, step) = match self {
            Self::Day => (epoch, 1.day()),
            // Monday, 29 December 1969.
            Self::Week => {
                let before = epoch.nth_weekday(-1, Weekday::Monday);
                (before.unwrap_or(epoch), 1.week())
            }
            Self::Month => (epoch, 1.month()),
        };
        first.series(step)
    }
}

impl Calendar {
    /// The windows in the time zone of this name, such as `Europe/Berlin`; `None` if there is none.
    #[must_use]
    pub fn of_zone(unit: CalendarUnit, name: &str) -> Option<Self> {
        let zone = TimeZoneDatabase::bundled().get(name).ok()?;
        let name = zone.iana_name().unwrap_or(name);
        Self::of_edges(unit, name, edges(unit, &zone))
    }

    /// The windows between these edges; `None` if they are too few or not in order.
    #[must_use]
    pub fn of_edges(unit: CalendarUnit, zone: &str, edges: Vec<u32>) -> Option<Self> {
        let is_in_order = edges.is_sorted_by(|earlier, later| earlier < later);
        (is_in_order && edges.len() >= EDGES).then(|| Self {
            unit,
            zone: zone.into(),
            edges: edges.into(),
        })
    }

    /// What its windows are.
    #[must_use]
    pub const fn unit(&self) -> CalendarUnit {
        self.unit
    }

    /// The time zone's name.
    #[must_use]
    pub const fn zone(&self) -> &str {
        &self.zone
    }

    /// The window that `now` is in.
    ///
    /// Beyond the edges, windows of nominal length go on from the nearest: nobody is frozen there, and none of them
    /// allows more than the limit.
    #[must_use]
    pub fn window_at(&self, now: Timestamp) -> Within {
        let nominal = self.unit.nominal_us();
        let now_us = now.as_micros();
        let next = self.after(now);
        let edge = |place: usize| self.edges.get(place).copied().map(micros);
        match (next.checked_sub(1).and_then(edge), edge(next)) {
            (Some(start), Some(end)) => Within {
                start: Timestamp::from_micros(start),
                left_us: end.saturating_sub(now_us),
            },
            (None, Some(first)) => {
                let before = first.saturating_sub(now_us);
                let left_us = (before.saturating_sub(1) % nominal).saturating_add(1);
                let start = now_us.saturating_add(left_us).saturating_sub(nominal);
                Within {
                    start: Timestamp::from_micros(start),
                    left_us,
                }
            }
            (last, None) => {
                let into = now_us.saturating_sub(last.unwrap_or(0)) % nominal;
                Within {
                    start: Timestamp::from_micros(now_us.saturating_sub(into)),
                    left_us: nominal.saturating_sub(into),
                }
            }
        }
    }

    /// The edges around `now`, in seconds since the epoch: two at or before it and two after, as far as there are.
    #[must_use]
    pub fn edges_around(&self, now: Timestamp) -> [u32; EDGES] {
        let most = self.edges.len().saturating_sub(EDGES);
        let first = self.after(now).saturating_sub(EDGES / 2).min(most);
        let around = self.edges.get(first..).and_then(<[u32]>::first_chunk);
        around.copied().unwrap_or_default()
    }

    /// The place of the first edge after `now`.
    fn after(&self, now: Timestamp) -> usize {
        self.edges
            .partition_point(|edge| micros(*edge) <= now.as_micros())
    }
}

/// Made of the same unit and zone, they are the same.
impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        self.unit == other.unit && self.zone == other.zone
    }
}

impl Eq for Calendar {}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.unit.as_str(), self.zone)
    }
}

/// The names of the time zones there are.
#[must_use]
pub fn zones() -> Vec<String> {
    let database = TimeZoneDatabase::bundled();
    database.available().map(|name| name.to_string()).collect()
}

/// When each of a zone's windows begins, as far as 32 bits of seconds reach. Where the clock skips midnight a day
/// begins with what comes after; a day that is left out has no window.
fn edges(unit: CalendarUnit, zone: &TimeZone) -> Vec<u32> {
    let begins = |date: Date| zone.to_timestamp(date.at(0, 0, 0, 0)).ok();
    let mut edges: Vec<u32> = unit
        .dates()
        .map_while(begins)
        .map(|begin| begin.as_second())
        // What began before the epoch began with it.
        .map_while(|second| u32::try_from(second.max(0)).ok())
        .collect();
    edges.dedup();
    edges
}

fn micros(seconds: u32) -> u64 {
    u64::from(seconds).saturating_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        let parsed: jiff::Timestamp = text.parse().unwrap();
        Timestamp::from_micros(u64::try_from(parsed.as_microsecond()).unwrap())
    }

    fn within(calendar: &Calendar, now: &str) -> (Timestamp, u64) {
        let found = calendar.window_at(at(now));
        (found.start, found.left_us)
    }

    const HOUR_US: u64 = 3_600_000_000;

    #[test]
    fn a_window_is_as_long_as_the_clock_of_its_zone_says() {
        let berlin = Calendar::of_zone(CalendarUnit::Day, "Europe/Berlin").unwrap();
        for (midnight, hours) in [
            ("2026-03-28T23:00:00Z", 23),
            ("2026-03-29T22:00:00Z", 24),
            ("2026-10-24T22:00:00Z", 25),
            ("2026-10-25T23:00:00Z", 24),
        ] {
            assert_eq!(within(&berlin, midnight), (at(midnight), hours * HOUR_US));
        }
        let apia = Calendar::of_zone(CalendarUnit::Day, "Pacific/Apia").unwrap();
        // The 29th, then the 31st: there was no 30th.
        let midnight = "2011-12-30T10:00:00Z";
        assert_eq!(within(&apia, midnight), (at(midnight), 24 * HOUR_US));
        let month = Calendar::of_zone(CalendarUnit::Month, "UTC").unwrap();
        for (first, days) in [("2024-02-01", 29), ("2026-02-01", 28), ("2026-01-01", 31)] {
            let first = format!("{first}T00:00:00Z");
            assert_eq!(within(&month, &first), (at(&first), days * 24 * HOUR_US));
        }
        let week = Calendar::of_zone(CalendarUnit::Week, "UTC").unwrap();
        let monday = at("2026-11-30T00:00:00Z");
        assert_eq!(within(&week, "2026-12-06T23:59:59.999999Z"), (monday, 1));
    }

    #[test]
    fn beyond_the_edges_nominal_windows_go_on_from_the_nearest() {
        let day = 86_400;
        let few = vec![10 * day, 11 * day, 12 * day - 3_600, 13 * day];
        let calendar = Calendar::of_edges(CalendarUnit::Day, "few", few).unwrap();
        let at = |seconds: u32| Timestamp::from_micros(micros(seconds));
        for (now, start, left) in [
            (10 * day - 1, 9 * day, 1),
            (9 * day, 9 * day, day),
            (9 * day - 1, 8 * day, 1),
            (11 * day, 11 * day, day - 3_600),
            (13 * day, 13 * day, day),
            (14 * day - 1, 13 * day, 1),
            (20 * day + 5, 20 * day, day - 5),
        ] {
            let expected = Within {
                start: at(start),
                left_us: micros(left),
            };
            assert_eq!(calendar.window_at(at(now)), expected, "{now}");
        }
        assert!(Calendar::of_edges(CalendarUnit::Day, "few", vec![1, 2, 3]).is_none());
        assert!(Calendar::of_edges(CalendarUnit::Day, "few", vec![1, 2, 2, 4]).is_none());
    }

    #[test]
    fn a_script_is_handed_the_windows_around_its_own() {
        let calendar = Calendar::of_edges(CalendarUnit::Day, "few", (1..9).collect()).unwrap();
        let around = |second| calendar.edges_around(Timestamp::from_micros(micros(second)));
        assert_eq!(around(4), [3, 4, 5, 6]);
        assert_eq!(around(0), [1, 2, 3, 4]);
        assert_eq!(around(2), [1, 2, 3, 4]);
        assert_eq!(around(7), [5, 6, 7, 8]);
        assert_eq!(around(100), [5, 6, 7, 8]);
    }
}
