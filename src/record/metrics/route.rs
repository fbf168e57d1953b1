//! The series of a route: its requests, and what its policies did with them.

use std::sync::OnceLock;

use http::Method;
use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};

use super::RouteLabels;
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
    decisions: Vec<(usize, DecisionMetrics)>,
}

type ByCode = Box<[OnceLock<IntCounter>]>;

#[derive(Debug)]
struct DecisionMetrics {
    home: Source,
    counters: [[Option<IntCounter>; 3]; 4],
}

impl RouteMetrics {
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
        let Some((_, metrics)) = self.decisions.iter().find(|(index, _)| *index == policy) else {
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

/// What the series of all routes are made of.
pub(super) struct RouteFamilies {
    pub(super) requests: IntCounterVec,
    pub(super) durations: HistogramVec,
    pub(super) decisions: IntCounterVec,
    pub(super) shared: bool,
}

impl RouteFamilies {
    pub(super) fn route(&self, route: &RouteLabels<'_>) -> RouteMetrics {
        RouteMetrics {
            name: route.name.into(),
            requests: self.requests.clone(),
            by_method: std::array::from_fn(|_| OnceLock::new()),
            duration: self.durations.with_label_values(&[route.name]),
            decisions: route
                .policies
                .iter()
                .map(|policy| (policy.index, self.policy(route.name, policy)))
                .collect(),
        }
    }

    /// The counters that can ever count: of the policy's home, and of the fallback where there is one.
    fn policy(&self, route: &str, policy: &Policy) -> DecisionMetrics {
        let home = if self.shared && policy.scope == Scope::Shared {
            Source::Store
        } else {
            Source::Local
        };
        let counters = Verdict::ALL.map(|verdict| {
            Source::ALL.map(|source| {
                let counts = source == home
                    || (source == Source::Fallback
                        && home == Source::Store
                        && verdict != Verdict::Skip);
                counts.then(|| {
                    self.decisions.with_label_values(&[
                        route,
                        &*policy.name,
                        verdict.as_str(),
                        source.as_str(),
                    ])
                })
            })
        });
        DecisionMetrics { home, counters }
    }
}
