//! What callers take of Tollgate's memory where it counts in process.

use crate::House;
use crate::contenders::tollgate::{base, policy, ready, route};
use crate::load;

const CALLERS: u32 = 1_000_000;

/// Asked at once; between two of them it is looked whether all callers are known.
const SECONDS: u32 = 10;

/// Before and after, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) callers: u32,
    pub(crate) before: u64,
    pub(crate) after: u64,
}

pub(crate) fn measure(house: &House) -> Memory {
    println!("{CALLERS} callers, counted in process");
    let config = [
        base(house.upstream, None),
        format!("local.max_keys = {}\n", 2 * CALLERS),
        policy("s", "100/d", "header:x-client"),
        route("all", "/*", "\"s\""),
    ];
    let gateway = ready(&config.concat(), None);
    let before = gateway.memory();
    let known = || gateway.metric("tollgate_store_local_keys");
    for run in 0..60 {
        if known() >= f64::from(CALLERS) {
            break;
        }
        let script = FRESH
            .replace("FIRST", &(run * CALLERS).to_string())
            .replace("LAST", &CALLERS.to_string());
        let wrk = house.tools.wrk.as_ref().unwrap();
        load::run(
            wrk,
            gateway.address,
            house.connections,
            SECONDS,
            &load::keep("fresh.lua", &script),
        );
    }
    let callers = known();
    assert!(callers >= f64::from(CALLERS), "only {callers} are known");
    Memory {
        callers: CALLERS,
        before,
        after: gateway.memory(),
    }
}

/// A caller nobody has seen, in each request.
const FRESH: &str = r#"
local caller = FIRST
function request()
  caller = caller + 1
  return "GET / HTTP/1.1\r\nHost: a\r\nX-Client: caller-" .. caller .. "\r\n\r\n"
end
"#;
