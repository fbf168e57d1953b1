//! Tollgate as an operator runs it, with a thread and no access log.

use std::fmt::Write;
use std::net::SocketAddr;

use crate::jobs::Limits;
use crate::support::gateway::{Gateway, secret_file};
use crate::support::valkey::Valkey;

pub(crate) fn start(upstream: SocketAddr, limits: Limits, valkey: Option<&Valkey>) -> Gateway {
    let mut config = base(upstream, valkey);
    let key = if limits.are_shared() {
        "header:x-client"
    } else {
        "ip"
    };
    let mut names = Vec::new();
    for (number, window) in ["s", "min", "h"].iter().take(limits.count()).enumerate() {
        let limit = if limits.deny() {
            "1/366d".to_owned()
        } else {
            format!("{}/{window}", 1_000_000 * [1, 60, 3_600_u64][number])
        };
        config.push_str(&policy(window, &limit, key));
        names.push(format!("\"{window}\""));
    }
    config.push_str(&route("all", "/*", &names.join(", ")));
    ready(&config, valkey)
}

/// The tables that all configurations have. A store that fails is told by 503, so that it does not go unnoticed; it has
/// as long as that of nginx and Lua, since on few cores at saturation anything may take a while.
pub(crate) fn base(upstream: SocketAddr, valkey: Option<&Valkey>) -> String {
    let mut config = format!(
        "[server]\nthreads = 1\n[upstreams.api]\nservers = [\"{upstream}\"]\n[store]\nkey_secret_file = \"{}\"\n",
        secret_file().display()
    );
    if let Some(valkey) = valkey {
        let address = valkey.address();
        let _ = write!(
            config,
            "kind = \"valkey\"\nurl = \"valkey://{address}\"\non_failure = \"deny\"\ntimeout = \"1s\"\n"
        );
    }
    config
}

pub(crate) fn policy(name: &str, limit: &str, key: &str) -> String {
    let missing = if key == "ip" {
        ""
    } else {
        "on_missing_key = \"deny\"\n"
    };
    format!(
        "[policies.{name}]\nkind = \"token-bucket\"\nlimit = \"{limit}\"\nkey = \"{key}\"\n{missing}"
    )
}

/// A route with policies, by their names in quotes.
pub(crate) fn route(name: &str, path: &str, policies: &str) -> String {
    format!(
        "[routes.{name}]\nmatch = {{ path = \"{path}\" }}\nupstream = \"api\"\naccess_log = false\npolicies = [{policies}]\n"
    )
}

/// Starts it, and waits until it has its store.
pub(crate) fn ready(config: &str, valkey: Option<&Valkey>) -> Gateway {
    let gateway = Gateway::start(config);
    if valkey.is_some() {
        gateway.await_metric("tollgate_store_up", 1.0);
    }
    gateway
}
