//! `tollgate inspect`: what one caller has used, and by which limit it is counted.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::grant::moment;
use super::whom::{self, Stop, Whom};
use crate::check::tier::{Because, Terms, Who};
use crate::check::{Check, Identity, KeySource, Limits};
use crate::clock::monotonic_now;
use crate::config::{duration_text, limit_text};
use crate::decide::{Penalised, Verdict};
use crate::store::valkey::manage::Inspected;

/// Shows what a caller has used under a policy, and whose limit is in force. Changes nothing.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    whom: whom::Asked,
    /// What the next request would take.
    #[arg(long, default_value_t = 1)]
    cost: u64,
    /// The caller's identity, where the policy does not count by it.
    #[arg(long)]
    identity: Option<String>,
    /// The caller's tier, where its API key does not say it.
    #[arg(long)]
    tier: Option<String>,
    /// The caller's address, where the policy does not count by it.
    #[arg(long)]
    ip: Option<IpAddr>,
    /// The route of its requests.
    #[arg(long)]
    route: Option<String>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints it. 0 done, 1 failed, 2 wrong usage, 78 wrong configuration.
pub(super) fn run(args: &Args) -> ExitCode {
    whom::run(inspect(args))
}

async fn inspect(args: &Args) -> Result<(), Stop> {
    let whom = args.whom.find().await?;
    whom.store.read_grants().await.map_err(Stop::failed)?;
    let granted = whom.store.granted();
    let identity = args.identity(&whom);
    let named_ip = whom.named(|source| matches!(source, KeySource::Ip | KeySource::IpPrefix(_)));
    let named_ip = named_ip.and_then(|ip| ip.parse().ok());
    let terms = Terms {
        plans: &whom.config.plans,
        granted: granted
            .as_deref()
            .map(|it| (&it.granted, it.now(monotonic_now()))),
    };
    let standing = terms.of(Who {
        ip: args.ip.or(named_ip),
        identity: &identity,
        route: args.route.as_deref().unwrap_or_default(),
    });
    let (limits, because) = standing.limits(&whom.policy, whom.entity);
    let check = Check {
        limits,
        rule: &limits.rule,
        ..whom.check(args.cost)
    };
    let seen = Seen {
        whom: &whom,
        limits,
        because,
        is_exempt: standing.is_exempt_from(&whom.policy),
        cost: args.cost,
        found: whom.store.inspect(&check).await.map_err(Stop::failed)?,
    };
    let text = if args.json {
        format!("{:#}\n", seen.json())
    } else {
        seen.text()
    };
    // Nobody is left to tell if standard output is gone.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

impl Args {
    /// The caller's identity, as far as the command names it.
    fn identity(&self, whom: &Whom) -> Identity {
        let named = || whom.named(|source| *source == KeySource::Identity);
        let id = self.identity.as_deref().or_else(named);
        let keys = whom.config.identity.api_key.as_ref().map(|it| &it.keys);
        let holder = keys.and_then(|keys| {
            let mut holders = keys.holders();
            holders.find(|holder| id.is_some() && holder.id.as_deref() == id)
        });
        let mut identity = holder.map_or_else(Identity::default, |holder| Identity::clone(holder));
        identity.id = id.map(Arc::from);
        if let Some(tier) = &self.tier {
            identity.tier = Some(tier.as_str().into());
        }
        identity
    }
}

/// What was found of a caller.
struct Seen<'s> {
    whom: &'s Whom,
    limits: &'s Arc<Limits>,
    because: Because<'s>,
    is_exempt: bool,
    cost: u64,
    found: Inspected,
}

impl Seen<'_> {
    /// Units that count now.
    fn used(&self) -> u64 {
        let capacity = self.limits.rule.capacity();
        capacity.saturating_sub(self.found.found.remaining)
    }

    /// How long until nothing of that counts any more (µs).
    fn reset_after_us(&self) -> u64 {
        // A window by the clock ends whether anything was used in it or not.
        if self.used() == 0 {
            return 0;
        }
        self.found.found.reset_after_us
    }

    fn limit(&self) -> String {
        limit_text(self.limits.limit())
    }

    fn text(&self) -> String {
        let Inspected {
            at,
            found,
            would_be,
        } = self.found;
        let rule = &self.limits.rule;
        let mut text = format!("{}\n", self.whom);
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "  {name:<10} {value}");
        };
        if self.is_exempt {
            line(
                "exempt",
                "an exemption spares it: not counted, not denied".to_owned(),
            );
        }
        let because = match self.because {
            Because::Policy => "the policy's own".to_owned(),
            Because::Tier(name) => format!("by tier {name}"),
            Because::OwnKey => "by the file of API keys".to_owned(),
            Because::Override(name) => format!("by override {name}"),
            Because::Grant(ends_at) => format!(
                "granted until {}, for {} more",
                moment(ends_at),
                span(ends_at.micros_since(at))
            ),
        };
        let burst = match rule.capacity() {
            capacity if capacity == rule.count().get() => String::new(),
            capacity => format!(", {capacity} at once"),
        };
        line("limit", format!("{}{burst}, {because}", self.limit()));
        line(
            "used",
            format!(
                "{} of {}, {} left",
                self.used(),
                rule.capacity(),
                found.remaining
            ),
        );
        line(
            "reset",
            match self.reset_after_us() {
                0 => "nothing is used".to_owned(),
                _ if rule.lends() => "as the requests end".to_owned(),
                after => format!("nothing counts any more in {}", span(after)),
            },
        );
        let is_punished = would_be.penalised == Penalised::Runs;
        let next = match (would_be.verdict, would_be.retry_after_us) {
            (Verdict::Allow, _) if would_be.delay_us > 0 => {
                format!("passes, after {} in the queue", span(would_be.delay_us))
            }
            (Verdict::Allow, _) => "passes".to_owned(),
            (Verdict::Deny, Some(wait)) if is_punished => {
                format!("is denied for {} more, by the penalty", span(wait))
            }
            (Verdict::Deny, Some(_)) if rule.lends() => {
                "is denied until one of them ends".to_owned()
            }
            (Verdict::Deny, Some(wait)) => format!("is denied for {} more", span(wait)),
            (Verdict::Deny, None) => "never passes".to_owned(),
        };
        line("next", format!("a request that takes {} {next}", self.cost));
        text
    }

    fn json(&self) -> serde_json::Value {
        let Inspected {
            at,
            found,
            would_be,
        } = self.found;
        let (by, name, ends_at) = match self.because {
            Because::Policy => ("policy", None, None),
            Because::Tier(name) => ("tier", Some(name), None),
            Because::OwnKey => ("key", None, None),
            Because::Override(name) => ("override", Some(name), None),
            Because::Grant(ends_at) => ("grant", None, Some(ends_at)),
        };
        let rule = &self.limits.rule;
        json!({
            "policy": &*self.whom.policy.name,
            "key_hash": self.whom.entity.short_hash(),
            "at": moment(at),
            "kind": rule.kind(),
            "limit": self.limit(),
            "capacity": rule.capacity(),
            "limit_by": by,
            "limit_name": name,
            "grant_ends_at": ends_at.map(moment),
            "grant_ends_after_ms": ends_at.map(|ends_at| millis(ends_at.micros_since(at))),
            "exempt": self.is_exempt,
            "used": self.used(),
            "remaining": found.remaining,
            "reset_after_ms": millis(self.reset_after_us()),
            "cost": self.cost,
            "allowed": would_be.verdict == Verdict::Allow,
            "retry_after_ms": would_be.retry_after_us.map(millis),
            "delay_ms": millis(would_be.delay_us),
            "penalty": would_be.penalised == Penalised::Runs,
        })
    }
}

/// Rounded up: a time is never told too early.
const fn millis(micros: u64) -> u64 {
    micros.div_ceil(1000)
}

fn span(us: u64) -> String {
    duration_text(Duration::from_millis(millis(us)))
}
