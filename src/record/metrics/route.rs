//! The series of a route: its requests, and what its policies did with them.

use std::sync::{Arc, OnceLock};

use http::Method;
use prometheus::{Histogram, IntCounter, IntCounterVec};

use super::RouteLabels;
use super::families::Families;
use super::labels::Verdict;
use crate::check::{Policy, Scope, Source};

/// The method label of methods that are nobody's standard.
const OTHER: &str = "_OTHER";

const METHODS: [Method; 9] = [
    Method::GET,
    Method::HEAD,
    Method::POST,
    Method::PUT,
    Method::DELETE,
    Method::CONNECT,
    Method::OPTIONS,
    Method::TRACE,
    Method::PATCH,
];

/// Three-digit codes from 100 to 599; what an upstream makes up beyond them counts as 599.
const CODES: usize = 500;

/// The series of a route.
#[derive(Debug)]
pub struct RouteMetrics {
    name: Box<str>,
    requests: IntCounterVec,
    /// Counters by method, then code; each made when first met.
    by_method: [OnceLock<ByCode>; METHODS.len() + 1],
    duration: Histogram,
    decisions: Vec<DecisionMetrics>,
}

type ByCode = Box<[OnceLock<IntCounter>]>;

#[derive(Debug)]
struct DecisionMetrics {
    policy: Arc<str>,
    index: usize,
    home: Source,
    counters: [[Option<IntCounter>; Source::ALL.len()]; Verdict::ALL.len()],
}

impl RouteMetrics {
    pub(super) fn new(families: &Families, route: &RouteLabels<'_>, shared: bool) -> Self {
        Self {
            name: route.name.into(),
            requests: families.requests.clone(),
            by_method: std::array::from_fn(|_| OnceLock::new()),
            duration: families.durations.with_label_values(&[route.name]),
            decisions: route
                .policies
                .iter()
                .map(|policy| DecisionMetrics::new(families, route.name, policy, shared))
                .collect(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Takes away the series that `later`, the route of the same name in a later configuration, does not have.
    pub(super) fn forget(&self, families: &Families, later: Option<&Self>) {
        for gone in &self.decisions {
            let stays = later.is_some_and(|later| {
                later
                    .decisions
                    .iter()
                    .any(|known| known.policy == gone.policy)
            });
            if !stays {
                gone.forget(families, &self.name);
            }
        }
        if later.is_none() {
            let _ = families.durations.remove_label_values(&[&*self.name]);
            for (slot, codes) in self.by_method.iter().enumerate() {
                let method = METHODS.get(slot).map_or(OTHER, Method::as_str);
                let made = codes
                    .get()
                    .into_iter()
                    .flat_map(|codes| codes.iter().enumerate());
                for (code, _) in made.filter(|(_, counter)| counter.get().is_some()) {
                    let code = (code + 100).to_string();
                    let _ = families
                        .requests
                        .remove_label_values(&[&*self.name, method, &code]);
                }
            }
        }
    }

    /// Counts a request.
    pub fn request(&self, method: &str, status: u16, seconds: f64) {
        let slot = METHODS
            .iter()
            .position(|known| known.as_str() == method)
            .unwrap_or(METHODS.len());
        let code = usize::from(status.clamp(100, 599));
        let by_code = self
            .by_method
            .get(slot)
            .map(|codes| codes.get_or_init(|| (0..CODES).map(|_| OnceLock::new()).collect()));
        if let Some(counter) = by_code.and_then(|codes| codes.get(code - 100)) {
            counter
                .get_or_init(|| {
                    let method = METHODS.get(slot).map_or(OTHER, Method::as_str);
                    self.requests
                        .with_label_values(&[&*self.name, method, &code.to_string()])
                })
                .inc();
        }
        self.duration.observe(seconds);
    }

    /// Counts what a policy did; `source` is where, and by default where the policy counts.
    pub fn decision(&self, policy: usize, verdict: Verdict, source: Option<Source>) {
        let Some(metrics) = self.decisions.iter().find(|known| known.index == policy) else {
            return;
        };
        let counter = |source: Source| {
            let by_source = metrics.counters.get(verdict as usize)?;
            by_source.get(source as usize)?.as_ref()
        };
        // What has no series of its own is counted at home.
        let there = source.and_then(counter);
        if let Some(counter) = there.or_else(|| counter(metrics.home)) {
            counter.inc();
        }
    }
}

impl DecisionMetrics {
    /// Takes away all of its series.
    fn forget(&self, families: &Families, route: &str) {
        for verdict in Verdict::ALL {
            for source in Source::ALL {
                let _ = families.decisions.remove_label_values(&[
                    route,
                    &*self.policy,
                    verdict.as_str(),
                    source.as_str(),
                ]);
            }
        }
    }

    /// The counters that can ever count: of the policy's home, and of the fallback where there is one.
    fn new(families: &Families, route: &str, policy: &Policy, shared: bool) -> Self {
        let home = if shared && policy.scope == Scope::Shared {
            Source::Store
        } else {
            Source::Local
        };
        let counters = Verdict::ALL.map(|verdict| {
            Source::ALL.map(|source| {
                let counts = source == home
                    || (source == Source::Fallback && home == Source::Store && !verdict.is_idle());
                counts.then(|| {
                    families.decisions.with_label_values(&[
                        route,
                        &*policy.name,
                        verdict.as_str(),
                        source.as_str(),
                    ])
                })
            })
        });
        Self {
            policy: Arc::clone(&policy.name),
            index: policy.index,
            home,
            counters,
        }
    }
}
