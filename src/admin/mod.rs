//! For operators and their machines, on listeners of their own: metrics and probes, and what changes a gateway that
//! runs.

pub mod probes;
