//! Usage in process.
use super::StoreError;
use crate::{
    check::Check,
    clock::Clock,
    decide::{Decision, Timestamp},
};
use std::num::NonZeroUsize;
/// stub
#[derive(Debug)]
pub struct LocalStore;
impl LocalStore {
    /// stub
    pub fn new(_m: NonZeroUsize, _c: Clock) -> Self {
        Self
    }
    /// stub
    pub fn decide_now(&self, _c: &[Check<'_>]) -> Result<(Timestamp, Vec<Decision>), StoreError> {
        Err(StoreError::Full)
    }
    /// stub
    pub fn refund(&self, _c: &[Check<'_>], _t: Timestamp) {}
    /// stub
    pub fn sweep(&self) {}
    /// stub
    pub fn len(&self) -> usize {
        0
    }
}
