//! Group commit: while two calls are under way on a link, requests queue, and an answer sends all of them as one call.
//!
//! There is no timer. Where less is under way a request goes at once and alone, so that an idle store answers as
//! soon as it can; the busier it is, the more go together. A call decides its requests one after the other, as if each
//! had come alone. On a cluster those of one slot are one call, and the calls of a server go in one write.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::SLACK_MS;
use super::node::Link;
use super::script::{self, DECIDE, Part};
use crate::decide::{Decision, Timestamp};
use crate::store::StoreError;

/// How many calls are under way at once on one link.
const CALLS_MAX: usize = 2;

/// How many checks go in one write at most, if they are not those of one request: a script that runs holds up everybody
/// else's.
const CHECKS_MAX: usize = 64;

/// How many requests wait at most, on one link: more could not be decided within any deadline.
const WAITING_MAX: usize = 10_000;

/// When a request was decided, and what.
pub(super) type Decided = (Timestamp, Vec<Decision>);

/// Why a request was not decided.
#[derive(Clone, Debug)]
pub(super) enum Undecided {
    /// The server or the connection says so.
    Refused(RedisError),
    /// The reply makes no sense.
    Unread(StoreError),
    /// Its deadline passed, in the queue or under way.
    Late,
    /// Too many wait.
    Full,
    /// As the first one of its call, who was told the same.
    Too(Box<Undecided>),
}

/// The requests that wait for the calls that are under way on a link.
#[derive(Debug, Default)]
pub(super) struct Queue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    under_way: usize,
    waiting: VecDeque<Waiting>,
}

/// A request in the queue.
#[derive(Debug)]
struct Waiting {
    part: Part,
    slot: Option<u16>,
    deadline: Instant,
    answer: oneshot::Sender<Result<Decided, Undecided>>,
}

/// What a request comes to at the queue.
enum Place {
    /// It may go.
    Go(Turn, Part),
    /// It is decided with others.
    Wait(oneshot::Receiver<Result<Decided, Undecided>>),
    /// Too many wait.
    Full,
}

/// The right to make a call, of which there are [`CALLS_MAX`]. Whoever gives it up, or is gone, sends those who wait.
#[derive(Debug)]
struct Turn(Arc<Link>);

impl Drop for Turn {
    fn drop(&mut self) {
        let link = &self.0;
        let Some(together) = link.queue.next() else {
            return;
        };
        let turn = Self(Arc::clone(link));
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move { turn.0.decide_all(together).await });
        }
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, link: &Arc<Link>, part: Part, slot: Option<u16>, deadline: Instant) -> Place {
        let mut state = self.state();
        if state.under_way < CALLS_MAX {
            state.under_way += 1;
            return Place::Go(Turn(Arc::clone(link)), part);
        }
        if state.waiting.len() >= WAITING_MAX {
            return Place::Full;
        }
        let (answer, answered) = oneshot::channel();
        state.waiting.push_back(Waiting {
            part,
            slot,
            deadline,
            answer,
        });
        Place::Wait(answered)
    }

    /// Those who go together next, without those who have given up: they were not charged. `None` leaves the link to
    /// whoever comes first.
    fn next(&self) -> Option<Vec<Waiting>> {
        let now = Instant::now();
        let mut state = self.state();
        let mut together = Vec::with_capacity(state.waiting.len().min(CHECKS_MAX));
        let mut checks = 0;
        while let Some(next) = state.waiting.pop_front() {
            if next.deadline <= now || next.answer.is_closed() {
                continue;
            }
            checks += next.part.checks();
            if checks > CHECKS_MAX && !together.is_empty() {
                state.waiting.push_front(next);
                break;
            }
            together.push(next);
        }
        if together.is_empty() {
            state.under_way -= 1;
            return None;
        }
        Some(together)
    }
}

impl Link {
    /// Decides one request, with others if a call is under way. It was not charged if its deadline passed in the
    /// queue, but nobody is told that apart.
    pub(super) async fn decide(
        self: &Arc<Self>,
        part: Part,
        slot: Option<u16>,
        deadline: Instant,
    ) -> Result<Decided, Undecided> {
        match self.queue.enter(self, part, slot, deadline) {
            Place::Go(_turn, part) => timeout_at(deadline, self.decide_alone(&part))
                .await
                .unwrap_or(Err(Undecided::Late)),
            Place::Wait(answered) => match timeout_at(deadline, answered).await {
                Ok(Ok(answer)) => answer,
                _ => Err(Undecided::Late),
            },
            Place::Full => Err(Undecided::Full),
        }
    }

    /// Decides one request by a call of its own, whatever is under way.
    async fn decide_alone(&self, part: &Part) -> Result<Decided, Undecided> {
        let call = script::call_parts(DECIDE.sha(), [part], None, SLACK_MS);
        let reply = self.connection.clone().send_packed_command(&call).await;
        read(reply, part.checks())
    }

    /// Decides these, and tells each. Who is not told is late.
    async fn decide_all(&self, together: Vec<Waiting>) {
        let Some(deadline) = together.iter().map(|waiting| waiting.deadline).max() else {
            return;
        };
        let groups = by_slot(together);
        let mut calls = redis::pipe();
        for group in &groups {
            let parts = group.iter().map(|waiting| &waiting.part);
            calls.add_command(script::call_parts(DECIDE.sha(), parts, None, SLACK_MS));
        }
        let mut connection = self.connection.clone();
        let replies = connection.send_packed_commands(&calls, 0, groups.len());
        let Ok(replies) = timeout_at(deadline, replies).await else {
            return;
        };
        match replies {
            Ok(replies) => {
                for (group, reply) in groups.into_iter().zip(replies) {
                    tell(group, Ok(reply));
                }
            }
            Err(error) => {
                for group in groups {
                    tell(group, Err(error.clone()));
                }
            }
        }
    }
}

/// Tells each of a call's requests its part of the reply.
fn tell(group: Vec<Waiting>, reply: RedisResult<Value>) {
    let checks = group.iter().map(|waiting| waiting.part.checks()).sum();
    match read(reply, checks) {
        Ok((at, decisions)) => {
            let mut decisions = decisions.into_iter();
            for waiting in group {
                let own = decisions.by_ref().take(waiting.part.checks()).collect();
                // Who has given up meanwhile hears nothing, and was charged.
                let _ = waiting.answer.send(Ok((at, own)));
            }
        }
        Err(undecided) => {
            // It is one failure, however many it concerns.
            let mut told = undecided.clone();
            for waiting in group {
                let heard = waiting.answer.send(Err(told.clone())).is_ok();
                if heard {
                    told = Undecided::Too(Box::new(undecided.clone()));
                }
            }
        }
    }
}

/// An error of the server comes as a value.
pub(super) fn read(reply: RedisResult<Value>, checks: usize) -> Result<Decided, Undecided> {
    let reply = reply
        .and_then(Value::extract_error)
        .map_err(Undecided::Refused)?;
    script::read_reply(&reply, checks).map_err(Undecided::Unread)
}

/// Those of one slot together, in the order in which they came.
fn by_slot(together: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    let mut groups: Vec<Vec<Waiting>> = Vec::with_capacity(1);
    for waiting in together {
        let of_its_slot = |group: &&mut Vec<Waiting>| {
            group
                .first()
                .is_some_and(|first| first.slot == waiting.slot)
        };
        match groups.iter_mut().find(of_its_slot) {
            Some(group) => group.push(waiting),
            None => groups.push(vec![waiting]),
        }
    }
    groups
}
