//! What single callers were granted for a while: kept in the store, and known to every gateway within a second.
//!
//! All grants are one hash, which `lua/grant.lua` writes, with a version. Each gateway asks for that version a few
//! times a second, and reads the rest where it has changed: a decision costs no more for it. While the store is away,
//! what is known stays in force until it ends.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use redis::{
    ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value, from_redis_value,
};
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

use super::node::Link;
use super::topology::slot_of_tag;
use super::{Servers, ValkeyStore};
use crate::check::grant::Grant;
use crate::check::{EntityKey, Granted, Limits, NewLimit, Policy};
use crate::clock::{micros, monotonic_now};
use crate::decide::{Limit, Timestamp};

/// How often it is asked whether there are others.
const EVERY: Duration = Duration::from_millis(300);

/// How long the store's clock is reckoned with, from one look at it.
const CLOCK_LASTS: Duration = Duration::from_secs(60);

/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most grants that there are at once.
pub const GRANTS_MAX: usize = 10_000;

/// What stands in braces in the key of all grants: it has one slot of a cluster.
const TAG: &str = "grants";

/// What was granted, and when it is by the store's clock.
#[derive(Debug)]
pub struct InForce {
    /// What was granted.
    pub granted: Granted,
    heard_at: Instant,
    store_then: Timestamp,
}

/// The grants, as far as they are known here.
#[derive(Debug)]
pub(super) struct Grants {
    servers: Servers,
    key: String,
    known: Mutex<Known>,
    in_force: ArcSwapOption<InForce>,
    /// Whether it was said that they cannot be read.
    told: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    policies: Vec<Arc<Policy>>,
    /// The version that was read last, and when that was.
    version: Option<String>,
    heard: Option<(Instant, Timestamp)>,
    raw: Vec<Raw>,
}

/// A grant as it is kept.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Raw {
    entity: EntityKey,
    policy: String,
    ends_at: Timestamp,
    limit: NewLimit,
}

impl InForce {
    /// What the store's clock shows at `at`, or somewhat later than that: a grant never lasts too long.
    #[must_use]
    pub fn now(&self, at: Instant) -> Timestamp {
        let since = micros(at.saturating_duration_since(self.heard_at));
        Timestamp::from_micros(self.store_then.as_micros().saturating_add(since))
    }
}

impl ValkeyStore {
    /// What was granted, if anything was.
    #[must_use]
    pub fn granted(&self) -> Option<Arc<InForce>> {
        self.grants.in_force.load_full()
    }

    /// From now on these policies are what grants are about.
    pub fn set_policies(&self, policies: &[Arc<Policy>]) {
        self.grants.set_policies(policies);
    }
}

impl Grants {
    pub(super) fn new(servers: Servers, prefix: &str) -> Self {
        Self {
            servers,
            key: format!("{prefix}:{{{TAG}}}"),
            known: Mutex::default(),
            in_force: ArcSwapOption::empty(),
            told: AtomicBool::new(false),
        }
    }

    /// The key of all of them, and its slot.
    pub(super) fn key(&self) -> (&str, u16) {
        (&self.key, slot_of_tag(TAG.as_bytes()))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_policies(&self, policies: &[Arc<Policy>]) {
        let mut known = self.known();
        known.policies = policies.to_vec();
        self.put_in_force(&known, true);
    }

    /// Reads them again and again.
    pub(super) async fn keep_reading(&self) {
        loop {
            sleep(EVERY).await;
            // Whoever keeps the connection finds out what is wrong with it.
            let Some(link) = self.link() else { continue };
            match timeout(PATIENCE, self.read(&link)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) if is_forbidden(&error) => {
                    if !self.told.swap(true, Ordering::Relaxed) {
                        warn!(reason = %error, "grants are not in force: the user may not read them");
                    }
                }
                Ok(Err(error)) => debug!(reason = %error, "grants not read"),
                Err(_) => debug!("grants not read: no answer within {PATIENCE:?}"),
            }
        }
    }

    fn link(&self) -> Option<Arc<Link>> {
        match &self.servers {
            Servers::One(node) => node.link(),
            Servers::Cluster(cluster) => cluster.node_of(self.key().1)?.link(),
        }
    }

    /// Reads them, if there are others than are known.
    pub(super) async fn read(&self, link: &Link) -> RedisResult<()> {
        let mut connection = link.connection.clone();
        let sent_at = monotonic_now();
        let mut look = redis::pipe();
        look.cmd("TIME");
        look.cmd("HLEN").arg(&self.key);
        look.cmd("HGET").arg(&self.key).arg("version");
        let ((seconds, of_second), count, version): ((u64, u64), usize, Option<String>) =
            look.query_async(&mut connection).await?;
        let now =
            Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(of_second));
        let is_known = {
            let known = self.known();
            let is_recent = known
                .heard
                .is_some_and(|(at, _)| sent_at.saturating_duration_since(at) < CLOCK_LASTS);
            known.version == version && (is_recent || version.is_none())
        };
        if is_known {
            return Ok(());
        }
        let mut fields: HashMap<String, String> = HashMap::new();
        // What is more is not ours.
        if count <= GRANTS_MAX + 1 {
            let mut read = Pipeline::new();
            read.cmd("HGETALL").arg(&self.key);
            let (reply,): (Value,) = read.query_async(&mut connection).await?;
            fields = from_redis_value(reply)?;
        }
        let mut known = self.known();
        let version = fields.remove("version");
        let is_news = known.version != version;
        known.version = version;
        known.heard = Some((sent_at, now));
        known.raw = fields
            .iter()
            .filter_map(|(field, value)| Raw::read(field, value))
            .collect();
        self.put_in_force(&known, is_news);
        Ok(())
    }

    /// Makes of what is known what requests look at. What is wrong with it is said once.
    fn put_in_force(&self, known: &Known, is_news: bool) {
        let granted = granted(&known.raw, &known.policies, is_news);
        let (heard_at, store_then) = known
            .heard
            .unwrap_or((monotonic_now(), Timestamp::default()));
        let in_force = (!granted.is_empty()).then(|| {
            Arc::new(InForce {
                granted,
                heard_at,
                store_then,
            })
        });
        self.in_force.store(in_force);
    }
}

/// What the kept grants mean for these policies. What is for others, or does not fit, means nothing.
fn granted(raw: &[Raw], policies: &[Arc<Policy>], is_news: bool) -> Granted {
    let mut granted = Granted::default();
    let mut made: HashMap<(usize, NewLimit), Option<Arc<Limits>>> = HashMap::new();
    for kept in raw {
        let Some(policy) = policies.iter().find(|policy| *policy.name == *kept.policy) else {
            continue;
        };
        let limits = made.entry((policy.index, kept.limit)).or_insert_with(|| {
            match policy.limits.with(kept.limit) {
                Ok(limits) => Some(Arc::new(limits)),
                Err(unfit) => {
                    if is_news {
                        warn!(policy = %policy.name, reason = %unfit, "a grant that does not fit its policy is not in force");
                    }
                    None
                }
            }
        });
        if let Some(limits) = limits {
            let grant = Grant {
                policy: Arc::clone(&policy.name),
                generation: policy.generation,
                limits: Arc::clone(limits),
                ends_at: kept.ends_at,
            };
            granted.add(kept.entity, grant);
        }
    }
    granted
}

/// Whether this user may not do it, however often it is tried.
fn is_forbidden(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
}

/// Who and which policy, as the hash names them.
pub(super) fn field(entity: EntityKey, policy: &Policy) -> String {
    format!("{}:{}", URL_SAFE_NO_PAD.encode(entity.0), policy.name)
}

/// A limit as it stands in the hash.
pub(super) fn limit_text(limit: NewLimit) -> String {
    match limit {
        NewLimit::Rate(Limit { count, window_us }) => format!("{count}/{window_us}"),
        NewLimit::Count(count) => count.to_string(),
    }
}

impl Raw {
    /// Reads a grant; `None` of what we did not write.
    fn read(field: &str, value: &str) -> Option<Self> {
        let (entity, policy) = field.split_once(':')?;
        let entity = URL_SAFE_NO_PAD.decode(entity).ok()?;
        let (ends_at, limit) = value.split_once(' ')?;
        let limit = match limit.split_once('/') {
            Some((count, window_us)) => NewLimit::Rate(Limit {
                count: count.parse().ok()?,
                window_us: window_us.parse().ok()?,
            }),
            None => NewLimit::Count(limit.parse().ok()?),
        };
        Some(Self {
            entity: EntityKey(entity.try_into().ok()?),
            policy: policy.to_owned(),
            ends_at: Timestamp::from_micros(ends_at.parse().ok()?),
            limit,
        })
    }
}
