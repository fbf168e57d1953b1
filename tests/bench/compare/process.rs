//! Processes of the bench's own: none outlives it.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tollgate::clock::monotonic_now;

use crate::account;
use crate::support::gateway::{free_address, scratch};

const PATIENCE: Duration = Duration::from_secs(20);

/// A server and its children; ended when dropped, its folder removed.
pub(crate) struct Process {
    child: Child,
    folder: PathBuf,
}

impl Process {
    /// Starts one that listens. `command` is told its folder and the address.
    pub(crate) fn start(
        what: &str,
        command: impl Fn(&Path, SocketAddr) -> Command,
    ) -> (SocketAddr, Self) {
        let mut said = String::new();
        // Another process may take a port between its choice and its use.
        for _ in 0..3 {
            let (folder, address) = (scratch(), free_address());
            let log = |name| File::create(folder.join(name)).unwrap();
            let child = command(&folder, address)
                .stdin(Stdio::null())
                .stdout(log("stdout"))
                .stderr(log("stderr"))
                .spawn()
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            let mut process = Self { child, folder };
            if process.listens(address) {
                return (address, process);
            }
            said = process.said();
        }
        panic!("{what} does not start:\n{said}");
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    fn listens(&mut self, address: SocketAddr) -> bool {
        let deadline = monotonic_now() + PATIENCE;
        while self.runs() && monotonic_now() < deadline {
            if TcpStream::connect(address).is_ok() {
                return true;
            }
            thread::park_timeout(Duration::from_millis(5));
        }
        false
    }

    fn runs(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|end| end.is_none())
    }

    fn end(&mut self) {
        // A parent that is killed leaves its children behind: ask first.
        let family = account::family(self.child.id());
        signal("-TERM", &[self.child.id()]);
        let deadline = monotonic_now() + Duration::from_secs(3);
        while self.runs() && monotonic_now() < deadline {
            thread::park_timeout(Duration::from_millis(5));
        }
        if self.runs() {
            signal("-KILL", &family);
            let _ = self.child.wait();
        }
    }

    fn said(&self) -> String {
        ["stdout", "stderr"]
            .map(|name| fs::read_to_string(self.folder.join(name)).unwrap_or_default())
            .concat()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.runs() {
            self.end();
        }
        let said = self.said();
        if thread::panicking() && !said.is_empty() {
            eprintln!("a process said:\n{said}");
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn signal(name: &str, processes: &[u32]) {
    let ids = processes.iter().map(ToString::to_string);
    let _ = Command::new("kill").arg(name).args(ids).status();
}
