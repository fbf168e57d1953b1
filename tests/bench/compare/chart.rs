//! A chart of what a request costs: a bar a job, the gateway's part and Valkey's, and a line from the least to the
//! greatest of the rounds.

use std::fmt::Write;

use crate::Findings;
use crate::contenders::Contender;
use crate::figures::{Measured, Sample};
use crate::table::tasks;

const WIDTH: f64 = 880.0;
/// Where bars begin, and how far they may reach.
const LEFT: f64 = 190.0;
const REACH: f64 = 490.0;
const ROW: f64 = 24.0;
const BAR: f64 = 15.0;
const HEAD: f64 = 38.0;
const TOP: f64 = 92.0;

const OURS: [&str; 2] = ["#0b6e4f", "#7cc4a4"];
const OTHERS: [&str; 2] = ["#8a94a3", "#c9cfd8"];

pub(crate) fn of(findings: &Findings) -> String {
    let tasks = tasks(&findings.measured);
    let greatest = findings.measured.iter().map(|m| m.over(Sample::all).max);
    let step = step_of(greatest.fold(1.0, f64::max));
    let scale = REACH / (step * STEPS);
    let mut body = String::new();
    let mut y = TOP;
    for task in &tasks {
        y += HEAD;
        text(&mut body, (24.0, y - 10.0), "task", &task[0].job.title());
        for measured in task {
            bar(&mut body, y, scale, measured);
            y += ROW;
        }
    }
    let height = y + 40.0;
    let grid = grid(step, scale, y);
    let options = &findings.options;
    let mut head = String::new();
    text(&mut head, (24.0, 34.0), "title", "CPU time for a request");
    let how = format!(
        "µs of user and system time, and requests/s. Medians of {} rounds of {} s, lines from least to greatest; {} connections, one worker.",
        options.rounds, options.seconds, options.connections
    );
    text(&mut head, (24.0, 55.0), "note", &how);
    legend(&mut head);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"CPU time for a request\">\n<style>{STYLE}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{head}{grid}{body}</svg>\n"
    )
}

const STYLE: &str = "text{font-family:system-ui,'DejaVu Sans',sans-serif;font-size:12px;fill:#24292f}\
                     .title{font-size:18px;font-weight:600}.task{font-weight:600;font-size:13px}\
                     .note,.axis{fill:#626b76}.axis{text-anchor:middle;font-size:11px}.name{text-anchor:end}\
                     .ours{font-weight:600}";

/// Lines across.
const STEPS: f64 = 5.0;

/// The least round number of µs of which [`STEPS`] hold everything.
fn step_of(greatest: f64) -> f64 {
    let steps = [1.0, 2.0, 5.0, 10.0, 20.0, 25.0, 40.0, 50.0, 100.0, 200.0];
    let holds = |step: &&f64| **step * STEPS >= greatest;
    steps
        .iter()
        .find(holds)
        .copied()
        .unwrap_or(greatest / STEPS)
}

fn bar(out: &mut String, y: f64, scale: f64, measured: &Measured) {
    let ours = measured.job.contender == Contender::Tollgate;
    let [dark, light] = if ours { OURS } else { OTHERS };
    let all = measured.over(Sample::all);
    let gateway = measured.over(Sample::gateway).median;
    let middle = y + BAR / 2.0;
    let class = if ours { "name ours" } else { "name" };
    let name = measured.job.contender.title(measured.job.limits);
    text(out, (LEFT - 10.0, middle + 4.0), class, name);
    rectangle(out, LEFT, y, gateway * scale, dark);
    rectangle(
        out,
        LEFT + gateway * scale,
        y,
        (all.median - gateway).max(0.0) * scale,
        light,
    );
    let [least, greatest] = [all.min, all.max].map(|us| LEFT + us * scale);
    let top = middle - 3.0;
    let line = format!(
        "M{least:.1} {middle:.1}H{greatest:.1}M{least:.1} {top:.1}v6M{greatest:.1} {top:.1}v6"
    );
    // A light edge, so that it is seen on dark bars too.
    for (stroke, width) in [("#fff", 3), ("#24292f", 1)] {
        let _ = writeln!(
            out,
            "<path d=\"{line}\" stroke=\"{stroke}\" stroke-width=\"{width}\" fill=\"none\"/>"
        );
    }
    let thousands = measured.requests_per_second().median / 1000.0;
    let label = format!("{:.1} µs · {thousands:.1}k/s", all.median);
    let class = if ours { "ours" } else { "value" };
    text(out, (greatest + 8.0, middle + 4.0), class, &label);
}

fn grid(step: f64, scale: f64, bottom: f64) -> String {
    let mut out = String::new();
    for number in 0..=5 {
        let us = step * f64::from(number);
        let x = LEFT + us * scale;
        let _ = writeln!(
            out,
            "<path d=\"M{x:.1} {:.1}V{bottom:.1}\" stroke=\"#e6e8eb\"/>",
            TOP + 8.0
        );
        text(&mut out, (x, bottom + 18.0), "axis", &format!("{us:.0} µs"));
    }
    out
}

fn legend(out: &mut String) {
    let parts = [
        (OURS[0], OTHERS[0], "the gateway"),
        (OURS[1], OTHERS[1], "Valkey"),
    ];
    let mut x = 24.0;
    for (ours, others, name) in parts {
        rectangle(out, x, 68.0, 12.0, ours);
        rectangle(out, x + 14.0, 68.0, 12.0, others);
        text(out, (x + 32.0, 80.0), "note", name);
        x += 120.0;
    }
}

fn rectangle(out: &mut String, x: f64, y: f64, width: f64, fill: &str) {
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>"
    );
}

fn text(out: &mut String, (x, y): (f64, f64), class: &str, text: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{text}</text>"
    );
}
