//! Tollgate beside other proxies and limiters, in one interleaved run on this machine.
//!
//! `cargo bench --profile release --bench compare`, so that Tollgate and the bare Pingora proxy are both built as a
//! release is. Each round starts every contender of every job afresh, loads it, and asks the kernel what that took;
//! what is printed are medians over the rounds. Machines drift: compare within one run.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a bench that cannot go on should stop loudly"
)]

#[path = "../../support/mod.rs"]
mod support;

mod account;
mod admission;
mod aims;
mod chart;
mod contenders;
mod figures;
mod jobs;
mod json;
mod keys;
mod load;
mod options;
mod paced;
mod process;
mod table;
mod tools;

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use clap::Parser;

use contenders::{Contender, nginx, pingora};
use figures::{Measured, Sample};
use jobs::{Job, Limits};
use load::{Answers, Load};
use options::Options;
use process::Process;
use tools::Tools;

/// How often a job is tried in a round.
const TRIES: usize = 3;

/// Seconds on either side of the comparison of times: many short ones, since a machine's bad moments fall on single
/// ones.
const TURNS: usize = 20;

/// What all contenders have in common.
struct House {
    tools: Tools,
    upstream: SocketAddr,
    connections: u32,
}

/// All that one run found out.
struct Findings {
    options: Options,
    missing: Vec<String>,
    /// Of the programs, by name.
    versions: BTreeMap<&'static str, String>,
    /// Tasks that wanted a processor before it began, and processors.
    busy: (f64, usize),
    measured: Vec<Measured>,
    paced: Option<paced::Added>,
    admission: Option<admission::Admission>,
    keys: Option<keys::Memory>,
}

fn main() {
    let options = Options::parse();
    if let Some(addresses) = &options.bare_proxy {
        pingora::serve(addresses[0], addresses[1]);
    }
    let tools = Tools::gather();
    for missing in tools.missing() {
        println!("left out: {missing}");
    }
    let busy = account::busy();
    if busy.0 > 0.5 {
        println!(
            "the machine has other work, {} tasks at a time: expect wide ranges",
            busy.0
        );
    }
    let (upstream, _nginx) = upstream(&tools);
    let house = House {
        tools,
        upstream,
        connections: options.connections,
    };
    let measured = rounds(&house, &options);
    let shared = measured
        .iter()
        .find(|m| m.job.contender == Contender::Tollgate && m.job.limits == Limits::Shared(1));
    // Only where it is known how much is a tenth.
    let paced = shared.map(|m| {
        let rate = m.requests_per_second().median / 10.0;
        paced::added(&house, rate, TURNS)
    });
    let admission = shared.map(|_| admission::measure(&house));
    let keys = options.keys.then(|| keys::measure(&house));
    let findings = Findings {
        missing: house.tools.missing(),
        versions: house.tools.versions(),
        busy,
        options,
        measured,
        paced,
        admission,
        keys,
    };
    let aims = aims::of(&findings);
    println!("{}", table::of(&findings, &aims));
    let folder = tools::results();
    write(&folder.join("compare.json"), &json::of(&findings, &aims));
    write(&folder.join("compare.svg"), &chart::of(&findings));
}

fn write(file: &Path, text: &str) {
    fs::write(file, text).unwrap();
    println!("written: {}", file.display());
}

/// The API that all of them stand in front of: nginx, which answers three bytes.
fn upstream(tools: &Tools) -> (SocketAddr, Process) {
    let Ok(tool) = &tools.nginx else {
        panic!("without nginx there is no upstream: {:?}", tools.missing());
    };
    let setup = nginx::Setup {
        server: "location / { return 200 \"ok\\n\"; }",
        ..nginx::Setup::default()
    };
    nginx::start(tool, setup)
}

/// Every job once in each round, and in each round another one first.
fn rounds(house: &House, options: &Options) -> Vec<Measured> {
    let jobs = jobs::of(options, &house.tools);
    assert!(!jobs.is_empty(), "no job is left");
    println!(
        "{} jobs, {} rounds of {} s each, {} connections",
        jobs.len(),
        options.rounds,
        options.seconds,
        options.connections
    );
    let mut measured: Vec<_> = jobs.iter().map(|job| Measured::new(*job)).collect();
    for round in 0..options.rounds {
        for step in 0..jobs.len() {
            let turn = (step + round * (jobs.len() / options.rounds).max(1)) % jobs.len();
            let sample = sample(house, jobs[turn], options.seconds);
            println!("round {}: {} - {sample}", round + 1, jobs[turn]);
            measured[turn].samples.push(sample);
        }
    }
    measured
}

/// Measures a job. Where the answers are not what it is about, it is tried again: figures of something else would be
/// worse than none.
fn sample(house: &House, job: Job, seconds: u32) -> Sample {
    for _ in 0..TRIES {
        match once(house, job, seconds) {
            Ok(sample) => return sample,
            Err(answers) => println!("{job}: not what it should answer: {answers:?}"),
        }
    }
    panic!("{job}: cannot be measured");
}

/// Starts the contender, warms it up, and measures it under load.
fn once(house: &House, job: Job, seconds: u32) -> Result<Sample, Answers> {
    let running = job.contender.start(house, job.limits);
    let load = Load {
        wrk: house.tools.wrk.as_ref().expect("wrk is there"),
        address: running.address,
        connections: house.connections,
        callers: job.callers,
    };
    load.run(1);
    let before = running.spent();
    let answers = load.run(seconds);
    let after = running.spent();
    if !job.is_about(&answers) {
        return Err(answers);
    }
    Ok(Sample {
        requests: answers.requests,
        span_us: answers.span_us,
        p50_us: answers.p50_us,
        p99_us: answers.p99_us,
        gateway_us: after.gateway_us - before.gateway_us,
        valkey_us: after.valkey_us - before.valkey_us,
        memory_kib: account::memory_kib(running.gateway),
    })
}
