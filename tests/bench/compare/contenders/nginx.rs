//! nginx: a proxy with kept connections, `limit_req`, and the upstream of everybody.

use std::fmt::Write;
use std::fs;
use std::net::SocketAddr;

use crate::jobs::Limits;
use crate::process::Process;
use crate::tools::Tool;

/// One that limits with `limit_req`, a zone a policy.
pub(crate) fn limiting(
    nginx: &Tool,
    upstream: SocketAddr,
    limits: Limits,
) -> (SocketAddr, Process) {
    let mut http = to(upstream);
    let mut location = String::new();
    for number in 0..limits.count() {
        let (rate, burst) = if limits.deny() {
            ("1r/m", "")
        } else {
            ("1000000r/s", " burst=1000000 nodelay")
        };
        let _ = writeln!(
            http,
            "limit_req_zone $binary_remote_addr zone=z{number}:10m rate={rate};"
        );
        let _ = writeln!(location, "limit_req zone=z{number}{burst};");
    }
    // A denial is no error of the server's, and not worth a line.
    http.push_str("limit_req_status 429; limit_req_log_level info;\n");
    let server = forwarding(&location);
    let setup = Setup {
        http: &http,
        server: &server,
        ..Setup::default()
    };
    start(nginx, setup)
}

/// The upstream, with connections kept for each that a client may have.
pub(crate) fn to(upstream: SocketAddr) -> String {
    format!(
        "upstream api {{ server {upstream}; keepalive 1024; keepalive_requests 1000000000; }}\n"
    )
}

/// A location that passes everything on, after these lines.
pub(crate) fn forwarding(first: &str) -> String {
    format!(
        "location / {{\n{first}\nproxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection \"\";\n\
         proxy_set_header X-Forwarded-For $remote_addr;\n}}"
    )
}

/// What one is told.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Setup<'a> {
    /// Lines at the head of its file.
    pub(crate) head: &'a str,
    /// Lines of `http`.
    pub(crate) http: &'a str,
    /// Lines of `server`.
    pub(crate) server: &'a str,
    /// A Lua module `limit` beside the file.
    pub(crate) module: Option<&'a str>,
}

pub(crate) fn start(nginx: &Tool, setup: Setup<'_>) -> (SocketAddr, Process) {
    let Setup {
        head, http, server, ..
    } = setup;
    Process::start("nginx", |folder, address| {
        let file = folder.join("nginx.conf");
        let here = folder.display();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {here}/{name};\n"))
            .collect();
        let config = format!(
            "{head}\nuser root;\ndaemon off;\nworker_processes 1;\npid {here}/pid;\nerror_log stderr warn;\n\
             events {{ worker_connections 8192; }}\nhttp {{\naccess_log off;\n{temporary}\
             keepalive_requests 1000000000;\nkeepalive_timeout 60s;\n{http}\n\
             server {{\nlisten {address};\n{server}\n}}\n}}\n"
        );
        fs::write(&file, config).unwrap();
        if let Some(module) = setup.module {
            fs::write(folder.join("limit.lua"), module).unwrap();
        }
        let mut command = nginx.command();
        command.arg("-p").arg(folder).arg("-c").arg(file);
        command.args(["-e", "stderr"]);
        command
    })
}
