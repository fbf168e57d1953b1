//! `POST /v1/reload`.

use http::StatusCode;
use serde_json::json;

use super::reply::Reply;
use crate::config::Diagnostic;

/// What came of reading the configuration again.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It is in force.
    Taken {
        /// What is different now, a line each.
        changes: Vec<String>,
        /// What could be better.
        warnings: Vec<Diagnostic>,
    },
    /// The one before stays in force.
    Refused {
        /// Why, in a line.
        reason: String,
        /// What is wrong, and what could be better.
        diagnostics: Vec<Diagnostic>,
    },
}

impl Outcome {
    /// For the client: `diagnostics` as `tollgate check --json` prints them, and in `text` as `check` does.
    #[must_use]
    pub fn reply(&self) -> Reply {
        match self {
            Self::Taken { changes, warnings } => Reply::json(
                StatusCode::OK,
                &json!({
                    "result": "taken",
                    "changes": changes,
                    "diagnostics": listed(warnings),
                    "text": told(warnings),
                }),
            ),
            Self::Refused {
                reason,
                diagnostics,
            } => Reply::json(
                StatusCode::UNPROCESSABLE_ENTITY,
                &json!({
                    "result": "refused",
                    "reason": reason,
                    "diagnostics": listed(diagnostics),
                    "text": told(diagnostics),
                }),
            ),
        }
    }
}

fn listed(diagnostics: &[Diagnostic]) -> Vec<serde_json::Value> {
    diagnostics.iter().map(Diagnostic::to_json).collect()
}

fn told(diagnostics: &[Diagnostic]) -> String {
    let told = |diagnostic: &Diagnostic| format!("{diagnostic}\n");
    diagnostics.iter().map(told).collect()
}
