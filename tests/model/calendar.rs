//! Quotas by the calendar: windows end at civil midnights, worked out here in another way than the tables are.

use std::sync::Arc;

use jiff::ToSpan;
use jiff::civil::{Date, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use proptest::prelude::*;
use tollgate::decide::{
    Anchor, Calendar, CalendarUnit, Cost, FixedWindow, Rule, Timestamp, Verdict,
};

use crate::support::traces::{CALENDARS, limit};

/// From 1972, when the last clock that was not set to whole minutes was, to 2105: microseconds.
const YEARS_US: std::ops::Range<u64> = 63_072_000_000_000..4_260_000_000_000_000;

fn stamp(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros)
}

/// What a calendar on the wall shows at this moment.
fn date_at(micros: u64, zone: &TimeZone) -> Date {
    let at = jiff::Timestamp::from_microsecond(i64::try_from(micros).unwrap()).unwrap();
    at.to_zoned_datetime(zone.clone()).date()
}

/// When the windows begin and end that this moment is in: the first seconds of which the wall shows another one, found
/// by halving.
fn midnights(now: u64, calendar: &Calendar) -> (u64, u64) {
    const SECOND_US: u64 = 1_000_000;
    let zone = TimeZoneDatabase::bundled().get(calendar.zone()).unwrap();
    let window = |micros: u64| {
        let date = date_at(micros, &zone);
        match calendar.unit() {
            CalendarUnit::Day => date,
            CalendarUnit::Week => date - i64::from(date.weekday().since(Weekday::Monday)).days(),
            CalendarUnit::Month => date.first_of_month(),
        }
    };
    // Of the seconds from `from` on, the first at which a window is shown that `is_it`, as all later ones are.
    let first = |from: u64, is_it: &dyn Fn(Date) -> bool| {
        let (mut before, mut at) = (from, from + 34 * 86_400);
        while at - before > 1 {
            let middle = before.midpoint(at);
            if is_it(window(middle * SECOND_US)) {
                at = middle;
            } else {
                before = middle;
            }
        }
        at * SECOND_US
    };
    let (shown, second) = (window(now), now / SECOND_US);
    (
        first(second - 33 * 86_400, &|it| it >= shown),
        first(second, &|it| it > shown),
    )
}

/// Moments close to an edge, or to where clocks change; and any.
fn moment() -> impl Strategy<Value = u64> {
    let changes = prop::sample::select(vec![
        1_301_184_000_000_000_u64, // Europe, spring of 2011
        1_325_196_000_000_000,     // Samoa skips a day
        1_709_164_800_000_000,     // 29 February 2024
        1_774_742_400_000_000,     // Europe, spring of 2026
        1_792_886_400_000_000,     // Europe, autumn of 2026
        1_772_928_000_000_000,     // New York, spring of 2026
        1_793_491_200_000_000,     // New York, autumn of 2026
        1_775_307_600_000_000,     // Lord Howe, autumn of 2026
        1_798_761_600_000_000,     // new year of 2027
    ]);
    const DAY_US: u64 = 86_400_000_000;
    prop_oneof![
        3 => (changes, 0..6 * DAY_US).prop_map(|(change, span)| change - 3 * DAY_US + span),
        1 => YEARS_US,
    ]
}

fn calendar() -> impl Strategy<Value = Arc<Calendar>> {
    (0..CALENDARS.len()).prop_map(|place| Arc::clone(&CALENDARS[place]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn windows_end_at_civil_midnights(calendar in calendar(), now in moment()) {
        let (start, end) = midnights(now, &calendar);
        let found = calendar.window_at(stamp(now));
        prop_assert_eq!(found.start, stamp(start));
        prop_assert_eq!(found.left_us, end - now);
        for edge in [start, end] {
            let at = calendar.window_at(stamp(edge));
            prop_assert_eq!(at.start, stamp(edge), "a window begins at its edge");
            prop_assert_eq!(calendar.window_at(stamp(edge - 1)).left_us, 1, "and the one before ends there");
        }
    }

    #[test]
    fn a_denial_lasts_to_the_edge_and_no_longer(calendar in calendar(), now in moment(), count in 1..5_u64) {
        let (_, end) = midnights(now, &calendar);
        let rule = Rule::FixedWindow(
            FixedWindow::new(limit(count, 1_000), Anchor::Calendar(calendar)).unwrap(),
        );
        let mut kept = None;
        let mut decide = |now: u64, cost: u64| {
            let (change, decision) = rule.decide(kept.as_ref(), stamp(now), Cost::new(cost));
            change.apply(&mut kept);
            decision
        };
        prop_assert_eq!(decide(now, count).verdict, Verdict::Allow);
        let denied = decide(now, 1);
        prop_assert_eq!((denied.verdict, denied.retry_after_us), (Verdict::Deny, Some(end - now)));
        prop_assert_eq!(denied.reset_after_us, end - now);
        prop_assert_eq!(decide(end - 1, 1).verdict, Verdict::Deny);
        prop_assert_eq!(decide(end, count).verdict, Verdict::Allow);
    }

    #[test]
    fn the_edges_that_a_script_is_handed_are_enough_a_window_to_each_side(
        calendar in calendar(), now in moment(), off in 0..1_000_u64,
    ) {
        let edges = calendar.edges_around(stamp(now));
        let few = Calendar::of_edges(calendar.unit(), "few", edges.to_vec()).unwrap();
        let micros = |edge: u32| u64::from(edge) * 1_000_000;
        let [first, .., last] = edges.map(micros);
        for then in [now, first + (last - first - 1) / 1_000 * off] {
            prop_assert_eq!(few.window_at(stamp(then)), calendar.window_at(stamp(then)));
        }
        let within = |from: u64, to: u64| from <= now && now < to;
        prop_assert!(within(micros(edges[1]), micros(edges[2])), "its own is between two others");
    }
}

#[test]
fn every_day_of_every_zone_is_as_long_as_its_clock_says() {
    for calendar in CALENDARS.iter() {
        let (mut now, until) = (1_262_304_000_000_000, 1_924_992_000_000_000);
        let mut windows = 0;
        while now < until {
            let (start, end) = midnights(now, calendar);
            let found = calendar.window_at(stamp(now));
            assert_eq!(
                (found.start, found.left_us),
                (stamp(start), end - now),
                "{calendar:?} {now}"
            );
            now = end;
            windows += 1;
        }
        let expected = match calendar.unit() {
            // It may begin and end within one more. In Samoa that is two, and one was left out.
            CalendarUnit::Day => 7_670,
            CalendarUnit::Week => 1_096,
            CalendarUnit::Month => 252,
        };
        assert!(
            (expected..=expected + 2).contains(&windows),
            "{calendar:?}: {windows}"
        );
    }
}
