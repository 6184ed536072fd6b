//! The binary `warrenmq`: reads the command line, the environment and the configuration, binds the listeners, runs the
//! node and stops it on a signal. What a broker is stands in the crate `broker`; [`node`] is where this one meets it.
//!
//! `warrenmq ctl`, and the binary under the name `rabbitmqctl`, is the client for operators ([`ctl`]).
//!
//! Exit codes of a node: 0 after a stop that was asked for, 1 when the node cannot start or was told twice to stop, 2 for a command line that cannot be read.
//! `warrenmq perf`: 1 when the run failed, 3 when messages were lost or doubled.

mod cli;
mod config;
mod ctl;
mod definitions;
mod listeners;
mod logging;
mod node;
mod open_files;
mod shutdown;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;

use crate::cli::{Cli, ServerArgs, Task};
use crate::config::{Config, Environment, Loaded};

/// Gives memory back to the system after a backlog was drained, which the system's allocator does not.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    // Its command line is rabbitmqctl's, which has options in places where clap wants none.
    if let Some(name) = words.first().and_then(|program| ctl::called_as(program)) {
        return ctl::run(name, &words[1..]);
    }
    if words.get(1).is_some_and(|word| word == "ctl") {
        return ctl::run("warrenmq ctl", &words[2..]);
    }
    let done = match Cli::parse().into_task() {
        Task::Serve(args) => start(&args).map(|()| ExitCode::SUCCESS),
        Task::Perf(args) => perf(*args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            // Not through the log: it may not be there yet, and may not go to a place that the operator sees.
            let _ = writeln!(std::io::stderr(), "warrenmq: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Exit code of a run of the load tool in which messages were lost or doubled.
const MISCOUNTED: u8 = 3;

fn perf(args: perf::PerfArgs) -> anyhow::Result<ExitCode> {
    // Each connection is a file.
    open_files::raise_limit();
    Ok(match perf::run(args)? {
        perf::Verdict::Good => ExitCode::SUCCESS,
        perf::Verdict::Failed => ExitCode::FAILURE,
        perf::Verdict::Miscounted => ExitCode::from(MISCOUNTED),
    })
}

fn start(args: &ServerArgs) -> anyhow::Result<()> {
    let environment = Environment::of_process()?;
    let Loaded { config, files, warnings } = config::load(args, &environment)?;
    std::fs::create_dir_all(&config.data_dir)
        .with_context(|| format!("cannot create the data directory {}", config.data_dir.display()))?;
    logging::start(&config.log)?;
    for file in &files {
        tracing::info!("configuration from {}", file.display());
    }
    for warning in &warnings {
        tracing::warn!("{warning}");
    }
    open_files::raise_limit();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")?;
    runtime.block_on(serve(config, files))
}

async fn serve(config: Config, files: Vec<PathBuf>) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signals().context("cannot wait for signals")?;
    let mut bound = Vec::with_capacity(config.listeners.len());
    for address in &config.listeners {
        bound.push(listeners::bind(*address).with_context(|| format!("cannot listen on {address}"))?);
    }
    let addresses = listeners::describe(&bound);
    let data_dir = config.data_dir.clone();
    let announce = move || {
        // Scripts wait for this line. A reader who went away is no reason to stop.
        let version = env!("CARGO_PKG_VERSION");
        let line = format!("WarrenMQ {version} ready: AMQP on {addresses}, data in {}\n", data_dir.display());
        let mut stdout = std::io::stdout();
        let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
    };
    node::run(config, files, bound, announce, shutdown).await
}
