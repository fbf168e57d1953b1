//! What a request was charged is corrected once it is known what it was worth: on every way out, once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{HeaderMap, StatusCode};
use tokio::runtime::Handle;
use tracing::warn;

use super::context::{Context, OwnCheck, Ruled};
use super::gateway::Gateway;
use crate::check::cost::{Reader, ResponsePrice};
use crate::check::demand::Awaited;
use crate::check::{Outcome, Policy};
use crate::clock::monotonic_now;
use crate::config::Config;
use crate::decide::{Charge, Cost, Decision, Settled};
use crate::store::limiter::{Charged, Ledger};

/// Charges of a request that are not final. Those that nothing became of are settled when it is dropped: also the
/// request's client is gone then, or it panicked.
#[derive(Debug)]
pub struct Settling {
    gateway: Arc<Gateway>,
    held: Vec<Held>,
    /// Whether the request was handed on, so that it may have done something.
    handed_on: bool,
    /// Whether all of the answer came.
    is_whole: bool,
}

/// A charge, and what it was for.
#[derive(Debug)]
struct Held {
    check: OwnCheck,
    charge: Charge,
    ledger: Ledger,
    /// Whether its policy counts by the answer, and the answer is not there.
    awaits_status: bool,
    /// What the answer is to say that the request cost: the prices, until the answer's head is there; then who reads
    /// them.
    prices: Vec<Arc<ResponsePrice>>,
    readers: Vec<Reader>,
}

/// What a charge comes to.
#[derive(Clone, Copy, Debug)]
struct Becomes {
    /// What becomes of it: nothing if it stays as it is.
    settled: Option<Settled>,
    /// Whether the answer did not say what the request cost.
    missing: bool,
}

/// How many requests' charges are being settled after their end.
#[derive(Clone, Debug, Default)]
pub struct Unsettled(Arc<AtomicUsize>);

/// One of them, until it is dropped.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Held {
    fn charged(&self) -> Charged<'_> {
        Charged {
            check: self.check.as_check(),
            charge: self.charge,
            ledger: self.ledger,
        }
    }

    /// What becomes of it with an answer of this status: nothing if it stays, or is not known yet.
    fn by_status(&self, status: StatusCode) -> Option<Settled> {
        let outcome = self.check.policy().outcomes.as_ref()?.of(status);
        match outcome {
            Outcome::Charge => None,
            Outcome::Spare => Some(Settled::Spent(Cost::NONE)),
            Outcome::Reset => Some(Settled::Forgotten),
        }
    }

    /// Whether nothing that is still to come changes it.
    fn is_known(&self) -> bool {
        !self.awaits_status && self.prices.is_empty() && self.readers.iter().all(Reader::is_done)
    }

    /// What becomes of it at the end, whatever was still to come. Without an answer it stays: whoever leaves early is
    /// not the better for it, unless the request was not handed on.
    fn at_end(&mut self, handed_on: bool, is_whole: bool) -> Becomes {
        if self.readers.is_empty() {
            let settled = (!handed_on).then_some(Settled::Spent(Cost::NONE));
            return Becomes {
                settled: settled.filter(|_| self.awaits_status || !self.prices.is_empty()),
                missing: false,
            };
        }
        let charged = self.charge.cost.units();
        let (mut spent, mut missing) = (charged, false);
        for reader in self.readers.drain(..) {
            let reserve = reader.price().reserve;
            let units = reader.finish(is_whole);
            missing |= units.is_none();
            spent = spent
                .saturating_sub(reserve)
                .saturating_add(units.unwrap_or(reserve));
        }
        Becomes {
            settled: (spent != charged).then_some(Settled::Spent(Cost::new(spent))),
            missing,
        }
    }

    /// Counts the units that it comes to, and returns them.
    fn count(&self, gateway: &Gateway, becomes: Becomes) -> Cost {
        let spent = match becomes.settled {
            None => self.charge.cost,
            Some(Settled::Spent(cost)) => cost,
            Some(Settled::Forgotten) => Cost::NONE,
        };
        if let Some(series) = gateway.metrics.policy(self.check.policy().index) {
            series.units.inc_by(spent.units());
            if becomes.missing {
                series.cost_missing.inc();
            }
        }
        spent
    }
}

impl Settling {
    /// Nothing is charged yet.
    #[must_use]
    pub const fn new(gateway: Arc<Gateway>) -> Self {
        Self {
            gateway,
            held: Vec::new(),
            handed_on: false,
            is_whole: false,
        }
    }

    /// Takes charge of what is not final: of policies that count by the answer, or whose price it will say.
    pub fn hold(&mut self, config: &Config, charged: &[Charged<'_>], awaited: &[Awaited<'_>]) {
        for charged in charged {
            let policy = charged.check.policy;
            let prices: Vec<_> = awaited
                .iter()
                .filter(|awaited| awaited.policy.index == policy.index)
                .map(|awaited| Arc::clone(awaited.price))
                .collect();
            let awaits_status = policy.outcomes.is_some();
            if let Some(check) = OwnCheck::new(&charged.check, &config.policies)
                && (awaits_status || !prices.is_empty())
            {
                self.held.push(Held {
                    check,
                    charge: charged.charge,
                    ledger: charged.ledger,
                    awaits_status,
                    prices,
                    readers: Vec::new(),
                });
            }
        }
    }

    /// Whether what this policy was charged is not final.
    #[must_use]
    pub fn holds(&self, policy: &Policy) -> bool {
        let mut held = self.held.iter();
        held.any(|held| held.check.policy().index == policy.index)
    }

    /// The head of the answer is there.
    fn begin(&mut self, headers: &HeaderMap) {
        for held in &mut self.held {
            let prices = held.prices.drain(..);
            held.readers
                .extend(prices.map(|price| Reader::new(price, headers)));
        }
    }

    /// A piece of the answer's body, as the upstream sent it; the last one, or not.
    pub fn feed(&mut self, piece: Option<&[u8]>, is_last: bool) {
        if let Some(piece) = piece {
            let readers = self.held.iter_mut().flat_map(|held| &mut held.readers);
            readers.for_each(|reader| reader.feed(piece));
        }
        self.is_whole |= is_last;
    }

    /// Takes out all that is left, and what becomes of it.
    fn rest(&mut self) -> Vec<(Held, Becomes)> {
        let (handed_on, is_whole) = (self.handed_on, self.is_whole);
        let held = std::mem::take(&mut self.held).into_iter();
        held.map(|mut held| {
            let becomes = held.at_end(handed_on, is_whole);
            (held, becomes)
        })
        .collect()
    }

    /// Takes out what passes.
    fn take(&mut self, passes: impl Fn(&Held) -> bool) -> Vec<Held> {
        let (taken, open) = std::mem::take(&mut self.held).into_iter().partition(passes);
        self.held = open;
        taken
    }

    /// Whether the request was handed on.
    #[must_use]
    pub const fn is_handed_on(&self) -> bool {
        self.handed_on
    }

    /// The request is handed on: from now on it may do something.
    pub const fn hand_on(&mut self) {
        self.handed_on = true;
    }
}

/// Settles what the head of an answer decides, before it is sent: whoever has read it finds what is left. Without
/// fields the answer is none of the upstream's, and says nothing of a cost.
pub async fn by_head(ctx: &mut Context, status: StatusCode, headers: Option<&HeaderMap>) {
    let settling = &mut ctx.settling;
    if settling.held.is_empty() {
        return;
    }
    let mut decided = Vec::new();
    let mut open = Vec::new();
    for mut held in std::mem::take(&mut settling.held) {
        let awaits_status = std::mem::take(&mut held.awaits_status);
        match held.by_status(status).filter(|_| awaits_status) {
            Some(settled) => decided.push((held, settled)),
            None => open.push(held),
        }
    }
    settling.held = open;
    if let Some(headers) = headers {
        settling.begin(headers);
    }
    let known = settling.take(Held::is_known);
    let handed_on = settling.handed_on;
    let decided = decided.into_iter().map(|(held, settled)| {
        let becomes = Becomes {
            settled: Some(settled),
            missing: false,
        };
        (held, becomes)
    });
    let known = known.into_iter().map(|mut held| {
        let becomes = held.at_end(handed_on, true);
        (held, becomes)
    });
    let becoming: Vec<_> = decided.chain(known).collect();
    let gateway = Arc::clone(&ctx.gateway);
    let mut settled = Vec::with_capacity(becoming.len());
    for (held, becomes) in &becoming {
        ctx.tell_of_spent(held.check.policy(), held.count(&gateway, *becomes));
        settled.extend(becomes.settled.map(|becomes| (held, becomes)));
    }
    for ((held, _), left) in settled.iter().zip(settle(&gateway, &settled).await) {
        let is_of = |ruled: &&mut Ruled| ruled.policy().index == held.check.policy().index;
        if let Some(left) = left
            && let Some(ruled) = ctx.rulings.iter_mut().find(is_of)
        {
            ruled.tell_of(&left);
        }
    }
}

/// Settles what there is to settle once the answer is over: all of it was sent, or it was cut off.
pub async fn at_end(ctx: &mut Context, is_whole: bool) {
    let settling = &mut ctx.settling;
    if settling.held.is_empty() {
        return;
    }
    settling.is_whole |= is_whole;
    let gateway = Arc::clone(&ctx.gateway);
    let becoming = settling.rest();
    for (held, becomes) in &becoming {
        ctx.tell_of_spent(held.check.policy(), held.count(&gateway, *becomes));
    }
    settle_all(&gateway, &becoming).await;
}

async fn settle_all(gateway: &Gateway, becoming: &[(Held, Becomes)]) {
    let settled: Vec<_> = becoming
        .iter()
        .filter_map(|(held, becomes)| Some((held, becomes.settled?)))
        .collect();
    settle(gateway, &settled).await;
}

async fn settle(gateway: &Gateway, settled: &[(&Held, Settled)]) -> Vec<Option<Decision>> {
    let settlements: Vec<_> = settled
        .iter()
        .map(|(held, settled)| (held.charged(), *settled))
        .collect();
    if settlements.is_empty() {
        return Vec::new();
    }
    let began = monotonic_now();
    let (left, failure) = gateway.limiter.settle(&settlements).await;
    let families = gateway.metrics.families();
    if settlements
        .iter()
        .any(|(charged, _)| charged.ledger == Ledger::Shared)
    {
        let took = monotonic_now().saturating_duration_since(began);
        families.store_settle.observe(took.as_secs_f64());
    }
    if let Some(failure) = failure {
        super::tally::store_failed(gateway, &failure);
    }
    left
}

impl Drop for Settling {
    fn drop(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let becoming = self.rest();
        let gateway = Arc::clone(&self.gateway);
        let counted = gateway.unsettled.one_more();
        let rest = async move {
            for (held, becomes) in &becoming {
                held.count(&gateway, *becomes);
            }
            settle_all(&gateway, &becoming).await;
            drop(counted);
        };
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(rest)),
            Err(_) => {
                warn!("a request's charges stay as they were: it ended outside of the server");
            }
        }
    }
}

impl Unsettled {
    /// Whether there are none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }

    fn one_more(&self) -> Counted {
        self.0.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(&self.0))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
