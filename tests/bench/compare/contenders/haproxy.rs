//! HAProxy: a proxy with kept connections, and request rates in stick tables, a table a policy.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;

use crate::jobs::Limits;
use crate::process::Process;
use crate::tools::Tool;

pub(crate) fn start(haproxy: &Tool, upstream: SocketAddr, limits: Limits) -> (SocketAddr, Process) {
    let (mut rules, mut tables) = (String::new(), String::new());
    for (number, window) in ["1s", "1m", "1h"].iter().take(limits.count()).enumerate() {
        let _ = writeln!(rules, "  http-request track-sc{number} src table t{number}");
        let _ = writeln!(
            tables,
            "backend t{number}\n  stick-table type ip size 100k expire 1h store http_req_rate({window})"
        );
    }
    let limit = if limits.deny() { 0 } else { 4_000_000_000_u32 };
    for number in 0..limits.count() {
        // Unlike `deny`, `return` lets the client keep its connection, as the others do.
        let _ = writeln!(
            rules,
            "  http-request return status 429 content-type text/plain string \"slow down\" \
             if {{ sc_http_req_rate({number}) gt {limit} }}"
        );
    }
    Process::start("haproxy", |folder, address| {
        let file = folder.join("haproxy.cfg");
        let config = format!(
            "global\n  nbthread 1\n  maxconn 8192\n\
             defaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n\
             \x20 option http-keep-alive\n  http-reuse always\n\
             frontend all\n  bind {address}\n  option forwardfor\n{rules}  default_backend api\n\
             backend api\n  server api {upstream} pool-max-conn 1024\n{tables}"
        );
        fs::write(&file, config).unwrap();
        let mut command = haproxy.command();
        command.arg("-db").arg("-f").arg(file);
        command
    })
}
