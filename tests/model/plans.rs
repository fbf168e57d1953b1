//! Whose limits are others than the policies', and who has none.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use http::HeaderMap;
use ipnet::{IpNet, Ipv4Net};
use proptest::prelude::*;
use tollgate::check::cost::{Body, Price};
use tollgate::check::entity::Caller;
use tollgate::check::grant::Grant;
use tollgate::check::tier::{Because, Change, Changes, Exempted, Matched, Terms, Who};
use tollgate::check::{
    Demand, Generation, Granted, Identity, KeySecret, Limits, NewLimit, Plans, Policy, Unfit, Use,
    demand,
};
use tollgate::client::address::Prefixes;
use tollgate::config::{Config, LoadOptions, load_text};
use tollgate::decide::{Cost, Timestamp};
use tollgate::request::RequestView;

use crate::support::policies::{entity, limits, policy, rule};
use crate::support::traces::limit;

const MINUTE_US: u64 = 60_000_000;

/// Every one of the few policies that there are.
const POLICIES: usize = 3;

/// What says that a caller is not limited as the policies say.
#[derive(Clone, Debug)]
enum Saying {
    Exempt(Whom, Option<BTreeSet<usize>>),
    Grant(u64, usize, u64),
    Override(Whom, usize),
    Own(usize),
    Tier(u8, usize),
}

/// Whom an override or an exemption names.
#[derive(Clone, Debug)]
enum Whom {
    Network(u8, u8),
    Identity(u8),
    Route(u8),
}

#[derive(Clone, Debug)]
struct Asked {
    address: Option<u8>,
    identity: Option<u8>,
    tier: Option<u8>,
    route: u8,
    entity: u64,
    policy: usize,
    now: u64,
}

fn whom(with_routes: bool) -> impl Strategy<Value = Whom> {
    prop_oneof![
        3 => (0u8..16, 24u8..=32).prop_map(|(last, length)| Whom::Network(last, length)),
        1 => (0u8..3).prop_map(Whom::Identity),
        u32::from(with_routes) => (0u8..2).prop_map(Whom::Route),
    ]
}

fn saying() -> impl Strategy<Value = Saying> {
    let policy = 0..POLICIES;
    let policies = proptest::option::of(proptest::collection::btree_set(0..POLICIES, 1..3));
    prop_oneof![
        1 => (whom(true), policies).prop_map(|(whom, policies)| Saying::Exempt(whom, policies)),
        1 => (0u64..3, policy.clone(), 0u64..4).prop_map(|(e, p, end)| Saying::Grant(e, p, end)),
        4 => (whom(false), policy.clone()).prop_map(|(whom, p)| Saying::Override(whom, p)),
        1 => policy.clone().prop_map(Saying::Own),
        1 => (0u8..2, policy).prop_map(|(tier, p)| Saying::Tier(tier, p)),
    ]
}

fn asked() -> impl Strategy<Value = Asked> {
    let few = |end: u8| proptest::option::weighted(0.8, 0..end);
    (
        few(16),
        few(3),
        few(2),
        0u8..2,
        0u64..3,
        0..POLICIES,
        0u64..4,
    )
        .prop_map(
            |(address, identity, tier, route, entity, policy, now)| Asked {
                address,
                identity,
                tier,
                route,
                entity,
                policy,
                now,
            },
        )
}

fn network(last: u8, length: u8) -> IpNet {
    let ip = Ipv4Addr::new(10, 0, 0, last);
    Ipv4Net::new(ip, length).unwrap().trunc().into()
}

fn name(letter: &str, number: u8) -> Arc<str> {
    format!("{letter}{number}").into()
}

/// The limits of the saying at this place: told apart by their count.
fn limits_of(place: usize) -> Arc<Limits> {
    let count = 1_000 + u64::try_from(place).unwrap();
    limits(rule("sliding-log", count, MINUTE_US, 1))
}

/// Those of equal right are refused when a configuration is read: of each, the first stays.
fn without_ties(sayings: Vec<Saying>) -> Vec<Saying> {
    let mut seen = BTreeSet::new();
    let key = |saying: &Saying| match saying {
        Saying::Exempt(..) => None,
        Saying::Grant(entity, policy, _) => Some(format!("g {entity} {policy}")),
        Saying::Override(Whom::Network(last, length), policy) => {
            Some(format!("o {} {policy}", network(*last, *length)))
        }
        Saying::Override(whom, policy) => Some(format!("o {whom:?} {policy}")),
        Saying::Own(policy) => Some(format!("k {policy}")),
        Saying::Tier(tier, policy) => Some(format!("t {tier} {policy}")),
    };
    sayings
        .into_iter()
        .filter(|saying| key(saying).is_none_or(|key| seen.insert(key)))
        .collect()
}

/// Limits of a caller's own key, by policy.
type Own = Vec<(Arc<str>, Arc<Limits>)>;

/// The plans that these are, the grants, and the limits of the caller's own key.
fn built(sayings: &[Saying]) -> (Plans, Granted, Own) {
    let mut plans = Plans::default();
    let (mut networks, mut identities) = (Vec::new(), Vec::new());
    let (mut spared_networks, mut spared) = (Vec::new(), Vec::new());
    let (mut granted, mut own) = (Granted::default(), Vec::new());
    let mut tiers: BTreeMap<u8, Vec<(usize, Change)>> = BTreeMap::new();
    for (place, saying) in sayings.iter().enumerate() {
        let change = Change {
            limits: limits_of(place),
            by: "somebody".into(),
        };
        match saying {
            Saying::Exempt(whom, policies) => {
                let exempted = policies.clone().map_or(Exempted::All, Exempted::Some);
                match whom {
                    Whom::Network(last, length) => {
                        spared_networks.push((network(*last, *length), exempted));
                    }
                    Whom::Identity(id) => spared.push((name("i", *id), exempted)),
                    Whom::Route(route) => match plans.exempt_routes.get_mut(&name("r", *route)) {
                        Some(same) => same.add(exempted),
                        None => drop(plans.exempt_routes.insert(name("r", *route), exempted)),
                    },
                }
            }
            Saying::Grant(number, policy, end) => {
                let grant = Grant {
                    policy: format!("p{policy}").into(),
                    generation: Generation(0x00c0_ffee),
                    limits: limits_of(place),
                    ends_at: Timestamp::from_micros(*end),
                };
                granted.add(entity(*number), grant);
            }
            Saying::Override(whom, policy) => {
                let changes: Changes = [(*policy, change)].into_iter().collect();
                match whom {
                    Whom::Network(last, length) => {
                        networks.push((network(*last, *length), changes));
                    }
                    Whom::Identity(id) => identities.push((name("i", *id), changes)),
                    Whom::Route(_) => unreachable!("no override has a route"),
                }
            }
            Saying::Own(policy) => {
                own.push((format!("p{policy}").into(), limits_of(place)));
            }
            Saying::Tier(tier, policy) => tiers.entry(*tier).or_default().push((*policy, change)),
        }
    }
    plans.tiers = tiers
        .into_iter()
        .map(|(tier, changes)| (name("t", tier), changes.into_iter().collect()))
        .collect();
    plans.overrides = Matched::new(identities, networks, Changes::add);
    plans.exemptions = Matched::new(spared, spared_networks, Exempted::add);
    (plans, granted, own)
}

/// What the order of precedence says, read off the list: `None` is exempt, and what counts is told by its place.
fn expected(sayings: &[Saying], asked: &Asked) -> Option<Option<usize>> {
    let is_one = |whom: &Whom| match whom {
        Whom::Network(last, length) => asked.address.is_some_and(|address| {
            network(*last, *length).contains(&IpAddr::from(Ipv4Addr::new(10, 0, 0, address)))
        }),
        Whom::Identity(id) => asked.identity == Some(*id),
        Whom::Route(route) => asked.route == *route,
    };
    let rank = |saying: &Saying| match saying {
        Saying::Exempt(whom, policies)
            if is_one(whom)
                && policies
                    .as_ref()
                    .is_none_or(|policies| policies.contains(&asked.policy)) =>
        {
            Some(100)
        }
        Saying::Grant(entity, policy, end)
            if (*entity, *policy) == (asked.entity, asked.policy) && *end > asked.now =>
        {
            Some(90)
        }
        Saying::Override(whom, policy) if is_one(whom) && *policy == asked.policy => {
            Some(match whom {
                Whom::Network(_, length) => 40 + length,
                _ => 80,
            })
        }
        Saying::Own(policy) if *policy == asked.policy => Some(30),
        Saying::Tier(tier, policy) if asked.tier == Some(*tier) && *policy == asked.policy => {
            Some(20)
        }
        _ => None,
    };
    let ranked = sayings.iter().enumerate();
    let first = ranked
        .filter_map(|(place, saying)| Some((rank(saying)?, place)))
        .max_by_key(|(rank, _)| *rank);
    match first {
        Some((100, _)) => None,
        first => Some(first.map(|(_, place)| place)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_first_in_the_order_of_precedence_counts(
        sayings in proptest::collection::vec(saying(), 0..12).prop_map(without_ties),
        asked in asked(),
    ) {
        let (plans, granted, own) = built(&sayings);
        let identity = Identity {
            id: asked.identity.map(|id| name("i", id)),
            tier: asked.tier.map(|tier| name("t", tier)),
            limits: own.into(),
            ..Identity::default()
        };
        let route = name("r", asked.route);
        let who = Who {
            ip: asked.address.map(|address| Ipv4Addr::new(10, 0, 0, address).into()),
            identity: &identity,
            route: &route,
        };
        let policy = Policy {
            index: asked.policy,
            ..policy(&format!("p{}", asked.policy), rule("sliding-log", 7, MINUTE_US, 1))
        };
        let now = Timestamp::from_micros(asked.now);
        let terms = Terms { plans: &plans, granted: Some((&granted, now)) };
        let standing = terms.of(who);
        let found = (!standing.is_exempt_from(&policy))
            .then(|| standing.limits(&policy, entity(asked.entity)));
        let count = |limits: &Limits| limits.rule.count().get();
        let place = |count: u64| count.checked_sub(1_000).map(|place| usize::try_from(place).unwrap());
        prop_assert_eq!(found.map(|(limits, _)| place(count(limits))), expected(&sayings, &asked));
        if let Some((limits, because)) = found {
            prop_assert_eq!(because == Because::Policy, count(limits) == 7);
        }
    }
}

fn config(text: &str) -> Config {
    let options = LoadOptions {
        io: false,
        env: BTreeMap::new(),
    };
    let loaded = load_text(Path::new("plans.toml"), text, &options);
    let why: Vec<String> = loaded.diagnostics.iter().map(ToString::to_string).collect();
    loaded
        .config
        .unwrap_or_else(|| panic!("{}", why.join("\n")))
}

const SHOP: &str = r#"
[upstreams.app]
servers = ["127.0.0.1:9000"]

[policies.bucket]
kind = "token-bucket"
limit = "20/min"
burst = 5
key = "ip"

[policies.log]
kind = "sliding-log"
limit = "10/min"
key = "header:x-user"
on_missing_key = "deny"

[tiers.pro]
limits = { bucket = "1000/h", log = "200/min" }

[overrides.all]
ip = ["192.0.2.0/24"]
limits = { bucket = "100/min", log = "20/min" }

[overrides.one]
ip = ["192.0.2.7"]
limits = { bucket = "300/min" }

[exemptions.monitoring]
ip = ["10.9.0.0/16"]
policies = ["log"]

[exemptions.health]
route = ["health"]

[routes.health]
match = { path = "/health" }
upstream = "app"
policies = ["bucket", "log"]

[routes.rest]
match = { path = "/*" }
upstream = "app"
policies = ["bucket", "log"]
"#;

/// Of a request on a route: checks with their limits, then those that are spared, and those whose key is missing.
fn on_route(config: &Config, route: &str, ip: &str, tier: Option<&str>) -> String {
    let headers = HeaderMap::new();
    let identity = Identity {
        tier: tier.map(Arc::from),
        ..Identity::default()
    };
    let caller = Caller {
        request: RequestView {
            method: "GET",
            host: "",
            path: "/",
            query: None,
            headers: &headers,
        },
        client_ip: ip.parse().ok(),
        prefixes: Prefixes::default(),
        identity: &identity,
        route,
        params: &[],
    };
    let terms = Terms {
        plans: &config.plans,
        granted: None,
    };
    let demands: Vec<Demand> = config
        .policies
        .iter()
        .map(|policy| {
            Demand::One(Use {
                policy: Arc::clone(policy),
                price: Price::Fixed(Cost::ONE),
            })
        })
        .collect();
    let secret = KeySecret::new([0; 32]);
    let found = demand(&demands, &caller, Body::None, &secret, terms);
    let checks = found.checks.iter().map(|check| {
        let limit = check.limits.rule.limit().unwrap();
        assert_eq!(check.rule, &check.limits.rule);
        let seconds = limit.window_us.get() / 1_000_000;
        format!("{} {}/{seconds}s", check.policy.name, limit.count)
    });
    let names = |word: &str, policies: &[&Policy]| -> Vec<String> {
        let names = policies.iter();
        names
            .map(|policy| format!("{word} {}", policy.name))
            .collect()
    };
    let mut all: Vec<String> = checks.collect();
    all.extend(names("exempt", &found.exempt));
    all.extend(names("missing", &found.missing));
    all.join(", ")
}

#[test]
fn a_configuration_says_whose_limits_are_others() {
    let config = config(SHOP);
    for (route, ip, tier, expected) in [
        ("rest", "198.51.100.1", None, "bucket 20/60s, missing log"),
        (
            "rest",
            "198.51.100.1",
            Some("pro"),
            "bucket 1000/3600s, missing log",
        ),
        (
            "rest",
            "198.51.100.1",
            Some("unknown"),
            "bucket 20/60s, missing log",
        ),
        (
            "rest",
            "192.0.2.1",
            Some("pro"),
            "bucket 100/60s, missing log",
        ),
        ("rest", "192.0.2.7", None, "bucket 300/60s, missing log"),
        (
            "rest",
            "::ffff:192.0.2.7",
            None,
            "bucket 300/60s, missing log",
        ),
        // Whom an exemption spares is not asked for the key.
        ("rest", "10.9.1.1", None, "bucket 20/60s, exempt log"),
        ("health", "198.51.100.1", None, "exempt bucket, exempt log"),
        ("rest", "", None, "missing bucket, missing log"),
    ] {
        let found = on_route(&config, route, ip, tier);
        let expected = expected.replace("missing bucket, ", "");
        assert_eq!(found, expected, "{route} {ip} {tier:?}");
    }
}

#[test]
fn a_policy_whose_callers_may_differ_in_their_limits_knows_it() {
    let with = |key: &str, plans: &str| {
        let text = format!(
            "[upstreams.app]\nservers = [\"127.0.0.1:9000\"]\n\
             [policies.p]\nkind = \"token-bucket\"\nlimit = \"10/s\"\nkey = {key}\non_missing_key = \"skip\"\n\
             [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"app\"\npolicies = [\"p\"]\n{plans}\n"
        );
        config(&text).policies[0].is_uneven()
    };
    let tier = "[tiers.pro]\nlimits = { p = \"20/s\" }";
    let network = |ip: &str| format!("[overrides.o]\nip = [\"{ip}\"]\nlimits = {{ p = \"20/s\" }}");
    for (key, plans, uneven, reason) in [
        ("\"ip\"", "", false, "nobody has others"),
        ("\"ip\"", tier, true, "of one address some are on the tier"),
        (
            "\"ip\"",
            &network("192.0.2.0/24"),
            false,
            "all of an address",
        ),
        (
            "\"ip\"",
            &network("2001:db8::/64"),
            false,
            "all of a network that counts as one",
        ),
        ("\"ip\"", &network("2001:db8::1"), true, "some of it"),
        (
            "\"ip/24\"",
            &network("192.0.2.1"),
            true,
            "some of a wider one",
        ),
        (
            "\"ip/48\"",
            &network("192.0.2.1"),
            false,
            "a prefix that no IPv4 address has",
        ),
        (
            "[\"header:x-a\", \"ip\"]",
            &network("192.0.2.1"),
            false,
            "each part tells apart",
        ),
        (
            "\"header:x-a\"",
            &network("192.0.2.1"),
            true,
            "one user at two addresses",
        ),
        (
            "\"global\"",
            &network("192.0.2.1"),
            true,
            "everybody together",
        ),
    ] {
        assert_eq!(with(key, plans), uneven, "{key} {reason}");
    }
}

#[test]
fn another_limit_keeps_kind_window_and_the_ratio_of_the_burst() {
    let changed = |kind: &str, count, window_us| {
        let base = limits(rule(kind, 20, MINUTE_US, 5));
        let new = base.with(NewLimit::Rate(limit(count, window_us)))?;
        assert_eq!(new.rule.kind(), base.rule.kind());
        assert_eq!(new.rule.limit(), Some(limit(count, window_us)));
        assert_eq!(new.unqueued.is_some(), kind == "leaky-bucket");
        Ok::<_, Unfit>(new.rule.capacity())
    };
    for kind in ["token-bucket", "leaky-bucket"] {
        for (count, window_us, burst, reason) in [
            (200, MINUTE_US, 50, "ten times as many"),
            (10, MINUTE_US, 3, "half of it, rounded up"),
            (1, MINUTE_US, 1, "one at least"),
            (20, 60 * MINUTE_US, 5, "the same count over another window"),
        ] {
            assert_eq!(
                changed(kind, count, window_us),
                Ok(burst),
                "{kind}: {reason}"
            );
        }
    }
    for kind in ["fixed-window", "sliding-log", "sliding-counter", "strict"] {
        assert_eq!(changed(kind, 200, MINUTE_US), Ok(200), "{kind}");
        let own = limit(20, MINUTE_US);
        assert_eq!(
            changed(kind, 200, 60 * MINUTE_US),
            Err(Unfit::Window(own)),
            "{kind}"
        );
    }
    let slots = limits(rule("concurrency", 2, MINUTE_US, 1));
    let more = slots.with(NewLimit::Count(5)).unwrap();
    assert_eq!((more.rule.kind(), more.rule.capacity()), ("concurrency", 5));
    let rate = slots.with(NewLimit::Rate(limit(5, MINUTE_US)));
    assert_eq!(rate.err(), Some(Unfit::Rate));
    let counted = limits(rule("token-bucket", 20, MINUTE_US, 5)).with(NewLimit::Count(3));
    assert_eq!(counted.err(), Some(Unfit::Count));
}
