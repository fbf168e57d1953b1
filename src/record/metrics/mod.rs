//! What Prometheus sees. Labels are names of the configuration or variants of closed enums, resolved when the
//! configuration is loaded; nothing that a client sent becomes one.

mod families;
mod labels;
mod route;

use std::sync::Arc;

use prometheus::{Histogram, IntCounter, IntGauge};

pub use families::Families;
pub use labels::{CodeClass, Fault, Proof, Proven, Verdict};
pub use route::RouteMetrics;

use crate::check::{KeySource, Limits, Plans, Policy};
use families::TIER;

/// The route label of requests that no route matched.
const UNMATCHED: &str = "_unmatched";

/// A route as metrics know it.
#[derive(Debug)]
pub struct RouteLabels<'a> {
    /// Its name.
    pub name: &'a str,
    /// Each policy that its list names, once.
    pub policies: Vec<&'a Policy>,
}

/// Every series there is, as one configuration needs them. A later configuration's share the registry, so that what
/// both have goes on counting.
#[derive(Debug)]
pub struct Metrics {
    families: Arc<Families>,
    routes: Vec<RouteMetrics>,
    unmatched: RouteMetrics,
    policies: Vec<PolicyMetrics>,
    upstreams: Vec<UpstreamMetrics>,
    /// The listeners whose certificates are told of.
    certificates: Vec<Box<str>>,
}

/// What a configuration has that series are made for.
#[derive(Debug)]
pub struct Labels<'a> {
    /// The routes, by their index.
    pub routes: Vec<RouteLabels<'a>>,
    /// The policies, by their index.
    pub policies: &'a [Arc<Policy>],
    /// What tiers put in the place of policies' limits.
    pub plans: &'a Plans,
    /// The upstreams, by their index.
    pub upstreams: Vec<UpstreamLabels<'a>>,
    /// The listeners that show a certificate, and until when that is good, in seconds since the epoch.
    pub certificates: Vec<(&'a str, i64)>,
    /// Whether there is a shared store.
    pub shared: bool,
}

/// An upstream as metrics know it.
#[derive(Debug)]
pub struct UpstreamLabels<'a> {
    /// Its name.
    pub name: &'a str,
    /// The servers that are checked.
    pub checked: Vec<&'a str>,
}

/// The series of a policy.
#[derive(Debug)]
pub struct PolicyMetrics {
    name: Box<str>,
    /// The tiers that have a limit of their own.
    tiers: Vec<Arc<str>>,
    /// Units charged.
    pub units: IntCounter,
    /// Requests whose cost nobody said.
    pub cost_missing: IntCounter,
    /// Decisions that left at most a fifth.
    pub near_limit: IntCounter,
    /// Penalties that began.
    pub penalties: IntCounter,
    /// How long requests waited for their turn.
    pub queue_wait: Histogram,
    /// Requests that wait now.
    pub queue_depth: IntGauge,
    /// Units in flight, of concurrency that counts everybody together.
    pub in_use: Option<IntGauge>,
}

/// The series of an upstream.
#[derive(Debug)]
pub struct UpstreamMetrics {
    name: Box<str>,
    healthy: Vec<(Box<str>, IntGauge)>,
    by_class: Vec<(IntCounter, Histogram)>,
    /// Its own 429 and 503.
    pub throttled: IntCounter,
    /// Rate limit fields of its own that nobody can parse.
    pub header_malformed: IntCounter,
}

impl Metrics {
    /// Every series of this configuration, at zero; `causes` are the names of the store's failures, `spared` of what
    /// spares asking it.
    ///
    /// # Errors
    ///
    /// When two names collide, which is a mistake in this module.
    pub fn new(labels: &Labels<'_>, causes: &[&str], spared: &[&str]) -> prometheus::Result<Self> {
        Ok(Self::of(Arc::new(Families::new(causes, spared)?), labels))
    }

    /// The series of another configuration, in the same registry. [`Metrics::forget`] then takes away what is gone.
    #[must_use]
    pub fn renewed(&self, labels: &Labels<'_>) -> Self {
        Self::of(Arc::clone(&self.families), labels)
    }

    fn of(families: Arc<Families>, labels: &Labels<'_>) -> Self {
        let unmatched = RouteLabels {
            name: UNMATCHED,
            policies: Vec::new(),
        };
        let route = |route: &RouteLabels<'_>| RouteMetrics::new(&families, route, labels.shared);
        Self {
            routes: labels.routes.iter().map(route).collect(),
            unmatched: route(&unmatched),
            policies: labels
                .policies
                .iter()
                .map(|policy| PolicyMetrics::new(&families, policy, labels.plans))
                .collect(),
            upstreams: labels
                .upstreams
                .iter()
                .map(|upstream| UpstreamMetrics::new(&families, upstream))
                .collect(),
            certificates: labels
                .certificates
                .iter()
                .map(|(listener, until_s)| {
                    let expiry = &families.certificate_expiry;
                    expiry.with_label_values(&[listener]).set(*until_s);
                    (*listener).into()
                })
                .collect(),
            families,
        }
    }

    /// Takes away the series that only the earlier configuration had.
    pub fn forget(&self, earlier: &Self) {
        for old in &earlier.routes {
            old.forget(
                &self.families,
                self.routes.iter().find(|new| new.name() == old.name()),
            );
        }
        for old in &earlier.policies {
            let stays = self.policies.iter().find(|new| new.name == old.name);
            if stays.is_none() {
                self.families.forget_policy(&old.name);
            }
            let has = |tier| stays.is_some_and(|new| new.tiers.contains(tier));
            for tier in old.tiers.iter().filter(|tier| !has(tier)) {
                self.families.forget_limit(&old.name, tier);
            }
        }
        for old in &earlier.upstreams {
            let new = self.upstreams.iter().find(|new| new.name == old.name);
            if new.is_none() {
                self.families.forget_upstream(&old.name);
            }
            for (server, _) in &old.healthy {
                if new.is_none_or(|new| new.healthy_server(server).is_none()) {
                    self.families.forget_server(&old.name, server);
                }
            }
        }
        for old in &earlier.certificates {
            if !self.certificates.contains(old) {
                self.families.forget_certificate(old);
            }
        }
    }

    /// The series that belong to no route, policy or upstream.
    #[must_use]
    pub const fn families(&self) -> &Arc<Families> {
        &self.families
    }

    /// The series of a route; of `None` those of requests that no route matched.
    #[must_use]
    pub fn route(&self, index: Option<usize>) -> &RouteMetrics {
        index
            .and_then(|index| self.routes.get(index))
            .unwrap_or(&self.unmatched)
    }

    /// The series of a policy.
    #[must_use]
    pub fn policy(&self, index: usize) -> Option<&PolicyMetrics> {
        self.policies.get(index)
    }

    /// The series of an upstream.
    #[must_use]
    pub fn upstream(&self, index: usize) -> Option<&UpstreamMetrics> {
        self.upstreams.get(index)
    }
}

impl PolicyMetrics {
    fn new(families: &Families, policy: &Policy, plans: &Plans) -> Self {
        let name = &*policy.name;
        let tell = |tier: &str, limits: &Limits| {
            let count = limits.rule.count().get();
            let gauge = families.limits.with_label_values(&[name, tier]);
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        };
        tell(TIER, &policy.limits);
        let tiers = plans.tiers.iter().filter_map(|(tier, changes)| {
            tell(tier, &changes.of(policy.index)?.limits);
            Some(Arc::clone(tier))
        });
        Self {
            name: name.into(),
            tiers: tiers.collect(),
            units: families.units.with_label_values(&[name]),
            cost_missing: families.costs_missing.with_label_values(&[name]),
            near_limit: families.near_limit.with_label_values(&[name]),
            penalties: families.penalties.with_label_values(&[name]),
            queue_wait: families.queue_waits.with_label_values(&[name]),
            queue_depth: families.queue_depths.with_label_values(&[name]),
            in_use: (policy.limits.rule.lends() && *policy.key == [KeySource::Global])
                .then(|| families.in_use.with_label_values(&[name])),
        }
    }
}

impl UpstreamMetrics {
    fn new(families: &Families, upstream: &UpstreamLabels<'_>) -> Self {
        let name = upstream.name;
        let healthy = |server: &&str| {
            let gauge = families
                .upstream_healthy
                .with_label_values(&[name, *server]);
            ((*server).into(), gauge)
        };
        Self {
            name: name.into(),
            healthy: upstream.checked.iter().map(healthy).collect(),
            by_class: CodeClass::ALL
                .iter()
                .map(|class| {
                    let values = &[name, class.as_str()];
                    (
                        families.upstream_requests.with_label_values(values),
                        families.upstream_durations.with_label_values(values),
                    )
                })
                .collect(),
            throttled: families.upstream_throttled.with_label_values(&[name]),
            header_malformed: families.upstream_malformed.with_label_values(&[name]),
        }
    }

    /// Whether a server is healthy; nothing of one that is not checked.
    #[must_use]
    pub fn healthy_server(&self, server: &str) -> Option<&IntGauge> {
        let found = self.healthy.iter().find(|(known, _)| **known == *server);
        found.map(|(_, gauge)| gauge)
    }

    /// Counts an answer.
    pub fn answered(&self, class: CodeClass, seconds: f64) {
        if let Some((requests, duration)) = self.by_class.get(class as usize) {
            requests.inc();
            duration.observe(seconds);
        }
    }
}
