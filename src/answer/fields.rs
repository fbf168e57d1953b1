//! `RateLimit-Policy`, `RateLimit` and the legacy fields, from the rulings of one request.
//!
//! As in draft-ietf-httpapi-ratelimit-headers-10. Every number errs to the safe side: a client that paces itself by
//! these fields is never invited to more than the policies let through.

use http::{HeaderMap, HeaderName, HeaderValue};

use super::list::List;
use super::words::seconds_up;
use super::{Legacy, Settings};
use crate::check::{Ruling, Source, Unit};
use crate::decide::{LeakyBucket, Limit, Penalised, Rule};

pub(super) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const LEGACY_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const LEGACY_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const LEGACY_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
pub(super) const LEGACY: [HeaderName; 3] = [LEGACY_LIMIT, LEGACY_REMAINING, LEGACY_RESET];

/// The most policies that the fields tell of.
pub const ITEMS_MAX: usize = 3;

/// What the fields say of one policy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    ruling: &'a Ruling<'a>,
    /// Units left; of a fixed window near its end fewer than are left, since all of them at once is no pace.
    pub(super) remaining: u64,
    /// Seconds until there is more, if that can be said.
    pub(super) after_s: Option<u64>,
    /// Where the ruling stands among the request's.
    place: usize,
}

/// The policies to tell of, the most constrained first, at most [`ITEMS_MAX`].
///
/// `retry_after_s` is the answer's `Retry-After`: no item says a later moment, or clients that read both would not know
/// which to believe.
pub(super) fn items<'a>(rulings: &'a [Ruling<'a>], retry_after_s: Option<u64>) -> Vec<Item<'a>> {
    let mut items: Vec<Item<'a>> = Vec::with_capacity(rulings.len());
    for (place, ruling) in rulings.iter().enumerate() {
        if is_told_of(ruling) {
            items.push(Item::of(ruling, place, retry_after_s));
        }
    }
    items.sort_by(|a, b| {
        let by_share = a.part_left().cmp(&b.part_left());
        b.ruling
            .denies()
            .cmp(&a.ruling.denies())
            .then(by_share)
            .then(b.after_s.cmp(&a.after_s))
            .then(a.place.cmp(&b.place))
    });
    // A policy that stands on the route twice is told of once, at its tightest.
    let mut told: Vec<Item<'a>> = Vec::with_capacity(ITEMS_MAX);
    for item in items {
        if told.len() < ITEMS_MAX && told.iter().all(|other| other.name() != item.name()) {
            told.push(item);
        }
    }
    told
}

/// A custom unit is none of the registered ones, and to leave `qu` out would claim requests.
fn is_told_of(ruling: &Ruling<'_>) -> bool {
    let policy = ruling.check.policy;
    policy.advertise && !ruling.check.shadow && !matches!(policy.unit, Unit::Custom(_))
}

/// Whether some policy that the fields tell of has at most a fifth left.
pub(super) fn is_near(rulings: &[Ruling<'_>]) -> bool {
    rulings
        .iter()
        .filter(|ruling| is_told_of(ruling))
        .any(|ruling| {
            let left = u128::from(ruling.decision.remaining);
            left.saturating_mul(5) <= u128::from(ruling.check.rule.capacity())
        })
}

impl<'a> Item<'a> {
    fn of(ruling: &'a Ruling<'a>, place: usize, retry_after_s: Option<u64>) -> Self {
        let more = more_after_s(ruling);
        let remaining = match ruling.check.rule {
            Rule::FixedWindow(rule) => paced(ruling, rule.limit(), more),
            Rule::LeakyBucket(rule) => patient(ruling, rule),
            _ => ruling.decision.remaining,
        };
        let after_s = match (more, retry_after_s) {
            // The retry itself is proof that there is more by then.
            (Some(more), Some(retry)) if ruling.denies() => Some(more.min(retry)),
            (Some(more), Some(retry)) => Some(more).filter(|_| more <= retry),
            _ => more,
        };
        Self {
            ruling,
            remaining,
            after_s,
            place,
        }
    }

    pub(super) fn name(&self) -> &'a str {
        &self.ruling.check.policy.name
    }

    /// The rule that the caller is told of: on a fallback not the share that is in force.
    fn nominal(&self) -> &'a Rule {
        nominal(self.ruling)
    }

    /// Of all that this policy could have left, how much is, in parts of 2^32.
    fn part_left(&self) -> u128 {
        let capacity = u128::from(self.ruling.check.rule.capacity().max(1));
        (u128::from(self.remaining) << 32) / capacity
    }

    /// An opaque name of whom the policy counts: another one for each policy, so that they cannot be joined.
    pub(super) fn partition_key(&self) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new();
        // Names have no NUL, so no two pairs of name and entity run into one.
        hasher.update(self.name().as_bytes()).update(&[0]);
        hasher.update(&self.ruling.check.entity.0);
        let mut key = [0; 16];
        hasher.finalize_xof().fill(&mut key);
        key
    }
}

/// How many more single units a leaky bucket lets through now: of those that have room, the ones whose turn comes
/// within its longest wait.
fn patient(ruling: &Ruling<'_>, rule: &LeakyBucket) -> u64 {
    let (remaining, limit) = (ruling.decision.remaining, rule.limit());
    let Some(max_wait_us) = rule.max_wait_us() else {
        return remaining;
    };
    let Some(spare_us) = max_wait_us.checked_sub(ruling.decision.reset_after_us) else {
        return 0;
    };
    let drained = u128::from(spare_us) * u128::from(limit.count.get());
    let turns = drained / u128::from(limit.window_us.get()) + 1;
    remaining.min(u64::try_from(turns).unwrap_or(u64::MAX))
}

pub(super) fn nominal<'a>(ruling: &Ruling<'a>) -> &'a Rule {
    match ruling.source {
        Source::Fallback => &ruling.check.limits.rule,
        Source::Store | Source::Local => ruling.check.rule,
    }
}

/// Seconds until there is more than now, rounded up; `None` when nothing is used or nothing can be said.
fn more_after_s(ruling: &Ruling<'_>) -> Option<u64> {
    let decision = ruling.decision;
    let limit = ruling.check.rule.limit()?;
    if decision.reset_after_us == 0 {
        return None;
    }
    if decision.penalised != Penalised::No {
        // Whatever is used, nothing passes before its end.
        let wait = decision.retry_after_us.filter(|&wait| wait > 0);
        return Some(seconds_up(wait.unwrap_or(decision.reset_after_us)).max(1));
    }
    let window_us = limit.window_us.get();
    // Until this cost fits is not before one unit fits.
    let denied_us = decision.retry_after_us.filter(|&wait| wait > 0);
    let micros = match ruling.check.rule {
        Rule::TokenBucket(_) => {
            return Some(
                next_unit_s(ruling, limit)
                    .max(earned_s(ruling, limit))
                    .max(1),
            );
        }
        Rule::LeakyBucket(_) => {
            return (decision.remaining == 0).then(|| next_unit_s(ruling, limit).max(1));
        }
        // That hangs on how long others take.
        Rule::Concurrency(_) => return None,
        Rule::FixedWindow(_) => decision.reset_after_us,
        // When the oldest entry leaves only the store knows; when the last does is what is surely true.
        Rule::SlidingLog(_) => denied_us.unwrap_or(decision.reset_after_us),
        // Usage of the current window counts through the next one: more comes from this one's end on.
        Rule::SlidingCounter(_) => denied_us.unwrap_or_else(|| {
            let to_edge = decision.reset_after_us.checked_sub(window_us);
            to_edge
                .filter(|&edge| edge > 0)
                .map_or(decision.reset_after_us, |edge| edge.saturating_add(1))
        }),
    };
    Some(seconds_up(micros.min(decision.reset_after_us)).max(1))
}

/// Until a bucket has earned its next whole unit.
///
/// It is full in `reset_after`, and the units above the next one take up the last part of that:
/// `reset_after - (capacity - remaining - 1) * window / limit`, as one fraction, rounded up once.
fn next_unit_s(ruling: &Ruling<'_>, limit: Limit) -> u64 {
    let (count, window_us) = (
        u128::from(limit.count.get()),
        u128::from(limit.window_us.get()),
    );
    let above = ruling
        .check
        .rule
        .capacity()
        .saturating_sub(ruling.decision.remaining);
    let above = u128::from(above.saturating_sub(1));
    let until_full = u128::from(ruling.decision.reset_after_us).saturating_mul(count);
    whole_seconds(
        until_full.saturating_sub(above.saturating_mul(window_us)),
        count,
    )
}

/// How long the bucket takes to earn what it has left: who spends that within this time keeps the sustained rate.
fn earned_s(ruling: &Ruling<'_>, limit: Limit) -> u64 {
    let micros =
        u128::from(ruling.decision.remaining).saturating_mul(u128::from(limit.window_us.get()));
    whole_seconds(micros, u128::from(limit.count.get()))
}

fn whole_seconds(micros: u128, divisor: u128) -> u64 {
    let seconds = micros.div_ceil(divisor.max(1).saturating_mul(1_000_000));
    u64::try_from(seconds).unwrap_or(u64::MAX)
}

/// What a fixed window has left, but no more than ten times its nominal pace until its end; never none of some.
fn paced(ruling: &Ruling<'_>, limit: Limit, after_s: Option<u64>) -> u64 {
    let remaining = ruling.decision.remaining;
    let Some(after_s) = after_s else {
        return remaining;
    };
    let window_us = u128::from(limit.window_us.get());
    let tenth = window_us / 10;
    let span = u128::from(after_s).saturating_mul(1_000_000).max(tenth);
    let invited = u128::from(limit.count.get()).saturating_mul(span) / window_us.max(1);
    remaining.min(u64::try_from(invited).unwrap_or(u64::MAX).max(1))
}

/// The names that items are sent by: another one where the upstream sends that name.
pub(super) type Rename<'f> = &'f dyn Fn(&Item<'_>) -> String;

/// The value of `RateLimit-Policy`, in the order of the route so that it stays the same from answer to answer.
pub(super) fn policy_field(
    settings: &Settings,
    items: &[Item<'_>],
    rename: Option<Rename<'_>>,
) -> Option<String> {
    let mut list = List::new();
    let mut in_order: Vec<&Item<'_>> = items.iter().collect();
    in_order.sort_by_key(|item| item.place);
    for item in in_order {
        if !list.item(&sent_name(item, rename)) {
            continue;
        }
        let rule = item.nominal();
        list.number("q", rule.count().get());
        match item.ruling.check.policy.unit {
            Unit::ContentBytes => list.text("qu", "content-bytes"),
            _ if rule.lends() => list.text("qu", "concurrent-requests"),
            _ => {}
        }
        // `w` is in whole seconds. Rounded, it would promise another pace; left out, it promises none.
        if let Some(limit) = rule.limit()
            && limit.window_us.get().is_multiple_of(1_000_000)
        {
            list.number("w", seconds_up(limit.window_us.get()));
        }
        if rule.capacity() != rule.count().get() {
            list.number("tollgate-burst", rule.capacity());
        }
        if settings.partition_key {
            list.bytes("pk", &item.partition_key());
        }
    }
    list.finish()
}

/// The value of `RateLimit`, the most constrained policy first.
pub(super) fn limit_field(
    settings: &Settings,
    items: &[Item<'_>],
    rename: Option<Rename<'_>>,
) -> Option<String> {
    let mut list = List::new();
    for item in items {
        if !list.item(&sent_name(item, rename)) {
            continue;
        }
        list.number("r", item.remaining);
        if let Some(after_s) = item.after_s {
            list.number("t", after_s);
        }
        if settings.partition_key {
            list.bytes("pk", &item.partition_key());
        }
    }
    list.finish()
}

fn sent_name<'a>(item: &Item<'a>, rename: Option<Rename<'_>>) -> std::borrow::Cow<'a, str> {
    match rename {
        Some(rename) => rename(item).into(),
        None => item.name().into(),
    }
}

/// Puts the legacy triple, which tells of the most constrained policy of requests per window, or does nothing if there
/// is none.
pub(super) fn put_legacy(
    settings: &Settings,
    items: &[Item<'_>],
    now_epoch_s: u64,
    headers: &mut HeaderMap,
) {
    let Some(item) = legacy_item(items) else {
        return;
    };
    let reset_us = item.ruling.decision.reset_after_us;
    let after_s = item.after_s.unwrap_or(seconds_up(reset_us));
    let reset = match settings.legacy {
        Legacy::None => return,
        Legacy::Seconds => after_s,
        Legacy::Epoch => now_epoch_s.saturating_add(after_s),
    };
    headers.insert(
        LEGACY_LIMIT,
        HeaderValue::from(item.nominal().count().get()),
    );
    headers.insert(LEGACY_REMAINING, HeaderValue::from(item.remaining));
    headers.insert(LEGACY_RESET, HeaderValue::from(reset));
}

pub(super) fn legacy_item<'i, 'a>(items: &'i [Item<'a>]) -> Option<&'i Item<'a>> {
    let mut items = items.iter();
    items.find(|item| {
        item.ruling.check.policy.unit == Unit::Requests && !item.ruling.check.rule.lends()
    })
}

/// Seconds until an exhausted policy lets one more request through: the longest of those in force.
pub(super) fn exhausted_for_s(rulings: &[Ruling<'_>]) -> Option<u64> {
    let in_force = rulings
        .iter()
        .filter(|ruling| !ruling.check.shadow && ruling.decision.remaining == 0);
    in_force.filter_map(more_after_s).max()
}
