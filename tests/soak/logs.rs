//! What a gateway wrote of its requests, and of its store.

use std::fs::File;
use std::io::{BufRead, BufReader};

use jiff::Timestamp;
use serde::Deserialize;

use crate::support::gateway::Gateway;

/// A request, as the gateway's access log has it; times in µs since the epoch.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) number: u64,
    pub(crate) began: u64,
    /// When the gateway was through with its own part, and with it any decision.
    pub(crate) decided: u64,
    pub(crate) status: u16,
    pub(crate) denied: bool,
    /// store, local, fallback; none where nothing was decided.
    pub(crate) source: Option<Source>,
}

/// Where it was decided.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Source {
    Store,
    Local,
    Fallback,
}

impl Source {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Local => "local",
            Self::Fallback => "fallback",
        }
    }
}

#[derive(Deserialize)]
struct Written {
    ts: String,
    request_id: String,
    status: u16,
    decision: String,
    source: Option<Source>,
    tollgate_ms: f64,
}

#[derive(Deserialize)]
struct Said {
    timestamp: String,
    fields: Fields,
}

#[derive(Deserialize)]
struct Fields {
    message: String,
}

/// Times are written in whole ms.
const STEP: u64 = 1_000;

/// The lines of its access log, and how many there are of requests that are not numbered.
pub(crate) fn lines(gateway: &Gateway) -> (Vec<Line>, usize) {
    let mut lines = Vec::new();
    let mut others = 0;
    let file = File::open(gateway.access_log_file()).unwrap();
    for text in BufReader::new(file).lines() {
        let text = text.unwrap();
        let written: Written =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
        let Ok(number) = written.request_id.parse() else {
            others += 1;
            continue;
        };
        let began = micros(&written.ts);
        let own: u64 = format!("{:.0}", written.tollgate_ms * 1_000.0)
            .parse()
            .unwrap();
        lines.push(Line {
            number,
            began,
            decided: began + own + STEP,
            status: written.status,
            denied: written.decision == "deny",
            source: written.source,
        });
    }
    (lines, others)
}

/// When it was connected to its store: after each of these an outage is over, and what was counted in it forgotten.
pub(crate) fn connected(gateway: &Gateway) -> Vec<u64> {
    gateway
        .errors()
        .lines()
        .filter_map(|text| serde_json::from_str::<Said>(text).ok())
        .filter(|said| said.fields.message == "connected to the store")
        .map(|said| micros(&said.timestamp))
        .collect()
}

fn micros(time: &str) -> u64 {
    let time: Timestamp = time.parse().unwrap();
    u64::try_from(time.as_microsecond()).unwrap()
}
