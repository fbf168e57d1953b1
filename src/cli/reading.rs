//! What the commands that only read a configuration are told.

use std::path::PathBuf;

use crate::config::{LoadOptions, Loaded, load};

/// Which configuration to read, and how far.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Reading {
    /// The configuration.
    #[arg(long, short, default_value = "/etc/tollgate/tollgate.toml")]
    pub(super) config: PathBuf,
    /// Do not read the files that settings name: secrets, passwords, bodies.
    #[arg(long)]
    no_io: bool,
}

impl Reading {
    /// Reads it, mistakes and all.
    pub(super) fn load(&self) -> Loaded {
        let options = LoadOptions {
            io: !self.no_io,
            ..LoadOptions::from_process()
        };
        load(&self.config, &options)
    }
}
