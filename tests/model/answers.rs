//! What the client sees.
