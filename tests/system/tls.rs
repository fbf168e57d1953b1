//! TLS to the store: what is encrypted is also who it says it is.

use std::net::SocketAddr;

use crate::support::gateway::{Gateway, secret_file};
use crate::support::tls::{Authority, in_front_of};
use crate::support::valkey::Valkey;

const UP: &str = "tollgate_store_up";

/// Nobody passes without the store.
fn gateway(host: &str, address: SocketAddr, tls: &str) -> Gateway {
    Gateway::start(&format!(
        "[store]\nkind = \"valkey\"\nurl = \"valkeys://{host}:{}\"\ntls = {{ {tls} }}\n\
         timeout = \"2s\"\non_failure = \"deny\"\nkey_secret_file = \"{}\"\n\
         [upstreams.demo]\nbuiltin = \"echo\"\n\
         [policies.log]\nkind = \"sliding-log\"\nlimit = \"2/d\"\nkey = \"ip\"\n\
         [routes.r]\nmatch = {{ path = \"/*\" }}\nupstream = \"demo\"\npolicies = [\"log\"]\n",
        address.port(),
        secret_file().display()
    ))
}

fn counts(gateway: &Gateway) {
    gateway.await_metric(UP, 1.0);
    assert_eq!([(); 3].map(|()| gateway.get("/").status), [200, 200, 429]);
}

#[test]
fn a_server_with_a_certificate_of_the_authority_is_believed() {
    let (valkey, authority) = (Valkey::start(), Authority::new());
    let ca = format!("ca = \"{}\"", authority.file().display());
    for host in ["127.0.0.1", "localhost"] {
        let address = in_front_of(valkey.address(), authority.issue(host), None);
        counts(&gateway(host, address, &ca));
        redis::cmd("FLUSHALL").exec(&mut valkey.connect()).unwrap();
    }
}

#[test]
fn another_authority_another_name_and_no_tls_at_all_are_not() {
    let (valkey, authority) = (Valkey::start(), Authority::new());
    let believed = format!("ca = \"{}\"", authority.file().display());
    let other = format!("ca = \"{}\"", Authority::new().file().display());
    let good = in_front_of(valkey.address(), authority.issue("127.0.0.1"), None);
    let misnamed = in_front_of(valkey.address(), authority.issue("valkey.example"), None);
    let clear = valkey.address().parse().unwrap();
    for (address, ca, complaint) in [
        (good, &other, "invalid peer certificate: BadSignature"),
        (misnamed, &believed, "not valid for name"),
        (clear, &believed, "no connection"),
    ] {
        let gateway = gateway("127.0.0.1", address, ca);
        gateway.await_said(complaint);
        assert_eq!(gateway.get("/").status, 503, "{complaint}");
        assert!(gateway.metric(UP) < 1.0);
    }
}

#[test]
fn a_server_that_wants_a_certificate_is_shown_ours() {
    let (valkey, authority) = (Valkey::start(), Authority::new());
    let address = in_front_of(
        valkey.address(),
        authority.issue("127.0.0.1"),
        Some(&authority),
    );
    let ca = format!("ca = \"{}\"", authority.file().display());
    let nobody = gateway("127.0.0.1", address, &ca);
    nobody.await_said("no connection to the store");
    assert_eq!(nobody.get("/").status, 503);

    let ours = authority.issue("gateway.example");
    let shown = format!(
        "{ca}, cert = \"{}\", key = \"{}\"",
        ours.cert.display(),
        ours.key.display()
    );
    counts(&gateway("127.0.0.1", address, &shown));
}
