//! How many files the process may have open. A connection is one, and another towards an upstream; where there are
//! none left, nobody can connect, and no upstream be reached.

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tracing::warn;

/// Files that are neither: listeners, logs, the store, who scrapes; and connections that were accepted, some hundred in
/// a row, and are not closed yet though they are too many.
const OTHERS: u64 = 64 + 256;

/// Raises the limit to the highest that the process may have, and says how many connections of clients fit in it: at
/// least one. Tells the operator where those are fewer than `wanted`.
pub fn make_room(wanted: usize) -> usize {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return wanted;
    };
    // Who may not raise it goes on with what there is.
    let limit = if setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        hard
    } else {
        soft
    };
    let room = usize::try_from(limit.saturating_sub(OTHERS) / 2).unwrap_or(usize::MAX);
    if room < wanted {
        warn!(
            files = limit,
            connections = room,
            "server.max_connections is more than there may be files for, two a connection: the next one is closed; \
             raise the limit (ulimit -n, LimitNOFILE=)"
        );
    }
    room.max(1)
}
