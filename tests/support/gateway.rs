//! The binary as an operator runs it.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::clock::monotonic_now;

use super::http::{Connection, get};

const PATIENCE: Duration = Duration::from_secs(40);

/// A running gateway, ended when dropped.
pub(crate) struct Gateway {
    child: Child,
    folder: PathBuf,
    pub(crate) address: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Gateway {
    /// Starts one with this configuration. Listeners and metrics are added, on free ports; [`ADMIN`] stands for
    /// another.
    pub(crate) fn start(config: &str) -> Self {
        Self::start_with(config, &[])
    }

    /// The same, with more arguments.
    pub(crate) fn start_with(config: &str, arguments: &[&str]) -> Self {
        Self::start_by(config, &|folder| spawn(folder, arguments))
    }

    fn start_by(config: &str, spawn: &dyn Fn(&std::path::Path) -> Child) -> Self {
        // Another process may take a port between its choice and its use: then the gateway exits, try others.
        for _ in 0..5 {
            let folder = scratch();
            let [address, metrics, admin] = free_addresses();
            let config = with_listeners(config, address, metrics, admin);
            fs::write(folder.join("tollgate.toml"), config).unwrap();
            let mut gateway = Self {
                child: spawn(&folder),
                folder,
                address,
                metrics,
                admin,
            };
            if gateway.becomes_ready() {
                return gateway;
            }
            let errors = gateway.errors();
            assert!(
                errors.contains("cannot listen"),
                "the gateway does not start:\n{errors}"
            );
        }
        panic!("no free ports");
    }

    /// Starts another with this one's configuration and addresses, and these arguments.
    pub(crate) fn successor(&self, arguments: &[&str]) -> Self {
        let folder = scratch();
        fs::copy(self.file(), folder.join("tollgate.toml")).unwrap();
        Self {
            child: spawn(&folder, arguments),
            folder,
            address: self.address,
            metrics: self.metrics,
            admin: self.admin,
        }
    }

    /// The same as [`Gateway::start`], on a machine that believes those whom this file names, and nobody else.
    pub(crate) fn start_believing(config: &str, authorities: &std::path::Path) -> Self {
        Self::start_by(config, &|folder| {
            let mut command = tollgate(&["run", "--config"]);
            command.env("SSL_CERT_FILE", authorities);
            run(command, folder)
        })
    }

    /// The same as [`Gateway::start`], with so many files that it may have open and may raise that to.
    pub(crate) fn start_with_files(config: &str, soft: u32, hard: u32) -> Self {
        Self::start_by(config, &|folder| {
            let binary = env!("CARGO_BIN_EXE_tollgate");
            let limit = format!("ulimit -S -n {soft} && ulimit -H -n {hard} && exec \"$@\"");
            let mut command = Command::new("sh");
            command.args(["-c", &limit, "sh", binary, "run", "--config"]);
            run(command, folder)
        })
    }

    /// Waits until it serves.
    pub(crate) fn await_ready(&mut self) {
        assert!(self.becomes_ready(), "it does not start: {}", self.errors());
    }

    fn becomes_ready(&mut self) -> bool {
        let deadline = monotonic_now() + PATIENCE;
        let config = fs::read_to_string(self.file()).unwrap();
        let mut listeners = vec![self.metrics, self.address];
        if config.contains(&self.admin.to_string()) {
            listeners.push(self.admin);
        }
        let is_open = |address: &SocketAddr| Connection::try_open(*address).is_ok();
        while monotonic_now() < deadline {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            if listeners.iter().all(is_open) {
                return true;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        false
    }

    /// The file that it reads.
    pub(crate) fn file(&self) -> PathBuf {
        self.folder.join("tollgate.toml")
    }

    /// Puts another configuration in place of the file, at once, with the same listeners and metrics.
    pub(crate) fn rewrite(&self, config: &str) {
        let fresh = self.folder.join("fresh.toml");
        let config = with_listeners(config, self.address, self.metrics, self.admin);
        fs::write(&fresh, config).unwrap();
        fs::rename(fresh, self.file()).unwrap();
    }

    /// Rewrites the configuration, tells it to read that, and waits until it has. Returns whether it was taken.
    pub(crate) fn reload(&self, config: &str) -> bool {
        let (taken, refused) = self.reloads();
        self.rewrite(config);
        self.signal("-HUP");
        self.await_reload((taken, refused))
    }

    /// Waits until it has read its configuration, since when it had so often. Returns whether that was taken.
    pub(crate) fn await_reload(&self, before: (u64, u64)) -> bool {
        let deadline = monotonic_now() + PATIENCE;
        loop {
            let now = self.reloads();
            if now != before {
                return now.0 > before.0;
            }
            assert!(monotonic_now() < deadline, "the configuration is not read");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// `tollgate reload` with its configuration, and these arguments.
    pub(crate) fn command_reload(&self, arguments: &[&str]) -> Output {
        tollgate(&["reload", "--config"])
            .arg(self.file())
            .args(arguments)
            .output()
            .unwrap()
    }

    /// What it holds of the machine.
    pub(crate) fn held(&self) -> Held {
        let process = PathBuf::from(format!("/proc/{}", self.child.id()));
        let entries = |folder: &str| fs::read_dir(process.join(folder)).unwrap().count();
        let status = fs::read_to_string(process.join("status")).unwrap();
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"))
            .unwrap();
        Held {
            descriptors: entries("fd"),
            threads: entries("task"),
            resident_kib: resident.trim().parse().unwrap(),
        }
    }

    /// How many configurations were taken, and how many were not.
    pub(crate) fn reloads(&self) -> (u64, u64) {
        let text = self.scrape();
        let count = |result: &str| {
            let series = format!("tollgate_config_reloads_total{{result=\"{result}\"}}");
            let value = value_in(&text, &series).unwrap();
            format!("{value:.0}").parse().unwrap()
        };
        (count("success"), count("failure"))
    }

    /// A GET on a connection of its own.
    pub(crate) fn get(&self, target: &str) -> super::http::Response {
        get(self.address, target)
    }

    /// What Prometheus would see.
    pub(crate) fn scrape(&self) -> String {
        get(self.metrics, "/metrics").text()
    }

    /// The value of a series, written as in the exposition.
    pub(crate) fn metric(&self, series: &str) -> f64 {
        let text = self.scrape();
        value_in(&text, series).unwrap_or_else(|| panic!("no series {series} in\n{text}"))
    }

    /// Waits until a series has this value: what is counted is counted after the answer is sent.
    pub(crate) fn await_metric(&self, series: &str, value: f64) {
        let deadline = monotonic_now() + PATIENCE;
        loop {
            let text = self.scrape();
            let found = value_in(&text, series);
            if found.is_some_and(|found| (found - value).abs() < f64::EPSILON) {
                return;
            }
            assert!(
                monotonic_now() < deadline,
                "{series} is {found:?}, not {value}, in\n{text}"
            );
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The file of its access log.
    pub(crate) fn access_log_file(&self) -> PathBuf {
        self.folder.join("stdout")
    }

    /// Sends a signal, by the name that `kill` knows.
    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill")
            .args([name, &self.child.id().to_string()])
            .status();
        assert!(sent.is_ok_and(|status| status.success()), "kill {name}");
    }

    /// Lets it stop by itself, and returns its exit code.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.signal("-TERM");
        self.await_exit()
    }

    pub(crate) fn await_exit(&mut self) -> Option<i32> {
        let deadline = monotonic_now() + PATIENCE;
        loop {
            if let Some(code) = self.exited() {
                return code;
            }
            assert!(monotonic_now() < deadline, "the gateway does not stop");
            std::thread::park_timeout(Duration::from_millis(10));
        }
    }

    /// Its exit code, once it has ended; an inner `None` if a signal ended it.
    pub(crate) fn exited(&mut self) -> Option<Option<i32>> {
        self.child.try_wait().unwrap().map(|status| status.code())
    }

    /// How many files and sockets it has open.
    pub(crate) fn open_files(&self) -> usize {
        let folder = format!("/proc/{}/fd", self.child.id());
        fs::read_dir(folder).unwrap().count()
    }

    /// The memory that it holds, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_ascii_whitespace().next());
        kib.unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Its access log so far.
    pub(crate) fn access_log(&self) -> String {
        fs::read_to_string(self.folder.join("stdout")).unwrap()
    }

    /// Waits until it has said this of itself, and returns all that it said: it writes its log when it has time.
    pub(crate) fn await_said(&self, text: &str) -> String {
        let deadline = monotonic_now() + PATIENCE;
        loop {
            let said = self.errors();
            if said.contains(text) {
                return said;
            }
            assert!(monotonic_now() < deadline, "{text} is not in:\n{said}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// What it said of itself so far.
    pub(crate) fn errors(&self) -> String {
        fs::read_to_string(self.folder.join("stderr")).unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            // A test that failed is easier to understand with what the gateway said.
            let _ = writeln!(std::io::stderr(), "gateway said:\n{}", self.errors());
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What a process holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) descriptors: usize,
    pub(crate) threads: usize,
    pub(crate) resident_kib: u64,
}

/// In a configuration: an address of the gateway's own.
pub(crate) const ADMIN: &str = "ADMIN_ADDRESS";

/// What a line of a configuration begins with that is for the listener's table.
pub(crate) const LISTENER: &str = "# listener: ";

fn value_in(exposition: &str, series: &str) -> Option<f64> {
    exposition
        .lines()
        .find_map(|line| line.strip_prefix(series)?.strip_prefix(' '))
        .map(|value| value.parse().unwrap())
}

/// The binary, to be run with these arguments.
pub(crate) fn tollgate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn with_listeners(
    config: &str,
    address: SocketAddr,
    metrics: SocketAddr,
    admin: SocketAddr,
) -> String {
    let config = config.replace(ADMIN, &admin.to_string());
    let more = config.lines().find_map(|line| line.strip_prefix(LISTENER));
    let more = more.unwrap_or_default();
    format!(
        "{config}\n[listeners.test]\naddress = \"{address}\"\n{more}\n[metrics]\naddress = \"{metrics}\"\n"
    )
}

fn spawn(folder: &std::path::Path, arguments: &[&str]) -> Child {
    let mut command = tollgate(&["run"]);
    command.args(arguments).arg("--config");
    run(command, folder)
}

/// Runs the command on the folder's configuration.
fn run(mut command: Command, folder: &std::path::Path) -> Child {
    command
        .arg(folder.join("tollgate.toml"))
        .stdin(Stdio::null())
        .stdout(File::create(folder.join("stdout")).unwrap())
        .stderr(File::create(folder.join("stderr")).unwrap())
        .spawn()
        .unwrap()
}

/// An address that was free a moment ago.
pub(crate) fn free_address() -> SocketAddr {
    let [address] = free_addresses();
    address
}

/// Several of them, no two the same.
fn free_addresses<const N: usize>() -> [SocketAddr; N] {
    let held = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    held.each_ref()
        .map(|listener| listener.local_addr().unwrap())
}

/// A file with a secret for the keys, that all gateways of a test run share.
pub(crate) fn secret_file() -> PathBuf {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("key_secret");
    if !file.exists() {
        fs::write(&file, "a secret of tests, long enough").unwrap();
    }
    file
}

/// A folder of the test's own.
pub(crate) fn scratch() -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}
