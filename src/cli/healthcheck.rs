//! `tollgate healthcheck`: needs no curl in the image.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::time::Duration;

/// Asks `/livez`, or what it is told to.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Where the gateway's `[metrics]` listener is.
    #[arg(long, default_value = "127.0.0.1:9902")]
    address: String,
    /// What to ask for: /readyz also refuses while the gateway drains.
    #[arg(long, default_value = "/livez")]
    path: String,
    /// How long to wait, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    timeout_ms: u64,
}

pub(super) fn run(args: &Args) -> ExitCode {
    match ask(args) {
        Ok(status) if status.starts_with("HTTP/1.1 200") => ExitCode::SUCCESS,
        Ok(status) => {
            eprintln!("{} answered: {status}", args.address);
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{}: {error}", args.address);
            ExitCode::FAILURE
        }
    }
}

/// The status line.
fn ask(args: &Args) -> io::Result<String> {
    let timeout = Duration::from_millis(args.timeout_ms.max(1));
    let address = args
        .address
        .to_socket_addrs()?
        .next()
        .ok_or_else(|| io::Error::other("no such address"))?;
    let mut stream = TcpStream::connect_timeout(&address, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    write!(
        stream,
        "GET {} HTTP/1.1\r\nHost: tollgate\r\nConnection: close\r\n\r\n",
        args.path
    )?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer);
    Ok(answer.lines().next().unwrap_or_default().to_owned())
}
