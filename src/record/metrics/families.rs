//! The families of series, registered once, and the series that belong to the whole gateway.

use prometheus::core::Collector;
use prometheus::{
    Encoder, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};

use super::labels::{CodeClass, Fault, Proof, Proven};
use crate::clock::wall_now_us;
use crate::shed::{Priority, Reason};

/// The tier label of a policy's own limit.
pub(super) const TIER: &str = "default";

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

/// Every family, and the series that have no labels of the configuration's.
#[derive(Debug)]
pub struct Families {
    registry: Registry,
    /// Requests being served.
    pub in_flight: IntGauge,
    /// Requests in flight, and those of them that are unanswered.
    pub load_requests: [IntGauge; 2],
    /// How many of each there may be.
    pub load_limits: [IntGauge; 2],
    /// Requests turned away because the gateway was full, by priority and reason.
    shed: [[IntCounter; Reason::ALL.len()]; Priority::ALL.len()],
    /// Connections of clients.
    pub connections: IntGauge,
    /// Those closed since there were too many: in all, and from one address.
    connections_refused: [IntCounter; 2],
    bad_requests: [IntCounter; Fault::ALL.len()],
    identified: [[IntCounter; Proof::ALL.len()]; Proven::ALL.len()],
    keys: [IntGauge; Proven::ALL.len()],
    key_reads: [[IntCounter; 2]; Proven::ALL.len()],
    /// Our own time in a request.
    pub overhead: Histogram,
    /// How long the shared store took to decide.
    pub store_check: Histogram,
    /// How long it took to correct what was charged.
    pub store_settle: Histogram,
    /// Whether the shared store answers.
    pub store_up: IntGauge,
    /// Servers of the shared store that are asked (breaker closed), and that are left alone (open).
    pub store_nodes: [IntGauge; 2],
    /// Gateways that share the store, as far as it is known.
    pub store_instances: IntGauge,
    /// Units in flight here that the shared store counts.
    pub store_slots: IntGauge,
    /// Of these, those that it had lost and was told anew.
    pub store_slots_restored: IntCounter,
    /// Entries of the store in process.
    pub local_keys: IntGauge,
    /// Lines of the access log that were dropped.
    pub access_log_suppressed: IntCounter,
    store_errors: Vec<IntCounter>,
    store_spared: Vec<IntCounter>,
    reloads: [IntCounter; 2],
    reload_successful: IntGauge,
    reloaded_at: IntGauge,
    pub(super) requests: IntCounterVec,
    pub(super) durations: HistogramVec,
    pub(super) decisions: IntCounterVec,
    pub(super) units: IntCounterVec,
    pub(super) costs_missing: IntCounterVec,
    pub(super) near_limit: IntCounterVec,
    pub(super) penalties: IntCounterVec,
    pub(super) queue_waits: HistogramVec,
    pub(super) queue_depths: IntGaugeVec,
    pub(super) in_use: IntGaugeVec,
    pub(super) limits: IntGaugeVec,
    pub(super) upstream_requests: IntCounterVec,
    pub(super) upstream_durations: HistogramVec,
    pub(super) upstream_throttled: IntCounterVec,
    pub(super) upstream_malformed: IntCounterVec,
    pub(super) upstream_healthy: IntGaugeVec,
    pub(super) certificate_expiry: IntGaugeVec,
}

impl Families {
    pub(super) fn new(causes: &[&str], spared: &[&str]) -> prometheus::Result<Self> {
        let registry = Registry::new();
        let make = Maker(&registry);
        let by_class = &["upstream", "code_class"];
        let reloads = make.counters(
            "tollgate_config_reloads_total",
            "Configurations that were read again, by what came of it.",
            &["result"],
        )?;
        let refused = make.counters(
            "tollgate_connections_refused_total",
            "Connections closed at once since there were too many, by which limit.",
            &["reason"],
        )?;
        let shed = make.counters(
            "tollgate_shed_total",
            "Requests turned away because the gateway was full.",
            &["priority", "reason"],
        )?;
        let states = |gauges: IntGaugeVec| {
            ["in_flight", "unanswered"].map(|state| gauges.with_label_values(&[state]))
        };
        let nodes = make.gauges(
            "tollgate_store_nodes",
            "Servers of the shared store, by whether they are asked.",
            &["breaker"],
        )?;
        let bad_requests = make.counters(
            "tollgate_bad_requests_total",
            "Requests refused or cut off for their form, their size or their slowness.",
            &["reason"],
        )?;
        let store_durations = make.histograms(
            "tollgate_store_request_duration_seconds",
            "How long the shared store took.",
            &["op"],
            &STORE_BUCKETS,
        )?;
        let identified = make.counters(
            "tollgate_identity_total",
            "Requests by what they proved of their caller, and how.",
            &["kind", "result"],
        )?;
        let keys = make.gauges(
            "tollgate_identity_keys",
            "Keys in force: hashes of API keys, and keys that tokens are signed with.",
            &["kind"],
        )?;
        let key_reads = make.counters(
            "tollgate_identity_key_reads_total",
            "Keys that were read again since they changed or might have, by what came of it.",
            &["kind", "result"],
        )?;
        let families = Self {
            requests: make.counters(
                "tollgate_http_requests_total",
                "Requests by route, method and status.",
                &["route", "method", "code"],
            )?,
            durations: make.histograms(
                "tollgate_http_request_duration_seconds",
                "Duration of whole requests.",
                &["route"],
                &DURATION_BUCKETS,
            )?,
            decisions: make.counters(
                "tollgate_policy_decisions_total",
                "Decisions by route, policy, outcome and where they were made.",
                &["route", "policy", "decision", "source"],
            )?,
            in_flight: make.gauge("tollgate_http_in_flight_requests", "Requests being served.")?,
            load_requests: states(make.gauges(
                "tollgate_load_requests",
                "Requests that load shedding counts.",
                &["state"],
            )?),
            load_limits: states(make.gauges(
                "tollgate_load_limit",
                "How many of them there may be now; 0 without load shedding.",
                &["state"],
            )?),
            shed: Priority::ALL.map(|priority| {
                Reason::ALL
                    .map(|reason| shed.with_label_values(&[priority.as_str(), reason.as_str()]))
            }),
            connections: make.gauge("tollgate_connections", "Connections of clients.")?,
            connections_refused: ["total", "address"]
                .map(|reason| refused.with_label_values(&[reason])),
            bad_requests: Fault::ALL.map(|fault| bad_requests.with_label_values(&[fault.as_str()])),
            identified: Proven::ALL.map(|by| {
                Proof::ALL.map(|proof| identified.with_label_values(&[by.as_str(), proof.as_str()]))
            }),
            keys: Proven::ALL.map(|by| keys.with_label_values(&[by.as_str()])),
            key_reads: Proven::ALL.map(|by| {
                ["success", "failure"]
                    .map(|result| key_reads.with_label_values(&[by.as_str(), result]))
            }),
            overhead: make.histogram(
                "tollgate_overhead_seconds",
                "The gateway's own time in a request, without queue and upstream.",
                &OVERHEAD_BUCKETS,
            )?,
            store_check: store_durations.with_label_values(&["check"]),
            store_settle: store_durations.with_label_values(&["settle"]),
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
            store_spared: {
                let counters = make.counters(
                    "tollgate_store_spared_total",
                    "Requests that the shared store was not asked about, by why.",
                    &["by"],
                )?;
                spared
                    .iter()
                    .map(|by| counters.with_label_values(&[by]))
                    .collect()
            },
            store_up: make.gauge("tollgate_store_up", "Whether the store answers.")?,
            store_nodes: ["closed", "open"].map(|breaker| nodes.with_label_values(&[breaker])),
            store_instances: make.gauge(
                "tollgate_store_instances",
                "Gateways last seen in the shared store; 0 without one.",
            )?,
            store_slots: make.gauge(
                "tollgate_store_slots",
                "Units in flight here that the shared store counts.",
            )?,
            store_slots_restored: make
                .counters(
                    "tollgate_store_slots_restored_total",
                    "Units in flight that the shared store had lost, and was told anew.",
                    &[],
                )?
                .with_label_values::<&str>(&[]),
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
            units: make.counters("tollgate_policy_units_total", "Units charged.", &["policy"])?,
            costs_missing: make.counters(
                "tollgate_cost_missing_total",
                "Requests whose cost nobody said, so that a default or what was reserved is taken.",
                &["policy"],
            )?,
            near_limit: make.counters(
                "tollgate_policy_near_limit_total",
                "Decisions after which at most a fifth is left.",
                &["policy"],
            )?,
            penalties: make.counters(
                "tollgate_penalties_total",
                "Penalties begun.",
                &["policy"],
            )?,
            queue_waits: make.histograms(
                "tollgate_queue_wait_seconds",
                "How long requests waited for their turn.",
                &["policy"],
                &QUEUE_BUCKETS,
            )?,
            queue_depths: make.gauges(
                "tollgate_queue_depth",
                "Requests that wait for their turn.",
                &["policy"],
            )?,
            in_use: make.gauges(
                "tollgate_policy_concurrency_in_use",
                "Units in flight here of concurrency that counts everybody together.",
                &["policy"],
            )?,
            limits: make.gauges(
                "tollgate_policy_limit",
                "Configured units per window, or at once.",
                &["policy", "tier"],
            )?,
            upstream_requests: make.counters(
                "tollgate_upstream_requests_total",
                "Requests forwarded, by the class of the answer.",
                by_class,
            )?,
            upstream_durations: make.histograms(
                "tollgate_upstream_duration_seconds",
                "How long the upstream took to its last byte.",
                by_class,
                &DURATION_BUCKETS,
            )?,
            upstream_throttled: make.counters(
                "tollgate_upstream_throttled_total",
                "Answers 429 and 503 of the upstream's own.",
                &["upstream"],
            )?,
            upstream_malformed: make.counters(
                "tollgate_upstream_header_malformed_total",
                "Rate limit fields of the upstream that could not be parsed.",
                &["upstream"],
            )?,
            upstream_healthy: make.gauges(
                "tollgate_upstream_healthy",
                "Whether a server that is checked gets requests.",
                &["upstream", "server"],
            )?,
            certificate_expiry: make.gauges(
                "tollgate_tls_certificate_expiry_timestamp_seconds",
                "Until when a listener's certificate is good.",
                &["listener"],
            )?,
            reloads: ["success", "failure"].map(|result| reloads.with_label_values(&[result])),
            reload_successful: make.gauge(
                "tollgate_config_last_reload_successful",
                "Whether the last configuration was taken.",
            )?,
            reloaded_at: make.gauge(
                "tollgate_config_last_reload_success_timestamp_seconds",
                "When the last configuration was taken.",
            )?,
            registry: registry.clone(),
        };
        build_info(&make)?;
        families.taken();
        Ok(families)
    }

    /// Counts a configuration that was read again.
    pub fn reloaded(&self, taken: bool) {
        let [success, failure] = &self.reloads;
        if taken {
            success.inc();
            self.taken();
        } else {
            failure.inc();
            self.reload_successful.set(0);
        }
    }

    fn taken(&self) {
        self.reload_successful.set(1);
        let now_s = wall_now_us() / 1_000_000;
        self.reloaded_at
            .set(i64::try_from(now_s).unwrap_or(i64::MAX));
    }

    /// Counts a connection that was closed since there were too many.
    pub fn connection_refused(&self, from_one_address: bool) {
        let [total, address] = &self.connections_refused;
        if from_one_address { address } else { total }.inc();
    }

    /// Counts a request that was turned away because the gateway was full.
    pub fn shed(&self, priority: Priority, reason: Reason) {
        let of_priority = self.shed.get(priority as usize);
        if let Some(counter) = of_priority.and_then(|by_reason| by_reason.get(reason as usize)) {
            counter.inc();
        }
    }

    /// Counts what a client did wrong.
    pub fn bad_request(&self, fault: Fault) {
        if let Some(counter) = self.bad_requests.get(fault as usize) {
            counter.inc();
        }
    }

    /// Counts a request, by what it proved of its caller.
    pub fn identified(&self, by: Proven, proof: Proof) {
        let counter = (self.identified.get(by as usize)).and_then(|all| all.get(proof as usize));
        if let Some(counter) = counter {
            counter.inc();
        }
    }

    /// Says how many keys are in force.
    pub fn keys_in_force(&self, by: Proven, count: usize) {
        if let Some(gauge) = self.keys.get(by as usize) {
            gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    /// Counts keys that were read again.
    pub fn keys_read(&self, by: Proven, taken: bool) {
        if let Some([success, failure]) = self.key_reads.get(by as usize) {
            if taken { success } else { failure }.inc();
        }
    }

    /// Counts a failure of a store, by its position among the causes.
    pub fn store_failed(&self, cause: usize) {
        if let Some(counter) = self.store_errors.get(cause) {
            counter.inc();
        }
    }

    /// Counts a request that the shared store was not asked about, by the position of why.
    pub fn store_spared(&self, by: usize) {
        if let Some(counter) = self.store_spared.get(by) {
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

    // A series that is not there needs no removing: what removing says of it is of no interest.

    pub(super) fn forget_policy(&self, name: &str) {
        let _ = self.units.remove_label_values(&[name]);
        let _ = self.costs_missing.remove_label_values(&[name]);
        let _ = self.near_limit.remove_label_values(&[name]);
        let _ = self.penalties.remove_label_values(&[name]);
        let _ = self.queue_waits.remove_label_values(&[name]);
        let _ = self.queue_depths.remove_label_values(&[name]);
        let _ = self.in_use.remove_label_values(&[name]);
        self.forget_limit(name, TIER);
    }

    pub(super) fn forget_limit(&self, policy: &str, tier: &str) {
        let _ = self.limits.remove_label_values(&[policy, tier]);
    }

    pub(super) fn forget_upstream(&self, name: &str) {
        for class in CodeClass::ALL {
            let values = &[name, class.as_str()];
            let _ = self.upstream_requests.remove_label_values(values);
            let _ = self.upstream_durations.remove_label_values(values);
        }
        let _ = self.upstream_throttled.remove_label_values(&[name]);
        let _ = self.upstream_malformed.remove_label_values(&[name]);
    }

    pub(super) fn forget_server(&self, upstream: &str, server: &str) {
        let values = &[upstream, server];
        let _ = self.upstream_healthy.remove_label_values(values);
    }

    pub(super) fn forget_certificate(&self, listener: &str) {
        let _ = self.certificate_expiry.remove_label_values(&[listener]);
    }
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
