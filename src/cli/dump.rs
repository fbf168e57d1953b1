//! `tollgate dump`: the effective configuration, in one piece.

use std::io::Write;
use std::process::ExitCode;

use super::EX_CONFIG;
use super::reading::Reading;
use crate::config::dump;

/// Prints the configuration after includes, environment and defaults, secrets masked.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    reading: Reading,
}

/// Prints the configuration on standard output and mistakes on standard error. 78 if there are errors.
#[must_use]
pub(super) fn run(args: &Args) -> ExitCode {
    let loaded = args.reading.load();
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
