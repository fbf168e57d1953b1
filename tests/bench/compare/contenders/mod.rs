//! Who is compared, and how each is set up: one worker, connections to the upstream kept, no access log, and limits so
//! large that they deny nothing, or so small that they deny all.

pub(crate) mod envoy;
pub(crate) mod haproxy;
pub(crate) mod nginx;
pub(crate) mod nginx_lua;
pub(crate) mod pingora;
pub(crate) mod tollgate;

use std::any::Any;
use std::net::SocketAddr;

use crate::House;
use crate::account;
use crate::jobs::Limits;
use crate::support::valkey::Valkey;
use crate::tools::Tools;

/// A gateway to compare.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Contender {
    Tollgate,
    Pingora,
    Nginx,
    Haproxy,
    Envoy,
    NginxLua,
}

impl Contender {
    pub(crate) const ALL: [Self; 6] = [
        Self::Tollgate,
        Self::Pingora,
        Self::Nginx,
        Self::Haproxy,
        Self::Envoy,
        Self::NginxLua,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tollgate => "tollgate",
            Self::Pingora => "pingora",
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::NginxLua => "nginx-lua",
        }
    }

    /// Its name to people, and what of it limits.
    pub(crate) fn title(self, limits: Limits) -> &'static str {
        match (self, limits) {
            (Self::Tollgate, _) => "Tollgate",
            (Self::Pingora, _) => "bare Pingora",
            (Self::Nginx, Limits::None) => "nginx",
            (Self::Nginx, _) => "nginx limit_req",
            (Self::Haproxy, Limits::None) => "HAProxy",
            (Self::Haproxy, _) => "HAProxy stick table",
            (Self::Envoy, Limits::None) => "Envoy",
            (Self::Envoy, _) => "Envoy local rate limit",
            (Self::NginxLua, _) => "nginx + Lua + Valkey",
        }
    }

    /// Whether it is in the comparison there.
    pub(crate) fn can(self, limits: Limits) -> bool {
        match self {
            Self::Tollgate => true,
            Self::Pingora => limits == Limits::None,
            Self::Nginx | Self::Haproxy | Self::Envoy => !limits.are_shared(),
            Self::NginxLua => limits.are_shared(),
        }
    }

    pub(crate) fn is_there(self, tools: &Tools) -> bool {
        match self {
            Self::Tollgate | Self::Pingora => true,
            Self::Nginx => tools.nginx.is_ok(),
            Self::Haproxy => tools.haproxy.is_ok(),
            Self::Envoy => tools.envoy.is_ok(),
            Self::NginxLua => tools.lua.is_ok(),
        }
    }

    /// Starts it, and a Valkey of its own where it shares its limits.
    pub(crate) fn start(self, house: &House, limits: Limits) -> Running {
        let valkey = limits.are_shared().then(Valkey::start);
        let tools = &house.tools;
        let (address, gateway, held): (_, _, Box<dyn Any>) = match self {
            Self::Tollgate => {
                let gateway = tollgate::start(house.upstream, limits, valkey.as_ref());
                (gateway.address, gateway.id(), Box::new(gateway))
            }
            Self::Pingora => held(pingora::start(house.upstream)),
            Self::Nginx => held(nginx::limiting(
                tools.nginx.as_ref().unwrap(),
                house.upstream,
                limits,
            )),
            Self::Haproxy => held(haproxy::start(
                tools.haproxy.as_ref().unwrap(),
                house.upstream,
                limits,
            )),
            Self::Envoy => held(envoy::start(
                tools.envoy.as_ref().unwrap(),
                house.upstream,
                limits,
            )),
            Self::NginxLua => held(nginx_lua::start(
                tools.lua.as_ref().unwrap(),
                house.upstream,
                limits,
                valkey.as_ref().unwrap(),
            )),
        };
        Running {
            address,
            gateway,
            valkey: valkey.as_ref().map(process_of),
            _held: (held, valkey),
        }
    }
}

fn held(started: (SocketAddr, crate::process::Process)) -> (SocketAddr, u32, Box<dyn Any>) {
    (started.0, started.1.id(), Box::new(started.1))
}

/// A contender at work; ended when dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    /// Its process.
    pub(crate) gateway: u32,
    valkey: Option<u32>,
    _held: (Box<dyn Any>, Option<Valkey>),
}

/// Processor time so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    pub(crate) gateway_us: u64,
    pub(crate) valkey_us: u64,
}

impl Running {
    pub(crate) fn spent(&self) -> Spent {
        Spent {
            gateway_us: account::cpu_us(self.gateway),
            valkey_us: self.valkey.map_or(0, account::cpu_us),
        }
    }
}

fn process_of(valkey: &Valkey) -> u32 {
    let info: String = redis::cmd("INFO")
        .arg("server")
        .query(&mut valkey.connect())
        .unwrap();
    let id = info
        .lines()
        .find_map(|line| line.strip_prefix("process_id:"));
    id.unwrap().trim().parse().unwrap()
}
