//! Stands between a gateway and its Valkey, and spoils the next decision on its way back.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What becomes of a decision that the server has made and charged.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// The connection breaks before it arrives.
    Lost,
    /// It arrives after this time.
    Late(Duration),
}

/// A relay. Requests always arrive; so do answers, but for those that meet a [`Fate`].
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    next: Arc<Mutex<Option<Fate>>>,
}

impl Relay {
    /// Starts one to this server. It ends with the test's process.
    pub(crate) fn to(server: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let relay = Self {
            address: listener.local_addr().unwrap(),
            next: Arc::default(),
        };
        let next = Arc::clone(&relay.next);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&server) else {
                    continue;
                };
                let (Ok(to_server), Ok(to_client)) = (server.try_clone(), client.try_clone())
                else {
                    continue;
                };
                let _ = to_server.set_nodelay(true);
                let _ = to_client.set_nodelay(true);
                let next = Arc::clone(&next);
                thread::spawn(move || pass_on(client, to_server, |_| None));
                thread::spawn(move || pass_on(server, to_client, |bytes| meets(bytes, &next)));
            }
        });
        relay
    }

    /// The next decision meets this fate.
    pub(crate) fn spoil_next(&self, fate: Fate) {
        *self.next.lock().unwrap() = Some(fate);
    }
}

/// A decision is an array; what else a server says is not.
fn meets(bytes: &[u8], next: &Mutex<Option<Fate>>) -> Option<Fate> {
    let decides = bytes.starts_with(b"*") || bytes.windows(2).any(|two| two == b"\n*");
    decides.then(|| next.lock().unwrap().take()).flatten()
}

fn pass_on(mut from: TcpStream, mut to: TcpStream, fate: impl Fn(&[u8]) -> Option<Fate>) {
    let mut bytes = [0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        match fate(&bytes[..length]) {
            Some(Fate::Lost) => break,
            Some(Fate::Late(by)) => thread::park_timeout(by),
            None => {}
        }
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
