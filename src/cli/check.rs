//! `tollgate check`: every mistake at once, and what the configuration means.

use std::io::Write;
use std::process::ExitCode;

use super::reading::Reading;
use super::{EX_CONFIG, counted};
use crate::config::summary;

/// Checks a configuration without running it.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    reading: Reading,
    /// Fail on warnings too.
    #[arg(long)]
    pub(super) strict: bool,
    /// One JSON object a mistake, in an array, and nothing else.
    #[arg(long)]
    pub(super) json: bool,
}

/// Prints what is wrong, then what the configuration means. 0 if it can be run, 78 if not.
#[must_use]
pub(super) fn run(args: &Args) -> ExitCode {
    let loaded = args.reading.load();
    let warnings = loaded.warnings().count();
    let errors = loaded.diagnostics.len().saturating_sub(warnings);
    let mut text = String::new();
    if args.json {
        let list: Vec<_> = loaded
            .diagnostics
            .iter()
            .map(|diagnostic| diagnostic.to_json())
            .collect();
        text = format!("{:#}\n", serde_json::Value::from(list));
    } else {
        for diagnostic in &loaded.diagnostics {
            text.push_str(&format!("{diagnostic}\n"));
        }
        text.push_str(&summary(&loaded).unwrap_or_default());
        text.push_str(&format!(
            "{}: {}, {}\n",
            args.reading.config.display(),
            counted(errors, "error"),
            counted(warnings, "warning")
        ));
    }
    // Nobody is left to tell if standard output is gone.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if loaded.has_errors() || (args.strict && warnings > 0) {
        ExitCode::from(EX_CONFIG)
    } else {
        ExitCode::SUCCESS
    }
}
