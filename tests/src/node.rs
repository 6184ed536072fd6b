//! A broker under test: the real binary on a free port of 127.0.0.1 with a data directory of its own.
//!
//! The binary is found by `WARRENMQ_BIN`, else in the target directory (`checked`, then `release`, then `debug`). Its
//! first lines on standard output are read up to the ready line, which names the real port. The process is killed by
//! its id when the [`Node`] goes; its log is shown when the test failed.

use crate::{PATIENCE, limits};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::Instant;
use tempfile::TempDir;

/// How many of the log's last bytes a failing test shows.
const LOG_TAIL_BYTES: usize = 6_000;
/// Name of the configuration file beside the data directory.
const CONFIG: &str = "warrenmq.conf";
/// Name of the file with what the broker wrote.
const LOG: &str = "log";

/// How a broker is started.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// The text of its configuration file (`rabbitmq.conf` format), if it has one.
    pub config: Option<String>,
    /// Its data directory; by default one that goes with the [`Node`].
    pub data_dir: Option<PathBuf>,
    /// Further arguments.
    pub arguments: Vec<OsString>,
    /// Variables added to its environment.
    pub environment: Vec<(OsString, OsString)>,
    /// The user that it runs as, by number; only root can choose.
    pub uid: Option<u32>,
    /// The binary, in place of the one under test everywhere else.
    pub binary: Option<PathBuf>,
}

impl Setup {
    /// With a configuration file of this text.
    pub fn config(text: &str) -> Setup {
        Setup { config: Some(text.to_owned()), ..Setup::default() }
    }

    /// On this data directory.
    pub fn on(data_dir: &Path) -> Setup {
        Setup { data_dir: Some(data_dir.to_owned()), ..Setup::default() }
    }
}

/// A broker that ended before it was ready.
#[derive(Debug)]
pub struct Refusal {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to standard error in this run.
    pub stderr: String,
}

impl Refusal {
    /// The one line that says why, without the name of the program before it. Fails the test if the broker said nothing,
    /// panicked, or ended with another status than 1.
    #[track_caller]
    pub fn reason(&self) -> &str {
        let Refusal { status, stderr } = self;
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert_eq!(status.code(), Some(1), "{stderr}");
        let mut reasons = stderr.lines().filter_map(|line| line.strip_prefix("warrenmq: "));
        let reason = reasons.next().unwrap_or_else(|| panic!("no reason was given: {stderr}"));
        assert_eq!(reasons.next(), None, "one line says why");
        reason
    }
}

/// A running broker. Killed when dropped.
pub struct Node {
    process: Child,
    addr: SocketAddr,
    ready_line: String,
    setup: Setup,
    directory: TempDir,
}

impl Node {
    /// Starts a broker with the default configuration and waits until it is ready.
    #[track_caller]
    pub fn start() -> Node {
        Node::start_as(Setup::default())
    }

    /// Starts a broker with `config`, the text of a configuration file (`rabbitmq.conf` format).
    #[track_caller]
    pub fn start_with(config: &str) -> Node {
        Node::start_as(Setup::config(config))
    }

    /// Starts a broker as `setup` says.
    #[track_caller]
    pub fn start_as(setup: Setup) -> Node {
        Node::try_start(setup).unwrap_or_else(|refusal| panic!("the broker does not start: {refusal:?}"))
    }

    /// Starts a broker that may refuse.
    #[track_caller]
    pub fn try_start(setup: Setup) -> Result<Node, Refusal> {
        let directory = tempfile::Builder::new().prefix("warrenmq-test-").tempdir().expect("a temporary directory");
        let (process, addr, ready_line) = run(&directory, &setup)?;
        Ok(Node { process, addr, ready_line, setup, directory })
    }

    /// Kills the broker (SIGKILL) and starts it again on the same data; the address changes.
    #[track_caller]
    pub fn restart(&mut self) {
        let setup = self.setup.clone();
        self.restart_as(setup).unwrap_or_else(|refusal| panic!("the broker does not start again: {refusal:?}"));
    }

    /// `restart`, with another setup from now on. After a refusal no broker is running.
    #[track_caller]
    pub fn restart_as(&mut self, setup: Setup) -> Result<(), Refusal> {
        self.kill();
        self.setup = setup;
        (self.process, self.addr, self.ready_line) = run(&self.directory, &self.setup)?;
        Ok(())
    }

    /// Kills the broker (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// All that the broker wrote to its standard output and standard error so far, in all its runs.
    pub fn log(&self) -> String {
        read_log(self.directory.path())
    }

    /// The address of the AMQP listener.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `amqp://guest:guest@ADDR:PORT/%2f`, as client libraries want it.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.addr)
    }

    /// The line that announced the broker.
    pub fn ready_line(&self) -> &str {
        &self.ready_line
    }

    /// How it was started the last time.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// The data directory.
    pub fn data_dir(&self) -> PathBuf {
        data_dir(&self.directory, &self.setup)
    }

    /// A directory that goes with the node, for whatever a test needs beside the data directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs `warrenmq ctl` against the broker.
    #[track_caller]
    pub fn ctl(&self, words: &[&str]) -> Output {
        self.ctl_as(&binary(), &["ctl"], words)
    }

    /// Runs a binary as a client of the broker, with words in front of the others.
    #[track_caller]
    pub fn ctl_as(&self, program: &Path, first: &[&str], words: &[&str]) -> Output {
        let mut command = Command::new(program);
        command.args(first).arg("--data-dir").arg(self.data_dir()).args(words).stdin(Stdio::null());
        command.output().expect("the client runs")
    }

    /// Runs `warrenmq ctl -q`, which must succeed, and answers its output.
    #[track_caller]
    pub fn ctl_ok(&self, words: &[&str]) -> String {
        let output = self.ctl(&[&["-q"], words].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "ctl {words:?}: {stderr}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Runs `warrenmq ctl -q`, which must fail: its exit code and what it says.
    #[track_caller]
    pub fn ctl_fails(&self, words: &[&str]) -> (i32, String) {
        let output = self.ctl(&[&["-q"], words].concat());
        let code = output.status.code().expect("it ends by itself");
        assert_ne!(code, 0, "ctl {words:?} succeeds: {}", String::from_utf8_lossy(&output.stdout));
        (code, String::from_utf8(output.stderr).expect("text"))
    }

    /// Resident memory of the broker's process in bytes.
    pub fn resident_bytes(&self) -> u64 {
        limits::resident_bytes(self.process.id())
    }

    /// Sends SIGTERM, the orderly stop.
    pub fn terminate(&self) {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw).expect("a process id");
        kill_process(pid, Signal::TERM).expect("the broker's own process can be signalled");
    }

    /// Waits for the broker's process to end.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.process.try_wait().expect("a child can be waited for") {
                return status;
            }
            assert!(Instant::now() < deadline, "the broker did not end within {PATIENCE:?}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- the broker's log\n{}---", tail(self.directory.path()));
        }
    }
}

fn data_dir(directory: &TempDir, setup: &Setup) -> PathBuf {
    setup.data_dir.clone().unwrap_or_else(|| directory.path().join("data"))
}

/// Starts the binary and waits for its ready line, or for its end.
#[track_caller]
fn run(directory: &TempDir, setup: &Setup) -> Result<(Child, SocketAddr, String), Refusal> {
    let binary = setup.binary.clone().unwrap_or_else(binary);
    let mut command = Command::new(&binary);
    command.args(["server", "--listen", "127.0.0.1:0", "--data-dir"]).arg(data_dir(directory, setup));
    if let Some(text) = &setup.config {
        let config = directory.path().join(CONFIG);
        fs::write(&config, text).expect("the configuration is written");
        command.arg("--config").arg(config);
    }
    command.args(&setup.arguments).envs(setup.environment.iter().cloned());
    if let Some(uid) = setup.uid {
        command.uid(uid).current_dir("/");
    }
    let log = File::options().create(true).append(true).open(directory.path().join(LOG)).expect("a log file");
    let before = read_log(directory.path()).len();
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    command.stderr(log.try_clone().expect("a second handle of the log"));
    let mut process = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", binary.display()));

    let ready = follow_output(&mut process, log);
    match ready.recv_timeout(PATIENCE) {
        Ok((line, addr)) => Ok((process, addr, line)),
        Err(mpsc::RecvTimeoutError::Disconnected) => {
            // Standard output was closed: the process has ended, or is about to.
            let status = process.wait().expect("a child can be waited for");
            Err(Refusal { status, stderr: read_log(directory.path()).split_off(before) })
        }
        Err(mpsc::RecvTimeoutError::Timeout) => {
            let _ = process.kill();
            let status = process.wait();
            panic!("no ready line from the broker ({status:?}); its log:\n{}", tail(directory.path()));
        }
    }
}

/// Copies the broker's standard output into its log, and sends the ready line and its address on. The pipe is read to
/// its end: a broker that blocks on a full pipe would look like a hang of its own.
fn follow_output(process: &mut Child, mut log: File) -> mpsc::Receiver<(String, SocketAddr)> {
    let output = process.stdout.take().expect("standard output is a pipe");
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let Some(addr) = ready_address(&line) {
                let _ = sender.send((line.clone(), addr));
            }
            let _ = writeln!(log, "{line}");
        }
    });
    receiver
}

/// The address in `WarrenMQ VERSION ready: AMQP on ADDR:PORT, data in DIR`.
fn ready_address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.strip_prefix("WarrenMQ ")?.split_once(" ready: AMQP on ")?;
    rest.split(',').next()?.parse().ok()
}

/// The binary under test.
#[track_caller]
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("WARRENMQ_BIN") {
        return PathBuf::from(path);
    }
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from).unwrap_or_else(|| {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the workspace");
        workspace.join("target")
    });
    let candidates = ["checked", "release", "debug"].map(|profile| target.join(profile).join("warrenmq"));
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => path.clone(),
        None => panic!(
            "no broker to test: build it with `cargo build --profile checked -p warrenmq`, or name one in WARRENMQ_BIN \
             (looked for {candidates:?})"
        ),
    }
}

fn read_log(directory: &Path) -> String {
    String::from_utf8_lossy(&fs::read(directory.join(LOG)).unwrap_or_default()).into_owned()
}

fn tail(directory: &Path) -> String {
    let log = read_log(directory);
    log[log.floor_char_boundary(log.len().saturating_sub(LOG_TAIL_BYTES))..].to_owned()
}
