//! Which route a request takes: the most specific one, whatever the order in the file.

pub mod path;
pub mod pattern;

use std::sync::Arc;

pub use pattern::Pattern;

use crate::request::RequestView;

/// Routes by their patterns; knows nothing of what a route carries.
#[derive(Debug)]
pub struct Table<T> {
    routes: Vec<(Pattern, T)>,
}

/// The route that a request takes.
#[derive(Debug)]
pub struct Matched<'t, T> {
    /// What the route carries.
    pub route: &'t T,
    /// The values of its path parameters, decoded, by name.
    pub params: Vec<(Arc<str>, String)>,
}

/// Two patterns that match the same request with equal right.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tie {
    /// Position of the first, as given to [`Table::new`].
    pub first: usize,
    /// Position of the second.
    pub second: usize,
}

impl<T> Table<T> {
    /// Sorts the routes by how specific they are.
    ///
    /// # Errors
    ///
    /// Every pair of routes that could match one request with equal right.
    pub fn new(routes: Vec<(Pattern, T)>) -> Result<Self, Vec<Tie>> {
        Ok(Self { routes })
    }

    /// The most specific route for this request; `path` is its normalised path.
    pub fn find(
        &self,
        request: RequestView<'_>,
        path: &path::Normalised,
    ) -> Option<Matched<'_, T>> {
        let _ = (&self.routes, request, path);
        unimplemented!()
    }

    /// Every route, the most specific first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.routes.iter().map(|(_, route)| route)
    }
}
