//! Whether more passes than a shared limit allows, where two gateways are asked at once for all that they can answer.

use std::thread;

use crate::House;
use crate::contenders::tollgate::{base, policy, ready, route};
use crate::load::{Callers, Load};
use crate::support::valkey::Valkey;

/// What may pass, and then one more in half an hour.
const LIMIT: u64 = 10_000;

const SECONDS: u32 = 6;

/// What became of the requests to both.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub(crate) limit: u64,
    pub(crate) requests: u64,
    pub(crate) admitted: u64,
    /// Requests that had no decision in time, and were refused for that.
    pub(crate) undecided: u64,
}

impl Admission {
    /// How many too many.
    pub(crate) fn over(&self) -> u64 {
        self.admitted.saturating_sub(self.limit)
    }
}

pub(crate) fn measure(house: &House) -> Admission {
    println!("two gateways, one limit of {LIMIT}");
    let valkey = Valkey::start();
    let config = [
        base(house.upstream, Some(&valkey)),
        policy("all", &format!("{LIMIT}/366d"), "header:x-client"),
        route("all", "/*", "\"all\""),
    ]
    .concat();
    let gateways = [(); 2].map(|()| ready(&config, Some(&valkey)));
    let answers = thread::scope(|scope| {
        let loads = gateways.each_ref().map(|gateway| {
            let load = Load {
                wrk: house.tools.wrk.as_ref().unwrap(),
                address: gateway.address,
                connections: house.connections,
                callers: Callers::One,
            };
            scope.spawn(move || load.run(SECONDS))
        });
        loads.map(|load| load.join().unwrap())
    });
    let sum = |count: &dyn Fn(usize) -> u64| (0..2).map(count).sum::<u64>();
    let refused = sum(&|i| answers[i].refused);
    assert!(refused > 0, "the limit was not reached: {answers:?}");
    let requests = sum(&|i| answers[i].requests);
    Admission {
        limit: LIMIT,
        requests,
        admitted: requests - refused,
        undecided: sum(&|i| undecided(&gateways[i].scrape())),
    }
}

/// Answers of 503 that a gateway counted.
fn undecided(exposition: &str) -> u64 {
    exposition
        .lines()
        .filter(|line| line.starts_with("tollgate_http_requests_total") && line.contains("\"503\""))
        .filter_map(|line| line.rsplit_once(' '))
        .map(|(_, count)| count.parse::<u64>().unwrap())
        .sum()
}
