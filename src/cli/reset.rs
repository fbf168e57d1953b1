//! `tollgate reset`: forgets what one caller has used.

use std::io::Write as _;
use std::process::ExitCode;

use super::whom::{self, Stop};

/// Forgets what a caller has used under a policy, and its penalty: its next request finds nothing used, on every
/// gateway within a second.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    whom: whom::Asked,
}

/// Says whether anything was kept. 0 done, 1 failed, 2 wrong usage, 78 wrong configuration.
pub(super) fn run(args: &Args) -> ExitCode {
    whom::run(async {
        let whom = args.whom.find().await?;
        let forgot = whom.store.reset(&whom.check(0)).await;
        let said = if forgot.map_err(Stop::failed)? {
            format!("forgot what was used by {whom}")
        } else {
            format!("nothing was used by {whom}")
        };
        // Nobody is left to tell if standard output is gone.
        let _ = writeln!(std::io::stdout(), "{said}");
        Ok(())
    })
}
