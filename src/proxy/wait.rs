//! A leaky bucket's request truly waits its turn. So many may wait at once, and one whose client leaves stops.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pingora::proxy::Session;
use tokio::time::{Instant, sleep_until};

/// A body up to this size is read while its request waits, and sent on later; Pingora keeps no more.
const BODY_KEPT_MAX: usize = 64 * 1024;

/// How many may still wait.
#[derive(Clone, Debug)]
pub struct Room(Arc<AtomicUsize>);

/// A place among those that wait, until it is dropped.
#[derive(Debug)]
pub struct Place(Arc<AtomicUsize>);

impl Room {
    /// Room for `places` requests.
    #[must_use]
    pub fn new(places: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(places)))
    }

    /// Takes a place, if there is one.
    #[must_use]
    pub fn take(&self) -> Option<Place> {
        self.0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |left| {
                left.checked_sub(1)
            })
            .ok()?;
        Some(Place(Arc::clone(&self.0)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }
}

/// Whether the client was still there when its turn came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Turn {
    /// It was.
    Came,
    /// It left, or broke the connection.
    ClientGone,
}

/// Waits `delay`, counted from now.
pub async fn turn(session: &mut Session, delay: Duration) -> Turn {
    let until = Instant::now() + delay;
    tokio::select! {
        () = sleep_until(until) => Turn::Came,
        () = client_gone(session) => Turn::ClientGone,
    }
}

/// Returns once the client has left. A body too large to be kept is not read, and its client not watched: Pingora
/// would lose what was read.
async fn client_gone(session: &mut Session) {
    let downstream = session.as_downstream_mut();
    if !downstream.is_body_done() {
        let length = downstream
            .get_header(http::header::CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        if length.is_none_or(|length| length >= BODY_KEPT_MAX) {
            return std::future::pending().await;
        }
        downstream.enable_retry_buffering();
        while !downstream.is_body_done() {
            match downstream.read_request_body().await {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
        super::guarded::body_is_read(downstream.stream());
    }
    // Ends in an error when the connection does; bytes of a next request are kept for it.
    while downstream.read_body_or_idle(true).await.is_ok() {}
}
