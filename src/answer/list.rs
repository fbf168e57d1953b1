//! Writes a list of named items as structured fields have it (RFC 9651, section 4.1.1). Every answer has two of them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The largest integer of a structured field: fifteen digits.
const INTEGER_MAX: u64 = 999_999_999_999_999;

/// A list that grows to its end.
#[derive(Debug)]
pub(super) struct List(String);

impl List {
    pub(super) fn new() -> Self {
        Self(String::with_capacity(128))
    }

    /// Begins the next item. Returns false, and begins none, where its name is no string of a structured field.
    pub(super) fn item(&mut self, name: &str) -> bool {
        if !name.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return false;
        }
        self.0
            .push_str(if self.0.is_empty() { "\"" } else { ", \"" });
        for char in name.chars() {
            if matches!(char, '"' | '\\') {
                self.0.push('\\');
            }
            self.0.push(char);
        }
        self.0.push('"');
        true
    }

    /// A parameter of the item: `key=value`, where a value that is too large is the largest there is.
    pub(super) fn number(&mut self, key: &'static str, value: u64) {
        self.key(key);
        self.0
            .push_str(itoa::Buffer::new().format(value.min(INTEGER_MAX)));
    }

    /// A parameter that is a string without quotes or backslashes.
    pub(super) fn text(&mut self, key: &'static str, value: &'static str) {
        self.key(key);
        self.0.push('"');
        self.0.push_str(value);
        self.0.push('"');
    }

    /// A parameter of bytes.
    pub(super) fn bytes(&mut self, key: &'static str, value: &[u8]) {
        self.key(key);
        self.0.push(':');
        STANDARD.encode_string(value, &mut self.0);
        self.0.push(':');
    }

    fn key(&mut self, key: &'static str) {
        self.0.push(';');
        self.0.push_str(key);
        self.0.push('=');
    }

    /// The list; a field without an item is none.
    pub(super) fn finish(self) -> Option<String> {
        Some(self.0).filter(|list| !list.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use sfv::{Integer, KeyRef, ListSerializer, StringRef};

    use super::*;

    #[test]
    fn a_list_is_what_another_writer_of_structured_fields_makes_of_it() {
        let key = |key| KeyRef::from_str(key).unwrap();
        let mut theirs = ListSerializer::new();
        let mut ours = List::new();
        for (name, count, bytes) in [
            ("per-client", 0, &b""[..]),
            ("a", 100, b"\x00\xff\x10"),
            ("quote\" and back\\slash", u64::MAX, &[7; 16]),
        ] {
            let number = i64::try_from(count)
                .ok()
                .and_then(|count| Integer::try_from(count).ok());
            let _ = theirs
                .bare_item(StringRef::from_str(name).unwrap())
                .parameter(key("q"), number.unwrap_or(Integer::MAX))
                .parameter(key("qu"), StringRef::from_str("content-bytes").unwrap())
                .parameter(key("pk"), bytes);
            assert!(ours.item(name));
            ours.number("q", count);
            ours.text("qu", "content-bytes");
            ours.bytes("pk", bytes);
        }
        assert_eq!(ours.finish(), theirs.finish());
    }

    #[test]
    fn what_no_string_can_hold_is_left_out() {
        let mut list = List::new();
        assert!(!list.item("caf\u{e9}") && !list.item("a\nb"));
        assert_eq!(list.finish(), None);
    }
}
