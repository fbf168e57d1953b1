//! `match` of a route: hosts, paths, methods, header fields, query parameters.

use std::sync::Arc;

use super::{Builder, path};
use crate::config::collections::{List, Pairs};
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::Match;
use crate::config::source::Place;
use crate::config::units::Refusal;
use crate::config::wire::Wanted;
use crate::route::Pattern;
use crate::route::pattern::{Host, Path, Value};

impl Builder<'_> {
    /// What a route matches; `None`, reported, if a part of it is not what it should be.
    pub(super) fn pattern(&self, written: Option<&At<Match>>) -> Option<Pattern> {
        let written = &written?.value;
        let hosts = self.one_or_several(
            "host",
            written.host.as_ref(),
            "hosts",
            written.hosts.as_ref(),
        );
        let paths = self.one_or_several(
            "path",
            written.path.as_ref(),
            "paths",
            written.paths.as_ref(),
        );
        let hosts: Vec<Option<Host>> = hosts
            .into_iter()
            .map(|host| {
                let read = path::host(&host.value);
                read.map_err(|refusal| self.refused(Code::E025, "host", host.place, refusal))
                    .ok()
            })
            .collect();
        let paths: Vec<Option<Path>> = paths
            .into_iter()
            .map(|written| {
                self.warn_literal_params(written);
                let read = path::path(&written.value);
                read.map_err(|refusal| self.refused(Code::E024, "path", written.place, refusal))
                    .ok()
            })
            .collect();
        let headers: Option<Vec<_>> = written.headers.as_ref().map_or_else(
            || Some(Vec::new()),
            |pairs| {
                let read: Vec<Option<_>> = pairs
                    .value
                    .0
                    .iter()
                    .map(|(name, wanted)| {
                        Some((self.header_name(name, false)?, wanted_value(wanted)))
                    })
                    .collect();
                read.into_iter().collect()
            },
        );
        let methods = written.methods.as_ref();
        Some(Pattern {
            hosts: hosts.into_iter().collect::<Option<_>>()?,
            paths: paths.into_iter().collect::<Option<_>>()?,
            methods: methods
                .map(|list| {
                    list.value
                        .items
                        .iter()
                        .map(|method| method.value.clone())
                        .collect()
                })
                .unwrap_or_default(),
            headers: headers?,
            query: written.query.as_ref().map(query).unwrap_or_default(),
        })
    }

    /// Reports why a path or host is none.
    pub(super) fn refused(&self, code: Code, what: &str, place: Place, refusal: Refusal) {
        let finding = Finding::new(code, place, format!("{what} {}", refusal.why));
        self.findings.add(match refusal.help {
            Some(help) => finding.help(help),
            None => finding,
        });
    }

    fn one_or_several<'w>(
        &self,
        one_key: &str,
        one: Option<&'w At<String>>,
        several_key: &str,
        several: Option<&'w At<List<String>>>,
    ) -> Vec<&'w At<String>> {
        match (one, several) {
            (Some(one), None) => vec![one],
            (None, Some(several)) => {
                if several.value.items.is_empty() && several.value.complete {
                    self.error(
                        Code::E026,
                        several.place,
                        format!("`{several_key} = []` would match nothing"),
                        format!("leave it out to match every {one_key}"),
                    );
                }
                several.value.items.iter().collect()
            }
            (Some(one), Some(_)) => {
                self.error(
                    Code::E018,
                    one.place,
                    format!("`{one_key}` and `{several_key}` exclude each other"),
                    format!("write all of them in `{several_key}`"),
                );
                Vec::new()
            }
            (None, None) => Vec::new(),
        }
    }
}

fn wanted_value(wanted: &At<Wanted>) -> Value {
    match &wanted.value {
        Wanted::Any => Value::Present,
        Wanted::Text(text) => Value::Exact(text.as_str().into()),
    }
}

fn query(pairs: &At<Pairs<Wanted>>) -> Vec<(Arc<str>, Value)> {
    pairs
        .value
        .0
        .iter()
        .map(|(name, wanted)| (name.value.as_str().into(), wanted_value(wanted)))
        .collect()
}
