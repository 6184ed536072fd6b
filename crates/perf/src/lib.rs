//! `warrenmq perf`: a load tool for AMQP 0-9-1 brokers, ours or any other.
//!
//! It publishes and consumes as hard as it is told, and *checks* what comes back: every message carries the number of the
//! run, its publisher, a sequence number and the time (`message`), so that lost, doubled and reordered messages are
//! counted and times from publish to delivery are known. Besides that it measures answers to requests, connections and
//! queues that come and go, and idle connections.
//!
//! A connection is one task (`drive`) around a `drive::Role`: `publisher` and `consumer` are plain state machines,
//! frames in and frames out, on the codec of the crate `amqp`. Messages are prepared once and patched, reads and writes
//! carry hundreds of them, so that the tool takes less of the machine than a broker does.
//!
//! It knows nothing of the broker but its address and, for CPU time and memory, the ids of its processes.

#![forbid(unsafe_code)]

mod churn;
mod consumer;
mod content;
mod drive;
mod error;
mod link;
mod load;
mod message;
mod meters;
mod options;
mod process;
mod publisher;
mod report;
mod rpc;
mod setup;
mod tracker;
mod uri;
mod wire;

use std::io::Write as _;

pub use error::Error;
pub use options::PerfArgs;
pub use process::Usage;
pub use report::Verdict;
pub use uri::Uri;

use options::{CommonArgs, Mode};
use report::Outcome;

/// Runs what the command line asks for and prints the result on standard output.
///
/// # Errors
/// Options that do not fit together, and what keeps a run from starting. What goes wrong during a run is in its result
/// and in the [`Verdict`].
pub fn run(args: PerfArgs) -> anyhow::Result<Verdict> {
    let mode = args.mode.unwrap_or(Mode::Load(Box::new(args.load)));
    let common = match &mode {
        Mode::Load(args) => &args.common,
        Mode::Rpc(args) => &args.common,
        Mode::Churn(args) => &args.common,
        Mode::QueueChurn(args) => &args.common,
        Mode::Idle(args) => &args.common,
    };
    let (json, runtime) = (common.json, runtime(common)?);
    let outcome: Outcome = runtime.block_on(async move {
        Ok::<_, anyhow::Error>(match mode {
            Mode::Load(args) => {
                args.check().map_err(anyhow::Error::msg)?;
                load::run(&args).await?.outcome()
            }
            Mode::Rpc(args) => rpc::run(args).await?,
            Mode::Churn(args) => churn::connections(&args).await?,
            Mode::QueueChurn(args) => churn::queues(&args).await?,
            Mode::Idle(args) => churn::idle(&args).await?,
        })
    })?;
    let mut stdout = std::io::stdout();
    let text = if json { format!("{}\n", outcome.json) } else { outcome.text };
    stdout.write_all(text.as_bytes())?;
    stdout.flush()?;
    Ok(outcome.verdict)
}

fn runtime(common: &CommonArgs) -> std::io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // The broker wants some of the machine, too.
    match common.threads.unwrap_or((cores / 2).max(1)) {
        0 | 1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        threads => tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    }
}
