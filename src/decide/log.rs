//! What a sliding log remembers: a record for each request, and the units charged before them.
//!
//! Most clients of a crowd come once, so a single record takes no memory of its own.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::Timestamp;

/// What a store keeps for each entity. Stamps never fall from one record to the next.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(from = "Written", into = "Written")]
pub struct State(Log);

#[derive(Clone, Debug)]
enum Log {
    /// Of no record.
    Empty {
        before: u64,
    },
    One {
        before: u64,
        record: Record,
    },
    /// The first stands for all before the others: of it, the total counts alone.
    Many(VecDeque<Record>),
}

/// An allowed request, or all of the same microsecond.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Record {
    pub(super) stamp: Timestamp,
    /// Units charged up to and with this one, since ever and modulo [`super::USED_MAX`] + 1.
    pub(super) total: u64,
}

/// What to put at the end of a log, in place of all that is not older.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Entry {
    pub(super) now: Timestamp,
    pub(super) total: u64,
    pub(super) window_us: NonZeroU64,
}

/// A log as a snapshot has it.
#[derive(Deserialize, Serialize)]
struct Written {
    /// Units charged before the first record, since ever and modulo [`super::USED_MAX`] + 1.
    before: u64,
    records: Vec<Record>,
}

/// How many records there is room for once there are two, that of all before them included.
const ROOM_MIN: usize = 4;

impl State {
    /// The log that has this entry only.
    #[must_use]
    pub fn of(entry: Entry) -> Self {
        let mut log = Self::default();
        log.write(entry);
        log
    }

    /// Writes the entry: what has left the window goes, and so does what is not older than the entry.
    pub fn write(&mut self, entry: Entry) {
        let Entry {
            now,
            total,
            window_us,
        } = entry;
        let expired = self.first_inside(now, window_us);
        let before = self.total_before(expired);
        let older = match self.last() {
            Some(last) if last.stamp >= now => self.first_from(expired, |r| r.stamp >= now),
            _ => self.len(),
        };
        let record = Record { stamp: now, total };
        match &mut self.0 {
            Log::Many(records) => {
                // The last of those that go stands for all of them.
                records.drain(..expired);
                records.truncate(older.saturating_sub(expired).saturating_add(1));
                records.push_back(record);
                if records.capacity() > 16 && records.len() < records.capacity() / 4 {
                    records.shrink_to(records.len().saturating_mul(2));
                }
            }
            Log::One { record: first, .. } if expired < older => {
                let mut records = VecDeque::with_capacity(ROOM_MIN);
                records.extend([first.standing_for(before), *first, record]);
                self.0 = Log::Many(records);
            }
            _ => self.0 = Log::One { before, record },
        }
    }

    /// How many requests it remembers.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Log::Empty { .. } => 0,
            Log::One { .. } => 1,
            Log::Many(records) => records.len().saturating_sub(1),
        }
    }

    /// Whether it remembers none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn get(&self, index: usize) -> Option<&Record> {
        match &self.0 {
            Log::One { record, .. } if index == 0 => Some(record),
            Log::Many(records) => records.get(index.saturating_add(1)),
            _ => None,
        }
    }

    pub(super) fn last(&self) -> Option<&Record> {
        self.get(self.len().checked_sub(1)?)
    }

    /// The records from this one on.
    pub(super) fn records_mut(&mut self, from: usize) -> impl Iterator<Item = &mut Record> {
        let (one, many) = match &mut self.0 {
            Log::Empty { .. } => (None, None),
            Log::One { record, .. } => (Some(record), None),
            Log::Many(records) => (None, Some(records.iter_mut().skip(1))),
        };
        one.into_iter().chain(many.into_iter().flatten()).skip(from)
    }

    /// Forgets the record, and no unit.
    pub(super) fn remove(&mut self, index: usize) {
        match &mut self.0 {
            Log::One { before, .. } if index == 0 => self.0 = Log::Empty { before: *before },
            Log::Many(records) => {
                records.remove(index.saturating_add(1));
            }
            _ => {}
        }
    }

    /// The first record that is inside the window that ends now.
    pub(super) fn first_inside(&self, now: Timestamp, window_us: NonZeroU64) -> usize {
        self.first_from(0, |r| now.micros_since(r.stamp) < window_us.get())
    }

    /// The first record from `first` on of which `holds` is true, as it is of all after it. Gallops, since that is
    /// mostly near the front, then halves.
    pub(super) fn first_from(&self, first: usize, holds: impl Fn(&Record) -> bool) -> usize {
        let mut low = first;
        let mut step = 1_usize;
        let mut high = loop {
            let probe = low.saturating_add(step).saturating_sub(1);
            match self.get(probe) {
                None => break self.len(),
                Some(record) if holds(record) => break probe,
                Some(_) => {
                    low = probe.saturating_add(1);
                    step = step.saturating_mul(2);
                }
            }
        };
        while low < high {
            let middle = low.midpoint(high);
            if self.get(middle).is_some_and(&holds) {
                high = middle;
            } else {
                low = middle.saturating_add(1);
            }
        }
        low
    }

    pub(super) fn total_before(&self, index: usize) -> u64 {
        match (&self.0, index.checked_sub(1)) {
            (Log::One { record, .. }, Some(0)) => record.total,
            (Log::Empty { before } | Log::One { before, .. }, _) => *before,
            (Log::Many(records), _) => {
                let last = records.get(index).or_else(|| records.front());
                last.map_or(0, |r| r.total)
            }
        }
    }

    pub(super) fn last_total(&self) -> u64 {
        self.total_before(self.len())
    }

    fn iter(&self) -> impl Iterator<Item = Record> {
        (0..self.len()).filter_map(|index| self.get(index).copied())
    }
}

impl Record {
    /// The record that stands for all before this one, after which so many units were charged.
    const fn standing_for(self, before: u64) -> Self {
        Self {
            total: before,
            ..self
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self(Log::Empty { before: 0 })
    }
}

/// However it is kept: what it remembers is what counts.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.total_before(0) == other.total_before(0) && self.iter().eq(other.iter())
    }
}

impl Eq for State {}

impl From<Written> for State {
    fn from(written: Written) -> Self {
        let Written { before, records } = written;
        Self(match *records {
            [] => Log::Empty { before },
            [record] => Log::One { before, record },
            [first, ..] => {
                let mut kept = VecDeque::with_capacity(records.len().saturating_add(1));
                kept.push_back(first.standing_for(before));
                kept.extend(records);
                Log::Many(kept)
            }
        })
    }
}

impl From<State> for Written {
    fn from(log: State) -> Self {
        Self {
            before: log.total_before(0),
            records: log.iter().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW_US: u64 = 1_000;

    fn entry(now: u64, total: u64) -> Entry {
        Entry {
            now: Timestamp::from_micros(now),
            total,
            window_us: NonZeroU64::new(WINDOW_US).unwrap(),
        }
    }

    /// What a log is, written down plainly: a list.
    #[derive(Clone, Debug, Default)]
    struct Plain {
        before: u64,
        records: Vec<(u64, u64)>,
    }

    impl Plain {
        fn write(&mut self, now: u64, total: u64) {
            while let Some(&(stamp, total)) = self.records.first()
                && now.saturating_sub(stamp) >= WINDOW_US
            {
                self.before = total;
                self.records.remove(0);
            }
            self.records.retain(|(stamp, _)| *stamp < now);
            self.records.push((now, total));
        }

        fn remove(&mut self, index: usize) {
            self.records.remove(index);
        }
    }

    fn is_same(log: &State, plain: &Plain) {
        let records: Vec<_> = log.iter().map(|r| (r.stamp.as_micros(), r.total)).collect();
        assert_eq!(records, plain.records);
        assert_eq!(log.len(), plain.records.len());
        assert_eq!(log.is_empty(), plain.records.is_empty());
        assert_eq!(log.total_before(0), plain.before);
        let last = plain.records.last().map_or(plain.before, |r| r.1);
        assert_eq!(log.last_total(), last);
    }

    #[test]
    fn a_log_remembers_what_a_plain_list_would() {
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..2_000 {
            let (mut log, mut plain) = (State::default(), Plain::default());
            let (mut now, mut total) = (5_000, 0);
            let longest = [200, 1_200, 50][round % 3];
            for _ in 0..random.usize(1..40) {
                match random.u8(..10) {
                    0 if !log.is_empty() => {
                        let index = random.usize(..log.len());
                        log.remove(index);
                        plain.remove(index);
                    }
                    1 => {
                        let from = random.usize(..4);
                        log.records_mut(from).for_each(|r| r.total += 1);
                        let rest = plain.records.iter_mut().skip(from);
                        rest.for_each(|r| r.1 += 1);
                    }
                    step => {
                        let later = now + random.u64(..longest);
                        now = if step == 2 {
                            now - random.u64(..longest)
                        } else {
                            later
                        };
                        total += random.u64(..5);
                        log.write(entry(now, total));
                        plain.write(now, total);
                    }
                }
                is_same(&log, &plain);
            }
        }
    }

    #[test]
    fn a_log_is_written_as_units_before_it_and_a_list_and_read_as_it_was() {
        let mut log = State::default();
        for count in 0..5_u64 {
            let records: Vec<_> = (1..=count).map(|n| (n, n * 10)).collect();
            let bytes = postcard::to_stdvec(&log).unwrap();
            assert_eq!(bytes, postcard::to_stdvec(&(0_u64, records)).unwrap());
            let read: State = postcard::from_bytes(&bytes).unwrap();
            assert_eq!(read, log);
            log.write(entry(count + 1, (count + 1) * 10));
            assert_ne!(read, log);
        }
    }
}
