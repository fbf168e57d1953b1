//! Of a policy what is of one type for concurrency and of another for the other kinds: its limit, and its lease.

use std::time::Duration;

use super::policies::Common;
use super::{Builder, non_zero, value};
use crate::clock::micros;
use crate::config::error::{Code, Finding};
use crate::config::file::{Kind, Policy as Written};
use crate::config::source::Place;
use crate::config::units::{Rate, duration_text};
use crate::config::values::{LeaseOf, LimitOf, say_for_how_long};
use crate::decide::{Concurrency, Rule};

/// How long what a dead gateway holds still counts, where a policy does not say.
const LEASE: Duration = Duration::from_secs(60);

/// What is held is said so often in a lease.
const RENEWALS: u32 = 3;

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
        let (Some(kind), Some(lease)) = (value(&written.kind), &written.lease) else {
            return;
        };
        let name = common.name;
        match (kind, lease.value) {
            (Kind::Concurrency, LeaseOf::Units(units)) => self.error(
                Code::E047,
                lease.place,
                format!("`lease` of policy `{name}` is a number: of kind \"concurrency\" it is a duration"),
                format!("say how long what a dead gateway holds still counts: lease = \"{units}s\""),
            ),
            (Kind::Concurrency, LeaseOf::Time(time)) if time < common.patience * RENEWALS => {
                let least = duration_text(common.patience * RENEWALS);
                self.findings.add(
                    Finding::new(
                        Code::W224,
                        lease.place,
                        format!("the lease of policy `{name}` may end while a slow store is waited for: slots that are held would count as free"),
                    )
                    .help(format!("write at least lease = \"{least}\", three times the longer of store.timeout and store.connect_timeout")),
                );
            }
            (Kind::Concurrency, LeaseOf::Time(_)) | (Kind::LeakyBucket, _) | (_, LeaseOf::Units(_)) => {}
            (_, LeaseOf::Time(_)) => self.error(
                Code::E047,
                lease.place,
                format!("`lease` of policy `{name}` is a duration: of kind \"{}\" it is a number of units", kind.as_str()),
                "say how many units a gateway may take ahead: lease = 100",
            ),
        }
    }
}
