//! `tollgate dump`: the effective configuration, in one piece.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use super::EX_CONFIG;
use crate::config::{LoadOptions, dump, load};

/// Prints the configuration after includes, environment and defaults, secrets masked.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration.
    #[arg(long, short, default_value = "/etc/tollgate/tollgate.toml")]
    pub(super) config: PathBuf,
    /// Do not read the files that settings name: secrets, passwords, bodies.
    #[arg(long)]
    pub(super) no_io: bool,
}

/// Prints the configuration on standard output and mistakes on standard error. 78 if there are errors.
#[must_use]
pub(super) fn run(args: &Args) -> ExitCode {
    let options = LoadOptions {
        io: !args.no_io,
        ..LoadOptions::from_process()
    };
    let loaded = load(&args.config, &options);
    for diagnostic in &loaded.diagnostics {
        let _ = writeln!(std::io::stderr(), "{diagnostic}");
    }
    match dump(&loaded) {
        Some(text) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        None => ExitCode::from(EX_CONFIG),
    }
}
