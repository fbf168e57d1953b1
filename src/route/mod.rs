//! Which route a request takes: the most specific one, whatever the order in the file.
//!
//! An exact host comes before `*.suffix`, a longer suffix before a shorter one, and any host last. Among those of one
//! host the more specific path wins, then the one with methods, then the one with more header fields, then the one with
//! more of the query. What is still equal and could match the same request is a [`Tie`].

mod host;
pub mod path;
pub mod pattern;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

pub use pattern::Pattern;

use crate::request::RequestView;
use host::Hosts;
use pattern::{Host, Path};

/// Routes by their patterns; knows nothing of what a route carries.
pub struct Table<T> {
    /// As given.
    routes: Vec<(Pattern, T)>,
    /// Positions in `routes`, the most specific first.
    order: Vec<usize>,
    hosts: Hosts<Group>,
}

/// The paths of one host.
#[derive(Debug, Default)]
struct Group {
    /// Those that begin with a literal, by it in lower case: always more specific than the others.
    by_first: HashMap<Box<str>, Vec<Candidate>>,
    others: Vec<Candidate>,
}

/// One path of one route.
#[derive(Debug)]
struct Candidate {
    path: Path,
    route: usize,
    /// Its place among those of its host, the most specific first.
    rank: usize,
}

/// The route that a request takes.
#[derive(Debug)]
pub struct Matched<'t, T> {
    /// What the route carries.
    pub route: &'t T,
    /// The values of its path parameters, decoded, by name.
    pub params: Vec<(Arc<str>, String)>,
}

/// Two patterns that match the same request with equal right.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Tie {
    /// Position of the first, as given to [`Table::new`].
    pub first: usize,
    /// Position of the second.
    pub second: usize,
}

impl<T: fmt::Debug> fmt::Debug for Table<T> {
    /// The routes; how they are found says nothing more.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.routes).finish()
    }
}

impl<T> Table<T> {
    /// Sorts the routes by how specific they are.
    ///
    /// Two routes that ask for different values of one header field or query parameter don't tie. A request that sends
    /// both values takes the one that was given first.
    ///
    /// # Errors
    ///
    /// Every route that could match a request with the same right as one before it, with one such.
    pub fn new(routes: Vec<(Pattern, T)>) -> Result<Self, Vec<Tie>> {
        let mut of_host: HashMap<Option<&Host>, Vec<(&Path, usize)>> = HashMap::new();
        let any = Path::any();
        for (at, (pattern, _)) in routes.iter().enumerate() {
            for host in or_any(&pattern.hosts) {
                let candidates = of_host.entry(host).or_default();
                candidates.extend(or_any(&pattern.paths).map(|path| (path.unwrap_or(&any), at)));
            }
        }
        // More demands are more specific.
        let demands = |at: usize| Reverse(routes.get(at).map(|(pattern, _)| pattern.demands()));
        let mut ties = BTreeSet::new();
        let mut hosts = Hosts::default();
        for (host, mut candidates) in of_host {
            find_ties(&routes, &candidates, &mut ties);
            candidates.sort_by(|(a, at_a), (b, at_b)| {
                let by_path = a.cmp_specificity(b);
                by_path.then_with(|| demands(*at_a).cmp(&demands(*at_b)))
            });
            hosts.insert(host, Group::of(&candidates));
        }
        if !ties.is_empty() {
            return Err(ties.into_iter().collect());
        }
        let mut order: Vec<usize> = (0..routes.len()).collect();
        order.sort_by(|&a, &b| match (routes.get(a), routes.get(b)) {
            (Some((a, _)), Some((b, _))) => a.cmp_specificity(b),
            _ => Ordering::Equal,
        });
        Ok(Self {
            routes,
            order,
            hosts,
        })
    }

    /// The most specific route for this request; `path` is its normalised path.
    ///
    /// Where the path has several readings, the most specific route that one of them matches.
    pub fn find(
        &self,
        request: RequestView<'_>,
        path: &path::Normalised,
    ) -> Option<Matched<'_, T>> {
        self.hosts.of(request.host).find_map(|group| {
            let (candidate, reading) = path
                .readings()
                .filter_map(|reading| Some((self.best(group, request, reading)?, reading)))
                .min_by_key(|(candidate, _)| candidate.rank)?;
            let (_, route) = self.routes.get(candidate.route)?;
            let params = candidate.path.params(reading);
            Some(Matched { route, params })
        })
    }

    fn best<'g>(
        &self,
        group: &'g Group,
        request: RequestView<'_>,
        reading: &[String],
    ) -> Option<&'g Candidate> {
        let mut candidates = group.beginning_with(reading.first()).chain(&group.others);
        candidates.find(|candidate| {
            candidate.path.matches(reading)
                && self
                    .routes
                    .get(candidate.route)
                    .is_some_and(|(pattern, _)| pattern.demands_hold(request))
        })
    }

    /// Every route, the most specific first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        let at = |&at: &usize| self.routes.get(at).map(|(_, route)| route);
        self.order.iter().filter_map(at)
    }
}

impl Group {
    /// `candidates` come sorted.
    fn of(candidates: &[(&Path, usize)]) -> Self {
        let mut group = Self::default();
        for (rank, &(path, route)) in candidates.iter().enumerate() {
            let peers = match path.first_literal() {
                Some(first) => group
                    .by_first
                    .entry(first.to_ascii_lowercase().into())
                    .or_default(),
                None => &mut group.others,
            };
            let path = path.clone();
            peers.push(Candidate { path, route, rank });
        }
        group
    }

    fn beginning_with(&self, first: Option<&String>) -> impl Iterator<Item = &Candidate> {
        let found = first.and_then(|first| self.by_first.get(host::lower_case(first).as_ref()));
        found.into_iter().flatten()
    }
}

/// The items, or once "any" where there are none.
fn or_any<I>(items: &[I]) -> impl Iterator<Item = Option<&I>> {
    let any = items.is_empty().then_some(None);
    items.iter().map(Some).chain(any)
}

/// The ties among the paths of one host: only paths of one shape, asked for with equally many demands, can tie.
fn find_ties<T>(routes: &[(Pattern, T)], candidates: &[(&Path, usize)], ties: &mut BTreeSet<Tie>) {
    let mut alike: HashMap<_, Vec<(usize, &Pattern)>> = HashMap::new();
    for &(path, at) in candidates {
        if let Some((pattern, _)) = routes.get(at) {
            let peers = alike.entry((path.shape(), pattern.demands())).or_default();
            // One of them is enough to say: a thousand equal routes would make half a million pairs.
            let tied = peers
                .iter()
                .find(|(before, peer)| *before != at && peer.demands_overlap(pattern));
            if let Some(&(before, _)) = tied {
                let (first, second) = (before.min(at), before.max(at));
                ties.insert(Tie { first, second });
            }
            peers.push((at, pattern));
        }
    }
}
