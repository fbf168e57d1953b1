//! Usage in Valkey, shared by every gateway. One script call decides a whole request ([`script`]); of a cluster, one
//! for each slot that its entities are in (`calls`). An actor for each server keeps the connection (`keeper`), and
//! leaves a server that fails alone ([`breaker`]).

mod announce;
mod asked;
mod batch;
pub mod breaker;
mod buckets;
mod calls;
pub mod census;
mod cluster;
pub mod deny_cache;
pub mod dial;
mod failure;
pub mod grants;
mod hold;
mod keeper;
pub mod key;
pub mod lease;
pub mod manage;
mod map;
mod node;
mod reserve;
pub mod script;
pub mod sentinel;
pub mod slots;
pub mod tls;
mod topology;
mod whose;

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::Cause;
use crate::clock::Clock;
use announce::Announcer;
use cluster::{Cluster, ClusterKeeper};
use deny_cache::DenyCache;
use dial::Place;
pub use dial::{Address, Login};
use grants::Grants;
use keeper::Keeper;
use lease::Leases;
use node::Node;
pub use reserve::{Reserved, Spared};
pub use sentinel::Sentinels;
use slots::Slots;
pub use tls::Tls;

/// How Valkey is reached.
#[derive(Clone, Eq, PartialEq)]
pub struct Settings {
    /// Where it is.
    pub address: Address,
    /// Database number.
    pub database: u32,
    /// Who we are there. The password is read from `password_file`, or from the URL.
    pub login: Login,
    /// TLS to it, and to its sentinels; in the clear without.
    pub tls: Option<Tls>,
    /// For a whole decision.
    pub timeout: Duration,
    /// For a connection.
    pub connect_timeout: Duration,
    /// Whether requests that come while a call is under way go together in the next.
    pub group_commit: bool,
    /// Whether denials are remembered while they hold.
    pub deny_cache: bool,
}

/// How long a key outlives its meaning.
const SLACK_MS: u64 = 1000;

/// The same where time is virtual: the server expires keys by its own clock, however slowly a simulation goes.
const SIMULATION_SLACK_MS: u64 = 86_400_000;

impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("address", &self.address)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// The shared store.
///
/// Without a connection it answers at once that it has none; the [`Connector`] brings it back.
#[derive(Debug)]
pub struct ValkeyStore {
    servers: Servers,
    prefix: Arc<str>,
    settings: Arc<ArcSwap<Settings>>,
    clock: Option<Clock>,
    announcer: Option<Arc<Announcer>>,
    denials: DenyCache,
    leases: Leases,
    grants: Arc<Grants>,
    slots: Slots,
    /// How often an outage ended.
    recoveries: AtomicU32,
}

#[derive(Clone, Debug)]
enum Servers {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

/// What connects a [`ValkeyStore`], and keeps it connected.
#[derive(Debug)]
pub struct Connector {
    kept: Kept,
    /// Those that are read again and again.
    grants: Option<Arc<Grants>>,
}

#[derive(Debug)]
enum Kept {
    One(Keeper),
    Cluster(ClusterKeeper),
}

impl Connector {
    /// Connects, and keeps connected, until `stop` turns true or its sender is gone.
    pub async fn run(self, stop: watch::Receiver<bool>) {
        let kept = async {
            match self.kept {
                Kept::One(keeper) => keeper.run(stop).await,
                Kept::Cluster(keeper) => keeper.run(stop).await,
            }
        };
        let grants = async {
            match self.grants {
                Some(grants) => grants.keep_reading().await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = kept => {}
            () = grants => {}
        }
    }
}

impl ValkeyStore {
    /// The store, and what connects it: nothing is decided until that is run.
    ///
    /// Keys begin with `prefix`. The server's clock decides, unless `clock` is given: that is for simulations.
    #[must_use]
    pub fn new(settings: Settings, prefix: Arc<str>, clock: Option<Clock>) -> (Self, Connector) {
        // A simulation is no gateway.
        let is_gateway = clock.is_none();
        Self::open(settings, prefix, clock, is_gateway)
    }

    /// The store for somebody who asks it a thing or two, and is no gateway that others reckon with.
    #[must_use]
    pub fn visited(settings: Settings, prefix: Arc<str>) -> (Self, Connector) {
        Self::open(settings, prefix, None, false)
    }

    fn open(
        settings: Settings,
        prefix: Arc<str>,
        clock: Option<Clock>,
        is_gateway: bool,
    ) -> (Self, Connector) {
        let settings = Arc::new(ArcSwap::from_pointee(settings));
        let announcer = is_gateway.then(|| Arc::new(Announcer::new()));
        let (servers, kept) = servers(&settings, announcer.clone(), &prefix);
        let grants = Arc::new(Grants::new(servers.clone(), &prefix));
        let connector = Connector {
            kept,
            grants: is_gateway.then(|| Arc::clone(&grants)),
        };
        let store = Self {
            servers,
            grants,
            slots: Slots::new(fastrand::u64(..), Arc::clone(&prefix)),
            prefix,
            settings,
            clock,
            announcer,
            denials: DenyCache::default(),
            leases: Leases::default(),
            recoveries: AtomicU32::new(0),
        };
        (store, connector)
    }

    /// Goes on with other settings that do not lead elsewhere: time limits from now on, who we are with the next
    /// connection.
    pub fn renew(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// For a whole decision.
    fn timeout(&self) -> Duration {
        self.settings.load().timeout
    }

    /// Whether decisions are asked of the server, or of every server that has slots of a cluster: there is a
    /// connection, and it does not fail.
    #[must_use]
    pub fn is_up(&self) -> bool {
        match &self.servers {
            Servers::One(node) => node.is_up(),
            Servers::Cluster(cluster) => cluster.is_up(),
        }
    }

    /// How many servers are asked, and how many are left alone.
    #[must_use]
    pub fn servers(&self) -> (usize, usize) {
        let nodes = self.nodes();
        let up = nodes.iter().filter(|node| node.is_up()).count();
        (up, nodes.len().saturating_sub(up))
    }

    /// How often an outage ended, the first time that a server decided included. One that begins while another server
    /// is out is the same.
    #[must_use]
    pub fn recoveries(&self) -> u32 {
        self.recoveries.load(Ordering::Relaxed)
    }

    /// How many gateways were alive when the server was last heard of, this one included; 0 if it never was.
    #[must_use]
    pub fn instances(&self) -> u32 {
        match &self.servers {
            Servers::One(node) => node.instances(),
            Servers::Cluster(cluster) => {
                let nodes = cluster.nodes();
                nodes.iter().map(|node| node.instances()).max().unwrap_or(0)
            }
        }
    }

    /// Why a server is not asked, or the last try to connect failed.
    #[must_use]
    pub fn last_error(&self) -> Option<String> {
        self.last_failure().map(|(_, reason)| reason)
    }

    fn last_failure(&self) -> Option<(Cause, String)> {
        match &self.servers {
            Servers::One(node) => node.last_error(),
            Servers::Cluster(cluster) => cluster.last_error(),
        }
    }

    /// Takes this gateway's leave of the others, who divide the limits among as many as they know of if the store
    /// fails. Within the store's deadline, if it is there.
    pub async fn withdraw(&self) {
        let Some(announcer) = &self.announcer else {
            return;
        };
        announcer.take_leave();
        let nodes = self.nodes();
        let told = nodes.iter().map(async |node| {
            let (Some(link), list) = (node.link(), node.list()) else {
                return;
            };
            if !list.is_empty() {
                let mut connection = link.connection.clone();
                // Who cannot be told finds out within the lease.
                let _ = announcer.withdraw(&list, &mut connection).await;
            }
        });
        let _ = timeout(self.timeout(), join_all(told)).await;
    }

    fn recovered(&self) {
        self.recoveries.fetch_add(1, Ordering::Relaxed);
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.servers {
            Servers::One(node) => vec![Arc::clone(node)],
            Servers::Cluster(cluster) => cluster.nodes(),
        }
    }
}

fn servers(
    settings: &Arc<ArcSwap<Settings>>,
    announcer: Option<Arc<Announcer>>,
    prefix: &Arc<str>,
) -> (Servers, Kept) {
    let place = match &settings.load().address {
        Address::Server(address) => Place::At(address.clone()),
        Address::Sentinel(sentinels) => Place::Named(sentinels.primary.clone()),
        Address::Cluster(seeds) => {
            let cluster = Arc::new(Cluster::new());
            let keeper = ClusterKeeper::new(
                Arc::clone(settings),
                Arc::clone(&cluster),
                announcer,
                Arc::clone(prefix),
                seeds.clone(),
            );
            return (Servers::Cluster(cluster), Kept::Cluster(keeper));
        }
    };
    let list = format!("{prefix}:instances");
    let node = Arc::new(Node::new(place, list, Arc::new(Notify::new())));
    let keeper = Keeper {
        settings: Arc::clone(settings),
        node: Arc::clone(&node),
        announcer,
    };
    (Servers::One(node), Kept::One(keeper))
}
