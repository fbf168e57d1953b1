//! `[routes]`: patterns, actions, and the policies at their places.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use http::StatusCode;

use super::policies::Policies;
use super::{Builder, by_name, path, value};
use crate::check::KeySource;
use crate::check::{Demand, Price, Use};
use crate::config::error::{Code, Finding};
use crate::config::file::{File, Route as Written};
use crate::config::items::{Item, UseItem};
use crate::config::source::Place;
use crate::config::{Action, Route};
use crate::route::pattern::{Path, Segment};
use crate::route::{Pattern, Table};

impl Builder<'_> {
    /// Routes, and what can only be said of policies once it is known where they are used.
    pub(super) fn routes<'f>(
        &self,
        file: &'f File,
        policies: &Policies<'f>,
    ) -> Option<Table<Arc<Route>>> {
        let written = by_name(file.routes.as_ref());
        let upstreams: Vec<&str> = by_name(file.upstreams.as_ref()).into_keys().collect();
        let known = Known {
            upstreams: &upstreams,
            policies,
            file,
        };
        let mut usage = Usage {
            incomplete: (file.routes.as_ref())
                .is_none_or(|routes| !routes.value.excused.is_empty()),
            ..Usage::default()
        };
        let mut places = Vec::new();
        let mut built = Vec::new();
        let mut complete = true;
        for (index, (name, (at, route))) in written.into_iter().enumerate() {
            self.lint(name, at, route, policies);
            self.warn_of_claims(name, route, policies);
            match self.route(index, name, route, &known, &mut usage) {
                Some(entry) => {
                    places.push((name, at.place));
                    built.push(entry);
                }
                None => complete = false,
            }
        }
        self.check_usage(policies, &usage);
        let table = Table::new(built)
            .map_err(|ties| {
                for tie in ties {
                    if let (Some((first, first_at)), Some((second, second_at))) =
                        (places.get(tie.first), places.get(tie.second))
                    {
                        self.findings.add(
                            Finding::new(
                                Code::E130,
                                *second_at,
                                format!("routes `{first}` and `{second}` match the same request with equal right"),
                            )
                            .label("this one")
                            .also(*first_at, "and this one")
                            .help("make one of them more specific: a host, a longer path, methods, headers or query"),
                        );
                    }
                }
            })
            .ok();
        table.filter(|_| complete)
    }

    fn route<'f>(
        &self,
        index: usize,
        name: &str,
        written: &'f Written,
        known: &Known<'_, 'f>,
        usage: &mut Usage,
    ) -> Option<(Pattern, Arc<Route>)> {
        let action = self.action(name, written, known);
        let pattern = self.pattern(written.r#match.as_ref());
        let demands = self.demands(name, written, known, usage);
        let add_headers = self.header_fields(written.add_headers.as_ref());
        let strip_prefix = self.strip_prefix(written);
        // A match with a mistake in it matches more than was meant, and would tie with others for nothing.
        let pattern = pattern.filter(|_| {
            written.r#match.as_ref().is_some_and(|written| {
                written.value.unread.is_empty() && !self.findings.any_error_within(written.place)
            })
        });
        if let Some(pattern) = &pattern {
            self.check_path_keys(name, written, pattern, known.policies);
        }
        let demands = demands?;
        let mut prices = demands.iter().flat_map(Demand::uses).map(|it| &it.price);
        let reads_bodies = prices.clone().any(Price::is_in_request_body);
        Some((
            pattern?,
            Arc::new(Route {
                name: name.into(),
                index,
                action: action?,
                reads_bodies,
                reads_answers: prices.any(Price::is_in_response_body),
                demands,
                priority: value(&written.priority)?,
                strip_prefix: strip_prefix?,
                add_headers: add_headers?,
                timeout: value(&written.timeout).map(|timeout| timeout.0),
                access_log: value(&written.access_log)?,
            }),
        ))
    }

    fn action(&self, name: &str, written: &Written, known: &Known<'_, '_>) -> Option<Action> {
        match (&written.upstream, &written.respond) {
            (Some(upstream), None) => {
                let upstreams = known.upstreams;
                let position = upstreams.iter().position(|known| *known == upstream.value);
                if position.is_none() {
                    self.dangling(
                        Code::E102,
                        &format!("route `{name}`"),
                        "upstream",
                        upstream,
                        (upstreams, known.file.upstreams.as_ref()),
                    );
                }
                position.map(Action::Forward)
            }
            (None, Some(respond)) => {
                let status = u16::try_from(value(&respond.value.status)?.0).ok()?;
                let body = value(&respond.value.body)?;
                Some(Action::Respond(
                    StatusCode::from_u16(status).ok()?,
                    Bytes::from(body),
                ))
            }
            (Some(_), Some(respond)) => {
                self.error(
                    Code::E018,
                    respond.place,
                    "`upstream` and `respond` exclude each other",
                    "keep one of them",
                );
                None
            }
            // Where one of them is there but could not be read, that is the mistake.
            (None, None)
                if written
                    .unread
                    .iter()
                    .any(|key| matches!(*key, "upstream" | "respond")) =>
            {
                None
            }
            (None, None) => {
                self.error(
                    Code::E016,
                    written.r#match.as_ref()?.place,
                    format!("route `{name}` leads nowhere"),
                    "add upstream = \"NAME\", or respond = { status = 403 }",
                );
                None
            }
        }
    }

    fn demands(
        &self,
        route: &str,
        written: &Written,
        known: &Known<'_, '_>,
        usage: &mut Usage,
    ) -> Option<Vec<Demand>> {
        let mut seen: Vec<(&str, Place)> = Vec::new();
        let mut demands = Vec::new();
        let mut complete = true;
        usage.incomplete |= written.unread.contains(&"policies");
        let policies_written = &written.policies.as_ref()?.value;
        usage.incomplete |= !policies_written.complete;
        for item in &policies_written.items {
            let (uses, one_of) = uses_of(&item.value);
            if let Item::FirstOf(list) = &item.value {
                usage.incomplete |= !list.complete;
            }
            let count = uses.len();
            let mut built = Vec::new();
            for (position, a_use) in uses.into_iter().enumerate() {
                self.check_twice(route, a_use, &mut seen);
                let falls_through = one_of && position + 1 < count;
                match self.one_use(route, a_use, known, usage) {
                    Some(done) => built.push(done),
                    None => complete = false,
                }
                usage.used.insert(a_use.policy.value.clone());
                if !falls_through {
                    usage.needs_key.insert(a_use.policy.value.clone());
                }
                if one_of && !falls_through {
                    self.check_last(a_use, known.policies, usage);
                }
            }
            if one_of {
                demands.push(Demand::FirstOf(built.into()));
            } else {
                demands.extend(built.into_iter().map(Demand::One));
            }
        }
        complete.then_some(demands)
    }

    fn check_twice<'w>(&self, route: &str, a_use: &'w UseItem, seen: &mut Vec<(&'w str, Place)>) {
        let name = a_use.policy.value.as_str();
        match seen.iter().find(|(other, _)| *other == name) {
            Some((_, first)) => self.findings.add(
                Finding::new(
                    Code::E034,
                    a_use.policy.place,
                    format!("route `{route}` uses policy `{name}` twice"),
                )
                .label("here again")
                .also(*first, "first here")
                .help("name it once; { use, cost } makes a request take more of it"),
            ),
            None => seen.push((name, a_use.policy.place)),
        }
    }

    /// The last of a `first_of` has nothing after it: without its key the request would pass unlimited.
    fn check_last(&self, a_use: &UseItem, policies: &Policies<'_>, usage: &mut Usage) {
        let name = a_use.policy.value.as_str();
        let Some(built) = policies.0.get(name) else {
            return;
        };
        if let Some(source) = built.may_lack() {
            usage.reported.insert(name.to_owned());
            self.error(
                Code::E140,
                a_use.policy.place,
                format!("the last of `first_of` may not apply: `{source}` of policy `{name}` may be absent"),
                format!(
                    "end with a policy whose key is always there (\"ip\"), or give `{name}` an on_missing_key"
                ),
            );
        }
    }

    fn one_use(
        &self,
        route: &str,
        a_use: &UseItem,
        known: &Known<'_, '_>,
        usage: &mut Usage,
    ) -> Option<Use> {
        let Some(built) = known.policies.0.get(a_use.policy.value.as_str()) else {
            let names: Vec<&str> = known.policies.0.keys().copied().collect();
            usage.incomplete = true;
            self.dangling(
                Code::E101,
                &format!("route `{route}`"),
                "policy",
                &a_use.policy,
                (&names, known.file.policies.as_ref()),
            );
            return None;
        };
        let rule = built.policy.as_ref().map(|policy| &policy.limits.rule);
        let price = match &a_use.cost {
            Some(cost) => {
                self.warn_of_free(cost);
                self.price(built.name, rule, cost)
            }
            None => built.price.clone(),
        };
        Some(Use {
            policy: built.policy.clone()?,
            price: price?,
        })
    }

    fn strip_prefix(&self, written: &Written) -> Option<Option<Arc<str>>> {
        let Some(prefix) = &written.strip_prefix else {
            return Some(None);
        };
        match path::path(&prefix.value) {
            Ok(Path {
                segments,
                open: false,
            }) if segments
                .iter()
                .all(|segment| matches!(segment, Segment::Literal(_))) =>
            {
                Some(Some(prefix.value.as_str().into()))
            }
            Ok(_) => {
                self.error(
                    Code::E024,
                    prefix.place,
                    format!("`{}` is not a prefix to take off", prefix.value),
                    "write literal segments: \"/api\"",
                );
                None
            }
            Err(refusal) => {
                self.refused(Code::E024, "strip_prefix", prefix.place, refusal);
                None
            }
        }
    }

    /// A key that is read from a path parameter needs a parameter of that name in every path of the route.
    fn check_path_keys(
        &self,
        name: &str,
        written: &Written,
        pattern: &Pattern,
        policies: &Policies<'_>,
    ) {
        let items = written.policies.iter().flat_map(|items| &items.value.items);
        for a_use in items.flat_map(|item| uses_of(&item.value).0) {
            let Some(built) = policies.0.get(a_use.policy.value.as_str()) else {
                continue;
            };
            for source in built.sources() {
                let KeySource::Path(param) = &source.value else {
                    continue;
                };
                let has = |path: &Path| {
                    path.segments
                        .iter()
                        .any(|segment| matches!(segment, Segment::Param(name) if name == param))
                };
                if pattern.paths.is_empty() || !pattern.paths.iter().all(has) {
                    self.findings.add(
                        Finding::new(
                            Code::E035,
                            a_use.policy.place,
                            format!(
                                "policy `{}` counts by `path:{param}`, which a path of route `{name}` does not have",
                                a_use.policy.value
                            ),
                        )
                        .also(source.place, "the key")
                        .help(format!("write {{{param}}} in every path of the route, or use another policy")),
                    );
                }
            }
        }
    }
}

/// What routes may refer to.
struct Known<'a, 'f> {
    upstreams: &'a [&'a str],
    policies: &'a Policies<'f>,
    file: &'f File,
}

/// Where policies are used, and what was already said about them.
#[derive(Debug, Default)]
pub(super) struct Usage {
    pub(super) used: BTreeSet<String>,
    pub(super) needs_key: BTreeSet<String>,
    pub(super) reported: BTreeSet<String>,
    /// Some use could not be read: what seems unused may not be.
    pub(super) incomplete: bool,
}

/// The policies of an item, and whether only the first of them counts whose key is present.
pub(super) fn uses_of(item: &Item) -> (Vec<&UseItem>, bool) {
    match item {
        Item::One(a_use) => (vec![a_use], false),
        Item::FirstOf(uses) => (uses.items.iter().map(|at| &at.value).collect(), true),
    }
}
