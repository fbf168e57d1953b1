//! The servers of an upstream, taken in turn by weight. Names are resolved in the background, never by a request.

use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use tracing::warn;

/// The longest turn: larger weights are scaled down to it.
const TURN_MAX: u64 = 1000;

/// The servers of an upstream.
#[derive(Debug)]
pub struct Pool {
    name: Arc<str>,
    servers: Vec<(Arc<str>, NonZeroU32)>,
    /// Addresses in the order of a whole turn; a server stands there as often as it weighs.
    turn: ArcSwap<Vec<SocketAddr>>,
    next: AtomicUsize,
}

impl Pool {
    /// A pool that does not know its addresses yet.
    #[must_use]
    pub fn new(name: Arc<str>, servers: Vec<(Arc<str>, NonZeroU32)>) -> Self {
        Self {
            name,
            servers,
            turn: ArcSwap::default(),
            next: AtomicUsize::new(0),
        }
    }

    /// The next server, if possible not `failed`.
    #[must_use]
    pub fn next(&self, failed: Option<SocketAddr>) -> Option<SocketAddr> {
        let turn = self.turn.load();
        let length = turn.len();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        (0..length)
            .filter_map(|step| turn.get(first.wrapping_add(step) % length))
            .find(|server| Some(**server) != failed)
            .or_else(|| turn.first())
            .copied()
    }

    /// Looks the names up again. Blocks: not for a thread that serves requests. A name that cannot be resolved
    /// leaves its server out; when none can be, the addresses known so far stay.
    pub fn resolve(&self) {
        let mut weighted = Vec::new();
        for (server, weight) in &self.servers {
            match server.to_socket_addrs() {
                Ok(addresses) => {
                    weighted.extend(addresses.map(|address| (address, u64::from(weight.get()))));
                }
                Err(error) => {
                    warn!(upstream = %self.name, %server, %error, "server not resolved");
                }
            }
        }
        let turn = whole_turn(&weighted);
        if !turn.is_empty() && turn != **self.turn.load() {
            self.turn.store(Arc::new(turn));
        }
    }
}

/// Spreads each server evenly over the turn: the one that is furthest behind its share comes next.
fn whole_turn(weighted: &[(SocketAddr, u64)]) -> Vec<SocketAddr> {
    let divisor = weighted.iter().fold(0, |a, (_, b)| gcd(a, *b)).max(1);
    let sum: u64 = weighted.iter().map(|(_, weight)| weight / divisor).sum();
    let scale = sum.div_ceil(TURN_MAX).max(1);
    let weights: Vec<_> = weighted
        .iter()
        .map(|(address, weight)| (*address, (weight / divisor / scale).max(1)))
        .collect();
    let length: u64 = weights.iter().map(|(_, weight)| weight).sum();
    let mut taken = vec![0_u64; weights.len()];
    let mut turn = Vec::new();
    for step in 1..=length {
        let behind = weights
            .iter()
            .zip(&mut taken)
            .max_by_key(|((_, weight), taken)| (weight * step).saturating_sub(**taken * length));
        if let Some(((address, _), taken)) = behind {
            *taken += 1;
            turn.push(*address);
        }
    }
    turn
}

const fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(servers: &[(&str, u32)]) -> Pool {
        let servers = servers
            .iter()
            .map(|(name, weight)| (Arc::from(*name), NonZeroU32::new(*weight).unwrap()))
            .collect();
        let pool = Pool::new(Arc::from("test"), servers);
        pool.resolve();
        pool
    }

    fn ports(pool: &Pool, count: usize) -> Vec<u16> {
        (0..count)
            .map(|_| pool.next(None).unwrap().port())
            .collect()
    }

    #[test]
    fn servers_take_turns_by_weight_and_evenly_spread() {
        let pool = pool(&[("127.0.0.1:1", 2), ("127.0.0.1:2", 1)]);
        let taken = ports(&pool, 6);
        assert_eq!(taken.iter().filter(|port| **port == 1).count(), 4);
        assert!(
            !taken.windows(3).any(|three| three == [1, 1, 1]),
            "{taken:?}"
        );
    }

    #[test]
    fn a_server_that_failed_is_passed_over_while_there_is_another() {
        let pool = pool(&[("127.0.0.1:1", 1), ("127.0.0.1:2", 1)]);
        let failed = "127.0.0.1:1".parse().ok();
        for _ in 0..4 {
            assert_eq!(pool.next(failed).unwrap().port(), 2);
        }
    }

    #[test]
    fn an_only_server_is_tried_again() {
        let pool = pool(&[("127.0.0.1:1", 7)]);
        assert_eq!(pool.next("127.0.0.1:1".parse().ok()).unwrap().port(), 1);
    }

    #[test]
    fn a_server_that_cannot_be_resolved_leaves_the_others() {
        let pool = pool(&[("127.0.0.1:no-port", 1), ("127.0.0.1:2", 1)]);
        assert_eq!(ports(&pool, 2), [2, 2]);
    }

    #[test]
    fn a_huge_weight_makes_no_huge_turn() {
        let pool = pool(&[("127.0.0.1:1", u32::MAX), ("127.0.0.1:2", 1)]);
        assert!(pool.turn.load().len() <= 1002);
    }
}
