//! Which answers a request is counted for.

use http::StatusCode;

/// A set of status codes from 100 to 599.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Statuses([u64; 8]);

/// Which answers a policy counts. A request is charged before it is answered, so that no two slip past together, and is
/// given it back where its answer does not count.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Outcomes {
    /// Those that count.
    pub counted: Statuses,
    /// Those after which all that was counted of the caller is forgotten.
    pub resetting: Statuses,
}

/// What an answer means for a charge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// It stays.
    Charge,
    /// It is given back.
    Spare,
    /// All that was counted is forgotten.
    Reset,
}

impl Statuses {
    /// Every status.
    pub const ALL: Self = Self([u64::MAX; 8]);

    /// Those of this class, 1 to 5: what `4xx` means for 4.
    #[must_use]
    pub fn of_class(class: u16) -> Self {
        let first = class.saturating_mul(100);
        (first..first.saturating_add(100)).fold(Self::default(), Self::with)
    }

    /// This one, too; the same if it is not from 100 to 599.
    #[must_use]
    pub fn with(mut self, code: u16) -> Self {
        let (word, bit) = place(code);
        if let Some(word) = self.0.get_mut(word) {
            *word |= bit;
        }
        self
    }

    /// Whether it is one of them.
    #[must_use]
    pub fn contains(&self, code: u16) -> bool {
        let (word, bit) = place(code);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    /// These and those.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    /// These without those.
    #[must_use]
    pub fn but(self, other: Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn zip(self, other: Self, of: impl Fn(u64, u64) -> u64) -> Self {
        let mut words = self.0;
        for (word, other) in words.iter_mut().zip(other.0) {
            *word = of(*word, other);
        }
        Self(words)
    }
}

/// The word and the bit of a code; no word of one that is none.
fn place(code: u16) -> (usize, u64) {
    match code {
        100..600 => (usize::from((code - 100) / 64), 1 << ((code - 100) % 64)),
        _ => (usize::MAX, 0),
    }
}

impl Outcomes {
    /// What an answer of this status means.
    #[must_use]
    pub fn of(&self, status: StatusCode) -> Outcome {
        let code = status.as_u16();
        if self.resetting.contains(code) {
            Outcome::Reset
        } else if self.counted.contains(code) {
            Outcome::Charge
        } else {
            Outcome::Spare
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let set = Statuses::default().with(100).with(401).with(599);
        let found: Vec<_> = (0..=u16::MAX).filter(|code| set.contains(*code)).collect();
        assert_eq!(found, [100, 401, 599]);
        assert_eq!(
            Statuses::default().with(99).with(u16::MAX),
            Statuses::default()
        );
        let classes = Statuses::of_class(4).and(Statuses::of_class(5)).but(set);
        let found: Vec<_> = (100..600).filter(|code| classes.contains(*code)).collect();
        let expected: Vec<_> = (400..599).filter(|code| *code != 401).collect();
        assert_eq!(found, expected);
        assert!(Statuses::default().is_empty() && !set.is_empty());
        assert!((100..600).all(|code| Statuses::ALL.contains(code)));
    }

    #[test]
    fn a_reset_goes_before_a_charge() {
        let outcomes = Outcomes {
            counted: Statuses::of_class(4),
            resetting: Statuses::of_class(2),
        };
        let of = |code| outcomes.of(StatusCode::from_u16(code).unwrap());
        assert_eq!(
            [of(200), of(302), of(401)],
            [Outcome::Reset, Outcome::Spare, Outcome::Charge]
        );
    }
}
