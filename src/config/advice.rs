//! What people write who come from elsewhere, or from a later release; and what to write here instead.

/// What is known of a field or word that does not exist.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Hint {
    /// It is this one under another name.
    Meant(&'static str),
    /// It is planned, and not there yet.
    Later,
    /// Say this. It stands for the field `instead_of`, which is then not missing.
    Help {
        help: String,
        instead_of: Option<&'static str>,
    },
}

impl Hint {
    fn help(help: impl Into<String>, instead_of: Option<&'static str>) -> Self {
        Self::Help {
            help: help.into(),
            instead_of,
        }
    }
}

/// Hints for an unknown field of the table at `path`.
pub(crate) fn field(path: &[String], key: &str) -> Option<Hint> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    Some(match (path.as_slice(), key) {
        ([], "tracing")
        | (["listeners", _], "h2" | "h2c" | "proxy_protocol")
        | (["listeners", _, "tls"], "client_ca")
        | (["store"], "pool")
        | (["upstreams", _], "h2" | "max_connections" | "hash_by")
        | (["policies", _], "lease")
        | (["routes", _], "format" | "cors")
        | (["metrics"], "native_histograms") => Hint::Later,
        (["routes", _], "path" | "paths" | "host" | "hosts" | "methods" | "headers" | "query") => {
            Hint::help(
                format!("it belongs in match = {{ {key} = … }}"),
                Some("match"),
            )
        }
        (["routes", _], "method") => {
            Hint::help("it belongs in match = { methods = [ … ] }", Some("match"))
        }
        (["routes", _], "rate" | "limit" | "limits" | "rate_limit") => Hint::help(
            "limits are policies: policies = [\"NAME\"]",
            Some("policies"),
        ),
        (["routes", _], "policy") => Hint::Meant("policies"),
        (["routes", _], "backend" | "upstreams") => Hint::Meant("upstream"),
        (["policies", _], "rate") => {
            Hint::help("the window is part of limit: \"100/min\"", Some("limit"))
        }
        (["policies", _], "window" | "period" | "interval" | "per") => {
            Hint::help("the window is part of limit: \"100/min\"", None)
        }
        (["policies", _], "algorithm" | "type") => Hint::Meant("kind"),
        (["overrides" | "exemptions", _], "identities") => Hint::Meant("identity"),
        (["overrides" | "exemptions", _], "ips" | "cidr" | "network" | "networks") => {
            Hint::Meant("ip")
        }
        (["exemptions", _], "routes") => Hint::Meant("route"),
        (["exemptions", _], "policy") => Hint::Meant("policies"),
        (["tiers" | "overrides", _], "policies" | "limit") => Hint::Meant("limits"),
        (["listeners", _, "tls"], "certificate" | "cert_file") => Hint::Meant("cert"),
        (["listeners", _, "tls"], "key_file") => Hint::Meant("key"),
        (["listeners", _, "tls"], "min_version") => Hint::Meant("min"),
        (["upstreams", _, "tls"], "ca_file") => Hint::Meant("ca"),
        (["upstreams", _, "tls"], "server_name" | "name") => Hint::Meant("sni"),
        (["upstreams", _], "health_check" | "healthcheck" | "check") => Hint::Meant("health"),
        (["upstreams", _], "address" | "addr" | "url" | "targets") => Hint::Meant("servers"),
        (["listeners", _], "listen" | "bind" | "addr") => Hint::Meant("address"),
        _ => return None,
    })
}

/// Hints for an unknown word at the field that `path` leads to.
pub(crate) fn word(path: &[String], found: &str) -> Option<Hint> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    Some(match (path.as_slice(), found) {
        (["store", "kind"], "redis" | "keydb" | "rediss" | "valkeys") => Hint::Meant("valkey"),
        (["store", "kind"], "memory" | "in-memory") => Hint::Meant("local"),
        (["policies", _, "kind"], "sliding-window") => Hint::Meant("sliding-counter"),
        (["policies", _, "kind"], "concurrent" | "in-flight" | "connections") => {
            Hint::Meant("concurrency")
        }
        (["logs", "level"], "warning") => Hint::Meant("warn"),
        (["policies", _, "mode"] | ["mode"], "dry-run") => Hint::Meant("shadow"),
        _ => return None,
    })
}
