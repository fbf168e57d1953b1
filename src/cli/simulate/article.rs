//! The comparison of the five kinds, at 10 per 10 s.

use std::io::{self, Write};

use super::stage::{Stage, StoreChoice, entity, five_kinds};
use super::{Stop, trace};
use crate::check::Policy;
use crate::decide::Verdict;

/// What each trace is called in the table, and when its requests come.
fn rows() -> [(&'static str, Vec<u64>); 3] {
    [
        (
            "10 before + 10 after a window edge",
            trace::edge().collect(),
        ),
        ("3 per second for 60 s", trace::steady().collect()),
        ("30 in one second", trace::burst().collect()),
    ]
}

/// What came of one trace under one policy.
struct Tally {
    sent: usize,
    /// When each allowed request reached the application, in ms.
    arrivals_ms: Vec<u64>,
    longest_wait_ms: u64,
}

pub(super) async fn run(store: &StoreChoice) -> Result<(), Stop> {
    let stage = Stage::virtual_time(store).await?;
    let policies = five_kinds(10, 10_000)?;
    let mut out = io::stdout().lock();
    writeln!(out, "Limit 10 per 10 s. Allowed of sent:\n")?;
    let kinds: Vec<_> = policies.iter().map(|policy| &*policy.name).collect();
    line(&mut out, "trace", &kinds)?;
    let rule = ["---"; 5];
    line(&mut out, "---", &rule)?;
    let mut waits = Vec::new();
    let mut most = Vec::new();
    for (number, (name, times)) in rows().iter().enumerate() {
        let mut cells = Vec::new();
        let mut longest = 0;
        for policy in &policies {
            let tally = tally(&stage, policy, name, times).await?;
            cells.push(format!("{}/{}", tally.arrivals_ms.len(), tally.sent));
            longest = longest.max(tally.longest_wait_ms);
            if number == 0 {
                most.push(most_in_a_second(&tally.arrivals_ms).to_string());
            }
        }
        line(&mut out, name, &cells)?;
        waits.push(seconds(longest));
    }
    line(
        &mut out,
        "most reaching the application in any 1 s of the first",
        &most,
    )?;
    writeln!(
        out,
        "\nLongest wait in the leaky bucket: {} s",
        waits.join(", ")
    )?;
    stage.clean_up().await
}

async fn tally(
    stage: &Stage,
    policy: &Policy,
    trace: &str,
    times_ms: &[u64],
) -> Result<Tally, Stop> {
    let mut tally = Tally {
        sent: times_ms.len(),
        arrivals_ms: Vec::new(),
        longest_wait_ms: 0,
    };
    // Each trace is another client.
    let client = entity(trace);
    for &time_ms in times_ms {
        let decision = stage.decide(policy, client, time_ms, 1).await?;
        if decision.verdict == Verdict::Allow {
            let wait_ms = decision.delay_us.div_ceil(1000);
            tally.arrivals_ms.push(time_ms + wait_ms);
            tally.longest_wait_ms = tally.longest_wait_ms.max(wait_ms);
        }
    }
    Ok(tally)
}

/// The most arrivals that lie at most a second apart.
fn most_in_a_second(arrivals_ms: &[u64]) -> usize {
    arrivals_ms
        .iter()
        .map(|first| {
            arrivals_ms
                .iter()
                .filter(|arrival| (*first..=first + 1000).contains(arrival))
                .count()
        })
        .max()
        .unwrap_or(0)
}

/// Tenths of a second, rounded.
fn seconds(ms: u64) -> String {
    let tenths = (ms + 50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn line(out: &mut impl Write, first: &str, cells: &[impl AsRef<str>]) -> io::Result<()> {
    write!(out, "| {first:<53} |")?;
    for cell in cells {
        write!(out, " {:<15} |", cell.as_ref())?;
    }
    writeln!(out)
}
