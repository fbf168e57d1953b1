//! Reads the configuration again, and puts it in force whole or not at all.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tracing::{error, info, warn};

use super::gateway::Current;
use crate::admin::Control;
use crate::admin::reload::Outcome;
use crate::config::{self, Config, Effective, Fingerprint, LoadOptions, Token};

/// Reads the configuration that is running again.
#[derive(Debug)]
pub struct Reloader {
    path: PathBuf,
    current: Current,
    /// What is in force, as it was read.
    effective: Mutex<Effective>,
    /// What the files held just before they were last read, taken or not; nothing if nobody watches them.
    seen: Mutex<Option<[u8; 32]>>,
}

impl Reloader {
    /// `effective` is what `current` is made of, read from `path` when its files held `seen`, if they are watched.
    #[must_use]
    pub const fn new(
        path: PathBuf,
        current: Current,
        effective: Effective,
        seen: Option<[u8; 32]>,
    ) -> Self {
        Self {
            path,
            current,
            effective: Mutex::new(effective),
            seen: Mutex::new(seen),
        }
    }

    /// Whether the files held this, by [`Fingerprint::content`], just before they were last read.
    #[must_use]
    pub fn has_seen(&self, content: [u8; 32]) -> bool {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) == Some(content)
    }

    /// Notes what the files hold, where somebody watches them: it takes reading them once more.
    fn see(&self) {
        let seen = || self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen().is_some() {
            let content = Fingerprint::of(&self.path).content;
            *seen() = Some(content);
        }
    }

    /// The main file of the configuration.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the configuration, and puts it in force if nothing is wrong with it; says in log and metrics, too, what
    /// came of it. Blocks: it reads files and looks names up.
    pub fn reload(&self) -> Outcome {
        // Held to the end: of two reloads at once the second comes after the first.
        let mut effective = self
            .effective
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let gateway = self.current.get();
        let families = Arc::clone(gateway.metrics.families());
        self.see();
        let loaded = config::load(&self.path, &LoadOptions::from_process());
        for warning in loaded.warnings() {
            warn!("{}", warning.summary());
        }
        let read = Effective::of(&loaded);
        let (Some(mut config), Some(read)) = (loaded.config, read) else {
            for diagnostic in &loaded.diagnostics {
                error!("{}", diagnostic.summary());
            }
            let reason = "the one before stays in force".to_owned();
            error!("configuration not taken: {reason}");
            families.reloaded(false);
            return Outcome::Refused {
                reason,
                diagnostics: loaded.diagnostics,
            };
        };
        let fixed = config.cannot_follow(&gateway.config);
        if !fixed.is_empty() {
            let reason = format!(
                "{} can change at a restart only; the one before stays in force",
                fixed.join(", ")
            );
            error!("configuration not taken: {reason}");
            families.reloaded(false);
            return Outcome::Refused {
                reason,
                diagnostics: loaded.diagnostics,
            };
        }
        config.keep_made_up_secret(&gateway.config);
        config.keep_tls(&gateway.config);
        let changes = effective.changes(&read, &counters_kept(&gateway.config, &config));
        let next = gateway.next(config);
        let earlier = self.current.put(next);
        let now = self.current.get();
        now.metrics.forget(&earlier.metrics);
        *effective = read;
        families.reloaded(true);
        info!(changes = changes.len(), "configuration taken");
        for change in &changes {
            info!("{change}");
        }
        tell_of_certificates(&earlier.config, &now.config);
        Outcome::Taken {
            changes,
            warnings: loaded.diagnostics,
        }
    }
}

impl Control for Reloader {
    fn token(&self) -> Option<Token> {
        let gateway = self.current.get();
        gateway.config.admin.as_ref()?.token
    }

    fn reload(&self) -> Outcome {
        Self::reload(self)
    }
}

/// Says which listeners show another certificate than before: the files that settings name are no settings.
fn tell_of_certificates(old: &Config, new: &Config) {
    for listener in &new.listeners {
        let Some(tls) = &listener.tls else { continue };
        let before = old
            .listeners
            .iter()
            .find(|earlier| earlier.name == listener.name)
            .and_then(|earlier| earlier.tls.as_ref());
        if before.is_none_or(|before| !before.shows_the_same(tls)) {
            let until_s = tls.validity().until_s;
            info!(listener = %listener.name, until_s, "another certificate is shown");
        }
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
