//! `[tiers]`, `[overrides]` and `[exemptions]`: whose limits are others than the policies', and who has none.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::policies::{Built, Policies};
use super::routes::uses_of;
use super::{Builder, by_name};
use crate::check::tier::{Change, Changes, Exempted, Matched};
use crate::check::{Limits, NewLimit, Plans, Unfit};
use crate::config::collections::{List, Pairs};
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{Exemption, File};
use crate::config::source::Place;
use crate::config::units::{rate_text, window_text};

/// The tier that metrics name where there is none.
const NO_TIER: &str = "default";

/// The exemptions of routes, by name.
type ByRoute = HashMap<Arc<str>, Exempted>;

/// What plans refer to.
#[derive(Clone, Copy)]
struct Known<'a, 'f> {
    file: &'f File,
    policies: &'a Policies<'f>,
}

impl Builder<'_> {
    /// All that is said of single callers and of groups of them.
    pub(super) fn plans<'f>(&self, file: &'f File, policies: &Policies<'f>) -> Option<Plans> {
        let known = Known { file, policies };
        let tiers = self.tiers(known);
        let overrides = self.overrides(known);
        let (exemptions, exempt_routes) = self.exemptions(known)?;
        Some(Plans {
            tiers: tiers?,
            overrides: overrides?,
            exemptions,
            exempt_routes,
        })
    }

    fn tiers(&self, known: Known<'_, '_>) -> Option<HashMap<Arc<str>, Changes>> {
        let mut tiers = HashMap::new();
        let mut complete = true;
        for (name, (at, tier)) in by_name(known.file.tiers.as_ref()) {
            if name == NO_TIER {
                self.error(
                    Code::E106,
                    at.place,
                    format!(
                        "`{name}` cannot be a tier: metrics call so what callers without one get"
                    ),
                    "give it another name; without a tier, the policies' own limits count",
                );
            }
            match self.changes("tier", name, tier.limits.as_ref(), known) {
                Some(changes) => {
                    tiers.insert(name.into(), changes);
                }
                None => complete = false,
            }
        }
        complete.then_some(tiers)
    }

    fn overrides(&self, known: Known<'_, '_>) -> Option<Matched<Changes>> {
        let (mut identities, mut networks) = (Vec::new(), Vec::new());
        let mut seen = HashMap::new();
        let mut complete = true;
        for (name, (at, written)) in by_name(known.file.overrides.as_ref()) {
            let changes = self.changes("override", name, written.limits.as_ref(), known);
            let fields = [
                field("ip", &written.ip),
                field("identity", &written.identity),
            ];
            let names_somebody =
                self.names_one("override", name, at.place, &fields, &written.unread);
            let Some(changes) = changes.filter(|_| names_somebody) else {
                complete = false;
                continue;
            };
            let mut check = |who: String, place| {
                self.check_tie(name, (&who, place), &changes, known, &mut seen);
            };
            for network in items(&written.ip) {
                check(network.value.trunc().to_string(), network.place);
                networks.push((network.value, changes.clone()));
            }
            for id in items(&written.identity) {
                check(id.value.clone(), id.place);
                identities.push((id.value.as_str().into(), changes.clone()));
            }
        }
        complete.then(|| Matched::new(identities, networks, Changes::add))
    }

    /// Of two overrides that name one caller in the same way, nobody could say which counts.
    fn check_tie<'f>(
        &self,
        name: &'f str,
        (who, place): (&str, Place),
        changes: &Changes,
        known: Known<'_, 'f>,
        seen: &mut HashMap<(String, usize), (&'f str, Place)>,
    ) {
        for (index, _) in changes.all() {
            let (first, first_place) =
                *seen.entry((who.to_owned(), index)).or_insert((name, place));
            if first == name {
                continue;
            }
            let policy = known.policies.0.keys().nth(index).copied();
            self.findings.add(
                Finding::new(
                    Code::E109,
                    place,
                    format!(
                        "overrides `{first}` and `{name}` both give `{who}` a limit under policy `{}`",
                        policy.unwrap_or_default()
                    ),
                )
                .label("here again")
                .also(first_place, "first here")
                .help("take it out of one of them"),
            );
        }
    }

    fn exemptions(&self, known: Known<'_, '_>) -> Option<(Matched<Exempted>, ByRoute)> {
        let (mut identities, mut networks) = (Vec::new(), Vec::new());
        let mut routes = ByRoute::new();
        let mut complete = true;
        for (name, (at, written)) in by_name(known.file.exemptions.as_ref()) {
            let exempted = self.exempted(name, written, known);
            let fields = [
                field("ip", &written.ip),
                field("identity", &written.identity),
                field("route", &written.route),
            ];
            let names_somebody =
                self.names_one("exemption", name, at.place, &fields, &written.unread);
            let known_routes = self.known_routes(name, written, known);
            let Some(exempted) = exempted.filter(|_| names_somebody && known_routes) else {
                complete = false;
                continue;
            };
            for network in items(&written.ip) {
                if network.value.prefix_len() == 0 {
                    self.warn_of_everybody(name, network.place, &exempted);
                }
                networks.push((network.value, exempted.clone()));
            }
            for id in items(&written.identity) {
                identities.push((id.value.as_str().into(), exempted.clone()));
            }
            for route in items(&written.route) {
                match routes.get_mut(route.value.as_str()) {
                    Some(same) => same.add(exempted.clone()),
                    None => {
                        routes.insert(route.value.as_str().into(), exempted.clone());
                    }
                }
            }
        }
        complete.then(|| (Matched::new(identities, networks, Exempted::add), routes))
    }

    /// The policies that do not apply.
    fn exempted(&self, name: &str, written: &Exemption, known: Known<'_, '_>) -> Option<Exempted> {
        let Some(list) = &written.policies else {
            return (!written.unread.contains(&"policies")).then_some(Exempted::All);
        };
        let user = format!("exemption `{name}`");
        let mut complete = list.value.complete;
        let mut policies = BTreeSet::new();
        for at in &list.value.items {
            match self.named_policy(&user, at, known) {
                Some(built) => policies.extend(built.policy.as_ref().map(|policy| policy.index)),
                None => complete = false,
            }
        }
        complete.then_some(Exempted::Some(policies))
    }

    fn known_routes(&self, name: &str, written: &Exemption, known: Known<'_, '_>) -> bool {
        let routes: Vec<&str> = by_name(known.file.routes.as_ref()).into_keys().collect();
        let mut complete = true;
        for route in items(&written.route) {
            if !routes.contains(&route.value.as_str()) {
                complete = false;
                self.dangling(
                    Code::E105,
                    &format!("exemption `{name}`"),
                    "route",
                    route,
                    (&routes, known.file.routes.as_ref()),
                );
            }
        }
        complete
    }

    /// Whether exactly one of these fields names somebody.
    fn names_one(
        &self,
        what: &str,
        name: &str,
        place: Place,
        fields: &[Named],
        unread: &[&str],
    ) -> bool {
        let mut given = fields
            .iter()
            .filter_map(|field| Some((field, field.given?)));
        let words: Vec<String> = fields.iter().map(|it| format!("`{}`", it.key)).collect();
        match (given.next(), given.next()) {
            (Some((first, _)), Some((second, (at, _)))) => {
                self.error(
                    Code::E018,
                    at,
                    format!("`{}` and `{}` exclude each other", first.key, second.key),
                    format!("write one {what} for each"),
                );
                false
            }
            (Some((field, (at, false))), None) => {
                self.error(
                    Code::E016,
                    at,
                    format!("`{}` of {what} `{name}` is empty", field.key),
                    format!("name somebody, or take {what} `{name}` out"),
                );
                false
            }
            (Some(_), None) => true,
            (None, _) if fields.iter().any(|field| unread.contains(&field.key)) => false,
            (None, _) => {
                self.error(
                    Code::E016,
                    place,
                    format!("{what} `{name}` names nobody"),
                    format!("add {}", words.join(" or ")),
                );
                false
            }
        }
    }

    /// What is said of callers who are told apart by what nobody proves.
    pub(super) fn warn_of_nobody(&self, file: &File) {
        if file.identity.is_some() {
            return;
        }
        let warn = |what: &str, name: &At<String>, whom: &str| {
            self.findings.add(
                Finding::new(
                    Code::W218,
                    name.place,
                    format!("{what} `{}` is for {whom}, and nobody has one: nothing proves who calls", name.value),
                )
                .help("add [identity], as in api_key = { header = \"x-api-key\", file = \"api-keys.toml\" }"),
            );
        };
        for (name, _) in by_name(file.tiers.as_ref()).values() {
            warn("tier", name, "callers of a tier");
        }
        for (name, written) in by_name(file.overrides.as_ref()).values() {
            if written.identity.is_some() {
                warn("override", name, "identities");
            }
        }
        for (name, written) in by_name(file.exemptions.as_ref()).values() {
            if written.identity.is_some() {
                warn("exemption", name, "identities");
            }
        }
    }

    fn warn_of_everybody(&self, name: &str, place: Place, exempted: &Exempted) {
        let from = match exempted {
            Exempted::All => "every policy",
            Exempted::Some(_) => "its policies",
        };
        self.findings.add(
            Finding::new(
                Code::W219,
                place,
                format!("exemption `{name}` spares everybody {from}"),
            )
            .help("name the networks that are meant; mode = \"off\" switches a policy off"),
        );
    }

    /// The limits that stand in for those of policies.
    fn changes(
        &self,
        what: &str,
        name: &str,
        limits: Option<&At<Pairs<NewLimit>>>,
        known: Known<'_, '_>,
    ) -> Option<Changes> {
        let user = format!("{what} `{name}`");
        let by: Arc<str> = name.into();
        let mut complete = true;
        let mut changes = Vec::new();
        for (policy, limit) in &limits?.value.0 {
            match self.change(&user, policy, limit, known) {
                Some((index, limits)) => {
                    let by = Arc::clone(&by);
                    changes.push((index, Change { limits, by }));
                }
                None => complete = false,
            }
        }
        complete.then(|| changes.into_iter().collect())
    }

    fn change(
        &self,
        user: &str,
        name: &At<String>,
        limit: &At<NewLimit>,
        known: Known<'_, '_>,
    ) -> Option<(usize, Arc<Limits>)> {
        let built = self.named_policy(user, name, known)?;
        let policy = built.policy.as_ref()?;
        let limits = policy
            .limits
            .with(limit.value)
            .map_err(|why| self.findings.add(unfit(user, built.name, limit, why)))
            .ok()?;
        let (capacity, dearest) = (limits.rule.capacity(), dearest(built, known.file));
        if dearest > capacity {
            self.error(
                Code::E033,
                limit.place,
                format!(
                    "a cost of {dearest} never passes policy `{}` under {user}, which allows {capacity} at once",
                    built.name
                ),
                format!("some route asks for that much: write a limit of at least {dearest}, or lower the cost"),
            );
        }
        Some((policy.index, Arc::new(limits)))
    }

    /// The policy of this name; none, reported, if there is none.
    fn named_policy<'a, 'f>(
        &self,
        user: &str,
        name: &At<String>,
        known: Known<'a, 'f>,
    ) -> Option<&'a Built<'f>> {
        let built = known.policies.0.get(name.value.as_str());
        if built.is_none() {
            let names: Vec<&str> = known.policies.0.keys().copied().collect();
            let table = known.file.policies.as_ref();
            self.dangling(Code::E104, user, "policy", name, (&names, table));
        }
        built
    }
}

/// Says why the policy cannot have a limit that somebody gives it.
pub(in crate::config) fn unfit(
    user: &str,
    policy: &str,
    limit: &At<NewLimit>,
    why: Unfit,
) -> Finding {
    let (code, message, help) = match why {
        Unfit::Count => {
            let count = match limit.value {
                NewLimit::Count(count) => count,
                NewLimit::Rate(rate) => rate.count.get(),
            };
            (
                Code::E108,
                format!("{user} gives policy `{policy}` a count without a window"),
                format!("write \"{count}/min\", or whatever window is meant"),
            )
        }
        Unfit::Rate => (
            Code::E108,
            format!(
                "{user} gives policy `{policy}` a rate, and that counts what is in flight at once"
            ),
            "write a number without quotes and window: 5".to_owned(),
        ),
        Unfit::Window(own) => (
            Code::E107,
            format!(
                "policy `{policy}` counts by windows (1 {}), and {user} gives it another: what was used would \
                     not count on",
                window_text(own)
            ),
            format!(
                "write how many in that window, as in \"{}\"; buckets take any",
                rate_text(own)
            ),
        ),
        Unfit::TooLarge(error) => (
            Code::E027,
            format!(
                "{user} gives policy `{policy}` {}, too large over this window to be counted exactly",
                error.found
            ),
            format!("the largest that fits is {}", error.largest),
        ),
    };
    Finding::new(code, limit.place, message).help(help)
}

/// A field that may name callers or routes: where it stands, if it does, and whether it names any.
struct Named {
    key: &'static str,
    given: Option<(Place, bool)>,
}

fn field<T>(key: &'static str, list: &Option<At<List<T>>>) -> Named {
    let given = list.as_ref().map(|list| {
        let names_any = !list.value.items.is_empty() || !list.value.complete;
        (list.place, names_any)
    });
    Named { key, given }
}

fn items<T>(list: &Option<At<List<T>>>) -> impl Iterator<Item = &At<T>> {
    list.iter().flat_map(|list| &list.value.items)
}

/// The most that a request surely takes of the policy anywhere: where its cost is read, what is taken at first.
fn dearest(built: &Built<'_>, file: &File) -> u64 {
    let routes = by_name(file.routes.as_ref());
    let items = routes
        .values()
        .flat_map(|(_, route)| &route.policies)
        .flat_map(|list| &list.value.items);
    items
        .flat_map(|item| uses_of(&item.value).0)
        .filter(|a_use| a_use.policy.value == built.name)
        .filter_map(|a_use| a_use.cost.as_ref().or(built.written.cost.as_ref()))
        .map(|cost| cost.value.most())
        .max()
        .unwrap_or(0)
}
