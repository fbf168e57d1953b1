//! Stands between a gateway and its Valkey, and spoils the next decision on its way there or back.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// What becomes of a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fate {
    /// The connection breaks before the server hears of it.
    Cut,
    /// The server hears the first half of it, then the connection breaks.
    CutShort,
    /// It is made and charged, and the connection breaks before it arrives.
    Lost,
    /// It is made and charged, and half of it arrives before the connection breaks.
    LostShort,
    /// It is made and charged, and arrives after this time.
    Late(Duration),
    /// It is made and charged, and arrives a byte at a time, so far apart.
    Trickling(Duration),
    /// It is made and charged, and something else arrives.
    Garbage,
    /// It is made and charged, and from then on nothing passes either way, though the connection stays.
    HalfOpen,
}

impl Fate {
    /// Whether it meets a decision before it is made.
    const fn is_on_the_way_there(self) -> bool {
        matches!(self, Self::Cut | Self::CutShort)
    }

    /// Whether the decision is made and charged all the same.
    pub(crate) const fn charges(self) -> bool {
        !self.is_on_the_way_there()
    }
}

/// What lies on the whole way, for as long as it is said.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Weather {
    Fair,
    /// Nothing arrives, either way, and nothing is lost: it arrives later.
    Still,
    /// Whatever arrives is so late.
    Slow(Duration),
    /// Every connection breaks, and no new one comes about.
    Refusing,
}

/// A relay. Requests and answers arrive, but for those that meet a [`Fate`], or a [`Weather`] that is not fair.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    server: Arc<Mutex<String>>,
    next: Arc<Mutex<Option<Fate>>>,
    weather: Arc<Mutex<Weather>>,
}

/// How often a connection looks whether the weather is still the same.
const LOOK: Duration = Duration::from_millis(5);

impl Relay {
    /// Starts one to this server. It ends with the test's process.
    pub(crate) fn to(server: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let relay = Self {
            address: listener.local_addr().unwrap(),
            server: Arc::new(Mutex::new(server)),
            next: Arc::default(),
            weather: Arc::new(Mutex::new(Weather::Fair)),
        };
        let (next, weather) = (Arc::clone(&relay.next), Arc::clone(&relay.weather));
        let server = Arc::clone(&relay.server);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if *weather.lock().unwrap() == Weather::Refusing {
                    continue;
                }
                let server = server.lock().unwrap().clone();
                let Ok(server) = TcpStream::connect(server) else {
                    continue;
                };
                let (Ok(to_server), Ok(to_client)) = (server.try_clone(), client.try_clone())
                else {
                    continue;
                };
                let _ = to_server.set_nodelay(true);
                let _ = to_client.set_nodelay(true);
                let dead = Arc::new(AtomicBool::new(false));
                let there = (Arc::clone(&next), Arc::clone(&dead), Arc::clone(&weather));
                let back = (Arc::clone(&next), dead, Arc::clone(&weather));
                thread::spawn(move || {
                    pass_on(client, to_server, &there.1, &there.2, |bytes| {
                        asks(bytes, &there.0)
                    });
                });
                thread::spawn(move || {
                    pass_on(server, to_client, &back.1, &back.2, |bytes| {
                        answers(bytes, &back.0)
                    });
                });
            }
        });
        relay
    }

    /// Leads new connections to another server: those that there are stay.
    pub(crate) fn lead_to(&self, server: String) {
        *self.server.lock().unwrap() = server;
    }

    /// The next decision meets this fate.
    pub(crate) fn spoil_next(&self, fate: Fate) {
        *self.next.lock().unwrap() = Some(fate);
    }

    /// Whether a decision met what was to spoil it; if none did, none will.
    pub(crate) fn call_off(&self) -> bool {
        self.next.lock().unwrap().take().is_none()
    }

    /// Whether the next decision still has something to meet.
    pub(crate) fn is_waiting(&self) -> bool {
        self.next.lock().unwrap().is_some()
    }

    /// From now on.
    pub(crate) fn set_weather(&self, weather: Weather) {
        *self.weather.lock().unwrap() = weather;
    }
}

/// A decision is asked for with the key of an entity; nothing else is.
fn asks(bytes: &[u8], next: &Mutex<Option<Fate>>) -> Option<Fate> {
    let decides = bytes.windows(2).any(|two| two == b":{");
    let mut next = next.lock().unwrap();
    next.take_if(|fate| decides && fate.is_on_the_way_there())
}

/// A decision is a string of numbers, and begins with a NUL, as all that are not too large do; what else a server says
/// has none.
fn answers(bytes: &[u8], next: &Mutex<Option<Fate>>) -> Option<Fate> {
    let decides = bytes.windows(2).any(|two| two == b"\n\0");
    let mut next = next.lock().unwrap();
    next.take_if(|fate| decides && !fate.is_on_the_way_there())
}

/// Waits as long as the weather wants. Whether the connection then lives on.
fn lets_pass(weather: &Mutex<Weather>) -> bool {
    loop {
        let now = *weather.lock().unwrap();
        match now {
            Weather::Fair => return true,
            Weather::Refusing => return false,
            Weather::Slow(by) => {
                thread::park_timeout(by);
                return true;
            }
            Weather::Still => thread::park_timeout(LOOK),
        }
    }
}

fn pass_on(
    mut from: TcpStream,
    mut to: TcpStream,
    dead: &AtomicBool,
    weather: &Mutex<Weather>,
    fate: impl Fn(&[u8]) -> Option<Fate>,
) {
    let mut bytes = [0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        let bytes = &bytes[..length];
        if dead.load(Ordering::SeqCst) {
            continue;
        }
        if !lets_pass(weather) {
            break;
        }
        let passed = match fate(bytes) {
            None => to.write_all(bytes),
            Some(Fate::Late(by)) => {
                thread::park_timeout(by);
                to.write_all(bytes)
            }
            Some(Fate::Trickling(apart)) => bytes.iter().try_for_each(|byte| {
                thread::park_timeout(apart);
                to.write_all(&[*byte])
            }),
            Some(Fate::Garbage) => to.write_all(b"\xff\xfe<html>502 Bad Gateway</html>\r\n"),
            Some(Fate::HalfOpen) => {
                dead.store(true, Ordering::SeqCst);
                continue;
            }
            Some(Fate::CutShort | Fate::LostShort) => {
                let _ = to.write_all(&bytes[..length / 2]);
                break;
            }
            Some(Fate::Cut | Fate::Lost) => break,
        };
        if passed.is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
