//! From a route's policies to the checks of one request.

use std::sync::Arc;

use super::{Check, Policy};
use crate::decide::Cost;

/// A policy at its place on a route.
#[derive(Clone, Debug)]
pub struct Use {
    /// The policy.
    pub policy: Arc<Policy>,
    /// What a request takes here.
    pub cost: Cost,
}

/// An item of a route's policy list.
#[derive(Clone, Debug)]
pub enum Demand {
    /// This policy.
    One(Use),
    /// The first of these whose key is present.
    FirstOf(Box<[Use]>),
}

/// What a request has to pass.
#[derive(Debug, Default)]
pub struct Demanded<'a> {
    /// The checks, in the order of the route's list.
    pub checks: Vec<Check<'a>>,
    /// Policies that do not apply since their key is missing.
    pub skipped: Vec<&'a Policy>,
    /// Enforced policies whose key is missing and that then deny.
    pub missing: Vec<&'a Policy>,
}

/// stub
pub fn demand<'a>(
    _d: &'a [Demand],
    _c: &super::entity::Caller<'_>,
    _s: &super::KeySecret,
) -> Demanded<'a> {
    unimplemented!()
}
