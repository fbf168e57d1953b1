//! `tollgate reload`: tells a running gateway to read its configuration again, and says what came of it.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;

use super::asking::{Answer, ask};
use super::{EX_CONFIG, counted};
use crate::config::{AdminAt, LoadOptions};

/// Tells a running gateway to read its configuration again.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The configuration, whose `[admin]` table says where the gateway is asked.
    #[arg(long, short, default_value = "/etc/tollgate/tollgate.toml")]
    config: PathBuf,
    /// Where the gateway's `[admin]` listener is, instead.
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// The file of its token, instead.
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// How long to wait, in milliseconds.
    #[arg(long, default_value_t = 30_000)]
    timeout_ms: u64,
}

/// What the gateway says.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Told {
    changes: Vec<String>,
    reason: String,
    text: String,
    detail: String,
}

/// Prints what changed, or what is wrong. 0 if the configuration is in force, 78 if the one before stays.
pub(super) fn run(args: &Args) -> ExitCode {
    match reload(args) {
        Ok((text, code)) => {
            // Nobody is left to tell if standard output is gone.
            let _ = std::io::stdout().write_all(text.as_bytes());
            code
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

fn reload(args: &Args) -> Result<(String, ExitCode), String> {
    let at = whereabouts(args)?;
    let token = match &at.token_file {
        Some(file) => {
            let token = std::fs::read_to_string(file)
                .map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
            Some(token.trim().to_owned())
        }
        None => None,
    };
    if token
        .as_ref()
        .is_some_and(|token| token.contains(['\r', '\n']))
    {
        return Err("the token has more than one line".to_owned());
    }
    let field = token.map_or_else(String::new, |token| {
        format!("Authorization: Bearer {token}\r\n")
    });
    let timeout = Duration::from_millis(args.timeout_ms);
    let answer = ask(&at.address, ("POST", "/v1/reload"), &field, timeout)
        .map_err(|error| format!("{}: {error}", at.address))?;
    judge(&at.address, &answer)
}

/// Where to ask: as the flags say, else as the configuration does.
fn whereabouts(args: &Args) -> Result<AdminAt, String> {
    let found = AdminAt::find(&args.config, &LoadOptions::from_process().env);
    let named = |token_file| {
        args.address.clone().map(|address| AdminAt {
            address,
            token_file: args.token_file.clone().or(token_file),
        })
    };
    match found {
        Ok(Some(found)) => Ok(named(found.token_file.clone()).unwrap_or(AdminAt {
            token_file: args.token_file.clone().or(found.token_file),
            ..found
        })),
        Ok(None) => named(None).ok_or_else(|| {
            format!(
                "{} has no [admin] table, so its gateway is not to be asked: add [admin] and restart the gateway, \
                 name another with --address, or send SIGHUP",
                args.config.display()
            )
        }),
        Err(error) => named(None)
            .ok_or_else(|| format!("{} cannot be read: {error}", args.config.display())),
    }
}

fn judge(address: &str, answer: &Answer) -> Result<(String, ExitCode), String> {
    let told: Option<Told> = serde_json::from_slice(&answer.body).ok();
    match (answer.status(), told) {
        (Some(200), Some(told)) => {
            let mut text = told.text;
            for change in &told.changes {
                text.push_str(&format!("{change}\n"));
            }
            let changes = counted(told.changes.len(), "change");
            text.push_str(&format!("{address}: configuration taken, {changes}\n"));
            Ok((text, ExitCode::SUCCESS))
        }
        (Some(422), Some(told)) => {
            let text = format!(
                "{}{address}: configuration not taken: {}\n",
                told.text, told.reason
            );
            Ok((text, ExitCode::from(EX_CONFIG)))
        }
        (_, told) => {
            let detail = told.map(|told| told.detail).unwrap_or_default();
            let line = match answer.status_line.as_str() {
                "" => "nothing",
                line => line,
            };
            Err(format!("{address} answered: {line} {detail}")
                .trim_end()
                .to_owned())
        }
    }
}
