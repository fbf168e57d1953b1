//! A gateway: the real breaker, the real store in process and the real shares, with a network that is told to it.
//!
//! What connects these is written as `store/valkey` and `store/limiter.rs` have it: decisions ask while the breaker is
//! closed, one actor probes while it is open and announces the gateway while it is closed.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use tollgate::check::{Check, Policy};
use tollgate::clock::{Clock, ManualClock};
use tollgate::decide::{Cost, Decision, Rule, Timestamp};
use tollgate::store::local::{LocalStore, Outage};
use tollgate::store::valkey::breaker::{Breaker, IN_A_ROW_MAX};
use tollgate::store::valkey::census::Census;

use super::server::Question;
use super::world::{MS, SECOND};
use crate::support::policies::check;

/// `store.timeout` and `store.connect_timeout`, by default.
pub(super) const TIMEOUT: u64 = 20 * MS;
const CONNECT_TIMEOUT: u64 = 500 * MS;

/// How often a gateway announces itself.
const ANNOUNCED_EVERY: u64 = SECOND;

/// What a gateway waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) at: u64,
    pub(super) question: Question,
    /// Of the connection that it went over.
    link: Option<u64>,
}

/// What the actor does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Actor {
    /// Waits for this moment: to probe, or to announce.
    Until(u64),
    /// Waits for the answer to this question.
    For(u64),
}

/// What ends a question without an answer, and whom it blames.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Failure {
    Timeout,
    Connection,
}

/// A decision in process since the store gave none.
#[derive(Clone, Debug)]
pub(super) struct Fallback {
    pub(super) decision: Decision,
    /// Which outage it was counted in.
    pub(super) outage: u32,
    /// The share that it was counted against.
    pub(super) share: Rule,
}

pub(super) struct Gateway {
    pub(super) breaker: Breaker,
    /// The number of the connection that decisions may use.
    link: Option<u64>,
    links: u64,
    /// Whether a connection is there that is not yet for all.
    candidate: bool,
    answered: u64,
    unproven: bool,
    recoveries: u32,
    /// How many gateways it last saw.
    pub(super) instances: u32,
    census: Census,
    local: LocalStore,
    clock: ManualClock,
    ahead: u64,
    pub(super) actor: Actor,
    pub(super) waiting: BTreeMap<u64, Asked>,
    /// Whether it has tried to reach the store: nothing is served before.
    pub(super) tried: bool,
    /// Failures of decisions since the last good one.
    in_a_row: u32,
    began: Instant,
}

impl Gateway {
    /// Its clock is `ahead` of everybody's; time itself is counted from `began`.
    pub(super) fn new(now: u64, ahead: u64, began: Instant) -> Self {
        let clock = ManualClock::default();
        let max_keys = NonZeroUsize::new(100).unwrap();
        Self {
            breaker: Breaker::new(began + Duration::from_micros(now)),
            link: None,
            links: 0,
            candidate: false,
            answered: 0,
            unproven: false,
            recoveries: 0,
            instances: 0,
            census: Census::new(),
            local: LocalStore::new(max_keys, Clock::Manual(clock.clone())),
            clock,
            ahead,
            actor: Actor::Until(now),
            waiting: BTreeMap::new(),
            tried: false,
            in_a_row: 0,
            began,
        }
    }

    fn moment(&self, now: u64) -> Instant {
        self.began + Duration::from_micros(now)
    }

    /// Whether decisions are asked of the store.
    pub(super) fn is_up(&self) -> bool {
        assert_eq!(self.link.is_some(), self.breaker.is_closed());
        self.link.is_some()
    }

    /// Puts a question. Says how long it waits for the answer at most.
    pub(super) fn ask(&mut self, now: u64, id: u64, question: Question) -> u64 {
        let link = self.link;
        let patience = match question {
            Question::Decide { .. } => {
                assert!(self.is_up(), "nobody waits while the breaker is open");
                assert!(
                    self.in_a_row < IN_A_ROW_MAX,
                    "nobody waits after so many failures"
                );
                TIMEOUT
            }
            Question::Announce => {
                assert!(
                    matches!(self.actor, Actor::Until(at) if at <= now),
                    "one probe at a time, and not before it is due"
                );
                self.actor = Actor::For(id);
                if self.is_up() || !self.candidate {
                    CONNECT_TIMEOUT
                } else {
                    TIMEOUT
                }
            }
        };
        let before = self.waiting.insert(
            id,
            Asked {
                at: now,
                question,
                link,
            },
        );
        assert!(before.is_none());
        patience
    }

    /// The store decided. What is counted here is of an outage that is over.
    pub(super) fn decided(&mut self) {
        self.answered += 1;
        self.in_a_row = 0;
        if self.unproven {
            self.unproven = false;
            self.breaker.proved();
            self.recoveries += 1;
        }
        self.local.set_outage(Outage::after(self.recoveries));
    }

    /// A question had no answer.
    pub(super) fn failed(&mut self, now: u64, asked: Asked, failure: Failure, chance: u32) {
        let moment = self.moment(now);
        match asked.question {
            Question::Announce if asked.link.is_none() => {
                self.candidate = false;
                self.breaker.probed(false, moment, chance);
                self.rest(now);
                return;
            }
            Question::Announce => self.rest(now),
            Question::Decide { .. } => {}
        }
        // What comes from a connection that is gone says nothing about this one.
        if asked.link != self.link {
            return;
        }
        let opened = match (failure, asked.question) {
            (Failure::Timeout, Question::Decide { .. }) => {
                self.in_a_row += 1;
                self.breaker.failed(moment, self.answered, chance)
            }
            _ => self.breaker.lost(moment, chance),
        };
        if opened {
            self.link = None;
            self.unproven = false;
            self.candidate = false;
            // An announcement that is under way is waited for first.
            if matches!(self.actor, Actor::Until(_)) {
                self.rest(now);
            }
        }
    }

    /// The server heard of us.
    pub(super) fn heard(&mut self, now: u64, asked: Asked, alive: u32, chance: u32) {
        let moment = self.moment(now);
        if asked.link.is_none() && !self.candidate {
            self.candidate = true;
            self.census.connected(moment);
        }
        self.instances = self.census.heard(alive, moment);
        if asked.link.is_none() {
            self.links += 1;
            if self.breaker.probed(true, self.moment(now), chance) {
                self.link = Some(self.links);
                self.unproven = true;
                self.in_a_row = 0;
            }
        }
        self.rest(now);
    }

    /// What the actor does next.
    fn rest(&mut self, now: u64) {
        self.tried = true;
        self.actor = Actor::Until(match self.breaker.probe_at() {
            Some(at) => {
                let at = at.saturating_duration_since(self.began);
                u64::try_from(at.as_micros()).unwrap()
            }
            None => now + ANNOUNCED_EVERY,
        });
    }

    /// Whether it needs a new connection, which takes more than one question.
    pub(super) fn connects(&self) -> bool {
        !self.is_up() && !self.candidate
    }

    /// Decides by its share.
    pub(super) fn fall_back(&mut self, now: u64, policy: &Policy, cost: u64) -> Fallback {
        self.clock.set(Timestamp::from_micros(now + self.ahead));
        let outage = Outage::after(self.recoveries);
        self.local.set_outage(outage);
        let share = policy.limits.shares.among(self.instances);
        let check = Check {
            rule: share,
            ..check(policy, 0, cost)
        };
        let (_, decisions) = self.local.decide_in(outage, &[check]).unwrap();
        Fallback {
            decision: decisions[0],
            outage: self.recoveries,
            share: share.clone(),
        }
    }

    /// What its share decides for somebody who was never seen.
    pub(super) fn afresh(&self, now: u64, share: &Rule, cost: u64) -> Decision {
        let now = Timestamp::from_micros(now + self.ahead);
        share.decide(None, now, Cost::new(cost)).1
    }
}
