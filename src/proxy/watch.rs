//! Notices that a configuration has changed: by how its files look, and now and then by what they hold.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, spawn_blocking};
use tokio::time::interval;
use tracing::error;

use super::reload::Reloader;
use crate::config::{Fingerprint, Look};

/// How often the files are looked at. None of them is opened for it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// After how many looks they are read all the same: not every file system tells of a change.
const READ_EVERY: u32 = 60;

/// Reloads when the files that the configuration is read from have changed, and have stopped changing. `last` is of what is in force, or was
/// taken before that was read.
pub(super) async fn watch(reloader: Arc<Reloader>, last: Fingerprint) {
    let mut watch = Watch {
        reloader,
        taken: last.content,
        last,
        seen: None,
        looks: 0,
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
    /// What the files held when the configuration was last read from them, taken or not.
    taken: [u8; 32],
    /// The files as they were last read here.
    last: Fingerprint,
    /// How they looked the last time.
    seen: Option<Look>,
    /// How often since they were read.
    looks: u32,
}

impl Watch {
    async fn look(&mut self) -> Result<(), JoinError> {
        let look = self.last.look.clone();
        let now = spawn_blocking(move || look.again()).await?;
        self.looks = self.looks.saturating_add(1);
        let due = now != self.last.look || self.looks >= READ_EVERY;
        // The same twice: whoever writes a file has finished.
        let settled = self.seen.as_ref() == Some(&now);
        self.seen = Some(now);
        if !due || !settled {
            return Ok(());
        }
        let path = self.reloader.path().to_owned();
        self.last = spawn_blocking(move || Fingerprint::of(&path)).await?;
        self.looks = 0;
        if self.last.content != self.taken {
            self.taken = self.last.content;
            let reloader = Arc::clone(&self.reloader);
            spawn_blocking(move || reloader.reload()).await?;
        }
        Ok(())
    }
}
