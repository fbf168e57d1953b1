//! What can only be said of policies once it is known where they are used.

use super::policies::{Built, Policies};
use super::routes::{Usage, uses_of};
use super::{Builder, value};
use crate::check::{KeySource, Mode};
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::Route;
use crate::config::items::UseItem;
use crate::config::key_source::is_unverified;

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
        // A guard holds whatever the client sends. One that stands behind another in a `first_of` does not.
        let is_guard = |built: &&Built<'_>| built.enforced() && !built.escapable();
        let guarded = known
            .iter()
            .any(|uses| !uses.is_empty() && uses.iter().all(is_guard));
        if guarded || !items.complete {
            return;
        }
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
                .help("add a policy with key = \"ip\" beside it"),
            );
        }
        for built in known.iter().flatten() {
            self.warn_path_key(name, built);
        }
    }

    /// A counter for each value of a path parameter does not limit somebody who tries many values.
    fn warn_path_key(&self, route: &str, built: &Built<'_>) {
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
                .help("add a policy with key = \"ip\" beside it"),
            );
        }
    }
}
