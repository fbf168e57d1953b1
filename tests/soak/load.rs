//! The clients: many, each at its own pace, over old and new connections; some leave before they are answered.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fastrand::Rng;
use tollgate::clock::wall_now_us;

use crate::fleet::Fleet;
use crate::routes::{CALLERS, Route, routes};
use crate::support::http::{Connection, Response};

const CLIENTS: u64 = 48;

/// Requests of one client have numbers of its own.
const NUMBERS: u64 = 10_000_000;

/// Pauses of a client between its requests: eight a second or so.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 10..=190;

/// Of a hundred requests, so many open a connection of their own.
const FRESH: u8 = 30;

/// Of a hundred requests, so many are given up by the client.
const ABORTED: u8 = 4;

/// What the client saw.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Outcome {
    /// An answer, and the wait that it told.
    Answered(u16, Option<String>),
    /// The client left on purpose.
    Aborted,
    /// No answer came.
    Failed(String),
}

/// A request, as the client knows it; times in µs since the epoch.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) number: u64,
    pub(crate) route: usize,
    pub(crate) caller: usize,
    pub(crate) slot: usize,
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// Whether the connection was its first one's.
    pub(crate) fresh: bool,
    pub(crate) outcome: Outcome,
}

/// What the clients did so far.
#[derive(Default)]
struct SoFar {
    allowed: AtomicU64,
    denied: AtomicU64,
    unavailable: AtomicU64,
    aborted: AtomicU64,
    other: AtomicU64,
}

/// The clients.
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    so_far: Arc<SoFar>,
    clients: Vec<JoinHandle<Vec<Sent>>>,
}

impl Load {
    pub(crate) fn begin(fleet: &Arc<Fleet>, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let so_far: Arc<SoFar> = Arc::default();
        let clients = (0..CLIENTS)
            .map(|number| {
                let mut client = Client {
                    rng: Rng::with_seed(seed.wrapping_mul(1_000).wrapping_add(number)),
                    next: number * NUMBERS,
                    fleet: Arc::clone(fleet),
                    kept: BTreeMap::new(),
                };
                let (stop, so_far) = (Arc::clone(&stop), Arc::clone(&so_far));
                thread::spawn(move || client.run(&stop, &so_far))
            })
            .collect();
        Self {
            stop,
            so_far,
            clients,
        }
    }

    /// In a line.
    pub(crate) fn so_far(&self) -> String {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        format!(
            "{} allowed, {} denied, {} unavailable, {} aborted, {} without answer or with another",
            of(&self.so_far.allowed),
            of(&self.so_far.denied),
            of(&self.so_far.unavailable),
            of(&self.so_far.aborted),
            of(&self.so_far.other),
        )
    }

    /// Lets every client finish, and takes what they sent.
    pub(crate) fn end(self) -> Vec<Sent> {
        self.stop.store(true, Ordering::SeqCst);
        self.clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect()
    }
}

/// One client.
struct Client {
    rng: Rng,
    next: u64,
    fleet: Arc<Fleet>,
    /// A connection to each gateway, and to which of those that were there one after another.
    kept: BTreeMap<usize, (usize, Connection)>,
}

impl Client {
    fn run(&mut self, stop: &AtomicBool, so_far: &SoFar) -> Vec<Sent> {
        let routes = routes();
        let mut sent = Vec::new();
        while !stop.load(Ordering::SeqCst) {
            let request = self.request(&routes);
            let counter = match &request.outcome {
                Outcome::Answered(200, _) => &so_far.allowed,
                Outcome::Answered(429, _) => &so_far.denied,
                Outcome::Answered(503, _) => &so_far.unavailable,
                Outcome::Aborted => &so_far.aborted,
                Outcome::Answered(..) | Outcome::Failed(_) => &so_far.other,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            sent.push(request);
            thread::park_timeout(Duration::from_millis(self.rng.u64(PAUSE_MS)));
        }
        sent
    }

    fn request(&mut self, routes: &[Route]) -> Sent {
        let route = self.rng.usize(..routes.len());
        let caller = self.rng.usize(..CALLERS);
        let slot = self.rng.usize(..self.fleet.slots.len());
        let number = self.next;
        self.next += 1;
        let head = head(&routes[route], caller, number);
        let size = self.rng.choice(routes[route].uploads).copied();
        let began = wall_now_us();
        let kept = self.kept(slot);
        let fresh = kept.is_none();
        let outcome = if self.rng.u8(..100) < ABORTED {
            self.abort(slot, &head, size)
        } else {
            self.ask(slot, kept, &head, size)
                .unwrap_or_else(|error| Outcome::Failed(error.to_string()))
        };
        Sent {
            number,
            route,
            caller,
            slot,
            began,
            ended: wall_now_us(),
            fresh,
            outcome,
        }
    }

    /// The connection that it has to the gateway that is there, unless it wants another.
    fn kept(&mut self, slot: usize) -> Option<Connection> {
        let generation = self.fleet.slots[slot].generation();
        let wants = self.rng.u8(..100) >= FRESH;
        let (_, connection) = self
            .kept
            .remove(&slot)
            .filter(|(known, _)| *known == generation && wants)?;
        Some(connection)
    }

    fn ask(
        &mut self,
        slot: usize,
        kept: Option<Connection>,
        head: &str,
        size: Option<usize>,
    ) -> io::Result<Outcome> {
        let generation = self.fleet.slots[slot].generation();
        let mut connection = match kept {
            Some(connection) => connection,
            None => Connection::try_open(self.fleet.slots[slot].address)?,
        };
        let written = write(&mut connection, head, size, 100);
        // A refused upload may be answered before it is read; then the answer says why.
        let response = connection
            .receive(false)
            .map_err(|error| written.err().unwrap_or(error))?;
        if !closes(&response) {
            self.kept.insert(slot, (generation, connection));
        }
        let retry_after = response.header("retry-after").map(str::to_owned);
        Ok(Outcome::Answered(response.status, retry_after))
    }

    /// Leaves at any moment: in the midst of the body, while it waits, while it is answered.
    fn abort(&mut self, slot: usize, head: &str, size: Option<usize>) -> Outcome {
        if let Ok(mut connection) = Connection::try_open(self.fleet.slots[slot].address) {
            // Whether it arrives is of no interest to one who leaves.
            let _ = write(&mut connection, head, size, self.rng.usize(..=100));
            thread::park_timeout(Duration::from_millis(self.rng.u64(0..=60)));
        }
        Outcome::Aborted
    }
}

fn head(route: &Route, caller: usize, number: u64) -> String {
    let method = if route.uploads.is_empty() {
        "GET"
    } else {
        "POST"
    };
    format!(
        "{method} {} HTTP/1.1\r\nHost: api.example\r\nX-Forwarded-For: 192.0.2.{caller}\r\nX-Request-Id: {number}\r\n",
        route.target
    )
}

/// The request, and so many of a hundred bytes of its body.
fn write(
    connection: &mut Connection,
    head: &str,
    size: Option<usize>,
    percent: usize,
) -> io::Result<()> {
    match size {
        None => connection.send(format!("{head}\r\n")),
        Some(size) => {
            connection.send(format!("{head}Content-Length: {size}\r\n\r\n"))?;
            connection.send(vec![b'x'; size * percent / 100])
        }
    }
}

fn closes(response: &Response) -> bool {
    response
        .lines("connection")
        .any(|value| value.eq_ignore_ascii_case("close"))
}
