//! Mistakes: a stable code, the place, the cause and the cure. All of a run are collected.

use std::cell::RefCell;
use std::fmt::{self, Write as _};

use serde_json::json;

use super::source::{Excerpt, Place, Sources};

macro_rules! codes {
    ($( $(#[doc = $about:literal])+ $code:ident ),+ $(,)?) => {
        /// What kind of mistake it is: `E…` keeps the configuration from loading, `W…` does not. A code never
        /// changes its meaning.
        #[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
        pub enum Code { $( $(#[doc = $about])+ $code ),+ }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[ $( Self::$code ),+ ];

            /// As it is printed.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$code => stringify!($code) ),+ }
            }

            /// What it means, in a line.
            #[must_use]
            pub const fn about(self) -> &'static str {
                match self { $( Self::$code => concat!($($about),+).trim_ascii() ),+ }
            }
        }
    };
}

codes! {
    /// The text is not TOML.
    E001,
    /// The file is of another version.
    E010,
    /// A field that does not exist.
    E014,
    /// A value of the wrong type.
    E015,
    /// A field that must be there is not.
    E016,
    /// A word that is not one of those allowed.
    E017,
    /// Fields that exclude each other, or need one another.
    E018,
    /// A name that would need an escape in a header, a label or a key.
    E019,
    /// Not a duration.
    E020,
    /// Not a rate.
    E021,
    /// Not a size, or not a percentage.
    E022,
    /// Not a network.
    E023,
    /// Not a path pattern, or not a path.
    E024,
    /// Not a host, an address or a URL.
    E025,
    /// A number or duration out of bounds.
    E026,
    /// A limit too large to be counted exactly over its window.
    E027,
    /// Not a header field or a method.
    E028,
    /// A placeholder that does not exist.
    E029,
    /// A field that means nothing for this kind.
    E030,
    /// Not a key source.
    E031,
    /// A cost that no state would ever allow.
    E033,
    /// A policy twice on one route.
    E034,
    /// A key from a path parameter that the route does not have.
    E035,
    /// An address that is used twice.
    E036,
    /// Not a source of a cost.
    E038,
    /// A field that means nothing for this source of a cost.
    E039,
    /// A policy that does not say what happens when its key is missing.
    E043,
    /// Not a time zone, or a calendar that the limit does not go with.
    E044,
    /// A penalty without steps, with too many, or with one that is no longer than the one before.
    E045,
    /// A limit that is a rate where the kind has units at once, or the other way.
    E046,
    /// A lease that is a number of units where the kind has a duration, or the other way.
    E047,
    /// A policy that counts no answer, or counts one and forgets it.
    E048,
    /// A `${VAR}` that is not set, or not closed.
    E050,
    /// A file that cannot be read, or holds too little.
    E051,
    /// A name that is defined twice.
    E060,
    /// An included file that defines more than named tables.
    E061,
    /// A route uses a policy that does not exist.
    E101,
    /// A route uses an upstream that does not exist.
    E102,
    /// A policy uses a reject that does not exist.
    E103,
    /// A tier, an override or an exemption names a policy that does not exist.
    E104,
    /// An exemption names a route that does not exist.
    E105,
    /// A name that stands for something else already.
    E106,
    /// A limit over another window than that by which its policy counts.
    E107,
    /// A limit that is not of the policy's kind.
    E108,
    /// Two overrides with equal right to a caller.
    E109,
    /// A header with a single address is believed from anybody.
    E111,
    /// Several gateways without a common secret for their keys.
    E112,
    /// A key source that nothing in `[identity]` yields.
    E113,
    /// Not a SHA-256 in hexadecimal digits.
    E114,
    /// One API key of two holders.
    E115,
    /// A file of API keys that names a policy or a tier that does not exist.
    E116,
    /// Keys of tokens that cannot be used.
    E117,
    /// A way to sign tokens that their keys are not for.
    E118,
    /// An address that the keys of tokens cannot be fetched from.
    E119,
    /// A file without a certificate that can be used.
    E120,
    /// A file without a private key that can be used.
    E121,
    /// A key that is of another certificate.
    E122,
    /// No authority whose certificates would be believed.
    E123,
    /// Not a name that a certificate can be for.
    E124,
    /// Two routes match the same request with equal right.
    E130,
    /// The last policy of a `first_of` may not apply.
    E140,
    /// A route is limited only by what a client may change at will.
    W201,
    /// A policy that no route uses.
    W203,
    /// A route without policies.
    W204,
    /// Everybody is trusted to say who is calling.
    W205,
    /// A key from a path parameter: each value has a counter of its own.
    W208,
    /// A secret made at start: gateways do not share limits, and a restart forgets usage.
    W209,
    /// A literal segment of a path that looks like a parameter.
    W210,
    /// No route: every request is answered as unmatched.
    W211,
    /// A server of an upstream that is a listener of the gateway's own.
    W212,
    /// A password in the configuration.
    W213,
    /// Two leaky buckets in the way of one request: only one of them smooths it.
    W214,
    /// A policy that can never deny: another always does before it.
    W215,
    /// Tokens that are believed on less than could be asked of them.
    W216,
    /// A route is limited only for those who show who they are.
    W217,
    /// What is said of tiers or identities where nobody has one.
    W218,
    /// An exemption of everybody.
    W219,
    /// Load shedding that never happens: a priority without it, more in flight than can be, or a target that no
    /// upstream is given the time to miss.
    W220,
    /// A route is limited only by what clients claim that their requests cost.
    W221,
    /// A request that does not say what it costs is free.
    W222,
    /// A penalty for all callers together.
    W223,
    /// A lease of concurrency that a slow store may outlast.
    W224,
    /// A certificate that is not good any more, or not yet.
    W225,
    /// TLS to whoever answers: certificates are not verified.
    W226,
    /// A server on the port of TLS that is spoken to in the clear.
    W227,
}

/// Whether it keeps the configuration from loading.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Severity {
    /// It does.
    Error,
    /// It does not, but somebody should look.
    Warning,
}

impl Code {
    /// Errors are `E…`, warnings `W…`.
    #[must_use]
    pub fn severity(self) -> Severity {
        if self.as_str().starts_with('W') {
            Severity::Warning
        } else {
            Severity::Error
        }
    }
}

impl Severity {
    /// As it is printed.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// A mistake as it is found, by its place.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    code: Code,
    place: Option<Place>,
    message: String,
    label: String,
    notes: Vec<String>,
    help: Option<String>,
    also: Option<(Place, String)>,
}

impl Finding {
    pub(crate) fn new(code: Code, place: Place, message: impl Into<String>) -> Self {
        Self {
            code,
            place: Some(place),
            message: message.into(),
            label: String::new(),
            notes: Vec::new(),
            help: None,
            also: None,
        }
    }

    /// Says something beside the carets.
    pub(crate) fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Says something below.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }

    /// Says what to write instead.
    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Shows another place that has to do with it.
    pub(crate) fn also(mut self, place: Place, what: impl Into<String>) -> Self {
        self.also = Some((place, what.into()));
        self
    }
}

/// Collects the findings of a run.
#[derive(Debug, Default)]
pub(crate) struct Findings(RefCell<Vec<Finding>>);

impl Findings {
    pub(crate) fn add(&self, finding: Finding) {
        self.0.borrow_mut().push(finding);
    }

    pub(crate) fn any_error(&self) -> bool {
        let findings = self.0.borrow();
        findings
            .iter()
            .any(|finding| finding.code.severity() == Severity::Error)
    }

    /// Whether something within `place` is wrong.
    pub(crate) fn any_error_within(&self, place: Place) -> bool {
        self.0.borrow().iter().any(|finding| {
            finding.code.severity() == Severity::Error
                && finding.place.is_some_and(|at| {
                    at.source == place.source && at.start >= place.start && at.end <= place.end
                })
        })
    }

    /// Turns places into lines and columns, in the order of the text.
    pub(crate) fn into_diagnostics(self, sources: &Sources) -> Vec<Diagnostic> {
        let mut findings = self.0.into_inner();
        findings.sort_by_key(|finding| (finding.place, finding.code));
        findings
            .into_iter()
            .map(|finding| Diagnostic {
                code: finding.code,
                message: finding.message,
                location: finding.place.and_then(|place| locate(place, sources)),
                label: finding.label,
                notes: finding.notes,
                help: finding.help,
                also: finding
                    .also
                    .and_then(|(place, what)| Some((locate(place, sources)?, what))),
            })
            .collect()
    }
}

fn locate(place: Place, sources: &Sources) -> Option<Location> {
    let source = sources.get(place.source)?;
    if place.source == Sources::DEFAULTS {
        return None;
    }
    let position = sources.position(place);
    Some(Location {
        file: source.name.clone(),
        line: position.as_ref().map(|position| position.line),
        column: position.as_ref().map(|position| position.column),
        excerpt: position.map(|position| position.excerpt),
    })
}

/// Where something stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Location {
    /// The file, or the environment variable.
    pub file: String,
    /// The line, from 1.
    pub line: Option<usize>,
    /// The column in characters, from 1.
    pub column: Option<usize>,
    /// What stands there, without secrets.
    pub excerpt: Option<Excerpt>,
}

/// A mistake as it is shown. `Display` is the text for people, [`Diagnostic::to_json`] that for machines.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Diagnostic {
    /// Its code.
    pub code: Code,
    /// What was found, and what was expected.
    pub message: String,
    /// Where.
    pub location: Option<Location>,
    /// Beside the carets.
    pub label: String,
    /// More to know.
    pub notes: Vec<String>,
    /// What to write instead.
    pub help: Option<String>,
    /// Another place that has to do with it, and how.
    pub also: Option<(Location, String)>,
}

impl Diagnostic {
    /// Whether it keeps the configuration from loading.
    #[must_use]
    pub fn severity(&self) -> Severity {
        self.code.severity()
    }

    /// All of it on one line, for a log.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = format!("{}[{}]", self.severity().as_str(), self.code.as_str());
        if let Some(location) = &self.location {
            text.push(' ');
            text.push_str(&location.file);
            for number in [location.line, location.column].into_iter().flatten() {
                text.push_str(&format!(":{number}"));
            }
        }
        text.push_str(": ");
        text.push_str(&self.message);
        for more in [Some(&self.label), self.help.as_ref()]
            .into_iter()
            .flatten()
        {
            if !more.is_empty() {
                text.push_str("; ");
                text.push_str(more);
            }
        }
        text
    }

    /// `{code, severity, file, line, column, message, help}`; what is not known is null.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        let location = self.location.as_ref();
        let help: Vec<&str> = [self.label.as_str()]
            .into_iter()
            .chain(self.help.as_deref())
            .chain(self.notes.iter().map(String::as_str))
            .filter(|text| !text.is_empty())
            .collect();
        let mut object = json!({
            "code": self.code.as_str(),
            "severity": self.severity().as_str(),
            "file": location.map(|location| &location.file),
            "line": location.and_then(|location| location.line),
            "column": location.and_then(|location| location.column),
            "message": self.message,
            "help": (!help.is_empty()).then(|| in_one_line(&help)),
        });
        if let (Some((other, what)), Some(object)) = (&self.also, object.as_object_mut()) {
            object.insert(
                "related".to_owned(),
                json!({ "file": other.file, "line": other.line, "column": other.column, "message": what }),
            );
        }
        object
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = format!(
            "{}[{}]: {}\n",
            self.severity().as_str(),
            self.code.as_str(),
            self.message
        );
        let lines = [
            self.location.as_ref(),
            self.also.as_ref().map(|(location, _)| location),
        ];
        let widest = lines
            .iter()
            .flatten()
            .filter_map(|location| location.line)
            .max();
        let width = widest.map_or(0, |line| line.to_string().len()).max(3);
        if let Some(location) = &self.location {
            location.write(&mut text, width, &self.label)?;
        } else if !self.label.is_empty() {
            writeln!(text, "{:width$} = {}", "", self.label)?;
        }
        if let Some((location, what)) = &self.also {
            location.write(&mut text, width, what)?;
        }
        for note in &self.notes {
            writeln!(text, "{:width$} = {note}", "")?;
        }
        if let Some(help) = &self.help {
            writeln!(text, "{:width$} = help: {help}", "")?;
        }
        f.write_str(&text)
    }
}

impl Location {
    fn write(&self, text: &mut String, width: usize, label: &str) -> fmt::Result {
        write!(text, "{:width$}--> {}", "", self.file)?;
        let (Some(line), Some(column), Some(excerpt)) = (self.line, self.column, &self.excerpt)
        else {
            let label = if label.is_empty() {
                String::new()
            } else {
                format!(": {label}")
            };
            return writeln!(text, "{label}");
        };
        writeln!(text, ":{line}:{column}")?;
        writeln!(text, "{:width$} |", "")?;
        writeln!(text, "{line:>width$} | {}", excerpt.text)?;
        let carets = "^".repeat(excerpt.width);
        let pointer = format!("{:before$}{carets} {label}", "", before = excerpt.before);
        writeln!(text, "{:width$} | {}", "", pointer.trim_end())
    }
}

/// Sentences one after the other: a question ends by itself, the others with a semicolon.
fn in_one_line(texts: &[&str]) -> String {
    let mut line = String::new();
    for text in texts {
        if !line.is_empty() {
            line.push_str(if line.ends_with('?') { " " } else { "; " });
        }
        line.push_str(text);
    }
    line
}

/// The one of `known` that `found` was probably meant to be.
pub(crate) fn did_you_mean<'a>(
    found: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    // A third of the letters may differ: `limti` is `limit`, `foo` is nothing. Of one letter nothing can be said.
    let letters = found.chars().count();
    let farthest = if letters < 2 { 0 } else { (letters / 3).max(1) };
    known
        .into_iter()
        .map(|word| (strsim::damerau_levenshtein(found, word), word))
        .filter(|(distance, _)| *distance <= farthest)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}
