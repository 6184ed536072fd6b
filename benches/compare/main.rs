//! Brokers side by side, on this machine, in the same run: `cargo bench -p warrenmq-benches --bench compare [-- NAME..]`.
//!
//! Absolute rates say more about the machine and what else it does than about a broker; ratios of runs that took turns on
//! it say something. See `benches/README.md`.

mod broker;
mod context;
mod table;
mod workloads;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use broker::{Installed, Running};
use context::{Context, Sizes};
use table::Results;
use workloads::{LEFT_OUT, Run, WORKLOADS};

/// Compares brokers under the same load.
#[derive(Debug, Parser)]
#[command(name = "compare")]
struct Options {
    /// Workloads whose name contains one of these; all without any
    names: Vec<String>,
    /// Brokers whose name contains one of these
    #[arg(long, value_delimiter = ',')]
    brokers: Vec<String>,
    /// Seconds of each run under load
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds of the runs under load, of which the median is shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Messages of the backlog; 5000000 for the full size
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(2..))]
    backlog: u64,
    /// Queues to declare; 100000 for the full size
    #[arg(long, default_value_t = 10_000)]
    queues: u64,
    /// Messages that pass while one is held; 5000000 for the full size
    #[arg(long, default_value_t = 300_000)]
    space: u64,
    /// Type of RabbitMQ's durable queues: quorum syncs before it confirms, as WarrenMQ does
    #[arg(long, default_value = "quorum")]
    rabbit_queue_type: String,
    /// Where brokers have their data: the disk that is measured [default: the directory for temporary files]
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Only say which workloads and brokers there are
    #[arg(long)]
    list: bool,
    /// cargo bench says so
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let Some(binary) = warrenmq() else {
        println!(
            "no warrenmq to compare: build it with `cargo build --release -p warrenmq`, or name one in WARRENMQ_BIN"
        );
        return ExitCode::FAILURE;
    };
    let parent = options.dir.clone().unwrap_or_else(std::env::temp_dir);
    let (mut brokers, missing) = broker::find(&binary);
    brokers.retain(|broker| wanted(&options.brokers, &broker.name.to_lowercase()));
    table::machine(&parent);
    for broker in &brokers {
        println!("broker: {}, {}", broker.name, broker.version);
    }
    for line in &missing {
        println!("not there: {line}");
    }
    for (name, why) in LEFT_OUT {
        println!("left out: {name}: {why}");
    }
    let chosen: Vec<_> = WORKLOADS.iter().filter(|(name, ..)| wanted(&options.names, name)).collect();
    for (name, about, _) in &chosen {
        println!("workload: {name}: {about}");
    }
    if options.list {
        return ExitCode::SUCCESS;
    }
    let sizes = Sizes {
        seconds: options.seconds,
        rounds: options.rounds.max(1),
        backlog: options.backlog,
        queues: options.queues,
        space: options.space,
        rabbit_queue_type: options.rabbit_queue_type,
    };
    let context = Context { tool: binary, parent, sizes, commands: Default::default() };
    let mut all = Vec::new();
    let mut running: Vec<Result<Running, String>> = Vec::new();
    for (name, _, run) in chosen {
        eprintln!("{name} ...");
        let rounds = match run {
            Run::Steady(work) => {
                if running.is_empty() {
                    running.extend(brokers.iter().map(|b| b.start(&context.parent, "").map_err(|e| e.to_string())));
                }
                in_turns(&context, &running, *work)
            }
            Run::Whole(work) => {
                // Brokers that are there would take their share of the machine.
                running.clear();
                let once = |broker: &Installed| vec![work(&context, broker).map_err(|error| error.to_string())];
                brokers.iter().map(once).collect()
            }
        };
        all.push(Results { name, rounds });
    }
    drop(running);
    table::table(&brokers, &all);
    println!("\ncommands, each with --uri, --server-pid and --json:");
    for command in context.commands.borrow().iter() {
        println!("  {command}");
    }
    let failed = all.iter().flat_map(|results| &results.rounds).flatten().any(Result::is_err);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// A B A B: what disturbs the machine for a while disturbs all.
fn in_turns(
    context: &Context,
    running: &[Result<Running, String>],
    work: workloads::Steady,
) -> Vec<Vec<Result<context::Figures, String>>> {
    let mut rounds: Vec<Vec<_>> = running.iter().map(|_| Vec::new()).collect();
    for _ in 0..context.sizes.rounds {
        for (broker, results) in running.iter().zip(&mut rounds) {
            results.push(match broker {
                Ok(broker) => work(context, broker).map_err(|error| error.to_string()),
                Err(error) => Err(error.clone()),
            });
        }
    }
    rounds
}

fn wanted(names: &[String], name: &str) -> bool {
    names.is_empty() || names.iter().any(|part| name.contains(&part.to_lowercase()))
}

/// The release binary in the target directory, or the one that `WARRENMQ_BIN` names.
fn warrenmq() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("WARRENMQ_BIN") {
        return Some(path.into());
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    Some(target.join("release/warrenmq")).filter(|path| path.is_file())
}
