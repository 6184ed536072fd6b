//! What workloads are given: sizes, the load tool, and the machine itself as a measure.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::{Kind, Running};

/// Writes of one bare measurement of the disk.
const BARE_SYNCS: usize = 200;
/// Between two looks at the size of a directory.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Sizes of the workloads.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Seconds of a run under load.
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    pub(crate) backlog: u64,
    pub(crate) queues: u64,
    pub(crate) space: u64,
    /// Type of RabbitMQ's durable queues.
    pub(crate) rabbit_queue_type: String,
}

/// One figure of a workload.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
}

/// Figures in the order in which they are shown.
pub(crate) type Figures = Vec<Figure>;

pub(crate) fn figure(name: &str, value: f64) -> Figure {
    Figure { name: name.to_owned(), value }
}

/// What workloads share.
pub(crate) struct Context {
    /// The binary with the load tool.
    pub(crate) tool: PathBuf,
    /// Where brokers have their directories.
    pub(crate) parent: PathBuf,
    pub(crate) sizes: Sizes,
    /// Commands that were run, each once, with placeholders for what differs.
    pub(crate) commands: std::cell::RefCell<Vec<String>>,
}

impl Context {
    /// The load tool with these arguments, against this broker.
    pub(crate) fn tool(&self, broker: &Running, arguments: &[String]) -> Command {
        let line = format!("warrenmq perf {}", arguments.join(" "));
        let mut commands = self.commands.borrow_mut();
        if !commands.contains(&line) {
            commands.push(line);
        }
        let mut command = Command::new(&self.tool);
        command.arg("perf").args(arguments);
        command.args(["--json", "--uri", &format!("127.0.0.1:{}", broker.port), "--connect-timeout", "60"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    /// Runs the load tool and answers its JSON.
    pub(crate) fn perf(&self, broker: &Running, arguments: &str) -> io::Result<Value> {
        let arguments: Vec<String> = arguments.split_ascii_whitespace().map(str::to_owned).collect();
        let mut command = self.tool(broker, &arguments);
        let output = command.args(["-i", "0", "--server-pid", &broker.pid().to_string()]).output()?;
        let json: Value = serde_json::from_slice(&output.stdout).map_err(|_| {
            io::Error::other(format!(
                "perf {}: {}",
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            ))
        })?;
        if output.status.success() {
            return Ok(json);
        }
        let told = ["lost", "duplicated_unflagged", "unconfirmed", "errors"].map(|key| format!("{key} {}", json[key]));
        Err(io::Error::other(format!("perf {}: {}", arguments.join(" "), told.join(", "))))
    }

    /// Options for durable queues of this broker.
    pub(crate) fn durable(&self, broker: &Running) -> String {
        match broker.kind() {
            Kind::Rabbit => format!("--durable --queue-type {}", self.sizes.rabbit_queue_type),
            Kind::Warren | Kind::Lavin => "--durable".to_owned(),
        }
    }
}

/// A number in the tool's JSON, by the path to it.
pub(crate) fn number(json: &Value, path: &str) -> io::Result<f64> {
    json.pointer(path).and_then(Value::as_f64).ok_or_else(|| io::Error::other(format!("no {path} in the result")))
}

/// Times, in microseconds, of overwriting `bytes` of a zeroed file and `fdatasync`: what a confirm of one message costs at
/// least.
pub(crate) fn bare_sync_us(directory: &Path, bytes: usize) -> io::Result<Vec<f64>> {
    let path = directory.join("bare-sync");
    let file = File::options().create(true).truncate(true).write(true).open(&path)?;
    file.write_all_at(&vec![0; bytes * BARE_SYNCS], 0)?;
    file.sync_all()?;
    let data = vec![0x5A; bytes];
    let mut times = Vec::with_capacity(BARE_SYNCS);
    for number in 0..BARE_SYNCS {
        let began = Instant::now();
        file.write_all_at(&data, (number * bytes) as u64)?;
        file.sync_data()?;
        times.push(began.elapsed().as_secs_f64() * 1e6);
    }
    fs::remove_file(path)?;
    Ok(times)
}

/// Bytes that a directory takes on disk.
pub(crate) fn disk_bytes(directory: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    // Files come and go while a broker runs.
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}

/// The most that a directory takes on disk while `work` is done.
pub(crate) fn peak_disk_bytes<T>(directory: &Path, work: impl FnOnce() -> T) -> (u64, T) {
    let (peak, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                peak.fetch_max(disk_bytes(directory), Relaxed);
                std::thread::sleep(LOOK_EVERY);
            }
        });
        let result = work();
        done.store(true, Relaxed);
        (peak.load(Relaxed), result)
    })
}
