//! Whether the listeners' addresses can be had: Pingora runs on when one cannot.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpSocket;

use super::serve::StartError;
use crate::config::Config;

/// Says of the first listener whose address cannot be had that it cannot, and why.
pub(super) fn can_be_had(config: &Config) -> Result<(), StartError> {
    let listeners = config
        .listeners
        .iter()
        .map(|listener| (format!("listener `{}`", listener.name), listener.address));
    let metrics = config
        .metrics
        .iter()
        .map(|metrics| ("[metrics]".to_owned(), metrics.address));
    let admin = config
        .admin
        .iter()
        .map(|admin| ("[admin]".to_owned(), admin.address));
    let mut seen = Vec::new();
    for (what, address) in listeners.chain(admin).chain(metrics) {
        let bound = if seen.iter().any(|other| overlap(address, *other)) {
            Err(io::ErrorKind::AddrInUse.into())
        } else {
            bind(address)
        };
        if let Err(error) = bound {
            return Err(StartError::Bind {
                what,
                address,
                error,
            });
        }
        seen.push(address);
    }
    Ok(())
}

/// Whether the address can be had. It is not listened on: whoever connected to that would be cut off.
fn bind(address: SocketAddr) -> io::Result<()> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // As the listener will: connections that have just ended are no hindrance.
    socket.set_reuseaddr(true)?;
    socket.bind(address)
}

/// Whether two listeners would be one: `[::]` takes the IPv4 addresses, too.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let takes = |all: SocketAddr, some: SocketAddr| {
        all.ip().is_unspecified() && (all.is_ipv6() || some.is_ipv4())
    };
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || takes(one, other) || takes(other, one))
}
