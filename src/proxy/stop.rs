//! The way out: signals, the drain, and what is still written when the process ends.

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use pingora::server::{ShutdownSignal, ShutdownSignalWatch};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::gateway::Gateway;
use super::reload::Reloader;
use crate::clock::monotonic_now;
use crate::record::access_log::AccessLog;

/// How long readiness is refused before the listeners close, so that balancers look elsewhere first.
const LAME: Duration = Duration::from_millis(200);

/// How long it may take to settle what the last requests were charged.
const SETTLING_MAX: Duration = Duration::from_secs(2);

/// How long the access log's last lines may take.
const LAST_WRITE: Duration = Duration::from_secs(1);

/// Ends the process as soon as the last connection has, or the grace period is over. A connection ends with the request
/// that runs on it; one on which none runs, or none comes, with the patience of [`super::listen::Edge`], which sets
/// `closed` then.
pub(super) async fn drain(gateway: &Gateway, closed: &AtomicBool, end: &End) -> ! {
    let began = monotonic_now();
    let grace = gateway.config.server.grace_period;
    info!(
        in_flight = gateway.metrics.families().in_flight.get(),
        "draining"
    );
    let any = || gateway.metrics.families().connections.get() > 0;
    while (!closed.load(Ordering::Acquire) || any())
        && monotonic_now().saturating_duration_since(began) < grace
    {
        sleep(Duration::from_millis(20)).await;
    }
    // The last answers are on their way out of our hands.
    sleep(Duration::from_millis(50)).await;
    let left = gateway.metrics.families().in_flight.get();
    if left > 0 {
        warn!(in_flight = left, "grace period over, requests cut off");
    }
    // A request is settled after its answer.
    let settled = async {
        while !gateway.unsettled.is_none() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    if timeout(SETTLING_MAX, settled).await.is_err() {
        warn!("some charges stay as they were: the store did not settle them in time");
    }
    gateway.save_usage();
    if let Some(store) = gateway.limiter.shared() {
        store.release_all().await;
        store.return_leases(&gateway.config.policies).await;
        store.withdraw().await;
    }
    info!("stopped");
    end.exit(0);
}

/// SIGTERM, SIGQUIT and SIGINT let requests finish; a second SIGINT does not wait for them. Where a newer process
/// waits for the listeners, SIGQUIT hands them on first. SIGHUP reads the configuration again.
pub(super) struct Signals {
    pub(super) ready: Arc<AtomicBool>,
    pub(super) leaving: Arc<AtomicBool>,
    pub(super) reloader: Arc<Reloader>,
    pub(super) upgrade_sock: Option<PathBuf>,
    pub(super) end: Arc<End>,
}

#[async_trait]
impl ShutdownSignalWatch for Signals {
    async fn recv(&self) -> ShutdownSignal {
        let kinds = [
            SignalKind::terminate(),
            SignalKind::quit(),
            SignalKind::interrupt(),
            SignalKind::hangup(),
        ];
        let signals: Result<Vec<_>, _> = kinds.into_iter().map(signal).collect();
        let Ok(Ok([mut terminate, mut quit, mut interrupt, mut hangup])) =
            signals.map(<[Signal; 4]>::try_from)
        else {
            warn!("signals cannot be watched: only SIGKILL will end this process");
            return std::future::pending().await;
        };
        let reload = reload_when_told(Arc::clone(&self.reloader));
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = quit.recv() => match &self.upgrade_sock {
                    None => break,
                    Some(path) if somebody_waits(path) => {
                        // Connections that are in use have gone over by the time that Pingora leaves them.
                        self.leaving.store(true, Ordering::Relaxed);
                        info!("handing the listeners on, then requests may finish");
                        self.end_at_once_by(interrupt);
                        return ShutdownSignal::GracefulUpgrade;
                    }
                    Some(path) => warn!(
                        path = %path.display(),
                        "SIGQUIT: no newer process waits there; start it with --upgrade first"
                    ),
                },
                _ = interrupt.recv() => break,
                _ = hangup.recv() => reload.notify_one(),
            }
        }
        info!("told to stop: requests may finish; SIGINT (Ctrl-C) ends them");
        self.ready.store(false, Ordering::Relaxed);
        self.leaving.store(true, Ordering::Relaxed);
        self.end_at_once_by(interrupt);
        sleep(LAME).await;
        ShutdownSignal::GracefulTerminate
    }
}

impl Signals {
    /// The next SIGINT waits for nobody.
    fn end_at_once_by(&self, mut interrupt: Signal) {
        let end = Arc::clone(&self.end);
        tokio::spawn(async move {
            interrupt.recv().await;
            warn!("told to stop at once");
            end.exit(1);
        });
    }
}

/// Reads the configuration again each time that it is told to, on a task of its own: a file or a name server that does
/// not answer holds up nothing else. What is told meanwhile waits: it may be of a later change.
fn reload_when_told(reloader: Arc<Reloader>) -> Arc<Notify> {
    let told = Arc::new(Notify::new());
    let listening = Arc::clone(&told);
    tokio::spawn(async move {
        loop {
            listening.notified().await;
            let reloader = Arc::clone(&reloader);
            if tokio::task::spawn_blocking(move || reloader.reload())
                .await
                .is_err()
            {
                warn!("configuration not taken: reading it failed");
            }
        }
    });
    told
}

/// Whether a process listens at `path`; the file alone may be left of one that is gone. It is asked with the wrong kind
/// of socket, and so does not notice: the system looks for the listener before it minds the kind.
fn somebody_waits(path: &Path) -> bool {
    let asked = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
    asked.is_err_and(|error| {
        !matches!(
            error.kind(),
            io::ErrorKind::NotFound
                | io::ErrorKind::ConnectionRefused
                | io::ErrorKind::PermissionDenied
        )
    })
}

/// How the process ends: with what was logged written out.
pub(super) struct End {
    access_log: Arc<AccessLog>,
    last: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl End {
    /// `last` is done last.
    pub(super) fn new(access_log: Arc<AccessLog>, last: impl FnOnce() + Send + 'static) -> Self {
        Self {
            access_log,
            last: Mutex::new(Some(Box::new(last))),
        }
    }

    /// Ends the process, within a second or so even if nobody reads its logs.
    fn exit(&self, code: i32) -> ! {
        let access_log = Arc::clone(&self.access_log);
        let (done, written) = mpsc::channel();
        std::thread::spawn(move || {
            let flushed = access_log.flush(&mut io::stdout().lock());
            // Nobody may be left to hear of it.
            let _ = done.send(flushed.is_ok());
        });
        if written.recv_timeout(LAST_WRITE) != Ok(true) {
            warn!("the access log's last lines are lost");
        }
        let last = self
            .last
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(last) = last {
            last();
        }
        std::process::exit(code);
    }
}
