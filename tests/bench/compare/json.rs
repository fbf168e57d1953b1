//! What programs read: every sample of the run.

use serde_json::{Value, json};

use crate::Findings;
use crate::aims::Aim;
use crate::figures::{Measured, Spread};

pub(crate) fn of(findings: &Findings, aims: &[Aim]) -> String {
    let paced = findings.paced.as_ref().map(|paced| {
        let times =
            |[half, most]: &[Spread; 2]| json!({ "p50_us": spread(half), "p99_us": spread(most) });
        json!({
            "requests_per_second": paced.rate,
            "plain": times(&paced.plain),
            "shared": times(&paced.shared),
            "added": times(&paced.added),
        })
    });
    let admission = findings.admission.map(|admission| {
        json!({
            "limit": admission.limit,
            "requests": admission.requests,
            "admitted": admission.admitted,
            "over": admission.over(),
            "undecided": admission.undecided,
        })
    });
    let keys = findings.keys.map(|keys| {
        json!({ "callers": keys.callers, "before_bytes": keys.before, "after_bytes": keys.after })
    });
    let aims: Vec<_> = aims
        .iter()
        .map(|aim| {
            json!({
                "what": aim.what,
                "unit": aim.unit,
                "at_most": aim.bound,
                "found": spread(&aim.found),
                "met": aim.is_met(),
            })
        })
        .collect();
    let jobs: Vec<_> = findings.measured.iter().map(job).collect();
    let all = json!({
        "rounds": findings.options.rounds,
        "seconds": findings.options.seconds,
        "connections": findings.options.connections,
        "versions": findings.versions,
        "load_before": findings.busy.0,
        "processors": findings.busy.1,
        "left_out": findings.missing,
        "jobs": jobs,
        "paced": paced,
        "admission": admission,
        "keys": keys,
        "aims": aims,
    });
    format!("{all:#}\n")
}

fn job(measured: &Measured) -> Value {
    let samples: Vec<_> = measured
        .samples
        .iter()
        .map(|sample| {
            json!({
                "requests": sample.requests,
                "span_us": sample.span_us,
                "requests_per_second": sample.requests_per_second(),
                "p50_us": sample.p50_us,
                "p99_us": sample.p99_us,
                "gateway_us_per_request": sample.gateway(),
                "valkey_us_per_request": sample.valkey(),
                "memory_kib": sample.memory_kib,
            })
        })
        .collect();
    json!({
        "task": measured.job.task(),
        "contender": measured.job.contender.name(),
        "samples": samples,
    })
}

fn spread(spread: &Spread) -> Value {
    json!({ "median": spread.median, "min": spread.min, "max": spread.max })
}
