//! What Prometheus sees. Labels are names of the configuration or variants of closed enums, resolved when the
//! configuration is loaded; nothing that a client sent becomes one.

mod labels;
mod route;

use std::sync::Arc;

use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

pub use labels::{CodeClass, Verdict};
use route::RouteFamilies;
pub use route::RouteMetrics;

use crate::check::Policy;

/// The route label of requests that no route matched.
const UNMATCHED: &str = "_unmatched";

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

impl UpstreamMetrics {
    /// Counts an answer.
    pub fn answered(&self, class: CodeClass, seconds: f64) {
        if let Some((requests, duration)) = self.by_class.get(class as usize) {
            requests.inc();
            duration.observe(seconds);
        }
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
