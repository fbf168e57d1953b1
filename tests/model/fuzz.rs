//! The short run of the fuzzers: every input of the corpora, and the same inputs changed by chance that is the same
//! each time. The long one stands in `fuzz/`.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

#[path = "../fuzz/targets/mod.rs"]
mod targets;

/// The longest input that is made.
const LENGTH_MAX: usize = 8192;

/// A target's corpus, by the names of the files. Configurations that other tests read are as good.
fn corpus(target: &str) -> BTreeMap<String, Vec<u8>> {
    let mut folders = vec![format!("tests/fuzz/corpus/{target}")];
    if target == "config" {
        folders.extend(["config", "config/examples", "tests/config/bad"].map(str::to_owned));
    }
    let mut inputs = BTreeMap::new();
    for folder in folders {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(&folder);
        for entry in std::fs::read_dir(root).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                let name = format!("{folder}/{}", path.file_name().unwrap().to_string_lossy());
                inputs.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    inputs
}

/// Says of which input a target does not hold.
fn hold(run: fn(&[u8]), name: &str, input: &[u8]) {
    let held = catch_unwind(AssertUnwindSafe(|| run(input)));
    assert!(held.is_ok(), "{name}: \"{}\"", input.escape_ascii());
}

/// Changes an input: bytes and stretches of it, and stretches of others.
fn changed(random: &mut fastrand::Rng, input: &[u8], others: &[Vec<u8>]) -> Vec<u8> {
    let mut input = input.to_vec();
    for _ in 0..random.usize(1..=4) {
        let at = random.usize(..=input.len());
        let to = (at + random.usize(..=12)).min(input.len());
        match random.u8(..8) {
            0 if at < input.len() => input[at] ^= 1 << random.u8(..8),
            1 if at < input.len() => input[at] = random.u8(..),
            2 => input.insert(at, random.u8(..)),
            3 => drop(input.drain(at..to)),
            4 => {
                let again = input[at..to].to_vec();
                input.splice(at..at, again.repeat(random.usize(1..=8)));
            }
            5 => input.truncate(at),
            _ => {
                let other = &others[random.usize(..others.len())];
                let from = random.usize(..=other.len());
                let until = (from + random.usize(..=24)).min(other.len());
                let replaced = if random.bool() { at } else { to };
                input.splice(at..replaced, other[from..until].iter().copied());
            }
        }
    }
    input.truncate(LENGTH_MAX);
    input
}

fn replay_and_change(target: &str, changes: usize) {
    let (_, run) = targets::ALL
        .iter()
        .find(|(name, _)| *name == target)
        .unwrap();
    let corpus = corpus(target);
    assert!(corpus.len() >= 8, "{target} has no corpus");
    for (name, input) in &corpus {
        hold(*run, name, input);
    }
    let inputs: Vec<_> = corpus.into_values().collect();
    let mut random = fastrand::Rng::with_seed(0x7011_6a7e);
    for change in 0..changes {
        let input = &inputs[change % inputs.len()];
        let input = changed(&mut random, input, &inputs);
        hold(*run, &format!("{target}, change {change}"), &input);
    }
}

#[test]
fn any_text_is_a_configuration_or_is_told_what_is_wrong_with_it() {
    replay_and_change("config", 1_500);
}

#[test]
fn any_bytes_say_a_cost_within_its_bounds_however_they_are_cut() {
    replay_and_change("cost", 20_000);
}

#[test]
fn any_fields_of_an_upstream_stay_beside_ours() {
    replay_and_change("fields", 10_000);
}

#[test]
fn any_forwarding_fields_name_the_peer_or_whom_the_trusted_chain_names() {
    replay_and_change("forwarding", 10_000);
}

#[test]
fn any_path_is_one_path_however_it_is_spelt() {
    replay_and_change("path", 10_000);
}

#[test]
fn any_reply_is_decisions_or_none() {
    replay_and_change("reply", 20_000);
}

#[test]
fn any_file_of_usage_is_taken_over_or_refused() {
    replay_and_change("snapshot", 2_000);
}

#[test]
fn any_token_that_is_believed_was_signed() {
    replay_and_change("token", 5_000);
}

#[test]
fn every_target_is_run_at_length_too() {
    for (name, _) in targets::ALL {
        let file = format!("fuzz/fuzz_targets/{name}.rs");
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(&file));
        assert!(
            text.unwrap_or_default().contains(&format!("\"{name}\"")),
            "{file}"
        );
    }
}
