//! A server that does with a connection whatever a test wants, for what a well-behaved one hides.

use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// A head as it came, and the connection behind it.
pub(crate) struct Asked {
    pub(crate) head: String,
    pub(crate) stream: BufReader<TcpStream>,
}

/// Listens, and hands each of the next `connections` over with the first head that comes on it.
pub(crate) fn server(
    connections: usize,
    serve: impl Fn(Asked) -> io::Result<()> + Clone + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().take(connections) {
            let Ok(stream) = stream else { continue };
            let serve = serve.clone();
            // A gateway that closes the connection ends it.
            thread::spawn(move || ask(stream).and_then(serve));
        }
    });
    address
}

fn ask(stream: TcpStream) -> io::Result<Asked> {
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(Asked { head, stream })
}
