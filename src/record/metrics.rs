//! What Prometheus sees. Labels are names of the configuration or variants of closed enums, resolved when the
//! configuration is loaded; nothing that a client sent becomes one.

use std::sync::{Arc, OnceLock};

use http::{Method, StatusCode};
use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

use crate::check::{Policy, Scope, Source};

/// The route label of requests that no route matched.
const UNMATCHED: &str = "_unmatched";

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

const OVERHEAD_BUCKETS: [f64; 10] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
];
const DURATION_BUCKETS: [f64; 12] = [
    0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
const STORE_BUCKETS: [f64; 9] = [
    0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
];
const QUEUE_BUCKETS: [f64; 10] = [0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// What a policy did with a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It let it pass.
    Allow,
    /// It denied it.
    Deny,
    /// It would have.
    ShadowDeny,
    /// It did not apply.
    Skip,
}

impl Verdict {
    const ALL: [Self; 4] = [Self::Allow, Self::Deny, Self::ShadowDeny, Self::Skip];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::ShadowDeny => "shadow_deny",
            Self::Skip => "skip",
        }
    }
}

/// The class of an upstream's answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CodeClass {
    /// 1xx.
    Informational,
    /// 2xx.
    Success,
    /// 3xx.
    Redirection,
    /// 4xx.
    ClientError,
    /// 5xx, and what is no status at all.
    ServerError,
    /// There was no answer.
    None,
}

impl CodeClass {
    const ALL: [Self; 6] = [
        Self::Informational,
        Self::Success,
        Self::Redirection,
        Self::ClientError,
        Self::ServerError,
        Self::None,
    ];

    /// The class of this status.
    #[must_use]
    pub fn of(status: StatusCode) -> Self {
        match status.as_u16() / 100 {
            1 => Self::Informational,
            2 => Self::Success,
            3 => Self::Redirection,
            4 => Self::ClientError,
            _ => Self::ServerError,
        }
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Informational => "1xx",
            Self::Success => "2xx",
            Self::Redirection => "3xx",
            Self::ClientError => "4xx",
            Self::ServerError => "5xx",
            Self::None => "none",
        }
    }
}

/// A route as metrics know it.
#[derive(Debug)]
pub struct RouteLabels<'a> {
    /// Its name.
    pub name: &'a str,
    /// Each policy that its list names, once.
    pub policies: Vec<&'a Policy>,
}

/// Every series there is.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    routes: Vec<RouteMetrics>,
    unmatched: RouteMetrics,
    policies: Vec<PolicyMetrics>,
    upstreams: Vec<UpstreamMetrics>,
    /// Requests being served.
    pub in_flight: IntGauge,
    /// Our own time in a request.
    pub overhead: Histogram,
    /// How long the shared store took to decide.
    pub store_check: Histogram,
    /// Failures of the stores, in the order of [`crate::store::Cause::ALL`] as their names were given.
    store_errors: Vec<IntCounter>,
    /// Whether the shared store answers.
    pub store_up: IntGauge,
    /// Entries of the store in process.
    pub local_keys: IntGauge,
    /// Lines of the access log that were dropped.
    pub access_log_suppressed: IntCounter,
}

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

/// The series of a policy.
#[derive(Debug)]
pub struct PolicyMetrics {
    /// Units charged.
    pub units: IntCounter,
    /// Decisions that left at most a fifth.
    pub near_limit: IntCounter,
    /// How long requests waited for their turn.
    pub queue_wait: Histogram,
    /// Requests that wait now.
    pub queue_depth: IntGauge,
}

/// The series of an upstream.
#[derive(Debug)]
pub struct UpstreamMetrics {
    by_class: Vec<(IntCounter, Histogram)>,
    /// Its own 429 and 503.
    pub throttled: IntCounter,
    /// Rate limit fields of its own that nobody can parse.
    pub header_malformed: IntCounter,
}

impl Metrics {
    /// Every series of this configuration, at zero.
    ///
    /// `shared` says whether there is a shared store; `causes` are the names of the store's failures.
    ///
    /// # Errors
    ///
    /// When two names collide, which a checked configuration does not let happen.
    pub fn new(
        routes: &[RouteLabels<'_>],
        policies: &[Arc<Policy>],
        upstreams: &[Arc<str>],
        causes: &[&str],
        shared: bool,
    ) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let make = Maker(&registry);
        let requests = make.counters(
            "tollgate_http_requests_total",
            "Requests by route, method and status.",
            &["route", "method", "code"],
        )?;
        let durations = make.histograms(
            "tollgate_http_request_duration_seconds",
            "Duration of whole requests.",
            &["route"],
            &DURATION_BUCKETS,
        )?;
        let decisions = make.counters(
            "tollgate_policy_decisions_total",
            "Decisions by route, policy, outcome and where they were made.",
            &["route", "policy", "decision", "source"],
        )?;
        let families = RouteFamilies {
            requests,
            durations,
            decisions,
            shared,
        };
        let metrics = Self {
            routes: routes.iter().map(|route| families.route(route)).collect(),
            unmatched: families.route(&RouteLabels {
                name: UNMATCHED,
                policies: Vec::new(),
            }),
            policies: policy_metrics(&make, policies)?,
            upstreams: upstream_metrics(&make, upstreams)?,
            in_flight: make.gauge("tollgate_http_in_flight_requests", "Requests being served.")?,
            overhead: make.histogram(
                "tollgate_overhead_seconds",
                "The gateway's own time in a request, without queue and upstream.",
                &OVERHEAD_BUCKETS,
            )?,
            store_check: make
                .histograms(
                    "tollgate_store_request_duration_seconds",
                    "How long the shared store took.",
                    &["op"],
                    &STORE_BUCKETS,
                )?
                .with_label_values(&["check"]),
            store_errors: {
                let errors = make.counters(
                    "tollgate_store_errors_total",
                    "Decisions that a store did not give, by cause.",
                    &["kind"],
                )?;
                causes
                    .iter()
                    .map(|cause| errors.with_label_values(&[cause]))
                    .collect()
            },
            store_up: make.gauge("tollgate_store_up", "Whether the store answers.")?,
            local_keys: make.gauge(
                "tollgate_store_local_keys",
                "Entries of the store in process.",
            )?,
            access_log_suppressed: make
                .counters(
                    "tollgate_access_log_suppressed_total",
                    "Lines of the access log that were dropped.",
                    &[],
                )?
                .with_label_values::<&str>(&[]),
            registry: registry.clone(),
        };
        build_info(&make)?;
        config_loaded(&make)?;
        Ok(metrics)
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

    /// Counts a failure of a store, by its position among the causes.
    pub fn store_failed(&self, cause: usize) {
        if let Some(counter) = self.store_errors.get(cause) {
            counter.inc();
        }
    }

    /// The text exposition, version 0.0.4.
    ///
    /// # Errors
    ///
    /// As the encoder.
    pub fn encode(&self) -> prometheus::Result<Vec<u8>> {
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut text)?;
        Ok(text)
    }
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
        let source = source.unwrap_or(metrics.home);
        if let Some(Some(counter)) = metrics
            .counters
            .get(verdict as usize)
            .and_then(|by_source| by_source.get(source as usize))
        {
            counter.inc();
        }
    }
}

impl UpstreamMetrics {
    /// Counts an answer.
    pub fn answered(&self, class: CodeClass, seconds: f64) {
        if let Some((requests, duration)) = self.by_class.get(class as usize) {
            requests.inc();
            duration.observe(seconds);
        }
    }
}

/// What the series of all routes are made of.
struct RouteFamilies {
    requests: IntCounterVec,
    durations: HistogramVec,
    decisions: IntCounterVec,
    shared: bool,
}

impl RouteFamilies {
    fn route(&self, route: &RouteLabels<'_>) -> RouteMetrics {
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

fn policy_metrics(
    make: &Maker<'_>,
    policies: &[Arc<Policy>],
) -> prometheus::Result<Vec<PolicyMetrics>> {
    let units = make.counters("tollgate_policy_units_total", "Units charged.", &["policy"])?;
    let near_limit = make.counters(
        "tollgate_policy_near_limit_total",
        "Decisions after which at most a fifth is left.",
        &["policy"],
    )?;
    let waits = make.histograms(
        "tollgate_queue_wait_seconds",
        "How long requests waited for their turn.",
        &["policy"],
        &QUEUE_BUCKETS,
    )?;
    let depths = make.gauges(
        "tollgate_queue_depth",
        "Requests that wait for their turn.",
        &["policy"],
    )?;
    let limits = make.gauges(
        "tollgate_policy_limit",
        "Configured units per window.",
        &["policy", "tier"],
    )?;
    Ok(policies
        .iter()
        .map(|policy| {
            let name = &*policy.name;
            limits
                .with_label_values(&[name, "default"])
                .set(i64::try_from(policy.rule.limit().count.get()).unwrap_or(i64::MAX));
            PolicyMetrics {
                units: units.with_label_values(&[name]),
                near_limit: near_limit.with_label_values(&[name]),
                queue_wait: waits.with_label_values(&[name]),
                queue_depth: depths.with_label_values(&[name]),
            }
        })
        .collect())
}

fn upstream_metrics(
    make: &Maker<'_>,
    upstreams: &[Arc<str>],
) -> prometheus::Result<Vec<UpstreamMetrics>> {
    let labels = &["upstream", "code_class"];
    let requests = make.counters(
        "tollgate_upstream_requests_total",
        "Requests forwarded, by the class of the answer.",
        labels,
    )?;
    let durations = make.histograms(
        "tollgate_upstream_duration_seconds",
        "How long the upstream took to its last byte.",
        labels,
        &DURATION_BUCKETS,
    )?;
    let throttled = make.counters(
        "tollgate_upstream_throttled_total",
        "Answers 429 and 503 of the upstream's own.",
        &["upstream"],
    )?;
    let malformed = make.counters(
        "tollgate_upstream_header_malformed_total",
        "Rate limit fields of the upstream that could not be parsed.",
        &["upstream"],
    )?;
    Ok(upstreams
        .iter()
        .map(|name| UpstreamMetrics {
            by_class: CodeClass::ALL
                .iter()
                .map(|class| {
                    let values = &[&**name, class.as_str()];
                    (
                        requests.with_label_values(values),
                        durations.with_label_values(values),
                    )
                })
                .collect(),
            throttled: throttled.with_label_values(&[&**name]),
            header_malformed: malformed.with_label_values(&[&**name]),
        })
        .collect())
}

fn build_info(make: &Maker<'_>) -> prometheus::Result<()> {
    make.gauges(
        "tollgate_build_info",
        "What the binary was built from and with.",
        &["version", "revision", "rustc"],
    )?
    .with_label_values(&[
        env!("CARGO_PKG_VERSION"),
        env!("TOLLGATE_REVISION"),
        env!("TOLLGATE_RUSTC"),
    ])
    .set(1);
    Ok(())
}

fn config_loaded(make: &Maker<'_>) -> prometheus::Result<()> {
    make.gauge(
        "tollgate_config_last_reload_successful",
        "Whether the last configuration was taken.",
    )?
    .set(1);
    let now_s = crate::clock::wall_now_us() / 1_000_000;
    make.gauge(
        "tollgate_config_last_reload_success_timestamp_seconds",
        "When the last configuration was taken.",
    )?
    .set(i64::try_from(now_s).unwrap_or(i64::MAX));
    Ok(())
}

/// Makes families and registers them.
struct Maker<'a>(&'a Registry);

impl Maker<'_> {
    fn register<C: Collector + Clone + 'static>(&self, family: C) -> prometheus::Result<C> {
        self.0.register(Box::new(family.clone()))?;
        Ok(family)
    }

    fn counters(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> prometheus::Result<IntCounterVec> {
        self.register(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    fn gauges(&self, name: &str, help: &str, labels: &[&str]) -> prometheus::Result<IntGaugeVec> {
        self.register(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    fn gauge(&self, name: &str, help: &str) -> prometheus::Result<IntGauge> {
        self.register(IntGauge::new(name, help)?)
    }

    fn histograms(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
        buckets: &[f64],
    ) -> prometheus::Result<HistogramVec> {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register(HistogramVec::new(opts, labels)?)
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> prometheus::Result<Histogram> {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        self.register(Histogram::with_opts(opts)?)
    }
}
