//! An HTTP API to stand in front of. It remembers every request that reached it.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tollgate::clock::monotonic_now;

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) at: Instant,
}

impl Seen {
    /// Every line of a field.
    pub(crate) fn lines(&self, name: &str) -> Vec<&str> {
        self.headers
            .iter()
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
            .collect()
    }
}

/// The API. Its answers follow the path: `/status/418` answers 418, `/slow/300` takes 300 ms, `/fields` sends what
/// the request's `x-answer` fields say, `/healthz` 503 while it is ill, `/stream/20` sends twenty chunks, a tenth of a
/// second apart, a path that ends in `/until-close` has a body that ends with the connection, `/answer` sends back the
/// request's body beside those fields, `/trickle/20` the same up to one empty line after the other, 20 ms apart, `/cut`
/// all but the end of it, `/websocket` switches and then sends back what it gets; all
/// else is 200.
pub(crate) struct Origin {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Seen>>>,
    closed: Arc<AtomicBool>,
    ill: Arc<AtomicBool>,
}

impl Origin {
    pub(crate) fn start() -> Self {
        Self::start_and(true)
    }

    /// Starts one that remembers nothing, for any number of requests.
    pub(crate) fn start_forgetful() -> Self {
        Self::start_and(false)
    }

    fn start_and(remembers: bool) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let origin = Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
            closed: Arc::default(),
            ill: Arc::default(),
        };
        let (seen, closed) = (Arc::clone(&origin.seen), Arc::clone(&origin.closed));
        let ill = Arc::clone(&origin.ill);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if closed.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(stream) = stream else { continue };
                let (seen, ill) = (Arc::clone(&seen), Arc::clone(&ill));
                thread::spawn(move || {
                    // A gateway that closes the connection ends it.
                    let _ = serve(stream, remembers.then_some(&*seen), &ill);
                });
            }
        });
        origin
    }

    /// Whether it is ill from now on.
    pub(crate) fn set_ill(&self, ill: bool) {
        self.ill.store(ill, Ordering::SeqCst);
    }

    /// The requests so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The requests since this was last asked, and none of them again.
    pub(crate) fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    /// Waits until so many requests have arrived.
    pub(crate) fn await_count(&self, count: usize) {
        let deadline = monotonic_now() + Duration::from_secs(40);
        while self.count() < count {
            assert!(monotonic_now() < deadline, "{} of {count}", self.count());
            thread::park_timeout(Duration::from_millis(2));
        }
    }

    /// How many requests arrived.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes the listener up.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: TcpStream, seen: Option<&Mutex<Vec<Seen>>>, ill: &AtomicBool) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut words = line.split_ascii_whitespace();
        let (method, target) = (
            words.next().unwrap_or_default().to_owned(),
            words.next().unwrap_or_default().to_owned(),
        );
        let mut headers = Vec::new();
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(':') else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let field = |name: &str| {
            headers
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.clone())
        };
        let mut body = Vec::new();
        if let Some(length) = field("content-length") {
            body.resize(length.parse().map_err(io::Error::other)?, 0);
            reader.read_exact(&mut body)?;
        } else if field("transfer-encoding").is_some() {
            loop {
                let mut size = String::new();
                reader.read_line(&mut size)?;
                let size = usize::from_str_radix(size.trim_end(), 16).map_err(io::Error::other)?;
                let mut chunk = vec![0; size + 2];
                reader.read_exact(&mut chunk)?;
                if size == 0 {
                    break;
                }
                body.extend_from_slice(&chunk[..size]);
            }
        }
        let request = Seen {
            method,
            target,
            headers,
            body,
            at: monotonic_now(),
        };
        if let Some(seen) = seen {
            seen.lock().unwrap().push(request.clone());
        }
        answer(reader.get_mut(), &request, ill.load(Ordering::SeqCst))?;
    }
}

fn answer(stream: &mut TcpStream, request: &Seen, ill: bool) -> io::Result<()> {
    let path = request.target.split('?').next().unwrap_or_default();
    let number = |prefix: &str| path.strip_prefix(prefix)?.parse::<u64>().ok();
    if let Some(ms) = number("/slow/") {
        // What a slow API does; the test waits for its answer, not for the clock.
        thread::park_timeout(Duration::from_millis(ms));
    }
    if let Some(chunks) = number("/stream/") {
        stream.write_all(b"HTTP/1.1 200 Whatever\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        for _ in 0..chunks {
            stream.write_all(b"1\r\nx\r\n")?;
            thread::park_timeout(Duration::from_millis(100));
        }
        return stream.write_all(b"0\r\n\r\n");
    }
    if let Some(ms) = number("/trickle/") {
        let head = format!(
            "HTTP/1.1 200 Whatever\r\nTransfer-Encoding: chunked\r\n{}\r\n",
            wanted(request)
        );
        stream.write_all(head.as_bytes())?;
        let text = String::from_utf8_lossy(&request.body);
        for piece in text.split_inclusive("\n\n") {
            let chunk = format!("{:x}\r\n{piece}\r\n", piece.len());
            stream.write_all(chunk.as_bytes())?;
            thread::park_timeout(Duration::from_millis(ms));
        }
        return stream.write_all(b"0\r\n\r\n");
    }
    if path.ends_with("/answer") || path == "/cut" {
        let is_cut = path == "/cut";
        let length = request.body.len() + usize::from(is_cut);
        let head = format!(
            "HTTP/1.1 200 Whatever\r\nContent-Length: {length}\r\n{}\r\n",
            wanted(request)
        );
        stream.write_all(head.as_bytes())?;
        if request.method != "HEAD" {
            stream.write_all(&request.body)?;
        }
        if is_cut {
            stream.shutdown(std::net::Shutdown::Both)?;
        }
        return Ok(());
    }
    if path == "/websocket" {
        // cloudflare/pingora #946: a switched connection ends at once where the answer overtakes the end of its
        // request, as on a machine that is too busy.
        thread::park_timeout(Duration::from_millis(100));
        stream.write_all(
            b"HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
        )?;
        let mut bytes = [0; 1024];
        loop {
            let length = stream.read(&mut bytes)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            stream.write_all(&bytes[..length])?;
        }
    }
    if path.ends_with("/until-close") {
        stream.write_all(b"HTTP/1.1 200 Whatever\r\nConnection: close\r\n\r\nok")?;
        return stream.shutdown(std::net::Shutdown::Both);
    }
    let status = match path {
        "/healthz" if ill => 503,
        _ => number("/status/").unwrap_or(200),
    };
    let is_empty = matches!(status, 204 | 304);
    let mut head = format!("HTTP/1.1 {status} Whatever\r\n");
    if !is_empty {
        head.push_str("Content-Length: 2\r\n");
    }
    if path == "/fields" {
        head.push_str(&wanted(request));
    }
    head.push_str("\r\n");
    if request.method != "HEAD" && !is_empty {
        head.push_str("ok");
    }
    stream.write_all(head.as_bytes())
}

/// The fields that the request wants of its answer.
fn wanted(request: &Seen) -> String {
    let fields = request.lines("x-answer").into_iter();
    fields.map(|field| format!("{field}\r\n")).collect()
}
