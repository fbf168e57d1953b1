//! Problem details (RFC 9457).
