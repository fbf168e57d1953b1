//! What must hold of every kind, whatever the history. The histories aim at the edges.

use std::num::{NonZeroU32, NonZeroU64};

use proptest::prelude::*;
use tollgate::decide::{
    Anchor, Change, Charge, Cost, Decision, EXACT_MAX, FixedWindow, LeakyBucket, Rule, Settled,
    SlidingCounter, SlidingLog, State, Timestamp, TokenBucket, UNITS_MAX, Verdict,
};

use crate::support::definition::{Definition, Fraction};
use crate::support::traces::{Gap, limit, random_rule, whole};

const DAY_US: u64 = 86_400_000_000;
const START_US: u64 = 1_700_000_000_000_000;

/// One policy, and what happens to it.
#[derive(Clone, Debug)]
struct History {
    rule: Rule,
    offset_us: u64,
    steps: Vec<(Gap, Ask)>,
}

/// What a request takes: mostly an edge.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Units(u64),
    Left,
    LeftAndOne,
    Capacity,
    CapacityAndOne,
}

/// What is left once all of the charge is given back.
fn given_back(rule: &Rule, kept: State, charge: Charge, now: Timestamp) -> Option<State> {
    rule.settle(Some(kept), charge, Settled::Spent(Cost::NONE), now)
}

/// What an allowed request was charged.
fn charge(at: Timestamp, cost: u64, decision: &Decision) -> Charge {
    Charge {
        at,
        cost: Cost::new(cost),
        reset_after_us: decision.reset_after_us,
    }
}

/// Decides by the pure function, and keeps what it says.
struct Kept<'a> {
    rule: &'a Rule,
    state: Option<State>,
}

impl Kept<'_> {
    fn decide(&mut self, now: u64, cost: u64) -> Decision {
        let (change, decision) = self.peek(now, cost);
        change.apply(&mut self.state);
        decision
    }

    /// Decides without keeping anything.
    fn peek(&self, now: u64, cost: u64) -> (Change, Decision) {
        self.rule.decide(
            self.state.as_ref(),
            Timestamp::from_micros(now),
            Cost::new(cost),
        )
    }

    fn allows(&self, now: u64, cost: u64) -> bool {
        self.peek(now, cost).1.verdict == Verdict::Allow
    }
}

fn gap() -> impl Strategy<Value = Gap> {
    prop_oneof![
        5 => Just(Gap::None),
        3 => Just(Gap::UntilRetry),
        2 => Just(Gap::JustBeforeRetry),
        1 => Just(Gap::UntilReset),
        1 => Just(Gap::JustBeforeReset),
        1 => (0..5_u64).prop_map(Gap::Forward),
        2 => (0..400 * DAY_US).prop_map(Gap::Forward),
        2 => (0..5_000_000_u64).prop_map(Gap::Forward),
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        5 => Just(Ask::Units(1)),
        1 => Just(Ask::Units(0)),
        2 => (1..=12_u64).prop_map(Ask::Units),
        2 => Just(Ask::Left),
        2 => Just(Ask::LeftAndOne),
        1 => Just(Ask::Capacity),
        1 => Just(Ask::CapacityAndOne),
    ]
}

fn window_us() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(1_000),
        Just(7_000),
        Just(1_000_000),
        Just(3_333_000),
        Just(3_600_000_000),
        Just(DAY_US),
        Just(366 * DAY_US),
        (1..=366 * DAY_US / 1_000).prop_map(|ms| ms * 1_000),
        1_000..=10_000_000_u64,
    ]
}

fn rule_of(kinds: &'static [usize]) -> impl Strategy<Value = Rule> {
    (prop::sample::select(kinds), window_us(), any::<u64>()).prop_map(|(kind, window_us, seed)| {
        random_rule(&mut fastrand::Rng::with_seed(seed), kind, window_us)
    })
}

/// Kinds as [`random_rule`] numbers them.
const ALL: &[usize] = &[0, 1, 2, 3, 4, 5, 6, 7];

fn history_of(kinds: &'static [usize]) -> impl Strategy<Value = History> {
    (
        rule_of(kinds),
        0..DAY_US,
        prop::collection::vec((gap(), ask()), 1..60),
    )
        .prop_map(|(rule, offset_us, steps)| History {
            rule,
            offset_us,
            steps,
        })
}

/// A bucket whose numbers are so large that it counts in coarse ticks, and requests that come within those.
fn coarse_history() -> impl Strategy<Value = History> {
    let bucket = (
        500_000_000..UNITS_MAX,
        prop::sample::select(vec![DAY_US, 3_600_000_000, 60_000_000]),
        1..1_000_u64,
    );
    let rule = bucket.prop_filter_map("counted in microseconds", |(count, window_us, part)| {
        let limit = limit(count, window_us);
        let burst = match TokenBucket::new(limit, whole(count)) {
            Ok(_) => count,
            Err(e) => e.largest,
        };
        // A burst of a few ticks' worth is now and then paid off within one.
        let rule = TokenBucket::new(limit, whole((burst / part).max(1)))
            .ok()
            .map(Rule::TokenBucket)?;
        (tick_us(&rule) > 1).then_some(rule)
    });
    let gap = prop_oneof![
        2 => Just(Gap::None),
        1 => Just(Gap::UntilRetry),
        1 => Just(Gap::JustBeforeRetry),
        1 => Just(Gap::JustBeforeReset),
        2 => (0..200_u64).prop_map(Gap::Forward),
        2 => (0..200_000_u64).prop_map(Gap::Forward),
    ];
    (rule, 0..DAY_US, prop::collection::vec((gap, ask()), 1..60)).prop_map(
        |(rule, offset_us, steps)| History {
            rule,
            offset_us,
            steps,
        },
    )
}

/// Plays the history, and shows each step before it is taken: what is kept, when it is, what is asked.
fn play(
    history: &History,
    mut see: impl FnMut(&Kept<'_>, u64, u64) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let mut kept = Kept {
        rule: &history.rule,
        state: None,
    };
    let mut now = START_US + history.offset_us;
    let mut last: Option<Decision> = None;
    for (gap, ask) in &history.steps {
        now = gap.after(now, last.as_ref());
        let capacity = history.rule.capacity();
        let left = kept.peek(now, 0).1.remaining;
        let cost = match *ask {
            Ask::Units(units) => units,
            Ask::Left => left,
            Ask::LeftAndOne => left + 1,
            Ask::Capacity => capacity,
            Ask::CapacityAndOne => capacity + 1,
        };
        see(&kept, now, cost)?;
        last = Some(kept.decide(now, cost));
    }
    Ok(())
}

/// Whether a bucket's numbers are so large that hardly larger ones are exact.
fn is_at_the_end(rule: &Rule) -> bool {
    let [burst, unit, ..] = match rule {
        Rule::TokenBucket(rule) => rule.script_numbers(),
        Rule::LeakyBucket(rule) => rule.script_numbers(),
        _ => return false,
    };
    tick_us(rule) > 1 || burst * unit > EXACT_MAX / 4
}

proptest! {
    #[test]
    fn who_waits_as_told_is_allowed_and_who_comes_a_tick_earlier_is_not(history in history_of(ALL)) {
        play(&history, |kept, now, cost| {
            let (change, decision) = kept.peek(now, cost);
            if decision.verdict == Verdict::Deny {
                prop_assert_eq!(&change, &Change::None);
                match decision.retry_after_us {
                    None => prop_assert!(cost > history.rule.capacity()),
                    Some(wait) => {
                        prop_assert!(wait > 0 && cost <= history.rule.capacity());
                        if now + wait <= EXACT_MAX {
                            prop_assert!(kept.allows(now + wait, cost), "late: {}", wait);
                        }
                        prop_assert!(!kept.allows(now + wait - 1, cost), "early: {}", wait);
                    }
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn remaining_is_the_largest_cost_that_passes_now(history in history_of(ALL)) {
        play(&history, |kept, now, cost| {
            let mut after = Kept { rule: kept.rule, state: kept.state.clone() };
            let remaining = after.decide(now, cost).remaining;
            prop_assert!(remaining <= history.rule.capacity());
            prop_assert!(after.allows(now, remaining));
            prop_assert!(!after.allows(now, remaining + 1));
            Ok(())
        })?;
    }

    #[test]
    fn after_the_reset_all_is_as_new_and_not_before(history in history_of(ALL)) {
        let capacity = history.rule.capacity();
        play(&history, |kept, now, cost| {
            let mut after = Kept { rule: kept.rule, state: kept.state.clone() };
            let reset = after.decide(now, cost).reset_after_us;
            if now + reset <= EXACT_MAX {
                prop_assert_eq!(after.peek(now + reset, 0).1.remaining, capacity);
                prop_assert!(after.allows(now + reset, capacity));
            }
            let is_estimate = matches!(history.rule, Rule::SlidingCounter(_));
            let is_used = after.peek(now, 0).1.remaining < capacity;
            if is_used && !is_estimate {
                prop_assert!(!after.allows(now + reset - 1, capacity));
            }
            Ok(())
        })?;
    }

    #[test]
    fn to_look_changes_nothing_and_always_passes(history in history_of(ALL)) {
        play(&history, |kept, now, _| {
            let (change, decision) = kept.peek(now, 0);
            prop_assert_eq!(change, Change::None);
            prop_assert_eq!(decision.verdict, Verdict::Allow);
            prop_assert_eq!(decision.retry_after_us, Some(0));
            Ok(())
        })?;
    }

    #[test]
    fn a_cost_above_the_capacity_never_passes(history in history_of(ALL), more in 1..=UNITS_MAX) {
        let cost = history.rule.capacity().saturating_add(more);
        play(&history, |kept, now, _| {
            let (change, decision) = kept.peek(now, cost);
            prop_assert_eq!(change, Change::None);
            prop_assert_eq!((decision.verdict, decision.retry_after_us), (Verdict::Deny, None));
            Ok(())
        })?;
    }

    #[test]
    fn time_alone_never_takes_anything_away(history in history_of(ALL), later in 0..10 * DAY_US) {
        play(&history, |kept, now, _| {
            let before = kept.peek(now, 0).1.remaining;
            let after = kept.peek(now + later, 0).1.remaining;
            prop_assert!(before <= after, "{} fell to {}", before, after);
            Ok(())
        })?;
    }

    #[test]
    fn nobody_gains_by_a_clock_that_steps_back(
        history in history_of(&[0, 1, 2, 5, 7]), back in 0..10 * DAY_US,
    ) {
        play(&history, |kept, now, cost| {
            let before = kept.peek(now, 0).1.remaining;
            let mut stepped = Kept { rule: kept.rule, state: kept.state.clone() };
            let earlier = now.saturating_sub(back);
            prop_assert!(stepped.peek(earlier, 0).1.remaining <= before);
            // Whoever is denied then is not frozen until the clock has caught up: a window, or a debt, at most.
            let denied = stepped.decide(earlier, cost);
            if let (Verdict::Deny, Some(wait)) = (denied.verdict, denied.retry_after_us) {
                prop_assert!(wait <= denied.reset_after_us);
                prop_assert!(earlier + wait > EXACT_MAX || stepped.allows(earlier + wait, cost));
            }
            Ok(())
        })?;
    }

    #[test]
    fn one_cost_of_n_is_n_of_one(rule in rule_of(&[0, 1, 2, 3, 4, 5, 7]), many in 1..50_u64) {
        let n = many.min(rule.capacity());
        let mut at_once = Kept { rule: &rule, state: None };
        let mut one_by_one = Kept { rule: &rule, state: None };
        let whole = at_once.decide(START_US, n);
        let last = (0..n).map(|_| one_by_one.decide(START_US, 1)).last().unwrap();
        prop_assert_eq!(whole, last);
        prop_assert_eq!(at_once.state, one_by_one.state);
    }

    #[test]
    fn at_one_instant_exactly_the_capacity_passes(rule in rule_of(ALL), now in 0..EXACT_MAX) {
        let capacity = rule.capacity();
        let mut kept = Kept { rule: &rule, state: None };
        let patient = match &rule {
            Rule::LeakyBucket(leaky) => leaky.max_wait_us().is_none(),
            _ => true,
        };
        if capacity <= 3_000 && patient {
            let allowed = (0..capacity + 2).filter(|_| kept.decide(now, 1).verdict == Verdict::Allow).count();
            prop_assert_eq!(u64::try_from(allowed).unwrap(), capacity);
        } else {
            prop_assert!(kept.allows(now, capacity));
            prop_assert!(!kept.allows(now, capacity + 1));
        }
    }

    #[test]
    fn a_refund_at_once_undoes_the_charge(history in history_of(ALL)) {
        play(&history, |kept, now, cost| {
            let mut after = Kept { rule: kept.rule, state: kept.state.clone() };
            let decision = after.decide(now, cost);
            let allowed = decision.verdict == Verdict::Allow;
            if allowed && cost > 0 && !matches!(history.rule, Rule::LeakyBucket(_)) {
                let at = Timestamp::from_micros(now);
                let state = after.state.and_then(|s| given_back(&history.rule, s, charge(at, cost, &decision), at));
                let refunded = Kept { rule: kept.rule, state };
                let (with, without) = (refunded.peek(now, 0).1.remaining, kept.peek(now, 0).1.remaining);
                // To charge looks at parts of a tick, to look does not.
                prop_assert!(with == without || (with > without && tick_us(&history.rule) > 1));
            }
            Ok(())
        })?;
    }

    /// More than was charged is charged whatever the limit, less is given back, and the same changes nothing.
    #[test]
    fn what_is_settled_at_once_is_as_if_it_had_been_charged_so(history in history_of(ALL), spent in 0..40_u64) {
        play(&history, |kept, now, cost| {
            let mut charged = Kept { rule: kept.rule, state: kept.state.clone() };
            let decision = charged.decide(now, cost);
            if decision.verdict == Verdict::Deny || cost == 0 || matches!(history.rule, Rule::LeakyBucket(_)) {
                return Ok(());
            }
            let at = Timestamp::from_micros(now);
            let settle = |units| {
                let settled = Settled::Spent(Cost::new(units));
                let state = history.rule.settle(charged.state.clone(), charge(at, cost, &decision), settled, at);
                Kept { rule: kept.rule, state }
            };
            prop_assert_eq!(&settle(cost).state, &charged.state);
            let (before, left) = (kept.peek(now, 0).1.remaining, settle(spent).peek(now, 0).1);
            let expected = before.saturating_sub(spent);
            // To charge looks at parts of a tick, to look does not.
            prop_assert!(left.remaining == expected || (left.remaining > expected && tick_us(&history.rule) > 1));
            // Debt goes as usage does; the clock stands still where it cannot be counted any further.
            let paid_at = now + left.reset_after_us;
            if paid_at <= EXACT_MAX {
                prop_assert_eq!(settle(spent).peek(paid_at, 0).1.remaining, history.rule.capacity());
            }
            Ok(())
        })?;
    }

    // Not of windows from the first request on: what is given back has still begun one.
    #[test]
    fn a_refund_never_leaves_more_than_if_nothing_had_been_charged(
        history in history_of(&[0, 2, 3, 4, 5, 6, 7]), between in 0..5_000_000_u64, other in 0..5_u64, later in 0..5_000_000_u64,
    ) {
        play(&history, |kept, now, cost| {
            let mut charged = Kept { rule: kept.rule, state: kept.state.clone() };
            let mut spared = Kept { rule: kept.rule, state: kept.state.clone() };
            let decision = charged.decide(now, cost);
            if decision.verdict == Verdict::Deny {
                return Ok(());
            }
            // Somebody else comes, and is charged in both worlds or in neither.
            let then = now + between;
            if charged.decide(then, other).verdict == Verdict::Allow {
                spared.decide(then, other);
            }
            let refunded_at = then + later;
            let at = Timestamp::from_micros;
            charged.state =
                charged.state.and_then(|s| given_back(&history.rule, s, charge(at(now), cost, &decision), at(refunded_at)));
            for probe in [refunded_at, refunded_at + 1, refunded_at + between, refunded_at + later] {
                // Without a charge, all is at most a tick late.
                let on_time = probe + tick_us(&history.rule) - 1;
                let (with, without) = (charged.peek(probe, 0).1.remaining, spared.peek(on_time, 0).1.remaining);
                prop_assert!(with <= without, "{} after a refund, {} without a charge", with, without);
                if matches!(history.rule, Rule::SlidingLog(_)) {
                    prop_assert_eq!(with, without, "a log forgets the charge, whoever came since");
                }
            }
            Ok(())
        })?;
    }

    /// Requests that are charged at once and given back later, several at a time: what the others were allowed between
    /// any two moments is still no more than the bucket holds and earns.
    #[test]
    fn however_many_are_given_back_a_bucket_lets_no_more_pass(
        count in 1..20_u64,
        burst in 1..20_u64,
        steps in prop::collection::vec((0..800_000_u64, 1..6_u64, prop::option::of(0..3_000_000_u64)), 1..60),
    ) {
        let window_us = 10_000_000_u64;
        let rule = TokenBucket::new(limit(count, window_us), NonZeroU64::new(burst).unwrap()).unwrap();
        let (mut state, mut now) = (None, START_US);
        let mut open: Vec<(u64, Charge)> = Vec::new();
        let mut kept: Vec<(u64, u64)> = Vec::new();
        let give_back = |state: Option<_>, open: &mut Vec<(u64, Charge)>, until: u64| {
            open.sort_by_key(|(at, _)| *at);
            let due = open.partition_point(|(at, _)| *at <= until);
            open.drain(..due).fold(state, |state, (at, charge)| {
                state.and_then(|state| rule.refund(state, charge, Timestamp::from_micros(at)))
            })
        };
        for (gap, cost, given_back_after) in steps {
            now += gap;
            state = give_back(state, &mut open, now);
            let at = Timestamp::from_micros(now);
            let (change, decision) = rule.decide(state, at, Cost::new(cost));
            state = change.or(state);
            if decision.verdict == Verdict::Deny {
                continue;
            }
            match given_back_after {
                Some(after) => open.push((now + after, charge(at, cost, &decision))),
                None => kept.push((now, cost)),
            }
        }
        for (first, (from, _)) in kept.iter().enumerate() {
            let mut passed = 0;
            for (until, cost) in &kept[first..] {
                passed += cost;
                let earned = count * (until - from) / window_us;
                prop_assert!(passed <= burst + earned, "{passed} within {} us", until - from);
            }
        }
    }

    #[test]
    fn shares_add_up_to_the_limit_and_a_unit_each(rule in rule_of(ALL), instances in 1..100_u32) {
        let share = rule.share(NonZeroU32::new(instances).unwrap());
        let n = u128::from(instances);
        let wide = u128::from;
        prop_assert!(n * wide(share.capacity()) < wide(rule.capacity()) + n);
        // At the end of what can be counted the burst gives way.
        prop_assert!(is_at_the_end(&rule) || n * wide(share.capacity()) >= wide(rule.capacity()));
        // Units per window of the whole: n shares of it, each rounded up at most.
        let (whole, part) = (rule.limit().unwrap(), share.limit().unwrap());
        let together = n * wide(part.count.get()) * wide(whole.window_us.get());
        prop_assert!(together >= wide(whole.count.get()) * wide(part.window_us.get()));
        prop_assert!(together < (wide(whole.count.get()) + n) * wide(part.window_us.get()));
        prop_assert_eq!(rule.share(NonZeroU32::MIN), rule);
    }

    #[test]
    fn an_edit_keeps_what_was_used(
        history in history_of(&[0, 1, 2, 3, 4, 5, 7]), count in 1..2_000_u64, burst in 1..2_000_u64,
    ) {
        let limit = limit(count, history.rule.limit().unwrap().window_us.get());
        let edited = match &history.rule {
            Rule::FixedWindow(r) => Rule::FixedWindow(FixedWindow::new(limit, r.anchor().clone()).unwrap()),
            Rule::SlidingLog(_) => Rule::SlidingLog(SlidingLog::new(limit).unwrap()),
            Rule::SlidingCounter(r) => Rule::SlidingCounter(SlidingCounter::new(limit, r.strict()).unwrap()),
            _ => match TokenBucket::new(limit, whole(burst)) {
                Ok(rule) => Rule::TokenBucket(rule),
                Err(_) => return Ok(()),
            },
        };
        let mut end = START_US + history.offset_us;
        let mut state = None;
        play(&history, |kept, now, cost| {
            let mut after = Kept { rule: kept.rule, state: kept.state.clone() };
            after.decide(now, cost);
            (state, end) = (after.state, now);
            Ok(())
        })?;
        let before = Kept { rule: &history.rule, state: state.clone() };
        let after = Kept { rule: &edited, state };
        // A bucket counts what is owed since its stamp by the new rate: then look at the moment of the charge.
        let charged_at = match before.state {
            Some(State::Bucket(kept)) => kept.stamp.as_micros(),
            _ => end,
        };
        let used = history.rule.capacity() - before.peek(charged_at, 0).1.remaining;
        let used_then = edited.capacity() - after.peek(charged_at, 0).1.remaining;
        if !matches!(history.rule, Rule::SlidingCounter(_)) {
            let expected = used.min(edited.capacity());
            prop_assert_eq!(used_then, expected);
        }
        if let Some(wait) = after.peek(charged_at, 1).1.retry_after_us.filter(|w| charged_at + w <= EXACT_MAX) {
            prop_assert!(after.allows(charged_at + wait, 1));
        }
    }

    #[test]
    fn the_largest_that_fits_is_told(window_us in window_us(), count in 1..=UNITS_MAX, burst in 1..=UNITS_MAX) {
        let limit = |count| limit(count, window_us);
        if let Err(e) = TokenBucket::new(limit(count), whole(burst)) {
            prop_assert_eq!(e.found, burst);
            if let Some(largest) = NonZeroU64::new(e.largest) {
                prop_assert!(TokenBucket::new(limit(count), largest).is_ok());
            }
            prop_assert!(TokenBucket::new(limit(count), whole(e.largest + 1)).is_err());
            prop_assert!(LeakyBucket::new(limit(count), whole(e.largest + 1), None).is_err());
        }
        if let Err(e) = SlidingCounter::new(limit(count), false) {
            prop_assert!(SlidingCounter::new(limit(e.largest), false).is_ok());
            prop_assert!(SlidingCounter::new(limit(e.largest + 1), false).is_err());
        }
        prop_assert!(SlidingCounter::new(limit(count), true).is_ok());
        prop_assert!(SlidingLog::new(limit(count)).is_ok());
        prop_assert!(FixedWindow::new(limit(count), Anchor::Epoch).is_ok());
    }

    /// The whole history against its definition, in fractions.
    #[test]
    fn every_kind_is_what_its_definition_says(history in history_of(ALL)) {
        follows_its_definition(&history)?;
    }

    #[test]
    fn a_bucket_in_coarse_ticks_is_never_early_and_less_than_a_tick_late(history in coarse_history()) {
        follows_its_definition(&history)?;
    }
}

fn follows_its_definition(history: &History) -> Result<(), TestCaseError> {
    let mut allowed: Vec<(u64, u64)> = Vec::new();
    let capacity = u128::from(history.rule.capacity());
    play(history, |kept, now, cost| {
        let decision = kept.peek(now, cost).1;
        let free = Definition {
            rule: &history.rule,
            allowed: &allowed,
        };
        let used = free.used(now);
        let passes = cost == 0
            || (used + Fraction::units(cost, &history.rule)
                <= Fraction::units_wide(capacity, &history.rule)
                && free.is_patient(now));
        let ticks_late = tick_us(&history.rule);
        if decision.verdict == Verdict::Allow {
            prop_assert!(passes, "allowed what the definition denies");
        } else if ticks_late == 1 {
            prop_assert!(!passes, "denied what the definition allows");
        } else {
            // In coarse ticks a denial may last less than a tick too long.
            prop_assert!(!passes || decision.retry_after_us.is_some_and(|w| w < ticks_late));
        }
        if decision.verdict == Verdict::Allow && cost > 0 {
            allowed.push((now, cost));
        }
        Ok(())
    })
}

/// What a bucket counts its time in.
fn tick_us(rule: &Rule) -> u64 {
    match rule {
        Rule::TokenBucket(rule) => rule.script_numbers()[3],
        Rule::LeakyBucket(rule) => rule.script_numbers()[3],
        _ => 1,
    }
}

#[test]
fn a_turn_is_given_back_while_nobody_has_queued_up_behind_whatever_the_tick() {
    for (count, window_us) in [(1_000, DAY_US), (123_457, DAY_US), (999_983, 30 * DAY_US)] {
        let burst = NonZeroU64::new(count).unwrap();
        let rule = LeakyBucket::new(limit(count, window_us), burst, None).unwrap();
        let tick_us = rule.script_numbers()[3];
        let at = |after_us: u64| Timestamp::from_micros(START_US + after_us);
        let ask = |state, after_us| {
            let (change, decision) = rule.decide(state, at(after_us), Cost::new(10));
            assert_eq!(decision.verdict, Verdict::Allow);
            (change.unwrap(), decision)
        };
        let (first, told) = ask(None, 0);
        let of_first = charge(at(0), 10, &told);
        // Within the same tick, and in the next.
        for later in [tick_us / 2, tick_us + tick_us / 2] {
            let (second, told) = ask(Some(first), later);
            // Somebody is behind the first: nobody would start sooner for that, or two would start at once.
            assert_eq!(rule.refund(second, of_first, at(later + 1)), Some(second));
            // Nobody is behind the second.
            let of_second = charge(at(later), 10, &told);
            let left = rule.refund(second, of_second, at(later + 1)).unwrap();
            assert!(left.debt < second.debt, "{count} per {window_us}");
        }
    }
}
