//! Where a simulation takes place: a store of its own, and policies that nobody configured.

use std::collections::HashSet;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::Stop;
use crate::check::{
    Check, EntityKey, Generation, KeySource, Limits, Mode, OnMissingKey, OnStoreFailure, Policy,
    Scope, Unit,
};
use crate::clock::{Clock, ManualClock};
use crate::config::store_settings;
use crate::decide::{
    Anchor, Cost, Decision, FixedWindow, LeakyBucket, Limit, Rule, SlidingCounter, SlidingLog,
    Timestamp, TokenBucket, TooLarge,
};
use crate::store::limiter::Limiter;
use crate::store::local::LocalStore;
use crate::store::valkey::{Settings, ValkeyStore, key};

/// A simulation asks one thing at a time, of a store that may be far: no reason to hurry.
const TIMEOUT: Duration = Duration::from_secs(5);

/// As many keys as a trace is likely to have, and more.
const MAX_KEYS: usize = 10_000_000;

/// Where usage is kept.
#[derive(Clone, Debug)]
pub(super) enum StoreChoice {
    Local,
    Valkey(Settings),
}

impl FromStr for StoreChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "local" {
            return Ok(Self::Local);
        }
        store_settings(text, TIMEOUT).map(Self::Valkey)
    }
}

/// A store of the simulation's own, at whose clock `clock` is, if it is virtual.
pub(super) struct Stage {
    pub(super) limiter: Limiter,
    pub(super) clock: ManualClock,
    /// What the keys begin with: nobody else's do.
    pub(super) prefix: Arc<str>,
    /// The shared store, and what was kept there, to be taken away again.
    settings: Option<Settings>,
    kept: Mutex<HashSet<String>>,
    /// Ends the connection when it is dropped.
    _stop: watch::Sender<bool>,
}

impl Stage {
    /// Time stands still until [`Stage::decide`] says when it is.
    pub(super) async fn virtual_time(store: &StoreChoice) -> Result<Self, Stop> {
        let clock = ManualClock::default();
        Self::open(store, Some(clock)).await
    }

    /// Time is the store's own.
    pub(super) async fn real_time(settings: &Settings) -> Result<Self, Stop> {
        Self::open(&StoreChoice::Valkey(settings.clone()), None).await
    }

    async fn open(store: &StoreChoice, clock: Option<ManualClock>) -> Result<Self, Stop> {
        let prefix: Arc<str> = format!("tollgate-simulate-{:08x}", fastrand::u32(..)).into();
        let virtual_clock = clock.clone().map(Clock::Manual);
        let (stop, stopped) = watch::channel(false);
        let shared = match store {
            StoreChoice::Local => None,
            StoreChoice::Valkey(settings) => {
                let (shared, connector) =
                    ValkeyStore::new(settings.clone(), Arc::clone(&prefix), virtual_clock.clone());
                tokio::spawn(connector.run(stopped));
                let connected = async {
                    while !shared.is_up() {
                        sleep(Duration::from_millis(5)).await;
                    }
                };
                timeout(TIMEOUT, connected).await.map_err(|_| {
                    Stop::Failed(shared.last_error().map_or_else(
                        || format!("no connection to {}", settings.address),
                        |error| format!("{}: {error}", settings.address),
                    ))
                })?;
                Some(shared)
            }
        };
        let max_keys = NonZeroUsize::new(MAX_KEYS).unwrap_or(NonZeroUsize::MIN);
        let local = LocalStore::new(max_keys, virtual_clock.unwrap_or_else(Clock::steady));
        Ok(Self {
            limiter: Limiter::new(local, shared),
            clock: clock.unwrap_or_default(),
            prefix,
            settings: match store {
                StoreChoice::Local => None,
                StoreChoice::Valkey(settings) => Some(settings.clone()),
            },
            kept: Mutex::default(),
            _stop: stop,
        })
    }

    fn kept(&self) -> MutexGuard<'_, HashSet<String>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The key that keeps what `policy` has counted for `entity`.
    pub(super) fn key(&self, policy: &Policy, entity: EntityKey) -> String {
        key::key(&self.prefix, &check(policy, entity, 0))
    }

    /// Takes away what was kept in a shared store; it would expire by itself, but only in a day.
    pub(super) async fn clean_up(&self) -> Result<(), Stop> {
        let Some(settings) = &self.settings else {
            return Ok(());
        };
        let keys: Vec<_> = self.kept().drain().collect();
        let mut connection = settings.connect().await?;
        for some in keys.chunks(1000) {
            let _: u64 = redis::cmd("UNLINK")
                .arg(some)
                .query_async(&mut connection)
                .await?;
        }
        Ok(())
    }

    /// Decides one request, at `time_ms` if the stage has virtual time.
    pub(super) async fn decide(
        &self,
        policy: &Policy,
        entity: EntityKey,
        time_ms: u64,
        cost: u64,
    ) -> Result<Decision, Stop> {
        self.clock
            .set(Timestamp::from_micros(time_ms.saturating_mul(1000)));
        let check = check(policy, entity, cost);
        if self.settings.is_some() {
            self.kept().insert(key::key(&self.prefix, &check));
        }
        let outcome = self.limiter.decide(&[check]).await;
        match (outcome.rulings.first(), outcome.failure) {
            (_, Some(failure)) => Err(Stop::Failed(format!(
                "the store gave no decision: {failure}"
            ))),
            (Some(ruling), None) => Ok(ruling.decision),
            (None, None) => Err(Stop::Failed("the store gave no decision".to_owned())),
        }
    }
}

fn check(policy: &Policy, entity: EntityKey, cost: u64) -> Check<'_> {
    Check {
        policy,
        limits: &policy.limits,
        rule: &policy.limits.rule,
        entity,
        cost: Cost::new(cost),
        shadow: false,
    }
}

/// The five kinds, at `count` per `window_ms`.
pub(super) fn five_kinds(count: u64, window_ms: u64) -> Result<[Policy; 5], Stop> {
    let too_large = |error: TooLarge| Stop::Failed(error.to_string());
    let nonzero = |number| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN);
    let limit = Limit {
        count: nonzero(count),
        window_us: nonzero(window_ms.saturating_mul(1000)),
    };
    let burst = limit.count;
    let rules = [
        Rule::FixedWindow(FixedWindow::new(limit, Anchor::Epoch).map_err(too_large)?),
        Rule::SlidingLog(SlidingLog::new(limit).map_err(too_large)?),
        Rule::SlidingCounter(SlidingCounter::new(limit, false).map_err(too_large)?),
        Rule::TokenBucket(TokenBucket::new(limit, burst).map_err(too_large)?),
        Rule::LeakyBucket(LeakyBucket::new(limit, burst, None).map_err(too_large)?),
    ];
    Ok(rules.map(policy))
}

/// A policy around a rule: counted in the store, and a failure of that is one.
fn policy(rule: Rule) -> Policy {
    Policy {
        name: rule.kind().into(),
        index: 0,
        generation: Generation(1),
        limits: Arc::new(Limits::new(rule, NonZeroU32::MIN)),
        uneven: Arc::default(),
        key: Box::new([KeySource::Global]),
        on_missing_key: OnMissingKey::Skip,
        preflights: false,
        on_store_failure: OnStoreFailure::Allow,
        penalty: None,
        lease: None,
        outcomes: None,
        given_back: false,
        scope: Scope::Shared,
        mode: Mode::Enforce,
        unit: Unit::Requests,
        reject: 0,
        advertise: false,
    }
}

/// An entity for a key of a trace.
pub(super) fn entity(key: &str) -> EntityKey {
    let hash = blake3::hash(key.as_bytes());
    let mut bytes = [0; 16];
    for (byte, hashed) in bytes.iter_mut().zip(hash.as_bytes()) {
        *byte = *hashed;
    }
    EntityKey(bytes)
}
