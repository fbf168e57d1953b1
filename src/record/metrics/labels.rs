//! The closed lists that labels are taken from.

use http::StatusCode;

/// What a policy did with a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// It let it pass.
    Allow,
    /// It denied it.
    Deny,
    /// It would have.
    ShadowDeny,
    /// It did not apply.
    Skip,
    /// It did not apply to this caller, or on this route, since an exemption says so.
    Exempt,
}

impl Verdict {
    pub(super) const ALL: [Self; 5] = [
        Self::Allow,
        Self::Deny,
        Self::ShadowDeny,
        Self::Skip,
        Self::Exempt,
    ];

    /// Whether nothing was decided.
    pub(super) const fn is_idle(self) -> bool {
        matches!(self, Self::Skip | Self::Exempt)
    }

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::ShadowDeny => "shadow_deny",
            Self::Skip => "skip",
            Self::Exempt => "exempt",
        }
    }
}

/// What a client did wrong: too slow, too large, or what makes no sense.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// A head that did not arrive in its time.
    HeaderTimeout,
    /// A head over `server.limits.max_header`.
    HeaderSize,
    /// A request that could not be read, or only in several ways.
    Malformed,
    /// A body that came too slowly.
    BodyTimeout,
    /// A body over `server.limits.max_body`.
    BodySize,
    /// An answer that was taken too slowly.
    WriteTimeout,
    /// TLS that did not come about: in time, or at all.
    TlsHandshake,
}

impl Fault {
    pub(super) const ALL: [Self; 7] = [
        Self::HeaderTimeout,
        Self::HeaderSize,
        Self::Malformed,
        Self::BodyTimeout,
        Self::BodySize,
        Self::WriteTimeout,
        Self::TlsHandshake,
    ];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::HeaderTimeout => "header_timeout",
            Self::HeaderSize => "header_size",
            Self::Malformed => "malformed",
            Self::BodyTimeout => "body_timeout",
            Self::BodySize => "body_size",
            Self::WriteTimeout => "write_timeout",
            Self::TlsHandshake => "tls_handshake",
        }
    }
}

/// How a caller proves who it is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Proven {
    /// By an API key.
    ByApiKey,
    /// By a signed token.
    ByToken,
}

impl Proven {
    pub(super) const ALL: [Self; 2] = [Self::ByApiKey, Self::ByToken];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ByApiKey => "api_key",
            Self::ByToken => "jwt",
        }
    }
}

/// What a proof is worth.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Proof {
    /// It holds.
    Ok,
    /// There is none.
    Absent,
    /// It does not hold.
    Invalid,
    /// It did, once.
    Expired,
}

impl Proof {
    pub(super) const ALL: [Self; 4] = [Self::Ok, Self::Absent, Self::Invalid, Self::Expired];

    /// The label's value.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Absent => "absent",
            Self::Invalid => "invalid",
            Self::Expired => "expired",
        }
    }
}

/// The class of an upstream's answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CodeClass {
    /// 1xx.
    Informational,
    /// 2xx.
    Success,
    /// 3xx.
    Redirection,
    /// 4xx.
    ClientError,
    /// 5xx, and what is no status at all.
    ServerError,
    /// There was no answer.
    None,
}

impl CodeClass {
    pub(super) const ALL: [Self; 6] = [
        Self::Informational,
        Self::Success,
        Self::Redirection,
        Self::ClientError,
        Self::ServerError,
        Self::None,
    ];

    /// The class of this status.
    #[must_use]
    pub fn of(status: StatusCode) -> Self {
        match status.as_u16() / 100 {
            1 => Self::Informational,
            2 => Self::Success,
            3 => Self::Redirection,
            4 => Self::ClientError,
            _ => Self::ServerError,
        }
    }

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Informational => "1xx",
            Self::Success => "2xx",
            Self::Redirection => "3xx",
            Self::ClientError => "4xx",
            Self::ServerError => "5xx",
            Self::None => "none",
        }
    }
}
