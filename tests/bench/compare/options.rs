//! What may be said on the command line.

use std::net::SocketAddr;

use clap::Parser;

const CONTENDERS: [&str; 6] = [
    "tollgate",
    "pingora",
    "nginx",
    "haproxy",
    "envoy",
    "nginx-lua",
];

const TASKS: [&str; 9] = [
    "plain",
    "local-1",
    "local-3",
    "shared-1",
    "shared-1-many",
    "shared-3",
    "shared-3-many",
    "denied-local",
    "denied-shared",
];

/// Compares Tollgate with other proxies and limiters.
#[derive(Debug, Parser)]
pub(crate) struct Options {
    /// How often each job is measured.
    #[arg(long, default_value_t = 5, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=100))]
    pub(crate) rounds: usize,
    /// How long each time, in seconds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub(crate) seconds: u32,
    /// Connections of the load.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) connections: u32,
    /// Only these contenders.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = CONTENDERS)]
    pub(crate) only: Vec<String>,
    /// Only these tasks.
    #[arg(long, value_delimiter = ',', value_name = "NAME", value_parser = TASKS)]
    pub(crate) tasks: Vec<String>,
    /// Also: what a million callers take of Tollgate's memory.
    #[arg(long)]
    pub(crate) keys: bool,
    /// To be the bare Pingora proxy instead: where it listens, and where it sends to.
    #[arg(long, hide = true, num_args = 2)]
    pub(crate) bare_proxy: Option<Vec<SocketAddr>>,
    /// Cargo says so.
    #[arg(long, hide = true)]
    bench: bool,
}
