//! Calls of the scripts: which server makes which, and where it sends them on to.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::batch::{self, Decided, Undecided};
use super::failure::{Blame, Redirect, classify, is_no_script, redirect};
use super::node::{Link, Node};
use super::script::{self, DECIDE, HOLD, Part, SETTLE, Script};
use super::slots::{Asking, Tell};
use super::{SIMULATION_SLACK_MS, SLACK_MS, Servers, ValkeyStore};
use crate::check::Check;
use crate::clock::Clock;
use crate::decide::Timestamp;
use crate::store::{Cause, Settlement, StoreError};

/// How often one call is sent on, each time by a server that did not make it.
const TRIES_MAX: usize = 8;

/// How long a call waits whose keys are being moved, before it is sent again.
const MOVING_PAUSE: Duration = Duration::from_millis(2);

/// What a call is to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Job<'j, 'a> {
    Decide(&'j [Check<'a>], &'j Asking<'j>),
    Settle(&'j [Settlement<'a>]),
    Hold(&'j [Tell]),
}

impl Job<'_, '_> {
    fn script(&self) -> &'static Script {
        match self {
            Self::Decide(..) => &DECIDE,
            Self::Settle(_) => &SETTLE,
            Self::Hold(_) => &HOLD,
        }
    }

    fn command(&self, prefix: &str, now: Option<Timestamp>) -> Cmd {
        let slack_ms = now.map_or(SLACK_MS, |_| SIMULATION_SLACK_MS);
        let sha = self.script().sha();
        match self {
            Self::Decide(checks, asking) => {
                let part = Part::new(prefix, checks, |check| asking.holder_of(check));
                script::call_parts(sha, [&part], now, slack_ms)
            }
            Self::Settle(settlements) => {
                script::settle_call(sha, prefix, settlements, now, slack_ms)
            }
            Self::Hold(tells) => script::hold_call(sha, tells, now, slack_ms),
        }
    }

    const fn len(&self) -> usize {
        match self {
            Self::Decide(checks, _) => checks.len(),
            Self::Settle(settlements) => settlements.len(),
            Self::Hold(tells) => tells.len(),
        }
    }
}

/// How a call is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Way {
    /// With others that come meanwhile; of a cluster, with those of this slot.
    Together(Option<u16>),
    Alone,
    /// Alone, of the server that its keys are being moved to.
    Asking,
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
pub(super) enum Failed {
    /// Its keys are in two places at the moment: each alone has one.
    Scattered(StoreError),
    Final(StoreError),
}

impl Failed {
    /// Whether the call may have been made, for all that is known.
    pub(super) const fn may_have_run(&self) -> bool {
        match self {
            Self::Scattered(_) => false,
            Self::Final(error) => !matches!(error, StoreError::NotRun(..) | StoreError::Full),
        }
    }
}

impl From<Failed> for StoreError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Scattered(error) | Failed::Final(error) => error,
        }
    }
}

impl ValkeyStore {
    /// Whether decisions that come at the same time go to the server in one call. A simulation has its own time for
    /// each.
    fn goes_together(&self) -> bool {
        self.clock.is_none() && self.settings.load().group_commit
    }

    /// Makes a call, wherever it is sent on to. Only what certainly was not made is sent again.
    pub(super) async fn make(
        &self,
        slot: Option<u16>,
        job: Job<'_, '_>,
        deadline: Instant,
    ) -> Result<Decided, Failed> {
        let mut node = self.node_of(slot).map_err(Failed::Final)?;
        let mut link = node
            .link()
            .ok_or_else(|| Failed::Final(no_connection(&node)))?;
        let mut way = if self.goes_together() {
            Way::Together(slot)
        } else {
            Way::Alone
        };
        let mut last = None;
        for _ in 0..TRIES_MAX {
            let refused = match self.try_on(&node, &link, job, way, deadline).await {
                Ok(decided) => return Ok(decided),
                Err(refused) => refused,
            };
            // What was refused may have been so for the sake of others in its call.
            let was_alone = std::mem::replace(&mut way, Way::Alone) != Way::Together(slot);
            let why = match refused {
                Refused::NoScript => {
                    self.load(&node, &link, job.script(), deadline)
                        .await
                        .map_err(Failed::Final)?;
                    StoreError::NotRun(Cause::Script, "script lost again and again".to_owned())
                }
                Refused::Redirected(Redirect::TryAgain, error) if !was_alone => error,
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
                    if matches!(redirect, Redirect::Ask(_)) {
                        way = Way::Asking;
                    }
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
    pub(super) async fn follow(
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
        link: &Arc<Link>,
        job: Job<'_, '_>,
        way: Way,
        deadline: Instant,
    ) -> Result<Decided, Refused> {
        let answer = match (way, job) {
            (Way::Together(slot), Job::Decide(checks, asking)) => {
                let part = Part::new(&self.prefix, checks, |check| asking.holder_of(check));
                link.decide(part, slot, deadline).await
            }
            _ => self.call_alone(link, job, way, deadline).await,
        };
        match answer {
            Ok(decided) => {
                if node.decided() && self.is_up() {
                    self.recovered();
                }
                Ok(decided)
            }
            Err(undecided) => Err(self.undecided(node, link, undecided)),
        }
    }

    /// What it means that a call decided nothing; has it counted, once, where it says something about others.
    fn undecided(&self, node: &Node, link: &Link, undecided: Undecided) -> Refused {
        let (undecided, counts) = match undecided {
            Undecided::Too(undecided) => (*undecided, false),
            undecided => (undecided, true),
        };
        let (error, blame) = match undecided {
            Undecided::Refused(error) => match self.refusal(node, &error) {
                Ok(refused) => return refused,
                Err(failed) => failed,
            },
            Undecided::Unread(error) => (error, Blame::Connection),
            Undecided::Late => (StoreError::Timeout(self.timeout()), Blame::Server),
            Undecided::Full | Undecided::Too(_) => {
                let why = "too many requests wait for the store".to_owned();
                return Refused::Final(StoreError::NotRun(Cause::Timeout, why));
            }
        };
        if counts {
            node.failed(link, &error, blame);
        }
        match blame {
            Blame::Demoted => Refused::Demoted(error),
            _ => Refused::Final(error),
        }
    }

    async fn call_alone(
        &self,
        link: &Link,
        job: Job<'_, '_>,
        way: Way,
        deadline: Instant,
    ) -> Result<Decided, Undecided> {
        let command = job.command(&self.prefix, self.clock.as_ref().map(Clock::now));
        let mut connection = link.connection.clone();
        let reply = async {
            if way != Way::Asking {
                return connection.send_packed_command(&command).await;
            }
            let mut both = redis::pipe();
            both.cmd("ASKING").add_command(command);
            let replies = connection.send_packed_commands(&both, 0, 2).await?;
            Ok(replies.into_iter().nth(1).unwrap_or(Value::Nil))
        };
        match timeout_at(deadline, reply).await {
            Ok(reply) => batch::read(reply, job.len()),
            Err(_) => Err(Undecided::Late),
        }
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

    /// Where an error of the server leads this call, or else what it says, and whom it blames.
    fn refusal(
        &self,
        node: &Node,
        error: &redis::RedisError,
    ) -> Result<Refused, (StoreError, Blame)> {
        if is_no_script(error) {
            return Ok(Refused::NoScript);
        }
        let (mut failure, blame) = classify(error);
        match (redirect(error, &node.place().to_string()), &self.servers) {
            (Some(redirect), Servers::Cluster(_)) => {
                return Ok(Refused::Redirected(redirect, failure));
            }
            (Some(_), Servers::One(_)) => {
                let why =
                    "it is a server of a cluster: write cluster = [ … ] instead of where it is";
                failure = StoreError::NotRun(Cause::Cluster, why.to_owned());
            }
            (None, _) => {}
        }
        Err((failure, blame))
    }

    pub(super) fn node_of(&self, slot: Option<u16>) -> Result<Arc<Node>, StoreError> {
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
pub(super) fn no_connection(node: &Node) -> StoreError {
    let unknown = || (Cause::Connect, "no connection to the store".to_owned());
    let (cause, reason) = node.last_error().unwrap_or_else(unknown);
    StoreError::NotRun(cause, reason)
}
