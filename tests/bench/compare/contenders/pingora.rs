//! The least that can be written with Pingora: what Tollgate costs beyond it is Tollgate's own. This very binary is it,
//! started again with an argument, so that both come from the same compiler and profile.

use std::env;
use std::net::SocketAddr;
use std::process::Command;

use async_trait::async_trait;
use pingora::prelude::HttpPeer;
use pingora::proxy::{ProxyHttp, Session, http_proxy_service};
use pingora::server::Server;
use pingora::server::configuration::{Opt, ServerConf};

use crate::process::Process;

/// As many as Tollgate keeps: with less than one a connection, each request pays for a new one.
const UPSTREAM_IDLE_MAX: usize = 1024;

struct Bare(SocketAddr);

#[async_trait]
impl ProxyHttp for Bare {
    type CTX = ();

    fn new_ctx(&self) {}

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        _ctx: &mut (),
    ) -> pingora::Result<Box<HttpPeer>> {
        Ok(Box::new(HttpPeer::new(self.0, false, String::new())))
    }
}

/// Is the proxy, until the process is told to end.
pub(crate) fn serve(address: SocketAddr, upstream: SocketAddr) -> ! {
    let conf = ServerConf {
        threads: 1,
        upstream_keepalive_pool_size: UPSTREAM_IDLE_MAX,
        grace_period_seconds: Some(0),
        graceful_shutdown_timeout_seconds: Some(0),
        upgrade_sock: String::new(),
        ..ServerConf::default()
    };
    let mut server = Server::new_with_opt_and_conf(Opt::default(), conf);
    server.bootstrap();
    let mut service = http_proxy_service(&server.configuration, Bare(upstream));
    service.add_tcp(&address.to_string());
    server.add_service(service);
    server.run_forever()
}

pub(crate) fn start(upstream: SocketAddr) -> (SocketAddr, Process) {
    let this = env::current_exe().unwrap();
    Process::start("the bare proxy", |_, address| {
        let mut command = Command::new(&this);
        command
            .arg("--bare-proxy")
            .args([address.to_string(), upstream.to_string()]);
        command
    })
}
