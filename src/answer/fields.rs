//! `RateLimit-Policy`, `RateLimit` and the legacy fields.
