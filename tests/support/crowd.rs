//! Many clients at once.

use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;

use super::http::{Connection, Response};

/// `count` clients connect to the gateways in turn, then all ask at one moment.
pub(crate) fn at_once(gateways: &[SocketAddr], count: usize, target: &str) -> Vec<Response> {
    let together = Arc::new(Barrier::new(count));
    let clients: Vec<_> = (0..count)
        .map(|number| {
            let address = gateways[number % gateways.len()];
            let together = Arc::clone(&together);
            let target = target.to_owned();
            thread::spawn(move || {
                let mut connection = Connection::open(address);
                together.wait();
                connection.ask("GET", &target, &[])
            })
        })
        .collect();
    clients
        .into_iter()
        .map(|client| client.join().unwrap())
        .collect()
}

/// How many of the answers have this status.
pub(crate) fn count(responses: &[Response], status: u16) -> usize {
    responses
        .iter()
        .filter(|response| response.status == status)
        .count()
}
