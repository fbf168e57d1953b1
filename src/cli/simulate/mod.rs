//! `tollgate simulate`: traffic against policies in virtual time, through the code that serves requests.

mod article;
mod memory;
mod race;
mod replay;
mod stage;
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use stage::StoreChoice;

/// Alone: the five kinds compared. With --policy and --trace: one policy, decision by decision.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The configuration that has the policy.
    #[arg(long, short, requires = "policy")]
    config: Option<PathBuf>,
    /// The policy to replay against.
    #[arg(long, requires_all = ["config", "trace"])]
    policy: Option<String>,
    /// `edge`, `steady`, `burst`, or a CSV file with the header `time_ms,key,cost`.
    #[arg(long, requires = "policy")]
    trace: Option<String>,
    /// Where usage is kept meanwhile: `local`, or `valkey://HOST:PORT`.
    #[arg(long, default_value = "local")]
    store: StoreChoice,
    /// One JSON object a decision.
    #[arg(long, requires = "policy")]
    json: bool,
    /// Bytes per key in Valkey after 1,000 requests at 1,000 per hour, beside plain scripts.
    #[arg(long, conflicts_with = "policy")]
    memory: bool,
    /// 50 requests at once against a limit of 10, beside a client that reads, compares and then increments.
    #[arg(long, conflicts_with = "policy")]
    race: bool,
}

pub(super) fn run(args: &Args) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    let done = runtime.block_on(async {
        match (&args.config, &args.policy, &args.trace) {
            (Some(config), Some(policy), Some(trace)) => {
                replay::run(config, policy, trace, &args.store, args.json).await
            }
            _ => compare(args).await,
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Failed(why)) => failed(&why),
        Err(Stop::Config) => ExitCode::from(super::EX_CONFIG),
        // Whoever read the output has had enough, as `head` does.
        Err(Stop::OutputClosed) => ExitCode::SUCCESS,
    }
}

async fn compare(args: &Args) -> Result<(), Stop> {
    if !args.memory && !args.race {
        return article::run(&args.store).await;
    }
    let StoreChoice::Valkey(settings) = &args.store else {
        return Err(Stop::Failed(
            "--memory and --race measure a real store: add --store valkey://HOST:PORT".to_owned(),
        ));
    };
    if args.memory {
        memory::run(settings).await?;
    }
    if args.race {
        race::run(settings).await?;
    }
    Ok(())
}

fn failed(why: &str) -> ExitCode {
    eprintln!("error: {why}");
    ExitCode::FAILURE
}

/// Why a simulation ends early.
#[derive(Debug)]
enum Stop {
    Failed(String),
    /// The configuration is wrong, and that was said.
    Config,
    OutputClosed,
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::BrokenPipe {
            Self::OutputClosed
        } else {
            Self::Failed(error.to_string())
        }
    }
}

impl From<redis::RedisError> for Stop {
    fn from(error: redis::RedisError) -> Self {
        Self::Failed(error.to_string())
    }
}
