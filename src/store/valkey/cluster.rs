//! The servers of a cluster: who has which slot, asked again whenever that is in doubt. Each server has a [`Node`] with
//! a breaker of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::Settings;
use super::announce::Announcer;
use super::dial::Place;
use super::keeper::Keeper;
use super::map::{Map, NOBODY};
use super::node::{LOOK_EVERY, Node};
use super::topology::{SLOTS, View, tag_in};
use crate::store::Cause;

/// How often the servers are asked who has which slot: when all is well, and when a server does not answer.
const ASK_EVERY: Duration = Duration::from_secs(10);
const ASK_EVERY_IN_DOUBT: Duration = Duration::from_millis(500);
/// The least time between two times of asking, whatever happens: redirections tell what is new in between.
const ASK_GAP: Duration = Duration::from_millis(200);

/// How long a server is kept that a redirection named and that has no slot.
const INVITED_FOR: Duration = Duration::from_secs(30);
/// The most of them.
const INVITED_MAX: usize = 64;

/// What those who decide and those who connect have in common.
#[derive(Debug)]
pub(crate) struct Cluster {
    map: ArcSwap<Map>,
    /// Servers that redirections named, and when.
    invited: Mutex<Vec<(String, Instant)>>,
    invite: Notify,
    doubt: Arc<Notify>,
    /// Why it is not known who has which slot.
    last_error: Mutex<Option<(Cause, String)>>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self {
            map: ArcSwap::from_pointee(Map::new(vec![NOBODY; usize::from(SLOTS)], Vec::new())),
            invited: Mutex::default(),
            invite: Notify::new(),
            doubt: Arc::new(Notify::new()),
            last_error: Mutex::default(),
        }
    }

    /// Whether every slot has a server that is asked.
    pub(crate) fn is_up(&self) -> bool {
        self.map.load().is_up()
    }

    /// All servers that have slots.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.map.load().serving.clone()
    }

    /// The server that has this slot.
    pub(crate) fn node_of(&self, slot: u16) -> Option<Arc<Node>> {
        self.map.load().node_of(slot).cloned()
    }

    /// Why the cluster is not known, or a server of it is not asked.
    pub(crate) fn last_error(&self) -> Option<(Cause, String)> {
        let unknown = lock(&self.last_error).clone();
        unknown.or_else(|| {
            let map = self.map.load();
            map.serving.iter().find_map(|node| {
                let (cause, reason) = node.last_error()?;
                Some((cause, format!("{}: {reason}", node.place())))
            })
        })
    }

    /// A server says that another one has this slot now: that one, as soon as it is known, or nothing at the deadline.
    pub(crate) async fn moved(&self, slot: u16, to: &str, deadline: Instant) -> Option<Arc<Node>> {
        self.doubt.notify_one();
        let node = self.at(to, deadline).await?;
        self.map.rcu(|map| {
            let (index, _) = match map.node_at(to) {
                Some((index, node)) => (u16::try_from(index).unwrap_or(NOBODY), node),
                None => return Arc::clone(map),
            };
            if map.owners.get(usize::from(slot)) == Some(&index) {
                return Arc::clone(map);
            }
            let mut owners = map.owners.clone();
            if let Some(owner) = owners.get_mut(usize::from(slot)) {
                *owner = index;
            }
            Arc::new(Map::new(owners, map.nodes.clone()))
        });
        Some(node)
    }

    /// The server at this address, as soon as it is known, or nothing at the deadline.
    pub(crate) async fn at(&self, address: &str, deadline: Instant) -> Option<Arc<Node>> {
        let mut is_invited = false;
        loop {
            let map = self.map.load_full();
            if let Some((_, node)) = map.node_at(address) {
                if !map.serving.iter().any(|serving| Arc::ptr_eq(serving, node)) {
                    self.renew_invitation(address);
                }
                return Some(Arc::clone(node));
            }
            if !is_invited {
                self.invite(address);
                is_invited = true;
            }
            if Instant::now() >= deadline {
                return None;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn invite(&self, address: &str) {
        let mut invited = lock(&self.invited);
        invited.retain(|(at, since)| at != address && since.elapsed() < INVITED_FOR);
        if invited.len() < INVITED_MAX {
            invited.push((address.to_owned(), Instant::now()));
            self.invite.notify_one();
        }
    }

    /// A server without slots is kept for as long as calls are sent on to it.
    fn renew_invitation(&self, address: &str) {
        let mut invited = lock(&self.invited);
        if let Some((_, since)) = invited.iter_mut().find(|(at, _)| at == address) {
            *since = Instant::now();
        }
    }

    fn still_invited(&self) -> Vec<String> {
        let invited = lock(&self.invited);
        invited
            .iter()
            .filter(|(_, since)| since.elapsed() < INVITED_FOR)
            .map(|(address, _)| address.clone())
            .collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The actor that knows the cluster. It ends with [`ClusterKeeper::run`].
#[derive(Debug)]
pub(crate) struct ClusterKeeper {
    settings: Arc<ArcSwap<Settings>>,
    cluster: Arc<Cluster>,
    announcer: Option<Arc<Announcer>>,
    prefix: Arc<str>,
    /// The first servers to ask.
    seeds: Vec<String>,
    /// What ends the keeper of each server.
    keepers: Mutex<HashMap<String, watch::Sender<bool>>>,
}

impl ClusterKeeper {
    pub(crate) fn new(
        settings: Arc<ArcSwap<Settings>>,
        cluster: Arc<Cluster>,
        announcer: Option<Arc<Announcer>>,
        prefix: Arc<str>,
        seeds: Vec<String>,
    ) -> Self {
        Self {
            settings,
            cluster,
            announcer,
            prefix,
            seeds,
            keepers: Mutex::default(),
        }
    }

    /// Knows the cluster and keeps connected to its servers, until `stop` turns true or its sender is gone.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        tokio::select! {
            () = self.ask_again_and_again() => {}
            () = self.admit_the_invited() => {}
            _ = stop.wait_for(|stopped| *stopped) => {}
        }
    }

    async fn ask_again_and_again(&self) {
        loop {
            match self.ask().await {
                Ok(view) => {
                    *lock(&self.cluster.last_error) = None;
                    self.believe(&view);
                }
                Err(reason) => self.complain(reason),
            }
            sleep(ASK_GAP).await;
            let every = if self.cluster.is_up() {
                ASK_EVERY
            } else {
                ASK_EVERY_IN_DOUBT
            };
            // Over either way.
            let _ = timeout(every, self.cluster.doubt.notified()).await;
        }
    }

    async fn admit_the_invited(&self) {
        loop {
            self.cluster.invite.notified().await;
            let known = self.cluster.map.load_full();
            let mut nodes = known.nodes.clone();
            for address in self.cluster.still_invited() {
                if known.node_at(&address).is_none() {
                    nodes.push(self.employ(&address));
                }
            }
            // Its owners may have changed meanwhile; its servers change here and in `believe` only, on this task.
            self.cluster
                .map
                .rcu(|map| Map::new(map.owners.clone(), nodes.clone()));
        }
    }

    /// Once for each new reason, not for each try.
    fn complain(&self, reason: String) {
        let reason = (Cause::Cluster, reason);
        let mut last = lock(&self.cluster.last_error);
        if last.as_ref() != Some(&reason) {
            warn!(store = %self.settings.load().address, reason = %reason.1, "the cluster is not known");
            *last = Some(reason);
        }
    }

    /// What the cluster's servers say, all of them asked at once.
    async fn ask(&self) -> Result<View, String> {
        let mut asked = JoinSet::new();
        let settings = self.settings.load_full();
        let patience = settings.connect_timeout / 2;
        for (address, connection) in self.those_to_ask() {
            let settings = Arc::clone(&settings);
            asked.spawn(async move {
                match timeout(patience, view_of(&settings, &address, connection)).await {
                    Ok(Ok(view)) => Ok(view),
                    Ok(Err(error)) => Err(format!("{address}: {error}")),
                    Err(_) => Err(format!("{address}: no answer in {patience:?}")),
                }
            });
        }
        let (mut views, mut reasons) = (Vec::new(), Vec::new());
        while let Some(said) = asked.join_next().await {
            match said {
                Ok(Ok(view)) => views.push(view),
                Ok(Err(reason)) => reasons.push(reason),
                Err(_) => {}
            }
        }
        reasons.sort_unstable();
        View::best(views).ok_or_else(|| match reasons.as_slice() {
            [] => "no server of it has a slot".to_owned(),
            reasons => reasons.join("; "),
        })
    }

    /// Those that are known, by the connections that they have; the seeds, too.
    fn those_to_ask(&self) -> Vec<(String, Option<MultiplexedConnection>)> {
        let mut ask: Vec<_> = self
            .cluster
            .nodes()
            .iter()
            .filter_map(|node| match node.place() {
                Place::At(address) => {
                    let connection = node.link().map(|link| link.connection.clone());
                    Some((address.clone(), connection))
                }
                Place::Named(_) => None,
            })
            .collect();
        for seed in &self.seeds {
            if !ask.iter().any(|(address, _)| address == seed) {
                ask.push((seed.clone(), None));
            }
        }
        ask
    }

    /// Puts a view in force.
    fn believe(&self, view: &View) {
        let old = self.cluster.map.load_full();
        let mut nodes: Vec<Arc<Node>> = Vec::new();
        let mut owners = vec![NOBODY; usize::from(SLOTS)];
        let place = |address: &str, nodes: &mut Vec<Arc<Node>>| {
            let known = nodes.iter().position(|node| node.is_at(address));
            known.unwrap_or_else(|| {
                let known = old.node_at(address).map(|(_, node)| Arc::clone(node));
                nodes.push(known.unwrap_or_else(|| self.employ(address)));
                nodes.len() - 1
            })
        };
        for (range, address) in &view.owners {
            let index = u16::try_from(place(address, &mut nodes)).unwrap_or(NOBODY);
            for slot in range.clone() {
                if let Some(owner) = owners.get_mut(usize::from(slot)) {
                    *owner = index;
                }
            }
        }
        for address in self.cluster.still_invited() {
            place(&address, &mut nodes);
        }
        for (index, node) in (0..).zip(&nodes) {
            let owns = |slot: u16| owners.get(usize::from(slot)) == Some(&index);
            let tag = owners.contains(&index).then(|| tag_in(owns)).flatten();
            let list = tag.map(|tag| format!("{}:{{{tag}}}:instances", self.prefix));
            node.set_list(list.unwrap_or_default());
        }
        let gone: Vec<_> = old
            .nodes
            .iter()
            .filter(|node| !nodes.iter().any(|kept| Arc::ptr_eq(kept, node)))
            .map(|node| node.place().to_string())
            .collect();
        if gone.len() + nodes.len() != old.nodes.len() || !gone.is_empty() {
            info!(store = %self.settings.load().address, servers = nodes.len(), "the cluster is known");
        }
        let mut keepers = lock(&self.keepers);
        for address in gone {
            keepers.remove(&address);
        }
        drop(keepers);
        let map = Map::new(owners, nodes);
        if !map.is_whole && (old.is_whole || old.nodes.is_empty()) {
            let without = map.owners.iter().filter(|owner| **owner == NOBODY).count();
            warn!(store = %self.settings.load().address, slots = without, "no server has these slots: whose keys are there has no decision");
        }
        self.cluster.map.store(Arc::new(map));
    }

    /// A server that nobody kept a connection to so far.
    fn employ(&self, address: &str) -> Arc<Node> {
        let place = Place::At(address.to_owned());
        let doubt = Arc::clone(&self.cluster.doubt);
        let node = Arc::new(Node::new(place, String::new(), doubt));
        let keeper = Keeper {
            settings: Arc::clone(&self.settings),
            node: Arc::clone(&node),
            announcer: self.announcer.clone(),
        };
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(keeper.run(stopped));
        lock(&self.keepers).insert(address.to_owned(), stop);
        node
    }
}

/// What this server says, over a connection that there is or a new one.
async fn view_of(
    settings: &Settings,
    address: &str,
    connection: Option<MultiplexedConnection>,
) -> RedisResult<View> {
    let mut connection = match connection {
        Some(connection) => connection,
        None => settings.connect_to(address).await?,
    };
    let (info, slots): (String, redis::Value) = redis::pipe()
        .cmd("CLUSTER")
        .arg("INFO")
        .cmd("CLUSTER")
        .arg("SLOTS")
        .query_async(&mut connection)
        .await?;
    Ok(View::read(&info, &slots, address))
}
