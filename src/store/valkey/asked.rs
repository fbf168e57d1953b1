//! What a call asks of a script, as `lua/asked.lua`, `lua/decide.lua`, `lua/settle.lua` and `lua/hold.lua` read it: one
//! string of packed numbers. A number that is an argument of its own costs the server more than the arithmetic on it.

use std::collections::HashMap;

use super::key::{key, penalty_key};
use super::slots::{Holder, Tell};
use crate::check::Check;
use crate::clock::wall_now_us;
use crate::decide::{Anchor, Cost, Limit, Penalty, Rule, Settled, Timestamp};
use crate::store::Settlement;

/// One request, as it stands in a call.
#[derive(Clone, Debug)]
pub(crate) struct Part(Vec<Asked>);

/// One check of it.
#[derive(Clone, Debug)]
struct Asked {
    key: String,
    rule: Rule,
    /// Who holds what is taken, where it is lent.
    holder: Holder,
    cost: Cost,
    shadow: bool,
    beside: Option<Punishing>,
}

/// The penalty beside it.
#[derive(Clone, Debug)]
struct Punishing {
    key: String,
    penalty: Penalty,
    begins: bool,
}

impl Part {
    pub(crate) fn new(
        prefix: &str,
        checks: &[Check<'_>],
        holder_of: impl Fn(&Check<'_>) -> Holder,
    ) -> Self {
        let asked = checks.iter().map(|check| Asked {
            key: key(prefix, check),
            rule: check.rule.clone(),
            holder: holder_of(check),
            cost: check.cost,
            shadow: check.shadow,
            beside: Punishing::of(prefix, check),
        });
        Self(asked.collect())
    }

    /// How many checks it has.
    pub(crate) const fn checks(&self) -> usize {
        self.0.len()
    }
}

impl Punishing {
    fn of(prefix: &str, check: &Check<'_>) -> Option<Self> {
        let beside = check.beside(None)?;
        Some(Self {
            key: penalty_key(prefix, check)?,
            penalty: beside.penalty.clone(),
            begins: beside.begins,
        })
    }
}

/// What a call asks that decides these requests, at `now` or at the server's own time: the keys, each once, and what is
/// asked about them.
pub(super) fn decisions<'p>(
    parts: impl Iterator<Item = &'p Part> + Clone,
    now: Option<Timestamp>,
    slack_ms: u64,
) -> (Vec<&'p str>, Vec<u8>) {
    let asked = || parts.clone().flat_map(|part| &part.0);
    let rules = Rules::of(
        asked().map(|asked| (&asked.rule, asked.holder)),
        asked().filter_map(|asked| Some(&asked.beside.as_ref()?.penalty)),
    );
    let mut bytes = rules.head(now, slack_ms);
    let (mut keys, mut numbers) = (Vec::new(), HashMap::new());
    for Part(checks) in parts {
        for (place, asked) in checks.iter().enumerate() {
            let mut number_of = |key: &'p str| {
                *numbers.entry(key).or_insert_with(|| {
                    keys.push(key);
                    number(keys.len())
                })
            };
            let number_of_key = number_of(&asked.key);
            let is_last = place.saturating_add(1) == checks.len();
            bytes.extend(number_of_key.to_be_bytes());
            bytes.extend(rules.number_of(&asked.rule, asked.holder).to_be_bytes());
            add_six(&mut bytes, asked.cost.units());
            let flags = u8::from(!asked.shadow) | u8::from(is_last) << 1;
            let Some(beside) = &asked.beside else {
                bytes.push(flags);
                continue;
            };
            bytes.push(flags | 4 | u8::from(beside.begins) << 3);
            bytes.extend(number_of(&beside.key).to_be_bytes());
            bytes.extend(rules.number_of_penalty(&beside.penalty).to_be_bytes());
        }
    }
    (keys, bytes)
}

/// What a call asks that settles these charges, at `now` or at the server's own time.
pub(super) fn settlements(
    settlements: &[Settlement<'_>],
    now: Option<Timestamp>,
    slack_ms: u64,
) -> Vec<u8> {
    let nobody = Holder::default();
    let rules = Rules::of(
        settlements.iter().map(|it| (it.check.rule, nobody)),
        settlements.iter().filter_map(penalty_of),
    );
    let mut bytes = rules.head(now, slack_ms);
    for Settlement {
        check,
        charge,
        settled,
    } in settlements
    {
        bytes.extend(rules.number_of(check.rule, nobody).to_be_bytes());
        add_seven(&mut bytes, charge.at.as_micros());
        add_six(&mut bytes, charge.cost.units());
        add_seven(&mut bytes, charge.reset_after_us);
        let spent = match settled {
            Settled::Spent(cost) => cost.units(),
            // More than any cost.
            Settled::Forgotten => u64::MAX,
        };
        add_six(&mut bytes, spent);
        let penalty = check.policy.penalty.as_ref();
        let penalty = penalty.map_or(0, |penalty| rules.number_of_penalty(penalty));
        bytes.extend(penalty.to_be_bytes());
    }
    bytes
}

fn penalty_of<'a>(settlement: &Settlement<'a>) -> Option<&'a Penalty> {
    settlement.check.policy.penalty.as_ref()
}

/// What a call asks that says what is held.
pub(super) fn held(tells: &[Tell], slack_ms: u64) -> Vec<u8> {
    let rules = tells.iter().map(|tell| (&tell.rule, tell.holder));
    let rules = Rules::of(rules, std::iter::empty());
    // No calendar is among them.
    let mut bytes = rules.head(None, slack_ms);
    for tell in tells {
        bytes.extend(rules.number_of(&tell.rule, tell.holder).to_be_bytes());
        bytes.extend(tell.more.to_be_bytes());
    }
    bytes
}

/// The rules of a call, each once for everybody who holds what it lends, by kind; and the penalties, each once.
struct Rules<'a> {
    rules: Vec<(&'a Rule, Holder)>,
    penalties: Vec<&'a Penalty>,
}

impl<'a> Rules<'a> {
    fn of(
        rules: impl Iterator<Item = (&'a Rule, Holder)>,
        penalties: impl Iterator<Item = &'a Penalty>,
    ) -> Self {
        let mut distinct: Vec<(&Rule, Holder)> = Vec::new();
        for rule in rules {
            if !distinct.contains(&rule) {
                distinct.push(rule);
            }
        }
        distinct.sort_by_key(|(rule, _)| place_of(rule));
        let mut different: Vec<&Penalty> = Vec::new();
        for penalty in penalties {
            if !different.contains(&penalty) {
                different.push(penalty);
            }
        }
        Self {
            rules: distinct,
            penalties: different,
        }
    }

    fn number_of_penalty(&self, penalty: &Penalty) -> u16 {
        let place = self.penalties.iter().position(|known| *known == penalty);
        number(place.map_or(0, |place| place.saturating_add(1)))
    }

    fn number_of(&self, rule: &Rule, holder: Holder) -> u16 {
        let is_it = |known: &(&Rule, Holder)| *known == (rule, holder);
        let place = self.rules.iter().position(is_it);
        number(place.map_or(0, |place| place.saturating_add(1)))
    }

    /// What a call begins with: `lua/asked.lua`.
    fn head(&self, now: Option<Timestamp>, slack_ms: u64) -> Vec<u8> {
        let mut head = Vec::with_capacity(128);
        add_seven(&mut head, slack_ms);
        for kind in 0..KINDS {
            let of_kind = self.rules.iter().filter(|(rule, _)| place_of(rule) == kind);
            head.extend(number(of_kind.count()).to_be_bytes());
        }
        head.extend(number(self.penalties.len()).to_be_bytes());
        for (rule, holder) in &self.rules {
            add_numbers(&mut head, rule, *holder, now);
        }
        for penalty in &self.penalties {
            let steps = penalty.steps_us();
            head.push(u8::try_from(steps.len()).unwrap_or(u8::MAX));
            for step in steps {
                add_seven(&mut head, step.get());
            }
        }
        head
    }
}

const KINDS: usize = 6;

/// The place of a rule's kind among those of the scripts.
const fn place_of(rule: &Rule) -> usize {
    match rule {
        Rule::TokenBucket(_) => 0,
        Rule::LeakyBucket(_) => 1,
        Rule::FixedWindow(_) => 2,
        Rule::SlidingCounter(_) => 3,
        Rule::SlidingLog(_) => 4,
        Rule::Concurrency(_) => 5,
    }
}

/// The number of something in a call, from 1. So many that they have none are more than any script takes.
fn number(of: usize) -> u16 {
    u16::try_from(of).unwrap_or(u16::MAX)
}

/// Adds what the kind's script says of its numbers, which is asked at `now` or at the server's own time.
fn add_numbers(bytes: &mut Vec<u8>, rule: &Rule, holder: Holder, now: Option<Timestamp>) {
    let mut add = |numbers: &[u64]| {
        for number in numbers {
            add_seven(bytes, *number);
        }
    };
    match rule {
        Rule::TokenBucket(rule) => add(&rule.script_numbers()),
        Rule::LeakyBucket(rule) => {
            add(&rule.script_numbers());
            // All bits set are -1.
            add(&[rule.max_wait_us().unwrap_or(u64::MAX)]);
        }
        Rule::FixedWindow(rule) => {
            add(&numbers_of(rule.limit()));
            match rule.anchor() {
                Anchor::FirstRequest => bytes.push(0),
                Anchor::Epoch => bytes.push(1),
                Anchor::Calendar(calendar) => {
                    bytes.push(2);
                    // Our clock only says which edges the script may need: it picks by its own.
                    let now = now.unwrap_or_else(|| Timestamp::from_micros(wall_now_us()));
                    for edge in calendar.edges_around(now) {
                        bytes.extend(edge.to_be_bytes());
                    }
                }
            }
        }
        Rule::SlidingCounter(rule) => {
            add(&numbers_of(rule.limit()));
            add(&rule.script_numbers());
        }
        Rule::SlidingLog(rule) => add(&numbers_of(rule.limit())),
        Rule::Concurrency(rule) => {
            add(&[rule.limit().get(), rule.lease_us().get()]);
            bytes.extend(holder.as_bytes());
        }
    }
}

const fn numbers_of(limit: Limit) -> [u64; 2] {
    [limit.count.get(), limit.window_us.get()]
}

/// Adds a number that is less than 2^56, as all of ours are.
fn add_seven(bytes: &mut Vec<u8>, number: u64) {
    let [_, seven @ ..] = number.to_be_bytes();
    bytes.extend(seven);
}

/// Adds a cost: less than 2^48.
fn add_six(bytes: &mut Vec<u8>, units: u64) {
    let [_, _, six @ ..] = units.to_be_bytes();
    bytes.extend(six);
}
