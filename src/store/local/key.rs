//! Whose a state is: which entity, by which policy, and in which outage.

use serde::{Deserialize, Serialize};

use crate::check::Check;

/// Of whom and by what: an entity and a policy's generation.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct Key {
    entity: [u8; 16],
    policy: u64,
}

/// Of a key's policy, what says which it is. The rest says in which outage it counted.
const POLICY: u64 = 0x0000_ffff_ffff_ffff;

/// The outage of the shared store in which a state was counted, if it was in one. They are told apart by their
/// numbers; after 65,535 of them these come round.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Outage(u16);

impl Outage {
    /// The outage after so many recoveries.
    #[must_use]
    pub fn after(recoveries: u32) -> Self {
        Self(u16::try_from(recoveries % 0xffff + 1).unwrap_or(u16::MAX))
    }

    pub(super) const fn from_number(number: u16) -> Self {
        Self(number)
    }

    pub(super) const fn number(self) -> u16 {
        self.0
    }

    fn tag(self) -> u64 {
        u64::from(self.0) << 48
    }
}

impl Key {
    /// The key of what `check`'s policy has counted for its entity, in this outage.
    pub(super) fn of(check: &Check<'_>, outage: Outage) -> Self {
        Self::named(check, outage, "")
    }

    /// The key of the penalty beside `check`, if there is one: in the same shard.
    pub(super) fn of_penalty(check: &Check<'_>, outage: Outage) -> Option<Self> {
        // No name has a colon.
        let is_beside = check.policy.penalty.is_some();
        is_beside.then(|| Self::named(check, outage, ":penalty"))
    }

    fn named(check: &Check<'_>, outage: Outage, what: &str) -> Self {
        // FNV-1a: names are few, short, and the operator's own.
        let start = 0xcbf2_9ce4_8422_2325 ^ u64::from(check.policy.generation.0);
        let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let name = check.policy.name.bytes().chain(what.bytes());
        Self {
            entity: check.entity.0,
            policy: name.fold(start, fold) & POLICY | outage.tag(),
        }
    }

    /// Which of `shards` it belongs to: all of an entity's belong to the same.
    pub(super) fn shard(&self, shards: usize) -> usize {
        // Other bits than the chains' own hash uses.
        let [.., a, b] = self.entity;
        (usize::from(a) << 8 | usize::from(b)) % shards
    }

    /// The same in this outage, if it was counted in one.
    pub(super) fn in_outage(self, outage: Outage) -> Self {
        let in_one = self.policy & !POLICY != 0;
        let tag = if in_one { outage.tag() } else { 0 };
        Self {
            policy: self.policy & POLICY | tag,
            ..self
        }
    }

    /// Whether it was counted in an outage that is over.
    pub(super) fn is_over(&self, current: Outage) -> bool {
        let tag = self.policy & !POLICY;
        tag != 0 && tag != current.tag()
    }

    /// Eight bytes of the entity are enough: it is a keyed hash, which nobody outside can aim.
    pub(super) fn hash(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.entity;
        let spread = u64::from_le_bytes([a, b, c, d, e, f, g, h]) ^ self.policy;
        spread.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[cfg(test)]
impl Key {
    /// A key of this number. Those of one `hash` have the same.
    pub(super) fn numbered(hash: u64, number: u64) -> Self {
        let entity = u128::from(hash) | u128::from(number) << 64;
        Self {
            entity: entity.to_le_bytes(),
            policy: 0,
        }
    }
}
