//! One HTTP request to a gateway that runs, and its answer.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::clock::monotonic_now;

/// The most that is read of an answer.
const ANSWER_MAX: usize = 16 << 20;

/// What a gateway answered.
#[derive(Debug)]
pub(super) struct Answer {
    /// `HTTP/1.1 200 OK`.
    pub(super) status_line: String,
    pub(super) body: Vec<u8>,
}

impl Answer {
    pub(super) fn status(&self) -> Option<u16> {
        let rest = self.status_line.strip_prefix("HTTP/1.1 ")?;
        rest.get(..3)?.parse().ok()
    }
}

/// Sends a request without a body, with these further fields, and reads all that is answered within `timeout`.
pub(super) fn ask(
    address: &str,
    (method, target): (&str, &str),
    fields: &str,
    timeout: Duration,
) -> io::Result<Answer> {
    let began = monotonic_now();
    let left = || {
        let left = timeout.saturating_sub(monotonic_now().saturating_duration_since(began));
        // None at all would mean for ever.
        left.max(Duration::from_millis(1))
    };
    let resolved = address
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other("no such address"))?;
    let mut stream = TcpStream::connect_timeout(&resolved, left())?;
    stream.set_write_timeout(Some(left()))?;
    // In one piece: who does not want the request may close after the first.
    stream.write_all(
        format!(
            "{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n{fields}\r\n"
        )
        .as_bytes(),
    )?;
    let mut answer = Vec::new();
    let mut part = [0; 4096];
    while answer.len() < ANSWER_MAX {
        if monotonic_now().saturating_duration_since(began) >= timeout {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left()))?;
        let length = match stream.read(&mut part) {
            // As the operating system calls a timeout.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            read => read?,
        };
        if length == 0 {
            break;
        }
        answer.extend_from_slice(part.get(..length).unwrap_or_default());
    }
    let text = String::from_utf8_lossy(&answer);
    let status_line = text.lines().next().unwrap_or_default().to_owned();
    let end_of_head = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let body = end_of_head
        .and_then(|end| answer.get(end.saturating_add(4)..))
        .unwrap_or_default();
    Ok(Answer {
        status_line,
        body: body.to_vec(),
    })
}
