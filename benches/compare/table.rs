//! The result as a table in Markdown, and what has to be told with it: machine, versions, commands.

use std::fs;
use std::path::Path;

use crate::broker::Installed;
use crate::context::Figures;

/// All rounds of one workload: per broker, the figures of each round, or what went wrong.
pub(crate) struct Results {
    pub(crate) name: &'static str,
    pub(crate) rounds: Vec<Vec<Result<Figures, String>>>,
}

/// Prints the machine, as far as it bears on the figures.
pub(crate) fn machine(parent: &Path) {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("", |m| m.1);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let meminfo = read("/proc/meminfo");
    let memory = meminfo.lines().next().and_then(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok());
    println!("machine: {cores} cores of {model}, {} MiB", memory.unwrap_or(0) / 1024);
    println!("kernel: Linux {}", read("/proc/sys/kernel/osrelease").trim());
    println!("load before the run: {}", read("/proc/loadavg").trim());
    println!("directory: {} ({})", parent.display(), file_system(parent));
}

/// Type and device of the file system with this directory: the longest mount point in front of it.
fn file_system(directory: &Path) -> String {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let fields = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ');
        Some((fields.next()?, fields.next()?, fields.next()?))
    });
    let on = fields.filter(|(_, point, _)| directory.starts_with(point)).max_by_key(|(_, point, _)| point.len());
    on.map_or("unknown".to_owned(), |(device, _, kind)| format!("{kind} on {device}"))
}

/// Prints a row per figure: the median of each broker, and each peer's share of the first broker's.
pub(crate) fn table(brokers: &[Installed], all: &[Results]) {
    let names: Vec<&str> = brokers.iter().map(|broker| broker.name).collect();
    let mut head = format!("| workload | figure | {}", names.join(" | "));
    let mut rule = format!("|---|---|{}", "---:|".repeat(names.len()));
    for peer in names.iter().skip(1) {
        head += &format!(" | {} / {peer}", names[0]);
        rule += "---:|";
    }
    println!("\n{head} |\n{rule}");
    for results in all {
        let mut figures: Vec<&str> = Vec::new();
        for figure in results.rounds.iter().flatten().flatten().flatten() {
            if !figures.contains(&figure.name.as_str()) {
                figures.push(&figure.name);
            }
        }
        for figure in figures {
            let medians: Vec<Option<f64>> = results.rounds.iter().map(|rounds| median(rounds, figure)).collect();
            let mut row = format!("| {} | {figure}", results.name);
            for value in &medians {
                row += &format!(" | {}", value.map_or("-".to_owned(), shown));
            }
            for peer in medians.iter().skip(1) {
                let ratio = match (medians[0], peer) {
                    (Some(ours), Some(theirs)) if *theirs != 0.0 => format!("{:.2}", ours / theirs),
                    _ => "-".to_owned(),
                };
                row += &format!(" | {ratio}");
            }
            println!("{row} |");
        }
        for (broker, rounds) in names.iter().zip(&results.rounds) {
            for error in rounds.iter().filter_map(|round| round.as_ref().err()) {
                println!("| {} | FAILED on {broker}: {} |", results.name, error.replace(['\n', '|'], " "));
            }
        }
    }
}

fn median(rounds: &[Result<Figures, String>], name: &str) -> Option<f64> {
    let of_round = |figures: &Figures| figures.iter().find(|figure| figure.name == name).map(|figure| figure.value);
    let mut values: Vec<f64> = rounds.iter().filter_map(|round| of_round(round.as_ref().ok()?)).collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[count / 2]),
        count => Some((values[count / 2 - 1] + values[count / 2]) / 2.0),
    }
}

fn shown(value: f64) -> String {
    if value.abs() >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
