//! What is known of a request while it is served. Dropped on every way out, a panic's too: whatever must be given
//! back is a guard in here.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderValue;
use prometheus::IntGauge;

use super::gateway::Gateway;
use super::settle::Settling;
use super::slot::Slot;
use super::wait::Place;
use crate::check::{Check, EntityKey, Identity, Limits, Policy, Ruling, Source};
use crate::client::Client;
use crate::clock;
use crate::config::Route;
use crate::decide::{Cost, Decision, Rule};
use crate::shed;

/// What is known of a request while it is served.
#[derive(Debug)]
pub struct Context {
    /// What serves it.
    pub gateway: Arc<Gateway>,
    /// When its head was read.
    pub started: Instant,
    /// The same by the wall clock, in microseconds since the epoch.
    pub started_at_us: u64,
    /// Its id.
    pub request_id: HeaderValue,
    /// The other end of the connection.
    pub peer_ip: Option<IpAddr>,
    /// Whether that speaks TLS to us.
    pub encrypted: bool,
    /// Who calls.
    pub client: Client,
    /// Who that is, as far as it is proven.
    pub identity: Identity,
    /// The route it takes.
    pub route: Option<Arc<Route>>,
    /// How long it is to wait, where that was decided before Pingora read it.
    pub admitted: Option<Duration>,
    /// What was decided.
    pub rulings: Vec<Ruled>,
    /// What was charged and is not final.
    pub settling: Settling,
    /// What it was lent for as long as it is in flight.
    pub slots: Vec<Slot>,
    /// Policies whose key was missing.
    pub missing_key: Vec<Arc<Policy>>,
    /// Whether our own answer, not the upstream's, turned it away, and the wait it told.
    pub denied: Option<Denied>,
    /// What was read of its body before it was decided, and is to be sent on before the rest.
    pub body_begun: Option<Bytes>,
    /// Where its body was read before it was decided, how long that took.
    pub awaited_body: Option<Duration>,
    /// Its place among the requests in flight.
    pub load: Option<shed::Place>,
    /// How long it waited in a leaky bucket.
    pub queued: Duration,
    /// Its place among those that wait.
    pub place: Option<Place>,
    /// The gateway's own time, until it was handed on or answered.
    pub own_time: Option<Duration>,
    /// What became of it upstream.
    pub upstream: Forwarding,
    /// The status for the record where none was sent.
    pub unsent_status: u16,
    /// What went wrong.
    pub error: Option<&'static str>,
    /// Counts it as being served.
    _in_flight: Gauged,
}

/// A denial, or a request that was shed.
#[derive(Clone, Copy, Debug)]
pub struct Denied {
    /// Because the gateway is full, and not by a policy.
    pub is_shed: bool,
    /// The `Retry-After` that was told.
    pub retry_after_s: Option<u64>,
}

/// What became of a request upstream.
#[derive(Debug, Default)]
pub struct Forwarding {
    /// When it was handed on.
    pub started: Option<Instant>,
    /// When all of it was.
    pub sent: Option<Instant>,
    /// The server.
    pub server: Option<std::net::SocketAddr>,
    /// How often another server was tried, since one could not be connected to.
    pub retries: usize,
    /// What was answered.
    pub status: Option<http::StatusCode>,
    /// Bytes of the request's body so far.
    pub body_bytes: u64,
}

/// A check that owns what it is about.
#[derive(Clone, Debug)]
pub struct OwnCheck {
    policy: Arc<Policy>,
    limits: Arc<Limits>,
    /// What it was decided by: the rule of the limits, or another in its place.
    rule: Rule,
    entity: EntityKey,
    cost: Cost,
    shadow: bool,
}

impl OwnCheck {
    /// Keeps a check; `policies` are the configuration's.
    #[must_use]
    pub fn new(check: &Check<'_>, policies: &[Arc<Policy>]) -> Option<Self> {
        Some(Self {
            policy: Arc::clone(policies.get(check.policy.index)?),
            limits: Arc::clone(check.limits),
            rule: check.rule.clone(),
            entity: check.entity,
            cost: check.cost,
            shadow: check.shadow,
        })
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The check.
    #[must_use]
    pub fn as_check(&self) -> Check<'_> {
        Check {
            policy: &self.policy,
            limits: &self.limits,
            rule: &self.rule,
            entity: self.entity,
            cost: self.cost,
            shadow: self.shadow,
        }
    }
}

/// A ruling that owns its check.
#[derive(Clone, Debug)]
pub struct Ruled {
    check: OwnCheck,
    decision: Decision,
    source: Source,
    /// What the request took in the end, where that was not known at first.
    spent: Option<Cost>,
}

impl Ruled {
    /// Keeps a ruling; `policies` are the configuration's.
    #[must_use]
    pub fn new(ruling: &Ruling<'_>, policies: &[Arc<Policy>]) -> Option<Self> {
        Some(Self {
            check: OwnCheck::new(&ruling.check, policies)?,
            decision: ruling.decision,
            source: ruling.source,
            spent: None,
        })
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.check.policy
    }

    /// Has its decision tell what `found`, a look at cost 0, finds.
    pub const fn tell_of(&mut self, found: &Decision) {
        self.decision.tell_of(found);
    }

    /// The ruling.
    #[must_use]
    pub fn as_ruling(&self) -> Ruling<'_> {
        Ruling {
            check: self.check.as_check(),
            decision: self.decision,
            source: self.source,
        }
    }
}

impl Context {
    /// A request that begins now.
    #[must_use]
    pub fn new(gateway: Arc<Gateway>) -> Self {
        Self {
            started: clock::monotonic_now(),
            started_at_us: clock::wall_now_us(),
            request_id: HeaderValue::from_static(""),
            peer_ip: None,
            encrypted: false,
            client: Client {
                ip: None,
                through_trusted: false,
            },
            identity: Identity::default(),
            route: None,
            admitted: None,
            rulings: Vec::new(),
            settling: Settling::new(Arc::clone(&gateway)),
            slots: Vec::new(),
            missing_key: Vec::new(),
            denied: None,
            body_begun: None,
            awaited_body: None,
            load: None,
            queued: Duration::ZERO,
            place: None,
            own_time: None,
            upstream: Forwarding::default(),
            unsent_status: 499,
            error: None,
            _in_flight: Gauged::new(&gateway.metrics.families().in_flight),
            gateway,
        }
    }

    /// Its id.
    #[must_use]
    pub fn request_id(&self) -> &str {
        self.request_id.to_str().unwrap_or_default()
    }

    /// The rulings.
    #[must_use]
    pub fn rulings(&self) -> Vec<Ruling<'_>> {
        self.rulings.iter().map(Ruled::as_ruling).collect()
    }

    /// What the request took of a policy in the end.
    pub fn tell_of_spent(&mut self, policy: &Policy, spent: Cost) {
        let mut rulings = self.rulings.iter_mut();
        if let Some(ruled) = rulings.find(|ruled| ruled.policy().index == policy.index) {
            ruled.spent = Some(spent);
        }
    }

    /// What the request took of a policy, as far as that is known; `None` where that is what its check asked for.
    #[must_use]
    pub fn spent(&self, policy: &Policy) -> Option<Cost> {
        let mut rulings = self.rulings.iter();
        let ruled = rulings.find(|ruled| ruled.policy().index == policy.index)?;
        ruled.spent
    }

    /// The gateway's part is done: what follows is the upstream's, or the client's.
    pub fn stop_own_time(&mut self) {
        if self.own_time.is_none() {
            let elapsed = clock::monotonic_now().saturating_duration_since(self.started);
            let of_others = self
                .queued
                .saturating_add(self.awaited_body.unwrap_or_default());
            self.own_time = Some(elapsed.saturating_sub(of_others));
        }
    }
}

/// Counted in a gauge, until it is dropped.
#[derive(Debug)]
pub struct Gauged(IntGauge, i64);

impl Gauged {
    /// One more.
    #[must_use]
    pub fn new(gauge: &IntGauge) -> Self {
        Self::several(gauge, 1)
    }

    /// So many more.
    #[must_use]
    pub fn several(gauge: &IntGauge, units: i64) -> Self {
        gauge.add(units);
        Self(gauge.clone(), units)
    }
}

impl Drop for Gauged {
    fn drop(&mut self) {
        self.0.sub(self.1);
    }
}
