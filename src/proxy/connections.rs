//! How many connections there may be, in all and from one address: a flood of them costs its sender, and nobody else.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::IntGauge;

/// Counters of addresses, so that threads seldom meet at one lock.
const SHARDS: usize = 16;

/// Why a connection is closed as soon as it is open.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Full {
    /// There are as many as there may be.
    Total,
    /// Its address has as many as it may have.
    Address,
}

/// Counts connections. There are never more addresses in it than connections.
#[derive(Debug)]
pub struct Connections {
    total: AtomicUsize,
    by_address: [Mutex<HashMap<IpAddr, usize>>; SHARDS],
    hasher: RandomState,
    open: IntGauge,
}

/// A connection that is counted, until it is dropped.
#[derive(Debug)]
pub struct Connection {
    counted: Arc<Connections>,
    /// The address that it is counted for, if addresses are.
    address: Option<IpAddr>,
}

impl Connections {
    /// None so far; `open` shows how many there are.
    #[must_use]
    pub fn new(open: IntGauge) -> Self {
        Self {
            total: AtomicUsize::new(0),
            by_address: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            open,
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.total.load(Ordering::Acquire)
    }

    /// Counts another, if there may be one: `max` in all, and from `address` as many as it comes with.
    ///
    /// # Errors
    ///
    /// Why there may not.
    pub fn open(
        self: &Arc<Self>,
        max: usize,
        address: Option<(IpAddr, usize)>,
    ) -> Result<Connection, Full> {
        let within = |max: usize| move |open: usize| (open < max).then_some(open + 1);
        self.total
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, within(max))
            .map_err(|_| Full::Total)?;
        self.open.inc();
        let mut connection = Connection {
            counted: Arc::clone(self),
            address: None,
        };
        if let Some((ip, max)) = address {
            let Some(shard) = self.shard(ip) else {
                return Ok(connection);
            };
            let mut counts = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry(ip).or_insert(0);
            if *count >= max {
                // There are some, or none may be: the entry is not ours to take away.
                if *count == 0 {
                    counts.remove(&ip);
                }
                drop(counts);
                return Err(Full::Address);
            }
            *count += 1;
            connection.address = Some(ip);
        }
        Ok(connection)
    }

    fn shard(&self, ip: IpAddr) -> Option<&Mutex<HashMap<IpAddr, usize>>> {
        let shards = u64::try_from(SHARDS).unwrap_or(1);
        let index = usize::try_from(self.hasher.hash_one(ip) % shards).ok()?;
        self.by_address.get(index)
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.counted.total.fetch_sub(1, Ordering::AcqRel);
        self.counted.open.dec();
        let Some((ip, shard)) = self
            .address
            .and_then(|ip| Some((ip, self.counted.shard(ip)?)))
        else {
            return;
        };
        let mut counts = shard.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&ip) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&ip);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections() -> Arc<Connections> {
        let open = IntGauge::new("open", "open").unwrap();
        Arc::new(Connections::new(open))
    }

    fn from(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn no_more_are_open_than_there_may_be_and_a_closed_one_makes_room() {
        let counted = connections();
        let held: Vec<_> = (0..3).map(|_| counted.open(3, None).unwrap()).collect();
        assert_eq!(counted.open(3, None).unwrap_err(), Full::Total);
        assert_eq!(counted.open.get(), 3);
        drop(held);
        assert_eq!(counted.open.get(), 0);
        assert!(counted.open(3, None).is_ok());
    }

    #[test]
    fn an_address_has_its_share_and_leaves_the_others_theirs() {
        let counted = connections();
        let one = counted.open(9, Some((from(1), 2))).unwrap();
        let two = counted.open(9, Some((from(1), 2))).unwrap();
        assert_eq!(
            counted.open(9, Some((from(1), 2))).unwrap_err(),
            Full::Address
        );
        assert_eq!(
            counted.open(9, Some((from(3), 0))).unwrap_err(),
            Full::Address
        );
        let other = counted.open(9, Some((from(2), 2))).unwrap();
        drop(one);
        let three = counted.open(9, Some((from(1), 2))).unwrap();
        drop((two, three, other));
        // Nothing is kept of whom nobody comes from any more.
        assert_eq!(counted.open.get(), 0);
        for shard in &counted.by_address {
            assert!(shard.lock().unwrap().is_empty());
        }
    }
}
