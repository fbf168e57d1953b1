//! Fields that are written as one of a few words.

use tracing::level_filters::LevelFilter;

use super::ClientIpInLogs;
use super::decode::words;
use crate::answer::{Legacy, UpstreamFields, When};
use crate::check::{Mode, OnMissingKey, OnStoreFailure, Scope};
use crate::client::jwt::Algorithm;
use crate::decide::CalendarUnit;
use crate::shed::Priority;
use crate::tls::Oldest;

/// `mode` of the top level.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum GlobalMode {
    Enforce,
    Shadow,
}

/// `kind` of a policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    FixedWindow,
    SlidingLog,
    SlidingCounter,
    TokenBucket,
    LeakyBucket,
    Concurrency,
}

/// `kind` of the store.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum StoreWord {
    Local,
    Valkey,
}

/// `server.unmatched`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unmatched {
    NotFound,
    Misdirected,
}

/// `server.request_id`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RequestId {
    Keep,
    New,
}

/// `builtin` of an upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Builtin {
    Echo,
}

/// `balance` of an upstream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Balance {
    RoundRobin,
}

/// `headers.ratelimit`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RateLimitFields {
    Draft,
    Off,
}

/// `logs.format`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LogFormat {
    Json,
    Text,
}

words!(GlobalMode { "enforce" => Self::Enforce, "shadow" => Self::Shadow });
words!(Kind {
    "fixed-window" => Self::FixedWindow,
    "sliding-log" => Self::SlidingLog,
    "sliding-counter" => Self::SlidingCounter,
    "token-bucket" => Self::TokenBucket,
    "leaky-bucket" => Self::LeakyBucket,
    "concurrency" => Self::Concurrency,
});
words!(StoreWord { "local" => Self::Local, "valkey" => Self::Valkey });
words!(Unmatched { "404" => Self::NotFound, "421" => Self::Misdirected });
words!(RequestId { "keep" => Self::Keep, "new" => Self::New });
words!(Builtin { "echo" => Self::Echo });
words!(Balance { "round-robin" => Self::RoundRobin });
words!(RateLimitFields { "draft" => Self::Draft, "off" => Self::Off });
words!(LogFormat { "json" => Self::Json, "text" => Self::Text });
words!(Algorithm {
    "HS256" => Self::Hs256,
    "RS256" => Self::Rs256,
    "ES256" => Self::Es256,
    "EdDSA" => Self::EdDsa,
});
words!(CalendarUnit { "day" => Self::Day, "week" => Self::Week, "month" => Self::Month });
words!(OnMissingKey { "skip" => Self::Skip, "deny" => Self::Deny, "empty" => Self::Empty });
words!(OnStoreFailure { "allow" => Self::Allow, "deny" => Self::Deny, "local" => Self::Local });
words!(Scope { "shared" => Self::Shared, "local" => Self::Local });
words!(Priority { "high" => Self::High, "normal" => Self::Normal, "low" => Self::Low });
words!(Mode { "enforce" => Self::Enforce, "shadow" => Self::Shadow, "off" => Self::Off });
words!(Legacy { "none" => Self::None, "seconds" => Self::Seconds, "epoch" => Self::Epoch });
words!(When { "always" => Self::Always, "near-limit" => Self::NearLimit, "reject" => Self::Reject });
words!(UpstreamFields { "merge" => Self::Merge, "pass" => Self::Pass, "replace" => Self::Replace });
words!(ClientIpInLogs { "full" => Self::Full, "masked" => Self::Masked, "hash" => Self::Hash });
words!(Oldest { "1.2" => Self::Tls12, "1.3" => Self::Tls13 });
words!(LevelFilter {
    "off" => Self::OFF,
    "error" => Self::ERROR,
    "warn" => Self::WARN,
    "info" => Self::INFO,
    "debug" => Self::DEBUG,
    "trace" => Self::TRACE,
});
