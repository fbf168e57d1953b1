//! Whom an operator means: the caller of one policy, in the store that the configuration names.

use std::fmt::Display;
use std::future::Future;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::EX_CONFIG;
use crate::check::named::named;
use crate::check::{Check, EntityKey, KeySource, OnMissingKey, Policy, Scope};
use crate::config::{Config, LoadOptions, StoreKind, load};
use crate::decide::Cost;
use crate::store::valkey::ValkeyStore;

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Whom the command is about.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Asked {
    /// The configuration of the gateways: it says where the store is, and how callers are named there.
    #[arg(long, short, default_value = "/etc/tollgate/tollgate.toml")]
    config: PathBuf,
    /// The policy.
    #[arg(long)]
    policy: String,
    /// Whom it counts, a part of the policy's key each: ip=192.0.2.1, header:x-user=bob.
    #[arg(long = "key", value_name = "SOURCE=VALUE")]
    key: Vec<NamedPart>,
}

/// `SOURCE=VALUE`, in the words of `key` in a policy.
#[derive(Clone, Debug)]
struct NamedPart {
    source: KeySource,
    value: String,
}

impl FromStr for NamedPart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (source, value) = text
            .split_once('=')
            .ok_or_else(|| format!("write SOURCE=VALUE, as in ip=192.0.2.1; found `{text}`"))?;
        let source = source
            .parse()
            .map_err(|error: crate::check::entity::BadKeySource| error.to_string())?;
        Ok(Self {
            source,
            value: value.to_owned(),
        })
    }
}

/// The caller that is meant, and the store where it is counted.
#[derive(Debug)]
pub(super) struct Whom {
    pub(super) config: Config,
    pub(super) policy: Arc<Policy>,
    pub(super) entity: EntityKey,
    pub(super) store: ValkeyStore,
    /// The parts as they were named.
    parts: Vec<NamedPart>,
    /// Ends the connection when it is dropped.
    _stop: watch::Sender<bool>,
}

impl Whom {
    /// The check of a request of this caller that takes so much.
    pub(super) fn check(&self, cost: u64) -> Check<'_> {
        Check {
            policy: &self.policy,
            limits: &self.policy.limits,
            rule: &self.policy.limits.rule,
            entity: self.entity,
            cost: Cost::new(cost),
            shadow: false,
        }
    }

    /// What was named for such a source.
    pub(super) fn named(&self, is_it: impl Fn(&KeySource) -> bool) -> Option<&str> {
        let part = self.parts.iter().find(|part| is_it(&part.source))?;
        Some(&part.value)
    }
}

/// `for ip=192.0.2.1, under policy per-client`: whom a command was about.
impl Display for Whom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self
            .parts
            .iter()
            .map(|part| format!("{}={}", part.source, part.value))
            .collect();
        let who = if parts.is_empty() {
            "everybody".to_owned()
        } else {
            parts.join(" ")
        };
        write!(f, "{who} under policy {}", self.policy.name)
    }
}

/// Why a command cannot be carried out.
#[derive(Debug)]
pub(super) enum Stop {
    /// What was asked for makes no sense.
    Usage(String),
    /// The configuration is wrong, and that was said.
    Config,
    /// It failed.
    Failed(String),
}

impl Stop {
    pub(super) fn usage(why: impl Into<String>) -> Self {
        Self::Usage(why.into())
    }

    pub(super) fn failed(why: impl Display) -> Self {
        Self::Failed(why.to_string())
    }
}

/// Runs a command to its end: 0 done, 1 failed, 2 wrong usage, 78 wrong configuration.
pub(super) fn run(command: impl Future<Output = Result<(), Stop>>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(command),
        Err(error) => Err(Stop::failed(error)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::Config) => ExitCode::from(EX_CONFIG),
        Err(Stop::Usage(why)) => {
            eprintln!("error: {why}");
            ExitCode::from(2)
        }
        Err(Stop::Failed(why)) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

impl Asked {
    /// Finds out who is meant, and connects to the store where that caller is counted.
    pub(super) async fn find(&self) -> Result<Whom, Stop> {
        let loaded = load(&self.config, &LoadOptions::from_process());
        if loaded.has_errors() {
            for diagnostic in &loaded.diagnostics {
                eprintln!("{diagnostic}");
            }
        }
        let config = loaded.config.ok_or(Stop::Config)?;
        let policy = self.policy(&config)?;
        let entity = self.entity(&config, &policy)?;
        let (store, stop) = connect(&config, &policy).await?;
        Ok(Whom {
            policy,
            entity,
            store,
            parts: self.key.clone(),
            _stop: stop,
            config,
        })
    }

    fn policy(&self, config: &Config) -> Result<Arc<Policy>, Stop> {
        let mut policies = config.policies.iter();
        let found = policies.find(|policy| *policy.name == *self.policy);
        found.map(Arc::clone).ok_or_else(|| {
            let names: Vec<&str> = config.policies.iter().map(|policy| &*policy.name).collect();
            Stop::usage(format!(
                "there is no policy `{}` in {}; there are {}",
                self.policy,
                self.config.display(),
                names.join(", ")
            ))
        })
    }

    fn entity(&self, config: &Config, policy: &Policy) -> Result<EntityKey, Stop> {
        let parts: Vec<_> = self
            .key
            .iter()
            .map(|part| (part.source.clone(), part.value.clone()))
            .collect();
        let secret = &config.store.key_secret;
        let found = named(&policy.key, &parts, config.client_ip.prefixes, secret);
        let entity = found.map_err(|why| {
            let key: Vec<String> = policy
                .key
                .iter()
                .filter(|source| **source != KeySource::Global)
                .map(|source| format!("--key {source}=…"))
                .collect();
            let expected = if key.is_empty() {
                "no --key, since it counts everybody together".to_owned()
            } else {
                key.join(" ")
            };
            Stop::usage(format!("policy `{}`: {why}; write {expected}", policy.name))
        })?;
        if !entity.complete && policy.on_missing_key != OnMissingKey::Empty {
            return Err(Stop::usage(format!(
                "policy `{}` counts nobody whose key is missing a part: name what stands behind the `=`",
                policy.name
            )));
        }
        Ok(entity.key)
    }
}

/// Connects to the store, where other gateways can be told of this caller through it.
async fn connect(
    config: &Config,
    policy: &Policy,
) -> Result<(ValkeyStore, watch::Sender<bool>), Stop> {
    let StoreKind::Valkey(settings) = &config.store.kind else {
        return Err(Stop::failed(
            "usage is counted in each gateway's own memory (store.kind = \"local\"), which only that gateway can reach. \
             For another limit write [overrides] and `tollgate reload`; a restart without a snapshot forgets usage",
        ));
    };
    if policy.scope == Scope::Local {
        return Err(Stop::failed(format!(
            "policy `{}` is counted in each gateway's own memory (store = \"local\"), which only that gateway can \
             reach. For another limit write [overrides] and `tollgate reload`",
            policy.name
        )));
    }
    if !config.store.key_secret_is_given {
        return Err(Stop::failed(
            "without store.key_secret_file each gateway makes up a secret of its own, and nobody else can tell how it \
             names its callers: write the file, and restart the gateways",
        ));
    }
    let prefix = Arc::clone(&config.store.prefix);
    let (store, connector) = ValkeyStore::visited(settings.clone(), prefix);
    store.set_policies(&config.policies);
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(connector.run(stopped));
    let connected = async {
        while !store.is_up() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, connected).await.map_err(|_| {
        Stop::Failed(store.last_error().map_or_else(
            || format!("no connection to {}", settings.address),
            |error| format!("{}: {error}", settings.address),
        ))
    })?;
    Ok((store, stop))
}
