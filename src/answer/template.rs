//! Texts with `{placeholders}`, checked once and filled per answer.

/// A text with placeholders.
#[derive(Clone, Debug)]
pub struct Template {
    _parts: Vec<String>,
}
