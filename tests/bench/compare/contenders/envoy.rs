//! Envoy: a proxy, and its local rate limit, a filter a policy.

use std::fs;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::jobs::Limits;
use crate::process::Process;
use crate::tools::Tool;

pub(crate) fn start(envoy: &Tool, upstream: SocketAddr, limits: Limits) -> (SocketAddr, Process) {
    Process::start("envoy", |folder, address| {
        let file = folder.join("envoy.json");
        let config = config(address, upstream, limits);
        fs::write(&file, config.to_string()).unwrap();
        let mut command = envoy.command();
        command
            .arg("-c")
            .arg(file)
            .args(["--concurrency", "1", "--log-level", "error"])
            .args(["--disable-hot-restart", "--use-dynamic-base-id"]);
        command
    })
}

fn config(address: SocketAddr, upstream: SocketAddr, limits: Limits) -> Value {
    let mut filters: Vec<_> = (0..limits.count())
        .map(|number| limit(number, limits.deny()))
        .collect();
    filters.push(json!({
        "name": "envoy.filters.http.router",
        "typed_config": typed("extensions.filters.http.router.v3.Router", json!({})),
    }));
    let manager = typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        json!({
            "stat_prefix": "all",
            "route_config": { "virtual_hosts": [{
                "name": "all",
                "domains": ["*"],
                "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": "api" } }],
            }] },
            "http_filters": filters,
        }),
    );
    json!({ "static_resources": {
        "listeners": [{
            "name": "all",
            "address": socket(address),
            "filter_chains": [{ "filters": [{
                "name": "envoy.filters.network.http_connection_manager",
                "typed_config": manager,
            }] }],
        }],
        "clusters": [{
            "name": "api",
            "type": "STATIC",
            "connect_timeout": "5s",
            "load_assignment": { "cluster_name": "api", "endpoints": [{ "lb_endpoints": [
                { "endpoint": { "address": socket(upstream) } }
            ] }] },
        }],
    } })
}

fn limit(number: usize, denies: bool) -> Value {
    let bucket = if denies {
        json!({ "max_tokens": 1, "tokens_per_fill": 1, "fill_interval": "3600s" })
    } else {
        json!({ "max_tokens": 1_000_000_000, "tokens_per_fill": 1_000_000_000, "fill_interval": "1s" })
    };
    let all = json!({ "default_value": { "numerator": 100, "denominator": "HUNDRED" } });
    let settings = json!({
        "stat_prefix": format!("limit{number}"),
        "token_bucket": bucket,
        "filter_enabled": all,
        "filter_enforced": all,
    });
    json!({
        "name": format!("limit{number}"),
        "typed_config": typed("extensions.filters.http.local_ratelimit.v3.LocalRateLimit", settings),
    })
}

fn typed(name: &str, mut settings: Value) -> Value {
    settings["@type"] = json!(format!("type.googleapis.com/envoy.{name}"));
    settings
}

fn socket(address: SocketAddr) -> Value {
    json!({ "socket_address": { "address": address.ip().to_string(), "port_value": address.port() } })
}
