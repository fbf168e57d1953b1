//! What can only be said of policies once it is known where they are used.

use super::policies::{Built, Policies};
use super::routes::{Usage, uses_of};
use super::{Builder, value};
use crate::check::{KeySource, Mode};
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{File, Route, Unmatched};
use crate::config::items::UseItem;
use crate::config::key_source::{is_param_name, is_unverified};
use crate::config::source::Place;
use crate::decide::Rule;

impl Builder<'_> {
    /// Policies that no route uses, and keys that may be missing where nobody says what then.
    pub(super) fn check_usage(&self, policies: &Policies<'_>, usage: &Usage) {
        for (name, built) in &policies.0 {
            let used = usage.used.contains(*name);
            if !used && !usage.incomplete {
                self.warn_unused(name, built);
            }
            // Before the last of a `first_of` the next one stands in; anywhere else somebody has to decide.
            if !usage.reported.contains(*name) && (!used || usage.needs_key.contains(*name)) {
                self.must_say_on_missing_key(name, built);
            }
        }
    }

    /// A gateway without routes forwards nothing.
    pub(super) fn check_any_route(&self, file: &File) {
        let Some(routes) = file
            .routes
            .as_ref()
            .filter(|it| it.value.entries.is_empty())
        else {
            return;
        };
        let unmatched = file
            .server
            .as_ref()
            .and_then(|server| value(&server.value.unmatched));
        let status = match unmatched {
            Some(Unmatched::Misdirected) => 421,
            _ => 404,
        };
        self.findings.add(
            Finding::new(
                Code::W211,
                routes.place,
                format!("no routes: every request is answered with {status}"),
            )
            .help("add [routes.NAME] with match = { path = \"/*\" } and an upstream"),
        );
    }

    /// A request waits once, for the longer of two turns: the other bucket then lets through what it did not plan.
    fn warn_of_two_queues(&self, name: &str, place: Place, known: &[Vec<&Built<'_>>]) {
        let queues = |built: &&Built<'_>| {
            let rule = built.policy.as_ref().map(|policy| &policy.limits.rule);
            built.enforced() && matches!(rule, Some(Rule::LeakyBucket(_)))
        };
        let in_the_way: Vec<_> = known
            .iter()
            .filter_map(|uses| uses.iter().copied().find(queues))
            .collect();
        if let [first, second, ..] = in_the_way.as_slice() {
            self.findings.add(
                Finding::new(
                    Code::W214,
                    place,
                    format!(
                        "route `{name}` has two leaky buckets, `{}` and `{}`: a request waits for the longer turn, and \
                         the other bucket does not smooth what comes of it",
                        first.name, second.name
                    ),
                )
                .help("make one of them a token bucket"),
            );
        }
    }

    /// Segments that are parameters elsewhere, and here a text like any other. Whoever means the text can escape it.
    pub(super) fn warn_literal_params(&self, path: &At<String>) {
        for segment in path.value.split('/') {
            let inner = segment.strip_prefix(':').or_else(|| {
                let inner = segment.strip_prefix('<')?.strip_suffix('>')?;
                Some(inner.rsplit_once(':').map_or(inner, |(_, name)| name))
            });
            let Some(name) = inner.filter(|name| is_param_name(name)) else {
                continue;
            };
            self.findings.add(
                Finding::new(
                    Code::W210,
                    path.place,
                    format!("`{segment}` is matched literally"),
                )
                .help(format!(
                    "write {{{name}}} for a segment of any value, or {} if this very text is meant",
                    escaped(segment)
                )),
            );
        }
    }

    /// Warnings about what a route leaves open.
    pub(super) fn lint(
        &self,
        name: &str,
        at: &At<String>,
        written: &Route,
        policies: &Policies<'_>,
    ) {
        let Some(items) = written.policies.as_ref().map(|items| &items.value) else {
            return;
        };
        // What is there and could not be read may be all that is missed.
        if written.unread.contains(&"policies") {
            return;
        }
        if items.items.is_empty() && items.complete && written.respond.is_none() {
            self.findings.add(
                Finding::new(
                    Code::W204,
                    at.place,
                    format!("route `{name}` has no policy: nothing limits it"),
                )
                .help("add policies = [\"NAME\"]"),
            );
        }
        let find = |a_use: &UseItem| policies.0.get(a_use.policy.value.as_str());
        let known: Vec<Vec<&Built<'_>>> = items
            .items
            .iter()
            .map(|item| {
                let uses = uses_of(&item.value).0;
                uses.into_iter().filter_map(find).collect()
            })
            .collect();
        self.warn_of_two_queues(name, at.place, &known);
        // A guard holds whatever the client sends. One that stands behind another in a `first_of` does not, and one
        // that is skipped without its key does where another stands in.
        let is_guard = |built: &&Built<'_>| built.enforced() && !built.escapable();
        let guarded = known.iter().any(|uses| {
            uses.iter().all(is_guard) && uses.last().is_some_and(|last| !last.skippable())
        });
        if guarded || !items.complete {
            return;
        }
        let cure = cure(&known);
        self.warn_of_strangers(name, at.place, &known, &cure);
        let mut escapable = known.iter().flatten().filter(|built| {
            value(&built.written.mode) != Some(Mode::Off)
                && built.sources().next().is_some()
                && built.sources().all(|source| is_unverified(&source.value))
        });
        if let Some(built) = escapable.next() {
            let sources: Vec<String> = built
                .sources()
                .map(|source| format!("`{}`", source.value))
                .collect();
            self.findings.add(
                Finding::new(
                    Code::W201,
                    at.place,
                    format!(
                        "route `{name}` is limited only by {}, which a client may change at will",
                        sources.join(" and ")
                    ),
                )
                .help(cure.clone()),
            );
        }
        for built in known.iter().flatten() {
            if value(&built.written.mode) != Some(Mode::Off) {
                self.warn_path_key(name, built, &cure);
            }
        }
    }

    /// Who shows no key and no token is limited by nothing.
    fn warn_of_strangers(&self, name: &str, place: Place, known: &[Vec<&Built<'_>>], cure: &str) {
        let mut skipped = known
            .iter()
            .filter_map(|uses| uses.last())
            .filter(|built| built.enforced() && !built.escapable() && built.skippable());
        let lacks = |built: &Built<'_>| {
            let mut sources = built.sources().map(|source| &source.value);
            sources.find(|source| source.can_be_missing()).cloned()
        };
        if let Some((built, source)) = skipped.find_map(|built| Some((built, lacks(built)?))) {
            self.findings.add(
                Finding::new(
                    Code::W217,
                    place,
                    format!(
                        "route `{name}` limits nobody who leaves out what proves who calls: policy `{}` is skipped \
                         without `{source}`",
                        built.name
                    ),
                )
                .help(format!("{cure}, or write on_missing_key = \"deny\" or \"empty\" there")),
            );
        }
    }

    /// A counter for each value of a path parameter does not limit somebody who tries many values.
    fn warn_path_key(&self, route: &str, built: &Built<'_>, cure: &str) {
        for source in built.sources() {
            let KeySource::Path(param) = &source.value else {
                continue;
            };
            self.findings.add(
                Finding::new(
                    Code::W208,
                    source.place,
                    format!("each `{{{param}}}` has a counter of its own: trying many is not limited on route `{route}`"),
                )
                .help(cure),
            );
        }
    }
}

fn escaped(segment: &str) -> String {
    segment
        .replace(':', "%3A")
        .replace('<', "%3C")
        .replace('>', "%3E")
}

/// What would guard a route whose policies can all be escaped: one of them in another way, or one more.
fn cure(known: &[Vec<&Built<'_>>]) -> String {
    let guard = known
        .iter()
        .flatten()
        .find(|built| !built.escapable() && !built.skippable() && built.sources().next().is_some());
    match guard {
        Some(built) if built.enforced() => format!(
            "name policy `{}` beside `first_of`, not in it: there another is taken before it",
            built.name
        ),
        Some(built) => format!(
            "policy `{}` would limit that, but its mode keeps it from denying: write mode = \"enforce\"",
            built.name
        ),
        None => "add one more policy, whose key is \"ip\" and nothing else".to_owned(),
    }
}
