//! One configuration in force, and all that serves requests by it.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use http::{HeaderMap, StatusCode};
use tokio::sync::Notify;
use tracing::{info, warn};

use super::callers::Callers;
use super::context::Context;
use super::peer::Made;
use super::pool::Pool;
use super::settle::Unsettled;
use super::wait::Room;
use crate::answer;
use crate::check::{Demand, KeySecret};
use crate::clock::{Clock, monotonic_now, wall_now_us};
use crate::config::{Config, StoreKind, Target, Upstream};
use crate::record::access_log::AccessLog;
use crate::record::metrics::{Labels, Metrics, RouteLabels, UpstreamLabels};
use crate::shed::Load;
use crate::store::Cause;
use crate::store::limiter::Limiter;
use crate::store::local::{LocalStore, SnapshotError};
use crate::store::valkey::{Connector, Spared, ValkeyStore};

/// One configuration in force, and all that serves requests by it.
#[derive(Debug)]
pub struct Gateway {
    /// What the operator wrote.
    pub config: Arc<Config>,
    /// What decides.
    pub limiter: Arc<Limiter>,
    /// What Prometheus sees.
    pub metrics: Metrics,
    /// What is logged.
    pub access_log: Arc<AccessLog>,
    /// What callers prove who they are by.
    pub callers: Callers,
    /// The servers of the upstreams, by position.
    pub pools: Box<[Pool]>,
    /// The requests in flight, and how many there may be.
    pub load: Load,
    /// Room to wait in.
    pub room: Room,
    /// Requests that have ended, and whose charges are being settled.
    pub unsettled: Unsettled,
    /// Whether the log says that a forwarding header is not read: once is enough.
    pub told_of_forwarding: AtomicBool,
}

/// The gateway in force. A reload puts another in its place; a request keeps the one that it began with.
#[derive(Clone, Debug)]
pub struct Current {
    gateway: Arc<ArcSwap<Gateway>>,
    changed: Arc<Notify>,
}

impl Current {
    /// This one for now.
    #[must_use]
    pub fn new(gateway: Gateway) -> Self {
        Self {
            gateway: Arc::new(ArcSwap::from_pointee(gateway)),
            changed: Arc::default(),
        }
    }

    /// The gateway in force.
    #[must_use]
    pub fn get(&self) -> Arc<Gateway> {
        self.gateway.load_full()
    }

    /// Puts another in force. Returns the one before.
    pub fn put(&self, gateway: Gateway) -> Arc<Gateway> {
        let earlier = self.gateway.swap(Arc::new(gateway));
        self.changed.notify_one();
        earlier
    }

    /// Until another is in force, or its servers are elsewhere, since this was last waited for. One may wait.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Looks the upstreams' names up again. Blocks.
    pub(super) fn resolve(&self) {
        let changed = self
            .get()
            .pools
            .iter()
            .filter(|pool| pool.resolve())
            .count();
        if changed > 0 {
            self.changed.notify_one();
        }
    }
}

impl Gateway {
    /// The first gateway, with nothing counted; and what connects it to its shared store. The upstreams' names are
    /// looked up, which blocks.
    ///
    /// # Errors
    ///
    /// When metrics collide, which is a mistake of ours.
    pub fn first(config: Config) -> prometheus::Result<(Self, Option<Connector>)> {
        let config = Arc::new(config);
        let (shared, connector) = match &config.store.kind {
            StoreKind::Local => (None, None),
            StoreKind::Valkey(settings) => {
                let prefix = Arc::clone(&config.store.prefix);
                let (store, connector) = ValkeyStore::new(settings.clone(), prefix, None);
                store.set_policies(&config.policies);
                (Some(store), Some(connector))
            }
        };
        let causes = Cause::ALL.map(Cause::as_str);
        let spared = Spared::ALL.map(Spared::as_str);
        let metrics = Metrics::new(&labels(&config), &causes, &spared)?;
        let local = LocalStore::new(config.store.max_keys, Clock::steady());
        if let Some(path) = &config.store.snapshot {
            restore(&local, path, &config.store.key_secret);
        }
        let gateway = Self {
            limiter: Arc::new(Limiter::new(local, shared)),
            callers: Callers::of(&config, None, metrics.families()),
            metrics,
            access_log: Arc::new(AccessLog::new(config.logs.json)),
            pools: pools(&config),
            load: Load::new(config.load_shedding, monotonic_now()),
            room: Room::new(config.server.max_waiting),
            unsettled: Unsettled::default(),
            told_of_forwarding: AtomicBool::new(false),
            config,
        };
        gateway.show_health();
        Ok((gateway, connector))
    }

    /// The gateway of another configuration. It shares what has been counted with this one, and all that a
    /// configuration cannot change while it runs. The upstreams' names are looked up, which blocks.
    #[must_use]
    pub fn next(&self, config: Config) -> Self {
        let config = Arc::new(config);
        if let (StoreKind::Valkey(settings), Some(store)) =
            (&config.store.kind, self.limiter.shared())
        {
            store.renew(settings.clone());
            store.set_policies(&config.policies);
        }
        self.load.apply(config.load_shedding);
        let next = Self {
            limiter: Arc::clone(&self.limiter),
            callers: Callers::of(&config, Some(&self.callers), self.metrics.families()),
            metrics: self.metrics.renewed(&labels(&config)),
            access_log: Arc::clone(&self.access_log),
            pools: pools(&config),
            load: self.load.clone(),
            room: self.room.clone(),
            unsettled: self.unsettled.clone(),
            told_of_forwarding: AtomicBool::new(false),
            config,
        };
        let upstreams = next.config.upstreams.iter().zip(&next.pools);
        for (upstream, pool) in upstreams.filter(|(upstream, _)| upstream.health.is_some()) {
            let before = self.config.upstreams.iter().zip(&self.pools);
            let same = before
                .filter(|(earlier, _)| earlier.name == upstream.name && earlier.health.is_some())
                .map(|(_, pool)| pool);
            same.for_each(|earlier| pool.take_over(earlier));
        }
        next.show_health();
        next
    }

    /// Shows in the metrics which servers get requests.
    pub(super) fn show_health(&self) {
        for (index, (upstream, pool)) in self.config.upstreams.iter().zip(&self.pools).enumerate() {
            for server in checked(upstream) {
                let series = self.metrics.upstream(index);
                if let Some(gauge) = series.and_then(|series| series.healthy_server(server)) {
                    gauge.set(pool.is_healthy(server).into());
                }
            }
        }
    }

    /// Writes down what was used in process, where the configuration says so.
    pub fn save_usage(&self) {
        let Some(path) = &self.config.store.snapshot else {
            return;
        };
        match self
            .limiter
            .local()
            .save(path, &self.config.store.key_secret)
        {
            Ok(states) => info!(path = %path.display(), states, "usage written down"),
            Err(error) => {
                warn!(path = %path.display(), %error, "usage not written down: a restart forgives everybody");
            }
        }
    }

    /// Adds our fields to an answer. Returns whether the upstream's were malformed.
    pub fn annotate(&self, ctx: &Context, status: StatusCode, headers: &mut HeaderMap) -> bool {
        let now_epoch_s = wall_now_us() / 1_000_000;
        answer::annotate(
            &self.config.headers,
            &ctx.rulings(),
            status,
            now_epoch_s,
            headers,
        )
    }
}

/// Takes over what an earlier process wrote down; a file that is not there yet is none.
fn restore(local: &LocalStore, path: &Path, secret: &KeySecret) {
    match local.restore(path, secret) {
        Ok(states) => info!(path = %path.display(), states, "usage taken over"),
        Err(SnapshotError::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            warn!(path = %path.display(), %error, "usage not taken over: everybody starts afresh");
        }
    }
}

fn pools(config: &Config) -> Box<[Pool]> {
    let mut made = Made::default();
    let pools: Box<[Pool]> = config
        .upstreams
        .iter()
        .map(|upstream| Pool::new(upstream, &mut made))
        .collect();
    for pool in &pools {
        // Known before the first request; later looked up in the background.
        pool.resolve();
    }
    pools
}

/// The servers of an upstream that are checked.
fn checked(upstream: &Upstream) -> Vec<&str> {
    match &upstream.target {
        Target::Servers(servers) if upstream.health.is_some() => {
            servers.iter().map(|(name, _)| &**name).collect()
        }
        _ => Vec::new(),
    }
}

/// What metrics need of a configuration, in the order of its indexes.
fn labels(config: &Config) -> Labels<'_> {
    let mut routes: Vec<_> = config.routes.iter().collect();
    routes.sort_by_key(|route| route.index);
    Labels {
        routes: routes
            .into_iter()
            .map(|route| RouteLabels {
                name: &route.name,
                policies: route
                    .demands
                    .iter()
                    .flat_map(Demand::uses)
                    .map(|a_use| &*a_use.policy)
                    .collect(),
            })
            .collect(),
        policies: &config.policies,
        plans: &config.plans,
        upstreams: config
            .upstreams
            .iter()
            .map(|upstream| UpstreamLabels {
                name: &upstream.name,
                checked: checked(upstream),
            })
            .collect(),
        certificates: config
            .listeners
            .iter()
            .filter_map(|listener| {
                let until_s = listener.tls.as_ref()?.validity().until_s;
                Some((&*listener.name, until_s))
            })
            .collect(),
        shared: !matches!(config.store.kind, StoreKind::Local),
    }
}
