//! What the shapes mean: references found, files read, types whose constructors prove what they promise.

mod admin;
mod allowed;
mod answers;
mod calendars;
mod concurrency;
mod cost;
mod gateway;
mod health;
pub(super) mod identity;
mod idle;
mod lints;
mod outcomes;
mod path;
mod pattern;
mod plans;
mod policies;
mod routes;
mod shedding;
mod store;
mod store_url;
mod tls;
mod tokens;
mod upstreams;
mod usage;
mod valkey;

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

pub(super) use plans::unfit;
pub use store_url::store_settings;

use super::Config;
use super::collections::Named;
use super::decode::At;
use super::error::{Code, Finding, Findings, did_you_mean};
use super::file::File;
use super::read;
use super::source::{Place, Sources};
use crate::tls::Authorities;

/// What to do about a file that cannot be read where the configuration is checked, and not run.
pub(super) const WITHOUT_FILES: &str =
    "to check without the files that settings name: tollgate check --no-io";

/// What every part of the building needs.
#[derive(Clone, Copy)]
pub(crate) struct Builder<'a> {
    pub(crate) findings: &'a Findings,
    pub(crate) sources: &'a Sources,
    /// Whether files are read.
    pub(crate) io: bool,
    /// Those that were, or were to be.
    pub(crate) read: &'a RefCell<Vec<PathBuf>>,
    /// Whom the machine believes, once that was asked; an inner `None` if nobody.
    pub(crate) machine: &'a OnceCell<Option<Authorities>>,
    /// The file of API keys, where the configuration names one.
    pub(crate) keys: Option<&'a identity::ReadKeys>,
}

/// Builds the configuration; `None`, with the reasons among the findings, if something is wrong.
pub(crate) fn build(file: &File, builder: Builder<'_>) -> Option<Config> {
    // Every part is built before any is missed: all mistakes are reported at once.
    let server = builder.server(file);
    let listeners = builder.listeners(file);
    let client_ip = builder.client_ip(file);
    let store = builder.store(file);
    let upstreams = builder.upstreams(file);
    let rejects = builder.rejects(file);
    let policies = builder.policies(file, store.as_ref());
    let plans = builder.plans(file, &policies);
    let identity = builder.identity(file, &policies);
    let routes = builder.routes(file, &policies);
    let load_shedding = builder.load_shedding(file);
    let headers = builder.headers(file);
    let admin = builder.admin(file);
    let metrics = builder.metrics(file);
    let logs = builder.logs(file);
    builder.check_addresses(file);
    builder.check_loops(file);
    if builder.findings.any_error() {
        return None;
    }
    builder.check_any_route(file);
    builder.warn_of_idle_shedding(file);
    builder.warn_of_nobody(file);
    let (routes, plans) = (routes?, plans?);
    let reads_bodies = routes.iter().any(|route| route.reads_bodies);
    builder.warn_of_idle(&policies, &routes, &plans);
    Some(Config {
        server: server?,
        listeners: listeners?,
        client_ip: client_ip?,
        identity: identity?,
        store: store?,
        upstreams: upstreams?,
        policies: policies.finished()?,
        plans,
        reads_bodies,
        routes,
        rejects: rejects?,
        load_shedding: load_shedding?,
        headers: headers?,
        admin: admin?,
        metrics: metrics?,
        logs: logs?,
    })
}

impl Builder<'_> {
    fn error(&self, code: Code, place: Place, message: impl Into<String>, help: impl Into<String>) {
        self.findings
            .add(Finding::new(code, place, message).help(help));
    }

    /// Reports a name that is not defined in `table`, unless a mistake there explains it.
    fn dangling<T>(
        &self,
        code: Code,
        user: &str,
        what: &str,
        name: &At<String>,
        (known, table): (&[&str], Option<&At<Named<T>>>),
    ) {
        if table.is_none_or(|table| table.value.excused.contains(&name.value)) {
            return;
        }
        let near = did_you_mean(&name.value, known.iter().copied());
        let mut message = format!("{user} uses unknown {what} `{}`", name.value);
        if let Some(near) = near {
            message.push_str(&format!("; did you mean `{near}`?"));
        }
        let finding = Finding::new(code, name.place, message);
        self.findings.add(if known.is_empty() {
            let table = if what == "policy" {
                "policies".to_owned()
            } else {
                format!("{what}s")
            };
            finding.help(format!("define [{table}.{}]", name.value))
        } else {
            finding.note(format!("defined are: {}", known.join(", ")))
        });
    }

    /// Reads a file of settings; `None`, reported, if it cannot be read. What it holds is never shown.
    fn read_file(&self, path: &At<super::values::FilePath>) -> Option<Vec<u8>> {
        let resolved = self.sources.resolve(path.place.source, &path.value.0);
        self.read.borrow_mut().push(resolved.clone());
        read::bytes(&resolved)
            .map_err(|error| {
                self.error(
                    Code::E051,
                    path.place,
                    format!("{} cannot be read: {error}", resolved.display()),
                    WITHOUT_FILES,
                );
            })
            .ok()
    }
}

/// The entries of a named table, by name.
fn by_name<T>(table: Option<&At<Named<T>>>) -> BTreeMap<&str, (&At<String>, &T)> {
    table
        .map(|table| table.value.entries.iter())
        .into_iter()
        .flatten()
        .map(|(name, entry)| (name.value.as_str(), (name, &entry.value)))
        .collect()
}

/// The value, whose default is declared.
fn value<T: Clone>(field: &Option<At<T>>) -> Option<T> {
    field.as_ref().map(|at| at.value.clone())
}

fn non_zero(number: u64) -> Option<NonZeroU64> {
    NonZeroU64::new(number)
}

fn non_zero_u32(number: u64) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(number).ok()?)
}

fn non_zero_usize(number: u64) -> Option<NonZeroUsize> {
    NonZeroUsize::new(usize::try_from(number).ok()?)
}
