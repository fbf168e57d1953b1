//! Tokens that were verified: a signature takes 70 to 140 µs, everything else of a request some 40, and a look here 2.
//! Only what was verified comes in, so that nobody fills it with anything else.

use std::collections::HashMap;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use crate::check::Identity;

/// The most tokens that one of a shard's two generations holds. With 16 shards and a few hundred bytes a token, some
/// megabytes at most.
const GENERATION_MAX: usize = 512;

const SHARDS: usize = 16;

/// Verified tokens by their hash. Bounded: what was not seen for long makes room.
#[derive(Debug)]
pub(super) struct Cache([Mutex<Shard>; SHARDS]);

/// What is known of a verified token.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Whom it proves the caller to be.
    pub(super) identity: Arc<Identity>,
    /// From when on, and the first second in which not any more, since the epoch.
    pub(super) valid_s: (u64, u64),
    /// Which keys it was verified with.
    pub(super) keys: u64,
}

/// The tokens since the last change, and those before it.
#[derive(Debug, Default)]
struct Shard {
    young: HashMap<[u8; 32], Known>,
    old: HashMap<[u8; 32], Known>,
}

impl Cache {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }

    /// What is known of a token.
    pub(super) fn get(&self, hash: &[u8; 32]) -> Option<Known> {
        let mut shard = self
            .shard(hash)?
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = shard.young.get(hash) {
            return Some(known.clone());
        }
        let known = shard.old.remove(hash)?;
        shard.put(*hash, known.clone());
        Some(known)
    }

    /// Remembers a token.
    pub(super) fn put(&self, hash: [u8; 32], known: Known) {
        if let Some(shard) = self.shard(&hash) {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            shard.put(hash, known);
        }
    }

    fn shard(&self, hash: &[u8; 32]) -> Option<&Mutex<Shard>> {
        let [first, ..] = *hash;
        self.0.get(usize::from(first) % SHARDS)
    }
}

impl Shard {
    fn put(&mut self, hash: [u8; 32], known: Known) {
        if self.young.len() >= GENERATION_MAX {
            self.old = mem::take(&mut self.young);
        }
        self.young.insert(hash, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(keys: u64) -> Known {
        Known {
            identity: Arc::default(),
            valid_s: (0, u64::MAX),
            keys,
        }
    }

    #[test]
    fn it_stays_small_and_keeps_what_is_asked_for() {
        let cache = Cache::new();
        let hash = |number: u64| *blake3::hash(&number.to_le_bytes()).as_bytes();
        for number in 0..100_000 {
            cache.put(hash(number), known(number));
            assert_eq!(cache.get(&hash(0)).map(|known| known.keys), Some(0));
        }
        let held: usize = (cache.0.iter())
            .map(|shard| shard.lock().unwrap())
            .map(|shard| shard.young.len() + shard.old.len())
            .sum();
        assert!(held <= 2 * GENERATION_MAX * SHARDS, "{held}");
        assert!(cache.get(&hash(99_999)).is_some());
        assert!(cache.get(&hash(1)).is_none());
    }
}
