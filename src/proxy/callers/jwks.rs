//! Keys of tokens that are fetched from their issuer. No request waits for it: until they are there, tokens prove
//! nothing.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use rustls::crypto::ring;
use tokio::task::spawn_blocking;
use tokio::time::{interval, sleep};
use tracing::{error, info};
use ureq::tls::{Certificate, RootCerts, TlsConfig, TlsProvider};

use super::tokens::Numbered;
use crate::client::jwt::KeySet;
use crate::clock::monotonic_now;
use crate::proxy::gateway::{Current, Gateway};
use crate::record::metrics::Proven;

/// How often it is looked whether keys are to be fetched.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// The same at the start, while nothing is served yet.
const FIRST_LOOK_EVERY: Duration = Duration::from_millis(5);

/// The largest answer that is read.
const SIZE_MAX: u64 = 1 << 20;

/// For a whole answer.
const TIME_MAX: Duration = Duration::from_secs(10);

/// Tokens that name a key we do not have make us fetch no more often than this.
const UNKNOWN_EVERY: Duration = Duration::from_secs(10);

/// After a failure it is tried again, the first time after this.
const AGAIN_AFTER: Duration = Duration::from_secs(1);

/// Keys that are fetched, and when. A reload that does not change their address goes on with them.
#[derive(Debug)]
pub(super) struct Jwks {
    url: Arc<str>,
    in_force: ArcSwap<Numbered>,
    /// Whether a token named a key that is not among them.
    lacks_a_key: AtomicBool,
    plan: Mutex<Plan>,
}

#[derive(Debug)]
struct Plan {
    refresh: Duration,
    /// None before the first try.
    last: Option<Instant>,
    next: Option<Instant>,
    /// Tries since one succeeded.
    failures: u32,
    /// A hash over what was last taken.
    content: Option<blake3::Hash>,
}

impl Jwks {
    /// None yet, to be fetched at once.
    pub(super) fn new(url: Arc<str>, refresh: Duration) -> Self {
        Self {
            url,
            in_force: ArcSwap::from_pointee(Numbered::new(Arc::new(KeySet::none()))),
            lacks_a_key: AtomicBool::new(false),
            plan: Mutex::new(Plan {
                refresh,
                last: None,
                next: None,
                failures: 0,
                content: None,
            }),
        }
    }

    pub(super) fn comes_from(&self, url: &str) -> bool {
        *self.url == *url
    }

    pub(super) const fn in_force(&self) -> &ArcSwap<Numbered> {
        &self.in_force
    }

    /// From now on so often.
    pub(super) fn fetch_every(&self, refresh: Duration) {
        let mut plan = self.plan();
        plan.refresh = refresh;
        if let Some(last) = plan.last {
            let sooner = last + refresh;
            plan.next = plan.next.map(|next| next.min(sooner));
        }
    }

    /// A token named a key that is not among these: perhaps the issuer has a new one.
    pub(super) fn lacks_a_key(&self) {
        self.lacks_a_key.store(true, Ordering::Relaxed);
    }

    fn plan(&self) -> std::sync::MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn was_tried(&self) -> bool {
        self.plan().last.is_some()
    }

    fn is_due(&self, now: Instant) -> bool {
        let lacks = self.lacks_a_key.load(Ordering::Relaxed);
        self.plan().is_due(now, lacks)
    }

    /// Fetches the keys, and takes them if they are some. Blocks.
    fn fetch(&self, gateway: &Gateway) {
        self.lacks_a_key.store(false, Ordering::Relaxed);
        let found = get(&self.url).and_then(|text| {
            let keys = KeySet::of_jwks(&text);
            Ok((keys.map_err(io::Error::other)?, blake3::hash(&text)))
        });
        let families = gateway.metrics.families();
        families.keys_read(Proven::ByToken, found.is_ok());
        let mut plan = self.plan();
        plan.tried(monotonic_now(), found.is_ok());
        match found {
            // As they are.
            Ok((_, content)) if plan.content == Some(content) => {}
            Ok((keys, content)) => {
                info!(url = %self.url, keys = keys.len(), "keys of tokens taken");
                families.keys_in_force(Proven::ByToken, keys.len());
                plan.content = Some(content);
                self.in_force.store(Arc::new(Numbered::new(Arc::new(keys))));
            }
            Err(why) => {
                let fate = match plan.content {
                    Some(_) => "the ones before stay in force",
                    None => "tokens prove nothing until they are there",
                };
                error!(url = %self.url, "keys of tokens not fetched, {fate}: {why}");
            }
        }
    }
}

impl Plan {
    fn is_due(&self, now: Instant, lacks_a_key: bool) -> bool {
        let waited = self.last.map(|last| now.saturating_duration_since(last));
        let in_time = self.next.is_none_or(|next| now >= next);
        in_time || (lacks_a_key && waited.is_none_or(|waited| waited >= UNKNOWN_EVERY))
    }

    /// Plans the next try: sooner after a failure, and never at the same moment as all other gateways.
    fn tried(&mut self, now: Instant, succeeded: bool) {
        self.failures = if succeeded {
            0
        } else {
            self.failures.saturating_add(1)
        };
        let pause = match self.failures {
            0 => self.refresh,
            failures => AGAIN_AFTER
                .saturating_mul(
                    1_u32
                        .checked_shl(failures.saturating_sub(1))
                        .unwrap_or(u32::MAX),
                )
                .min(self.refresh),
        };
        let tenths = fastrand::u32(9..=11);
        self.last = Some(now);
        self.next = Some(now + pause / 10 * tenths);
    }
}

/// Fetches the keys of the configuration in force, again and again.
pub(in crate::proxy) async fn keep_fetching(current: Current) {
    let mut tick = interval(LOOK_EVERY);
    loop {
        tick.tick().await;
        let gateway = current.get();
        let Some(jwks) = gateway.callers.jwks().map(Arc::clone) else {
            continue;
        };
        if !jwks.is_due(monotonic_now()) {
            continue;
        }
        let fetched = spawn_blocking(move || jwks.fetch(&gateway));
        if fetched.await.is_err() {
            error!("fetching the keys of tokens failed");
        }
    }
}

/// Until the keys were tried to be fetched once, where they are fetched.
pub(in crate::proxy) async fn first_fetch(gateway: &Gateway) {
    while gateway.callers.jwks().is_some_and(|jwks| !jwks.was_tried()) {
        sleep(FIRST_LOOK_EVERY).await;
    }
}

/// What stands at the address itself, wherever else it may point.
fn get(url: &str) -> io::Result<Vec<u8>> {
    let encrypted = url.starts_with("https:");
    let mut config = ureq::Agent::config_builder()
        .timeout_global(Some(TIME_MAX))
        .max_redirects(0)
        .http_status_as_error(false)
        .user_agent(concat!("tollgate/", env!("CARGO_PKG_VERSION")));
    if encrypted {
        let roots: Vec<_> = rustls_native_certs::load_native_certs()
            .certs
            .iter()
            .map(|certificate| Certificate::from_der(certificate).to_owned())
            .collect();
        config = config.tls_config(
            TlsConfig::builder()
                .provider(TlsProvider::Rustls)
                .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()))
                .root_certs(RootCerts::new_with_certs(&roots))
                .build(),
        );
    }
    let agent = config.build().new_agent();
    let mut answer = agent.get(url).call().map_err(ureq::Error::into_io)?;
    if !answer.status().is_success() {
        let status = answer.status().as_u16();
        return Err(io::Error::other(format!("it answers {status}")));
    }
    let body = answer.body_mut().with_config().limit(SIZE_MAX);
    body.read_to_vec().map_err(ureq::Error::into_io)
}
