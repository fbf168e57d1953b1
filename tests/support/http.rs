//! A client that shows every byte, for what a well-behaved one hides.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{
    ClientConfig, ClientConnection, HandshakeKind, StreamOwned, SupportedProtocolVersion,
};
use tokio::net::TcpSocket;
use tokio::runtime;

use tollgate::clock::monotonic_now;

use super::tls::Authority;

/// How long any single read may take; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);

/// One connection, kept open between requests.
pub(crate) struct Connection<S: Read + Write = TcpStream> {
    stream: BufReader<S>,
}

/// One that is encrypted.
pub(crate) type Encrypted = Connection<StreamOwned<ClientConnection, TcpStream>>;

/// An answer.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Response {
    /// The field's only value.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.lines(name);
        let first = lines.next();
        assert!(lines.next().is_none(), "{name} stands twice: {self:?}");
        first
    }

    /// Every line of the field.
    pub(crate) fn lines(&self, name: &str) -> impl Iterator<Item = &str> {
        self.headers
            .iter()
            .filter(move |(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// Whether the connection serves no further request.
    pub(crate) fn is_last(&self) -> bool {
        self.header("connection")
            .is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    /// The wait that it tells, in seconds.
    pub(crate) fn retry_after(&self) -> Option<u64> {
        self.header("retry-after").map(|wait| wait.parse().unwrap())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

impl Encrypted {
    /// To whom `authority` has issued a certificate for `host`; its handshake is over.
    pub(crate) fn over_tls(
        address: SocketAddr,
        host: &str,
        authority: &Authority,
    ) -> io::Result<Self> {
        Self::shaken(address, host, authority.client(&[&TLS12, &TLS13]))
    }

    /// The same, in this version.
    pub(crate) fn over_tls_with(
        address: SocketAddr,
        host: &str,
        authority: &Authority,
        version: &'static SupportedProtocolVersion,
    ) -> io::Result<Self> {
        Self::shaken(address, host, authority.client(&[version]))
    }

    /// The same, of a client that may know the other end from before.
    pub(crate) fn shaken(
        address: SocketAddr,
        host: &str,
        config: ClientConfig,
    ) -> io::Result<Self> {
        let mut stream = Connection::try_open(address)?.stream.into_inner();
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
        while tls.is_handshaking() {
            tls.complete_io(&mut stream)?;
        }
        Ok(Self {
            stream: BufReader::new(StreamOwned::new(tls, stream)),
        })
    }

    /// The certificate of the other end.
    pub(crate) fn shown(&self) -> &[u8] {
        let tls = &self.stream.get_ref().conn;
        &tls.peer_certificates().unwrap()[0]
    }

    /// Whether the other end knew it.
    pub(crate) fn is_resumed(&self) -> bool {
        self.stream.get_ref().conn.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// The protocol that was agreed on.
    pub(crate) fn alpn(&self) -> Option<String> {
        let tls = &self.stream.get_ref().conn;
        let protocol = tls.alpn_protocol()?;
        Some(String::from_utf8_lossy(protocol).into_owned())
    }
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::try_open(address).expect("the gateway accepts")
    }

    pub(crate) fn try_open(address: SocketAddr) -> io::Result<Self> {
        Self::over(TcpStream::connect_timeout(&address, PATIENCE)?)
    }

    /// From this address of the machine's own.
    pub(crate) fn open_from(source: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread().enable_io().build()?;
        let stream = runtime.block_on(async {
            let socket = TcpSocket::new_v4()?;
            socket.bind(SocketAddr::new(source, 0))?;
            socket.connect(address).await?.into_std()
        })?;
        stream.set_nonblocking(false)?;
        Self::over(stream)
    }

    fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
        })
    }
}

impl<S: Read + Write> Connection<S> {
    /// Sends these very bytes.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes.as_ref())
    }

    /// Reads one answer; its body too, unless it answers HEAD.
    pub(crate) fn receive(&mut self, to_head: bool) -> io::Result<Response> {
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .ok_or_else(|| io::Error::other(format!("no status line: {line:?}")))?;
        let mut headers = Vec::new();
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let trimmed = line.trim_end();
            if trimmed.is_empty() {
                break;
            }
            let (name, value) = trimmed
                .split_once(':')
                .ok_or_else(|| io::Error::other(format!("no field: {trimmed:?}")))?;
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        let mut response = Response {
            status,
            headers,
            body: Vec::new(),
        };
        let bodiless = to_head || status == 204 || status == 304 || (100..200).contains(&status);
        if !bodiless {
            response.body = self.body(&response)?;
        }
        Ok(response)
    }

    fn body(&mut self, head: &Response) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        if let Some(length) = head.header("content-length") {
            body.resize(length.parse().map_err(io::Error::other)?, 0);
            self.stream.read_exact(&mut body)?;
        } else if head.header("transfer-encoding").is_some() {
            loop {
                let mut size = String::new();
                self.stream.read_line(&mut size)?;
                let size = usize::from_str_radix(size.trim_end(), 16).map_err(io::Error::other)?;
                let mut chunk = vec![0; size + 2];
                self.stream.read_exact(&mut chunk)?;
                if size == 0 {
                    break;
                }
                body.extend_from_slice(&chunk[..size]);
            }
        } else {
            self.stream.read_to_end(&mut body)?;
        }
        Ok(body)
    }

    /// Reads so many bytes, whatever they are.
    pub(crate) fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// A request without body, and its answer.
    pub(crate) fn ask(&mut self, method: &str, target: &str, fields: &[(&str, &str)]) -> Response {
        self.try_ask(method, target, fields)
            .unwrap_or_else(|error| panic!("{method} {target}: {error}"))
    }

    pub(crate) fn try_ask(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> io::Result<Response> {
        let mut request = format!("{method} {target} HTTP/1.1\r\n");
        if !fields
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case("host"))
        {
            request.push_str("Host: api.example\r\n");
        }
        for (name, value) in fields {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        self.send(request)?;
        self.receive(method == "HEAD")
    }

    /// Reads up to so many bytes, as they come; none at the end.
    pub(crate) fn take(&mut self, most: usize) -> io::Result<usize> {
        let mut bytes = vec![0; most];
        self.stream.read(&mut bytes)
    }
}

impl Connection {
    /// Whether an answer, or the end, comes within `patience`.
    pub(crate) fn is_readable_within(&mut self, patience: Duration) -> bool {
        self.stream
            .get_ref()
            .set_read_timeout(Some(patience))
            .unwrap();
        let readable = self.stream.fill_buf().is_ok();
        self.stream
            .get_ref()
            .set_read_timeout(Some(PATIENCE))
            .unwrap();
        readable
    }

    /// Whether the other end has said something or closed the connection, before patience ends.
    pub(crate) fn is_closed_or_answered(&mut self) -> bool {
        self.is_readable_within(PATIENCE) || self.is_closed_within(Duration::from_millis(1))
    }

    /// Whether the other end closes the connection, rather than keeping it for `patience`. What it says until then is
    /// dropped.
    pub(crate) fn is_closed_within(&mut self, patience: Duration) -> bool {
        let until = monotonic_now() + patience;
        loop {
            let left = until.saturating_duration_since(monotonic_now());
            if left.is_zero() {
                return false;
            }
            self.stream.get_ref().set_read_timeout(Some(left)).unwrap();
            let read = self.take(4096);
            self.stream
                .get_ref()
                .set_read_timeout(Some(PATIENCE))
                .unwrap();
            match read {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return !matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    );
                }
            }
        }
    }
}

/// One GET on a connection of its own.
pub(crate) fn get(address: SocketAddr, target: &str) -> Response {
    get_with(address, target, &[])
}

/// One GET with these fields.
pub(crate) fn get_with(address: SocketAddr, target: &str, fields: &[(&str, &str)]) -> Response {
    Connection::open(address).ask("GET", target, fields)
}
