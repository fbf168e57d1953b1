//! `tollgate check`: every mistake at once, and what the configuration means.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use super::EX_CONFIG;
use crate::config::{LoadOptions, load, summary};

/// Checks a configuration without running it.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// The configuration.
    #[arg(long, short, default_value = "/etc/tollgate/tollgate.toml")]
    pub(super) config: PathBuf,
    /// Fail on warnings too.
    #[arg(long)]
    pub(super) strict: bool,
    /// One JSON object a mistake, in an array, and nothing else.
    #[arg(long)]
    pub(super) json: bool,
    /// Do not read the files that settings name: secrets, passwords, bodies.
    #[arg(long)]
    pub(super) no_io: bool,
}

/// Prints what is wrong, then what the configuration means. 0 if it can be run, 78 if not.
#[must_use]
pub(super) fn run(args: &Args) -> ExitCode {
    let options = LoadOptions {
        io: !args.no_io,
        ..LoadOptions::from_process()
    };
    let loaded = load(&args.config, &options);
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
            args.config.display(),
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

fn counted(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
