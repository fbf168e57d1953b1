//! How deep the selection sets of a GraphQL document nest: `{ user { name } }` is 2.
//!
//! Fragments count where they are spread, so that nobody hides depth in them. Braces of values do not count, nor what
//! stands in strings and comments.

use std::collections::BTreeMap;

/// How deep braces and parentheses may nest, as written.
const NESTED_MAX: usize = 500;

/// The depth of the deepest operation of `document`, whichever of them is to run. `None` if the document cannot be
/// followed: it holds something else, its braces do not match, or its fragments do not exist or go round in a circle.
pub(super) fn depth(document: &str) -> Option<u64> {
    let (operations, fragments) = Parser::parse(document)?;
    let mut known = BTreeMap::new();
    let mut deepest = None;
    for operation in &operations {
        let mut depth = operation.own;
        for (name, at) in &operation.spreads {
            depth = depth.max(at.saturating_add(fragment_depth(name, &fragments, &mut known)?));
        }
        deepest = deepest.max(Some(depth));
    }
    deepest
}

type Fragments<'d> = BTreeMap<&'d str, Definition<'d>>;

/// An operation or a fragment.
#[derive(Debug, Default)]
struct Definition<'d> {
    /// How deep it nests without what it spreads.
    own: u64,
    /// The fragments that it spreads, and below how many of its selection sets.
    spreads: BTreeMap<&'d str, u64>,
}

/// What is known of a fragment's depth with all that it spreads.
#[derive(Clone, Copy)]
enum Depth {
    /// What it spreads is looked at.
    Open,
    Known(u64),
}

/// The depth of a fragment with all that it spreads. Each is looked at once, and without recursion: documents come from
/// anybody.
fn fragment_depth<'d>(
    name: &'d str,
    fragments: &Fragments<'d>,
    known: &mut BTreeMap<&'d str, Depth>,
) -> Option<u64> {
    let mut path = vec![name];
    while let Some(name) = path.last().copied() {
        let before = known.get(name).copied();
        if matches!(before, Some(Depth::Known(_))) {
            path.pop();
            continue;
        }
        known.insert(name, Depth::Open);
        let fragment = fragments.get(name)?;
        let mut depth = fragment.own;
        let length = path.len();
        for (inner, at) in &fragment.spreads {
            match known.get(inner) {
                Some(Depth::Known(inner)) => depth = depth.max(at.saturating_add(*inner)),
                // It spreads itself, somewhere below.
                Some(Depth::Open) => return None,
                None => path.push(inner),
            }
        }
        if path.len() == length {
            known.insert(name, Depth::Known(depth));
        }
    }
    match known.get(name) {
        Some(Depth::Known(depth)) => Some(*depth),
        _ => None,
    }
}

/// What is open at a place of a document.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Open {
    /// A selection set.
    Set,
    /// One of an inline fragment: it selects of the same object.
    Inline,
    /// Arguments, or the definitions of variables.
    Arguments,
    /// An object among these.
    Object,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Token<'d> {
    Name(&'d str),
    /// `...`
    Spread,
    Mark(u8),
}

/// What the definition is that goes on.
#[derive(Clone, Copy, Debug)]
enum Head<'d> {
    /// None does.
    None,
    Operation,
    /// A fragment whose name is to come.
    Fragment,
    Named(&'d str),
}

struct Parser<'d> {
    operations: Vec<Definition<'d>>,
    fragments: Fragments<'d>,
    head: Head<'d>,
    definition: Definition<'d>,
    open: Vec<Open>,
    /// How many of what is open are selection sets of their own.
    depth: u64,
    /// Whether three dots came last.
    spread: bool,
    /// Whether the next selection set is an inline fragment's.
    inline: bool,
}

impl<'d> Parser<'d> {
    fn parse(document: &'d str) -> Option<(Vec<Definition<'d>>, Fragments<'d>)> {
        let mut parser = Self {
            operations: Vec::new(),
            fragments: BTreeMap::new(),
            head: Head::None,
            definition: Definition::default(),
            open: Vec::new(),
            depth: 0,
            spread: false,
            inline: false,
        };
        let mut rest = document.strip_prefix('\u{feff}').unwrap_or(document);
        while let Some((token, after)) = next_token(rest)? {
            rest = after;
            parser.token(token)?;
        }
        let is_over = parser.open.is_empty() && matches!(parser.head, Head::None);
        is_over.then_some((parser.operations, parser.fragments))
    }

    fn token(&mut self, token: Token<'d>) -> Option<()> {
        let among_values = matches!(self.open.last(), Some(Open::Arguments | Open::Object));
        match token {
            Token::Mark(b'(') if !among_values => self.open(Open::Arguments),
            Token::Mark(b'{') if among_values => self.open(Open::Object),
            Token::Mark(b')') => (self.open.pop() == Some(Open::Arguments)).then_some(()),
            Token::Mark(b'}') if among_values => {
                (self.open.pop() == Some(Open::Object)).then_some(())
            }
            Token::Mark(b'(') => None,
            _ if among_values => Some(()),
            Token::Mark(b'{') => self.open_set(),
            Token::Mark(b'}') => self.close_set(),
            _ if self.open.is_empty() => self.head(token),
            _ => {
                self.selection(token);
                Some(())
            }
        }
    }

    /// A token between definitions, or of what stands before a selection set.
    fn head(&mut self, token: Token<'d>) -> Option<()> {
        self.head = match (self.head, token) {
            (Head::None, Token::Name("query" | "mutation" | "subscription")) => Head::Operation,
            (Head::None, Token::Name("fragment")) => Head::Fragment,
            (Head::Fragment, Token::Name(name)) => Head::Named(name),
            (Head::None | Head::Fragment, _) => return None,
            (head, _) => head,
        };
        Some(())
    }

    /// A token of a selection set, outside of values.
    fn selection(&mut self, token: Token<'d>) {
        match token {
            Token::Spread => {
                self.spread = true;
                self.inline = false;
            }
            _ if !self.spread => {}
            Token::Name(name) if name != "on" => {
                let above = self.depth.saturating_sub(1);
                let at = self.definition.spreads.entry(name).or_default();
                *at = above.max(*at);
                self.spread = false;
            }
            // A type, or a directive.
            _ => {
                self.spread = false;
                self.inline = true;
            }
        }
    }

    fn open_set(&mut self) -> Option<()> {
        match (self.open.is_empty(), self.head) {
            (true, Head::None) => self.head = Head::Operation,
            (true, Head::Fragment) => return None,
            _ => {}
        }
        let is_inline = self.inline || self.spread;
        (self.inline, self.spread) = (false, false);
        if is_inline {
            return self.open(Open::Inline);
        }
        self.depth = self.depth.saturating_add(1);
        self.definition.own = self.definition.own.max(self.depth);
        self.open(Open::Set)
    }

    fn close_set(&mut self) -> Option<()> {
        (self.inline, self.spread) = (false, false);
        match self.open.pop()? {
            Open::Set => self.depth = self.depth.saturating_sub(1),
            Open::Inline => {}
            Open::Arguments | Open::Object => return None,
        }
        if self.open.is_empty() {
            let definition = std::mem::take(&mut self.definition);
            match std::mem::replace(&mut self.head, Head::None) {
                // Two of one name: nobody can say which is meant.
                Head::Named(name) => {
                    if self.fragments.insert(name, definition).is_some() {
                        return None;
                    }
                }
                _ => self.operations.push(definition),
            }
        }
        Some(())
    }

    fn open(&mut self, what: Open) -> Option<()> {
        self.open.push(what);
        (self.open.len() <= NESTED_MAX).then_some(())
    }
}

/// The next token that is looked at, and what follows it; `Some(None)` at the end, `None` if the text is malformed.
#[expect(clippy::option_option, reason = "the end is no mistake")]
fn next_token(text: &str) -> Option<Option<(Token<'_>, &str)>> {
    let mut rest = text;
    loop {
        let Some(byte) = rest.bytes().next() else {
            return Some(None);
        };
        rest = match byte {
            b'#' => rest.find(['\n', '\r']).map_or("", |end| after(rest, end)),
            b'"' => after_string(rest)?,
            b'.' => {
                let rest = rest.strip_prefix("...")?;
                return Some(Some((Token::Spread, rest)));
            }
            b'A'..=b'Z' | b'a'..=b'z' | b'_' => {
                let end = rest
                    .bytes()
                    .position(|byte| !byte.is_ascii_alphanumeric() && byte != b'_');
                let (name, rest) = rest.split_at_checked(end.unwrap_or(rest.len()))?;
                return Some(Some((Token::Name(name), rest)));
            }
            b'{' | b'}' | b'(' | b')' | b'@' => {
                return Some(Some((Token::Mark(byte), after(rest, 1))));
            }
            // A number is one token, and no name begins within it.
            b'0'..=b'9' | b'-' => {
                let end = rest
                    .bytes()
                    .position(|byte| !byte.is_ascii_alphanumeric() && !b"+-._".contains(&byte));
                after(rest, end.unwrap_or(rest.len()))
            }
            _ => {
                let mut chars = rest.chars();
                chars.next();
                chars.as_str()
            }
        };
    }
}

/// What follows the string that `text` begins with.
fn after_string(text: &str) -> Option<&str> {
    if let Some(mut block) = text.strip_prefix("\"\"\"") {
        loop {
            let end = block.find("\"\"\"")?;
            let (before, from_end) = block.split_at_checked(end)?;
            block = after(from_end, 3);
            if !before.ends_with('\\') {
                return Some(block);
            }
        }
    }
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(after(text, at + 1)),
            b'\n' | b'\r' => return None,
            _ => {}
        }
    }
    None
}

fn after(text: &str, bytes: usize) -> &str {
    text.get(bytes..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selection_sets_count_wherever_they_stand_and_nothing_else_does() {
        let long = format!("{}{}", "{a".repeat(400), "}".repeat(400));
        let too_long = format!("{}{}", "{a".repeat(501), "}".repeat(501));
        for (document, expected) in [
            ("{ user }", Some(1)),
            ("{ user { name } }", Some(2)),
            ("\u{feff}query Q { a { b } c { d { e } } }", Some(3)),
            (
                "query Q($x: In = { a: { b: 1 } }) @d(x: {y: 1}) { a(i: {b: {c: [{d: 1}]}}) { b } }",
                Some(2),
            ),
            ("{ a(s: \"{ { \\\" {\") { b } } # { { {", Some(2)),
            ("{ a(s: \"\"\"{ \" \\\"\"\" { \"\"\") { b } }", Some(2)),
            ("{ a # } }\n { b } }", Some(2)),
            ("{ a } query B { a { b { c } } }", Some(3)),
            ("mutation { a { id } }", Some(2)),
            ("{ a { ... on T { b { c } } } }", Some(3)),
            ("{ a { ... @include(if: $x) { b } ... { c } } }", Some(2)),
            ("{ a { ...F } } fragment F on T { b { c } }", Some(3)),
            (
                "fragment F on T { b { ...G c } } { a { ...F } } fragment G on T { d { e } }",
                Some(4),
            ),
            ("{ ...F @skip(if: true) b } fragment F on T { a }", Some(1)),
            ("{ ...F { a } } fragment F on T { a }", Some(2)),
            ("{ ...on { a } }", Some(1)),
            ("{ query { fragment { on } } }", Some(3)),
            ("{ a(x: 1e5, y: -2.5) { b } }", Some(2)),
            (
                "{ ...A ...B } fragment A on T { ...C } fragment B on T { ...C x { ...C } } fragment C on T { y { z } }",
                Some(3),
            ),
            ("{ ...F } fragment F on T { a { ...F } }", None),
            (
                "{ ...F } fragment F on T { ...G } fragment G on T { ...F }",
                None,
            ),
            ("{ ...F }", None),
            (
                "{ ...F } fragment F on T { a } fragment F on T { a { b } }",
                None,
            ),
            ("fragment F on T { a }", None),
            ("type T { a: Int }", None),
            ("{ a { b }", None),
            ("{ a } }", None),
            ("{ a( { b } }", None),
            ("{ a(b: \"c) { d } }", None),
            ("", None),
            (&long, Some(400)),
            (&too_long, None),
        ] {
            assert_eq!(depth(document), expected, "{document}");
        }
    }
}
