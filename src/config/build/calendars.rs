//! Windows that begin as those of a calendar.

use std::cell::RefCell;
use std::sync::Arc;

use super::{Builder, value};
use crate::answer::words;
use crate::config::error::Code;
use crate::config::file::{Kind, Policy as Written};
use crate::config::moments::{AnchorAt, ZoneName};
use crate::config::values::LimitOf;
use crate::decide::{Anchor, Calendar, CalendarUnit};

/// The calendars of a configuration, each once: a table of days has fifty thousand edges.
#[derive(Debug, Default)]
pub(super) struct Calendars(RefCell<Vec<Arc<Calendar>>>);

impl Calendars {
    /// What windows are aligned to that are written so.
    pub(super) fn anchor(&self, written: Option<AnchorAt>) -> Anchor {
        match written {
            None | Some(AnchorAt::Epoch) => Anchor::Epoch,
            Some(AnchorAt::FirstRequest) => Anchor::FirstRequest,
            Some(AnchorAt::Calendar(unit, zone)) => self
                .calendar(unit, &zone)
                .map_or(Anchor::Epoch, Anchor::Calendar),
        }
    }

    fn calendar(&self, unit: CalendarUnit, ZoneName(zone): &ZoneName) -> Option<Arc<Calendar>> {
        let mut known = self.0.borrow_mut();
        let same = |calendar: &&Arc<Calendar>| calendar.unit() == unit && calendar.zone() == zone;
        if let Some(calendar) = known.iter().find(same) {
            return Some(Arc::clone(calendar));
        }
        let calendar = Arc::new(Calendar::of_zone(unit, zone)?);
        known.push(Arc::clone(&calendar));
        Some(calendar)
    }
}

impl Builder<'_> {
    /// Whether the limit is one of the calendar's unit where there is a calendar, and no month where there is none.
    pub(super) fn check_calendar(&self, name: &str, written: &Written) -> bool {
        let Some(limit) = &written.limit else {
            return false;
        };
        let LimitOf::Rate(rate) = limit.value else {
            return true;
        };
        let count = rate.limit.count;
        let is_fixed_window = value(&written.kind) == Some(Kind::FixedWindow);
        let calendar = match value(&written.anchor) {
            Some(AnchorAt::Calendar(unit, _)) if is_fixed_window => Some(unit),
            // What stands there could not be read: what the limit is to go with is not known.
            None if written.unread.contains(&"anchor") => return true,
            _ => None,
        };
        let Some(unit) = calendar else {
            if rate.is_month {
                self.error(
                    Code::E044,
                    limit.place,
                    format!("policy `{name}`: months have 28 to 31 days, so `month` is no length of a window"),
                    format!(
                        "write \"{count}/30d\", or kind = \"fixed-window\" and anchor = {{ calendar = \"month\", tz = \"UTC\" }}"
                    ),
                );
            }
            return !rate.is_month;
        };
        let (goes_with, word) = match unit {
            CalendarUnit::Month => (rate.is_month, "month"),
            CalendarUnit::Week => (is_as_long(rate, unit), "7d"),
            CalendarUnit::Day => (is_as_long(rate, unit), "d"),
        };
        if !goes_with {
            let found = if rate.is_month {
                "month".to_owned()
            } else {
                words::window(rate.limit.window_us.get())
            };
            self.error(
                Code::E044,
                limit.place,
                format!(
                    "policy `{name}` counts by the calendar's {}, and its limit is per {found}",
                    unit.as_str()
                ),
                format!("write limit = \"{count}/{word}\", or take the anchor out"),
            );
        }
        goes_with
    }
}

fn is_as_long(rate: crate::config::units::Rate, unit: CalendarUnit) -> bool {
    !rate.is_month && rate.limit.window_us.get() == unit.nominal_us()
}
