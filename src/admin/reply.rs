//! Answers of the admin API: JSON, and problem details where something is wrong with the request.

use http::header::{ALLOW, WWW_AUTHENTICATE};
use http::{HeaderName, StatusCode};
use serde_json::{Value, json};

/// An answer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Reply {
    /// Its status.
    pub status: StatusCode,
    /// The media type of its body.
    pub content_type: &'static str,
    /// A further field.
    pub field: Option<(HeaderName, String)>,
    /// One line of JSON.
    pub body: Vec<u8>,
}

impl Reply {
    /// What was asked for.
    #[must_use]
    pub fn json(status: StatusCode, value: &Value) -> Self {
        Self {
            status,
            content_type: "application/json",
            field: None,
            body: format!("{value}\n").into_bytes(),
        }
    }

    /// What is wrong with the request, or with us.
    #[must_use]
    pub fn problem(status: StatusCode, detail: &str) -> Self {
        let problem = json!({
            "type": "about:blank",
            "title": status.canonical_reason(),
            "status": status.as_u16(),
            "detail": detail,
        });
        Self {
            content_type: "application/problem+json",
            ..Self::json(status, &problem)
        }
    }

    /// The token is missing, or another one.
    #[must_use]
    pub fn unauthorized() -> Self {
        let detail = "Name the token of admin.token_file: Authorization: Bearer TOKEN";
        Self {
            field: Some((WWW_AUTHENTICATE, "Bearer realm=\"tollgate\"".to_owned())),
            ..Self::problem(StatusCode::UNAUTHORIZED, detail)
        }
    }

    /// The method is none of those that the path has.
    #[must_use]
    pub fn not_allowed(methods: String) -> Self {
        Self {
            field: Some((ALLOW, methods)),
            ..Self::problem(
                StatusCode::METHOD_NOT_ALLOWED,
                "The path has other methods: see Allow.",
            )
        }
    }
}
