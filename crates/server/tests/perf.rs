//! `warrenmq perf`: its counts add up against the real broker, and it notices when a broker loses, doubles or reorders.

mod fake_broker;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use fake_broker::{FakeBroker, Fault};

/// A running node. Killed when dropped.
struct Node {
    child: Child,
    address: String,
    _directory: tempfile::TempDir,
}

impl Node {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut command = Command::new(env!("CARGO_BIN_EXE_warrenmq"));
        command
            .env_clear()
            .args(["server", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(directory.path().join("data"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("the binary runs");
        let mut ready = String::new();
        let stdout = child.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut ready).expect("readable");
        let (_, rest) = ready.split_once("AMQP on ").expect("the ready line");
        let address = rest.split_once(", data in").expect("the ready line").0.to_owned();
        Self { child, address, _directory: directory }
    }

    fn perf(&self, arguments: &str) -> Result<serde_json::Value, (Option<i32>, serde_json::Value)> {
        perf(&self.address, arguments)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the tool: its JSON, with the exit code if that is not 0.
fn perf(address: &str, arguments: &str) -> Result<serde_json::Value, (Option<i32>, serde_json::Value)> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warrenmq"));
    command.arg("perf").args(arguments.split_ascii_whitespace()).args(["--json", "-i", "0", "--uri", address]);
    let output = command.stdin(Stdio::null()).output().expect("the binary runs");
    let json = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("perf {arguments}: {}", String::from_utf8_lossy(&output.stderr)));
    if output.status.success() { Ok(json) } else { Err((output.status.code(), json)) }
}

#[track_caller]
fn assert_counts(json: &serde_json::Value, expected: &[(&str, u64)]) {
    for (key, count) in expected {
        assert_eq!(json[*key], *count, "{key} of {json}");
    }
}

#[test]
fn counts_of_many_publishers_and_consumers_add_up() {
    let node = Node::start();
    for queue in ["--autoack", "--durable -f persistent -q 20 -A 5"] {
        let json = node.perf(&format!("--queues 3 -x 2 -y 2 -C 400 -c 10 -s 16-9000 {queue}")).expect("a good run");
        let all = 3 * 2 * 400;
        assert_counts(&json, &[("published", all), ("confirmed", all), ("received", all), ("distinct", all)]);
        assert_counts(&json, &[("lost", 0), ("duplicated", 0), ("foreign", 0), ("unconfirmed", 0), ("returned", 0)]);
        assert_counts(&json, &[("published_bytes", json["received_bytes"].as_u64().expect("a count"))]);
        assert_eq!(json["latency_us"]["count"], all);
        assert_eq!(json["confirm_us"]["count"], all);
    }
}

#[test]
fn one_publisher_and_one_consumer_keep_the_order() {
    let json = Node::start().perf("-C 20000").expect("a good run");
    assert_counts(&json, &[("received", 20_000), ("lost", 0), ("out_of_order", 0), ("confirmed", 0)]);
}

#[test]
fn fanout_delivers_each_message_once_per_queue() {
    let json = Node::start().perf("--fanout --queues 5 -x 2 -C 100 --autoack").expect("a good run");
    assert_counts(&json, &[("published", 200), ("received", 1000), ("distinct", 1000), ("lost", 0)]);
}

#[test]
fn returned_messages_are_not_lost() {
    let json = Node::start().perf("-p -u nowhere -y 0 -C 50 -c 7 -f mandatory").expect("a good run");
    assert_counts(&json, &[("returned", 50), ("confirmed", 50), ("received", 0)]);
}

#[test]
fn a_run_can_be_split_in_two_and_messages_of_other_runs_are_foreign() {
    let node = Node::start();
    node.perf("-u q -y 0 -C 30 --run-id 7").expect("a good run");
    let json = node.perf("-u q -x 0 -D 10 --run-id 7").expect("a good run");
    assert_counts(&json, &[("received", 10), ("distinct", 10), ("foreign", 0)]);
    let json = node.perf("-u q -x 0 -D 20 --run-id 8 --delete").expect("a good run");
    assert_counts(&json, &[("received", 20), ("distinct", 0), ("foreign", 20)]);
}

#[test]
fn what_the_broker_uses_is_told() {
    let node = Node::start();
    let json = node.perf(&format!("-C 50000 -s 1000 --server-pid {}", node.child.id())).expect("a good run");
    let server = &json["server"];
    assert!(server["rss_peak_bytes"].as_u64() > Some(1 << 20), "{server}");
    assert!(server["cpu_s"].as_f64() > Some(0.0), "{server}");
}

#[test]
fn other_modes_do_what_they_say() {
    let node = Node::start();
    let json = node.perf("rpc -x 3 -y 2 -z 0.5").expect("a good run");
    assert!(json["calls"].as_u64() > Some(0) && json["wrong"] == 0, "{json}");
    assert_eq!(json["latency_us"]["count"], json["calls"]);
    let json = node.perf("churn -x 2 -z 0.3").expect("a good run");
    assert!(json["cycles"].as_u64() > Some(0), "{json}");
    let json = node.perf("queue-churn --queues 50 -x 3 --durable").expect("a good run");
    assert_eq!((&json["declare"]["queues"], &json["delete"]["queues"]), (&50.into(), &50.into()));
    let json = node.perf("idle --connections 30 -z 0.1").expect("a good run");
    assert_counts(&json, &[("connections", 30)]);
}

#[test]
fn a_lost_message_is_noticed() {
    let broker = FakeBroker::start(Fault::Drop);
    let (code, json) = perf(&broker.address, "-C 100 -c 10 --autoack --drain-timeout 0.5").expect_err("a loss");
    assert_eq!(code, Some(3));
    assert_counts(&json, &[("confirmed", 100), ("received", 99), ("lost", 1), ("duplicated", 0)]);
}

#[test]
fn a_doubled_message_is_noticed() {
    let broker = FakeBroker::start(Fault::Double);
    let (code, json) = perf(&broker.address, "-C 100 -c 10 --autoack --drain-timeout 0.5").expect_err("a double");
    assert_eq!(code, Some(3));
    assert_counts(&json, &[("received", 101), ("distinct", 100), ("lost", 0), ("duplicated_unflagged", 1)]);
}

#[test]
fn a_message_that_overtakes_is_noticed() {
    let broker = FakeBroker::start(Fault::Swap);
    let json = perf(&broker.address, "-C 100 -c 10 --autoack --drain-timeout 0.5").expect("only a remark");
    assert_counts(&json, &[("received", 100), ("lost", 0), ("out_of_order", 1)]);
}

#[test]
fn a_broker_that_is_not_there_or_refuses_is_an_error() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_warrenmq"));
    let node = Node::start();
    let uri = format!("amqp://guest:wrong@{}", node.address);
    let output = command.args(["perf", "--uri", &uri]).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("403 ACCESS_REFUSED"), "{output:?}");
}
