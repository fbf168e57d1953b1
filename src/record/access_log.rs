//! One line for each request. The request appends to a buffer in memory; another thread writes it out, so that a
//! slow reader of the log holds nobody up. What does not fit is dropped and counted.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// What one buffer holds at most. At 300 bytes a line, and emptied five times a second, 70,000 lines a second.
const BUFFER_MAX: usize = 4 << 20;

/// Buffers, so that threads seldom meet at one.
const BUFFERS: usize = 8;

/// What is known of a request. No query string, no header but the user agent, no key in the clear.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Entry<'a> {
    /// When it began, RFC 3339.
    pub ts: &'a str,
    /// Its id.
    pub request_id: &'a str,
    /// Who called: as it is, masked, or hashed.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub client_ip: &'a str,
    /// The other end of the connection, in the same manner.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub peer_ip: &'a str,
    /// Its method.
    pub method: &'a str,
    /// Its host.
    pub host: &'a str,
    /// Its path.
    pub path: &'a str,
    /// The route.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<&'a str>,
    /// The HTTP version.
    pub protocol: &'a str,
    /// The status that was answered; 499 when the client left first.
    pub status: u16,
    /// Bytes of its body.
    pub bytes_in: usize,
    /// Bytes of the answer's body.
    pub bytes_out: usize,
    /// From the first byte to the last, in ms.
    pub duration_ms: f64,
    /// The gateway's own share of it.
    pub tollgate_ms: f64,
    /// The wait in a leaky bucket.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_ms: Option<f64>,
    /// The upstream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<&'a str>,
    /// The server of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_addr: Option<String>,
    /// What that answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_status: Option<u16>,
    /// How long that took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream_ms: Option<f64>,
    /// How often another server was tried.
    #[serde(skip_serializing_if = "is_zero")]
    pub retries: usize,
    /// allow, deny, shed, or none where nothing was decided.
    pub decision: &'a str,
    /// Where it was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<&'a str>,
    /// The policy that denied, else the one with the least left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<&'a str>,
    /// Its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// What it has left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// Whether a penalty denied.
    #[serde(skip_serializing_if = "is_false")]
    pub penalty: bool,
    /// The wait that was told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_s: Option<u64>,
    /// Policies in shadow that would have denied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shadow_denied: Vec<&'a str>,
    /// Policies whose key was missing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_key: Vec<&'a str>,
    /// Units that the policy took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// The plan that the caller is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<&'a str>,
    /// Whom the policy counted, as in the store, shortened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key_hash: Option<String>,
    /// The user agent.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub user_agent: &'a str,
    /// What went wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<&'a str>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

/// Lines on their way out.
#[derive(Debug)]
pub struct AccessLog {
    json: bool,
    buffers: [Mutex<Vec<u8>>; BUFFERS],
}

impl AccessLog {
    /// An empty log: of JSON lines, or of text.
    #[must_use]
    pub fn new(json: bool) -> Self {
        Self {
            json,
            buffers: std::array::from_fn(|_| Mutex::new(Vec::new())),
        }
    }

    /// Takes a line. Returns whether there was room for it.
    pub fn append(&self, entry: &Entry<'_>) -> bool {
        let mut line = if self.json {
            serde_json::to_vec(entry).unwrap_or_default()
        } else {
            text(entry).into_bytes()
        };
        line.push(b'\n');
        let Some(buffer) = self.buffers.get(own_buffer()) else {
            return false;
        };
        let mut buffer = buffer.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.len() + line.len() > BUFFER_MAX {
            return false;
        }
        buffer.extend_from_slice(&line);
        true
    }

    /// Writes out what has come in, in the order of time. It may block: not for a thread that serves requests.
    ///
    /// # Errors
    ///
    /// Those of `sink`; the lines are then lost.
    pub fn flush(&self, sink: &mut impl Write) -> io::Result<()> {
        let buffers = self
            .buffers
            .each_ref()
            .map(|buffer| mem::take(&mut *buffer.lock().unwrap_or_else(PoisonError::into_inner)));
        let mut lines: Vec<_> = buffers
            .iter()
            .flat_map(|buffer| buffer.split_inclusive(|byte| *byte == b'\n'))
            .collect();
        // Every line begins with its time, in one width.
        lines.sort();
        sink.write_all(&lines.concat())?;
        sink.flush()
    }
}

/// Which buffer this thread uses.
fn own_buffer() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = Cell::new(NEXT.fetch_add(1, Ordering::Relaxed) % BUFFERS);
    }
    OWN.with(Cell::get)
}

/// The line for people. What the client sent is quoted and escaped, so that it cannot forge a line.
fn text(entry: &Entry<'_>) -> String {
    let mut line = format!(
        "{} {} {:?} {} {:.1}ms {}",
        entry.ts,
        if entry.client_ip.is_empty() {
            "-"
        } else {
            entry.client_ip
        },
        format!("{} {}{}", entry.method, entry.host, entry.path),
        entry.status,
        entry.duration_ms,
        entry.decision,
    );
    let mut say = |name: &str, value: Option<&dyn std::fmt::Display>| {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(line, " {name}={value}");
        }
    };
    say("route", entry.route.as_ref().map(|v| v as _));
    say("policy", entry.policy.as_ref().map(|v| v as _));
    say("source", entry.source.as_ref().map(|v| v as _));
    say("remaining", entry.remaining.as_ref().map(|v| v as _));
    say("penalty", entry.penalty.then_some(&true as _));
    say("retry_after", entry.retry_after_s.as_ref().map(|v| v as _));
    say("tier", entry.tier.as_ref().map(|v| v as _));
    say("key", entry.key_hash.as_ref().map(|v| v as _));
    say("queue_ms", entry.queue_ms.as_ref().map(|v| v as _));
    say("upstream", entry.upstream.as_ref().map(|v| v as _));
    say("request_id", Some(&entry.request_id));
    if !entry.shadow_denied.is_empty() {
        say("shadow_denied", Some(&entry.shadow_denied.join(",")));
    }
    if let Some(error) = entry.error {
        say("error", Some(&format!("{error:?}")));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_sent_cannot_forge_a_line() {
        for json in [true, false] {
            let log = AccessLog::new(json);
            assert!(log.append(&Entry {
                path: "/a\"\n2026 forged",
                user_agent: "x\r\ny",
                ..Entry::default()
            }));
            let mut out = Vec::new();
            log.flush(&mut out).unwrap();
            let text = String::from_utf8(out).unwrap();
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }

    #[test]
    fn a_full_buffer_drops_the_line_and_says_so() {
        let log = AccessLog::new(false);
        let path = "/".repeat(BUFFER_MAX / 2);
        let entry = Entry {
            path: &path,
            ..Entry::default()
        };
        assert!(log.append(&entry));
        assert!(!log.append(&entry));
        log.flush(&mut io::sink()).unwrap();
        assert!(log.append(&entry));
    }
}
