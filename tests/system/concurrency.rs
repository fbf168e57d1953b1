//! Concurrency as an operator runs it: gateways that share slots, and every way in which a request can end.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::support::cluster::Cluster;
use crate::support::gateway::{Gateway, free_address, secret_file};
use crate::support::http::{Connection, Response, get};
use crate::support::origin::Origin;
use crate::support::valkey::Valkey;

const UP: &str = "tollgate_store_up";
const HELD: &str = "tollgate_store_slots";
const IN_USE: &str = "tollgate_policy_concurrency_in_use{policy=\"slots\"}";

/// One route with so many slots for everybody, in this store, and what else there is to say.
fn config(store: Option<&Valkey>, upstream: SocketAddr, slots: &str, more: &str) -> String {
    let store = store.map_or_else(String::new, |valkey| {
        format!(
            "[store]\nkind = \"valkey\"\nurl = \"valkey://{}\"\ntimeout = \"5s\"\n\
             key_secret_file = \"{}\"\n",
            valkey.address(),
            secret_file().display()
        )
    });
    format!(
        "{store}[upstreams.app]\nservers = [\"{upstream}\"]\n\
         [policies.slots]\nkind = \"concurrency\"\nkey = \"global\"\n{slots}\n\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"app\"\npolicies = [\"slots\"]\n{more}"
    )
}

/// So many gateways with this configuration.
fn gateways<const N: usize>(config: &str) -> [Gateway; N] {
    let gateways = [config; N].map(Gateway::start);
    for gateway in &gateways {
        gateway.await_metric(UP, 1.0);
    }
    gateways
}

/// Asks to become a WebSocket; returns the connection, and the answer.
fn upgrade(address: SocketAddr) -> (Connection, Response) {
    upgrade_with(address, "")
}

/// The same with these field lines.
fn upgrade_with(address: SocketAddr, fields: &str) -> (Connection, Response) {
    let mut socket = Connection::open(address);
    let head = "GET /websocket HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    socket
        .send(head.replace("\r\n\r\n", &format!("\r\n{fields}\r\n")))
        .unwrap();
    let answer = socket.receive(false).unwrap();
    (socket, answer)
}

/// WebSockets until one is denied, or so many.
fn fill(address: SocketAddr, most: usize) -> Vec<Connection> {
    let mut sockets = Vec::new();
    while sockets.len() < most {
        let (socket, answer) = upgrade(address);
        if answer.status != 101 {
            assert_eq!(answer.status, 429, "{answer:?}");
            break;
        }
        sockets.push(socket);
    }
    sockets
}

/// What the store holds of all keys, whosever it is.
fn stored(valkey: &Valkey) -> u64 {
    let mut connection = valkey.connect();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*{*}*")
        .query(&mut connection)
        .unwrap();
    let held = keys.iter().map(|key| {
        let kind: String = redis::cmd("TYPE").arg(key).query(&mut connection).unwrap();
        if kind != "hash" {
            return 0;
        }
        let fields: HashMap<Vec<u8>, Vec<u8>> = redis::cmd("HGETALL")
            .arg(key)
            .query(&mut connection)
            .unwrap();
        let units = |value: &Vec<u8>| value[..6].iter().fold(0, |sum, b| sum << 8 | u64::from(*b));
        fields.values().map(units).sum()
    });
    held.sum()
}

/// Waits until it holds so much.
fn await_stored(valkey: &Valkey, units: u64) {
    let deadline = monotonic_now() + Duration::from_secs(40);
    while stored(valkey) != units {
        assert!(
            monotonic_now() < deadline,
            "{} instead of {units}",
            stored(valkey)
        );
        thread::park_timeout(Duration::from_millis(10));
    }
}

/// Waits until a request passes.
fn await_slot(address: SocketAddr) {
    let began = monotonic_now();
    while get(address, "/").status != 200 {
        assert!(monotonic_now() < began + Duration::from_secs(40));
        thread::park_timeout(Duration::from_millis(20));
    }
}

/// smithersai/smithers #893: check and take of a slot in two steps.
#[test]
fn of_a_hundred_upgrades_at_once_ten_are_accepted_by_two_gateways() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    let two: [Gateway; 2] = gateways(&config(Some(&valkey), origin.address, "limit = 10", ""));
    let together = Arc::new(Barrier::new(100));
    let tries: Vec<_> = (0..100)
        .map(|number| {
            let (address, together) = (two[number % 2].address, Arc::clone(&together));
            thread::spawn(move || {
                together.wait();
                upgrade(address)
            })
        })
        .collect();
    let (open, denied): (Vec<_>, Vec<_>) = tries
        .into_iter()
        .map(|it| it.join().unwrap())
        .partition(|(_, answer)| answer.status == 101);
    assert_eq!((open.len(), denied.len()), (10, 90));
    assert_eq!(stored(&valkey), 10);
    let in_use: f64 = two.iter().map(|gateway| gateway.metric(IN_USE)).sum();
    assert!((in_use - 10.0).abs() < 0.1, "{in_use}");
    for (_, answer) in &denied {
        assert_eq!(answer.status, 429);
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some("\"slots\";q=10;qu=\"concurrent-requests\"")
        );
        assert_eq!(answer.header("ratelimit"), Some("\"slots\";r=0"));
        assert!(matches!(answer.retry_after(), Some(1 | 2)), "{answer:?}");
        let detail = answer.json()["detail"].to_string();
        assert!(detail.contains("allows 10 at once"), "{detail}");
    }
    drop(open);
    await_stored(&valkey, 0);
    for gateway in &two {
        gateway.await_metric(HELD, 0.0);
        gateway.await_metric(IN_USE, 0.0);
    }
    // Nothing is left, not even a key.
    let left: Vec<String> = redis::cmd("KEYS")
        .arg("*slots*")
        .query(&mut valkey.connect())
        .unwrap();
    assert_eq!(left, [""; 0]);
}

/// ulule/limiter #244.
#[test]
fn of_three_websockets_with_two_slots_the_third_is_accepted_once_one_is_closed() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    for store in [None, Some(&valkey)] {
        let [gateway] = gateways(&config(store, origin.address, "limit = 2", ""));
        let mut sockets = fill(gateway.address, 3);
        assert_eq!(sockets.len(), 2);
        // However long they say nothing.
        for socket in &mut sockets {
            socket.send("still there").unwrap();
            assert_eq!(socket.bytes(11).unwrap(), b"still there");
        }
        assert_eq!(get(gateway.address, "/").status, 429);
        sockets.pop();
        await_slot(gateway.address);
        sockets.extend(fill(gateway.address, 2));
        assert_eq!(sockets.len(), 2);
    }
}

/// apache/apisix #12823: slots kept by a dead gateway.
#[test]
fn the_slots_of_a_gateway_that_is_killed_are_free_within_the_lease() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    let slots = "limit = 50\nlease = \"5s\"";
    let [dying, other] = gateways(&config(Some(&valkey), origin.address, slots, ""));
    let sockets = fill(dying.address, 60);
    assert_eq!(sockets.len(), 50);
    // They are held for longer than a lease, and nobody takes them for free.
    let began = monotonic_now();
    while monotonic_now() < began + Duration::from_secs(6) {
        assert_eq!(get(other.address, "/").status, 429);
        thread::park_timeout(Duration::from_millis(50));
    }
    dying.signal("-KILL");
    await_slot(other.address);
    assert_eq!(fill(other.address, 60).len(), 50);
}

/// openresty/lua-resty-limit-traffic #25: the count creeps up where clients leave half way. Two policies are held at
/// once, and both are given back.
#[test]
fn five_thousand_requests_that_are_given_up_leave_nothing_in_flight() {
    let (valkey, origin) = (Valkey::start(), Origin::start_forgetful());
    let more = "[policies.here]\nkind = \"concurrency\"\nlimit = 5000\nkey = \"global\"\nstore = \"local\"\n";
    let config = config(Some(&valkey), origin.address, "limit = 5000", more)
        .replace("[\"slots\"]", "[\"slots\", \"here\"]");
    let two: [Gateway; 2] = gateways(&config);
    let clients: Vec<_> = (0..50)
        .map(|number| {
            let address = two[number % 2].address;
            thread::spawn(move || {
                let mut random = fastrand::Rng::with_seed(u64::try_from(number).unwrap());
                for _ in 0..100 {
                    let mut connection = Connection::open(address);
                    let target = random.choice(["/slow/30", "/stream/3", "/"]).unwrap();
                    let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
                    connection.send(head).unwrap();
                    thread::park_timeout(Duration::from_micros(random.u64(0..20_000)));
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    for gateway in &two {
        gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
        gateway.await_metric(HELD, 0.0);
        gateway.await_metric(IN_USE, 0.0);
        gateway.await_metric("tollgate_policy_concurrency_in_use{policy=\"here\"}", 0.0);
    }
    await_stored(&valkey, 0);
    let fields = get(two[0].address, "/");
    let limits = fields.header("ratelimit").unwrap_or_default().to_owned();
    assert!(limits.contains("\"slots\";r=4999"), "{limits}");
    assert!(limits.contains("\"here\";r=4999"), "{limits}");
}

#[test]
fn a_slot_is_given_back_on_every_way_out() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    let more = format!(
        "[upstreams.gone]\nservers = [\"{}\"]\nretries = 0\n\
         [policies.queue]\nkind = \"leaky-bucket\"\nlimit = \"1/min\"\nburst = 5\nkey = \"global\"\n\
         [policies.rare]\nkind = \"fixed-window\"\nlimit = \"1/d\"\nkey = \"global\"\n\
         [routes.gone]\nmatch = {{ path = \"/gone\" }}\nupstream = \"gone\"\npolicies = [\"slots\"]\n\
         [routes.late]\nmatch = {{ path = \"/slow/*\" }}\nupstream = \"app\"\ntimeout = \"100ms\"\npolicies = [\"slots\"]\n\
         [routes.fixed]\nmatch = {{ path = \"/fixed\" }}\nrespond = {{ status = 204 }}\npolicies = [\"slots\"]\n\
         [routes.queue]\nmatch = {{ path = \"/queue\" }}\nupstream = \"app\"\npolicies = [\"slots\", \"queue\"]\n\
         [routes.rare]\nmatch = {{ path = \"/rare\" }}\nupstream = \"app\"\npolicies = [\"rare\", \"slots\"]\n",
        free_address()
    );
    for store in [Some(&valkey), None] {
        // A single one: what is kept once is missed at once.
        let [gateway] = gateways(&config(store, origin.address, "limit = 1", &more));
        let free = |why: &str| {
            gateway.await_metric(IN_USE, 0.0);
            gateway.await_metric(HELD, 0.0);
            assert_eq!(get(gateway.address, "/").status, 200, "{why}");
            gateway.await_metric(IN_USE, 0.0);
        };
        for (target, status, why) in [
            ("/", 200, "an answer"),
            ("/status/500", 500, "an error of the upstream"),
            ("/status/304", 304, "an answer without a body"),
            ("/until-close", 200, "a body that ends with the connection"),
            ("/gone", 502, "an upstream that is not there"),
            ("/slow/60000", 504, "a route's time that is over"),
            ("/fixed", 204, "an answer of the gateway's own"),
            ("/rare", 200, "a policy that allows"),
            // envoyproxy/envoy #22390: a give-back without a take.
            ("/rare", 429, "an earlier policy that denies"),
        ] {
            assert_eq!(get(gateway.address, target).status, status, "{why}");
            free(why);
        }
        let mut connection = Connection::open(gateway.address);
        let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nbut no more";
        connection.send(head).unwrap();
        gateway.await_metric(IN_USE, 1.0);
        drop(connection);
        free("a body that is cut short");
        // The first passes at once, the second waits for a minute, with its slot.
        assert_eq!(get(gateway.address, "/queue").status, 200);
        free("a turn that came at once");
        let mut connection = Connection::open(gateway.address);
        connection
            .send("GET /queue HTTP/1.1\r\nHost: a\r\n\r\n")
            .unwrap();
        gateway.await_metric(IN_USE, 1.0);
        assert_eq!(get(gateway.address, "/").status, 429);
        drop(connection);
        free("a client that leaves the queue");
        redis::cmd("FLUSHALL").exec(&mut valkey.connect()).unwrap();
    }
}

#[test]
fn who_asks_one_after_the_other_is_never_one_too_many() {
    let (valkey, origin) = (Valkey::start(), Origin::start_forgetful());
    for store in [Some(&valkey), None] {
        let [gateway] = gateways(&config(store, origin.address, "limit = 1", ""));
        for number in 0..300 {
            let target = ["/", "/stream/1", "/status/404"][number % 3];
            let answer = get(gateway.address, target);
            assert!(answer.status != 429, "{number}: {answer:?}");
        }
    }
}

#[test]
fn what_ends_while_the_store_is_silent_or_forgets_is_counted_right_once_it_is_back() {
    let (mut valkey, origin) = (Valkey::start(), Origin::start());
    let slots = "limit = 4\nlease = \"4s\"\non_store_failure = \"deny\"";
    let config = config(Some(&valkey), origin.address, slots, "")
        .replace("timeout = \"5s\"", "timeout = \"1s\"");
    let [one, other] = gateways(&config);
    let mut sockets = fill(one.address, 4);
    assert_eq!(sockets.len(), 4);
    valkey.pause();
    sockets.truncate(2);
    one.await_metric(HELD, 2.0);
    // Nobody is let in meanwhile; what was asked then may or may not be charged there, and is not in flight.
    for _ in 0..5 {
        assert_eq!(get(one.address, "/").status, 503);
    }
    valkey.resume();
    one.await_metric(UP, 1.0);
    other.await_metric(UP, 1.0);
    await_stored(&valkey, 2);
    let more = {
        await_slot(other.address);
        await_stored(&valkey, 2);
        fill(other.address, 4)
    };
    assert_eq!(more.len(), 2);
    // A store that starts again with nothing is told what is held.
    valkey.restart();
    await_stored(&valkey, 4);
    one.await_metric(UP, 1.0);
    assert_eq!(get(one.address, "/").status, 429);
    assert!(one.metric("tollgate_store_slots_restored_total") >= 2.0);
    drop((sockets, more));
    await_stored(&valkey, 0);
}

#[test]
fn without_the_store_all_that_is_in_flight_counts_and_is_told_of_later() {
    let (mut valkey, origin) = (Valkey::start(), Origin::start());
    let config = config(Some(&valkey), origin.address, "limit = 6", "")
        .replace("timeout = \"5s\"", "timeout = \"1s\"\ninstances = 2");
    let [gateway] = gateways(&config);
    let mut sockets = fill(gateway.address, 2);
    valkey.kill();
    gateway.await_metric(UP, 0.0);
    // A share of three, of which two were in flight before.
    sockets.extend(fill(gateway.address, 6));
    assert_eq!(sockets.len(), 3);
    valkey.restart();
    await_stored(&valkey, 3);
    gateway.await_metric(UP, 1.0);
    sockets.extend(fill(gateway.address, 6));
    assert_eq!(sockets.len(), 6);
    drop(sockets);
    await_stored(&valkey, 0);
    gateway.await_metric(HELD, 0.0);
}

#[test]
fn a_reload_keeps_what_is_in_flight_and_what_is_gone_is_given_back_all_the_same() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    for store in [Some(&valkey), None] {
        let of = |slots: &str| config(store, origin.address, slots, "");
        let [gateway] = gateways(&of("limit = 2"));
        let mut sockets = fill(gateway.address, 3);
        assert_eq!(sockets.len(), 2);
        assert!(gateway.reload(&of("limit = 3")));
        sockets.extend(fill(gateway.address, 3));
        assert_eq!(sockets.len(), 3, "one more");
        assert!(gateway.reload(&of("limit = 1")));
        sockets.truncate(1);
        gateway.await_metric(IN_USE, 1.0);
        assert_eq!(
            get(gateway.address, "/").status,
            429,
            "the last one is in use"
        );
        let without = of("limit = 1").replace("policies = [\"slots\"]", "policies = []");
        assert!(gateway.reload(&without));
        drop(sockets);
        gateway.await_metric("tollgate_http_in_flight_requests", 0.0);
        gateway.await_metric(HELD, 0.0);
        assert!(gateway.reload(&of("limit = 1")));
        await_slot(gateway.address);
        if store.is_some() {
            await_stored(&valkey, 0);
        }
    }
}

#[test]
fn a_gateway_that_stops_leaves_no_slot_behind() {
    let (valkey, origin) = (Valkey::start(), Origin::start());
    let config = config(Some(&valkey), origin.address, "limit = 3", "")
        + "[server]\ngrace_period = \"1s\"\n";
    let [mut stopping] = gateways(&config);
    let sockets = fill(stopping.address, 3);
    assert_eq!(stored(&valkey), 3);
    assert_eq!(stopping.stop(), Some(0));
    assert_eq!(stored(&valkey), 0);
    drop(sockets);
}

#[test]
fn on_a_cluster_two_slots_are_held_and_given_back_together_wherever_they_move() {
    const CALLERS: usize = 6;
    let (cluster, origin) = (Cluster::start(2), Origin::start());
    let policy = |name: &str, limit: u8| {
        format!(
            "[policies.{name}]\nkind = \"concurrency\"\nlimit = {limit}\nlease = \"4s\"\n\
             key = \"header:x-{name}\"\non_missing_key = \"deny\"\n"
        )
    };
    let config = format!(
        "[store]\nkind = \"valkey\"\ncluster = {}\ntimeout = \"2s\"\non_failure = \"deny\"\n\
         key_secret_file = \"{}\"\n[upstreams.app]\nservers = [\"{}\"]\n{}{}\
         [routes.all]\nmatch = {{ path = \"/*\" }}\nupstream = \"app\"\npolicies = [\"a\", \"b\"]\n",
        cluster.seeds(),
        secret_file().display(),
        origin.address,
        policy("a", 5),
        policy("b", 3),
    );
    let two: [Gateway; 2] = gateways(&config);
    let stored = || cluster.nodes.iter().map(stored).sum::<u64>();
    let await_stored = |units: u64| {
        let deadline = monotonic_now() + Duration::from_secs(40);
        while stored() != units {
            assert!(monotonic_now() < deadline, "{} not {units}", stored());
            thread::park_timeout(Duration::from_millis(10));
        }
    };
    let fields = |caller: usize| format!("X-A: {caller}\r\nX-B: {caller}\r\n");
    let mut open = Vec::new();
    for caller in 0..CALLERS {
        let tries: Vec<_> = (0..6)
            .map(|number| {
                let (address, fields) = (two[number % 2].address, fields(caller));
                thread::spawn(move || upgrade_with(address, &fields))
            })
            .collect();
        let answers = tries.into_iter().map(|it| it.join().unwrap());
        let accepted: Vec<_> = answers.filter(|(_, it)| it.status == 101).collect();
        assert!(accepted.len() <= 3, "{caller}: {}", accepted.len());
        open.extend(accepted.into_iter().map(|(socket, _)| socket));
    }
    // Two that ask at once may deny each other, so not all need to pass; what was taken of one alone is given back.
    assert!(open.len() > CALLERS, "{}", open.len());
    let held = 2 * u64::try_from(open.len()).unwrap();
    await_stored(held);
    cluster.move_all_slots(0, 1);
    let began = monotonic_now();
    while monotonic_now() < began + Duration::from_secs(6) {
        thread::park_timeout(Duration::from_millis(100));
    }
    await_stored(held);
    drop(open);
    await_stored(0);
    for gateway in &two {
        gateway.await_metric(HELD, 0.0);
    }
}
