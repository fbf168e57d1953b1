//! Gateways, a store and what is between them, in time that passes when the next thing happens.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use tollgate::check::Policy;
use tollgate::clock::monotonic_now;
use tollgate::decide::Verdict;

use super::events::{Event, Fault, Message, Passed, Ruled};
use super::gateway::{Actor, Failure, Gateway, TIMEOUT};
use super::server::{Health, LEASE, Question, Reply, Server};
use crate::support::policies::check;

/// In microseconds, like all time here.
pub(super) const MS: u64 = 1_000;
pub(super) const SECOND: u64 = 1_000_000;

/// How soon after the store's return limits are shared again.
pub(super) const BACK_WITHIN: u64 = 2 * SECOND;

pub(super) struct World<'p> {
    pub(super) random: fastrand::Rng,
    policy: &'p Policy,
    now: u64,
    events: BTreeMap<(u64, u64), Event>,
    numbers: u64,
    began: Instant,
    pub(super) server: Server,
    stalled: Vec<Message>,
    gateways: BTreeMap<usize, Gateway>,
    joined: usize,
    cut: BTreeSet<usize>,
    latency: u64,
    /// Between two requests of a gateway, on average.
    pause: u64,
    /// When something last changed for the worse or the better.
    pub(super) settled_at: u64,
    executed: BTreeSet<u64>,
    outages: BTreeSet<(usize, u32)>,
    pub(super) passed: Vec<Passed>,
    pub(super) ruled: Vec<Ruled>,
    /// What calls took that the server executed and nobody heard of in time.
    pub(super) late: Vec<u64>,
}

impl<'p> World<'p> {
    pub(super) fn new(seed: u64, policy: &'p Policy, gateways: usize, pause: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let ahead = random.u64(..1_000_000 * SECOND);
        let mut world = Self {
            random,
            policy,
            now: 0,
            events: BTreeMap::new(),
            numbers: 0,
            began: monotonic_now(),
            server: Server::new(ahead),
            stalled: Vec::new(),
            gateways: BTreeMap::new(),
            joined: 0,
            cut: BTreeSet::new(),
            latency: MS,
            pause,
            settled_at: 0,
            executed: BTreeSet::new(),
            outages: BTreeSet::new(),
            passed: Vec::new(),
            ruled: Vec::new(),
            late: Vec::new(),
        };
        for _ in 0..gateways {
            world.join();
        }
        world
    }

    pub(super) fn schedule(&mut self, at: u64, fault: Fault) {
        self.at(at, Event::Fault(fault));
    }

    fn at(&mut self, at: u64, event: Event) {
        self.numbers += 1;
        self.events.insert((at, self.numbers), event);
    }

    /// Lets everything happen up to this moment.
    pub(super) fn run_until(&mut self, end: u64) {
        while let Some(next) = self.events.first_entry() {
            if next.key().0 > end {
                break;
            }
            let ((at, _), event) = next.remove_entry();
            self.now = at;
            self.happen(event);
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Fault(fault) => self.befall(fault),
            Event::Request(gateway) => self.request(gateway),
            Event::Act(gateway) => self.act(gateway),
            Event::Arrive(message) => self.arrive(message),
            Event::Answer(message, reply) => self.answer(message, reply),
            Event::GiveUp(gateway, id) => self.end(gateway, id, Failure::Timeout),
        }
    }

    fn befall(&mut self, fault: Fault) {
        self.settled_at = self.now;
        match fault {
            Fault::Health(health) => {
                self.server.health = health;
                match health {
                    Health::Dead => self.lose_connections(),
                    Health::Stalled => {}
                    Health::Well => {
                        for message in std::mem::take(&mut self.stalled) {
                            self.arrive(message);
                        }
                    }
                }
            }
            Fault::FailOver { lag } => {
                self.server.health = Health::Dead;
                self.lose_connections();
                self.server.fail_over(self.now, lag);
            }
            Fault::Cut(gateway, true) => drop(self.cut.insert(gateway)),
            Fault::Cut(gateway, false) => drop(self.cut.remove(&gateway)),
            Fault::Latency(latency) => self.latency = latency,
            Fault::Join => self.join(),
            Fault::Leave(gateway) => drop(self.gateways.remove(&gateway)),
        }
    }

    fn join(&mut self) {
        let ahead = self.random.u64(..1_000_000 * SECOND);
        let gateway = Gateway::new(self.now, ahead, self.began);
        self.gateways.insert(self.joined, gateway);
        self.at(self.now, Event::Act(self.joined));
        self.at(self.now, Event::Request(self.joined));
        self.joined += 1;
    }

    /// What is under way will never be done.
    fn lose_connections(&mut self) {
        self.stalled.clear();
        let asked = self.gateways.iter().flat_map(|(&gateway, its)| {
            its.waiting
                .iter()
                .map(move |(&id, asked)| (gateway, id, asked.question))
        });
        let asked: Vec<_> = asked.collect();
        for (gateway, id, question) in asked {
            let message = Message {
                gateway,
                id,
                question,
            };
            self.reply(message, Reply::Refused);
        }
        self.events
            .retain(|_, event| !matches!(event, Event::Arrive(_)));
    }

    /// How long a message takes.
    fn delay(&mut self) -> u64 {
        let usual = self.random.u64(50..=MS);
        usual.max(self.random.u64(..=self.latency))
    }

    fn request(&mut self, gateway: usize) {
        let Some(its) = self.gateways.get_mut(&gateway) else {
            return;
        };
        let cost = if self.random.u8(..8) == 0 {
            self.random.u64(2..=4)
        } else {
            1
        };
        if its.is_up() {
            self.ask(gateway, Question::Decide { cost }, 1);
        } else if its.tried {
            self.fall_back(gateway, self.now, cost);
        }
        let next = self.now + self.random.u64(1..=self.pause * 2);
        self.at(next, Event::Request(gateway));
    }

    fn act(&mut self, gateway: usize) {
        let now = self.now;
        let due = |its: &Gateway| matches!(its.actor, Actor::Until(at) if at <= now);
        if let Some(its) = self.gateways.get(&gateway).filter(|its| due(its)) {
            // A connection, a login, two scripts.
            let trips = if its.connects() { 4 } else { 1 };
            self.ask(gateway, Question::Announce, trips);
        }
    }

    fn ask(&mut self, gateway: usize, question: Question, trips: u64) {
        self.numbers += 1;
        let id = self.numbers;
        let Some(its) = self.gateways.get_mut(&gateway) else {
            return;
        };
        let give_up_at = self.now + its.ask(self.now, id, question);
        self.at(give_up_at, Event::GiveUp(gateway, id));
        if !self.cut.contains(&gateway) {
            let delay = self.delay() * trips;
            self.at(
                self.now + delay,
                Event::Arrive(Message {
                    gateway,
                    id,
                    question,
                }),
            );
        }
    }

    fn arrive(&mut self, message: Message) {
        match self.server.health {
            Health::Dead => self.reply(message, Reply::Refused),
            Health::Stalled => self.stalled.push(message),
            Health::Well => {
                let cost = match message.question {
                    Question::Decide { cost } => cost,
                    Question::Announce => 0,
                };
                assert!(
                    self.executed.insert(message.id),
                    "executed twice: {message:?}"
                );
                let check = check(self.policy, 0, cost);
                let reply = self
                    .server
                    .execute(self.now, message.gateway, message.question, check);
                self.reply(message, reply);
            }
        }
    }

    fn reply(&mut self, message: Message, reply: Reply) {
        let delay = self.delay();
        self.at(self.now + delay, Event::Answer(message, reply));
    }

    fn answer(&mut self, message: Message, reply: Reply) {
        let (gateway, id) = (message.gateway, message.id);
        if self.cut.contains(&gateway) {
            return;
        }
        let chance = self.random.u32(..=1000);
        let Some(its) = self.gateways.get_mut(&gateway) else {
            return;
        };
        if !its.waiting.contains_key(&id) {
            if let (Reply::Decided { decision, .. }, Question::Decide { cost }) =
                (reply, message.question)
                && decision.verdict == Verdict::Allow
            {
                self.late.push(cost);
            }
            return;
        }
        match reply {
            Reply::Refused => self.end(gateway, id, Failure::Connection),
            Reply::Alive(alive) => {
                if let Some(asked) = its.waiting.remove(&id) {
                    its.heard(self.now, asked, alive, chance);
                    self.rest(gateway);
                    self.count_is_right(gateway);
                }
            }
            Reply::Decided { at, decision } => {
                if let (Some(asked), Question::Decide { cost }) =
                    (its.waiting.remove(&id), message.question)
                {
                    its.decided();
                    self.rule(asked.at, true);
                    if decision.verdict == Verdict::Allow {
                        self.passed.push(Passed {
                            at,
                            units: cost,
                            alone: None,
                        });
                    }
                }
            }
        }
    }

    /// A question had no answer.
    fn end(&mut self, gateway: usize, id: u64, failure: Failure) {
        let chance = self.random.u32(..=1000);
        let Some(its) = self.gateways.get_mut(&gateway) else {
            return;
        };
        let Some(asked) = its.waiting.remove(&id) else {
            return;
        };
        its.failed(self.now, asked, failure, chance);
        self.rest(gateway);
        if let Question::Decide { cost } = asked.question {
            self.fall_back(gateway, asked.at, cost);
        }
    }

    /// Has the actor act when it wants to.
    fn rest(&mut self, gateway: usize) {
        if let Some(Actor::Until(at)) = self.gateways.get(&gateway).map(|its| its.actor) {
            self.at(at.max(self.now), Event::Act(gateway));
        }
    }

    fn fall_back(&mut self, gateway: usize, asked_at: u64, cost: u64) {
        let now = self.now;
        self.rule(asked_at, false);
        let Some(its) = self.gateways.get_mut(&gateway) else {
            return;
        };
        let found = its.fall_back(now, self.policy, cost);
        let outage = (gateway, found.outage);
        if self.outages.insert(outage) {
            // What an earlier outage counted is forgotten.
            assert_eq!(found.decision, its.afresh(now, &found.share, cost));
        }
        if found.decision.verdict == Verdict::Allow {
            self.passed.push(Passed {
                at: now,
                units: cost,
                alone: Some((outage, found.share)),
            });
        }
    }

    fn rule(&mut self, asked_at: u64, by_store: bool) {
        assert!(self.now - asked_at <= TIMEOUT, "a request waited too long");
        self.ruled.push(Ruled { asked_at, by_store });
    }

    /// Once nothing has changed for long enough, a gateway that hears of the others knows how many there are.
    fn count_is_right(&self, gateway: usize) {
        let settled_at = self.settled_at + BACK_WITHIN + LEASE + SECOND;
        if self.now < settled_at || self.server.health != Health::Well || self.latency > MS {
            return;
        }
        let reached = self.gateways.keys().filter(|its| !self.cut.contains(its));
        let seen = self.gateways.get(&gateway).map(|its| its.instances);
        assert_eq!(seen.map(usize::try_from), Some(Ok(reached.count())));
    }

    /// How many each gateway saw last.
    pub(super) fn seen(&self) -> Vec<u32> {
        self.gateways.values().map(|its| its.instances).collect()
    }

    /// What replies that are still under way say was taken.
    pub(super) fn under_way(&self) -> u64 {
        let taken = self.events.values().filter_map(|event| match event {
            Event::Answer(
                Message {
                    question: Question::Decide { cost },
                    ..
                },
                Reply::Decided { decision, .. },
            ) => (decision.verdict == Verdict::Allow).then_some(*cost),
            _ => None,
        });
        taken.sum()
    }

    /// What the store has left.
    pub(super) fn left(&mut self) -> u64 {
        let look = check(self.policy, 0, 0);
        let reply = self
            .server
            .execute(self.now, 0, Question::Decide { cost: 0 }, look);
        match reply {
            Reply::Decided { decision, .. } => decision.remaining,
            other => panic!("no decision: {other:?}"),
        }
    }
}
