//! One policy of a configuration, decision by decision.

use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use super::stage::{Stage, StoreChoice, entity};
use super::{Stop, trace};
use crate::config;
use crate::decide::{Decision, Verdict};

/// A decision, in whole milliseconds, rounded up.
#[derive(Serialize)]
struct Row<'a> {
    time_ms: u64,
    key: &'a str,
    cost: u64,
    allowed: bool,
    remaining: u64,
    /// `None` is never.
    retry_after_ms: Option<u64>,
    reset_after_ms: u64,
    delay_ms: u64,
}

impl<'a> Row<'a> {
    fn new(request: &'a trace::Request, decision: &Decision) -> Self {
        Self {
            time_ms: request.time_ms,
            key: &request.key,
            cost: request.cost,
            allowed: decision.verdict == Verdict::Allow,
            remaining: decision.remaining,
            retry_after_ms: decision.retry_after_us.map(|us| us.div_ceil(1000)),
            reset_after_ms: decision.reset_after_us.div_ceil(1000),
            delay_ms: decision.delay_us.div_ceil(1000),
        }
    }
}

pub(super) async fn run(
    path: &Path,
    name: &str,
    trace: &str,
    store: &StoreChoice,
    json: bool,
) -> Result<(), Stop> {
    // What a policy decides needs no file that it names, and no store.
    let options = config::LoadOptions {
        io: false,
        ..config::LoadOptions::from_process()
    };
    let loaded = config::load(path, &options);
    let Some(config) = loaded.config else {
        for diagnostic in &loaded.diagnostics {
            eprintln!("{diagnostic}");
        }
        return Err(Stop::Config);
    };
    let Some(policy) = config.policies.iter().find(|policy| &*policy.name == name) else {
        let names: Vec<_> = config.policies.iter().map(|policy| &*policy.name).collect();
        return Err(Stop::Failed(format!(
            "no policy `{name}` in {}; there are: {}",
            path.display(),
            names.join(", ")
        )));
    };
    if policy.limits.rule.lends() {
        return Err(Stop::Failed(format!(
            "policy `{name}` is of kind \"{}\": it counts what is in flight, and a trace does not say for how long \
             that is",
            policy.limits.rule.kind()
        )));
    }
    let requests = trace::open(trace)?;
    let stage = Stage::virtual_time(store).await?;
    let mut out = BufWriter::new(io::stdout().lock());
    if !json {
        writeln!(
            out,
            "{:>15}  {:<20} {:>8}  {:<7} {:>12} {:>14} {:>14} {:>10}",
            "time_ms",
            "key",
            "cost",
            "",
            "remaining",
            "retry_after_ms",
            "reset_after_ms",
            "delay_ms"
        )?;
    }
    let (mut sent, mut allowed) = (0_u64, 0_u64);
    for request in requests {
        let request = request?;
        let decision = stage
            .decide(policy, entity(&request.key), request.time_ms, request.cost)
            .await?;
        let row = Row::new(&request, &decision);
        sent += 1;
        allowed += u64::from(row.allowed);
        if json {
            serde_json::to_writer(&mut out, &row).map_err(io::Error::from)?;
            writeln!(out)?;
        } else {
            show(&mut out, &row)?;
        }
    }
    if !json {
        writeln!(out, "\n{allowed} of {sent} allowed")?;
    }
    out.flush()?;
    stage.clean_up().await
}

fn show(out: &mut impl Write, row: &Row<'_>) -> io::Result<()> {
    let retry_after = row
        .retry_after_ms
        .map_or_else(|| "never".to_owned(), |ms| ms.to_string());
    writeln!(
        out,
        "{:>15}  {:<20} {:>8}  {:<7} {:>12} {:>14} {:>14} {:>10}",
        row.time_ms,
        row.key.escape_debug().to_string(),
        row.cost,
        if row.allowed { "allowed" } else { "denied" },
        row.remaining,
        retry_after,
        row.reset_after_ms,
        row.delay_ms
    )
}
