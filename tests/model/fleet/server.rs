//! The shared store: the arithmetic of the real one behind a network, with a replica that lags.

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroUsize;

use tollgate::check::{Check, KeySecret};
use tollgate::clock::{Clock, ManualClock};
use tollgate::decide::{Decision, Timestamp, Verdict};
use tollgate::store::local::LocalStore;

use super::world::{MS, SECOND};

/// How long an announcement lasts: what a gateway asks of `lua/announce.lua`.
pub(super) const LEASE: u64 = 5 * SECOND;

/// How often the replica is brought up to date.
const REPLICATED_EVERY: u64 = 50 * MS;

/// How far back a replica may be.
pub(super) const LAG_MAX: u64 = SECOND;

/// What becomes of what arrives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Health {
    Well,
    /// Takes everything, and does it once it goes on.
    Stalled,
    /// Nobody listens.
    Dead,
}

/// What can be asked of it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    Decide { cost: u64 },
    Announce,
}

/// What it says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reply {
    Decided { at: u64, decision: Decision },
    Alive(u32),
    Refused,
}

/// A primary, and what its replica knew at times.
pub(super) struct Server {
    pub(super) health: Health,
    store: LocalStore,
    clock: ManualClock,
    ahead: u64,
    alive: BTreeMap<usize, u64>,
    replicas: VecDeque<Replica>,
    /// Units that it allowed, with their times.
    charged: VecDeque<(u64, u64)>,
    /// Units that failovers forgave, with their times.
    pub(super) forgiven: Vec<(u64, u64)>,
}

/// What a replica knew, and when.
struct Replica {
    at: u64,
    usage: Vec<u8>,
    alive: BTreeMap<usize, u64>,
}

fn secret() -> KeySecret {
    KeySecret::new([9; 32])
}

fn store(clock: &ManualClock) -> LocalStore {
    let max_keys = NonZeroUsize::new(100).unwrap();
    LocalStore::new(max_keys, Clock::Manual(clock.clone()))
}

impl Server {
    /// Its clock is `ahead` of everybody's.
    pub(super) fn new(ahead: u64) -> Self {
        let clock = ManualClock::default();
        Self {
            health: Health::Well,
            store: store(&clock),
            clock,
            ahead,
            alive: BTreeMap::new(),
            replicas: VecDeque::new(),
            charged: VecDeque::new(),
            forgiven: Vec::new(),
        }
    }

    /// Does what a gateway asks, at this moment.
    pub(super) fn execute(
        &mut self,
        now: u64,
        gateway: usize,
        question: Question,
        check: Check<'_>,
    ) -> Reply {
        self.tick(now);
        match question {
            Question::Decide { .. } => {
                let (_, decisions) = self.store.decide_now(&[check]).unwrap();
                if decisions[0].verdict == Verdict::Allow {
                    self.charged.push_back((now, check.cost.units()));
                }
                Reply::Decided {
                    at: now,
                    decision: decisions[0],
                }
            }
            Question::Announce => {
                self.alive.retain(|_, until| *until > now);
                self.alive.insert(gateway, now + LEASE);
                Reply::Alive(u32::try_from(self.alive.len()).unwrap())
            }
        }
    }

    /// The replica as it was `lag` ago takes over: the rest is forgiven.
    pub(super) fn fail_over(&mut self, now: u64, lag: u64) {
        self.tick(now);
        let known = self.replicas.iter().rev().find(|r| r.at + lag <= now);
        let replica = known.unwrap_or(&self.replicas[0]);
        self.store = store(&self.clock);
        self.store.take_over(&replica.usage, &secret()).unwrap();
        self.alive.clone_from(&replica.alive);
        let lost = self.charged.iter().filter(|(at, _)| *at >= replica.at);
        self.forgiven
            .push((now, lost.map(|(_, units)| units).sum()));
        self.charged.retain(|(at, _)| *at < replica.at);
        self.replicas.clear();
        self.tick(now);
    }

    fn tick(&mut self, now: u64) {
        self.clock.set(Timestamp::from_micros(now + self.ahead));
        if self
            .replicas
            .back()
            .is_none_or(|last| last.at + REPLICATED_EVERY <= now)
        {
            self.replicas.push_back(Replica {
                at: now,
                usage: self.store.snapshot(&secret()).unwrap(),
                alive: self.alive.clone(),
            });
        }
        let keep = |at: u64| at + 2 * LAG_MAX > now;
        while self.replicas.len() > 1 && !keep(self.replicas[0].at) {
            self.replicas.pop_front();
        }
        while self.charged.front().is_some_and(|(at, _)| !keep(*at)) {
            self.charged.pop_front();
        }
    }
}
