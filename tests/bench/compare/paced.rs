//! What a shared check adds to a request's time where nobody is in a hurry: the same paced requests, in turns, to a
//! route without policies and to one with a shared policy, of one gateway.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use tollgate::clock::monotonic_now;

use crate::House;
use crate::contenders::tollgate::{base, policy, ready, route};
use crate::figures::Spread;
use crate::support::load::paced;
use crate::support::valkey::Valkey;

/// Connections that the requests come over.
const CLIENTS: u32 = 16;

/// Times of answers, and what the shared check added to them, in µs.
#[derive(Debug)]
pub(crate) struct Added {
    /// Requests a second.
    pub(crate) rate: f64,
    pub(crate) plain: [Spread; 2],
    pub(crate) shared: [Spread; 2],
    /// To the half, and to 99 of 100.
    pub(crate) added: [Spread; 2],
}

/// Measures it at so many requests a second, in so many turns of a second each.
pub(crate) fn added(house: &House, rate: f64, turns: usize) -> Added {
    println!("paced, {rate:.0} requests/s");
    let valkey = Valkey::start();
    let config = [
        base(house.upstream, Some(&valkey)),
        policy("s", "1000000/s", "header:x-client"),
        route("plain", "/plain", ""),
        route("shared", "/shared", "\"s\""),
    ];
    let gateway = ready(&config.concat(), Some(&valkey));
    let phase = |route: &str| {
        let took = load(gateway.address, route, rate, Duration::from_secs(1));
        [50, 99].map(|percent| at(&took, percent))
    };
    for route in ["/plain", "/shared"] {
        phase(route);
    }
    let pairs: Vec<_> = (0..turns)
        .map(|turn| {
            // Neither is always the first.
            if turn % 2 == 0 {
                let plain = phase("/plain");
                (plain, phase("/shared"))
            } else {
                let shared = phase("/shared");
                (phase("/plain"), shared)
            }
        })
        .collect();
    let spread = |figure: fn(f64, f64) -> f64| {
        [0, 1].map(|i| {
            let figures = pairs
                .iter()
                .map(|(plain, shared)| figure(plain[i], shared[i]));
            Spread::of(figures.collect())
        })
    };
    Added {
        rate,
        plain: spread(|plain, _| plain),
        shared: spread(|_, shared| shared),
        added: spread(|plain, shared| shared - plain),
    }
}

/// What so many of a hundred stay within.
fn at(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

/// Times of answers in µs, the least first.
fn load(gateway: SocketAddr, target: &str, rate: f64, span: Duration) -> Vec<f64> {
    let began = monotonic_now() + Duration::from_millis(50);
    let apart = Duration::from_secs_f64(f64::from(CLIENTS) / rate);
    let mut took: Vec<_> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                // A client's turn lies evenly between those of the others.
                let first = began + apart * number / CLIENTS;
                let name = format!("client-{number}");
                scope.spawn(move || ask(gateway, target, &name, first, apart, span))
            })
            .collect();
        let answered = clients.into_iter().map(|client| client.join().unwrap());
        answered.flatten().collect()
    });
    took.sort_by(f64::total_cmp);
    took
}

/// One connection's requests, each at its time.
fn ask(
    gateway: SocketAddr,
    target: &str,
    name: &str,
    first: Instant,
    apart: Duration,
    span: Duration,
) -> Vec<f64> {
    let mut took = Vec::new();
    let times = (first, apart, span);
    paced(
        gateway,
        target,
        &[("x-client", name)],
        times,
        |response, span| {
            assert_eq!(response.status, 200, "{target}: {response:?}");
            took.push(span.as_secs_f64() * 1e6);
        },
    );
    took
}
