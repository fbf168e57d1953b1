//! `tollgate schema`: for editors that check and complete TOML.

use std::io::Write;
use std::process::ExitCode;

use crate::config::schema;

/// Prints the JSON Schema (draft-07) of the configuration.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Args {}

/// Prints the schema.
#[must_use]
pub(super) fn run(_args: &Args) -> ExitCode {
    let _ = std::io::stdout().write_all(format!("{:#}\n", schema()).as_bytes());
    ExitCode::SUCCESS
}
