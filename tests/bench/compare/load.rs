//! Load as much as a gateway takes: `wrk`, one thread.

use std::fs;
use std::net::SocketAddr;
use std::sync::OnceLock;

use crate::tools::{Tool, results};

/// Whose requests they are, by their `X-Client`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Callers {
    /// One caller's.
    One,
    /// Those of a thousand, in turn.
    Many,
}

/// What `wrk` counted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answers {
    pub(crate) requests: u64,
    /// Answers of 400 and above.
    pub(crate) refused: u64,
    /// Requests without an answer.
    pub(crate) failed: u64,
    pub(crate) span_us: u64,
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
}

/// Somebody to ask.
#[derive(Clone, Copy)]
pub(crate) struct Load<'a> {
    pub(crate) wrk: &'a Tool,
    pub(crate) address: SocketAddr,
    pub(crate) connections: u32,
    pub(crate) callers: Callers,
}

impl Load<'_> {
    /// Asks for so many seconds.
    pub(crate) fn run(&self, seconds: u32) -> Answers {
        run(
            self.wrk,
            self.address,
            self.connections,
            seconds,
            script(self.callers),
        )
    }
}

/// Runs `wrk` with a script that ends with [`REPORT`].
pub(crate) fn run(
    wrk: &Tool,
    address: SocketAddr,
    connections: u32,
    seconds: u32,
    script: &str,
) -> Answers {
    let output = wrk
        .command()
        .args(["-t", "1", "-c", &connections.to_string()])
        .args([
            "-d",
            &format!("{seconds}s"),
            "-s",
            script,
            "-H",
            "X-Client: one",
        ])
        .arg(format!("http://{address}/"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.strip_prefix("REPORT "));
    let Some(line) = line else {
        panic!("wrk: {output:?}");
    };
    let numbers: Vec<u64> = line.split(' ').map(|n| n.parse().unwrap()).collect();
    Answers {
        requests: numbers[0],
        refused: numbers[1],
        failed: numbers[2],
        span_us: numbers[3],
        p50_us: numbers[4],
        p99_us: numbers[5],
    }
}

/// Keeps a script of `wrk` beside the findings, and returns the file's path.
pub(crate) fn keep(name: &str, script: &str) -> String {
    let file = results().join(name);
    fs::write(&file, format!("{script}{REPORT}")).unwrap();
    file.display().to_string()
}

fn script(callers: Callers) -> &'static str {
    static ONE: OnceLock<String> = OnceLock::new();
    static MANY: OnceLock<String> = OnceLock::new();
    match callers {
        Callers::One => ONE.get_or_init(|| keep("one.lua", "")),
        Callers::Many => MANY.get_or_init(|| keep("many.lua", IN_TURN)),
    }
}

/// The requests are made beforehand: the load should cost as little as that of one caller.
const IN_TURN: &str = r#"
local requests, turn = {}, 0
function init()
  for i = 1, 1000 do
    requests[i] = wrk.format("GET", "/", { ["X-Client"] = "caller-" .. i })
  end
end
function request()
  turn = turn % 1000 + 1
  return requests[turn]
end
"#;

const REPORT: &str = r#"
function done(summary, latency)
  local e = summary.errors
  io.write(string.format("REPORT %d %d %d %d %d %d\n", summary.requests, e.status,
    e.connect + e.read + e.write + e.timeout, summary.duration,
    latency:percentile(50), latency:percentile(99)))
end
"#;
