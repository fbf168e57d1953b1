//! Clients that ask one request after the other until they are told to stop, and that no request fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::http::Connection;

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
