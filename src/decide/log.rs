//! What a sliding log remembers: a record for each request, and the units charged before them.
//!
//! Most clients of a crowd come once or twice, so one record or two take no memory of their own.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::{Timestamp, USED_MAX};

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
    Two(Pair),
    /// The first stands for all before the others: of it, the total counts alone.
    Many(VecDeque<Record>),
}

/// An allowed request, or all of the same microsecond.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Record {
    pub(super) stamp: Timestamp,
    /// Units charged up to and with this one, since ever and modulo [`USED_MAX`] + 1.
    pub(super) total: u64,
}

/// Two records as they mostly are: small, and less than twelve days apart.
#[derive(Clone, Copy, Debug)]
struct Pair {
    before: [u8; 6],
    stamp: [u8; 7],
    /// Time from the first to the second.
    gap: [u8; 5],
    /// What each of them charged.
    units: [[u8; 3]; 2],
}

const _: () = assert!(
    size_of::<State>() == 32,
    "a state is half a line of the cache"
);

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
    /// Units charged before the first record, since ever and modulo [`USED_MAX`] + 1.
    before: u64,
    records: Vec<Record>,
}

/// How many records there is room for once there are three, that of all before them included.
const ROOM_MIN: usize = 6;

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
            _ => {
                let mut kept = (expired..older).filter_map(|index| self.get(index));
                self.0 = match (kept.next(), kept.next()) {
                    (None, _) => Log::One { before, record },
                    (Some(first), None) => Log::of_two(before, first, record),
                    (Some(first), Some(second)) => Log::of_many(before, &[first, second, record]),
                };
            }
        }
    }

    /// How many requests it remembers.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Log::Empty { .. } => 0,
            Log::One { .. } => 1,
            Log::Two(_) => 2,
            Log::Many(records) => records.len().saturating_sub(1),
        }
    }

    /// Whether it remembers none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn get(&self, index: usize) -> Option<Record> {
        match (&self.0, index) {
            (Log::One { record, .. }, 0) => Some(*record),
            (Log::Two(pair), 0) => Some(pair.first()),
            (Log::Two(pair), 1) => Some(pair.second()),
            (Log::Many(records), _) => records.get(index.saturating_add(1)).copied(),
            _ => None,
        }
    }

    pub(super) fn last(&self) -> Option<Record> {
        self.get(self.len().checked_sub(1)?)
    }

    /// Makes the change to each of the records from this one on.
    pub(super) fn change_from(&mut self, from: usize, change: impl Fn(&mut Record)) {
        if let Log::Many(records) = &mut self.0 {
            let from = from.saturating_add(1);
            records.iter_mut().skip(from).for_each(change);
            return;
        }
        self.rewrite(|records| records.iter_mut().skip(from).for_each(change));
    }

    /// Forgets the record, and no unit.
    pub(super) fn remove(&mut self, index: usize) {
        if let Log::Many(records) = &mut self.0 {
            records.remove(index.saturating_add(1));
            return;
        }
        self.rewrite(|records| {
            if index < records.len() {
                records.remove(index);
            }
        });
    }

    fn rewrite(&mut self, change: impl FnOnce(&mut Vec<Record>)) {
        let mut records = self.iter().collect();
        change(&mut records);
        let before = self.before();
        *self = Self::from(Written { before, records });
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
                Some(record) if holds(&record) => break probe,
                Some(_) => {
                    low = probe.saturating_add(1);
                    step = step.saturating_mul(2);
                }
            }
        };
        while low < high {
            let middle = low.midpoint(high);
            if self.get(middle).is_some_and(|r| holds(&r)) {
                high = middle;
            } else {
                low = middle.saturating_add(1);
            }
        }
        low
    }

    pub(super) fn total_before(&self, index: usize) -> u64 {
        if let Log::Many(records) = &self.0 {
            let last = records.get(index).or_else(|| records.front());
            return last.map_or(0, |r| r.total);
        }
        let last = index.checked_sub(1).and_then(|last| self.get(last));
        last.map_or_else(|| self.before(), |r| r.total)
    }

    fn before(&self) -> u64 {
        match &self.0 {
            Log::Empty { before } | Log::One { before, .. } => *before,
            Log::Two(pair) => pair.before(),
            Log::Many(records) => records.front().map_or(0, |r| r.total),
        }
    }

    pub(super) fn last_total(&self) -> u64 {
        self.total_before(self.len())
    }

    fn iter(&self) -> impl Iterator<Item = Record> {
        (0..self.len()).filter_map(|index| self.get(index))
    }
}

impl Log {
    fn of_two(before: u64, first: Record, second: Record) -> Self {
        let pair = Pair::of(before, first, second);
        let is_same = (pair.before(), pair.first(), pair.second()) == (before, first, second);
        if is_same {
            Self::Two(pair)
        } else {
            Self::of_many(before, &[first, second])
        }
    }

    fn of_many(before: u64, records: &[Record]) -> Self {
        let mut kept = VecDeque::with_capacity(records.len().saturating_add(1).max(ROOM_MIN));
        kept.extend(records.first().map(|first| first.standing_for(before)));
        kept.extend(records);
        Self::Many(kept)
    }
}

impl Pair {
    /// These, or others if these do not fit.
    fn of(before: u64, first: Record, second: Record) -> Self {
        Self {
            before: low(before),
            stamp: low(first.stamp.as_micros()),
            gap: low(second.stamp.micros_since(first.stamp)),
            units: [
                low(span(before, first.total)),
                low(span(first.total, second.total)),
            ],
        }
    }

    fn before(&self) -> u64 {
        whole(self.before)
    }

    fn first(&self) -> Record {
        let [units, _] = self.units;
        Record {
            stamp: Timestamp::from_micros(whole(self.stamp)),
            total: self.before().saturating_add(whole(units)) & USED_MAX,
        }
    }

    fn second(&self) -> Record {
        let first = self.first();
        let [_, units] = self.units;
        let stamp = first.stamp.as_micros().saturating_add(whole(self.gap));
        Record {
            stamp: Timestamp::from_micros(stamp),
            total: first.total.saturating_add(whole(units)) & USED_MAX,
        }
    }
}

/// The low bytes of a number.
fn low<const N: usize>(number: u64) -> [u8; N] {
    let mut bytes = [0; N];
    for (byte, of_number) in bytes.iter_mut().zip(number.to_le_bytes()) {
        *byte = of_number;
    }
    bytes
}

/// The number that has these low bytes, and no others.
fn whole<const N: usize>(bytes: [u8; N]) -> u64 {
    let mut whole = [0; 8];
    for (of_number, byte) in whole.iter_mut().zip(bytes) {
        *of_number = byte;
    }
    u64::from_le_bytes(whole)
}

/// Units charged from one running total to a later one. Totals run round at [`USED_MAX`].
pub(super) fn span(from: u64, to: u64) -> u64 {
    to.wrapping_sub(from) & USED_MAX
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
        self.before() == other.before() && self.iter().eq(other.iter())
    }
}

impl Eq for State {}

impl From<Written> for State {
    fn from(written: Written) -> Self {
        let Written { before, records } = written;
        Self(match *records {
            [] => Log::Empty { before },
            [record] => Log::One { before, record },
            [first, second] => Log::of_two(before, first, second),
            _ => Log::of_many(before, &records),
        })
    }
}

impl From<State> for Written {
    fn from(log: State) -> Self {
        Self {
            before: log.before(),
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
                        log.change_from(from, |r| r.total += 1);
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
    fn two_records_are_kept_as_they_are_however_large_they_are() {
        let record = |(stamp, total)| Record {
            stamp: Timestamp::from_micros(stamp),
            total,
        };
        let (day_us, most) = (86_400_000_000, 1 << 24);
        for (before, first, second, fits) in [
            (0, (5, 1), (6, 2), true),
            (USED_MAX, (5, 0), (6, 1), true),
            (7, (1 << 52, 7), ((1 << 52) + 12 * day_us, 7), true),
            (0, (5, most - 1), (6, 2 * most - 2), true),
            // More units than three bytes hold, of either, and more time than five.
            (0, (5, most), (6, most), false),
            (0, (5, 0), (6, most), false),
            (0, (5, 1), (5 + 13 * day_us, 2), false),
            // What only a file could say.
            (u64::MAX, (5, 1), (6, 2), false),
            (0, (5, u64::MAX), (6, 2), false),
            (0, (6, 1), (5, 2), false),
        ] {
            let both = [record(first), record(second)];
            let log = Log::of_two(before, both[0], both[1]);
            assert_eq!(matches!(log, Log::Two(_)), fits, "{first:?}, {second:?}");
            let log = State(log);
            assert_eq!(log.before(), before);
            assert_eq!(log.iter().collect::<Vec<_>>(), both);
            assert_eq!(log.last_total(), both[1].total);
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
