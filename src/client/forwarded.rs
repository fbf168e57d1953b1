//! Forwarding headers, read right to left.

/// The most entries of a forwarding header that are read.
pub const ENTRIES_MAX: usize = 64;
