//! What an error of the server or the connection means: whether the call was made, whom else to ask, and whether
//! others fare alike.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::store::{Cause, StoreError};

/// What an error says about more than the call that met it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Blame {
    /// Nothing: another call may well succeed, as after an error about this key.
    Call,
    /// The server fails everybody.
    Server,
    /// Another connection may do better.
    Connection,
    /// Another server is the one to ask.
    Demoted,
}

/// Where a server of a cluster sends a call that it did not make.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Redirect {
    /// To the server that has the slot now.
    Moved(String),
    /// To the server that this key, and no other yet, is moved to.
    Ask(String),
    /// Nowhere: the keys of the call are in two places.
    TryAgain,
}

/// What an error of the server or the connection means, and for whom.
pub(crate) fn classify(error: &RedisError) -> (StoreError, Blame) {
    // The text names no key: the server only ever sees hashes of them.
    let text = error.to_string();
    let code = error.code().unwrap_or_default();
    let not_run = |cause, blame| (StoreError::NotRun(cause, text.clone()), blame);
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::NoPerm) => not_run(Cause::Auth, Blame::Server),
        ErrorKind::AuthenticationFailed => not_run(Cause::Auth, Blame::Connection),
        // A demoted primary stays demoted: look for the new one.
        ErrorKind::Server(ServerErrorKind::ReadOnly) => not_run(Cause::Cluster, Blame::Demoted),
        ErrorKind::Server(ServerErrorKind::MasterDown | ServerErrorKind::BusyLoading) => {
            not_run(Cause::Cluster, Blame::Connection)
        }
        ErrorKind::Server(ServerErrorKind::ClusterDown) => not_run(Cause::Cluster, Blame::Server),
        // About the slots of these keys.
        ErrorKind::Server(
            ServerErrorKind::Moved
            | ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::CrossSlot,
        ) => not_run(Cause::Cluster, Blame::Call),
        _ if matches!(code, "NOAUTH" | "WRONGPASS") => {
            let text = format!("{text}; store.username and store.password_file say who we are");
            (StoreError::NotRun(Cause::Auth, text), Blame::Connection)
        }
        // A command of one kind of policy that the user may not use: other kinds may do well.
        _ if text.contains("ACL failure in script") => not_run(Cause::Auth, Blame::Call),
        ErrorKind::Server(_) | ErrorKind::Extension if fails_everybody(code) => {
            not_run(Cause::Script, Blame::Server)
        }
        // Errors of the script itself: of this call, as far as anybody can tell.
        ErrorKind::Server(_) | ErrorKind::Extension => not_run(Cause::Script, Blame::Call),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
            (StoreError::BadReply(text), Blame::Connection)
        }
        _ if error.is_connection_refusal() => not_run(Cause::Connect, Blame::Connection),
        _ => (StoreError::Lost(text), Blame::Connection),
    }
}

/// Errors by which a server refuses every write.
fn fails_everybody(code: &str) -> bool {
    matches!(
        code,
        "OOM" | "MISCONF" | "NOREPLICAS" | "BUSY" | "UNKILLABLE"
    )
}

/// Whether a script is gone, as after a restart or SCRIPT FLUSH: it did not run.
pub(crate) fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

/// Where the server sends the call, if it does. An address without a host is on the host of `server`.
pub(crate) fn redirect(error: &RedisError, server: &str) -> Option<Redirect> {
    let to = || {
        let (address, _) = error.redirect_node()?;
        let (host, port) = address.rsplit_once(':')?;
        let host = match host {
            "" => server.rsplit_once(':')?.0.to_owned(),
            literal if literal.contains(':') && !literal.starts_with('[') => format!("[{literal}]"),
            name => name.to_owned(),
        };
        Some(format!("{host}:{port}"))
    };
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Moved) => to().map(Redirect::Moved),
        ErrorKind::Server(ServerErrorKind::Ask) => to().map(Redirect::Ask),
        ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Redirect::TryAgain),
        _ => None,
    }
}
