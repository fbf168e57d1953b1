//! The file of API keys: the hashes, who holds them, and what plan and limits those have.
//!
//! It is read with the configuration, and again by itself when it changes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::build::{WITHOUT_FILES, unfit};
use super::collections::{Named, OneOrMany, Pairs};
use super::decode::{At, Decode, Reader, table};
use super::error::{Code, Diagnostic, Finding, Findings, did_you_mean};
use super::name::is_name;
use super::shape::Shape;
use super::source::{Place, Sources};
use super::tree::{self, Node};
use super::{Look, read};
use crate::check::{Identity, Limits, NewLimit, Policy};
use crate::client::api_key::{KeyHash, Ring};

table! {
    /// A file of API keys.
    KeyFile {
        /// The keys, by the names of their holders.
        keys: Named<Holder>, required;
    }
}

table! {
    /// Who holds an API key.
    Holder {
        /// SHA-256 of the key, as `tollgate hash-key` prints it; of several while one takes another's place.
        sha256: OneOrMany<KeyHash>, required;
        /// The plan that the holder is on.
        tier: String;
        /// Limits of the holder's own, by policy: a rate, or a count in flight.
        limits: Pairs<NewLimit>;
    }
}

/// Who holds which key.
pub type Keys = Ring<Identity>;

/// What a file of keys may refer to.
#[derive(Clone, Copy, Debug)]
pub struct Names<'a> {
    /// The policies by name, and what they are if they could be built.
    pub policies: &'a [(&'a str, Option<&'a Arc<Policy>>)],
    /// The tiers; `None` where there is no table of them, and any will do.
    pub tiers: Option<&'a [&'a str]>,
}

/// A file of keys that was read.
#[derive(Debug)]
pub struct KeysRead {
    /// Who holds which key; `None` if something is wrong with the file.
    pub keys: Option<Keys>,
    /// What is.
    pub diagnostics: Vec<Diagnostic>,
    /// What was read.
    pub seen: Seen,
}

/// A file as it was read by itself.
#[derive(Clone, Debug)]
pub struct Seen {
    /// How it looked before.
    pub look: Look,
    /// A hash over what it held; over nothing where it could not be read.
    pub content: [u8; 32],
}

impl Seen {
    /// Of the file at `path`, and what it holds.
    pub(super) fn read(path: &Path) -> (Self, io::Result<Vec<u8>>) {
        let look = Look::of(&[path.to_path_buf()]);
        let bytes = read::bytes(path);
        let content = *blake3::hash(bytes.as_deref().unwrap_or_default()).as_bytes();
        (Self { look, content }, bytes)
    }
}

/// Reads the file of keys at `path`, and nothing else. Variables are those of `env`.
#[must_use]
pub fn read_keys(path: &Path, names: Names<'_>, env: &BTreeMap<String, String>) -> KeysRead {
    let findings = Findings::default();
    let mut sources = Sources::new();
    let (file, seen) = parse(path, None, &mut sources, env, &findings);
    let keys = file.and_then(|file| build(&file, names, &findings));
    KeysRead {
        keys,
        diagnostics: findings.into_diagnostics(&sources),
        seen,
    }
}

/// Reads the file as written; `named` is the place that names it.
pub(super) fn parse(
    path: &Path,
    named: Option<Place>,
    sources: &mut Sources,
    env: &BTreeMap<String, String>,
    findings: &Findings,
) -> (Option<KeyFile>, Seen) {
    let (seen, bytes) = Seen::read(path);
    let name = path.display().to_string();
    let text = bytes.and_then(read::utf8);
    let mut parse = |text: String| {
        let directory = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let source = sources.add(name.clone(), Some(text), directory);
        let node = tree::read(source, sources, &|name| env.get(name).cloned(), findings);
        hide_keys(source, node.as_ref(), sources);
        KeyFile::decode(&node?, &Reader::new(findings))
    };
    match text {
        Ok(text) => (parse(text), seen),
        Err(error) => {
            let place = named
                .unwrap_or_else(|| Sources::whole(sources.add(name.clone(), None, PathBuf::new())));
            let why = format!("{name} cannot be read: {error}");
            let finding = Finding::new(Code::E051, place, why);
            findings.add(match named {
                Some(_) => finding.help(WITHOUT_FILES),
                None => finding,
            });
            (None, seen)
        }
    }
}

/// Hides whatever may be a key, written by mistake where its hash belongs: all but what is known to be none.
fn hide_keys(source: usize, node: Option<&Node>, sources: &mut Sources) {
    let Some(node) = node else {
        let length = sources
            .get(source)
            .and_then(|source| Some(source.text.as_ref()?.len()));
        return sources.hide(Place {
            source,
            start: 0,
            end: length.unwrap_or_default(),
        });
    };
    for entry in node.entries() {
        for holder in entry.node.entries() {
            for field in holder.node.entries() {
                if !matches!(field.key.as_str(), "tier" | "limits") {
                    sources.hide(field.node.place);
                }
            }
            if holder.node.entries().is_empty() {
                sources.hide(holder.node.place);
            }
        }
        if entry.node.entries().is_empty() {
            sources.hide(entry.node.place);
        }
    }
}

/// What the file means; `None`, with the reasons among the findings, if something is wrong.
pub(super) fn build(file: &KeyFile, names: Names<'_>, findings: &Findings) -> Option<Keys> {
    let mut keys = Keys::new();
    let mut places: Vec<(KeyHash, Place)> = Vec::new();
    for (name, holder) in &file.keys.as_ref()?.value.entries {
        let (name, holder) = (&name.value, &holder.value);
        check_names(name, holder, names, findings);
        let tier = holder.tier.as_ref().map(|tier| tier.value.as_str().into());
        let limits = holder.limits.iter().flat_map(|limits| &limits.value.0);
        let limits = limits.filter_map(|(policy, limit)| {
            let (_, policy) = find(names.policies, &policy.value)?;
            own_limits(name, policy?, limit, findings)
        });
        let identity = Arc::new(Identity {
            id: Some(name.as_str().into()),
            tier,
            limits: limits.collect(),
            ..Identity::default()
        });
        let hashes = holder
            .sha256
            .iter()
            .flat_map(|hashes| &hashes.value.0.items);
        for hash in hashes {
            let Some(earlier) = keys.insert(hash.value, &identity).cloned() else {
                places.push((hash.value, hash.place));
                continue;
            };
            let first = places.iter().find(|(known, _)| *known == hash.value);
            let message = match earlier.id.as_deref() {
                Some(other) if other != name => {
                    format!("`{other}` and `{name}` have the same key: nobody can tell them apart")
                }
                _ => format!("key `{name}` has the same hash twice"),
            };
            let finding = Finding::new(Code::E115, hash.place, message)
                .label("here again")
                .help("give each holder a key of its own: tollgate hash-key --generate");
            findings.add(match first {
                Some((_, place)) => finding.also(*place, "first here"),
                None => finding,
            });
        }
    }
    (!findings.any_error()).then_some(keys)
}

/// Reports what the holder of a key refers to, and is not there.
fn check_names(name: &str, holder: &Holder, names: Names<'_>, findings: &Findings) {
    let missing = |what: &str, found: &At<String>, known: &[&str]| {
        let mut message = format!("key `{name}` has unknown {what} `{}`", found.value);
        if let Some(near) = did_you_mean(&found.value, known.iter().copied()) {
            message.push_str(&format!("; did you mean `{near}`?"));
        }
        let finding = Finding::new(Code::E116, found.place, message);
        findings.add(match known {
            [] => finding.help(format!("the configuration has no {what}; take it out")),
            known => finding.note(format!("defined are: {}", known.join(", "))),
        });
    };
    if let Some(tier) = &holder.tier {
        match names.tiers {
            Some(tiers) if !tiers.contains(&tier.value.as_str()) => missing("tier", tier, tiers),
            _ if !is_name(&tier.value) => findings.add(
                Finding::new(
                    Code::E019,
                    tier.place,
                    format!(
                        "key `{name}`: `{}` cannot be the name of a tier",
                        tier.value
                    ),
                )
                .help("a name has up to 48 of a-z, 0-9 and -, and begins with a letter"),
            ),
            _ => {}
        }
    }
    let limits = holder.limits.iter().flat_map(|limits| &limits.value.0);
    let policies: Vec<&str> = names.policies.iter().map(|(name, _)| *name).collect();
    for (policy, _) in limits {
        if find(names.policies, &policy.value).is_none() {
            missing("policy", policy, &policies);
        }
    }
}

fn find<'p, T: Copy>(policies: &[(&'p str, T)], name: &str) -> Option<(&'p str, T)> {
    policies.iter().find(|(known, _)| *known == name).copied()
}

/// What the policy's limits are for the holder.
fn own_limits(
    holder: &str,
    policy: &Arc<Policy>,
    limit: &At<NewLimit>,
    findings: &Findings,
) -> Option<(Arc<str>, Arc<Limits>)> {
    match policy.limits.with(limit.value) {
        Ok(limits) => Some((Arc::clone(&policy.name), Arc::new(limits))),
        Err(why) => {
            findings.add(unfit(&format!("key `{holder}`"), &policy.name, limit, why));
            None
        }
    }
}

impl Decode for KeyHash {
    fn shape() -> Shape {
        Shape::Text("^[0-9a-fA-F]{64}$")
    }

    fn decode(node: &Node, reader: &Reader<'_>) -> Option<Self> {
        let text = reader.text(node, "64 hexadecimal digits")?;
        let hash = Self::from_hex(text);
        if hash.is_none() {
            // What was found may be a key.
            let found = text.chars().count();
            reader.report(
                Finding::new(
                    Code::E114,
                    node.place,
                    format!("`sha256` is not 64 hexadecimal digits, but {found} characters"),
                )
                .help("write what `tollgate hash-key` prints for the key, not the key"),
            );
        }
        hash
    }
}
