//! The servers of an upstream, taken in turn by weight. Names are resolved in the background, never by a request; what
//! fails its checks is left out.

use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use pingora::prelude::HttpPeer;
use tracing::{info, warn};

use super::condition::Condition;
use super::peer::{Made, Reach};
use crate::config::{Target, Upstream};

/// The longest turn: larger weights are scaled down to it.
const TURN_MAX: u64 = 1000;

/// How often the log tells of what fails each request.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// The servers of an upstream.
#[derive(Debug)]
pub struct Pool {
    name: Arc<str>,
    servers: Vec<(Arc<str>, NonZeroU32)>,
    reach: Reach,
    /// All that is known of them. Held to put a turn together, never by a request.
    members: Mutex<Vec<Member>>,
    /// A whole turn of those that get requests; a server stands there as often as it weighs.
    turn: ArcSwap<Vec<Stop>>,
    next: AtomicUsize,
    /// Whether all of them fail their checks: then all of them get requests.
    none_is_healthy: AtomicBool,
    /// When the log last told of a failure here.
    told: Mutex<Option<Instant>>,
}

/// An address of a server.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Stop {
    /// Where it is.
    pub address: SocketAddr,
    /// The server's position in the upstream.
    server: usize,
}

/// An address of a server, and what is known of it.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) stop: Stop,
    pub(super) condition: Arc<Condition>,
}

impl Pool {
    /// A pool that does not know its addresses yet.
    #[must_use]
    pub(super) fn new(upstream: &Upstream, made: &mut Made) -> Self {
        Self {
            name: Arc::clone(&upstream.name),
            servers: match &upstream.target {
                Target::Servers(servers) => servers.clone(),
                Target::Echo => Vec::new(),
            },
            reach: Reach::new(upstream, made),
            members: Mutex::default(),
            turn: ArcSwap::default(),
            next: AtomicUsize::new(0),
            none_is_healthy: AtomicBool::new(false),
            told: Mutex::default(),
        }
    }

    /// The next server, if possible not where it `failed`.
    #[must_use]
    pub fn next(&self, failed: Option<SocketAddr>) -> Option<Stop> {
        let turn = self.turn.load();
        let length = turn.len();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        (0..length)
            .filter_map(|step| turn.get(first.wrapping_add(step) % length))
            .find(|stop| Some(stop.address) != failed)
            .or_else(|| turn.first())
            .copied()
    }

    /// What is connected to there.
    pub(super) fn peer(&self, stop: Stop) -> HttpPeer {
        self.reach.peer(self.server(stop), stop.address)
    }

    /// The server, as configured.
    #[must_use]
    pub fn server(&self, stop: Stop) -> &str {
        self.servers.get(stop.server).map_or("", |(name, _)| name)
    }

    /// The `Host` field that names it.
    pub(super) fn authority(&self, stop: Stop) -> &str {
        self.reach.authority(self.server(stop))
    }

    /// Every address.
    pub(super) fn members(&self) -> Vec<Member> {
        self.lock().clone()
    }

    /// Looks the names up again. Blocks: not for a thread that serves requests. A name that cannot be resolved
    /// leaves its server out; when none can be, the addresses known so far stay. Returns whether something changed.
    pub fn resolve(&self) -> bool {
        let mut found = Vec::new();
        for (server, (name, _)) in self.servers.iter().enumerate() {
            match name.to_socket_addrs() {
                Ok(addresses) => found.extend(addresses.map(|address| Stop { address, server })),
                Err(error) => {
                    warn!(upstream = %self.name, server = %name, %error, "server not resolved");
                }
            }
        }
        // A name server may tell of the same addresses in another order each time.
        found.sort_unstable_by_key(|stop| (stop.server, stop.address));
        found.dedup();
        let mut members = self.lock();
        if found.is_empty() || found.iter().eq(members.iter().map(|member| &member.stop)) {
            return false;
        }
        let known = |stop: &Stop| members.iter().find(|member| member.stop == *stop).cloned();
        *members = found
            .into_iter()
            .map(|stop| {
                known(&stop).unwrap_or_else(|| Member {
                    stop,
                    condition: Arc::default(),
                })
            })
            .collect();
        self.put_together(&members);
        true
    }

    /// Goes on with what `earlier`, of the same upstream, knows of the servers that both have.
    pub(super) fn take_over(&self, earlier: &Self) {
        let known = earlier.members();
        let mut members = self.lock();
        for member in members.iter_mut() {
            let same = |other: &&Member| {
                other.stop.address == member.stop.address
                    && earlier.server(other.stop) == self.server(member.stop)
            };
            if let Some(other) = known.iter().find(same) {
                member.condition = Arc::clone(&other.condition);
            }
        }
        self.put_together(&members);
    }

    /// Puts the turn together anew, after the condition of some of them changed.
    pub(super) fn refresh(&self) {
        self.put_together(&self.lock());
    }

    /// Whether an address of this server gets requests.
    #[must_use]
    pub(super) fn is_healthy(&self, server: &str) -> bool {
        self.lock()
            .iter()
            .any(|member| self.server(member.stop) == server && member.condition.is_healthy())
    }

    /// Whether the log may be told of a failure here, again.
    pub(super) fn may_tell(&self, now: Instant) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let may = told.is_none_or(|told| now.saturating_duration_since(told) >= TELL_EVERY);
        if may {
            *told = Some(now);
        }
        may
    }

    fn put_together(&self, members: &[Member]) {
        let weighted = |only_healthy: bool| -> Vec<(Stop, u64)> {
            members
                .iter()
                .filter(|member| !only_healthy || member.condition.is_healthy())
                .filter_map(|member| {
                    let (_, weight) = self.servers.get(member.stop.server)?;
                    Some((member.stop, u64::from(weight.get())))
                })
                .collect()
        };
        let healthy = weighted(true);
        let none = healthy.is_empty() && !members.is_empty();
        if self.none_is_healthy.swap(none, Ordering::Relaxed) != none {
            if none {
                warn!(upstream = %self.name, "no server passes its checks: requests go to all of them");
            } else {
                info!(upstream = %self.name, "requests go to servers that pass their checks");
            }
        }
        let turn = whole_turn(&if none { weighted(false) } else { healthy });
        if turn != **self.turn.load() {
            self.turn.store(Arc::new(turn));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Member>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Spreads each server evenly over the turn: the one that is furthest behind its share comes next.
fn whole_turn(weighted: &[(Stop, u64)]) -> Vec<Stop> {
    let divisor = weighted.iter().fold(0, |a, (_, b)| gcd(a, *b)).max(1);
    let sum: u64 = weighted.iter().map(|(_, weight)| weight / divisor).sum();
    let scale = sum.div_ceil(TURN_MAX).max(1);
    let weights: Vec<_> = weighted
        .iter()
        .map(|(stop, weight)| (*stop, (weight / divisor / scale).max(1)))
        .collect();
    let length: u64 = weights.iter().map(|(_, weight)| weight).sum();
    let mut taken = vec![0_u64; weights.len()];
    let mut turn = Vec::new();
    for step in 1..=length {
        let behind = weights
            .iter()
            .zip(&mut taken)
            .max_by_key(|((_, weight), taken)| (weight * step).saturating_sub(**taken * length));
        if let Some(((stop, _), taken)) = behind {
            *taken += 1;
            turn.push(*stop);
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
    use crate::clock::monotonic_now;
    use crate::config::{Health, Probe, Timeouts};

    fn pool(servers: &[(&str, u32)]) -> Pool {
        let servers = servers
            .iter()
            .map(|(name, weight)| (Arc::from(*name), NonZeroU32::new(*weight).unwrap()))
            .collect();
        let second = Duration::from_secs(1);
        let upstream = Upstream {
            name: Arc::from("test"),
            target: Target::Servers(servers),
            tls: None,
            health: None,
            timeouts: Timeouts {
                connect: second,
                read: second,
                write: second,
                idle: second,
            },
            host_header: None,
            retries: 1,
        };
        let pool = Pool::new(&upstream, &mut Made::default());
        pool.resolve();
        pool
    }

    /// What one check decides.
    fn check(pool: &Pool, port: u16, passed: bool) {
        let health = Health {
            probe: Probe::Connect,
            interval: Duration::from_secs(1),
            timeout: Duration::from_secs(1),
            healthy_after: 1,
            unhealthy_after: 1,
        };
        let members = pool.members();
        let member = members
            .iter()
            .find(|member| member.stop.address.port() == port)
            .unwrap();
        member.condition.note(passed, &health, monotonic_now());
        pool.refresh();
    }

    fn ports(pool: &Pool, count: usize) -> Vec<u16> {
        (0..count)
            .map(|_| pool.next(None).unwrap().address.port())
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
            assert_eq!(pool.next(failed).unwrap().address.port(), 2);
        }
    }

    #[test]
    fn an_only_server_is_tried_again() {
        let pool = pool(&[("127.0.0.1:1", 7)]);
        let failed = "127.0.0.1:1".parse().ok();
        assert_eq!(pool.next(failed).unwrap().address.port(), 1);
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

    #[test]
    fn the_share_of_a_server_that_fails_goes_to_the_others_by_their_weight() {
        let pool = pool(&[("127.0.0.1:1", 1), ("127.0.0.1:2", 1), ("127.0.0.1:3", 2)]);
        check(&pool, 1, false);
        let taken = ports(&pool, 6);
        let count = |port: u16| taken.iter().filter(|taken| **taken == port).count();
        assert_eq!([count(1), count(2), count(3)], [0, 2, 4], "{taken:?}");
        check(&pool, 1, true);
        assert!(ports(&pool, 4).contains(&1));
    }

    #[test]
    fn all_get_requests_where_all_fail() {
        let pool = pool(&[("127.0.0.1:1", 1), ("127.0.0.1:2", 1)]);
        check(&pool, 1, false);
        check(&pool, 2, false);
        let mut taken = ports(&pool, 2);
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
        check(&pool, 2, true);
        assert_eq!(ports(&pool, 2), [2, 2]);
    }

    #[test]
    fn what_an_earlier_pool_knows_of_a_server_holds() {
        let earlier = pool(&[("127.0.0.1:1", 1), ("127.0.0.1:2", 1)]);
        check(&earlier, 1, false);
        let later = pool(&[("127.0.0.1:3", 1), ("127.0.0.1:1", 1)]);
        later.take_over(&earlier);
        assert_eq!(ports(&later, 2), [3, 3]);
        assert!(!later.is_healthy("127.0.0.1:1") && later.is_healthy("127.0.0.1:3"));
    }
}
