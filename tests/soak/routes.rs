//! What is asked for, and the limits that stand before it.

use std::fmt::Write as _;
use std::time::Duration;

use crate::support::gateway::secret_file;

/// Gateways, each of which knows that they are so many.
pub(crate) const GATEWAYS: usize = 3;

/// Callers, told apart by address. Every policy counts each for itself.
pub(crate) const CALLERS: usize = 2;

/// For a decision of the store. Far above what a busy machine takes, so that only a fault is a failure.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(500);

/// What a policy says of a failed store; and whether it needs one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum WithoutStore {
    Local,
    Allow,
    Deny,
    /// It counts in process always.
    Unshared,
}

impl WithoutStore {
    const fn line(self) -> &'static str {
        match self {
            Self::Local => "on_store_failure = \"local\"",
            Self::Allow => "on_store_failure = \"allow\"",
            Self::Deny => "on_store_failure = \"deny\"",
            Self::Unshared => "store = \"local\"",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Unshared => "unshared",
        }
    }
}

/// A policy that denies some of what is sent.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) name: String,
    pub(crate) kind: &'static str,
    pub(crate) limit: u64,
    pub(crate) window: Duration,
    pub(crate) burst: u64,
    pub(crate) without_store: WithoutStore,
}

/// A route, with what is sent to it.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) name: String,
    pub(crate) target: String,
    pub(crate) policies: Vec<Policy>,
    /// Sizes of bodies that are uploaded; none for a GET.
    pub(crate) uploads: &'static [usize],
}

impl Route {
    fn with(name: &str, target: &str, policies: Vec<Policy>) -> Self {
        Self {
            name: name.to_owned(),
            target: target.to_owned(),
            policies,
            uploads: &[],
        }
    }

    /// What its policies say of a failed store, the same for all of them; `None` without policy.
    pub(crate) fn without_store(&self) -> Option<WithoutStore> {
        self.policies.first().map(|policy| policy.without_store)
    }

    /// Whether the shared store decides it.
    pub(crate) fn is_shared(&self) -> bool {
        self.without_store()
            .is_some_and(|without| without != WithoutStore::Unshared)
    }
}

const KINDS: [&str; 5] = [
    "fixed-window",
    "sliding-log",
    "sliding-counter",
    "token-bucket",
    "leaky-bucket",
];

/// Below what each caller sends, so that every policy denies, and not a multiple of the gateways.
const LIMIT: u64 = 10;
const WINDOW: Duration = Duration::from_secs(2);

/// A queue of so many; the last of them waits for a second at most.
const QUEUE: u64 = 5;

fn policy(name: &str, kind: &'static str, without_store: WithoutStore) -> Policy {
    let burst = if kind == "leaky-bucket" { QUEUE } else { LIMIT };
    Policy {
        name: name.to_owned(),
        kind,
        limit: LIMIT,
        window: WINDOW,
        burst,
        without_store,
    }
}

/// All kinds with all answers to a failed store; several policies at once; none; a slow API; uploads.
pub(crate) fn routes() -> Vec<Route> {
    use WithoutStore::{Allow, Deny, Local, Unshared};
    let mut routes = Vec::new();
    for kind in KINDS {
        for without in [Local, Allow, Deny] {
            let name = format!("{kind}-{}", without.name());
            routes.push(Route::with(
                &name,
                &format!("/{name}"),
                vec![policy(&name, kind, without)],
            ));
        }
    }
    // Each gateway counts for itself, and sees a third of the requests.
    let alone = Policy {
        limit: 3,
        burst: 2,
        ..policy("alone", "token-bucket", Unshared)
    };
    routes.push(Route::with("alone", "/alone", vec![alone]));
    routes.push(Route::with("plain", "/plain", Vec::new()));
    let slow = policy("slow", "sliding-log", Deny);
    routes.push(Route::with("slow", "/slow/80", vec![slow]));
    let both = vec![
        Policy {
            limit: 4,
            window: Duration::from_millis(500),
            ..policy("both-short", "fixed-window", Local)
        },
        policy("both-long", "sliding-log", Local),
    ];
    routes.push(Route::with("both", "/both", both));
    let upload = policy("upload", "strict", Local);
    routes.push(Route {
        uploads: &[2_000, 200_000],
        ..Route::with("upload", "/upload", vec![upload])
    });
    routes
}

/// The configuration of a gateway that reaches Valkey at `store`. `legacy` is what a reload changes.
pub(crate) fn config(store: &str, origin: &str, legacy: &str) -> String {
    let mut text = format!(
        "[server]\nthreads = 2\n\
         [client_ip]\ntrusted_proxies = [\"127.0.0.0/8\"]\n\
         [headers]\nlegacy = \"{legacy}\"\n\
         [store]\nkind = \"valkey\"\nurl = \"valkey://{store}\"\ntimeout = \"{}ms\"\ninstances = {GATEWAYS}\n\
         key_secret_file = \"{}\"\n\
         [upstreams.api]\nservers = [\"{origin}\"]\ntimeouts.idle = \"2s\"\n",
        TIMEOUT.as_millis(),
        secret_file().display(),
    );
    for route in routes() {
        let names: Vec<_> = route.policies.iter().map(|policy| &policy.name).collect();
        writeln!(
            text,
            "[routes.{}]\nmatch = {{ path = \"{}\" }}\nupstream = \"api\"\npolicies = {names:?}",
            route.name, route.target
        )
        .unwrap();
        for policy in &route.policies {
            write_policy(&mut text, policy);
        }
    }
    text
}

fn write_policy(text: &mut String, policy: &Policy) {
    let (kind, more) = match policy.kind {
        "strict" => ("sliding-counter", "strict = true\n".to_owned()),
        kind if kind.ends_with("bucket") => (kind, format!("burst = {}\n", policy.burst)),
        kind => (kind, String::new()),
    };
    writeln!(
        text,
        "[policies.{}]\nkind = \"{kind}\"\nlimit = \"{}/{}ms\"\nkey = \"ip\"\n{more}{}",
        policy.name,
        policy.limit,
        policy.window.as_millis(),
        policy.without_store.line()
    )
    .unwrap();
}
