//! A bounded table of what is known here of entities under policies. Things lie in buckets by the entity's hash, a lock
//! each; where a bucket is full, what ends first makes room.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::check::Check;

/// Buckets of things. What is pushed out is only not known any more.
#[derive(Debug)]
pub(super) struct Buckets<T> {
    buckets: Box<[Mutex<Vec<T>>]>,
    bucket_max: usize,
}

impl<T> Buckets<T> {
    /// So many empty buckets, of so many things each at most.
    pub(super) fn new(buckets: usize, bucket_max: usize) -> Self {
        Self {
            buckets: (0..buckets).map(|_| Mutex::default()).collect(),
            bucket_max,
        }
    }

    /// The bucket of the check's entity and policy. The entity is a keyed hash: nobody outside can aim.
    pub(super) fn of(&self, check: &Check<'_>) -> Option<MutexGuard<'_, Vec<T>>> {
        let [a, b, c, d, ..] = check.entity.0;
        let spread = u32::from_le_bytes([a, b, c, d]) ^ check.policy.generation.0;
        let index = usize::try_from(spread).unwrap_or(0) % self.buckets.len();
        self.buckets.get(index).map(locked)
    }

    /// Puts a thing into a bucket of these.
    pub(super) fn put(&self, bucket: &mut Vec<T>, thing: T, end: impl Fn(&T) -> Instant) {
        let ends = bucket.iter().map(end).enumerate();
        if bucket.len() >= self.bucket_max
            && let Some((first, _)) = ends.min_by_key(|(_, end)| *end)
        {
            bucket.swap_remove(first);
        }
        bucket.push(thing);
    }

    /// All buckets in turn.
    pub(super) fn all(&self) -> impl Iterator<Item = MutexGuard<'_, Vec<T>>> {
        self.buckets.iter().map(locked)
    }
}

fn locked<T>(bucket: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}
