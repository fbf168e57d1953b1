//! Concurrency as an operator runs it.
