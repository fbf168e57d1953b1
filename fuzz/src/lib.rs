//! The targets of `tests/fuzz/`, for libFuzzer.

#[path = "../../tests/support/policies.rs"]
mod policies;
#[path = "../../tests/fuzz/targets/mod.rs"]
mod targets;

mod support {
    pub(crate) use crate::policies;
}

/// Runs one input through the target of this name.
pub fn run(name: &str, data: &[u8]) {
    let (_, run) = targets::ALL
        .iter()
        .find(|(known, _)| *known == name)
        .expect("no such target");
    run(data);
}
