//! Usage in process.
