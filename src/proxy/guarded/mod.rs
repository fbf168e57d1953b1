//! A connection under guard. Pingora has no deadline for a whole request head, none for a body that drips or for an
//! answer that nobody takes, and answers what it cannot parse in its own name and unrecorded.

mod stream;

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use pingora::protocols::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use super::again::Admitted;
use super::gateway::Current;
use super::pace::Pace;
use super::unread::{MALFORMED, NOT_ALLOWED, TOO_LARGE, TOO_SLOW, Unread};
use crate::record::metrics::Fault;

/// How long a connection may lie idle between two requests.
const IDLE: Duration = Duration::from_secs(60);

/// What a connection is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(super) enum Phase {
    /// A head is to come. What is written now is Pingora's own refusal of one that it could not parse.
    Head,
    /// A body is to come once the client has been asked for it: `Expect: 100-continue`.
    Asked,
    /// A body is to come.
    Body,
    /// The request is there. Whatever else comes may take its time: a next request, or a tunnel's bytes.
    Rest,
}

impl Phase {
    fn of(number: u8) -> Self {
        [Self::Head, Self::Asked, Self::Body]
            .into_iter()
            .find(|phase| *phase as u8 == number)
            .unwrap_or(Self::Rest)
    }
}

/// A head is to come, or one has: the time of what follows begins anew.
pub(super) fn turn(stream: Option<&Stream>, phase: Phase) {
    if let Some(guarded) = guarded(stream) {
        guarded.turn(phase);
    }
}

/// The request's body is there.
pub(super) fn body_is_read(stream: Option<&Stream>) {
    if let Some(guarded) = guarded(stream) {
        guarded.phase.store(Phase::Rest as u8, Ordering::Relaxed);
    }
}

/// What the client did wrong, if the guard ended its connection.
pub(super) fn fault(stream: Option<&Stream>) -> Option<Fault> {
    guarded(stream)?.fault
}

/// A head of so many bytes is read.
pub(super) fn head_is_read(stream: Option<&Stream>, bytes: usize) {
    if let Some(guarded) = guarded(stream) {
        guarded.took(bytes);
    }
}

/// The request is denied.
pub(super) fn is_denied(stream: Option<&Stream>) {
    if let Some(guarded) = guarded(stream) {
        guarded.denied.store(true, Ordering::Relaxed);
    }
}

/// Whether the last request was denied, and all that was ever read of the connection were the heads of its requests:
/// then nothing of a next one is in Pingora's hands. Says so once.
pub(super) fn was_denied(stream: &Stream) -> bool {
    guarded(Some(stream)).is_some_and(|guarded| {
        guarded.denied.swap(false, Ordering::Relaxed)
            && guarded.read == guarded.taken.load(Ordering::Relaxed)
    })
}

/// What was decided of the request before Pingora read it.
pub(super) fn admitted(stream: Option<&Stream>) -> Option<Admitted> {
    let mut admitted = guarded(stream)?.admitted.lock();
    admitted.as_mut().ok()?.take().map(|admitted| *admitted)
}

fn guarded(stream: Option<&Stream>) -> Option<&Guarded> {
    stream?.as_any().downcast_ref()
}

/// A stream that knows what is due on it. A head has its deadline, from its first byte on, and its size; a body and an
/// answer have the slowest pace.
pub(super) struct Guarded {
    io: Stream,
    current: Current,
    header_timeout: Duration,
    phase: AtomicU8,
    /// How often the phase began anew, and how often what follows knows of.
    turns: AtomicU32,
    turn: u32,
    head_bytes: usize,
    head_max: usize,
    /// Until when all of the head is there, once some of it is.
    head_until: Option<Instant>,
    /// Until when its first byte is there, once it has been waited for.
    idle_until: Option<Instant>,
    idle_max: Duration,
    /// Runs for either; of one that runs too early nobody makes another.
    timer: Option<Pin<Box<Sleep>>>,
    reading: Pace,
    writing: Pace,
    /// Bytes that the client had acknowledged when it was last asked.
    acknowledged: AtomicU64,
    /// Whether the last request was denied.
    denied: AtomicBool,
    /// Bytes that were read, and those of them that were heads of requests. The rest were bodies, or is still to be
    /// looked at.
    read: usize,
    taken: AtomicUsize,
    /// What was read, and is to be read again.
    replay: Bytes,
    /// What was decided of it.
    admitted: Mutex<Option<Box<Admitted>>>,
    /// What of our refusal is still to be sent.
    refusal: Bytes,
    fault: Option<Fault>,
}

impl Guarded {
    /// Around a new connection, on which a head is to come within `header_timeout` of its first byte.
    pub(super) fn new(io: Stream, current: Current, header_timeout: Duration) -> Self {
        let pace = || Pace::new(Duration::ZERO, 0);
        let mut guarded = Self {
            io,
            current,
            header_timeout,
            phase: AtomicU8::new(Phase::Head as u8),
            turns: AtomicU32::new(0),
            turn: 0,
            head_bytes: 0,
            head_max: 0,
            head_until: None,
            idle_until: None,
            // A head that has begun has its deadline sooner, and an answer to that.
            idle_max: header_timeout.saturating_add(Duration::from_secs(1)),
            timer: None,
            reading: pace(),
            writing: pace(),
            acknowledged: AtomicU64::new(0),
            denied: AtomicBool::new(false),
            read: 0,
            taken: AtomicUsize::new(0),
            replay: Bytes::new(),
            admitted: Mutex::default(),
            refusal: Bytes::new(),
            fault: None,
        };
        guarded.begin();
        guarded
    }

    /// As [`turn`].
    pub(super) fn turn(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// So many bytes were a request's head.
    pub(super) fn took(&self, bytes: usize) {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
    }

    /// These bytes were read, and are to be read once more.
    pub(super) fn replay(&mut self, bytes: Bytes) {
        self.read = self.read.saturating_sub(bytes.len());
        self.replay = bytes;
    }

    /// The request that is to be read again may pass.
    pub(super) fn admit(&mut self, admitted: Admitted) {
        self.admitted = Mutex::new(Some(Box::new(admitted)));
    }

    /// Reads once more what was read before. Some of a head is there: its deadline runs.
    fn read_again(&mut self, phase: Phase, buffer: &mut ReadBuf<'_>) {
        let again = self
            .replay
            .split_to(self.replay.len().min(buffer.remaining()));
        buffer.put_slice(&again);
        if phase == Phase::Head {
            self.head_bytes = self.head_bytes.saturating_add(again.len());
            let until = Instant::now() + self.header_timeout;
            self.head_until.get_or_insert(until);
        }
    }

    fn phase(&self) -> Phase {
        Phase::of(self.phase.load(Ordering::Relaxed))
    }

    /// Begins anew, by the configuration in force.
    fn begin(&mut self) {
        let gateway = self.current.get();
        let server = &gateway.config.server;
        let pace = || Pace::new(server.body_timeout, server.body_min_rate);
        self.head_bytes = 0;
        self.head_max = server.max_header;
        self.head_until = None;
        self.idle_until = None;
        self.reading = pace();
        self.writing = pace();
    }

    /// What the connection is about now.
    fn look(&mut self) -> Phase {
        let turns = self.turns.load(Ordering::Relaxed);
        if self.turn != turns {
            self.turn = turns;
            self.begin();
            self.idle_max = IDLE;
        }
        self.phase()
    }

    /// Puts our refusal in place of whatever else would be sent, and records it.
    fn refuse(&mut self, unread: &Unread) {
        self.fault = Some(unread.fault);
        self.refusal = unread.answer();
        let digest = self.io.get_socket_digest();
        let peer = super::forward::ip_of(digest.as_ref().and_then(|digest| digest.peer_addr()));
        super::log::record_unread(
            &self.current.get(),
            peer,
            unread.status,
            unread.fault,
            unread.error,
        );
    }

    /// Puts our refusal in place of Pingora's: once, whatever the number of writes.
    fn refuse_for(&mut self, theirs: &[u8]) {
        let status = theirs
            .strip_prefix(b"HTTP/1.1 ")
            .and_then(|line| line.get(..3));
        match status {
            Some(b"405") => self.refuse(&NOT_ALLOWED),
            Some(_) => self.refuse(&MALFORMED),
            None => {}
        }
    }

    /// Sends what is left of our refusal.
    fn poll_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.refusal.is_empty() {
            let written = Pin::new(&mut self.io).poll_write(cx, &self.refusal);
            let written = ready!(self.paced(cx, written))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.refusal.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the connection of a client that is too slow.
    fn end(&mut self, fault: Fault) -> io::Error {
        if self.fault.replace(fault) != Some(fault) {
            self.current.get().metrics.families().bad_request(fault);
        }
        io::Error::new(io::ErrorKind::TimedOut, fault.as_str())
    }

    /// What came of writing so many bytes; an end where they are taken too slowly. What the kernel could send on of
    /// what it was given before counts too: it takes more at once and seldom, where a client is slow.
    fn paced(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(bytes)) => {
                self.writing.moved(u64::try_from(bytes).unwrap_or(u64::MAX));
                Poll::Ready(Ok(bytes))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => {
                let sent_on = || {
                    let now = acknowledged(&self.io);
                    now.saturating_sub(self.acknowledged.swap(now, Ordering::Relaxed))
                };
                if self.writing.is_late(cx, sent_on) {
                    return Poll::Ready(Err(self.end(Fault::WriteTimeout)));
                }
                Poll::Pending
            }
        }
    }

    /// The same of what writes no bytes of its own.
    fn paced_end(
        &mut self,
        cx: &mut Context<'_>,
        ended: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        self.paced(cx, ended.map_ok(|()| 0)).map_ok(|_| ())
    }

    /// Reads of a head, as long as it has time and is not too large.
    fn poll_head(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.fault.is_none() {
            if self.head_until.is_some_and(|until| until <= Instant::now()) {
                self.refuse(&TOO_SLOW);
            } else if self.head_bytes > self.head_max {
                // More is wanted: this was not all of it.
                self.refuse(&TOO_LARGE);
            }
        }
        if self.fault.is_some() {
            return self.poll_refused(cx);
        }
        let filled = buffer.filled().len();
        let read = match Pin::new(&mut self.io).poll_read(cx, buffer) {
            Poll::Ready(read) => read,
            Poll::Pending => return self.poll_no_head(cx),
        };
        let bytes = buffer.filled().len().saturating_sub(filled);
        self.head_bytes = self.head_bytes.saturating_add(bytes);
        if self.head_until.is_none() && bytes > 0 {
            self.head_until = Some(Instant::now() + self.header_timeout);
        }
        Poll::Ready(read)
    }

    /// Reads of what comes after a head: a body at its pace, anything else as it comes.
    fn poll_rest(
        &mut self,
        cx: &mut Context<'_>,
        phase: Phase,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buffer);
        let bytes = buffer.filled().len().saturating_sub(filled);
        match (phase, read.is_ready()) {
            (Phase::Asked, true) => self.phase.store(Phase::Body as u8, Ordering::Relaxed),
            (Phase::Body, true) => self.reading.moved(u64::try_from(bytes).unwrap_or(u64::MAX)),
            (Phase::Body, false) if self.reading.is_late(cx, || 0) => {
                return Poll::Ready(Err(self.end(Fault::BodyTimeout)));
            }
            _ => {}
        }
        read
    }

    /// There is nothing to read of a head: waits for it, but not for ever.
    fn poll_no_head(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let idle_max = self.idle_max;
        let due = match self.head_until {
            Some(until) => until,
            None => *self
                .idle_until
                .get_or_insert_with(|| Instant::now() + idle_max),
        };
        if !self.is_due(cx, due) {
            return Poll::Pending;
        }
        if self.head_until.is_none() {
            // As if the client had closed a connection that nobody uses.
            return Poll::Ready(Ok(()));
        }
        self.refuse(&TOO_SLOW);
        self.poll_refused(cx)
    }

    /// Whether `due` is over; if not, the task is woken when it is, or before.
    fn is_due(&mut self, cx: &mut Context<'_>, due: Instant) -> bool {
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(due)));
        if timer.deadline() > due {
            timer.as_mut().reset(due);
        }
        // Left running while requests come, and set anew once it has run: that is seldom, and requests come often.
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= due {
                return true;
            }
            timer.as_mut().reset(due);
        }
        false
    }

    /// Sends our refusal; then the connection is over.
    fn poll_refused(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_refusal(cx))?;
        let flushed = Pin::new(&mut self.io).poll_flush(cx);
        ready!(self.paced_end(cx, flushed))?;
        let fault = self.fault.map_or("", Fault::as_str);
        Poll::Ready(Err(io::Error::other(fault)))
    }
}

/// How many of our bytes the client's side has acknowledged.
fn acknowledged(io: &Stream) -> u64 {
    io.get_socket_digest()
        .and_then(|digest| digest.tcp_info())
        .map_or(0, |info| info.tcpi_bytes_acked)
}

impl fmt::Debug for Guarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").finish_non_exhaustive()
    }
}
