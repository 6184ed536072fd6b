//! The real binary: what it prints, where it listens, how it ends.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// The binary with nothing of this process's environment that it would listen to, and a configuration of its own.
fn warrenmq(directory: &Path, configuration: &str, arguments: &[&str]) -> Command {
    let file = directory.join("node.conf");
    fs::write(&file, configuration).expect("a writable directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_warrenmq"));
    command.env_clear().current_dir(directory).args(arguments).arg("--config").arg(file);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(command: &mut Command) -> (Output, String) {
    let output = command.output().expect("the binary runs");
    let stderr = String::from_utf8(output.stderr.clone()).expect("UTF-8");
    (output, stderr)
}

/// A running node. Killed when dropped, so that a failed test leaves nothing behind.
struct Node {
    child: Child,
    stdout: BufReader<ChildStdout>,
    ready: String,
}

impl Node {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the binary runs");
        let mut stdout = BufReader::new(child.stdout.take().expect("piped"));
        let mut ready = String::new();
        stdout.read_line(&mut ready).expect("readable");
        Self { child, stdout, ready }
    }

    fn address(&self) -> &str {
        let (_, rest) = self.ready.split_once("AMQP on ").expect("the ready line");
        rest.split_once(", data in").expect("the ready line").0
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process is there");
    }

    /// Exit code, and what else was written to standard output and standard error.
    fn wait(mut self) -> (Option<i32>, String, String) {
        let (mut stdout, mut stderr) = (String::new(), String::new());
        self.stdout.read_to_string(&mut stdout).expect("UTF-8");
        self.child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("UTF-8");
        (self.child.wait().expect("a child").code(), stdout, stderr)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn version_is_that_of_the_package() {
    let output = Command::new(env!("CARGO_BIN_EXE_warrenmq")).arg("--version").output().expect("the binary runs");
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), concat!("warrenmq ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn bad_configuration_exits_1_with_file_and_line() {
    let directory = tempfile::tempdir().unwrap();
    let (output, stderr) = output(&mut warrenmq(directory.path(), "# one\nheartbeat = often\n", &[]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("node.conf:2: heartbeat = often: expected a number of seconds"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(!directory.path().join("warrenmq-data").exists(), "nothing is made before the configuration is right");
}

#[test]
fn unknown_argument_exits_2() {
    let output = Command::new(env!("CARGO_BIN_EXE_warrenmq")).arg("--nonsense").output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn ready_line_names_the_port_and_the_data_and_sigterm_exits_0() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(warrenmq(directory.path(), "", &["server", "--listen", "127.0.0.1:0", "--data-dir", "d"]));
    let data_dir = directory.path().join("d");
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!("WarrenMQ {version} ready: AMQP on {}, data in {}\n", node.address(), data_dir.display());
    assert_eq!(node.ready, expected);
    assert!(data_dir.is_dir());
    TcpStream::connect(node.address()).expect("somebody listens");
    node.signal(Signal::TERM);
    let (code, stdout, stderr) = node.wait();
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stdout, "", "standard output has the one line alone");
    let (stopping, stopped) = (stderr.find("stopping; "), stderr.find("stopped"));
    assert!(stopping.is_some() && stopping < stopped, "{stderr}");
}

#[test]
fn sigint_stops_as_well_and_server_may_be_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let node = Node::start(warrenmq(directory.path(), "", &["--listen", "127.0.0.1:0"]));
    assert!(node.ready.contains("warrenmq-data"), "{}", node.ready);
    node.signal(Signal::INT);
    assert_eq!(node.wait().0, Some(0));
}

#[test]
fn address_in_use_exits_1_with_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (output, stderr) = output(&mut warrenmq(directory.path(), "log.console = false\n", &["--listen", &address]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.starts_with(&format!("warrenmq: cannot listen on {address}: ")), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(output.stdout.is_empty());
}

#[test]
fn data_directory_that_cannot_be_made_exits_1() {
    let directory = tempfile::tempdir().unwrap();
    let (output, stderr) = output(&mut warrenmq(directory.path(), "", &["--data-dir", "node.conf/data"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("cannot create the data directory"), "{stderr}");
}

#[test]
fn unknown_key_is_logged_and_the_node_starts() {
    let directory = tempfile::tempdir().unwrap();
    let configuration = "management.tcp.port = 15672\nlisteners.tcp.1 = 127.0.0.1:1\n";
    let node = Node::start(warrenmq(directory.path(), configuration, &["--listen", "127.0.0.1:0"]));
    assert!(node.ready.contains("ready"), "{}", node.ready);
    node.signal(Signal::TERM);
    let (_, _, stderr) = node.wait();
    assert!(stderr.contains("WARN") && stderr.contains("node.conf:1: management.tcp.port has no effect"), "{stderr}");
}

#[test]
fn log_lines_are_json_when_asked_and_go_to_a_file_too() {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--listen", "127.0.0.1:0", "--log-format", "json", "--log-level", "debug"];
    let node = Node::start(warrenmq(directory.path(), "log.file = node.log\n", &arguments));
    node.signal(Signal::TERM);
    let (_, _, stderr) = node.wait();
    let file = fs::read_to_string(directory.path().join("warrenmq-data").join("node.log")).expect("the log file");
    for log in [&stderr, &file] {
        let mut lines = log.lines();
        assert!(lines.all(|line| line.starts_with("{\"timestamp\":\"") && line.ends_with('}')), "{log}");
        assert!(log.contains("\"level\":\"DEBUG\"") && log.contains("\"message\":\"stopped\""), "{log}");
    }
}

#[test]
fn environment_is_read_and_the_command_line_wins() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = warrenmq(directory.path(), "", &[]);
    command.env("WARRENMQ_DATA_DIR", "from-environment").env("RABBITMQ_NODE_PORT", "amqp");
    let (result, stderr) = output(&mut command);
    assert_eq!(result.status.code(), Some(1));
    assert!(stderr.contains("environment variable RABBITMQ_NODE_PORT: 'amqp': expected a port"), "{stderr}");

    let mut command = warrenmq(directory.path(), "", &["--listen", "127.0.0.1:0"]);
    command.env("WARRENMQ_DATA_DIR", "from-environment").env("RABBITMQ_NODE_PORT", "1");
    let node = Node::start(command);
    assert!(node.ready.ends_with("from-environment\n") && node.address() != "127.0.0.1:1", "{}", node.ready);
}
