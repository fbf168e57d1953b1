//! Calls of the scripts: which server makes which, where it sends them on to, and what they come to together.
//!
//! The checks of one entity have one slot, and are one call. Those of several entities of a cluster are several calls at
//! once, each of which charges all of its own or nothing; when one denies, what the others charged is given back. Nothing
//! is looked at first and charged later: between the two others would come.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::failure::{Blame, Redirect, classify, is_no_script, redirect};
use super::node::{Link, Node};
use super::script::{self, DECIDE, REFUND, Script};
use super::topology::slot_of;
use super::{SIMULATION_SLACK_MS, SLACK_MS, Servers, ValkeyStore};
use crate::check::Check;
use crate::clock::Clock;
use crate::decide::{Charge, Decision, Timestamp, Verdict};
use crate::store::{Cause, StoreError, charged};

/// How often one call is sent on, each time by a server that did not make it.
const TRIES_MAX: usize = 8;

/// How long a call waits whose keys are being moved, before it is sent again.
const MOVING_PAUSE: Duration = Duration::from_millis(2);

/// What became of the checks of one request.
#[derive(Debug, Default)]
pub struct Reserved<'a> {
    /// The decisions there are.
    pub decided: Vec<(Check<'a>, Decision)>,
    /// What they charged. It stays charged unless it is given back.
    pub charged: Vec<(Check<'a>, Charge)>,
    /// Those without a decision.
    pub failed: Vec<Check<'a>>,
    /// Why there is none.
    pub failure: Option<StoreError>,
}

impl<'a> Reserved<'a> {
    /// Whether one of the decisions denies the request.
    #[must_use]
    pub fn denies(&self) -> bool {
        self.decided
            .iter()
            .any(|(check, decision)| !check.shadow && decision.verdict == Verdict::Deny)
    }

    fn add(
        &mut self,
        checks: &[Check<'a>],
        outcome: Result<(Timestamp, Vec<Decision>), StoreError>,
    ) {
        match outcome {
            Ok((at, decisions)) => {
                self.charged.extend(charged(checks, &decisions, at));
                self.decided.extend(checks.iter().copied().zip(decisions));
            }
            Err(error) => {
                self.failed.extend(checks);
                self.failure = Some(error);
            }
        }
    }
}

/// What a call is to do.
#[derive(Clone, Copy, Debug)]
enum Job<'j, 'a> {
    Decide(&'j [Check<'a>]),
    Refund(&'j [(Check<'a>, Charge)]),
}

impl Job<'_, '_> {
    fn script(&self) -> &'static Script {
        match self {
            Self::Decide(_) => &DECIDE,
            Self::Refund(_) => &REFUND,
        }
    }

    fn command(&self, prefix: &str, now: Option<Timestamp>) -> Cmd {
        let slack_ms = now.map_or(SLACK_MS, |_| SIMULATION_SLACK_MS);
        let sha = self.script().sha();
        match self {
            Self::Decide(checks) => script::call(sha, prefix, checks, now, slack_ms),
            Self::Refund(charged) => script::refund_call(sha, prefix, charged, now, slack_ms),
        }
    }

    const fn len(&self) -> usize {
        match self {
            Self::Decide(checks) => checks.len(),
            Self::Refund(charged) => charged.len(),
        }
    }
}

/// Why a server gave no decision.
enum Refused {
    /// It lost the script. It did not run.
    NoScript,
    /// Another server is to be asked. It did not run.
    Redirected(Redirect, StoreError),
    /// It takes no writes any more. It did not run.
    Demoted(StoreError),
    /// That is all there is to say.
    Final(StoreError),
}

/// Why a call gave no decision.
enum Failed {
    /// Its keys are in two places at the moment: each alone has one.
    Scattered(StoreError),
    Final(StoreError),
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Scattered(error) | Failed::Final(error) => error,
        }
    }
}

impl ValkeyStore {
    /// Decides `checks`, and charges them. Where a call denies, it charges nothing, but others may have: then
    /// [`ValkeyStore::give_back`] is what all-or-nothing takes.
    ///
    /// Returns within the store's deadline.
    pub async fn reserve<'a>(&self, checks: &[Check<'a>]) -> Reserved<'a> {
        let deadline = Instant::now() + self.timeout();
        let mut reserved = Reserved::default();
        if matches!(self.servers, Servers::One(_)) {
            let outcome = self.make(None, Job::Decide(checks), deadline).await;
            reserved.add(checks, outcome.map_err(StoreError::from));
            return reserved;
        }
        let parts = by_slot(checks, |check| check);
        let calls = parts
            .iter()
            .map(|(slot, part)| self.make(Some(*slot), Job::Decide(part), deadline));
        let mut scattered = Vec::new();
        for ((slot, part), outcome) in parts.iter().zip(join_all(calls).await) {
            match outcome {
                Err(Failed::Scattered(_)) => {
                    scattered.extend(part.iter().map(|check| (*slot, [*check])));
                }
                outcome => reserved.add(part, outcome.map_err(StoreError::from)),
            }
        }
        let calls = scattered
            .iter()
            .map(|(slot, part)| self.make(Some(*slot), Job::Decide(part), deadline));
        for ((_, part), outcome) in scattered.iter().zip(join_all(calls).await) {
            reserved.add(part, outcome.map_err(StoreError::from));
        }
        reserved
    }

    /// Gives back what a request charged that is denied after all, as far as nobody gains by it, and has the decisions
    /// tell what is left then. What cannot be given back within the store's deadline stays charged.
    pub async fn give_back(&self, reserved: &mut Reserved<'_>) {
        let charged = std::mem::take(&mut reserved.charged);
        if charged.is_empty() {
            return;
        }
        let deadline = Instant::now() + self.timeout();
        let parts = by_slot(&charged, |(check, _)| check);
        let calls = parts.iter().map(async |(slot, part)| {
            match self.make(Some(*slot), Job::Refund(part), deadline).await {
                Ok((_, left)) => left,
                Err(Failed::Scattered(_)) => {
                    let alone = part.iter().map(|charge| {
                        self.make(
                            Some(*slot),
                            Job::Refund(std::slice::from_ref(charge)),
                            deadline,
                        )
                    });
                    let left = join_all(alone).await;
                    // Those before one that failed; of the others the decision stays as it was.
                    left.into_iter()
                        .map_while(|left| left.ok()?.1.pop())
                        .collect()
                }
                Err(Failed::Final(_)) => Vec::new(),
            }
        });
        for ((_, part), left) in parts.iter().zip(join_all(calls).await) {
            for ((check, _), left) in part.iter().zip(left) {
                let is_of = |decided: &&mut (Check<'_>, Decision)| {
                    decided.0.policy.index == check.policy.index
                };
                if let Some((_, decision)) = reserved.decided.iter_mut().find(is_of) {
                    decision.tell_of(&left);
                }
            }
        }
    }

    /// Makes a call, wherever it is sent on to. Only what certainly was not made is sent again.
    async fn make(
        &self,
        slot: Option<u16>,
        job: Job<'_, '_>,
        deadline: Instant,
    ) -> Result<(Timestamp, Vec<Decision>), Failed> {
        let mut node = self.node_of(slot).map_err(Failed::Final)?;
        let mut link = node
            .link()
            .ok_or_else(|| Failed::Final(no_connection(&node)))?;
        let mut asking = false;
        let mut last = None;
        for _ in 0..TRIES_MAX {
            let refused = match self.try_on(&node, &link, job, asking, deadline).await {
                Ok(decided) => return Ok(decided),
                Err(refused) => refused,
            };
            let why = match refused {
                Refused::NoScript => {
                    self.load(&node, &link, job.script(), deadline)
                        .await
                        .map_err(Failed::Final)?;
                    StoreError::NotRun(Cause::Script, "script lost again and again".to_owned())
                }
                Refused::Redirected(Redirect::TryAgain, error) if job.len() > 1 => {
                    return Err(Failed::Scattered(error));
                }
                Refused::Redirected(Redirect::TryAgain, error) => {
                    sleep_until(deadline.min(Instant::now() + MOVING_PAUSE)).await;
                    error
                }
                Refused::Redirected(redirect, error) => {
                    let Some(next) = self.follow(slot, &redirect, deadline).await else {
                        return Err(Failed::Final(error));
                    };
                    asking = matches!(redirect, Redirect::Ask(_));
                    node = next;
                    // One that is new may still be connecting. One that failed is left alone.
                    let found = match node.last_error() {
                        None => node.await_link(deadline).await,
                        Some(_) => node.link(),
                    };
                    match found {
                        Some(next) => link = next,
                        None => return Err(Failed::Final(no_connection(&node))),
                    }
                    error
                }
                // The one that took its place is found by whoever keeps the connection.
                Refused::Demoted(error) => match node.await_link(deadline).await {
                    Some(next) => {
                        link = next;
                        error
                    }
                    None => return Err(Failed::Final(error)),
                },
                Refused::Final(error) => return Err(Failed::Final(error)),
            };
            last = Some(why);
            if Instant::now() >= deadline {
                break;
            }
        }
        Err(Failed::Final(last.unwrap_or_else(|| no_connection(&node))))
    }

    /// The server that a redirection leads to; none without a cluster, or if it is not known in time.
    async fn follow(
        &self,
        slot: Option<u16>,
        redirect: &Redirect,
        deadline: Instant,
    ) -> Option<Arc<Node>> {
        let (Servers::Cluster(cluster), Some(slot)) = (&self.servers, slot) else {
            return None;
        };
        match redirect {
            Redirect::Moved(to) => cluster.moved(slot, to, deadline).await,
            Redirect::Ask(to) => cluster.at(to, deadline).await,
            Redirect::TryAgain => None,
        }
    }

    /// One try, on one server.
    async fn try_on(
        &self,
        node: &Node,
        link: &Link,
        job: Job<'_, '_>,
        asking: bool,
        deadline: Instant,
    ) -> Result<(Timestamp, Vec<Decision>), Refused> {
        let command = job.command(&self.prefix, self.clock.as_ref().map(Clock::now));
        let mut connection = link.connection.clone();
        let answer = async {
            if !asking {
                return connection.send_packed_command(&command).await;
            }
            let mut both = redis::pipe();
            both.cmd("ASKING").add_command(command);
            let answers = connection.send_packed_commands(&both, 0, 2).await?;
            Ok(answers.into_iter().nth(1).unwrap_or(Value::Nil))
        };
        // An error of the server comes as a value.
        let answered = timeout_at(deadline, answer).await;
        let reply = match answered.map(|reply| reply.and_then(Value::extract_error)) {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) => return Err(self.refusal(node, link, &error)),
            Err(_) => {
                let error = StoreError::Timeout(self.timeout());
                node.failed(link, &error, Blame::Server);
                return Err(Refused::Final(error));
            }
        };
        let decided = script::read_reply(&reply, job.len()).map_err(|error| {
            node.failed(link, &error, Blame::Connection);
            Refused::Final(error)
        })?;
        if node.decided() && self.is_up() {
            self.recovered();
        }
        Ok(decided)
    }

    async fn load(
        &self,
        node: &Node,
        link: &Link,
        script: &Script,
        deadline: Instant,
    ) -> Result<(), StoreError> {
        let mut connection = link.connection.clone();
        let (error, blame) = match timeout_at(deadline, script.load(&mut connection)).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => classify(&error),
            Err(_) => {
                let why = "no time left to load the script".to_owned();
                (StoreError::NotRun(Cause::Timeout, why), Blame::Server)
            }
        };
        node.failed(link, &error, blame);
        Err(error)
    }

    /// What an error of the server means for this call; has it counted where it says something about others.
    fn refusal(&self, node: &Node, link: &Link, error: &redis::RedisError) -> Refused {
        if is_no_script(error) {
            return Refused::NoScript;
        }
        let (mut failure, blame) = classify(error);
        match (redirect(error, &node.place().to_string()), &self.servers) {
            (Some(redirect), Servers::Cluster(_)) => return Refused::Redirected(redirect, failure),
            (Some(_), Servers::One(_)) => {
                let why =
                    "it is a server of a cluster: write cluster = [ … ] instead of where it is";
                failure = StoreError::NotRun(Cause::Cluster, why.to_owned());
            }
            (None, _) => {}
        }
        node.failed(link, &failure, blame);
        match blame {
            Blame::Demoted => Refused::Demoted(failure),
            _ => Refused::Final(failure),
        }
    }

    fn node_of(&self, slot: Option<u16>) -> Result<Arc<Node>, StoreError> {
        match (&self.servers, slot) {
            (Servers::One(node), _) => Ok(Arc::clone(node)),
            (Servers::Cluster(cluster), slot) => {
                slot.and_then(|slot| cluster.node_of(slot)).ok_or_else(|| {
                    let unknown = || (Cause::Cluster, "no server has this slot".to_owned());
                    let (cause, reason) = self.last_failure().unwrap_or_else(unknown);
                    StoreError::NotRun(cause, reason)
                })
            }
        }
    }
}

/// There is no connection, for the reason that the last try to get one had.
fn no_connection(node: &Node) -> StoreError {
    let unknown = || (Cause::Connect, "no connection to the store".to_owned());
    let (cause, reason) = node.last_error().unwrap_or_else(unknown);
    StoreError::NotRun(cause, reason)
}

/// What has one slot stays together, in its order.
fn by_slot<'a, T: Copy>(items: &[T], check_of: impl Fn(&T) -> &Check<'a>) -> Vec<(u16, Vec<T>)> {
    let mut parts: Vec<(u16, Vec<T>)> = Vec::with_capacity(1);
    for item in items {
        let slot = slot_of(check_of(item).entity);
        match parts.iter_mut().find(|(of, _)| *of == slot) {
            Some((_, part)) => part.push(*item),
            None => parts.push((slot, vec![*item])),
        }
    }
    parts
}
