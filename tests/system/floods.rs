//! Floods: of connections from few addresses, and of requests from very many. They cost their senders, and nobody else.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::gateway::Gateway;
use crate::support::http::Connection;
use crate::support::origin::Origin;

/// An address of this machine that no other test calls from.
fn local(network: u8, host: u8) -> IpAddr {
    Ipv4Addr::new(127, 9, network, host).into()
}

/// Calls from an address of its own until it is told to stop: on a connection that lasts, and on new ones.
fn well_meaning(source: IpAddr, address: SocketAddr, stop: &AtomicBool, served: &AtomicU32) {
    let mut lasting = Connection::open_from(source, address).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let mut new = Connection::open_from(source, address).unwrap();
        for connection in [&mut lasting, &mut new] {
            assert_eq!(connection.ask("GET", "/", &[]).status, 204);
            served.fetch_add(1, Ordering::Relaxed);
        }
        thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn a_flood_of_connections_from_few_addresses_costs_nobody_else() {
    const ATTACKERS: u8 = 5;
    const EACH: usize = 400;
    let gateway = Gateway::start(
        "[server]\nmax_connections = 700\nmax_connections_per_ip = 100\nlimits = { header_timeout = \"2s\" }\n\
         [routes.all]\nmatch = { path = \"/*\" }\nrespond = { status = 204 }\n",
    );
    gateway.await_metric("tollgate_connections", 0.0);
    let open_before = gateway.open_files();
    let (stop, served) = (AtomicBool::new(false), AtomicU32::new(0));
    thread::scope(|scope| {
        for host in 1..=3 {
            let (stop, served, address) = (&stop, &served, gateway.address);
            scope.spawn(move || well_meaning(local(1, host), address, stop, served));
        }
        let attackers: Vec<_> = (1..=ATTACKERS)
            .map(|host| {
                let address = gateway.address;
                scope.spawn(move || {
                    // Each connection begins a head and leaves it at that.
                    let mut held = Vec::new();
                    for _ in 0..EACH {
                        if let Ok(mut connection) = Connection::open_from(local(2, host), address) {
                            let _ = connection.send("GET / HTTP/1.1\r\nX: ");
                            held.push(connection);
                        }
                    }
                    // All of them end, sooner or later.
                    held.iter_mut()
                        .all(|connection| connection.is_closed_or_answered())
                })
            })
            .collect();
        for attacker in attackers {
            assert!(attacker.join().unwrap(), "a connection is held for ever");
        }
        stop.store(true, Ordering::Relaxed);
    });
    let served = served.load(Ordering::Relaxed);
    assert!(served > 50, "{served} requests of others were served");
    // At least as many as were there at first ran into their deadline; the others found no room.
    let refused = gateway.metric("tollgate_connections_refused_total{reason=\"address\"}");
    let timed_out = gateway.metric("tollgate_bad_requests_total{reason=\"header_timeout\"}");
    assert!(timed_out >= 500.0, "{timed_out}");
    assert!(refused >= 1.0, "{refused}");
    let all = f64::from(u32::from(ATTACKERS)) * 400.0;
    assert!(
        (timed_out + refused - all).abs() < f64::EPSILON,
        "{timed_out} and {refused}"
    );
    let total = gateway.metric("tollgate_connections_refused_total{reason=\"total\"}");
    assert!(total.abs() < f64::EPSILON, "{total}");

    // Nothing of it is left, and little was said of it.
    let said = gateway.errors();
    assert!(said.lines().count() < 50, "{said}");
    gateway.await_metric("tollgate_connections", 0.0);
    let deadline = monotonic_now() + Duration::from_secs(20);
    while gateway.open_files() > open_before {
        assert!(
            monotonic_now() < deadline,
            "{} files are open, not {open_before}",
            gateway.open_files()
        );
        thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn a_limit_on_files_is_raised_and_where_it_cannot_be_fewer_connect() {
    let config = "[server]\nmax_connections = 300\n\
                  [upstreams.api]\nservers = [\"ORIGIN\"]\n\
                  [routes.all]\nmatch = { path = \"/*\" }\nupstream = \"api\"\n";
    let origin = Origin::start();
    let config = config.replace("ORIGIN", &origin.address.to_string());
    // Each has a request running: two files. What is left when some are kept for other purposes is for 96 of them.
    for (hard, fit) in [(4096, 200), (512, 96)] {
        let gateway = Gateway::start_with_files(&config, 128, hard);
        gateway.await_metric("tollgate_connections", 0.0);
        let mut connections: Vec<_> = (0..200)
            .map(|_| Connection::open(gateway.address))
            .collect();
        let asked: Vec<_> = connections
            .iter_mut()
            .map(|connection| {
                connection
                    .send("GET /slow/2000 HTTP/1.1\r\nHost: a\r\n\r\n")
                    .is_ok()
            })
            .collect();
        let served = connections
            .iter_mut()
            .zip(asked)
            .filter_map(|(connection, asked)| connection.receive(false).ok().filter(|_| asked))
            .map(|answer| answer.status)
            .collect::<Vec<_>>();
        // More of them only where some had come late, and others were over by then.
        assert!(served.len() >= fit, "{} with {hard} files", served.len());
        assert!(served.iter().all(|status| *status == 200), "{served:?}");
        let refused = gateway.metric("tollgate_connections_refused_total{reason=\"total\"}");
        assert_eq!(refused > 0.0, hard == 512, "{refused} with {hard} files");
        assert_eq!(gateway.errors().contains("raise the limit"), hard == 512);
    }
}

/// What a state may take in memory, with a log of three requests and its share of what is not filled.
const BYTES_A_KEY: u64 = 200;

/// A request of this number's address, by a trusted proxy's word. The first byte keeps the crowds apart.
fn request(crowd: u8, number: u32) -> String {
    let [_, a, b, c] = number.to_be_bytes();
    format!("GET / HTTP/1.1\r\nHost: a\r\nX-Forwarded-For: {crowd}.{a}.{b}.{c}\r\n\r\n")
}

/// The statuses of one request of each of these numbers, many in a packet.
fn ask(connection: &mut Connection, crowd: u8, numbers: std::ops::Range<u32>) -> Vec<u16> {
    let numbers: Vec<_> = numbers.collect();
    let mut statuses = Vec::with_capacity(numbers.len());
    for batch in numbers.chunks(100) {
        let requests: String = batch.iter().map(|number| request(crowd, *number)).collect();
        connection.send(requests).unwrap();
        statuses.extend(
            batch
                .iter()
                .map(|_| connection.receive(false).unwrap().status),
        );
    }
    statuses
}

fn count(statuses: &[u16], wanted: u16) -> u32 {
    let found = statuses.iter().filter(|status| **status == wanted).count();
    found.try_into().unwrap()
}

/// More addresses call than there is room for.
fn flood(strangers: u32, max_keys: u32) {
    const DEBTORS: u32 = 500;
    let gateway = Gateway::start(&format!(
        "[store.local]\nmax_keys = {max_keys}\n[client_ip]\ntrusted_proxies = [\"127.0.0.0/8\"]\n\
         [logs]\naccess_sample = \"0%\"\n\
         [policies.each]\nkind = \"sliding-log\"\nlimit = \"3/300d\"\nkey = \"ip\"\non_store_failure = \"deny\"\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nrespond = {{ status = 204 }}\npolicies = [\"each\"]\n"
    ));
    let series = |gateway: &Gateway| gateway.scrape().lines().count();
    let mut connection = Connection::open(gateway.address);
    // Some have used all they may, some a part of it.
    for _ in 0..3 {
        assert_eq!(count(&ask(&mut connection, 10, 0..DEBTORS), 204), DEBTORS);
    }
    assert_eq!(count(&ask(&mut connection, 11, 0..DEBTORS), 204), DEBTORS);
    // A stranger with no room to be counted in has no decision: that is a status of its own, a series too.
    let (series_before, memory_before) = (series(&gateway), gateway.memory());

    let statuses = ask(&mut connection, 12, 0..strangers);
    assert_eq!(count(&statuses, 204), max_keys - 2 * DEBTORS);
    assert_eq!(count(&statuses, 503), strangers + 2 * DEBTORS - max_keys);
    assert!(
        (gateway.metric("tollgate_store_local_keys") - f64::from(max_keys)).abs() < f64::EPSILON
    );
    let grown = gateway.memory().saturating_sub(memory_before);
    // Besides, what the allocator keeps, and buffers.
    let bound = u64::from(max_keys) * BYTES_A_KEY + (32 << 20);
    assert!(grown < bound, "{grown} bytes more, for {max_keys} keys");
    // One status is new; of the callers nothing is told.
    let grown = series(&gateway) - series_before;
    assert!(grown <= 3, "{grown} more lines for {strangers} callers");

    // Those who were known are decided as if nothing had been.
    assert_eq!(count(&ask(&mut connection, 10, 0..DEBTORS), 429), DEBTORS);
    for status in [204, 204, 429] {
        assert_eq!(
            count(&ask(&mut connection, 11, 0..DEBTORS), status),
            DEBTORS
        );
    }
    eprintln!("{} MiB for {max_keys} keys", gateway.memory() >> 20);
}

#[test]
fn a_hundred_thousand_addresses_leave_memory_metrics_and_the_known_alone() {
    flood(100_000, 20_000);
}

#[test]
#[ignore = "takes a quarter of an hour: cargo test --release --test system -- --ignored ten_million"]
fn ten_million_addresses_leave_memory_metrics_and_the_known_alone() {
    flood(10_000_000, 1_000_000);
}

/// traefik/traefik #13704, Kong/kong #4422: counters of callers who never came again stayed in memory.
#[test]
fn memory_is_given_back_once_the_crowd_is_gone() {
    let gateway = Gateway::start(
        "[client_ip]\ntrusted_proxies = [\"127.0.0.0/8\"]\n[logs]\naccess_sample = \"0%\"\n\
         [policies.each]\nkind = \"fixed-window\"\nlimit = \"3/15s\"\nanchor = \"first-request\"\nkey = \"ip\"\n\
         [routes.all]\nmatch = { path = \"/*\" }\nrespond = { status = 204 }\npolicies = [\"each\"]\n",
    );
    let mut connection = Connection::open(gateway.address);
    ask(&mut connection, 10, 0..1_000);
    let before = gateway.memory();
    ask(&mut connection, 11, 0..200_000);
    let grown = gateway.memory().saturating_sub(before);
    assert!(
        grown > 8 << 20,
        "{grown} bytes: the crowd was too small to see"
    );
    gateway.await_metric("tollgate_store_local_keys", 0.0);
    // The allocator keeps it for some seconds, for whoever wants it next.
    let deadline = monotonic_now() + Duration::from_secs(40);
    let left = || gateway.memory().saturating_sub(before);
    while left() >= grown / 2 {
        let left = left();
        assert!(
            monotonic_now() < deadline,
            "{left} bytes are left of {grown}"
        );
        thread::park_timeout(Duration::from_millis(100));
    }
}
