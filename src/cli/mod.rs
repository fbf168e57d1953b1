//! The commands, a file each.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 78 wrong configuration.

mod asking;
mod check;
mod dump;
mod grant;
mod hash_key;
mod healthcheck;
mod inspect;
mod reading;
mod reload;
mod reset;
mod run;
mod schema;
mod simulate;
mod whom;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The configuration is wrong (`EX_CONFIG`): a supervisor need not try again.
const EX_CONFIG: u8 = 78;

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
    /// Tell a running gateway to read its configuration again, and print what came of it.
    Reload(reload::Args),
    /// Check a configuration, and say in words what it means.
    Check(check::Args),
    /// Print the configuration in force: with includes, environment and defaults, without secrets.
    Dump(dump::Args),
    /// Print the JSON schema of the configuration.
    Schema(schema::Args),
    /// Show what one caller has used under a policy, and by which limit it is counted.
    Inspect(inspect::Args),
    /// Forget what one caller has used under a policy.
    Reset(reset::Args),
    /// Grant one caller another limit of a policy for a while.
    Grant(grant::Args),
    /// Replay traffic against policies in virtual time.
    Simulate(simulate::Args),
    /// Print the hash of an API key, for the file of keys; or make a key.
    HashKey(hash_key::Args),
    /// Ask a running gateway whether it lives; for a container's health check.
    Healthcheck(healthcheck::Args),
}

/// Runs the command that argv asks for.
#[must_use]
pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Reload(args) => reload::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Reset(args) => reset::run(&args),
        Command::Grant(args) => grant::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::HashKey(args) => hash_key::run(&args),
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

/// How many of them, in words.
fn counted(count: usize, what: &str) -> String {
    match count {
        0 => format!("no {what}s"),
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}
