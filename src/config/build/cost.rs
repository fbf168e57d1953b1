//! What a request costs: units, or where they are read.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::policies::{Built, Policies};
use super::{Builder, value};
use crate::check::Price;
use crate::check::cost::Tariff;
use crate::check::cost::request::{RequestPrice, RequestSource};
use crate::check::cost::response::{ResponsePrice, ResponseSource};
use crate::config::cost_source::CostSource;
use crate::config::decode::At;
use crate::config::error::{Code, Finding};
use crate::config::file::{CostTable, Route};
use crate::config::items::{CostItem, UseItem};
use crate::config::source::Place;
use crate::config::values::CostUnits;
use crate::decide::{Cost, Rule};

impl Builder<'_> {
    /// What a request takes of `policy`, whose rule is known if the rest of it could be built. `None`, reported, if
    /// that makes no sense.
    pub(super) fn price(
        &self,
        policy: &str,
        rule: Option<&Rule>,
        written: &At<CostItem>,
    ) -> Option<Price> {
        let table = match &written.value {
            CostItem::Units(units) => {
                self.must_pass(policy, rule, *units, written.place);
                return Some(Price::Fixed(Cost::new(*units)));
            }
            CostItem::Read(table) => table,
        };
        let from = table.from.as_ref()?;
        self.check_table(policy, rule, table, &from.value, written.place);
        let tariff = Tariff {
            values: values(table),
            max: value(&table.max).map(|max| max.0),
        };
        match &from.value {
            CostSource::Request(from) => Some(Price::Request(RequestPrice {
                from: from.clone(),
                tariff,
                default: value(&table.default).map_or(1, |default| default.0),
            })),
            CostSource::Response(from) => Some(Price::Response(Arc::new(ResponsePrice {
                from: from.clone(),
                reserve: value(&table.reserve)?.0,
                tariff,
            }))),
        }
    }

    fn check_table(
        &self,
        policy: &str,
        rule: Option<&Rule>,
        table: &CostTable,
        from: &CostSource,
        place: Place,
    ) {
        let idle = |field: &str, at: Option<Place>, why: &str| {
            if let Some(at) = at {
                self.error(
                    Code::E039,
                    at,
                    format!("`{field}` means nothing here: {why}"),
                    if field == "from" {
                        "write a number, or read it from the request"
                    } else {
                        "take it out"
                    },
                );
            }
        };
        let at = |field: &Option<At<CostUnits>>| field.as_ref().map(|at| at.place);
        match from {
            CostSource::Request(_) => idle(
                "reserve",
                at(&table.reserve),
                "what the request says is known before it passes",
            ),
            CostSource::Response(_) => {
                let lent = table.from.as_ref().map(|from| from.place);
                idle(
                    "from",
                    lent.filter(|_| rule.is_some_and(Rule::lends)),
                    "of kind \"concurrency\" all is given back once the answer is over",
                );
                idle(
                    "default",
                    at(&table.default),
                    "where the answer does not say, what was reserved stays taken",
                );
                if table.reserve.is_none() && !table.unread.contains(&"reserve") {
                    self.error(
                        Code::E016,
                        place,
                        "`cost` lacks `reserve`: what is taken before the answer says what it was",
                        "add reserve = 100, or what a request usually costs",
                    );
                }
            }
        }
        if matches!(
            from,
            CostSource::Request(RequestSource::JsonArrayLength | RequestSource::GraphqlDepth)
                | CostSource::Response(ResponseSource::Bytes)
        ) {
            let at = table.values.as_ref().map(|at| at.place);
            idle("values", at, "what is counted is a number");
        }
        for (field, written) in [("reserve", &table.reserve), ("max", &table.max)] {
            if let Some(units) = written.as_ref().filter(|units| units.value.0 == 0) {
                self.error(
                    Code::E039,
                    units.place,
                    format!("`{field} = 0`: requests would take nothing, and never be denied"),
                    format!("write a {field} of at least 1"),
                );
            }
        }
        let values = table.values.iter().flat_map(|values| &values.value.0);
        let before = [&table.reserve, &table.default, &table.max];
        let before = before.into_iter().flatten();
        for units in before.chain(values.map(|(_, units)| units)) {
            // What an answer says is taken late, and may exceed what is left.
            let is_late = matches!(from, CostSource::Response(_))
                && table.reserve.as_ref().map(|at| at.place) != Some(units.place);
            if !is_late {
                self.must_pass(policy, rule, units.value.0, units.place);
            }
        }
    }

    /// Reports a cost that is denied whatever was used before.
    fn must_pass(&self, policy: &str, rule: Option<&Rule>, cost: u64, place: Place) {
        let Some(rule) = rule else { return };
        let capacity = rule.capacity();
        if cost <= capacity {
            return;
        }
        let holds = match rule {
            Rule::TokenBucket(_) | Rule::LeakyBucket(_) => "burst",
            _ => "limit",
        };
        self.error(
            Code::E033,
            place,
            format!("a cost of {cost} never passes policy `{policy}`, whose {holds} is {capacity}"),
            format!("write a cost of at most {capacity}, or raise the {holds}"),
        );
    }

    /// Warns of costs by which a client may spare itself the limit.
    pub(super) fn warn_of_claims(&self, route: &str, written: &Route, policies: &Policies<'_>) {
        let items = written.policies.iter().flat_map(|items| &items.value.items);
        let uses: Vec<(&UseItem, &Built<'_>)> = items
            .flat_map(|item| super::routes::uses_of(&item.value).0)
            .filter_map(|it| Some((it, policies.0.get(it.policy.value.as_str())?)))
            .collect();
        let enforced = || uses.iter().filter(|(_, built)| built.enforced());
        if enforced().all(|(a_use, built)| claimed(cost_of(a_use, built)).is_some())
            && let Some((a_use, built)) = enforced().next()
            && let Some(from) = claimed(cost_of(a_use, built))
        {
            self.findings.add(
                Finding::new(
                    Code::W221,
                    a_use.policy.place,
                    format!(
                        "route `{route}` is limited only by what `{from}` claims, and a client may claim 1 every time"
                    ),
                )
                .help("add a policy with a cost of its own, or read the cost from the answer"),
            );
        }
    }

    /// Warns of a default by which a request that says nothing is free.
    pub(super) fn warn_of_free(&self, item: &At<CostItem>) {
        let CostItem::Read(table) = &item.value else {
            return;
        };
        if let Some(default) = table.default.as_ref().filter(|units| units.value.0 == 0) {
            self.findings.add(
                Finding::new(
                    Code::W222,
                    default.place,
                    "a request that does not say what it costs is free, and any client may say nothing",
                )
                .help("write a default of at least 1"),
            );
        }
    }
}

/// What a use costs, as it is written: there, or at its policy.
fn cost_of<'w>(a_use: &'w UseItem, built: &'w Built<'_>) -> Option<&'w CostItem> {
    let cost = a_use.cost.as_ref().or(built.written.cost.as_ref())?;
    Some(&cost.value)
}

/// Where a client claims any number that it likes. What stands in a body, or what has its price, decides what the
/// application does.
fn claimed(cost: Option<&CostItem>) -> Option<&RequestSource> {
    let CostItem::Read(table) = cost? else {
        return None;
    };
    match &table.from.as_ref()?.value {
        CostSource::Request(from @ (RequestSource::Header(_) | RequestSource::Query(_)))
            if table.values.is_none() =>
        {
            Some(from)
        }
        _ => None,
    }
}

fn values(table: &CostTable) -> BTreeMap<Box<str>, u64> {
    let values = table.values.iter().flat_map(|values| &values.value.0);
    values
        .map(|(name, units)| (name.value.as_str().into(), units.value.0))
        .collect()
}
