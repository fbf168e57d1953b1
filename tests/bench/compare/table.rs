//! What people read: a table a task, then the aims.

use std::fmt::Write;

use crate::Findings;
use crate::aims::Aim;
use crate::contenders::Contender;
use crate::figures::{Measured, Sample, float};

pub(crate) fn of(findings: &Findings, aims: &[Aim]) -> String {
    let mut out = String::new();
    let options = &findings.options;
    let _ = writeln!(
        out,
        "\nMedians of {} rounds of {} s (least to greatest), {} connections, one worker each; {} processors, {} other \
         tasks before. CPU is user and system time for a request; × compares it, Valkey's included, with Tollgate's of \
         the same round.",
        options.rounds, options.seconds, options.connections, findings.busy.1, findings.busy.0
    );
    for task in tasks(&findings.measured) {
        let title = task[0].job.title();
        let _ = write!(
            out,
            "\n{title} ({})\n\n\
             | | requests/s | p50, ms | p99, ms | CPU of the gateway, µs | of Valkey, µs | × | memory, MiB |\n\
             |---|---|---|---|---|---|---|---|\n",
            task[0].job.task()
        );
        let ours = task.iter().find(|m| m.job.contender == Contender::Tollgate);
        for measured in &task {
            out.push_str(&row(measured, ours.copied()));
        }
    }
    if let Some(paced) = &findings.paced {
        let _ = write!(
            out,
            "\nAt a tenth of saturation, {:.0} requests/s, µs\n\n| | p50 | p99 |\n|---|---|---|\n",
            paced.rate
        );
        let rows = [
            ("without policies", &paced.plain),
            ("one shared policy", &paced.shared),
            ("added", &paced.added),
        ];
        for (name, [half, most]) in rows {
            let _ = writeln!(out, "| {name} | {} | {} |", half.text(0), most.text(0));
        }
    }
    if let Some(admission) = &findings.admission {
        let _ = writeln!(
            out,
            "\nTwo gateways, one limit of {}: of {} requests {} were admitted, {} too many; {} had no decision in time",
            admission.limit,
            admission.requests,
            admission.admitted,
            admission.over(),
            admission.undecided
        );
    }
    if let Some(keys) = &findings.keys {
        let mib = |bytes: u64| bytes / (1024 * 1024);
        let _ = writeln!(
            out,
            "\n{} callers counted in process: {} MiB, before {} MiB",
            keys.callers,
            mib(keys.after),
            mib(keys.before)
        );
    }
    for missing in &findings.missing {
        let _ = writeln!(out, "\nleft out: {missing}");
    }
    if !aims.is_empty() {
        out.push_str("\n| aim | at most | found | |\n|---|---|---|---|\n");
    }
    for aim in aims {
        let word = if aim.is_met() { "met" } else { "missed" };
        let bound = format!("{} {}", aim.bound, aim.unit);
        let found = format!("{} {}", aim.found.text(2), aim.unit);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {word} |",
            aim.what,
            bound.trim(),
            found.trim()
        );
    }
    out
}

/// What was measured, task by task.
pub(crate) fn tasks(measured: &[Measured]) -> Vec<Vec<&Measured>> {
    let mut tasks: Vec<Vec<&Measured>> = Vec::new();
    for one in measured {
        let task = tasks.iter_mut().find(|t| t[0].job.task() == one.job.task());
        match task {
            Some(task) => task.push(one),
            None => tasks.push(vec![one]),
        }
    }
    tasks
}

fn row(measured: &Measured, ours: Option<&Measured>) -> String {
    let ratio = ours.map(|ours| measured.beside(ours, |a, b| a.all() / b.all()));
    let valkey = measured.over(Sample::valkey);
    let has_valkey = measured.job.limits.are_shared();
    format!(
        "| {} | {} | {:.2} | {:.2} | {} | {} | {} | {:.0} |\n",
        measured.job.contender.title(measured.job.limits),
        measured.requests_per_second().text(0),
        measured.over(|s| float(s.p50_us) / 1000.0).median,
        measured.over(|s| float(s.p99_us) / 1000.0).median,
        measured.over(Sample::gateway).text(1),
        if has_valkey {
            valkey.text(1)
        } else {
            String::new()
        },
        ratio.map_or_else(String::new, |ratio| format!("{:.2}", ratio.median)),
        measured.over(|s| float(s.memory_kib) / 1024.0).median,
    )
}
