//! A server that fails its checks gets no requests, and no request waits for a check.

use std::net::{SocketAddr, TcpListener};

use crate::support::gateway::{Gateway, free_address};
use crate::support::origin::Origin;

fn config(servers: &[SocketAddr], health: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|at| format!("\"{at}\"")).collect();
    format!(
        "[upstreams.app]\nservers = [{}]\nhealth = {{ {health} }}\nretries = 0\n\
         [policies.p]\nkind = \"fixed-window\"\nlimit = \"100000/d\"\nkey = \"ip\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"app\"\npolicies = [\"p\"]\n",
        servers.join(", ")
    )
}

const BY_PATH: &str = "path = \"/healthz\", interval = \"100ms\", timeout = \"10s\", healthy_after = 1, unhealthy_after = 2";

fn healthy(server: SocketAddr) -> String {
    format!("tollgate_upstream_healthy{{server=\"{server}\",upstream=\"app\"}}")
}

/// How many of some requests each of them gets.
fn shares(gateway: &Gateway, origins: &[&Origin]) -> Vec<usize> {
    for origin in origins {
        origin.take();
    }
    for _ in 0..12 {
        assert_eq!(gateway.get("/").status, 200);
    }
    let is_request = |target: &str| target == "/";
    origins
        .iter()
        .map(|origin| {
            let seen = origin.take();
            seen.iter().filter(|seen| is_request(&seen.target)).count()
        })
        .collect()
}

#[test]
fn a_server_that_fails_its_checks_is_left_out_until_they_pass_again() {
    let [one, two] = [(); 2].map(|()| Origin::start());
    let mut gateway = Gateway::start(&config(&[one.address, two.address], BY_PATH));
    assert_eq!(shares(&gateway, &[&one, &two]), [6, 6]);

    one.set_ill(true);
    gateway.await_metric(&healthy(one.address), 0.0);
    assert_eq!(shares(&gateway, &[&one, &two]), [0, 12]);
    let said = gateway.await_said("the server fails its checks");
    assert!(said.contains("it answered 503"), "{said}");
    gateway.await_metric(&healthy(two.address), 1.0);

    one.set_ill(false);
    gateway.await_metric(&healthy(one.address), 1.0);
    assert_eq!(shares(&gateway, &[&one, &two]), [6, 6]);
    let said = gateway.await_said("gets requests again");
    assert_eq!(said.matches("fails its checks").count(), 1, "{said}");

    // What a check asks.
    one.await_count(1);
    let asked = one.take().remove(0);
    assert_eq!(
        (&*asked.method, &*asked.target),
        ("GET", "/healthz"),
        "{asked:?}"
    );
    assert_eq!(asked.lines("host"), [one.address.to_string()]);
    assert_eq!(gateway.stop(), Some(0));
}

#[test]
fn where_no_server_passes_requests_go_to_all_of_them() {
    let [one, two] = [(); 2].map(|()| Origin::start());
    let gateway = Gateway::start(&config(&[one.address, two.address], BY_PATH));
    one.set_ill(true);
    two.set_ill(true);
    gateway.await_said("no server passes its checks");
    gateway.await_metric(&healthy(two.address), 0.0);
    assert_eq!(shares(&gateway, &[&one, &two]), [6, 6]);
    two.set_ill(false);
    gateway.await_metric(&healthy(two.address), 1.0);
    assert_eq!(shares(&gateway, &[&one, &two]), [0, 12]);
}

#[test]
fn a_reload_keeps_what_is_known_of_the_servers_that_stay() {
    let [one, two, three] = [(); 3].map(|()| Origin::start());
    let gateway = Gateway::start(&config(&[one.address, two.address], BY_PATH));
    one.set_ill(true);
    gateway.await_metric(&healthy(one.address), 0.0);
    // It is well again, and would have to show that a hundred times.
    let lasting = BY_PATH.replace("healthy_after = 1", "healthy_after = 100");
    assert!(gateway.reload(&config(&[three.address, one.address], &lasting)));
    one.set_ill(false);
    gateway.await_metric(&healthy(one.address), 0.0);
    assert_eq!(shares(&gateway, &[&one, &two, &three]), [0, 0, 12]);
    let scrape = gateway.scrape();
    assert!(!scrape.contains(&healthy(two.address)), "{scrape}");

    // Nobody is checked any more: all get requests.
    let without = config(&[one.address, three.address], "").replace("health = {  }\n", "");
    assert!(gateway.reload(&without));
    assert_eq!(shares(&gateway, &[&one, &three]), [6, 6]);
    let scrape = gateway.scrape();
    assert!(!scrape.contains("tollgate_upstream_healthy{"), "{scrape}");
}

#[test]
fn a_server_that_can_be_connected_to_passes_a_check_by_tcp() {
    let (one, nobody) = (Origin::start(), free_address());
    let gateway = Gateway::start(&config(
        &[one.address, nobody],
        "tcp = true, interval = \"100ms\", healthy_after = 1",
    ));
    gateway.await_metric(&healthy(nobody), 0.0);
    assert_eq!(shares(&gateway, &[&one]), [12]);
    let somebody = TcpListener::bind(nobody).unwrap();
    gateway.await_metric(&healthy(nobody), 1.0);
    drop(somebody);
}

#[test]
fn a_server_that_does_not_answer_in_time_fails_and_holds_nobody_up() {
    let one = Origin::start();
    // The kernel accepts; nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let gateway = Gateway::start(&config(
        &[one.address, address],
        "path = \"/healthz\", interval = \"100ms\", timeout = \"500ms\", unhealthy_after = 1",
    ));
    gateway.await_metric(&healthy(address), 0.0);
    let said = gateway.await_said("the server fails its checks");
    assert!(said.contains("not over within 500ms"), "{said}");
    assert_eq!(shares(&gateway, &[&one]), [12]);
}

#[test]
fn another_status_may_be_what_is_expected() {
    let one = Origin::start();
    let expect = |expect: &str| {
        config(
            &[one.address],
            &format!(
                "path = \"/status/301\", interval = \"100ms\", unhealthy_after = 1, healthy_after = 1, expect = [{expect}]"
            ),
        )
    };
    let gateway = Gateway::start(&expect("200"));
    gateway.await_metric(&healthy(one.address), 0.0);
    assert!(gateway.reload(&expect("\"2xx\", 301")));
    gateway.await_metric(&healthy(one.address), 1.0);
}
