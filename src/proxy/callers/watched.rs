//! A file of keys that is read again by itself when it changes.

use std::sync::{Mutex, PoisonError};

use crate::config::{Look, Seen};
use crate::proxy::watch::Looks;

/// A file, and what was last read of it.
#[derive(Debug)]
pub(super) struct Watched(Mutex<State>);

#[derive(Debug)]
struct State {
    /// As it was last read, taken or not.
    seen: Seen,
    looks: Looks<Look>,
}

impl Watched {
    /// A file that was read.
    pub(super) const fn new(seen: Seen) -> Self {
        Self(Mutex::new(State {
            seen,
            looks: Looks::new(),
        }))
    }

    /// Looks at the file, and reads it if it has changed and has stopped changing; or now and then, since not every
    /// file system tells of a change. `take` is told what was read if it is something else than before.
    pub(super) fn look_again<T>(&self, read: impl FnOnce() -> (T, Seen), take: impl FnOnce(T)) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = state.seen.look.again();
        let differ = now != state.seen.look;
        if !state.looks.tell_to_read(differ, now) {
            return;
        }
        let (found, seen) = read();
        let changed = seen.content != state.seen.content;
        state.seen = seen;
        if changed {
            take(found);
        }
    }
}
