//! `tollgate healthcheck`: needs no curl in the image.

use std::process::ExitCode;
use std::time::Duration;

use super::asking::ask;

/// Asks `/livez`, or what it is told to.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where the gateway's `[metrics]` listener is.
    #[arg(long, default_value = "127.0.0.1:9902")]
    address: String,
    /// What to ask for: /readyz also refuses while the gateway drains.
    #[arg(long, default_value = "/livez")]
    path: String,
    /// How long to wait, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    timeout_ms: u64,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let timeout = Duration::from_millis(args.timeout_ms);
    match ask(&args.address, ("GET", &args.path), "", timeout) {
        Ok(answer) if answer.status() == Some(200) => ExitCode::SUCCESS,
        Ok(answer) => {
            eprintln!("{} answered: {}", args.address, answer.status_line);
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{}: {error}", args.address);
            ExitCode::FAILURE
        }
    }
}
