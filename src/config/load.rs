//! From a path to a configuration, or to all the reasons why there is none.

use std::cell::{OnceCell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::Config;
use super::build::{self, Builder};
use super::decode::{Decode, Reader};
use super::document::Assembler;
use super::error::{Diagnostic, Findings, Severity};
use super::file::File;
use super::source::Sources;
use super::tree::Node;

/// How to load.
#[derive(Clone)]
pub struct LoadOptions {
    /// Whether the files that settings name (secrets, passwords, bodies) are read. The configuration itself and
    /// what it includes always is. A configuration that is loaded without is good for checking, not for running.
    pub io: bool,
    /// The environment: for `${VAR}` and `TOLLGATE__TABLE__FIELD`.
    pub env: BTreeMap<String, String>,
}

/// What came of it.
pub struct Loaded {
    /// The configuration; none if there is an error among the diagnostics.
    pub config: Option<Config>,
    /// Every mistake and every warning, in the order of the text.
    pub diagnostics: Vec<Diagnostic>,
    /// The files that were read or looked for: the main one first, then what it includes and what settings name.
    pub files: Vec<PathBuf>,
    /// The directories where files to include were looked for.
    pub folders: Vec<PathBuf>,
    pub(super) document: Option<Node>,
    pub(super) sources: Sources,
}

/// Without the text, which may hold secrets.
impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded")
            .field("config", &self.config)
            .field("diagnostics", &self.diagnostics)
            .field("files", &self.files)
            .finish_non_exhaustive()
    }
}

impl LoadOptions {
    /// With files and the environment of this process. Variables that are not UTF-8 are not seen.
    #[must_use]
    pub fn from_process() -> Self {
        let env = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { io: true, env }
    }
}

impl Loaded {
    /// Whether something is wrong.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.config.is_none()
    }

    /// The warnings among the diagnostics.
    pub fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics
            .iter()
            .filter(|diagnostic| diagnostic.severity() == Severity::Warning)
    }
}

/// Loads a configuration. Reads files and nothing else: no name is resolved, no store is asked.
#[must_use]
pub fn load(path: &Path, options: &LoadOptions) -> Loaded {
    load_from(path, None, options)
}

/// Loads a configuration whose main file has this text; `path` is what it is called and what its own paths are
/// relative to.
#[must_use]
pub fn load_text(path: &Path, text: &str, options: &LoadOptions) -> Loaded {
    load_from(path, Some(text.to_owned()), options)
}

fn load_from(path: &Path, text: Option<String>, options: &LoadOptions) -> Loaded {
    let findings = Findings::default();
    let mut sources = Sources::new();
    let mut assembler = Assembler {
        sources: &mut sources,
        findings: &findings,
        env: &options.env,
        files: Vec::new(),
        folders: Vec::new(),
    };
    let document = assembler.assemble(path, text);
    let (mut files, folders) = (assembler.files, assembler.folders);
    let named = RefCell::default();
    let config = document.as_ref().and_then(|document| {
        let file = File::decode(document, &Reader::new(&findings))?;
        let keys = build::identity::read_keys(&file, &mut sources, options, &findings);
        let builder = Builder {
            findings: &findings,
            sources: &sources,
            io: options.io,
            read: &named,
            machine: &OnceCell::new(),
            keys: keys.as_ref(),
        };
        build::build(&file, builder)
    });
    files.append(&mut named.into_inner());
    Loaded {
        config,
        diagnostics: findings.into_diagnostics(&sources),
        files,
        folders,
        document,
        sources,
    }
}
