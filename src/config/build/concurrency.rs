//! Of a policy what is of one type for concurrency and of another for the other kinds: its limit, and its lease.

use std::time::Duration;

use super::policies::Common;
use super::{Builder, non_zero, value};
use crate::check::Scope;
use crate::clock::micros;
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{Kind, Policy as Written};
use crate::config::source::Place;
use crate::config::units::{Rate, duration_text};
use crate::config::values::{LeaseOf, LimitOf, say_for_how_long};
use crate::decide::{Concurrency, Rule};
use crate::store::valkey::slots::RENEWALS;

/// How long what a dead gateway holds still counts, where a policy does not say.
const LEASE: Duration = Duration::from_secs(60);

impl Builder<'_> {
    /// The limit of a kind that has a window.
    pub(super) fn rate(
        &self,
        name: &str,
        kind: Kind,
        place: Place,
        limit: LimitOf,
    ) -> Option<Rate> {
        let (found, help) = match (kind, limit) {
            (Kind::Concurrency, LimitOf::Rate(rate)) => (
                "is a rate: kind \"concurrency\" counts what is in flight at once".to_owned(),
                format!("write the number alone: limit = {}", rate.limit.count),
            ),
            (_, LimitOf::Rate(rate)) => return Some(rate),
            (_, LimitOf::AtOnce(units)) => (
                format!(
                    "lacks its window: kind \"{}\" counts units per window",
                    kind.as_str()
                ),
                say_for_how_long(units) + "; for so many at once write kind = \"concurrency\"",
            ),
        };
        self.error(
            Code::E046,
            place,
            format!("`limit` of policy `{name}` {found}"),
            help,
        );
        None
    }

    /// `lease` has been looked at, as far as it is written, by [`Builder::check_lease`].
    pub(super) fn concurrency(&self, limit: u64, written: &Written) -> Option<Rule> {
        if written.unread.contains(&"lease") {
            return None;
        }
        let lease = match value(&written.lease) {
            Some(LeaseOf::Time(lease)) => lease,
            _ => LEASE,
        };
        let rule = Concurrency::new(non_zero(limit)?, non_zero(micros(lease))?);
        rule.ok().map(Rule::Concurrency)
    }

    /// A lease is units, or a time; and of a time it matters whether the store is heard of in it.
    pub(super) fn check_lease(&self, common: &Common<'_>, written: &Written) {
        let (Some(kind), name) = (value(&written.kind), common.name) else {
            return;
        };
        match (kind, &written.lease) {
            (Kind::Concurrency, lease) if value(&written.store) == Some(Scope::Shared) => {
                self.check_lease_time(common, written, lease.as_ref());
            }
            // What does not belong there at all is reported elsewhere.
            (Kind::Concurrency | Kind::LeakyBucket, _) | (_, None) => {}
            (_, Some(lease)) => {
                if let LeaseOf::Time(_) = lease.value {
                    self.error(
                        Code::E047,
                        lease.place,
                        format!(
                            "`lease` of policy `{name}` is a duration: of kind \"{}\" it is a number of units",
                            kind.as_str()
                        ),
                        "say how many units a gateway may take ahead: lease = 100",
                    );
                }
            }
        }
    }

    fn check_lease_time(
        &self,
        common: &Common<'_>,
        written: &Written,
        lease: Option<&At<LeaseOf>>,
    ) {
        let name = common.name;
        let (time, place) = match (lease, &written.kind) {
            (Some(lease), _) => match lease.value {
                LeaseOf::Time(time) => (time, lease.place),
                LeaseOf::Units(units) => {
                    self.error(
                        Code::E047,
                        lease.place,
                        format!(
                            "`lease` of policy `{name}` is a number: of kind \"concurrency\" it is a duration"
                        ),
                        format!("say how long what a dead gateway holds still counts: lease = \"{units}s\""),
                    );
                    return;
                }
            },
            (None, Some(kind)) => (LEASE, kind.place),
            (None, None) => return,
        };
        let least = common.patience * RENEWALS;
        if time < least {
            let least = duration_text(least);
            self.findings.add(
                Finding::new(
                    Code::W224,
                    place,
                    format!(
                        "the lease of policy `{name}`, {}, may end while a slow store is waited for: slots that are \
                         held would count as free",
                        duration_text(time)
                    ),
                )
                .help(format!(
                    "write at least lease = \"{least}\", three times the longer of store.timeout and \
                     store.connect_timeout"
                )),
            );
        }
    }
}
