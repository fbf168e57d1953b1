//! Puts the server together and runs it: listeners, background work, signals, and the way out.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use pingora::listeners::ListenerConfig;
use pingora::protocols::l4::stream::L4BufferSettings;
use pingora::proxy::http_proxy;
use pingora::server::configuration::{Opt, ServerConf};
use pingora::server::{RunArgs, Server, ShutdownWatch};
use pingora::services::ServiceReadyNotifier;
use pingora::services::background::{BackgroundService, background_service};
use pingora::services::listening::Service;
use thiserror::Error;
use tokio::sync::Mutex;
use tokio::task::yield_now;
use tokio::time::{interval, sleep, timeout};
use tracing::{info, warn};

use super::Proxy;
use super::bind;
use super::callers::{first_fetch, keep_fetching};
use super::files;
use super::gateway::{Current, Gateway};
use super::health;
use super::listen::Edge;
use super::peer::NO_AUTHORITIES;
use super::reload::Reloader;
use super::stop::{End, Signals, drain};
use super::watch::{LOOK_EVERY, watch};
use crate::admin::Control;
use crate::admin::api::Api;
use crate::admin::probes::Probes;
use crate::config::{Config, Effective, Fingerprint};
use crate::store::valkey::Connector;

/// Memory of a connection that lies idle: a small buffer, since a head seldom needs more.
const READ_BUFFER: usize = 4096;

/// Upstream connections kept for another request, a thread. Too few, and each request pays for a connection.
const UPSTREAM_IDLE_MAX: usize = 1024;

/// The most servers that are tried for a request.
const TRIES_MAX: usize = 16;

const FLUSH_EVERY: Duration = Duration::from_millis(200);
const SWEEP_EVERY: Duration = Duration::from_millis(500);
/// A sweep has so many parts, of so many entries each: a million keys are seen twice a minute.
const SWEEP_PARTS: usize = 20;
const SWEEP_PART: usize = 1_000;

/// How long nothing is served while the first connection to the store is tried (what is decided without it counts
/// apart), and while the keys of tokens are fetched for the first time.
const FIRST_TRY_MAX: Duration = Duration::from_secs(1);
const FIRST_TRY_LOOK_EVERY: Duration = Duration::from_millis(5);

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
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// Two metrics collide.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Where the configuration and the listeners come from.
#[derive(Debug)]
pub struct Source {
    /// Its main file.
    pub path: PathBuf,
    /// What was read from it.
    pub effective: Effective,
    /// If it is read again when it changes: of what was read, or of what was there before.
    pub watched_from: Option<Fingerprint>,
    /// Where a newer process takes the listeners over.
    pub upgrade_sock: Option<PathBuf>,
    /// Whether this is such a process: it gets its listeners from the one before.
    pub takes_over: bool,
}

/// Runs the gateway until it is told to stop; then the process ends, and `last` is what it does last.
///
/// # Errors
///
/// [`StartError`] before anything is served.
pub fn run(
    config: Config,
    source: Source,
    last: impl FnOnce() + Send + 'static,
) -> Result<(), StartError> {
    if !source.takes_over {
        bind::can_be_had(&config)?;
    }
    let (gateway, connector) = Gateway::first(config)?;
    let config = Arc::clone(&gateway.config);
    let (families, limiter, load) = (
        Arc::clone(gateway.metrics.families()),
        Arc::clone(&gateway.limiter),
        gateway.load.clone(),
    );
    let end = Arc::new(End::new(Arc::clone(&gateway.access_log), last));
    let current = Current::new(gateway);
    let reloader = Arc::new(Reloader::new(
        source.path,
        current.clone(),
        source.effective,
        source.watched_from.as_ref().map(|files| files.content),
    ));

    let opt = Opt {
        upgrade: source.takes_over,
        ..Opt::default()
    };
    let conf = ServerConf {
        upgrade_sock: source
            .upgrade_sock
            .as_ref()
            .map(|path| path.display().to_string())
            .unwrap_or_default(),
        threads: config.server.threads.get(),
        // Ours is over first: when Pingora's is, it takes the threads away on which the drain ends the process.
        grace_period_seconds: Some(config.server.grace_period.as_secs().saturating_add(60)),
        graceful_shutdown_timeout_seconds: Some(1),
        upstream_keepalive_pool_size: UPSTREAM_IDLE_MAX,
        // Ours decides, by the configuration in force; it never asks for more than this.
        max_retries: TRIES_MAX,
        ca_file: Some(NO_AUTHORITIES.to_owned()),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(opt, conf);
    server.bootstrap();

    let [leaving, closed] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let proxy = Proxy {
        current: current.clone(),
        leaving: Arc::clone(&leaving),
    };
    let pingora = http_proxy(&server.configuration, proxy.clone());
    let mut edge = Service::new(
        "edge".to_owned(),
        Edge::new(
            pingora,
            proxy,
            files::make_room(config.server.max_connections),
            config.server.header_timeout,
            Arc::clone(&closed),
        ),
    );
    for listener in &config.listeners {
        edge.add_listener(
            ListenerConfig::tcp(listener.address.to_string())
                .l4_buffer(L4BufferSettings::default().read(READ_BUFFER)),
        );
    }
    let mut serving = vec![server.add_service(edge)];

    let ready = Arc::new(AtomicBool::new(true));
    if let Some(admin) = &config.admin {
        let control: Arc<dyn Control> = Arc::<Reloader>::clone(&reloader);
        let api = Api::new(control, admin.address);
        let mut service = Service::new("admin".to_owned(), api);
        service.threads = Some(1);
        service.add_tcp(&admin.address.to_string());
        serving.push(server.add_service(service));
    }
    if let Some(metrics) = &config.metrics {
        let probes = Probes::new(
            families,
            limiter,
            load,
            Arc::clone(&ready),
            metrics.path.clone(),
        );
        let mut service = Service::new("metrics".to_owned(), probes);
        service.threads = Some(1);
        service.add_tcp(&metrics.address.to_string());
        serving.push(server.add_service(service));
    }
    let mut background = background_service(
        "background",
        Background {
            current,
            connector: Mutex::new(connector),
            watch: source
                .watched_from
                .map(|fingerprint| (Arc::clone(&reloader), fingerprint)),
            closed,
            end: Arc::clone(&end),
        },
    );
    background.threads = Some(1);
    let background = server.add_service(background);
    for service in serving {
        service.add_dependency(&background);
    }

    for listener in &config.listeners {
        info!(listener = %listener.name, address = %listener.address, "listening");
    }
    if let Some(admin) = &config.admin {
        info!(address = %admin.address, token = admin.token.is_some(), "admin API");
    }
    if let Some(metrics) = &config.metrics {
        info!(address = %metrics.address, path = %metrics.path, "metrics, /livez and /readyz");
    }
    // The drain, which knows when the last request is over, ends the process.
    server.run(RunArgs {
        shutdown_signal: Box::new(Signals {
            ready,
            leaving,
            reloader,
            upgrade_sock: source.upgrade_sock,
            end,
        }),
    });
    Ok(())
}

/// What goes on beside the requests, all on one thread.
struct Background {
    current: Current,
    connector: Mutex<Option<Connector>>,
    watch: Option<(Arc<Reloader>, Fingerprint)>,
    /// Whether no further request is taken.
    closed: Arc<AtomicBool>,
    end: Arc<End>,
}

#[async_trait]
impl BackgroundService for Background {
    async fn start_with_ready_notifier(
        &self,
        mut shutdown: ShutdownWatch,
        ready: ServiceReadyNotifier,
    ) {
        if let Some(connector) = self.connector.lock().await.take() {
            // Decisions are still made while requests finish: it ends with the process.
            let (stay, stop) = tokio::sync::watch::channel(false);
            tokio::spawn(async move {
                connector.run(stop).await;
                drop(stay);
            });
        }
        let gateway = self.current.get();
        tokio::spawn(flush(Arc::clone(&gateway)));
        tokio::spawn(sweep(Arc::clone(&gateway)));
        tokio::spawn(keep_slots(Arc::clone(&gateway)));
        tokio::spawn(resolve(self.current.clone()));
        tokio::spawn(look_at_keys(self.current.clone()));
        tokio::spawn(keep_fetching(self.current.clone()));
        if let Some((reloader, fingerprint)) = &self.watch {
            tokio::spawn(watch(Arc::clone(reloader), fingerprint.clone()));
        }
        let checks = tokio::spawn(health::watch(self.current.clone()));
        let store = first_try(&gateway);
        let keys = timeout(FIRST_TRY_MAX, first_fetch(&gateway));
        // Not known in time is as good as not there.
        let _ = tokio::join!(store, keys);
        ready.notify_ready();
        // An error means that nobody will tell us any more: as good as told.
        let _ = shutdown.wait_for(|stopping| *stopping).await;
        checks.abort();
        drain(&self.current.get(), &self.closed, &self.end).await;
    }
}

/// Until the store is there or is known not to be, and not for long: the gateway runs without it.
async fn first_try(gateway: &Gateway) {
    let Some(store) = gateway.limiter.shared() else {
        return;
    };
    let tried = async {
        while !store.is_up() && store.last_error().is_none() {
            sleep(FIRST_TRY_LOOK_EVERY).await;
        }
    };
    // Not known in time is as good as not there.
    let _ = timeout(FIRST_TRY_MAX, tried).await;
}

async fn flush(gateway: Arc<Gateway>) {
    let mut tick = interval(FLUSH_EVERY);
    loop {
        tick.tick().await;
        let access_log = Arc::clone(&gateway.access_log);
        // A reader that does not read blocks this, and nothing else.
        let flushed =
            tokio::task::spawn_blocking(move || access_log.flush(&mut io::stdout().lock())).await;
        if !matches!(flushed, Ok(Ok(()))) {
            gateway.metrics.families().access_log_suppressed.inc();
        }
    }
}

async fn sweep(gateway: Arc<Gateway>) {
    let mut tick = interval(SWEEP_EVERY);
    loop {
        tick.tick().await;
        // In parts, so that the tasks of this thread get their turn.
        let store = gateway.limiter.local();
        for _ in 0..store.len().div_ceil(SWEEP_PART).min(SWEEP_PARTS) {
            store.sweep(SWEEP_PART);
            yield_now().await;
        }
    }
}

async fn look_at_keys(current: Current) {
    let mut tick = interval(LOOK_EVERY);
    loop {
        tick.tick().await;
        let gateway = current.get();
        let looked = tokio::task::spawn_blocking(move || gateway.callers.look_again(&gateway));
        if looked.await.is_err() {
            warn!("looking at the files of keys failed");
        }
    }
}

/// Tells the shared store what is in flight here, for as long as the process lives.
async fn keep_slots(gateway: Arc<Gateway>) {
    if let Some(store) = gateway.limiter.shared() {
        store.keep_slots().await;
    }
}

async fn resolve(current: Current) {
    let mut tick = interval(RESOLVE_EVERY);
    // The first tick comes at once; the names are known by then.
    tick.tick().await;
    loop {
        tick.tick().await;
        let current = current.clone();
        if tokio::task::spawn_blocking(move || current.resolve())
            .await
            .is_err()
        {
            warn!("resolving the upstreams' names failed");
        }
    }
}
