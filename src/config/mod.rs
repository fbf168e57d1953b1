//! TOML to the types of the house: as written (`file`), what it means (`build`), all mistakes at once ([`error`]).
//!
//! `document` puts the text together (includes, environment, defaults), `decode` reads it, `build` proves it.

mod admin_at;
mod advice;
mod build;
mod collections;
mod cost_source;
mod decode;
mod document;
mod dump;
mod effective;
pub mod error;
mod file;
mod fingerprint;
mod include;
mod interpolate;
mod items;
mod key_file;
mod key_source;
mod load;
mod moments;
mod name;
mod read;
mod shape;
mod source;
mod steps;
mod summary;
mod token;
mod token_keys;
mod tree;
mod units;
mod values;
mod wire;
mod words;

use std::net::SocketAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use admin_at::AdminAt;
pub use build::store_settings;
pub use dump::dump;
pub use effective::Effective;
pub use error::Diagnostic;
pub use fingerprint::{Fingerprint, Look};
pub use key_file::{Keys, KeysRead, Names, Seen, read_keys};
pub use load::{LoadOptions, Loaded, load, load_text};
pub use name::is_name;
pub use summary::{schema, summary};
pub use token::Token;
pub use token_keys::{NoKeys, TokenFile, read_token_keys};
pub use units::{duration_text, limit_text, read_duration, read_limit};

use http::{HeaderName, HeaderValue, StatusCode};

use crate::answer;
use crate::check::outcome::Statuses;
use crate::check::{Demand, KeySecret, OnStoreFailure, Plans, Policy};
use crate::client;
use crate::client::jwt::{Expected, KeySet};
use crate::client::sent::Place as SentIn;
use crate::route;
use crate::shed;
use crate::store::valkey::Address;
use crate::tls;

/// A whole configuration, proven.
#[derive(Debug)]
pub struct Config {
    /// `[server]`.
    pub server: Server,
    /// `[listeners]`, by name.
    pub listeners: Vec<Listener>,
    /// `[client_ip]`.
    pub client_ip: client::Settings,
    /// `[identity]`.
    pub identity: Identity,
    /// `[store]`.
    pub store: Store,
    /// `[upstreams]`, by name.
    pub upstreams: Vec<Upstream>,
    /// `[policies]`, by name; [`Policy::index`] is the position here.
    pub policies: Vec<Arc<Policy>>,
    /// `[tiers]`, `[overrides]`, `[exemptions]`, and the limits of API keys.
    pub plans: Plans,
    /// `[routes]`; [`Route::index`] counts them by name.
    pub routes: route::Table<Arc<Route>>,
    /// Whether a cost stands in the body of any route's requests.
    pub reads_bodies: bool,
    /// `[rejects]`, `default` first.
    pub rejects: Vec<answer::Reject>,
    /// `[load_shedding]`; none without the table, nor where everything is in shadow.
    pub load_shedding: Option<shed::Settings>,
    /// `[headers]`.
    pub headers: answer::Settings,
    /// `[admin]`; none without the table.
    pub admin: Option<Admin>,
    /// `[metrics]`; none without an address.
    pub metrics: Option<Metrics>,
    /// `[logs]`.
    pub logs: Logs,
}

/// `[server]`.
#[derive(Clone, Debug)]
pub struct Server {
    /// Worker threads; the machine's cores by default.
    pub threads: NonZeroUsize,
    /// How long requests may take to finish once the gateway is told to stop.
    pub grace_period: Duration,
    /// The answer where no route matches: 404 or 421.
    pub unmatched: StatusCode,
    /// Whether a request id from a trusted peer is kept.
    pub keep_request_id: bool,
    /// The largest request head in bytes.
    pub max_header: usize,
    /// The largest request body in bytes.
    pub max_body: Option<u64>,
    /// How long a client may take to send a request's head.
    pub header_timeout: Duration,
    /// How far a client may lag behind `body_min_rate`.
    pub body_timeout: Duration,
    /// The slowest pace of a body, in bytes a second; with 0 only silence counts.
    pub body_min_rate: u64,
    /// How many requests may wait in leaky buckets at once.
    pub max_waiting: usize,
    /// How many connections clients may have at once.
    pub max_connections: usize,
    /// How many of them from one address.
    pub max_connections_per_ip: Option<usize>,
}

/// `[listeners.NAME]`.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Its name.
    pub name: Arc<str>,
    /// Where it listens.
    pub address: SocketAddr,
    /// TLS to clients; in the clear if none.
    pub tls: Option<tls::Listening>,
}

/// `[identity]`. Nobody proves who they are by default.
#[derive(Debug, Default)]
pub struct Identity {
    /// By an API key.
    pub api_key: Option<ApiKeys>,
    /// By a signed token.
    pub jwt: Option<Jwt>,
}

/// `[identity] api_key`.
#[derive(Debug)]
pub struct ApiKeys {
    /// Where keys are sent.
    pub sent_in: SentIn,
    /// The file of their hashes.
    pub file: PathBuf,
    /// Who holds which; nobody any if the file was not to be read.
    pub keys: Arc<Keys>,
    /// What was read of the file, if it was.
    pub seen: Option<Seen>,
}

/// `[identity] jwt`.
#[derive(Debug)]
pub struct Jwt {
    /// Where tokens are sent.
    pub sent_in: SentIn,
    /// What they have to say.
    pub expected: Expected,
    /// The claim that names a caller's tier.
    pub tier_claim: Option<Arc<str>>,
    /// The claims that keys are read from.
    pub claims: Box<[Arc<str>]>,
    /// What they are verified with.
    pub keys: TokenKeys,
}

/// Where the keys of tokens come from.
#[derive(Debug)]
pub enum TokenKeys {
    /// From a file.
    File {
        /// Which.
        file: PathBuf,
        /// What it holds.
        kind: TokenFile,
        /// The keys in it; none if it was not to be read.
        keys: Arc<KeySet>,
        /// What was read of it, if it was.
        seen: Option<Seen>,
    },
    /// From elsewhere, while the gateway runs.
    Url {
        /// Where they are.
        url: Arc<str>,
        /// How often they are fetched.
        refresh: Duration,
    },
}

/// `[store]`.
#[derive(Clone, Debug)]
pub struct Store {
    /// Where shared policies are counted.
    pub kind: StoreKind,
    /// What policies do by default when the store gives no decision.
    pub on_failure: OnStoreFailure,
    /// How many gateways share the limits, for the local share.
    pub instances: NonZeroU32,
    /// What all keys begin with.
    pub prefix: Arc<str>,
    /// Keys the hash of entities.
    pub key_secret: KeySecret,
    /// Whether the secret is the operator's, or made up at the start.
    pub key_secret_is_given: bool,
    /// The most entries that the local store holds.
    pub max_keys: NonZeroUsize,
    /// The file that carries its usage over a restart.
    pub snapshot: Option<PathBuf>,
}

impl Store {
    /// Whether usage is spread over the servers of a cluster.
    #[must_use]
    pub const fn is_cluster(&self) -> bool {
        match &self.kind {
            StoreKind::Local => false,
            StoreKind::Valkey(settings) => matches!(settings.address, Address::Cluster(_)),
        }
    }

    /// The longest that the shared store is waited for, if there is one.
    #[must_use]
    pub fn patience(&self) -> Duration {
        match &self.kind {
            StoreKind::Local => Duration::ZERO,
            StoreKind::Valkey(settings) => settings.timeout.max(settings.connect_timeout),
        }
    }
}

/// Where shared policies are counted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum StoreKind {
    /// In this process.
    Local,
    /// In Valkey.
    Valkey(crate::store::valkey::Settings),
}

impl StoreKind {
    /// Whether this is another store than `other`: who we are there, and how long we wait, says nothing of that.
    #[must_use]
    pub fn leads_elsewhere(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local, Self::Local) => false,
            (Self::Valkey(here), Self::Valkey(there)) => here.leads_elsewhere(there),
            _ => true,
        }
    }
}

/// `[upstreams.NAME]`.
#[derive(Clone, Debug)]
pub struct Upstream {
    /// Its name.
    pub name: Arc<str>,
    /// Where it is.
    pub target: Target,
    /// TLS to its servers; in the clear if none.
    pub tls: Option<UpstreamTls>,
    /// Checks of its servers.
    pub health: Option<Health>,
    /// Its time limits.
    pub timeouts: Timeouts,
    /// The `Host` field it is sent; the client's if none.
    pub host_header: Option<HeaderValue>,
    /// How often another server is tried when one cannot be connected to.
    pub retries: usize,
}

/// Where an upstream is.
#[derive(Clone, Debug)]
pub enum Target {
    /// At these servers, `host:port`, with their weights.
    Servers(Vec<(Arc<str>, NonZeroU32)>),
    /// In the gateway: answers with what it was asked.
    Echo,
}

/// TLS to the servers of an upstream.
#[derive(Clone, Debug)]
pub struct UpstreamTls {
    /// The name that their certificates have to be for; that of each server, if none.
    pub sni: Option<Box<str>>,
    /// Whether certificates are verified.
    pub verify: bool,
    /// Whom to believe.
    pub authorities: tls::Authorities,
}

/// Checks of an upstream's servers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Health {
    /// What is asked of a server.
    pub probe: Probe,
    /// From one check to the next, give or take a tenth.
    pub interval: Duration,
    /// For a whole check.
    pub timeout: Duration,
    /// Checks that pass in a row before a server that failed is healthy.
    pub healthy_after: u32,
    /// Checks that fail in a row before a server is not.
    pub unhealthy_after: u32,
}

/// What a check asks of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Probe {
    /// To be connected to; over TLS too, if it speaks that.
    Connect,
    /// To answer a GET of this path with one of these statuses.
    Get(Box<str>, Statuses),
}

/// Time limits towards an upstream.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For the connection.
    pub connect: Duration,
    /// Between two reads.
    pub read: Duration,
    /// For a write.
    pub write: Duration,
    /// How long an unused connection is kept.
    pub idle: Duration,
}

/// `[routes.NAME]`.
#[derive(Debug)]
pub struct Route {
    /// Its name.
    pub name: Arc<str>,
    /// Its position among the routes sorted by name.
    pub index: usize,
    /// What becomes of an admitted request.
    pub action: Action,
    /// The policies.
    pub demands: Vec<Demand>,
    /// Who is turned away first.
    pub priority: shed::Priority,
    /// Taken off the path before it is forwarded.
    pub strip_prefix: Option<Arc<str>>,
    /// Added to the forwarded request.
    pub add_headers: Vec<(HeaderName, HeaderValue)>,
    /// For the whole request; none is without end.
    pub timeout: Option<Duration>,
    /// Whether it is logged.
    pub access_log: bool,
    /// Whether a cost stands in the body of its requests.
    pub reads_bodies: bool,
    /// Whether a cost stands in the body of its answers.
    pub reads_answers: bool,
}

/// What becomes of an admitted request.
#[derive(Clone, Debug)]
pub enum Action {
    /// Forwarded to this upstream, by position.
    Forward(usize),
    /// Answered with this.
    Respond(StatusCode, bytes::Bytes),
}

/// `[admin]`.
#[derive(Clone, Copy, Debug)]
pub struct Admin {
    /// Where it listens.
    pub address: SocketAddr,
    /// What to name there; always some off loopback.
    pub token: Option<Token>,
}

/// `[metrics]`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Metrics {
    /// Where it listens.
    pub address: SocketAddr,
    /// The path of the metrics.
    pub path: Box<str>,
}

/// `[logs]`.
#[derive(Clone, Copy, Debug)]
pub struct Logs {
    /// The least level that is logged.
    pub level: tracing::level_filters::LevelFilter,
    /// JSON lines, or text.
    pub json: bool,
    /// How many percent of the allowed requests are logged; denials always are.
    pub access_sample_percent: u8,
    /// How client addresses are logged.
    pub client_ip: ClientIpInLogs,
}

/// How client addresses are logged.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ClientIpInLogs {
    /// As they are.
    Full,
    /// Cut to /24 and /48.
    Masked,
    /// By the hash that the store knows.
    Hash,
}
