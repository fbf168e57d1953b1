//! Values by network, found by an address: as many as there are, a look takes a few steps.
//!
//! Two networks either lie one in the other or apart. So all that hold an address are the narrowest that does, the one
//! around that, and so on.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::client::address::canonical;

/// Values by network. IPv4 and IPv6 are apart; an IPv4 address in IPv6 is IPv4.
#[derive(Debug)]
pub struct Networks<T>(Box<[Entry<T>]>);

#[derive(Debug)]
struct Entry<T> {
    first: Address,
    last: Address,
    /// The narrowest network around this one.
    around: Option<usize>,
    value: T,
}

/// Whether it is IPv6, and its bits.
type Address = (bool, u128);

impl<T> Default for Networks<T> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<T> Networks<T> {
    /// These values. Of one network there is one: what follows is merged into the first.
    #[must_use]
    pub fn new(
        values: impl IntoIterator<Item = (IpNet, T)>,
        mut merge: impl FnMut(&mut T, T),
    ) -> Self {
        let mut entries: Vec<Entry<T>> = values.into_iter().map(Entry::new).collect();
        // The wider first, of those that begin at one address; a stable sort keeps the order of equal ones.
        entries.sort_by_key(|entry| (entry.first, std::cmp::Reverse(entry.last)));
        let mut distinct: Vec<Entry<T>> = Vec::with_capacity(entries.len());
        for mut entry in entries {
            if let Some(same) = distinct.last_mut()
                && (same.first, same.last) == (entry.first, entry.last)
            {
                merge(&mut same.value, entry.value);
                continue;
            }
            let before = distinct.len().checked_sub(1);
            entry.around = outwards(&distinct, before)
                .find(|(_, around)| around.last >= entry.last)
                .map(|(place, _)| place);
            distinct.push(entry);
        }
        Self(distinct.into())
    }

    /// Where the narrowest network is that holds this address.
    #[must_use]
    pub fn narrowest(&self, ip: IpAddr) -> Option<Place> {
        let address = bits(ip);
        let after = self.0.partition_point(|entry| entry.first <= address);
        // Of those that begin before it, the last one may end before it too; then it is in one around that, or in none.
        outwards(&self.0, after.checked_sub(1))
            .find(|(_, entry)| entry.last >= address)
            .map(|(place, _)| Place(place))
    }

    /// The value of the network at this place, and those of all around it, the narrowest first.
    pub fn from(&self, place: Option<Place>) -> impl Iterator<Item = &T> {
        outwards(&self.0, place.map(|place| place.0)).map(|(_, entry)| &entry.value)
    }

    /// Every value.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|entry| &entry.value)
    }
}

/// Where a network is among the others.
#[derive(Clone, Copy, Debug)]
pub struct Place(usize);

/// The entry at this place, and all around it, the narrowest first.
fn outwards<T>(
    entries: &[Entry<T>],
    from: Option<usize>,
) -> impl Iterator<Item = (usize, &Entry<T>)> {
    let at = |place: usize| Some((place, entries.get(place)?));
    std::iter::successors(from.and_then(at), move |(_, entry)| {
        entry.around.and_then(at)
    })
}

impl<T> Entry<T> {
    fn new((network, value): (IpNet, T)) -> Self {
        let (first, last) = (network.network(), network.broadcast());
        let (first, last) = match (first, last, bits(first), bits(last)) {
            // It ends where IPv4 does, and is wider than that.
            (IpAddr::V6(first), IpAddr::V6(last), (true, _), (false, _)) => {
                ((true, first.to_bits()), (true, last.to_bits()))
            }
            (.., first, last) => (first, last),
        };
        Self {
            first,
            last,
            around: None,
            value,
        }
    }
}

fn bits(ip: IpAddr) -> Address {
    match canonical(ip) {
        IpAddr::V4(ip) => (false, u128::from(ip.to_bits())),
        IpAddr::V6(ip) => (true, ip.to_bits()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[&str]) -> Networks<Vec<String>> {
        let values = list
            .iter()
            .map(|text| (text.parse().unwrap(), vec![(*text).to_owned()]));
        Networks::new(values, |same, other| same.extend(other))
    }

    fn holding(networks: &Networks<Vec<String>>, ip: &str) -> Vec<String> {
        let narrowest = networks.narrowest(ip.parse().unwrap());
        networks
            .from(narrowest)
            .map(|names| names.join("+"))
            .collect()
    }

    #[test]
    fn all_that_hold_an_address_are_found_the_narrowest_first() {
        let networks = of(&[
            "10.0.0.0/8",
            "10.1.0.0/16",
            "10.1.2.0/24",
            "10.1.2.3/32",
            "10.1.4.0/24",
            "10.2.0.0/16",
            "10.1.2.9/24",
            "2001:db8::/32",
            "2001:db8::1/128",
        ]);
        for (ip, expected) in [
            (
                "10.1.2.3",
                &[
                    "10.1.2.3/32",
                    "10.1.2.0/24+10.1.2.9/24",
                    "10.1.0.0/16",
                    "10.0.0.0/8",
                ] as &[&str],
            ),
            (
                "10.1.2.255",
                &["10.1.2.0/24+10.1.2.9/24", "10.1.0.0/16", "10.0.0.0/8"],
            ),
            ("10.1.3.0", &["10.1.0.0/16", "10.0.0.0/8"]),
            ("10.1.5.0", &["10.1.0.0/16", "10.0.0.0/8"]),
            (
                "::ffff:10.1.4.1",
                &["10.1.4.0/24", "10.1.0.0/16", "10.0.0.0/8"],
            ),
            ("10.3.0.0", &["10.0.0.0/8"]),
            ("9.255.255.255", &[]),
            ("11.0.0.0", &[]),
            ("2001:db8::1", &["2001:db8::1/128", "2001:db8::/32"]),
            ("2001:db9::", &[]),
            ("::", &[]),
        ] {
            assert_eq!(holding(&networks, ip), expected, "{ip}");
        }
    }

    #[test]
    fn everybody_of_one_family_is_nobody_of_the_other() {
        let networks = of(&["::/0", "192.0.2.0/24"]);
        assert_eq!(holding(&networks, "2001:db8::1"), ["::/0"]);
        assert_eq!(holding(&networks, "192.0.2.1"), ["192.0.2.0/24"]);
        assert!(holding(&networks, "192.0.3.1").is_empty());
        assert_eq!(holding(&of(&["0.0.0.0/0"]), "192.0.3.1"), ["0.0.0.0/0"]);
        let wide = of(&["::/80", "::ffff:0:0/96"]);
        assert_eq!(holding(&wide, "192.0.2.1"), ["::ffff:0:0/96"]);
        assert_eq!(holding(&wide, "::1"), ["::/80"]);
        assert!(holding(&of(&[]), "192.0.3.1").is_empty());
    }
}
