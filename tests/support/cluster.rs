//! A real cluster of the test's own: servers that know each other, and slots that move between them.

use redis::{RedisResult, Value};

use super::gateway::{free_address, scratch};
use super::valkey::Valkey;

const SLOTS: usize = 16_384;

/// Running servers, killed when dropped.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Valkey>,
}

impl Cluster {
    /// Starts one of so many primaries, each with an even part of the slots, and waits until it works.
    pub(crate) fn start(primaries: usize) -> Self {
        let cluster = Self {
            nodes: (0..primaries).map(|_| start_node()).collect(),
        };
        for (number, node) in cluster.nodes.iter().enumerate() {
            let first = SLOTS * number / primaries;
            let last = SLOTS * (number + 1) / primaries - 1;
            command(
                node,
                &["ADDSLOTSRANGE", &first.to_string(), &last.to_string()],
            );
            command(node, &["SET-CONFIG-EPOCH", &(number + 1).to_string()]);
            cluster.introduce(node);
        }
        cluster.await_peace();
        cluster
    }

    /// Adds a server without slots.
    pub(crate) fn add_node(&mut self) {
        let node = start_node();
        self.introduce(&node);
        self.nodes.push(node);
        self.await_peace();
    }

    /// Adds a replica of this primary, and waits until it has what that has.
    pub(crate) fn add_replica(&mut self, of: usize) {
        self.add_node();
        let id = self.id(of);
        let replica = self.nodes.last().unwrap();
        replica.await_reply("replication", |redis| {
            // Refused until it has heard of the primary.
            let _: RedisResult<()> = redis::cmd("CLUSTER").arg(&["REPLICATE", &id]).query(redis);
            let info: String = redis::cmd("INFO").arg("replication").query(redis)?;
            Ok(info.contains("master_link_status:up"))
        });
    }

    /// As `store.cluster` has it: the first two.
    pub(crate) fn seeds(&self) -> String {
        format!(
            "[\"{}\", \"{}\"]",
            self.nodes[0].address(),
            self.nodes[1].address()
        )
    }

    /// Moves a slot with all its keys, a key at a time, as tools do that reshard. Tells `in_between` when half of the
    /// keys are there.
    pub(crate) fn move_slot(&self, slot: u16, from: usize, to: usize, in_between: impl Fn()) {
        self.begin_to_move(slot, from, to);
        let target = self.id(to);
        let slot = slot.to_string();
        let mut connection = self.nodes[from].connect();
        let mut is_half_way = false;
        for _ in 0..10_000 {
            let keys: Vec<String> = redis::cmd("CLUSTER")
                .arg(&["GETKEYSINSLOT", &slot, "1"])
                .query(&mut connection)
                .unwrap();
            let Some(key) = keys.first() else { break };
            let port = self.nodes[to].port.to_string();
            redis::cmd("MIGRATE")
                .arg(&["127.0.0.1", &port, key, "0", "5000"])
                .exec(&mut connection)
                .unwrap();
            if !is_half_way {
                in_between();
                is_half_way = true;
            }
        }
        for node in [to, from] {
            command(&self.nodes[node], &["SETSLOT", &slot, "NODE", &target]);
        }
    }

    /// Has both servers say that the keys of this slot are on their way.
    pub(crate) fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        let (source, target) = (self.id(from), self.id(to));
        let slot = slot.to_string();
        command(&self.nodes[to], &["SETSLOT", &slot, "IMPORTING", &source]);
        command(&self.nodes[from], &["SETSLOT", &slot, "MIGRATING", &target]);
    }

    /// Moves all slots of a server at once, as servers from 9.0 on can; does nothing on an older one.
    pub(crate) fn move_all_slots(&self, from: usize, to: usize) {
        let ranges = slots(&self.nodes[from])
            .into_iter()
            .filter(|(_, _, (_, port))| *port == self.nodes[from].port);
        let mut arguments = vec!["MIGRATESLOTS".to_owned(), "SLOTSRANGE".to_owned()];
        arguments.extend(ranges.flat_map(|(first, last, _)| [first.to_string(), last.to_string()]));
        arguments.extend(["NODE".to_owned(), self.id(to)]);
        let mut connection = self.nodes[from].connect();
        let asked: RedisResult<()> = redis::cmd("CLUSTER").arg(&arguments).exec(&mut connection);
        match asked {
            Err(error) if error.to_string().contains("unknown subcommand") => return,
            asked => asked.unwrap(),
        }
        let port = self.nodes[from].port;
        self.nodes[0].await_reply("the migration", |_| {
            Ok(slots(&self.nodes[0])
                .iter()
                .all(|(_, _, (_, p))| *p != port))
        });
    }

    /// The index of the primary that has this slot, as the first server says.
    pub(crate) fn owner(&self, slot: u16) -> usize {
        let view: Vec<(u16, u16, (String, u16))> = slots(&self.nodes[0]);
        let port = view
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot))
            .map(|(_, _, (_, port))| *port)
            .unwrap();
        self.nodes.iter().position(|n| n.port == port).unwrap()
    }

    fn id(&self, node: usize) -> String {
        redis::cmd("CLUSTER")
            .arg("MYID")
            .query(&mut self.nodes[node].connect())
            .unwrap()
    }

    fn introduce(&self, node: &Valkey) {
        let (port, bus) = (self.nodes[0].port.to_string(), bus_port(&self.nodes[0]));
        if node.port != self.nodes[0].port {
            command(node, &["MEET", "127.0.0.1", &port, &bus]);
        }
    }

    /// Waits until every server knows every other, and says that all slots are served.
    fn await_peace(&self) {
        let known = format!("cluster_known_nodes:{}\r", self.nodes.len());
        for node in &self.nodes {
            node.await_reply("cluster", |redis| {
                let info: String = redis::cmd("CLUSTER").arg("INFO").query(redis)?;
                let all = slots(node)
                    .into_iter()
                    .map(|(first, last, _)| last - first + 1);
                Ok(info.contains("cluster_state:ok")
                    && info.contains(&known)
                    && all.map(usize::from).sum::<usize>() == SLOTS)
            });
        }
    }
}

/// First and last of a range, and who has it.
fn slots(node: &Valkey) -> Vec<(u16, u16, (String, u16))> {
    let ranges: Vec<Vec<Value>> = redis::cmd("CLUSTER")
        .arg("SLOTS")
        .query(&mut node.connect())
        .unwrap();
    let owner = |range: Vec<Value>| {
        let mut parts = range.into_iter().map(redis::from_redis_value::<Value>);
        let mut next = || parts.next()?.ok();
        let first = redis::from_redis_value(next()?).ok()?;
        let last = redis::from_redis_value(next()?).ok()?;
        let Value::Array(primary) = next()? else {
            return None;
        };
        let mut primary = primary.into_iter();
        let host = redis::from_redis_value(primary.next()?).ok()?;
        let port = redis::from_redis_value(primary.next()?).ok()?;
        Some((first, last, (host, port)))
    };
    ranges.into_iter().filter_map(owner).collect()
}

fn start_node() -> Valkey {
    let folder = scratch();
    // The usual bus port is 10,000 above the other, which may be none.
    let bus = free_address().port().to_string();
    Valkey::start_with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-node-timeout",
        "1000",
        "--cluster-replica-validity-factor",
        "0",
        // A primary that has given its last slot away stays one.
        "--cluster-allow-replica-migration",
        "no",
        "--dir",
        folder.to_str().unwrap(),
    ])
}

fn bus_port(node: &Valkey) -> String {
    let nodes: String = redis::cmd("CLUSTER")
        .arg("NODES")
        .query(&mut node.connect())
        .unwrap();
    let me = nodes.lines().find(|line| line.contains("myself")).unwrap();
    let address = me.split(' ').nth(1).unwrap();
    let bus = address.split('@').nth(1).unwrap();
    bus.split(',').next().unwrap().to_owned()
}

fn command(node: &Valkey, arguments: &[&str]) {
    redis::cmd("CLUSTER")
        .arg(arguments)
        .exec(&mut node.connect())
        .unwrap_or_else(|error| panic!("CLUSTER {arguments:?}: {error}"));
}
