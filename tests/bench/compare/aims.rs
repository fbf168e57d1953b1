//! What Tollgate aims at beside the others, and whether it got there.

use crate::Findings;
use crate::contenders::Contender;
use crate::figures::{Measured, Sample, Spread};
use crate::jobs::Limits;
use crate::load::Callers;

/// A figure that should not be above its bound.
#[derive(Debug)]
pub(crate) struct Aim {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) bound: f64,
    pub(crate) found: Spread,
}

impl Aim {
    pub(crate) fn is_met(&self) -> bool {
        self.found.median <= self.bound
    }
}

/// Those that this run can tell about.
pub(crate) fn of(findings: &Findings) -> Vec<Aim> {
    let mut aims = Vec::new();
    let mut add = |what: String, unit, bound, found: Option<Spread>| {
        aims.extend(found.map(|found| Aim {
            what,
            unit,
            bound,
            found,
        }));
    };
    let find = |limits, callers, contender| {
        findings.measured.iter().find(|m| {
            m.job.limits == limits && m.job.callers == callers && m.job.contender == contender
        })
    };
    let ours = |limits, callers| find(limits, callers, Contender::Tollgate);
    let plain = ours(Limits::None, Callers::One);

    let bare = find(Limits::None, Callers::One, Contender::Pingora);
    let what = "no policies, CPU / bare Pingora's".to_owned();
    add(
        what,
        "",
        1.03,
        beside(plain, bare, |a, b| a.gateway() / b.gateway()),
    );

    let local = ours(Limits::Local(1), Callers::One);
    let what = "one policy in process, CPU added".to_owned();
    add(
        what,
        "µs",
        3.0,
        beside(local, plain, |a, b| a.gateway() - b.gateway()),
    );

    for (callers, keys) in [(Callers::One, "one key"), (Callers::Many, "1,000 keys")] {
        let (one, three) = (
            ours(Limits::Shared(1), callers),
            ours(Limits::Shared(3), callers),
        );
        let what = format!("three shared policies / one, gateway's CPU, {keys}");
        add(
            what,
            "",
            1.25,
            beside(three, one, |a, b| a.gateway() / b.gateway()),
        );
        let what = format!("three shared policies / one, Valkey's CPU, {keys}");
        add(
            what,
            "",
            1.8,
            beside(three, one, |a, b| a.valkey() / b.valkey()),
        );
        let what = format!("one shared policy, CPU added in all, {keys}");
        add(
            what,
            "µs",
            20.0,
            beside(one, plain, |a, b| a.all() - b.all()),
        );
        for (limits, policies) in [(Limits::Shared(1), "one"), (Limits::Shared(3), "three")] {
            let lua = find(limits, callers, Contender::NginxLua);
            let what = format!("{policies} shared, CPU in all / nginx + Lua's, {keys}");
            add(
                what,
                "",
                0.9,
                beside(ours(limits, callers), lua, |a, b| a.all() / b.all()),
            );
        }
    }

    let denied = ours(Limits::DeniedLocal, Callers::One);
    let nginx = find(Limits::DeniedLocal, Callers::One, Contender::Nginx);
    let what = "denied in process, CPU / nginx limit_req's".to_owned();
    add(
        what,
        "",
        1.3,
        beside(denied, nginx, |a, b| a.gateway() / b.gateway()),
    );

    let paced = findings.paced.as_ref().map(|paced| {
        let [_, Spread { median, min, max }] = paced.added;
        let [median, min, max] = [median, min, max].map(|us| us / 1000.0);
        Spread { median, min, max }
    });
    let what = "p99 that a shared check adds, at a tenth of saturation".to_owned();
    add(what, "ms", 0.5, paced);

    let over = findings
        .admission
        .map(|admission| Spread::of(vec![crate::figures::float(admission.over())]));
    add("requests above a shared limit".to_owned(), "", 0.0, over);
    aims
}

/// A figure of two jobs round by round, where both were measured.
fn beside(
    own: Option<&Measured>,
    other: Option<&Measured>,
    figure: impl Fn(&Sample, &Sample) -> f64,
) -> Option<Spread> {
    Some(own?.beside(other?, figure))
}
