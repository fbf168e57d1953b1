//! A JSON pointer (RFC 6901), and the walk to what it points at.

use std::fmt;
use std::str::FromStr;

use super::json::{Scalar, See, Token};

/// The longest pointer, in bytes.
const LENGTH_MAX: usize = 256;

/// A JSON pointer: `/usage/total_tokens`. It points into an object or an array, not at the whole.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pointer {
    spelling: Box<str>,
    steps: Box<[Step]>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Step {
    key: Box<str>,
    /// The position that the key is where it leads into an array.
    index: Option<u64>,
}

/// A text that is no pointer, or a longer one than is followed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct BadPointer;

impl FromStr for Pointer {
    type Err = BadPointer;

    fn from_str(text: &str) -> Result<Self, BadPointer> {
        let steps = text.strip_prefix('/').ok_or(BadPointer)?.split('/');
        if text.len() > LENGTH_MAX {
            return Err(BadPointer);
        }
        let steps: Result<_, _> = steps.map(step).collect();
        Ok(Self {
            spelling: text.into(),
            steps: steps?,
        })
    }
}

/// A step without its escapes: `~1` is a slash, `~0` a tilde.
fn step(spelling: &str) -> Result<Step, BadPointer> {
    let mut parts = spelling.split('~');
    let mut key = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match (part.strip_prefix('0'), part.strip_prefix('1')) {
            (Some(rest), _) => key = key + "~" + rest,
            (_, Some(rest)) => key = key + "/" + rest,
            _ => return Err(BadPointer),
        }
    }
    let is_index =
        key == "0" || (!key.starts_with('0') && key.bytes().all(|byte| byte.is_ascii_digit()));
    Ok(Step {
        index: key.parse().ok().filter(|_| is_index),
        key: key.into(),
    })
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spelling)
    }
}

/// The way through a text of JSON, and where it meets what the pointer points at.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    /// How many arrays and objects are open.
    depth: usize,
    /// Of those among them that the pointer leads through, the outermost first: the position of the next item, of an
    /// array. Never more than the pointer has steps.
    passed: Vec<Option<u64>>,
    /// Whether the key that came last is the pointer's next.
    is_next: bool,
}

impl Walk {
    pub(super) const fn new() -> Self {
        Self {
            depth: 0,
            passed: Vec::new(),
            is_next: false,
        }
    }

    /// Walks along: `found` is told of each scalar that `pointer` points at. There may be several, where an object has
    /// a key twice.
    pub(super) const fn along<'w, F: FnMut(Scalar<'_>)>(
        &'w mut self,
        pointer: &'w Pointer,
        found: F,
    ) -> Along<'w, F> {
        Along {
            walk: self,
            pointer,
            found,
        }
    }

    /// Whether the value that begins lies on the way. Counts it.
    fn arrives(&mut self, pointer: &Pointer) -> bool {
        if self.depth == 0 {
            return true;
        }
        if self.depth != self.passed.len() {
            return false;
        }
        let step = pointer.steps.get(self.depth - 1);
        match self.passed.last_mut() {
            Some(Some(position)) => {
                let here = *position;
                *position = here.saturating_add(1);
                step.is_some_and(|step| step.index == Some(here))
            }
            _ => self.is_next,
        }
    }
}

/// A [`Walk`] along a pointer.
pub(super) struct Along<'w, F> {
    walk: &'w mut Walk,
    pointer: &'w Pointer,
    found: F,
}

impl<F: FnMut(Scalar<'_>)> See for Along<'_, F> {
    fn open(&mut self, array: bool) {
        let arrives = self.walk.arrives(self.pointer);
        self.walk.depth = self.walk.depth.saturating_add(1);
        if arrives && self.walk.passed.len() < self.pointer.steps.len() {
            self.walk.passed.push(array.then_some(0));
        }
    }

    fn close(&mut self) {
        self.walk.depth = self.walk.depth.saturating_sub(1);
        self.walk.passed.truncate(self.walk.depth);
    }

    fn key(&mut self, key: Token<'_>) {
        let walk = &mut *self.walk;
        let step = walk
            .depth
            .checked_sub(1)
            .filter(|_| walk.depth == walk.passed.len())
            .and_then(|depth| self.pointer.steps.get(depth));
        walk.is_next = step.is_some_and(|step| key.whole && *step.key.as_bytes() == *key.bytes);
    }

    fn scalar(&mut self, scalar: Scalar<'_>) {
        if self.walk.arrives(self.pointer) && self.walk.depth == self.pointer.steps.len() {
            (self.found)(scalar);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::json::Json;
    use super::*;

    /// The scalars that a pointer points at, as text.
    fn found(pointer: &str, text: &str) -> Vec<String> {
        let pointer: Pointer = pointer.parse().unwrap();
        let mut found = Vec::new();
        let mut walk = Walk::new();
        let mut along = walk.along(&pointer, |scalar| {
            found.push(match scalar {
                Scalar::Text(token) | Scalar::Number(token) => {
                    String::from_utf8(token.bytes.to_vec()).unwrap()
                }
                Scalar::Word => "a word".to_owned(),
            });
        });
        let mut json = Json::new(256);
        json.feed(text.as_bytes(), &mut along).unwrap();
        json.end(&mut along).unwrap();
        found
    }

    #[test]
    fn a_pointer_leads_to_what_it_points_at_and_nothing_else() {
        let usage = r#"{"total_tokens":1,"usage":{"x":[{"total_tokens":2}],"total_tokens":3},"y":{"usage":{"total_tokens":4}}}"#;
        for (pointer, text, expected) in [
            ("/usage/total_tokens", usage, &["3"] as &[&str]),
            ("/total_tokens", usage, &["1"]),
            ("/usage/x/0/total_tokens", usage, &["2"]),
            ("/usage/x/00/total_tokens", usage, &[]),
            ("/usage/x/-/total_tokens", usage, &[]),
            ("/usage/x/1/total_tokens", usage, &[]),
            ("/usage", usage, &[]),
            ("/usage/total_tokens/deeper", usage, &[]),
            ("/a~1b/c~0d", r#"{"a/b":{"c~d":5}}"#, &["5"]),
            ("/", r#"{"":"empty"}"#, &["empty"]),
            (
                "/ä",
                "{\"\\u00e4\":\"\\ud83d\\ude00\\n\"}",
                &["\u{1f600}\n"],
            ),
            ("/0/1", r"[[true,6],[7,8],null,{}]", &["6"]),
            ("/3", r"[[true,6],[7,8],null,9]", &["9"]),
            ("/2", r"[[true,6],[7,8],null,9]", &["a word"]),
            ("/0", r#"{"0":1}"#, &["1"]),
            ("/a/b", r#"{"a":{"b":1},"a":{"b":2}}"#, &["1", "2"]),
            ("/a", "3", &[]),
        ] {
            assert_eq!(found(pointer, text), expected, "{pointer} {text}");
        }
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        for text in ["", "usage", "#/usage", "/a~", "/a~2b", &"/a".repeat(200)] {
            assert_eq!(text.parse::<Pointer>(), Err(BadPointer), "{text}");
        }
    }
}
