//! What operators ask of single callers: how much they have used, to forget that, to grant them another limit.
//!
//! Nobody waits for it as a request does, so it has time of its own.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::{Instant, timeout_at};

use super::calls::no_connection;
use super::failure::{classify, is_no_script, redirect};
use super::grants::{self, GRANTS_MAX};
use super::key::keys;
use super::script::{self, Script};
use super::topology::slot_of;
use super::{SLACK_MS, Servers, ValkeyStore};
use crate::check::{Check, NewLimit};
use crate::decide::{Decision, Timestamp};
use crate::store::{Cause, StoreError};

/// How long an operator waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often one command is sent on.
const TRIES_MAX: usize = 5;

static INSPECT: LazyLock<Script> = LazyLock::new(|| Script::new(script::inspect_source()));

static GRANT: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!("#!lua\n", include_str!("../../../lua/grant.lua"))));

/// What is known of an entity under a policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Inspected {
    /// When, by the store's clock.
    pub at: Timestamp,
    /// What there is.
    pub found: Decision,
    /// What the check would come to.
    pub would_be: Decision,
}

/// What became of a grant.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Change {
    /// It is in force until then.
    Granted(Timestamp),
    /// It is taken back.
    TakenBack,
    /// There was none to take back.
    None,
    /// There are too many others.
    Full,
}

impl ValkeyStore {
    /// Says what the check finds and what it would come to. Nothing is charged, and nothing that is kept changes, nor
    /// when it expires.
    ///
    /// # Errors
    ///
    /// When the store does not answer, or not in a way that makes sense.
    pub async fn inspect(&self, check: &Check<'_>) -> Result<Inspected, StoreError> {
        let looked = script::call(INSPECT.sha(), &self.prefix, &[*check], None, SLACK_MS);
        let reply = self
            .command(slot_of(check.entity), &looked, Some(&INSPECT))
            .await?;
        let (at, decisions) = script::read_reply(&reply, 2)?;
        match *decisions {
            [found, would_be] => Ok(Inspected {
                at,
                found,
                would_be,
            }),
            _ => Err(StoreError::BadReply("not two decisions".to_owned())),
        }
    }

    /// Forgets what the check's policy has counted for its entity, and the penalty that runs, on every gateway within a
    /// second. Says whether there was anything.
    ///
    /// # Errors
    ///
    /// When the store does not answer. Unknown then whether it forgot.
    pub async fn reset(&self, check: &Check<'_>) -> Result<bool, StoreError> {
        let mut delete = redis::cmd("DEL");
        for key in keys(&self.prefix, check) {
            delete.arg(key);
        }
        match self.command(slot_of(check.entity), &delete, None).await? {
            Value::Int(deleted) => Ok(deleted > 0),
            _ => Err(StoreError::BadReply("no number of keys".to_owned())),
        }
    }

    /// Grants the check's entity another limit of its policy for this long, in place of one that it was granted before;
    /// or takes back what it was granted. In force on every gateway within a second.
    ///
    /// # Errors
    ///
    /// When the store does not answer. Unknown then whether it is in force.
    pub async fn grant(
        &self,
        check: &Check<'_>,
        limit: Option<(NewLimit, Duration)>,
    ) -> Result<Change, StoreError> {
        let (limit, lasts) = limit
            .map(|(limit, lasts)| (grants::limit_text(limit), lasts))
            .unwrap_or_default();
        let (key, slot) = self.grants.key();
        let mut grant = redis::cmd("EVALSHA");
        grant
            .arg(GRANT.sha())
            .arg(1)
            .arg(key)
            .arg(grants::field(check.entity, check.policy))
            .arg(limit)
            .arg(u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX))
            .arg(GRANTS_MAX);
        match self.command(slot, &grant, Some(&GRANT)).await? {
            Value::Int(-2) => Ok(Change::Full),
            Value::Int(-1) => Ok(Change::None),
            Value::Int(0) => Ok(Change::TakenBack),
            Value::Int(ends) => Ok(Change::Granted(Timestamp::from_micros(
                u64::try_from(ends).unwrap_or_default(),
            ))),
            _ => Err(StoreError::BadReply("no end of a grant".to_owned())),
        }
    }

    /// Reads what was granted at once, where nobody keeps reading it.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub async fn read_grants(&self) -> Result<(), StoreError> {
        let deadline = Instant::now() + PATIENCE;
        let node = self.node_of(self.slot(self.grants.key().1))?;
        let link = node.await_link(deadline).await;
        let link = link.ok_or_else(|| no_connection(&node))?;
        match timeout_at(deadline, self.grants.read(&link)).await {
            Ok(read) => read.map_err(|error| classify(&error).0),
            Err(_) => Err(StoreError::Timeout(PATIENCE)),
        }
    }

    fn slot(&self, slot: u16) -> Option<u16> {
        matches!(self.servers, Servers::Cluster(_)).then_some(slot)
    }

    /// Sends a command to the server that has this slot, and on to wherever that says, with the script that it may have
    /// lost.
    async fn command(
        &self,
        slot: u16,
        command: &Cmd,
        script: Option<&Script>,
    ) -> Result<Value, StoreError> {
        let deadline = Instant::now() + PATIENCE;
        let slot = self.slot(slot);
        let mut node = self.node_of(slot)?;
        let mut last = StoreError::Timeout(PATIENCE);
        for _ in 0..TRIES_MAX {
            let link = node.await_link(deadline).await;
            let link = link.ok_or_else(|| no_connection(&node))?;
            let mut connection = link.connection.clone();
            let sent = timeout_at(deadline, connection.send_packed_command(command)).await;
            let Ok(reply) = sent else {
                return Err(StoreError::Timeout(PATIENCE));
            };
            let error = match reply.and_then(Value::extract_error) {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            last = classify(&error).0;
            match (script, redirect(&error, &node.place().to_string())) {
                (Some(script), _) if is_no_script(&error) => {
                    let loaded = timeout_at(deadline, script.load(&mut connection)).await;
                    if let Ok(Err(error)) = loaded {
                        return Err(classify(&error).0);
                    }
                }
                (_, Some(redirect)) => {
                    let next = self.follow(slot, &redirect, deadline).await;
                    node = next.ok_or_else(|| {
                        StoreError::NotRun(Cause::Cluster, format!("{last}; try again"))
                    })?;
                }
                _ => return Err(last),
            }
        }
        Err(last)
    }
}
