//! Puts the server together and runs it: listeners, background work, signals, and the way out.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use pingora::listeners::ListenerConfig;
use pingora::protocols::l4::stream::L4BufferSettings;
use pingora::proxy::http_proxy;
use pingora::server::configuration::ServerConf;
use pingora::server::{RunArgs, Server, ShutdownWatch};
use pingora::services::background::{BackgroundService, background_service};
use pingora::services::listening::Service;
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::time::interval;
use tracing::{info, warn};

use super::listen::Edge;
use super::pool::Pool;
use super::stop::{End, Signals, drain};
use super::{Gateway, wait::Room};
use crate::admin::Probes;
use crate::check::{Demand, Policy};
use crate::clock::Clock;
use crate::config::{Config, StoreKind, Target};
use crate::record::access_log::AccessLog;
use crate::record::metrics::{Metrics, RouteLabels};
use crate::store::Cause;
use crate::store::limiter::Limiter;
use crate::store::local::LocalStore;
use crate::store::valkey::ValkeyStore;
use crate::store::valkey::connection::Connector;

/// Memory of a connection that lies idle: a small buffer, since a head seldom needs more.
const READ_BUFFER: usize = 4096;

/// Upstream connections kept for another request, a thread. Too few, and each request pays for a connection.
const UPSTREAM_IDLE_MAX: usize = 1024;

const FLUSH_EVERY: Duration = Duration::from_millis(200);
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// Entries looked at in one sweep: a million keys are seen twice a minute.
const SWEEP_STEPS: usize = 20_000;

const RESOLVE_EVERY: Duration = Duration::from_secs(30);

/// Why the gateway does not run.
#[derive(Debug, Error)]
pub enum StartError {
    /// A listener's address cannot be had.
    #[error("{what} cannot listen on {address}: {error}")]
    Bind {
        /// Which listener.
        what: String,
        /// Where.
        address: std::net::SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// Two metrics collide.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Runs the gateway until it is told to stop; then the process ends, and `last` is what it does last.
///
/// # Errors
///
/// [`StartError`] before anything is served.
pub fn run(config: Config, last: impl FnOnce() + Send + 'static) -> Result<(), StartError> {
    probe(&config)?;
    let config = Arc::new(config);
    let (gateway, connector) = gateway(&config)?;
    // Known before the first request; later looked up in the background.
    gateway.pools.iter().for_each(Pool::resolve);

    let conf = ServerConf {
        threads: config.server.threads.get(),
        grace_period_seconds: Some(config.server.grace_period.as_secs()),
        graceful_shutdown_timeout_seconds: Some(1),
        upstream_keepalive_pool_size: UPSTREAM_IDLE_MAX,
        // Ours decides; it never asks for more than this.
        max_retries: config
            .upstreams
            .iter()
            .map(|upstream| upstream.retries + 1)
            .max()
            .unwrap_or(1),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(None, conf);
    server.bootstrap();

    let proxy = http_proxy(&server.configuration, gateway.clone());
    let mut edge = Service::new(
        "edge".to_owned(),
        Edge::new(proxy, gateway.clone(), config.server.header_timeout),
    );
    for listener in &config.listeners {
        edge.add_listener(
            ListenerConfig::tcp(listener.address.to_string())
                .l4_buffer(L4BufferSettings::default().read(READ_BUFFER)),
        );
    }
    server.add_service(edge);

    let end = Arc::new(End::new(Arc::clone(&gateway.access_log), last));
    let ready = Arc::new(AtomicBool::new(true));
    if let Some(metrics) = &config.metrics {
        let probes = Probes::new(
            Arc::clone(&gateway.metrics),
            Arc::clone(&gateway.limiter),
            Arc::clone(&ready),
            metrics.path.clone(),
        );
        let mut service = Service::new("metrics".to_owned(), probes);
        service.threads = Some(1);
        service.add_tcp(&metrics.address.to_string());
        server.add_service(service);
    }
    let mut background = background_service(
        "background",
        Background {
            gateway,
            connector: Mutex::new(connector),
            end: Arc::clone(&end),
        },
    );
    background.threads = Some(1);
    server.add_service(background);

    for listener in &config.listeners {
        info!(listener = %listener.name, address = %listener.address, "listening");
    }
    if let Some(metrics) = &config.metrics {
        info!(address = %metrics.address, path = %metrics.path, "metrics, /livez and /readyz");
    }
    // The drain, which knows when the last request is over, ends the process.
    server.run(RunArgs {
        shutdown_signal: Box::new(Signals { ready, end }),
    });
    Ok(())
}

/// Pingora runs on when a listener cannot be bound: find out before.
fn probe(config: &Config) -> Result<(), StartError> {
    let listeners = config
        .listeners
        .iter()
        .map(|listener| (format!("listener `{}`", listener.name), listener.address));
    let metrics = config
        .metrics
        .iter()
        .map(|metrics| ("[metrics]".to_owned(), metrics.address));
    // Held together, so that two listeners with one address are found out too.
    let mut held = Vec::new();
    for (what, address) in listeners.chain(metrics) {
        match TcpListener::bind(address) {
            Ok(listener) => held.push(listener),
            Err(error) => {
                return Err(StartError::Bind {
                    what,
                    address,
                    error,
                });
            }
        }
    }
    Ok(())
}

fn gateway(config: &Arc<Config>) -> Result<(Gateway, Option<Connector>), StartError> {
    let (shared, connector) = match &config.store.kind {
        StoreKind::Local => (None, None),
        StoreKind::Valkey(settings) => {
            let (store, connector) =
                ValkeyStore::new(settings.clone(), Arc::clone(&config.store.prefix), None);
            (Some(store), Some(connector))
        }
    };
    let routes: Vec<_> = routes_by_index(config);
    let upstreams: Vec<_> = config
        .upstreams
        .iter()
        .map(|upstream| Arc::clone(&upstream.name))
        .collect();
    let metrics = Metrics::new(
        &routes,
        &config.policies,
        &upstreams,
        &Cause::ALL.map(Cause::as_str),
        shared.is_some(),
    )?;
    let local = LocalStore::new(config.store.max_keys, Clock::steady());
    let gateway = Gateway {
        config: Arc::clone(config),
        limiter: Arc::new(Limiter::new(local, shared)),
        metrics: Arc::new(metrics),
        access_log: Arc::new(AccessLog::new(config.logs.json)),
        pools: config
            .upstreams
            .iter()
            .map(|upstream| {
                let servers = match &upstream.target {
                    Target::Servers(servers) => servers.clone(),
                    Target::Echo => Vec::new(),
                };
                Pool::new(Arc::clone(&upstream.name), servers)
            })
            .collect(),
        room: Room::new(config.server.max_waiting),
        told_of_forwarding: Arc::default(),
    };
    Ok((gateway, connector))
}

/// The routes as metrics know them, in the order of [`crate::config::Route::index`].
fn routes_by_index(config: &Config) -> Vec<RouteLabels<'_>> {
    let mut routes: Vec<_> = config.routes.iter().collect();
    routes.sort_by_key(|route| route.index);
    routes
        .into_iter()
        .map(|route| RouteLabels {
            name: &route.name,
            policies: route.demands.iter().flat_map(policies_of).collect(),
        })
        .collect()
}

fn policies_of(demand: &Demand) -> Vec<&Policy> {
    match demand {
        Demand::One(used) => vec![&*used.policy],
        Demand::FirstOf(uses) => uses.iter().map(|used| &*used.policy).collect(),
    }
}

/// What goes on beside the requests, all on one thread.
struct Background {
    gateway: Gateway,
    connector: Mutex<Option<Connector>>,
    end: Arc<End>,
}

#[async_trait]
impl BackgroundService for Background {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        if let Some(connector) = self.connector.lock().await.take() {
            // Decisions are still made while requests finish: it ends with the process.
            let (stay, stop) = tokio::sync::watch::channel(false);
            tokio::spawn(async move {
                connector.run(stop).await;
                drop(stay);
            });
        }
        let gateway = self.gateway.clone();
        tokio::spawn(flush(gateway.clone()));
        tokio::spawn(sweep(gateway.clone()));
        tokio::spawn(resolve(gateway.clone()));
        // An error means that nobody will tell us any more: as good as told.
        let _ = shutdown.wait_for(|stopping| *stopping).await;
        drain(&gateway, &self.end).await;
    }
}

async fn flush(gateway: Gateway) {
    let mut tick = interval(FLUSH_EVERY);
    loop {
        tick.tick().await;
        let access_log = Arc::clone(&gateway.access_log);
        // A reader that does not read blocks this, and nothing else.
        let flushed =
            tokio::task::spawn_blocking(move || access_log.flush(&mut io::stdout().lock())).await;
        if !matches!(flushed, Ok(Ok(()))) {
            gateway.metrics.access_log_suppressed.inc();
        }
    }
}

async fn sweep(gateway: Gateway) {
    let mut tick = interval(SWEEP_EVERY);
    loop {
        tick.tick().await;
        gateway.limiter.local().sweep(SWEEP_STEPS);
    }
}

async fn resolve(gateway: Gateway) {
    let mut tick = interval(RESOLVE_EVERY);
    // The first tick comes at once; the names are known by then.
    tick.tick().await;
    loop {
        tick.tick().await;
        let pools = Arc::clone(&gateway.pools);
        if tokio::task::spawn_blocking(move || pools.iter().for_each(Pool::resolve))
            .await
            .is_err()
        {
            warn!("resolving the upstreams' names failed");
        }
    }
}
