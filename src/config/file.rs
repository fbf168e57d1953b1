//! The shapes as written. Each table is declared once; `tollgate schema` and `config/tollgate.toml` say the same.

use std::net::SocketAddr;

use http::{HeaderName, Method};
use ipnet::IpNet;
use tracing::level_filters::LevelFilter;

use super::ClientIpInLogs;
use super::collections::{List, Named, OneOrMany, Pairs};
use super::cost_source::CostSource;
use super::decode::table;
use super::items::{CostItem, Count, Item, Key, ServerAt, UseItem};
use super::moments::{AnchorAt, ZoneName};
use super::steps::Steps;
use super::values::{
    CostUnits, FilePath, LeaseOf, LimitOf, Percent, Size, Span, Units, Version, Whole,
};
use super::wire::{FieldValue, HostField, StatusItem, Wanted};
pub(crate) use super::words::{
    Balance, Builtin, GlobalMode, Kind, LogFormat, RateLimitFields, RequestId, StoreWord, Unmatched,
};
use crate::answer::{Legacy, UpstreamFields, When};
use crate::check::{Mode, NewLimit, OnMissingKey, OnStoreFailure, Scope, Unit};
use crate::client::jwt::Algorithm;
use crate::decide::CalendarUnit;
use crate::shed::Priority;
use crate::tls::Oldest as TlsVersion;

table! {
    /// A Tollgate configuration.
    File {
        /// Version of the file's format.
        version: Version = "1";
        /// Further files, by glob, relative to this one. They define named tables only, but no listeners.
        include: List<String> = "[]";
        /// Shadow counts everything and denies nothing, whatever the policies say.
        mode: GlobalMode = "\"enforce\"";
        /// The gateway itself.
        server: Server = "{}";
        /// Where clients connect.
        listeners: Named<Listener> = "{ main = { address = \"127.0.0.1:8080\" } }";
        /// Who is calling.
        client_ip: ClientIp = "{}";
        /// How callers prove who they are; nobody does if left out.
        identity: Identity;
        /// Where usage is counted.
        store: Store = "{}";
        /// Where requests go.
        upstreams: Named<Upstream> = "{}";
        /// Limits, by name.
        policies: Named<Policy> = "{}";
        /// Plans: limits for the callers that are on a tier, by the tier's name.
        tiers: Named<Tier> = "{}";
        /// Limits for single callers and networks, by name; before those of tiers.
        overrides: Named<Override> = "{}";
        /// Who is not limited, by name; before anything else.
        exemptions: Named<Exemption> = "{}";
        /// Which requests go where, under which policies. The most specific route takes a request.
        routes: Named<Route> = "{}";
        /// How denials are put.
        rejects: Named<Reject> = "{}";
        /// When requests are turned away because the gateway is full; never if left out.
        load_shedding: LoadShedding;
        /// The fields that answers carry.
        headers: Headers = "{}";
        /// What changes a running gateway; not there if left out.
        admin: Admin;
        /// Where Prometheus scrapes.
        metrics: Metrics = "{}";
        /// What is logged.
        logs: Logs = "{}";
    }
}

table! {
    /// The gateway itself.
    Server {
        /// Worker threads; the machine's cores if left out.
        threads: Whole<1, 1024>;
        /// How long requests may take to finish once the gateway is told to stop.
        grace_period: Span<0, 3_600_000> = "\"25s\"";
        /// The status where no route matches.
        unmatched: Unmatched = "\"404\"";
        /// Keep the X-Request-Id of trusted peers, or make a new one always.
        request_id: RequestId = "\"keep\"";
        /// How large and slow requests may be.
        limits: ServerLimits = "{}";
        /// How many requests may wait their turn in leaky buckets at once; more are denied.
        max_waiting: Whole<0, 1_000_000> = "10000";
        /// Connections of clients at once; more are closed.
        max_connections: Whole<1, 10_000_000> = "10000";
        /// The same from one address, or one IPv6 network; trusted proxies are not counted.
        max_connections_per_ip: Whole<1, 10_000_000>;
    }
}

table! {
    /// How large and slow requests may be.
    ServerLimits {
        /// The largest request head.
        max_header: Size<1024, 1_048_576> = "\"64KiB\"";
        /// The largest request body; unbounded if left out.
        max_body: Size<0, 1_099_511_627_776>;
        /// How long a client may take to send a request's head.
        header_timeout: Span<1, 600_000> = "\"10s\"";
        /// How far a body, a request's or an answer's, may lag behind body_min_rate since the client is slow.
        body_timeout: Span<1, 86_400_000> = "\"60s\"";
        /// The slowest pace of a body, in bytes a second; with 0B only silence counts.
        body_min_rate: Size<0, 1_073_741_824> = "\"240B\"";
    }
}

table! {
    /// Where clients connect.
    Listener {
        /// IP address and port.
        address: SocketAddr, required;
        /// TLS to clients; in the clear if left out.
        tls: ListenerTls;
    }
}

table! {
    /// TLS to clients.
    ListenerTls {
        /// PEM file of the certificate, and of those between it and its authority.
        cert: FilePath, required;
        /// PEM file of its private key.
        key: FilePath, required;
        /// The oldest version of TLS that is spoken.
        min: TlsVersion = "\"1.2\"";
    }
}

table! {
    /// Who is calling.
    ClientIp {
        /// Networks of proxies whose header is believed. Nobody's if left out.
        trusted_proxies: List<IpNet>;
        /// Instead of networks: how many proxies stand in front, whatever their addresses.
        trusted_hops: Whole<1, 64>;
        /// The header that names the client: x-forwarded-for, forwarded, or one that holds a single address.
        header: HeaderName = "\"x-forwarded-for\"";
        /// How many bits of an IPv6 address are one client.
        ipv6_prefix: Whole<1, 128> = "64";
        /// How many bits of an IPv4 address are one client.
        ipv4_prefix: Whole<1, 32> = "32";
    }
}

table! {
    /// How callers prove who they are.
    Identity {
        /// By API keys, of which a file holds the hashes.
        api_key: ApiKey;
        /// By signed tokens (JWT).
        jwt: Jwt;
        /// Header in which a trusted proxy names the plan that a caller is on; from others it is not read.
        tier_header: HeaderName;
    }
}

table! {
    /// API keys.
    ApiKey {
        /// Header that keys are sent in, alone or behind "Bearer".
        header: HeaderName;
        /// Instead of a header: a cookie.
        cookie: String;
        /// Instead of a header: a query parameter. Keys then stand in the logs of everything on the way.
        query: String;
        /// TOML file of the keys' hashes; read again when it changes.
        file: FilePath, required;
    }
}

table! {
    /// Signed tokens.
    Jwt {
        /// Header that tokens are sent in, alone or behind "Bearer".
        header: HeaderName = "\"authorization\"";
        /// Who issues them (iss). Left out, whoever has a key.
        issuer: String;
        /// Whom they are for (aud): one of these. Left out, anybody.
        audience: OneOrMany<String>;
        /// File of the issuer's public keys, a JWK set; read again when it changes.
        jwks_file: FilePath;
        /// Instead of a file: where they are fetched from.
        jwks_url: String;
        /// How often they are fetched; sooner where a token names a key that is not among them.
        refresh: Span<1_000, 86_400_000> = "\"5m\"";
        /// Instead of public keys: file of a secret of at least 32 bytes, for HS256.
        secret_file: FilePath;
        /// How tokens may be signed; as the keys are able to if left out.
        algorithms: List<Algorithm>;
        /// How far the issuer's clock and ours may be apart.
        leeway: Span<0, 600_000> = "\"60s\"";
        /// The claim that names the caller's plan.
        tier_claim: String;
    }
}

table! {
    /// Where usage is counted.
    Store {
        /// In this process, or in Valkey for several gateways together.
        kind: StoreWord = "\"local\"";
        /// Where Valkey is: valkey://host:port/database, valkeys:// over TLS. Needed for kind = "valkey", or sentinel
        /// or cluster.
        url: String;
        /// Instead of a URL: who knows where the primary is.
        sentinel: Sentinel;
        /// Instead of a URL: servers of a cluster, "host:port". They name the others.
        cluster: List<String>;
        /// ACL user.
        username: String;
        /// File that holds the password.
        password_file: FilePath;
        /// TLS to Valkey, and to the sentinels.
        tls: StoreTls;
        /// For a whole decision; past it, on_failure decides.
        timeout: Span<1, 10_000> = "\"20ms\"";
        /// For a connection.
        connect_timeout: Span<1, 60_000> = "\"500ms\"";
        /// Requests that come while Valkey decides others go to it together, in one call.
        group_commit: bool = "true";
        /// A denial by Valkey is remembered here for as long as it holds, a second at most.
        deny_cache: bool = "true";
        /// What becomes of requests when the store gives no decision.
        on_failure: OnStoreFailure = "\"local\"";
        /// How many gateways share the limits, at least: when the store fails each enforces its share, among so many or
        /// among those that were last seen alive.
        instances: Whole<1, 10_000> = "1";
        /// What all keys in Valkey begin with.
        prefix: String = "\"tollgate\"";
        /// File of at least 16 bytes that keys the hash of callers; the same for all gateways.
        key_secret_file: FilePath;
        /// The store in this process.
        local: StoreLocal = "{}";
    }
}

table! {
    /// Who knows where the primary is.
    Sentinel {
        /// The sentinels: "host:port". All are asked at once.
        nodes: List<String>, required;
        /// What they call the primary.
        primary: String, required;
        /// ACL user for the sentinels; username is for the primary.
        username: String;
        /// File that holds the password for the sentinels; password_file is for the primary.
        password_file: FilePath;
    }
}

table! {
    /// TLS to Valkey.
    StoreTls {
        /// PEM file of the authorities whose certificates are believed; the machine's own if left out.
        ca: FilePath;
        /// PEM file of the certificate that we show, and of those between it and its authority.
        cert: FilePath;
        /// PEM file of its private key.
        key: FilePath;
    }
}

table! {
    /// The store in this process.
    StoreLocal {
        /// The most callers it remembers, all policies together.
        max_keys: Whole<1, 1_000_000_000> = "1000000";
        /// File that usage is written to at a graceful stop, and read from at the start.
        snapshot: FilePath;
    }
}

table! {
    /// Where requests go.
    Upstream {
        /// Its servers: "host:port", or { addr, weight }.
        servers: List<ServerAt>;
        /// Instead of servers: "echo" answers with what it was asked.
        builtin: Builtin;
        /// How the servers take turns.
        balance: Balance = "\"round-robin\"";
        /// TLS to its servers; in the clear if left out.
        tls: UpstreamTls;
        /// Checks of its servers; those that fail are left out. None if left out.
        health: Health;
        /// Its time limits.
        timeouts: Timeouts = "{}";
        /// The Host field it is sent: the client's, or this.
        host_header: HostField = "\"keep\"";
        /// How often another server is tried when one cannot be connected to.
        retries: Whole<0, 10> = "1";
    }
}

table! {
    /// TLS to the servers of an upstream.
    UpstreamTls {
        /// The name that is asked for, and that the certificate has to be for; the host that stands in servers if left
        /// out.
        sni: String;
        /// Whether the certificate is verified.
        verify: bool = "true";
        /// PEM file of the authorities whose certificates are believed; the machine's own if left out.
        ca: FilePath;
    }
}

table! {
    /// Checks of an upstream's servers.
    Health {
        /// The path that is asked for, by GET.
        path: String;
        /// Instead of a path: whether it is enough that it can be connected to.
        tcp: bool;
        /// From one check to the next, give or take a tenth.
        interval: Span<100, 86_400_000> = "\"5s\"";
        /// For a whole check.
        timeout: Span<1, 600_000> = "\"1s\"";
        /// Checks that have to pass in a row before a server that failed gets requests again.
        healthy_after: Whole<1, 100> = "2";
        /// Checks that have to fail in a row before a server gets none any more.
        unhealthy_after: Whole<1, 100> = "3";
        /// The statuses with which a check by path passes; 200 if left out.
        expect: List<StatusItem>;
    }
}

table! {
    /// Time limits towards an upstream.
    Timeouts {
        /// For the connection.
        connect: Span<1, 3_600_000> = "\"1s\"";
        /// Between two reads.
        read: Span<1, 86_400_000> = "\"30s\"";
        /// For a write.
        write: Span<1, 86_400_000> = "\"30s\"";
        /// How long an unused connection is kept.
        idle: Span<1, 86_400_000> = "\"60s\"";
    }
}

table! {
    /// A server of an upstream.
    WeightedServer {
        /// host:port.
        addr: String, required;
        /// Its share of the requests.
        weight: Whole<1, 1000> = "1";
    }
}

table! {
    /// A limit that routes can use by its name.
    Policy {
        /// The algorithm.
        kind: Kind, required;
        /// Count and window: "100/min"; of calendar months "100/month". Concurrency: units in flight at once, a number.
        limit: LimitOf, required;
        /// Buckets: the most at once; the count of the limit if left out.
        burst: Units;
        /// Leaky bucket: the longest wait; longer ones are denied. Unbounded but for burst if left out.
        max_wait: Span<0, 3_600_000>;
        /// Fixed window: windows begin with the clock ("epoch"), with a caller's first request, or with the days, weeks
        /// or months of a time zone: { calendar, tz }.
        anchor: AnchorAt;
        /// Sliding counter: count the whole previous window, so that the limit is never exceeded.
        strict: bool;
        /// Whom it counts by: one source, or several together.
        key: Key, required;
        /// What becomes of a request that lacks a part of the key.
        on_missing_key: OnMissingKey;
        /// Whether preflights are counted, which carry no credentials; if left out, only those of store = "local" are.
        preflights: bool;
        /// What becomes of a request when the store gives no decision; store.on_failure if left out.
        on_store_failure: OnStoreFailure;
        /// "local" counts in each gateway apart, on purpose.
        store: Scope = "\"shared\"";
        /// How long whoever it denies stays denied, however little is used then; of several, each denial after the end
        /// of one is followed by the next.
        penalty: Steps;
        /// The most units that a gateway takes ahead of a busy key's requests; the limit may be exceeded by so many for
        /// each gateway. Counted in Valkey only, and on routes where it is the only policy. Concurrency: how long what
        /// a gateway holds counts once it is dead; 60s if left out.
        lease: LeaseOf;
        /// Shadow counts but does not deny; off does neither.
        mode: Mode = "\"enforce\"";
        /// What is counted: requests, content-bytes, or a name of your own.
        unit: Unit = "\"requests\"";
        /// What a request takes where a route does not say: so many units, 0 only looks; or { from, … } to read it.
        cost: CostItem = "1";
        /// Which requests are counted: all, or those whose answer has one of these statuses.
        count: Count = "\"all\"";
        /// Which of the rejects answers for it.
        reject: String = "\"default\"";
        /// Whether answers tell of it in their fields.
        advertise: bool = "true";
    }
}

table! {
    /// A plan: limits for the callers that are on it.
    Tier {
        /// By policy: the limit that stands in for its own. A bucket's burst keeps its ratio to the limit's count.
        limits: Pairs<NewLimit> = "{}";
    }
}

table! {
    /// Windows that begin as those of a calendar.
    CalendarTable {
        /// What they are; weeks begin on Monday.
        calendar: CalendarUnit, required;
        /// Whose midnight it is: a time zone of the IANA database, as "Europe/Berlin" or "UTC".
        tz: ZoneName, required;
    }
}

table! {
    /// Limits for single callers or networks.
    Override {
        /// Networks; of several that hold an address the narrowest counts.
        ip: List<IpNet>;
        /// Instead of networks: verified identities.
        identity: List<String>;
        /// By policy: the limit that stands in for its own. A bucket's burst keeps its ratio to the limit's count.
        limits: Pairs<NewLimit>, required;
    }
}

table! {
    /// Who is not limited.
    Exemption {
        /// Networks.
        ip: List<IpNet>;
        /// Instead of networks: verified identities.
        identity: List<String>;
        /// Instead of callers: routes.
        route: List<String>;
        /// The policies that do not apply; none does if left out.
        policies: List<String>;
    }
}

table! {
    /// Which answers a policy counts. A request is charged when it comes, and given that back if its answer does not
    /// count.
    CountTable {
        /// Those that count: 401, or "4xx" for all from 400 to 499. All if left out.
        status: List<StatusItem>;
        /// Those of them that do not.
        not_on: List<StatusItem>;
        /// Those after which all that was counted of the caller is forgotten.
        reset_on: List<StatusItem>;
    }
}

table! {
    /// Which requests go where, under which policies.
    Route {
        /// What it matches; a part that is left out matches everything.
        r#match: Match, required;
        /// The upstream it goes to.
        upstream: String;
        /// Instead of an upstream: the answer.
        respond: Respond;
        /// Its policies: a name, { use, cost }, or { first_of = [ … ] } for the first whose key is present.
        policies: List<Item> = "[]";
        /// Who is turned away first when the gateway is full: low, then normal, and high last.
        priority: Priority = "\"normal\"";
        /// Taken off the path before it is forwarded.
        strip_prefix: String;
        /// Header fields added to the forwarded request.
        add_headers: Pairs<FieldValue> = "{}";
        /// For the whole request; without end if left out.
        timeout: Span<1, 86_400_000>;
        /// Whether its requests are logged.
        access_log: bool = "true";
    }
}

table! {
    /// What a route matches.
    Match {
        /// A host: "api.example.com", or "*.example.com" for all below it.
        host: String;
        /// Several hosts.
        hosts: List<String>;
        /// A path: literal segments, {param}, and /* at the end for all below it.
        path: String;
        /// Several paths.
        paths: List<String>;
        /// Any of these methods.
        methods: List<Method>;
        /// All of these header fields, with this value, or any (true).
        headers: Pairs<Wanted>;
        /// All of these query parameters, with this value, or any (true).
        query: Pairs<Wanted>;
    }
}

table! {
    /// An answer of the gateway's own.
    Respond {
        /// Its status.
        status: Whole<200, 599> = "200";
        /// Its body, as text.
        body: String = "\"\"";
    }
}

table! {
    /// An item of a route's policies.
    ItemTable {
        /// A policy.
        r#use: String;
        /// What a request takes of it here: so many units, or { from, … } to read it.
        cost: CostItem;
        /// The first of these policies whose key is present.
        first_of: List<UseItem>;
    }
}

table! {
    /// A policy, and what a request takes of it here.
    UseTable {
        /// The policy.
        r#use: String, required;
        /// What a request takes of it here: so many units, or { from, … } to read it.
        cost: CostItem;
    }
}

table! {
    /// A cost that is read from the request or from its answer.
    CostTable {
        /// Where it stands: request.header:NAME, request.query:NAME, request.json:/POINTER, request.json-array-length,
        /// request.graphql-depth, response.header:NAME, response.json:/POINTER or response.bytes.
        from: CostSource, required;
        /// From an answer, and needed then: what is taken before it is there, and stays where it does not say.
        reserve: CostUnits;
        /// The most that it may come to.
        max: CostUnits;
        /// From a request: what is taken where it does not say; 1 if left out.
        default: CostUnits;
        /// Units by value, instead of a number: { search = 100, list = 1 }.
        values: Pairs<CostUnits>;
    }
}

table! {
    /// How a denial is put. Texts may hold {policy} {limit} {window} {retry_after} {request_id}.
    Reject {
        /// Its status.
        status: Whole<400, 599> = "429";
        /// The problem's title.
        title: String = "\"Request cannot be satisfied as assigned quota has been exceeded\"";
        /// The problem's detail.
        detail: String = "\"Policy {policy} allows {limit} per {window}. Try again in {retry_after} seconds.\"";
        /// The URI of the problem's type.
        r#type: String = "\"https://iana.org/assignments/http-problem-types#quota-exceeded\"";
        /// Further header fields.
        headers: Pairs<FieldValue> = "{}";
        /// Files to send instead of the problem, by media type.
        body_file: Pairs<FilePath> = "{}";
        /// Origins whose scripts may read the denial; "*" is everybody.
        cors: List<String> = "[]";
    }
}

table! {
    /// When requests are turned away because the gateway is full.
    LoadShedding {
        /// The most requests in flight. At 80 % of them routes of low priority turn requests away, at 95 % those of
        /// normal priority.
        max_in_flight: Whole<2, 10_000_000>, required;
        /// How long upstreams may take to begin an answer, half of the time: while they take longer, fewer requests may
        /// be in flight.
        target_latency: Span<1, 3_600_000>;
    }
}

table! {
    /// The fields that answers carry.
    Headers {
        /// RateLimit-Policy and RateLimit, as in draft-ietf-httpapi-ratelimit-headers-10, or neither.
        ratelimit: RateLimitFields = "\"draft\"";
        /// X-RateLimit-Limit, -Remaining and -Reset; the reset in seconds from now, or since the epoch.
        legacy: Legacy = "\"none\"";
        /// On all answers, once at most a fifth is left, or on denials.
        when: When = "\"always\"";
        /// Whether the fields carry an opaque name of whom the policy counts.
        partition_key: bool = "false";
        /// At most so much, and 30 s, is added to Retry-After, so that clients do not return together.
        retry_after_jitter: Percent = "\"10%\"";
        /// What becomes of the upstream's own fields: ours follow, ours are left out, or theirs are.
        upstream_ratelimit: UpstreamFields = "\"merge\"";
    }
}

table! {
    /// What changes a running gateway.
    Admin {
        /// IP address and port.
        address: SocketAddr = "\"127.0.0.1:9901\"";
        /// Whoever asks has to name what this file holds, as a bearer token. Needed off loopback.
        token_file: FilePath;
    }
}

table! {
    /// Where Prometheus scrapes.
    Metrics {
        /// IP address and port; no metrics are served without.
        address: SocketAddr;
        /// The path.
        path: String = "\"/metrics\"";
    }
}

table! {
    /// What is logged.
    Logs {
        /// The least level.
        level: LevelFilter = "\"info\"";
        /// Lines of JSON, or text.
        format: LogFormat = "\"json\"";
        /// How many of the allowed requests are logged; denials always are.
        access_sample: Percent = "\"100%\"";
        /// Client addresses as they are, cut to /24 and /48, or as the hash that the store knows.
        client_ip: ClientIpInLogs = "\"full\"";
    }
}
