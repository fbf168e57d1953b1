//! Notices that a configuration has changed: by how its files look, and now and then by what they hold.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, spawn_blocking};
use tokio::time::interval;
use tracing::error;

use super::reload::Reloader;
use crate::config::{Fingerprint, Look};

/// How often the files are looked at. None of them is opened for it.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(500);

/// After how many looks they are read all the same: not every file system tells of a change.
const READ_EVERY: u32 = 60;

/// Reloads when the files that the configuration is read from have changed, and have stopped changing. `last` is of
/// what is in force, or was taken before that was read.
pub(super) async fn watch(reloader: Arc<Reloader>, last: Fingerprint) {
    let mut watch = Watch {
        reloader,
        last,
        looks: Looks::new(),
    };
    let mut tick = interval(LOOK_EVERY);
    loop {
        tick.tick().await;
        if watch.look().await.is_err() {
            error!("configuration not taken: reading it failed");
        }
    }
}

struct Watch {
    reloader: Arc<Reloader>,
    /// The files as they were last read here.
    last: Fingerprint,
    looks: Looks<Look>,
}

impl Watch {
    async fn look(&mut self) -> Result<(), JoinError> {
        let look = self.last.look.clone();
        let now = spawn_blocking(move || look.again()).await?;
        if !self.looks.tell_to_read(now != self.last.look, now) {
            return Ok(());
        }
        let path = self.reloader.path().to_owned();
        self.last = spawn_blocking(move || Fingerprint::of(&path)).await?;
        if !self.reloader.has_seen(self.last.content) {
            let reloader = Arc::clone(&self.reloader);
            spawn_blocking(move || reloader.reload()).await?;
        }
        Ok(())
    }
}

/// When looking is enough.
#[derive(Debug)]
pub(super) struct Looks<L> {
    /// How the files looked the last time.
    seen: Option<L>,
    /// How often they were looked at since they were read.
    count: u32,
}

impl<L: Eq> Looks<L> {
    pub(super) const fn new() -> Self {
        Self {
            seen: None,
            count: 0,
        }
    }

    /// Whether the files are to be read, which look like `now`; `differ` is whether they did otherwise when they were
    /// last read.
    pub(super) fn tell_to_read(&mut self, differ: bool, now: L) -> bool {
        self.count = self.count.saturating_add(1);
        let due = differ || self.count >= READ_EVERY;
        // The same twice: whoever writes a file has finished.
        let settled = self.seen.as_ref() == Some(&now);
        self.seen = Some(now);
        if due && settled {
            self.count = 0;
        }
        due && settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_once_they_have_stopped_changing() {
        let mut looks = Looks::new();
        let read_as = 'a';
        let told: Vec<_> = ['a', 'a', 'b', 'c', 'c']
            .into_iter()
            .map(|now| looks.tell_to_read(now != read_as, now))
            .collect();
        assert_eq!(told, [false, false, false, false, true]);
        // Changed, and back again.
        assert!(!looks.tell_to_read(true, 'd'));
        assert!(!looks.tell_to_read(false, 'c'));
        assert!(!looks.tell_to_read(false, 'c'));
    }

    #[test]
    fn files_that_look_the_same_are_read_every_half_a_minute() {
        let mut looks = Looks::new();
        let reads = (0..600).filter(|_| looks.tell_to_read(false, ())).count();
        assert_eq!(reads, 10);
    }
}
