//! The gateways, their relays, Valkey and the API, and who stands at which address at a time.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::routes::{GATEWAYS, config};
use crate::support::gateway::{Gateway, scratch};
use crate::support::origin::Origin;
use crate::support::relay::{Relay, Weather};
use crate::support::valkey::Valkey;

/// How long the gateways have, after the last request, to be as they were before the first.
const IDLE_WITHIN: Duration = Duration::from_secs(40);

/// Work that may block has threads of a pool, which end when they were idle for seconds. The log is written all the
/// time, so that one never ends; whether others met it there, to look names up and to read a configuration, is chance.
const BACKGROUND: &str = "BG background";
const POOL: usize = 2;

/// All that runs.
pub(crate) struct Fleet {
    pub(crate) slots: Vec<Slot>,
    pub(crate) valkey: Mutex<Valkey>,
    origin: Origin,
}

/// One address, and the gateways that served it one after another.
pub(crate) struct Slot {
    pub(crate) address: SocketAddr,
    pub(crate) relay: Relay,
    /// Over which a gateway hands its listeners on.
    sock: String,
    gateways: Mutex<Vec<Gateway>>,
    /// How many gateways were here before this one.
    generation: AtomicUsize,
    /// What it held before the first request.
    at_rest: Holdings,
}

/// What a process holds, as it and the system count.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Holdings {
    pub(crate) in_flight: u64,
    pub(crate) queued: u64,
    pub(crate) connections: u64,
    pub(crate) files: usize,
    /// Their names, but for those of the background's pool.
    pub(crate) threads: Vec<String>,
    pub(crate) background: usize,
}

/// One process's life, when it is over.
pub(crate) struct Lifetime {
    pub(crate) slot: usize,
    /// Its metrics at the end; none of those that were replaced: nobody knows what they counted last.
    pub(crate) metrics: Option<String>,
    pub(crate) gateway: Gateway,
}

impl Fleet {
    pub(crate) fn start() -> Self {
        let valkey = Valkey::start();
        let origin = Origin::start_forgetful();
        let slots: Vec<_> = (0..GATEWAYS)
            .map(|_| Slot::start(&valkey, &origin))
            .collect();
        let mut fleet = Self {
            slots,
            valkey: Mutex::new(valkey),
            origin,
        };
        for slot in &mut fleet.slots {
            slot.current().await_metric("tollgate_store_up", 1.0);
            slot.at_rest = slot.settled();
        }
        fleet
    }

    pub(crate) fn origin(&self) -> SocketAddr {
        self.origin.address
    }

    /// Waits until every gateway holds what it held before the first request, and says which do not.
    pub(crate) fn await_rest(&self) -> Vec<String> {
        let deadline = monotonic_now() + IDLE_WITHIN;
        loop {
            let restless: Vec<_> = self
                .slots
                .iter()
                .enumerate()
                .filter_map(|(number, slot)| slot.difference(number))
                .collect();
            if restless.is_empty() || monotonic_now() > deadline {
                return restless;
            }
            std::thread::park_timeout(Duration::from_millis(200));
        }
    }

    /// Connections that Valkey has, but for the one that asks.
    pub(crate) fn store_connections(&self) -> usize {
        let mut admin = self.valkey.lock().unwrap().connect();
        let list: String = redis::cmd("CLIENT").arg("LIST").query(&mut admin).unwrap();
        list.lines().count() - 1
    }

    /// Stops the gateways, and hands over all that there ever were.
    pub(crate) fn end(self, violations: &mut Vec<String>) -> Vec<Lifetime> {
        let mut lifetimes = Vec::new();
        for (number, slot) in self.slots.into_iter().enumerate() {
            if let Some(folder) = Path::new(&slot.sock).parent() {
                std::fs::remove_dir_all(folder).unwrap();
            }
            let mut gateways = slot.gateways.into_inner().unwrap();
            let last = gateways.len() - 1;
            let metrics = gateways[last].scrape();
            let code = gateways[last].stop();
            if code != Some(0) {
                violations.push(format!("gateway {number} ends with {code:?}"));
            }
            for (generation, gateway) in gateways.into_iter().enumerate() {
                lifetimes.push(Lifetime {
                    slot: number,
                    metrics: (generation == last).then(|| metrics.clone()),
                    gateway,
                });
            }
        }
        lifetimes
    }
}

impl Slot {
    fn start(valkey: &Valkey, origin: &Origin) -> Self {
        let relay = Relay::to(valkey.address());
        relay.set_weather(Weather::Fair);
        let sock = scratch().join("upgrade.sock").display().to_string();
        let config = config(
            &relay.address.to_string(),
            &origin.address.to_string(),
            "none",
        );
        let gateway = Gateway::start_with(&config, &["--upgrade-sock", &sock]);
        Self {
            sock,
            address: gateway.address,
            at_rest: Holdings::of(&gateway),
            relay,
            gateways: Mutex::new(vec![gateway]),
            generation: AtomicUsize::new(0),
        }
    }

    /// How many gateways were here before the one that is.
    pub(crate) fn generation(&self) -> usize {
        self.generation.load(Ordering::SeqCst)
    }

    /// The gateway that is here. It is not replaced meanwhile.
    pub(crate) fn current(&self) -> Current<'_> {
        Current(self.gateways.lock().unwrap())
    }

    /// The same, unless it is being replaced.
    pub(crate) fn try_current(&self) -> Option<Current<'_>> {
        self.gateways.try_lock().ok().map(Current)
    }

    /// Has the gateway finish and another take its place. Says with which code it ended.
    pub(crate) fn replace(&self) -> Option<i32> {
        let mut gateways = self.gateways.lock().unwrap();
        let code = gateways.last_mut().unwrap().stop();
        let mut next = gateways
            .last()
            .unwrap()
            .successor(&["--upgrade-sock", &self.sock]);
        next.await_ready();
        gateways.push(next);
        self.generation.fetch_add(1, Ordering::SeqCst);
        code
    }

    /// Has another gateway take this one's listeners over. Says with which code this one ended.
    pub(crate) fn upgrade(&self) -> Option<i32> {
        let mut gateways = self.gateways.lock().unwrap();
        let next = gateways
            .last()
            .unwrap()
            .successor(&["--upgrade-sock", &self.sock, "--upgrade"]);
        let deadline = monotonic_now() + IDLE_WITHIN;
        while !Path::new(&self.sock).exists() {
            assert!(monotonic_now() < deadline, "{}", next.errors());
            std::thread::park_timeout(Duration::from_millis(5));
        }
        let old = gateways.last_mut().unwrap();
        old.signal("-QUIT");
        let code = old.await_exit();
        gateways.push(next);
        self.generation.fetch_add(1, Ordering::SeqCst);
        code
    }

    pub(crate) fn holdings(&self) -> Holdings {
        Holdings::of(&self.current())
    }

    /// What it holds once that does not change any more: the connections of those who waited for it are gone.
    fn settled(&self) -> Holdings {
        let deadline = monotonic_now() + IDLE_WITHIN;
        let mut held = self.holdings();
        let mut same = 0;
        while same < 5 && monotonic_now() < deadline {
            std::thread::park_timeout(Duration::from_millis(200));
            let now = self.holdings();
            same = if now == held { same + 1 } else { 0 };
            held = now;
        }
        held
    }

    fn difference(&self, number: usize) -> Option<String> {
        let now = self.holdings();
        let held = &self.at_rest;
        let as_before = Holdings {
            background: held.background,
            ..now.clone()
        };
        let more = now.background.saturating_sub(held.background);
        (as_before != *held || more > POOL)
            .then(|| format!("gateway {number} holds {now:?} at rest, and held {held:?}"))
    }
}

/// A gateway, held at its place.
pub(crate) struct Current<'a>(MutexGuard<'a, Vec<Gateway>>);

impl std::ops::Deref for Current<'_> {
    type Target = Gateway;

    fn deref(&self) -> &Gateway {
        self.0.last().unwrap()
    }
}

impl Holdings {
    fn of(gateway: &Gateway) -> Self {
        // Before its metrics are asked for: that takes a connection.
        let files = std::fs::read_dir(format!("/proc/{}/fd", gateway.id()))
            .unwrap()
            .count();
        let (background, threads) = threads(gateway.id())
            .into_iter()
            .partition::<Vec<_>, _>(|name| name == BACKGROUND);
        let metrics = gateway.scrape();
        let sum = |name: &str| {
            metrics
                .lines()
                .filter(|line| line.split(['{', ' ']).next() == Some(name))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
                .sum()
        };
        Self {
            in_flight: sum("tollgate_http_in_flight_requests"),
            queued: sum("tollgate_queue_depth"),
            connections: sum("tollgate_connections"),
            files,
            threads,
            background: background.len(),
        }
    }
}

fn threads(process: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        // One that ends meanwhile is gone.
        let name = std::fs::read_to_string(task.ok()?.path().join("comm")).ok()?;
        Some(name.trim_end().to_owned())
    };
    let mut names: Vec<_> = tasks.filter_map(name).collect();
    names.sort_unstable();
    names
}

/// A number that the system knows of a process.
pub(crate) fn status(process: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    status
        .lines()
        .find_map(|line| line.strip_prefix(field))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or_default()
}
