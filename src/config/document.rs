//! The whole document: the file, what it includes, what the environment overrides, and the defaults.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::decode::{Table, quoted};
use super::error::{Code, Finding, Findings, did_you_mean};
use super::file::File;
use super::include;
use super::shape::{Shape, TableShape};
use super::source::{Place, Sources};
use super::tree::{self, Entry, Node, Value};

/// The tables that `TOLLGATE__TABLE__FIELD` can override. Names of policies and the like may hold `-`, and are not.
const OVERRIDABLE: [&str; 8] = [
    "server",
    "client_ip",
    "store",
    "headers",
    "load_shedding",
    "admin",
    "metrics",
    "logs",
];

/// What an included file may define.
const INCLUDABLE: [&str; 7] = [
    "upstreams",
    "policies",
    "tiers",
    "overrides",
    "exemptions",
    "routes",
    "rejects",
];

const PREFIX: &str = "TOLLGATE__";

/// Reads documents.
pub(crate) struct Assembler<'a> {
    pub(crate) sources: &'a mut Sources,
    pub(crate) findings: &'a Findings,
    pub(crate) env: &'a BTreeMap<String, String>,
    /// Every file that was read, or looked for.
    pub(crate) files: Vec<PathBuf>,
    /// Every directory where files to include were looked for.
    pub(crate) folders: Vec<PathBuf>,
}

impl Assembler<'_> {
    /// Puts the document together; `None` if a part of it is not even TOML.
    pub(crate) fn assemble(&mut self, path: &Path, text: Option<String>) -> Option<Node> {
        let mut root = match text {
            Some(text) => self.parse(path, text)?,
            None => self.read(path, None)?,
        };
        let included = self.included(&root)?;
        for file in included {
            self.merge(&mut root, file);
        }
        self.override_by_environment(&mut root);
        complete(&mut root, &Shape::Table(File::table_shape()));
        Some(root)
    }

    fn parse(&mut self, path: &Path, text: String) -> Option<Node> {
        let directory = path.parent().map(Path::to_path_buf).unwrap_or_default();
        let source = self
            .sources
            .add(path.display().to_string(), Some(text), directory);
        let env = self.env;
        tree::read(
            source,
            self.sources,
            &|name| env.get(name).cloned(),
            self.findings,
        )
    }

    /// Reads a file; `asked` is the place that names it.
    fn read(&mut self, path: &Path, asked: Option<Place>) -> Option<Node> {
        self.files.push(path.to_path_buf());
        match super::read::text(path) {
            Ok(text) => self.parse(path, text),
            Err(error) => {
                let place = asked.unwrap_or_else(|| {
                    let name = path.display().to_string();
                    Sources::whole(self.sources.add(name, None, PathBuf::new()))
                });
                let finding = Finding::new(
                    Code::E051,
                    place,
                    format!("{} cannot be read: {error}", path.display()),
                );
                self.findings.add(match asked {
                    Some(_) => finding,
                    None => finding.help("name the configuration: --config FILE"),
                });
                None
            }
        }
    }

    /// The files that `include` names, read.
    fn included(&mut self, root: &Node) -> Option<Vec<Node>> {
        let Some(Value::List(globs)) = root.get("include").map(|node| &node.value) else {
            // Whatever else it is will be reported when it is decoded.
            return Some(Vec::new());
        };
        let mut read = Vec::new();
        let mut complete = true;
        let mut seen = Vec::new();
        for glob in globs {
            let Value::Text(pattern) = &glob.value else {
                continue;
            };
            let pattern = self.sources.resolve(glob.place.source, pattern);
            self.folders.extend(pattern.parent().map(Path::to_path_buf));
            let found = match include::files(&pattern) {
                Ok(found) => found,
                Err(why) => {
                    self.findings.add(Finding::new(Code::E051, glob.place, why));
                    continue;
                }
            };
            for path in found {
                // Two globs may find the same file; it is one file.
                if seen.contains(&path) {
                    continue;
                }
                seen.push(path.clone());
                match self.read(&path, Some(glob.place)) {
                    Some(node) => read.push(node),
                    None => complete = false,
                }
            }
        }
        complete.then_some(read)
    }

    fn merge(&mut self, root: &mut Node, file: Node) {
        let Value::Table(tables) = file.value else {
            return;
        };
        for table in tables {
            if !INCLUDABLE.contains(&table.key.as_str()) {
                let known = File::table_shape();
                let near = did_you_mean(&table.key, INCLUDABLE);
                let why = if known.fields.iter().any(|field| field.key == table.key) {
                    "stands in the main file only"
                } else {
                    "is not known"
                };
                self.findings.add(
                    Finding::new(Code::E061, table.place, format!("`{}` {why}", table.key))
                        .label(
                            near.map_or_else(String::new, |near| format!("did you mean `{near}`?")),
                        )
                        .note(format!(
                            "an included file defines {}",
                            INCLUDABLE.join(", ")
                        )),
                );
                continue;
            }
            let Some(ours) = root.table_mut(&table.key, table.place) else {
                continue;
            };
            let Value::Table(entries) = table.node.value else {
                continue;
            };
            for entry in entries {
                self.merge_entry(&table.key, ours, entry);
            }
        }
    }

    fn merge_entry(&self, table: &str, ours: &mut Node, entry: Entry) {
        let Value::Table(known) = &mut ours.value else {
            return;
        };
        match known.iter().find(|other| other.key == entry.key) {
            Some(first) => self.findings.add(
                Finding::new(
                    Code::E060,
                    entry.place,
                    format!("`{}` is defined twice in `[{table}]`", entry.key),
                )
                .label("here again")
                .also(first.place, "first here")
                .help("give one of them another name"),
            ),
            None => known.push(entry),
        }
    }

    fn override_by_environment(&mut self, root: &mut Node) {
        for (name, value) in self.env {
            let Some(path) = name.strip_prefix(PREFIX) else {
                continue;
            };
            let path: Vec<String> = path.split("__").map(str::to_ascii_lowercase).collect();
            let source =
                self.sources
                    .add(format!("environment variable {name}"), None, PathBuf::new());
            let place = Sources::whole(source);
            match overridden(&path) {
                Ok(shape) => {
                    let node = Node {
                        value: value_for(&shape, value, place),
                        place,
                    };
                    put(root, &path, node);
                }
                Err((why, help)) => self.findings.add(
                    Finding::new(
                        Code::E014,
                        place,
                        format!("`{name}` overrides nothing: {why}"),
                    )
                    .help(help),
                ),
            }
        }
    }
}

/// The shape of the field that a variable overrides, or why there is none and what to do.
fn overridden(path: &[String]) -> Result<Shape, (String, String)> {
    let root = File::table_shape();
    let Some((first, rest)) = path.split_first() else {
        return Err(("it names no field".to_owned(), "unset it".to_owned()));
    };
    if first == "mode" && rest.is_empty() {
        return field(&root, first).ok_or_else(|| (String::new(), String::new()));
    }
    if !OVERRIDABLE.contains(&first.as_str()) || rest.is_empty() {
        let why = format!("`{first}` cannot be overridden as a whole or by name");
        return Err((
            why,
            format!(
                "write {PREFIX}MODE or {PREFIX}TABLE__FIELD with a table of {}",
                quoted(&OVERRIDABLE)
            ),
        ));
    }
    let mut table = root;
    let mut within = "the top level".to_owned();
    for (depth, key) in path.iter().enumerate() {
        let Some(shape) = field(&table, key) else {
            let keys: Vec<&str> = table.fields.iter().map(|field| field.key).collect();
            let help = match did_you_mean(key, keys.iter().copied()) {
                Some(near) => {
                    let above: Vec<String> = path
                        .iter()
                        .take(depth)
                        .map(|key| key.to_ascii_uppercase())
                        .collect();
                    format!(
                        "did you mean {PREFIX}{}__{}?",
                        above.join("__"),
                        near.to_ascii_uppercase()
                    )
                }
                None => format!("allowed here: {}", keys.join(", ")),
            };
            return Err((format!("there is no `{key}` in {within}"), help));
        };
        match shape {
            Shape::Table(inner) => table = inner,
            shape if depth + 1 == path.len() => return Ok(shape),
            _ => {
                return Err((
                    format!("`{key}` has no fields"),
                    "take off what follows it".to_owned(),
                ));
            }
        }
        within = format!("`{key}`");
    }
    Err((
        format!("{within} is a table"),
        "name a field of it".to_owned(),
    ))
}

fn field(table: &TableShape, key: &str) -> Option<Shape> {
    let field = table.fields.iter().find(|field| field.key == key)?;
    Some(field.shape.clone())
}

/// A variable is text; the shape says what it stands for.
fn value_for(shape: &Shape, text: &str, place: Place) -> Value {
    match shape {
        Shape::Whole(..) => text
            .trim()
            .parse()
            .map_or_else(|_| Value::Text(text.to_owned()), Value::Whole),
        Shape::Flag => text
            .trim()
            .parse()
            .map_or_else(|_| Value::Text(text.to_owned()), Value::Flag),
        Shape::List(item) => Value::List(
            text.split(',')
                .map(str::trim)
                .filter(|part| !part.is_empty())
                .map(|part| Node {
                    value: value_for(item, part, place),
                    place,
                })
                .collect(),
        ),
        _ => Value::Text(text.to_owned()),
    }
}

fn put(node: &mut Node, path: &[String], new: Node) {
    match path {
        [] => {}
        [last] => node.set(last, new),
        [first, rest @ ..] => {
            let place = new.place;
            if let Some(table) = node.table_mut(first, place) {
                put(table, rest, new);
            }
        }
    }
}

/// Adds the defaults of all that is not written.
pub(crate) fn complete(node: &mut Node, shape: &Shape) {
    match (&mut node.value, shape) {
        (Value::Table(entries), Shape::Map(_, item)) => {
            for entry in entries {
                complete(&mut entry.node, item);
            }
        }
        (Value::List(nodes), Shape::List(item)) => {
            for node in nodes {
                complete(node, item);
            }
        }
        (Value::Table(entries), shape) => {
            let Some(table) = entries
                .iter()
                .find_map(|entry| shape.table_with(&entry.key))
                .or_else(|| shape.table_with(""))
            else {
                return;
            };
            for field in &table.fields {
                let written = entries.iter_mut().find(|entry| entry.key == field.key);
                if let Some(entry) = written {
                    complete(&mut entry.node, &field.shape);
                } else if let Some(mut node) = field.default.and_then(literal) {
                    complete(&mut node, &field.shape);
                    entries.push(Entry {
                        key: field.key.to_owned(),
                        place: node.place,
                        node,
                    });
                }
            }
        }
        _ => {}
    }
}

/// A default, from its TOML.
fn literal(text: &str) -> Option<Node> {
    let table: toml::Table = format!("it = {text}").parse().ok()?;
    table.get("it").map(node_of)
}

fn node_of(value: &toml::Value) -> Node {
    let place = Sources::whole(Sources::DEFAULTS);
    let value = match value {
        toml::Value::String(text) => Value::Text(text.clone()),
        toml::Value::Integer(number) => Value::Whole((*number).into()),
        toml::Value::Float(number) => Value::Fraction(number.to_string()),
        toml::Value::Boolean(flag) => Value::Flag(*flag),
        toml::Value::Datetime(moment) => Value::Moment(moment.to_string()),
        toml::Value::Array(list) => Value::List(list.iter().map(node_of).collect()),
        toml::Value::Table(table) => Value::Table(
            table
                .iter()
                .map(|(key, value)| Entry {
                    key: key.clone(),
                    place,
                    node: node_of(value),
                })
                .collect(),
        ),
    };
    Node { value, place }
}
