//! What happens in a world, and what came of it.

use tollgate::decide::Rule;

use super::server::{Health, Question, Reply};

/// Something that happens to the store, to the network, or to the fleet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fault {
    Health(Health),
    /// The primary is lost; its replica, so far behind, is not reachable yet.
    FailOver {
        lag: u64,
    },
    /// Nothing gets from this gateway to the store and back, or does again.
    Cut(usize, bool),
    /// Every message takes up to so long.
    Latency(u64),
    Join,
    Leave(usize),
}

/// A question on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) gateway: usize,
    pub(super) id: u64,
    pub(super) question: Question,
}

/// What happens next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Fault(Fault),
    Request(usize),
    /// The actor of a gateway does what it waited to do.
    Act(usize),
    Arrive(Message),
    Answer(Message, Reply),
    GiveUp(usize, u64),
}

/// Units that passed.
#[derive(Clone, Debug)]
pub(super) struct Passed {
    pub(super) at: u64,
    pub(super) units: u64,
    /// Of the gateway and its outage, where it was no decision of the store; and the share.
    pub(super) alone: Option<((usize, u32), Rule)>,
}

/// A request, and when it was decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ruled {
    pub(super) asked_at: u64,
    pub(super) by_store: bool,
}
