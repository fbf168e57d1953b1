//! `tollgate run`.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use tracing::level_filters::LevelFilter;
use tracing::{info, warn};
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use super::EX_CONFIG;
use crate::config::{self, Logs};
use crate::proxy::serve;

/// Serves until SIGTERM, then lets requests finish.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The configuration.
    #[arg(long, short, default_value = "/etc/tollgate/tollgate.toml")]
    config: PathBuf,
    /// Read the configuration again when its files change; without, at SIGHUP only.
    #[arg(long)]
    watch: bool,
    /// A socket over which a newer process takes the listeners over: SIGQUIT then hands them on.
    #[arg(long)]
    upgrade_sock: Option<PathBuf>,
    /// Take the listeners over from the process that is told to hand them on.
    #[arg(long, requires = "upgrade_sock")]
    upgrade: bool,
}

pub(super) fn run(args: &Args) -> ExitCode {
    // Before they are read: a change in between is seen as one.
    let watched_from = args.watch.then(|| config::Fingerprint::of(&args.config));
    let loaded = config::load(&args.config, &config::LoadOptions::from_process());
    let meaning = config::summary(&loaded);
    let effective = config::Effective::of(&loaded).unwrap_or_default();
    let Some(config) = loaded.config else {
        for diagnostic in &loaded.diagnostics {
            eprintln!("{diagnostic}");
        }
        return ExitCode::from(EX_CONFIG);
    };
    let writer = log_to_stderr(&config.logs);
    for warning in &loaded.diagnostics {
        if config.logs.json {
            warn!("{}", warning.to_json());
        } else {
            eprintln!("{warning}");
        }
    }
    // Whoever looks at a running gateway's log sees what it enforces.
    for line in meaning.iter().flat_map(|text| text.lines()) {
        info!("{line}");
    }
    let json = config.logs.json;
    let source = serve::Source {
        path: args.config.clone(),
        effective,
        watched_from,
        upgrade_sock: args.upgrade_sock.clone(),
        takes_over: args.upgrade,
    };
    match serve::run(config, source, move || drop(writer)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log has ended with what was to end it.
            if json {
                eprintln!(
                    "{}",
                    serde_json::json!({ "level": "ERROR", "message": error.to_string() })
                );
            } else {
                eprintln!("error: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Logs from here on, by a thread of its own: a reader of standard error that does not read loses lines, and holds up
/// nothing. What is dropped last writes the lines that are left.
///
/// Pingora and rustls write a line for each hostile connection; those lines are not for the operator.
fn log_to_stderr(logs: &Logs) -> WorkerGuard {
    let (stderr, writer) = tracing_appender::non_blocking(std::io::stderr());
    let targets = Targets::new()
        .with_default(logs.level)
        .with_target("pingora_core", logs.level.min(LevelFilter::WARN))
        .with_target("pingora_proxy", LevelFilter::OFF)
        .with_target("rustls", LevelFilter::OFF);
    let layer = fmt::layer()
        .with_writer(stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let layer = if logs.json {
        layer.json().with_filter(targets).boxed()
    } else {
        layer.with_filter(targets).boxed()
    };
    tracing_subscriber::registry().with(layer).init();
    writer
}
