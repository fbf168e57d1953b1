//! Clients that ask one request after the other until they are told to stop, and that no request fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tollgate::clock::monotonic_now;

use super::http::{Connection, Response};

/// How clients treat their connections.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Habit {
    /// One for all requests, until an answer says that it is the last.
    Keep,
    /// A new one for each.
    Fresh,
}

/// Clients at work.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<u16>>>,
}

impl Load {
    /// A client of each habit in turn, `count` in all, at these gateways in turn. After each answer it rests.
    pub(crate) fn start(
        gateways: &[SocketAddr],
        habits: &[Habit],
        count: usize,
        rest: Duration,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let clients = (0..count)
            .map(|number| {
                let stop = Arc::clone(&stop);
                let address = gateways[number % gateways.len()];
                let habit = habits[number % habits.len()];
                thread::spawn(move || work(&stop, address, habit, rest))
            })
            .collect();
        Self { stop, clients }
    }

    /// Ends it. Returns how many requests were allowed, and how many denied; no other answer is one.
    pub(crate) fn end(self) -> (usize, usize) {
        self.stop.store(true, Ordering::SeqCst);
        let mut counts = (0, 0);
        for client in self.clients {
            for status in client.join().unwrap() {
                match status {
                    200 => counts.0 += 1,
                    429 => counts.1 += 1,
                    other => panic!("{other} was answered"),
                }
            }
        }
        counts
    }
}

fn work(stop: &AtomicBool, address: SocketAddr, habit: Habit, rest: Duration) -> Vec<u16> {
    let mut statuses = Vec::new();
    let mut kept: Option<Connection> = None;
    while !stop.load(Ordering::SeqCst) {
        let mut connection = kept.take().unwrap_or_else(|| Connection::open(address));
        let response = connection
            .try_ask("GET", "/", &[])
            .unwrap_or_else(|error| panic!("request {} failed: {error}", statuses.len()));
        statuses.push(response.status);
        if matches!(habit, Habit::Keep) && !response.is_last() {
            kept = Some(connection);
        }
        thread::park_timeout(rest);
    }
    statuses
}

/// One connection's requests for `span`, `apart` from each other, each at its time: `hear` is told the answer, and how
/// long it took from when the request was due.
pub(crate) fn paced(
    gateway: SocketAddr,
    target: &str,
    fields: &[(&str, &str)],
    (first, apart, span): (Instant, Duration, Duration),
    mut hear: impl FnMut(&Response, Duration),
) {
    let mut connection = Connection::open(gateway);
    let mut due = first;
    while due < first + span {
        let ready = monotonic_now();
        while monotonic_now() < due {
            thread::park_timeout(due.saturating_duration_since(monotonic_now()));
        }
        // A client that woke up late is not the gateway's delay; one that was held up by the last answer is.
        let from = if ready > due { due } else { monotonic_now() };
        let response = connection.ask("GET", target, fields);
        let took = monotonic_now().saturating_duration_since(from);
        hear(&response, took);
        due += apart;
    }
}
