//! Reads the configuration again, and puts it in force whole or not at all.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::interval;
use tracing::{error, info, warn};

use super::gateway::Current;
use crate::config::{self, Config, Effective, LoadOptions};

/// How often a watched configuration is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Reads the configuration that is running again.
#[derive(Debug)]
pub struct Reloader {
    path: PathBuf,
    current: Current,
    /// What is in force, as it was read.
    effective: Mutex<Effective>,
}

impl Reloader {
    /// `effective` is what `current` is made of, read from `path`.
    #[must_use]
    pub const fn new(path: PathBuf, current: Current, effective: Effective) -> Self {
        Self {
            path,
            current,
            effective: Mutex::new(effective),
        }
    }

    /// Reads the configuration, and puts it in force if nothing is wrong with it; says in log and metrics what came
    /// of it. Blocks: it reads files and looks names up.
    pub fn reload(&self) {
        // Held to the end: of two reloads at once the second comes after the first.
        let mut effective = self
            .effective
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let gateway = self.current.get();
        let families = Arc::clone(gateway.metrics.families());
        let loaded = config::load(&self.path, &LoadOptions::from_process());
        for warning in loaded.warnings() {
            warn!("{}", warning.summary());
        }
        let read = Effective::of(&loaded);
        let (Some(mut config), Some(read)) = (loaded.config, read) else {
            for diagnostic in &loaded.diagnostics {
                error!("{}", diagnostic.summary());
            }
            error!("configuration not taken: the one before stays in force");
            families.reloaded(false);
            return;
        };
        let fixed = config.cannot_follow(&gateway.config);
        if !fixed.is_empty() {
            error!(
                "configuration not taken: {} can change at a restart only; the one before stays in force",
                fixed.join(", ")
            );
            families.reloaded(false);
            return;
        }
        config.keep_made_up_secret(&gateway.config);
        let changes = effective.changes(&read, &counters_kept(&gateway.config, &config));
        let next = gateway.next(config);
        let earlier = self.current.put(next);
        self.current.get().metrics.forget(&earlier.metrics);
        *effective = read;
        families.reloaded(true);
        info!(changes = changes.len(), "configuration taken");
        for change in changes {
            info!("{change}");
        }
    }

    /// Reloads when the files have changed, and have stopped changing. `taken` is [`config::fingerprint`] of what is in
    /// force.
    pub async fn watch(self: Arc<Self>, taken: [u8; 32]) {
        let mut tick = interval(LOOK_EVERY);
        let mut taken = Some(taken);
        let mut seen = taken;
        loop {
            tick.tick().await;
            let now = self.fingerprint().await;
            // The same twice: whoever writes the file has finished.
            if now == seen && now != taken {
                taken = now;
                let me = Arc::clone(&self);
                if tokio::task::spawn_blocking(move || me.reload())
                    .await
                    .is_err()
                {
                    error!("configuration not taken: reading it failed");
                }
            }
            seen = now;
        }
    }

    /// What the files hold that the configuration was read from.
    async fn fingerprint(&self) -> Option<[u8; 32]> {
        let path = self.path.clone();
        tokio::task::spawn_blocking(move || config::fingerprint(&path))
            .await
            .ok()
    }
}

/// The policies that both have, and whether what they have counted goes on counting.
fn counters_kept(old: &Config, new: &Config) -> Vec<(Arc<str>, bool)> {
    new.policies
        .iter()
        .filter_map(|policy| {
            let before = old.policies.iter().find(|p| p.name == policy.name)?;
            let kept = before.generation == policy.generation;
            Some((Arc::clone(&policy.name), kept))
        })
        .collect()
}
