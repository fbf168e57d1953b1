//! What became of every request, by three witnesses: the client, the gateway's access log, and its metrics.

use std::collections::HashMap;

use crate::bounds::{Allowed, Counted, Worst, worst};
use crate::faults::Span;
use crate::fleet::Lifetime;
use crate::load::{Outcome, Sent};
use crate::logs::{self, Line, Source};
use crate::routes::{CALLERS, Policy, Route, WithoutStore, routes};

/// Spans of so many windows are looked at.
const WINDOWS: [u64; 3] = [1, 2, 5];

/// An outage is over, and its usage forgotten, when the first decision is made; that may be so much later than the
/// connection that made it possible, in µs.
const PROVEN_WITHIN: u64 = 2_000_000;

/// The longest that any answer may take beyond what its policy and its API want, in µs. A request that waited for a
/// connection, for a probe, or for a store that says nothing would take longer.
const SLOW: u64 = 2_000_000;

/// What a store that says nothing may cost, and a queue, and a slow API.
const WAITS: u64 = 2_000_000;

/// The account.
pub(crate) struct Account<'a> {
    pub(crate) routes: Vec<Route>,
    sent: &'a [Sent],
    spans: &'a [Span],
    lives: Vec<Life<'a>>,
    /// Where each request was served, and its line there.
    served: HashMap<u64, (usize, Line)>,
    violations: Vec<String>,
}

/// A gateway's life, as it told of it.
struct Life<'a> {
    lifetime: &'a Lifetime,
    /// When it was connected to its store.
    connected: Vec<u64>,
}

/// A policy, the caller that came nearest to its bounds, and how near.
pub(crate) struct Nearest {
    pub(crate) shared: Worst,
    pub(crate) in_process: Worst,
}

impl<'a> Account<'a> {
    pub(crate) fn of(sent: &'a [Sent], lifetimes: &'a [Lifetime], spans: &'a [Span]) -> Self {
        let mut account = Self {
            routes: routes(),
            sent,
            spans,
            lives: Vec::new(),
            served: HashMap::new(),
            violations: Vec::new(),
        };
        for (number, lifetime) in lifetimes.iter().enumerate() {
            account.lives.push(Life {
                lifetime,
                connected: logs::connected(&lifetime.gateway),
            });
            let (lines, others) = logs::lines(&lifetime.gateway);
            if others > 0 {
                account.violate(format!("{others} requests that nobody sent"));
            }
            for line in lines {
                let served = account.served.insert(line.number, (number, line));
                if let Some((_, line)) = served {
                    account.violate(format!("request {} was served twice", line.number));
                }
            }
        }
        account.check_requests();
        account.check_bounds();
        for number in 0..account.lives.len() {
            account.check_metrics(number);
        }
        account
    }

    pub(crate) fn violations(&self) -> Vec<String> {
        self.violations.clone()
    }

    /// The requests of a route.
    pub(crate) fn sent_to(&self, route: usize) -> impl Iterator<Item = &Sent> {
        self.sent.iter().filter(move |sent| sent.route == route)
    }

    fn violate(&mut self, what: String) {
        // So many show what is wrong; more would hide it.
        match self.violations.len() {
            0..100 => self.violations.push(what),
            100 => self.violations.push("and more".to_owned()),
            _ => {}
        }
    }

    /// Each request has one outcome, and one that is allowed at its time.
    fn check_requests(&mut self) {
        let mut unknown = self.served.len();
        for sent in self.sent {
            let served = self.served.get(&sent.number);
            unknown -= usize::from(served.is_some());
            if let Some(wrong) = self.wrong(sent, served) {
                let route = &self.routes[sent.route].name;
                self.violate(format!(
                    "{route}: {wrong}: {sent:?}, {served:?}",
                    served = self.served.get(&sent.number)
                ));
            }
        }
        if unknown > 0 {
            self.violate(format!("{unknown} requests were served that nobody sent"));
        }
    }

    /// What is wrong with a request.
    fn wrong(&self, sent: &Sent, served: Option<&(usize, Line)>) -> Option<&'static str> {
        let is_elsewhere = |life: usize| self.lives[life].lifetime.slot != sent.slot;
        match (&sent.outcome, served) {
            (_, Some((life, _))) if is_elsewhere(*life) => Some("served by another gateway"),
            (Outcome::Aborted, None) => None,
            (Outcome::Failed(_), _) => {
                let replaced =
                    |span: &Span| span.replaces(sent.slot, sent.fresh, sent.began, sent.ended);
                (!self.spans.iter().any(replaced)).then_some("no answer")
            }
            (Outcome::Answered(..), None) => Some("answered, and not logged"),
            (Outcome::Answered(status, _), Some((_, line))) if *status != line.status => {
                Some("logged with another status")
            }
            (Outcome::Answered(..), Some((_, line)))
                if line.began + 2_000 < sent.began || line.began > sent.ended =>
            {
                Some("logged at another time")
            }
            (Outcome::Answered(status, wait), Some((_, line))) => self
                .wrong_answer(sent, *status, wait.as_deref(), line)
                .or_else(|| self.wrong_source(sent, line)),
            (Outcome::Aborted, Some((_, line))) => self.wrong_source(sent, line),
        }
    }

    fn wrong_answer(
        &self,
        sent: &Sent,
        status: u16,
        wait: Option<&str>,
        line: &Line,
    ) -> Option<&'static str> {
        let route = &self.routes[sent.route];
        let without = route.without_store();
        let waits = if route.is_shared() { WAITS } else { 0 };
        if sent.ended - sent.began > SLOW + waits {
            return Some("slow");
        }
        let seconds = wait.and_then(|wait| wait.parse::<u64>().ok());
        match status {
            200 if line.denied => Some("allowed, and logged as denied"),
            200 => None,
            429 if without.is_none() => Some("denied without a policy"),
            429 if seconds.is_none_or(|seconds| seconds == 0) => Some("no Retry-After"),
            429 => None,
            503 if without == Some(WithoutStore::Deny) && line.source.is_none() => None,
            _ => Some("such an answer is nobody's"),
        }
    }

    /// Decided where it should be: in the store, unless a fault excuses the gateway.
    fn wrong_source(&self, sent: &Sent, line: &Line) -> Option<&'static str> {
        let route = &self.routes[sent.route];
        match (route.without_store(), line.source) {
            (None, None)
            | (Some(WithoutStore::Unshared), Some(Source::Local))
            | (
                Some(WithoutStore::Local | WithoutStore::Allow | WithoutStore::Deny),
                Some(Source::Store),
            ) => None,
            (Some(WithoutStore::Local), Some(Source::Fallback))
            | (Some(WithoutStore::Allow | WithoutStore::Deny), None) => (!self
                .is_excused(sent, line))
            .then_some("decided without the store, and there was no fault"),
            _ => Some("decided where it should not be"),
        }
    }

    /// Whether the gateway may have been without its store.
    fn is_excused(&self, sent: &Sent, line: &Line) -> bool {
        let excuses = |span: &Span| span.excuses(sent.slot, line.began, line.decided);
        self.spans.iter().any(excuses)
    }

    /// How many requests the store had to decide, since nothing excused the gateway, of how many that it should.
    pub(crate) fn unexcused(&self) -> (usize, usize) {
        let shared: Vec<_> = self
            .sent
            .iter()
            .filter(|sent| self.routes[sent.route].is_shared())
            .filter_map(|sent| Some((sent, &self.served.get(&sent.number)?.1)))
            .collect();
        let strict = shared
            .iter()
            .filter(|(sent, line)| !self.is_excused(sent, line))
            .count();
        (strict, shared.len())
    }

    /// Nothing was allowed beyond what `bounds.rs` says.
    fn check_bounds(&mut self) {
        for route in 0..self.routes.len() {
            for policy in self.routes[route].policies.clone() {
                let nearest = self.nearest(route, &policy);
                for (who, worst) in [
                    ("shared", nearest.shared),
                    ("in process", nearest.in_process),
                ] {
                    if worst.excess() > 0 {
                        self.violate(format!(
                            "{}: {} were allowed {who} in a span that begins at {}, and {} may be",
                            policy.name, worst.allowed, worst.at, worst.bound
                        ));
                    }
                }
                if nearest.shared.allowed + nearest.in_process.allowed == 0 {
                    self.violate(format!("{}: nothing was allowed", policy.name));
                }
            }
            let denied = self
                .sent_to(route)
                .any(|sent| matches!(sent.outcome, Outcome::Answered(429, _)));
            if !denied && !self.routes[route].policies.is_empty() {
                let name = self.routes[route].name.clone();
                self.violate(format!("{name}: nothing was denied, so nothing was tried"));
            }
        }
    }

    /// The spans in which a policy came nearest to what it may allow.
    pub(crate) fn nearest(&self, route: usize, policy: &Policy) -> Nearest {
        let mut nearest = Nearest {
            shared: Worst::default(),
            in_process: Worst::default(),
        };
        let in_process = match policy.without_store {
            WithoutStore::Unshared => Counted::Alone,
            _ => Counted::Share,
        };
        for caller in 0..CALLERS {
            let mut shared = Vec::new();
            let mut by_life = vec![Vec::new(); self.lives.len()];
            let asked = self.sent_to(route).filter(|sent| sent.caller == caller);
            for (life, line) in asked.filter_map(|sent| self.served.get(&sent.number)) {
                let allowed = Allowed {
                    from: line.began,
                    to: line.decided,
                };
                match line.source {
                    _ if line.denied => {}
                    Some(Source::Store) => shared.push(allowed),
                    Some(Source::Local | Source::Fallback) => by_life[*life].push(allowed),
                    None => {}
                }
            }
            for windows in WINDOWS {
                let length = windows * u64::try_from(policy.window.as_micros()).unwrap();
                nearest.shared = nearest.shared.or(worst(
                    &mut shared,
                    length,
                    |losses| policy.at_most(Counted::Shared, windows, losses),
                    |from, to| self.losses(from, to),
                ));
                for (allowed, life) in by_life.iter_mut().zip(&self.lives) {
                    nearest.in_process = nearest.in_process.or(worst(
                        allowed,
                        length,
                        |losses| policy.at_most(in_process, windows, losses),
                        |from, to| life.recoveries(in_process, from, to),
                    ));
                }
            }
        }
        nearest
    }

    /// How often the store forgot all, at some moment from one time to the other.
    fn losses(&self, from: u64, to: u64) -> u64 {
        let lost = |span: &&Span| span.loses_usage() && span.began < to && span.ended >= from;
        u64::try_from(self.spans.iter().filter(lost).count()).unwrap()
    }

    /// What a gateway counted is what it logged. One that was replaced told nobody what it counted last.
    fn check_metrics(&mut self, life: usize) {
        let Some(metrics) = &self.lives[life].lifetime.metrics else {
            return;
        };
        let mut counted = Series::of(metrics);
        for sent in self.sent {
            let Some((_, line)) = self.served.get(&sent.number).filter(|(at, _)| *at == life)
            else {
                continue;
            };
            let route = &self.routes[sent.route];
            counted.less(&["request", &route.name, &line.status.to_string()]);
            if let [policy] = &*route.policies {
                let source = line.source.map_or("fallback", Source::as_str);
                let decision = if line.denied { "deny" } else { "allow" };
                counted.less(&["decision", &policy.name, decision, source]);
            }
        }
        // Of several policies, the log names one only.
        let several = self.routes.iter().filter(|route| route.policies.len() > 1);
        for policy in several.flat_map(|route| &route.policies) {
            counted.0.retain(|series, _| series[1] != policy.name);
        }
        for (series, more) in counted.0.into_iter().filter(|(_, more)| *more != 0) {
            self.violate(format!("life {life}: {series:?} is {more:+} to the log"));
        }
    }

    /// How long after the end of every fault that excuses it a gateway was without its store at most, in µs; and the
    /// last of those faults.
    pub(crate) fn felt(&self) -> Option<(u64, &Span)> {
        let without = self.sent.iter().filter_map(|sent| {
            let (_, line) = self.served.get(&sent.number)?;
            let shared = self.routes[sent.route].is_shared();
            (shared && line.source != Some(Source::Store)).then_some((sent.slot, line))
        });
        without
            .filter_map(|(slot, line)| {
                self.spans
                    .iter()
                    .filter(|span| span.excuses(slot, line.began, line.decided))
                    .map(|span| (line.began.saturating_sub(span.ended), span))
                    .min_by_key(|(after, _)| *after)
            })
            .max_by_key(|(after, _)| *after)
    }
}

impl Life<'_> {
    /// How often what it counted in process was forgotten: once for each outage that ended.
    fn recoveries(&self, counted: Counted, from: u64, to: u64) -> u64 {
        let ended = |at: &&u64| (from.saturating_sub(PROVEN_WITHIN)..to).contains(*at);
        match counted {
            Counted::Share => u64::try_from(self.connected.iter().filter(ended).count()).unwrap(),
            _ => 0,
        }
    }
}

/// Counters of requests (route, code) and of decisions (policy, decision, source), less what is known of.
struct Series(HashMap<Vec<String>, i64>);

impl Series {
    fn of(metrics: &str) -> Self {
        let mut series = Self(HashMap::new());
        for line in metrics.lines() {
            let Some((name, rest)) = line.split_once('{') else {
                continue;
            };
            let Some((labels, value)) = rest.rsplit_once("} ") else {
                continue;
            };
            let label = |wanted: &str| {
                labels
                    .split(',')
                    .find_map(|label| label.strip_prefix(wanted)?.strip_prefix("=\""))
                    .map(|value| value.trim_end_matches('"').to_owned())
                    .unwrap_or_default()
            };
            let (kind, labels) = match name {
                "tollgate_http_requests_total" => ("request", vec![label("route"), label("code")]),
                "tollgate_policy_decisions_total" => (
                    "decision",
                    vec![label("policy"), label("decision"), label("source")],
                ),
                _ => continue,
            };
            let labels = [vec![kind.to_owned()], labels].concat();
            *series.0.entry(labels).or_default() += value.parse::<i64>().unwrap();
        }
        series
    }

    fn less(&mut self, labels: &[&str]) {
        let labels = labels.iter().map(|label| (*label).to_owned()).collect();
        *self.0.entry(labels).or_default() -= 1;
    }
}
