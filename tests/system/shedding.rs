//! Requests that are turned away because the gateway is full: whom, in which words, and that places come back.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::support::gateway::Gateway;
use crate::support::http::Connection;
use crate::support::origin::Origin;

const IN_FLIGHT: &str = "tollgate_load_requests{state=\"in_flight\"}";
const LIMIT: &str = "tollgate_load_limit{state=\"in_flight\"}";

const PRIORITIES: [&str; 3] = ["high", "normal", "low"];

/// A route for each priority, of that name; `/hold` of high priority, where the first request passes and the others
/// wait for an hour; and `/once`, of which a client has one an hour.
fn config(origin: &Origin, shedding: &str) -> String {
    let routes: String = PRIORITIES
        .map(|priority| {
            format!(
                "[routes.{priority}]\nmatch = {{ path = \"/{priority}/*\" }}\nupstream = \"app\"\nstrip_prefix = \"/{priority}\"\n\
                 policies = [\"plenty\"]\npriority = \"{priority}\"\n"
            )
        })
        .concat();
    format!(
        "{shedding}\n[upstreams.app]\nservers = [\"{}\"]\n\
         [policies.plenty]\nkind = \"token-bucket\"\nlimit = \"1_000_000/s\"\nkey = \"global\"\n\
         [policies.held]\nkind = \"leaky-bucket\"\nlimit = \"1/h\"\nburst = 1000\nkey = \"global\"\n\
         [policies.once]\nkind = \"sliding-log\"\nlimit = \"1/h\"\nkey = \"ip\"\nreject = \"shop\"\n\
         [rejects.shop]\ncors = [\"https://shop.example\"]\n{routes}\
         [routes.hold]\nmatch = {{ path = \"/hold\" }}\nrespond = {{ status = 204 }}\npolicies = [\"held\"]\n\
         priority = \"high\"\n\
         [routes.once]\nmatch = {{ path = \"/once\" }}\nrespond = {{ status = 204 }}\npolicies = [\"once\"]\n\
         priority = \"low\"\n",
        origin.address
    )
}

fn most(max_in_flight: usize) -> String {
    format!("[load_shedding]\nmax_in_flight = {max_in_flight}")
}

/// Connections with a request each that stays in flight for as long as they are open.
fn hold(gateway: &Gateway, held: &mut Vec<Connection>, count: usize) {
    if held.is_empty() {
        assert_eq!(gateway.get("/hold").status, 204);
    }
    while held.len() < count {
        let mut connection = Connection::open(gateway.address);
        connection
            .send("GET /hold HTTP/1.1\r\nHost: a.example\r\n\r\n")
            .unwrap();
        held.push(connection);
    }
    await_in_flight(gateway, count);
}

fn await_in_flight(gateway: &Gateway, count: usize) {
    gateway.await_metric(IN_FLIGHT, f64::from(u32::try_from(count).unwrap()));
}

fn shed(priority: &str, reason: &str) -> String {
    format!("tollgate_shed_total{{priority=\"{priority}\",reason=\"{reason}\"}}")
}

/// What a request of each priority is answered beside so many others.
fn statuses(gateway: &Gateway, beside: usize) -> [u16; 3] {
    PRIORITIES.map(|priority| {
        await_in_flight(gateway, beside);
        gateway.get(&format!("/{priority}/")).status
    })
}

#[test]
fn low_is_turned_away_first_then_normal_and_high_at_the_hard_limit() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, &most(20)));
    for priority in PRIORITIES {
        for reason in ["in_flight", "latency"] {
            assert!(gateway.metric(&shed(priority, reason)).abs() < f64::EPSILON);
        }
    }
    assert!((gateway.metric(LIMIT) - 20.0).abs() < f64::EPSILON);
    let mut held = Vec::new();
    for (count, expected) in [
        (15, [200, 200, 200]),
        (16, [200, 200, 503]),
        (18, [200, 200, 503]),
        (19, [200, 503, 503]),
        (20, [503, 503, 503]),
    ] {
        hold(&gateway, &mut held, count);
        assert_eq!(
            statuses(&gateway, count),
            expected,
            "with {count} in flight"
        );
    }
    for (priority, count) in [("high", 1.0), ("normal", 2.0), ("low", 4.0)] {
        gateway.await_metric(&shed(priority, "in_flight"), count);
    }
    // Those who leave make room.
    held.pop();
    assert_eq!(statuses(&gateway, 19), [200, 503, 503]);
    held.clear();
    assert_eq!(statuses(&gateway, 0), [200, 200, 200]);
    await_in_flight(&gateway, 0);
}

#[test]
fn who_is_turned_away_is_told_so_and_charged_nothing() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, &most(10)));
    let mut held = Vec::new();
    hold(&gateway, &mut held, 8);
    let mut connection = Connection::open(gateway.address);
    let mut waits = BTreeMap::new();
    // The first is answered by Pingora, the others without it.
    for _ in 0..40 {
        let answer = connection.ask("GET", "/once", &[("origin", "https://shop.example")]);
        assert_eq!(answer.status, 503);
        assert_eq!(answer.header("cache-control"), Some("no-store"));
        assert_eq!(
            answer.header("content-type"),
            Some("application/problem+json")
        );
        assert_eq!(
            answer.header("access-control-allow-origin"),
            Some("https://shop.example")
        );
        assert_eq!(answer.header("ratelimit"), None);
        let wait = answer.retry_after().unwrap();
        let problem = answer.json();
        assert_eq!(
            problem["type"],
            "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
        );
        assert_eq!(problem["status"], 503);
        assert_eq!(
            problem["violated-policies"],
            serde_json::json!(["load-shedding"])
        );
        assert_eq!(problem["retry_after_seconds"], wait);
        *waits.entry(wait).or_insert(0) += 1;
    }
    assert!(
        waits.len() > 1 && waits.keys().all(|wait| (1..=4).contains(wait)),
        "they return together: {waits:?}"
    );
    let head = connection.ask("HEAD", "/once", &[]);
    assert_eq!((head.status, head.body.len()), (503, 0));
    gateway.await_metric(&shed("low", "in_flight"), 41.0);
    let units = "tollgate_policy_units_total{policy=\"once\"}";
    gateway.await_metric(units, 0.0);
    // Its one request is still there, once there is room, on the very connection.
    held.clear();
    await_in_flight(&gateway, 0);
    assert_eq!(connection.ask("GET", "/once", &[]).status, 204);
    assert_eq!(connection.ask("GET", "/once", &[]).status, 429);
    gateway.await_metric(units, 1.0);
    gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
    let decisions = |word: &str| {
        let log = gateway.access_log();
        let wanted = format!("\"decision\":\"{word}\"");
        log.lines()
            .filter(|line| line.contains("\"path\":\"/once\"") && line.contains(&wanted))
            .count()
    };
    while decisions("deny") == 0 {
        thread::park_timeout(Duration::from_millis(10));
    }
    assert_eq!((decisions("shed"), decisions("allow")), (41, 1));
}

#[test]
fn at_twice_what_may_be_in_flight_high_is_always_served_and_low_refused_first() {
    const CLIENTS: [usize; 3] = [5, 75, 120];
    const ROUNDS: usize = 12;
    let origin = Origin::start_forgetful();
    let gateway = Gateway::start(&config(&origin, &most(100)));
    let start = Barrier::new(CLIENTS.iter().sum());
    let work = |priority: &str| {
        let mut connection = Connection::open(gateway.address);
        start.wait();
        let mut served = 0;
        for _ in 0..ROUNDS {
            let answer = connection.ask("GET", &format!("/{priority}/slow/100"), &[]);
            match answer.status {
                200 => served += 1,
                // A client that does not keep to what it is told: it comes again while nothing has changed.
                503 => thread::park_timeout(Duration::from_millis(100)),
                other => panic!("{other} was answered"),
            }
        }
        served
    };
    let served: [usize; 3] = thread::scope(|scope| {
        let crowds = [0, 1, 2].map(|which| {
            let work = &work;
            let clients = (0..CLIENTS[which]).map(|_| scope.spawn(move || work(PRIORITIES[which])));
            clients.collect::<Vec<_>>()
        });
        crowds.map(|crowd| crowd.into_iter().map(|client| client.join().unwrap()).sum())
    });
    let asked = CLIENTS.map(|clients| clients * ROUNDS);
    println!("served {served:?} of {asked:?} of high, normal, low");
    assert_eq!(served[0], asked[0], "high: {served:?} of {asked:?}");
    // In hundredths.
    let share = |which: usize| served[which] * 100 / asked[which];
    assert!(share(2) < share(1), "{served:?} of {asked:?}");
    assert!(served[2] < asked[2], "nobody was turned away");
    for which in 0..3 {
        let turned_away = u32::try_from(asked[which] - served[which]).unwrap();
        gateway.await_metric(
            &shed(PRIORITIES[which], "in_flight"),
            f64::from(turned_away),
        );
    }
    let all = u32::try_from(served.iter().sum::<usize>()).unwrap();
    gateway.await_metric(
        "tollgate_policy_units_total{policy=\"plenty\"}",
        f64::from(all),
    );
    await_in_flight(&gateway, 0);
    gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
}

#[test]
fn who_leaves_in_the_middle_leaves_no_place_taken() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, &most(100)));
    let mut held = Vec::new();
    hold(&gateway, &mut held, 10);
    for target in ["/low/slow/60000", "/low/stream/600"] {
        for _ in 0..10 {
            let mut connection = Connection::open(gateway.address);
            connection
                .send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"))
                .unwrap();
            held.push(connection);
        }
    }
    // One that is still sending its body.
    let mut sending = Connection::open(gateway.address);
    sending
        .send("POST /low/ HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc")
        .unwrap();
    held.push(sending);
    await_in_flight(&gateway, 31);
    held.clear();
    await_in_flight(&gateway, 0);
}

#[test]
fn while_upstreams_are_slow_fewer_are_let_in_and_high_is_always() {
    const UNANSWERED_MAX: &str = "tollgate_load_limit{state=\"unanswered\"}";
    let origin = Origin::start_forgetful();
    let shedding = format!("{}\ntarget_latency = \"100ms\"", most(200));
    let gateway = Gateway::start(&config(&origin, &shedding));
    assert!((gateway.metric(UNANSWERED_MAX) - 200.0).abs() < f64::EPSILON);
    let (slow, over) = (AtomicBool::new(true), AtomicBool::new(false));
    let work = |priority: &str| {
        let mut connection = Connection::open(gateway.address);
        while !over.load(Ordering::SeqCst) {
            let takes = if slow.load(Ordering::SeqCst) { 400 } else { 20 };
            let answer = connection.ask("GET", &format!("/{priority}/slow/{takes}"), &[]);
            match answer.status {
                200 => {}
                503 if priority != "high" => thread::park_timeout(Duration::from_millis(20)),
                other => panic!("{other} was answered to {priority}"),
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| work("normal"));
        }
        for _ in 0..5 {
            scope.spawn(|| work("high"));
        }
        // Whatever is done: else nobody would see how the upstream is.
        gateway.await_metric(UNANSWERED_MAX, 10.0);
        while gateway.metric(&shed("normal", "latency")) < 1.0 {
            thread::park_timeout(Duration::from_millis(10));
        }
        slow.store(false, Ordering::SeqCst);
        // All of them fit again.
        while gateway.metric(UNANSWERED_MAX) < 45.0 {
            thread::park_timeout(Duration::from_millis(10));
        }
        over.store(true, Ordering::SeqCst);
    });
    for priority in PRIORITIES {
        assert!(gateway.metric(&shed(priority, "in_flight")).abs() < f64::EPSILON);
    }
    await_in_flight(&gateway, 0);
    gateway.await_metric("tollgate_load_requests{state=\"unanswered\"}", 0.0);
}

#[test]
fn who_waits_for_its_turn_or_reads_its_answer_is_not_unanswered() {
    const UNANSWERED: &str = "tollgate_load_requests{state=\"unanswered\"}";
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, &most(100)));
    let mut held = Vec::new();
    hold(&gateway, &mut held, 5);
    gateway.await_metric(UNANSWERED, 0.0);
    let mut ask = |target: &str| {
        let mut connection = Connection::open(gateway.address);
        connection
            .send(format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n"))
            .unwrap();
        held.push(connection);
    };
    ask("/low/stream/600");
    await_in_flight(&gateway, 6);
    gateway.await_metric(UNANSWERED, 0.0);
    ask("/low/slow/60000");
    await_in_flight(&gateway, 7);
    gateway.await_metric(UNANSWERED, 1.0);
    drop(held);
    await_in_flight(&gateway, 0);
    gateway.await_metric(UNANSWERED, 0.0);
}

#[test]
fn an_idle_tunnel_keeps_nobody_out() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, &most(2)));
    let mut tunnels = Vec::new();
    for _ in 0..4 {
        let mut tunnel = Connection::open(gateway.address);
        let upgrade = [("connection", "upgrade"), ("upgrade", "websocket")];
        assert_eq!(tunnel.ask("GET", "/low/websocket", &upgrade).status, 101);
        await_in_flight(&gateway, 0);
        tunnels.push(tunnel);
    }
    for tunnel in &mut tunnels {
        tunnel.send("hello").unwrap();
        assert_eq!(tunnel.bytes(5).unwrap(), b"hello");
    }
}

#[test]
fn a_reload_changes_the_limit_and_forgets_nobody_in_flight() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, ""));
    assert!(gateway.metric(LIMIT).abs() < f64::EPSILON);
    let mut held = Vec::new();
    hold(&gateway, &mut held, 10);
    assert_eq!(statuses(&gateway, 10), [200, 200, 200]);
    for (shedding, expected) in [
        (most(10), [503, 503, 503]),
        (most(11), [200, 503, 503]),
        (most(12), [200, 200, 503]),
        (most(13), [200, 200, 503]),
        (most(14), [200, 200, 200]),
        (format!("mode = \"shadow\"\n{}", most(10)), [200, 200, 200]),
        (most(5), [503, 503, 503]),
        (String::new(), [200, 200, 200]),
    ] {
        assert!(gateway.reload(&config(&origin, &shedding)), "{shedding}");
        assert_eq!(statuses(&gateway, 10), expected, "{shedding}");
    }
    held.clear();
    await_in_flight(&gateway, 0);
}

#[test]
fn a_request_that_is_denied_is_not_in_flight_while_the_rest_of_it_is_awaited() {
    let origin = Origin::start();
    let gateway = Gateway::start(&config(&origin, &most(2)));
    assert_eq!(gateway.get("/once").status, 204);
    await_in_flight(&gateway, 0);
    let mut sending = Vec::new();
    for _ in 0..3 {
        let mut connection = Connection::open(gateway.address);
        connection
            .send("POST /once HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc")
            .unwrap();
        assert_eq!(connection.receive(false).unwrap().status, 429);
        sending.push(connection);
    }
    assert_eq!(gateway.get("/once").status, 429);
    await_in_flight(&gateway, 0);
}
