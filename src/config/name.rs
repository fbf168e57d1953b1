//! Names of policies, routes and the like: they stand in headers, labels and keys without an escape.

use super::decode::Reader;
use super::error::{Code, Finding};
use super::tree::Entry;

const LENGTH_MAX: usize = 48;

impl Reader<'_> {
    /// Checks the name of an entry; where it cannot be one, reports that and returns the name that was proposed.
    pub(crate) fn check_name(&self, entry: &Entry) -> Option<String> {
        if is_name(&entry.key) {
            return None;
        }
        let proposal = proposal(&entry.key);
        let finding = Finding::new(
            Code::E019,
            entry.place,
            format!("`{}` cannot be a name in `[{}]`", entry.key, self.key()),
        )
        .note("a name begins with a letter and has up to 48 of a-z, 0-9 and -, since it stands in headers and metrics");
        self.report(if proposal.is_empty() {
            finding
        } else {
            finding.help(format!("write {proposal}"))
        });
        Some(proposal)
    }
}

/// Whether it is a name.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(|c| c.is_ascii_lowercase())
        && letters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && text.len() <= LENGTH_MAX
}

/// The nearest name; empty if there is none.
fn proposal(text: &str) -> String {
    let mut proposal: String = text
        .to_lowercase()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
        .skip_while(|c| !c.is_ascii_lowercase())
        .take(LENGTH_MAX)
        .collect();
    proposal.truncate(proposal.trim_end_matches('-').len());
    proposal
}
