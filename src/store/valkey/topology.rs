//! Which server of a cluster has which slot, as its servers say. No I/O.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crc::{CRC_16_XMODEM, Crc};
use redis::Value;

use crate::check::EntityKey;

/// How many slots every cluster has.
pub(crate) const SLOTS: u16 = 16_384;

/// The most ranges of slots that are read of one server: a thousand servers, and then some.
const RANGES_MAX: usize = 4096;

const CRC: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The slot of the keys of an entity.
pub(crate) fn slot_of(entity: EntityKey) -> u16 {
    // 16 bytes make 22 letters.
    let mut tag = [0; 22];
    let length = URL_SAFE_NO_PAD
        .encode_slice(entity.0, &mut tag)
        .unwrap_or_default();
    slot_of_tag(tag.get(..length).unwrap_or_default())
}

/// The slot of keys that have this text in braces.
pub(crate) fn slot_of_tag(tag: &[u8]) -> u16 {
    CRC.checksum(tag) % SLOTS
}

/// The least number that, in braces, makes a key of one of these slots.
pub(crate) fn tag_in(owns: impl Fn(u16) -> bool) -> Option<u32> {
    // A few times as many as there are slots: nearly every slot has one among them.
    (0..u32::from(SLOTS) * 8).find(|number| owns(slot_of_tag(number.to_string().as_bytes())))
}

/// What one server says of its cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct View {
    /// Whether it takes part in a cluster that works.
    is_well: bool,
    /// How new its knowledge is.
    epoch: u64,
    /// Who has which slots: `host:port`.
    pub(crate) owners: Vec<(RangeInclusive<u16>, String)>,
}

impl View {
    /// Reads the replies to `CLUSTER INFO` and `CLUSTER SLOTS` of the server at `asked`, as far as they make sense.
    pub(crate) fn read(info: &str, slots: &Value, asked: &str) -> Self {
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.trim_end().strip_prefix(name)?.strip_prefix(':'))
        };
        let ranges = match slots {
            Value::Array(ranges) => ranges.as_slice(),
            _ => &[],
        };
        Self {
            is_well: field("cluster_state") == Some("ok"),
            epoch: field("cluster_current_epoch")
                .and_then(|epoch| epoch.parse().ok())
                .unwrap_or(0),
            owners: ranges
                .iter()
                .filter_map(|range| owner(range, asked))
                .take(RANGES_MAX)
                .collect(),
        }
    }

    /// The one to believe: of a cluster that works before one that does not, then the newest, then what most say.
    pub(crate) fn best(views: Vec<Self>) -> Option<Self> {
        let mut votes: HashMap<String, usize> = HashMap::new();
        for view in &views {
            *votes.entry(format!("{:?}", view.owners)).or_default() += 1;
        }
        views
            .into_iter()
            .filter(|view| !view.owners.is_empty())
            .max_by_key(|view| {
                let votes = votes.get(&format!("{:?}", view.owners)).copied();
                (view.is_well, view.epoch, votes)
            })
    }
}

/// Who has a range of slots: `[first, last, [host, port, …], replicas …]`.
fn owner(range: &Value, asked: &str) -> Option<(RangeInclusive<u16>, String)> {
    let Value::Array(range) = range else {
        return None;
    };
    let [
        Value::Int(first),
        Value::Int(last),
        Value::Array(primary),
        ..,
    ] = range.as_slice()
    else {
        return None;
    };
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
    let [host, Value::Int(port), ..] = primary.as_slice() else {
        return None;
    };
    let port = u16::try_from(*port).ok()?;
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        Value::Nil => "",
        _ => return None,
    };
    let address = match host {
        // It does not know under which name others reach it.
        "?" => return None,
        // No name, and no literal.
        odd if odd.len() > 255 || !odd.bytes().all(|byte| byte.is_ascii_graphic()) => return None,
        "" => format!("{}:{port}", asked.rsplit_once(':')?.0),
        literal if literal.contains(':') => format!("[{literal}]:{port}"),
        name => format!("{name}:{port}"),
    };
    Some((slot(first)?..=slot(last)?, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &str) -> Value {
        Value::BulkString(bytes.as_bytes().to_vec())
    }

    fn range(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = Value::Array(vec![host, Value::Int(port), text("id")]);
        Value::Array(vec![Value::Int(first), Value::Int(last), primary])
    }

    fn view(state: &str, epoch: u64, port: i64) -> View {
        let info = format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n");
        let slots = Value::Array(vec![range(0, 16_383, text("10.0.0.1"), port)]);
        View::read(&info, &slots, "seed:1")
    }

    #[test]
    fn slots_are_those_of_the_protocol() {
        // The check value that the specification of clusters gives.
        assert_eq!(CRC.checksum(b"123456789"), 0x31c3);
        assert_eq!(slot_of_tag(b"foo"), 12_182);
        assert_eq!(slot_of_tag(b""), 0);
    }

    #[test]
    fn a_tag_is_found_for_any_slots() {
        for slot in [0, 1, 5_461, 16_383] {
            let tag = tag_in(|found| found == slot).unwrap();
            assert_eq!(slot_of_tag(tag.to_string().as_bytes()), slot);
        }
        assert_eq!(tag_in(|_| false), None);
    }

    #[test]
    fn a_view_has_the_primaries_and_nothing_that_makes_no_sense() {
        let slots = Value::Array(vec![
            range(0, 5, text("10.0.0.1"), 7000),
            range(6, 9, text(""), 7001),
            range(10, 11, Value::Nil, 7002),
            range(12, 13, text("::1"), 7003),
            range(14, 15, text("?"), 7004),
            range(16, 16_384, text("h"), 7005),
            range(-1, 3, text("h"), 7006),
            range(20, 21, text("h"), 70_000),
            Value::Array(vec![Value::Int(1)]),
            Value::Nil,
        ]);
        let view = View::read("cluster_state:ok", &slots, "seed:1");
        let owners = [
            (0..=5, "10.0.0.1:7000"),
            (6..=9, "seed:7001"),
            (10..=11, "seed:7002"),
            (12..=13, "[::1]:7003"),
        ];
        assert_eq!(
            view.owners,
            owners.map(|(range, at)| (range, at.to_owned()))
        );
        assert!(view.is_well);
    }

    #[test]
    fn a_view_of_a_cluster_that_works_is_believed_then_the_newest_then_the_most() {
        let port = |views: &[View]| View::best(views.to_vec()).unwrap().owners[0].1.clone();
        assert!(port(&[view("fail", 9, 1), view("ok", 3, 2)]).ends_with(":2"));
        assert!(port(&[view("ok", 3, 1), view("ok", 4, 2)]).ends_with(":2"));
        assert!(port(&[view("ok", 3, 1), view("ok", 3, 2), view("ok", 3, 1)]).ends_with(":1"));
        assert_eq!(View::best(vec![View::read("", &Value::Nil, "")]), None);
    }
}
