//! The commands, a file each.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 78 wrong configuration.

mod healthcheck;
mod run;
mod simulate;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The configuration is wrong (`EX_CONFIG`): a supervisor need not try again.
const EXIT_CONFIG: u8 = 78;

/// A reverse proxy that limits request rates in front of existing HTTP APIs.
#[derive(Parser)]
#[command(version = version(), arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve requests.
    Run(run::Args),
    /// Replay traffic against policies in virtual time.
    Simulate(simulate::Args),
    /// Ask a running gateway whether it lives; for a container's health check.
    Healthcheck(healthcheck::Args),
}

/// Runs the command that argv asks for.
#[must_use]
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Healthcheck(args) => healthcheck::run(&args),
    }
}

const fn version() -> &'static str {
    concat!(
        env!("CARGO_PKG_VERSION"),
        " (",
        env!("TOLLGATE_REVISION"),
        ")"
    )
}
