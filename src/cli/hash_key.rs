//! `tollgate hash-key`: what the file of API keys says of a key. The key comes by standard input, since arguments stand
//! in the list of processes.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};

use crate::client::api_key::KeyHash;
use crate::config::is_name;

/// The longest key that is read.
const LENGTH_MAX: u64 = 8192;

/// A shorter one can be guessed: its hash is quick to compute.
const LENGTH_MIN: usize = 16;

/// Random bytes of a key that is made here: 192 bits.
const RANDOM: usize = 24;

/// Prints the hash of an API key, which is read from standard input, for the file of keys.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// Make a key, and print it. It is not to be had again.
    #[arg(long)]
    generate: bool,
    /// Who holds the key: prints the whole entry.
    #[arg(long)]
    name: Option<String>,
}

/// Prints what stands in the file of keys.
#[must_use]
pub(super) fn run(args: &Args) -> ExitCode {
    match print(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(args: &Args) -> io::Result<()> {
    let name = match &args.name {
        Some(name) if !is_name(name) => {
            return Err(io::Error::other(format!(
                "`{name}` cannot be a name: write up to 48 of a-z, 0-9 and -, a letter first"
            )));
        }
        Some(name) => Some(name.as_str()),
        None => args.generate.then_some("NAME"),
    };
    let mut text = String::new();
    let key = if args.generate {
        let key = generate()?;
        text.push_str(&format!(
            "# give this to the client; it is not kept: {key}\n"
        ));
        key.into_bytes()
    } else {
        read()?
    };
    if let Some(name) = name {
        text.push_str(&format!("[keys.{name}]\n"));
    }
    text.push_str(&format!("sha256 = \"{}\"\n", KeyHash::of(&key).to_hex()));
    io::stdout().write_all(text.as_bytes())
}

/// One line of standard input, without the spaces around it: those get lost in a header, too.
fn read() -> io::Result<Vec<u8>> {
    let mut input = io::stdin().lock();
    if input.is_terminal() {
        eprintln!("type the key, then Enter:");
    }
    let mut line = Vec::new();
    input
        .by_ref()
        .take(LENGTH_MAX)
        .read_until(b'\n', &mut line)?;
    let key = line.trim_ascii();
    if key.is_empty() {
        return Err(io::Error::other(
            "no key on standard input; --generate makes one",
        ));
    }
    if !key.iter().all(u8::is_ascii_graphic) {
        return Err(io::Error::other(
            "a key has letters, digits and marks of ASCII only, and no spaces",
        ));
    }
    if line.len() as u64 == LENGTH_MAX {
        return Err(io::Error::other("the key is longer than 8 KiB"));
    }
    if key.len() < LENGTH_MIN {
        eprintln!(
            "warning: a key of {} characters can be guessed from its hash; --generate makes a good one",
            key.len()
        );
    }
    Ok(key.to_vec())
}

fn generate() -> io::Result<String> {
    let mut bytes = [0; RANDOM];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| io::Error::other("the system has no random numbers"))?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}
