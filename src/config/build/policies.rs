//! `[policies]`: kinds and their numbers, keys, references.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::answers::DEFAULT;
use super::calendars::Calendars;
use super::usage::{given_back, uneven};
use super::{Builder, by_name, non_zero, value};
use crate::check::{
    Generation, KeySource, Limits, Mode, OnMissingKey, OnStoreFailure, Policy, Price, Scope,
};
use crate::clock::micros;
use crate::config::Store;
use crate::config::collections::Named;
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{File, GlobalMode, Kind, Policy as Written, Reject};
use crate::config::key_source::is_unverified;
use crate::config::moments::AnchorAt;
use crate::config::source::Place;
use crate::config::steps::Steps;
use crate::config::values::{LeaseOf, LimitOf};
use crate::decide::{
    FixedWindow, LeakyBucket, Penalty, Rule, SlidingCounter, SlidingLog, TokenBucket, TooLarge,
};

/// What the generation of a state covers first: a change of the states' format makes all of them new.
const STATE_FORMAT: u32 = 1;

/// A policy, as far as it could be built, and what routes need to know of it.
#[derive(Debug)]
pub(super) struct Built<'f> {
    /// Its name.
    pub(super) name: &'f str,
    /// Where it stands.
    pub(super) place: Place,
    /// As written.
    pub(super) written: &'f Written,
    /// As built.
    pub(super) policy: Option<Arc<Policy>>,
    /// What a request takes where its route does not say.
    pub(super) price: Option<Price>,
}

/// All policies by name, those included that could not be built: a reference to one of them does not dangle.
#[derive(Debug)]
pub(super) struct Policies<'f>(pub(super) BTreeMap<&'f str, Built<'f>>);

impl Policies<'_> {
    /// All of them, by name; `None` if one could not be built.
    pub(super) fn finished(self) -> Option<Vec<Arc<Policy>>> {
        self.0.into_values().map(|built| built.policy).collect()
    }
}

impl Built<'_> {
    /// The sources of its key, as far as they are known.
    pub(super) fn sources(&self) -> impl Iterator<Item = &At<KeySource>> {
        self.written.key.iter().flat_map(|key| key.value.0.iter())
    }

    /// Whether it limits anything now.
    pub(super) fn enforced(&self) -> bool {
        // A mode that could not be read is given the benefit of the doubt.
        matches!(value(&self.written.mode), None | Some(Mode::Enforce))
    }

    /// Whether a client can escape it by changing what it sends.
    pub(super) fn escapable(&self) -> bool {
        self.sources().any(|source| {
            is_unverified(&source.value) || matches!(source.value, KeySource::Path(_))
        })
    }

    /// Whether a client can escape it by leaving out what its key is read from, where nothing stands in for it.
    pub(super) fn skippable(&self) -> bool {
        value(&self.written.on_missing_key) == Some(OnMissingKey::Skip)
            && self.sources().any(|source| source.value.can_be_missing())
    }

    /// The first source of its key that a request may lack, if the policy does not say what then.
    pub(super) fn may_lack(&self) -> Option<&KeySource> {
        let says = self.written.on_missing_key.is_some()
            || self.written.unread.contains(&"on_missing_key");
        self.sources()
            .map(|source| &source.value)
            .find(|source| source.can_be_missing() && !says)
    }
}

impl Builder<'_> {
    pub(super) fn policies<'f>(&self, file: &'f File, store: Option<&Store>) -> Policies<'f> {
        let written = by_name(file.policies.as_ref());
        // Where the store could not be built, its defaults keep the policies' own mistakes coming.
        let on_failure = store.map_or(OnStoreFailure::Local, |store| store.on_failure);
        let instances = store.map_or(NonZeroU32::MIN, |store| store.instances);
        let patience = store.map_or(Duration::ZERO, Store::patience);
        let shadow = value(&file.mode) == Some(GlobalMode::Shadow);
        let rejects = reject_names(file);
        let given_back = given_back(file, store);
        let uneven = uneven(file, self.keys);
        let calendars = Calendars::default();
        let built = written
            .into_iter()
            .enumerate()
            .map(|(index, (name, (at, policy)))| {
                let common = Common {
                    index,
                    name,
                    on_failure,
                    instances,
                    patience,
                    shadow,
                    rejects: &rejects,
                    given_back: &given_back,
                    uneven: &uneven,
                    calendars: &calendars,
                    reject_table: file.rejects.as_ref(),
                };
                let built = self.policy(&common, policy).map(Arc::new);
                let rule = built.as_ref().map(|built| &built.limits.rule);
                let cost = policy.cost.as_ref();
                if let Some(cost) = cost {
                    self.warn_of_free(cost);
                }
                let built = Built {
                    name,
                    place: at.place,
                    written: policy,
                    price: cost.and_then(|cost| self.price(name, rule, cost)),
                    policy: built,
                };
                (name, built)
            });
        Policies(built.collect())
    }

    fn policy(&self, common: &Common<'_>, written: &Written) -> Option<Policy> {
        self.check_allowed(common.name, written);
        let reject = self.reject_of(common, written);
        let rule = self.rule(common, written);
        let outcomes = self.outcomes(common.name, written);
        let key = written.key.as_ref()?;
        let rule = rule?;
        let sources: Box<[KeySource]> = key
            .value
            .0
            .iter()
            .map(|source| source.value.clone())
            .collect();
        self.check_lease(common, written);
        self.check_penalty(common.name, written, &sources);
        let is_lent = rule.lends();
        let mode = match value(&written.mode)? {
            Mode::Enforce if common.shadow => Mode::Shadow,
            mode => mode,
        };
        Some(Policy {
            name: common.name.into(),
            index: common.index,
            generation: generation(&rule, written, &sources),
            limits: Arc::new(Limits::new(rule, common.instances)),
            uneven: Arc::new(AtomicBool::new(common.uneven.contains(common.name))),
            key: sources,
            // Where the key cannot be missing, nobody asks; routes see to it where it can.
            on_missing_key: value(&written.on_missing_key).unwrap_or(OnMissingKey::Skip),
            preflights: value(&written.preflights)
                .unwrap_or(value(&written.store)? == Scope::Local),
            on_store_failure: value(&written.on_store_failure).unwrap_or(common.on_failure),
            scope: value(&written.store)?,
            lease: match value(&written.lease) {
                Some(LeaseOf::Units(units)) => Some(non_zero(units)?),
                _ => None,
            },
            penalty: match &written.penalty {
                Some(steps) => Some(penalty(&steps.value)?),
                None => None,
            },
            outcomes: outcomes?,
            given_back: common.given_back.contains(common.name) || outcomes?.is_some() || is_lent,
            mode,
            unit: value(&written.unit)?,
            reject: reject?,
            advertise: value(&written.advertise)?,
        })
    }

    fn reject_of(&self, common: &Common<'_>, written: &Written) -> Option<usize> {
        let reject = written.reject.as_ref()?;
        let position = common.rejects.iter().position(|name| *name == reject.value);
        if position.is_none() {
            let user = format!("policy `{}`", common.name);
            self.dangling(
                Code::E103,
                &user,
                "reject",
                reject,
                (common.rejects, common.reject_table),
            );
        }
        position
    }

    fn rule(&self, common: &Common<'_>, written: &Written) -> Option<Rule> {
        let name = common.name;
        let kind = value(&written.kind)?;
        let limit_at = written.limit.as_ref()?;
        let limit = match (kind, limit_at.value) {
            (Kind::Concurrency, LimitOf::AtOnce(units)) => {
                return self.concurrency(units, written);
            }
            (kind, of) => self.rate(name, kind, limit_at.place, of)?.limit,
        };
        let goes_with_anchor = self.check_calendar(name, written);
        let burst = match &written.burst {
            Some(burst) => non_zero(burst.value.0)?,
            None => limit.count,
        };
        let max_wait_us = value(&written.max_wait).map(|wait| micros(wait.0));
        let built = match kind {
            Kind::FixedWindow => {
                let anchor = common.calendars.anchor(value(&written.anchor));
                FixedWindow::new(limit, anchor).map(Rule::FixedWindow)
            }
            Kind::SlidingLog => SlidingLog::new(limit).map(Rule::SlidingLog),
            Kind::SlidingCounter => {
                let strict = value(&written.strict).unwrap_or(false);
                SlidingCounter::new(limit, strict).map(Rule::SlidingCounter)
            }
            Kind::TokenBucket => TokenBucket::new(limit, burst).map(Rule::TokenBucket),
            Kind::LeakyBucket => LeakyBucket::new(limit, burst, max_wait_us).map(Rule::LeakyBucket),
            // Built above: it has no window.
            Kind::Concurrency => return None,
        };
        built
            .map_err(|TooLarge { found, largest }| {
                let place = written.burst.as_ref().map_or(limit_at.place, |burst| burst.place);
                self.error(
                    Code::E027,
                    place,
                    format!("policy `{name}`: {found} over this window is too large to be counted exactly"),
                    format!("the largest that fits is {largest}"),
                );
            })
            .ok()
            .filter(|_| goes_with_anchor)
    }

    /// A key that may be missing, on a policy that does not say what then.
    pub(super) fn must_say_on_missing_key(&self, name: &str, built: &Built<'_>) {
        let (Some(source), Some(key)) = (built.may_lack(), &built.written.key) else {
            return;
        };
        self.error(
            Code::E043,
            key.place,
            format!("policy `{name}` can lose its key: `{source}` may be absent"),
            "add on_missing_key = \"skip\", \"deny\" or \"empty\"",
        );
    }

    /// A policy that no route uses.
    pub(super) fn warn_unused(&self, name: &str, built: &Built<'_>) {
        self.findings.add(
            Finding::new(
                Code::W203,
                built.place,
                format!("no route uses policy `{name}`"),
            )
            .help("name it in the policies of a route, or take it out"),
        );
    }
}

/// What building a policy needs beside what is written.
pub(super) struct Common<'a> {
    index: usize,
    pub(super) name: &'a str,
    on_failure: OnStoreFailure,
    instances: NonZeroU32,
    /// The longest that the shared store is waited for.
    pub(super) patience: Duration,
    shadow: bool,
    rejects: &'a [&'a str],
    given_back: &'a BTreeSet<&'a str>,
    uneven: &'a BTreeSet<&'a str>,
    calendars: &'a Calendars,
    reject_table: Option<&'a At<Named<Reject>>>,
}

fn penalty(Steps(steps): &Steps) -> Option<Penalty> {
    let lengths: Option<Vec<_>> = steps.iter().map(|step| non_zero(micros(step.0))).collect();
    Penalty::new(&lengths?)
}

/// In the order in which rejects are built.
fn reject_names(file: &File) -> Vec<&str> {
    let written = by_name(file.rejects.as_ref());
    let others = written.into_keys().filter(|name| *name != DEFAULT);
    std::iter::once(DEFAULT).chain(others).collect()
}

/// Covers all that makes an old state meaningless, and nothing else: a new limit or burst keeps what was used.
fn generation(rule: &Rule, written: &Written, key: &[KeySource]) -> Generation {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(&STATE_FORMAT.to_le_bytes());
    part(rule.kind().as_bytes());
    let window_us = rule.limit().map_or(0, |limit| limit.window_us.get());
    part(&window_us.to_le_bytes());
    let from_first = value(&written.anchor) == Some(AnchorAt::FirstRequest);
    let strict = value(&written.strict) == Some(true);
    part(&[u8::from(from_first), u8::from(strict)]);
    if let Some(calendar) = rule.calendar() {
        part(calendar.unit().as_str().as_bytes());
        part(calendar.zone().as_bytes());
    }
    for source in key {
        part(source.to_string().as_bytes());
    }
    let [a, b, c, d, ..] = *hasher.finalize().as_bytes();
    Generation(u32::from_be_bytes([a, b, c, d]))
}

impl Kind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
            Self::SlidingLog => "sliding-log",
            Self::SlidingCounter => "sliding-counter",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
            Self::Concurrency => "concurrency",
        }
    }
}
