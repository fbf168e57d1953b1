//! `count` of a policy: which answers it counts.

use super::Builder;
use crate::check::Outcomes;
use crate::check::outcome::Statuses;
use crate::config::collections::List;
use crate::config::decode::At;
use crate::config::error::Code;
use crate::config::file::Policy as Written;
use crate::config::items::Count;
use crate::config::wire::StatusItem;

impl Builder<'_> {
    /// Which answers count; an inner `None` for all of them.
    pub(super) fn outcomes(&self, name: &str, written: &Written) -> Option<Option<Outcomes>> {
        let count = written.count.as_ref()?;
        let Count::By(table) = &count.value else {
            return Some(None);
        };
        let lists = [&table.status, &table.not_on, &table.reset_on];
        let is_whole = |list: &&Option<At<List<StatusItem>>>| {
            list.as_ref().is_none_or(|list| list.value.complete)
        };
        if !table.unread.is_empty() || !lists.iter().all(is_whole) {
            return None;
        }
        let all = |list: &Option<At<List<StatusItem>>>| {
            let items = list.iter().flat_map(|list| &list.value.items);
            items.fold(Statuses::default(), |all, item| all.and(item.value.0))
        };
        let counted = match &table.status {
            Some(_) => all(&table.status),
            None => Statuses::ALL,
        };
        let (counted, resetting) = (counted.but(all(&table.not_on)), all(&table.reset_on));
        if counted.is_empty() {
            self.error(
                Code::E048,
                count.place,
                format!("`count` of policy `{name}` counts no answer: it limits nothing"),
                "write the statuses that count: count = { status = [401, 403] }",
            );
            return None;
        }
        if table.status.is_some() && counted.but(resetting) != counted {
            self.error(
                Code::E048,
                count.place,
                format!("`count` of policy `{name}` counts an answer and forgets all after it"),
                "take the status out of `status`, or out of `reset_on`",
            );
            return None;
        }
        Some(Some(Outcomes { counted, resetting }))
    }
}
