//! `tollgate grant`: another limit for one caller, for a while.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use super::whom::{self, Stop, Whom};
use crate::check::NewLimit;
use crate::config::{limit_text, read_duration, read_limit};
use crate::decide::Timestamp;
use crate::store::valkey::manage::Change;

/// Grants a caller another limit of a policy for a while, on every gateway within a second.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    whom: whom::Asked,
    /// The limit, as in a tier: 5000/min; more or less than the caller has otherwise.
    #[arg(long, value_parser = read_limit, required_unless_present = "remove", requires = "lasts")]
    limit: Option<NewLimit>,
    /// For how long: 90s, 2h, 7d; 366d at most.
    #[arg(long = "for", value_name = "DURATION", value_parser = lasts, required_unless_present = "remove")]
    lasts: Option<Duration>,
    /// Take back what was granted.
    #[arg(long, conflicts_with_all = ["limit", "lasts"])]
    remove: bool,
}

/// The longest grant.
const LASTS_MAX: Duration = Duration::from_secs(366 * 86_400);

fn lasts(text: &str) -> Result<Duration, String> {
    let span = read_duration(text)?;
    if span.is_zero() || span > LASTS_MAX {
        return Err("a grant lasts from 1ms to 366d".to_owned());
    }
    Ok(span)
}

/// Says what is in force then. 0 done, 1 failed, 2 wrong usage, 78 wrong configuration.
pub(super) fn run(args: &Args) -> ExitCode {
    whom::run(grant(args))
}

async fn grant(args: &Args) -> Result<(), Stop> {
    let whom = args.whom.find().await?;
    let granted = args.limit.zip(args.lasts);
    if let Some((limit, _)) = granted {
        fits(&whom, limit)?;
    }
    let change = whom.store.grant(&whom.check(0), granted).await;
    let said = match (change.map_err(Stop::failed)?, granted) {
        (Change::Granted(ends_at), Some((limit, _))) => {
            format!(
                "granted {} to {whom}, until {}",
                limit_text(limit),
                moment(ends_at)
            )
        }
        (Change::Granted(_) | Change::TakenBack, _) => {
            format!("taken back what was granted to {whom}")
        }
        (Change::None, _) => return Err(Stop::failed(format!("nothing is granted to {whom}"))),
        (Change::Full, _) => {
            return Err(Stop::failed(
                "10,000 grants are in force, and there may be no more: take others back, or write [overrides]",
            ));
        }
    };
    // Nobody is left to tell if standard output is gone.
    let _ = writeln!(std::io::stdout(), "{said}");
    Ok(())
}

/// Refuses a limit that the policy cannot have: no gateway would put it in force.
fn fits(whom: &Whom, limit: NewLimit) -> Result<(), Stop> {
    whom.policy.limits.with(limit).map(drop).map_err(|unfit| {
        Stop::usage(format!(
            "{} is no limit for policy `{}`, whose own is {}: {unfit}",
            limit_text(limit),
            whom.policy.name,
            limit_text(whom.policy.limits.limit())
        ))
    })
}

/// RFC 3339 in UTC.
pub(super) fn moment(at: Timestamp) -> String {
    i64::try_from(at.as_micros())
        .ok()
        .and_then(|micros| jiff::Timestamp::from_microsecond(micros).ok())
        .map_or_else(String::new, |time| format!("{time:.0}"))
}
