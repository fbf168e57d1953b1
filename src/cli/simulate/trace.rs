//! Traffic to replay: three traces that show where the kinds differ, or a file.

use std::fs::File;
use std::path::Path;

use super::Stop;

/// When the built-in traces begin: on an edge of every window that divides a day.
const BEGIN_MS: u64 = 1_000_000_000_000;

/// One request.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Request {
    pub(super) time_ms: u64,
    pub(super) key: String,
    pub(super) cost: u64,
}

/// 10 requests in the half second before an edge of a 10 s window, 10 in that after it.
pub(super) fn edge() -> impl Iterator<Item = u64> {
    (0..20).map(|n| BEGIN_MS + 9_500 + n * 50)
}

/// 3 requests a second for a minute.
pub(super) fn steady() -> impl Iterator<Item = u64> {
    (0..180).map(|n| BEGIN_MS + n * 333)
}

/// 30 requests in a second, after a minute of silence.
pub(super) fn burst() -> impl Iterator<Item = u64> {
    (0..30).map(|n| BEGIN_MS + 60_000 + n * 33)
}

/// The requests of a trace, as they come.
pub(super) fn open(name: &str) -> Result<Box<dyn Iterator<Item = Result<Request, Stop>>>, Stop> {
    let built_in = |times: Box<dyn Iterator<Item = u64>>| {
        let requests = times.map(|time_ms| {
            Ok(Request {
                time_ms,
                key: "client".to_owned(),
                cost: 1,
            })
        });
        Ok(Box::new(requests) as Box<dyn Iterator<Item = _>>)
    };
    match name {
        "edge" => built_in(Box::new(edge())),
        "steady" => built_in(Box::new(steady())),
        "burst" => built_in(Box::new(burst())),
        file => from_csv(Path::new(file)),
    }
}

fn from_csv(path: &Path) -> Result<Box<dyn Iterator<Item = Result<Request, Stop>>>, Stop> {
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|error| {
        Stop::Failed(format!(
            "trace `{shown}`: {error}; a trace is edge, steady, burst, or a CSV file"
        ))
    })?;
    let mut reader = csv::ReaderBuilder::new()
        .trim(csv::Trim::All)
        .flexible(true)
        .from_reader(file);
    let header = reader
        .headers()
        .map_err(|error| Stop::Failed(format!("{shown}: {error}")))?;
    if header.iter().ne(["time_ms", "key", "cost"]) {
        let found: Vec<_> = header.iter().collect();
        return Err(Stop::Failed(format!(
            "{shown}:1: the header is `{}`; write `time_ms,key,cost`",
            found.join(",")
        )));
    }
    let requests = reader.into_records().map(move |record| {
        let record = record.map_err(|error| Stop::Failed(format!("{shown}: {error}")))?;
        let line = record.position().map_or(0, csv::Position::line);
        if record.len() != 3 {
            return Err(Stop::Failed(format!(
                "{shown}:{line}: {} fields; write three: time_ms,key,cost",
                record.len()
            )));
        }
        let number = |position: usize, name: &str| {
            let text = record.get(position).unwrap_or_default();
            text.parse::<u64>().map_err(|_| {
                Stop::Failed(format!(
                    "{shown}:{line}: {name} is `{text}`; write a whole number"
                ))
            })
        };
        Ok(Request {
            time_ms: number(0, "time_ms")?,
            key: record.get(1).unwrap_or_default().to_owned(),
            cost: number(2, "cost")?,
        })
    });
    Ok(Box::new(requests))
}
