//! Reports about what is in force, and what the operator is told of it.

use super::{gateway, limited};
use crate::support::valkey::Valkey;

/// apache/apisix #7746: two policies of equal text shared a counter.
#[test]
fn equal_policies_of_different_names_count_apart() {
    let valkey = Valkey::start();
    let address = valkey.address();
    let two = "kind = \"token-bucket\"\nlimit = \"2/d\"";
    let rest = limited("left", two) + &limited("right", two);
    for store in [None, Some(&*address)] {
        let gateway = gateway(store, &rest);
        for path in ["/left", "/right"] {
            let statuses: Vec<_> = (0..3).map(|_| gateway.get(path).status).collect();
            assert_eq!(statuses, [200, 200, 429], "{path} in {store:?}");
        }
    }
}

/// krakend/krakend-ce #749: limits that had stopped working went unnoticed.
#[test]
fn what_is_enforced_is_said_at_the_start() {
    let gateway = gateway(
        None,
        &limited("six", "kind = \"token-bucket\"\nlimit = \"6/min\""),
    );
    let said = gateway.await_said("policy six: token bucket, 6 per 1 min");
    assert!(
        said.contains("route six: /six -> demo (built-in echo): six"),
        "{said}"
    );
}
