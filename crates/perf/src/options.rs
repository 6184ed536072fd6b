//! The command line of the load tool. Options that PerfTest has, too, have its names.

use std::ops::RangeInclusive;
use std::time::Duration;

use amqp::{AMQPValue, FieldTable};
use clap::{Args, Subcommand};

use crate::link::LinkOptions;
use crate::message::STAMP_BYTES;
use crate::uri::Uri;

/// Largest body, in bytes: RabbitMQ's limit.
const MAX_BODY_BYTES: usize = 512 << 20;

/// `warrenmq perf`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct PerfArgs {
    #[command(subcommand)]
    pub(crate) mode: Option<Mode>,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
}

/// What is measured.
#[derive(Debug, Subcommand)]
pub(crate) enum Mode {
    /// Publish and consume, check that nothing is lost (what happens without a mode, too)
    Load(Box<LoadArgs>),
    /// Send requests and wait for answers, by direct reply-to
    Rpc(RpcArgs),
    /// Open a connection and a channel, close them, again and again
    Churn(ChurnArgs),
    /// Declare many queues
    QueueChurn(QueueChurnArgs),
    /// Open many connections and hold them
    Idle(IdleArgs),
}

/// Where the broker is, and how results are printed.
#[derive(Debug, Clone, Args)]
pub(crate) struct CommonArgs {
    /// Broker, as amqp://USER:PASSWORD@HOST:PORT/VHOST or HOST:PORT; several, separated by commas, are used in turn
    #[arg(
        long = "uri",
        visible_alias = "uris",
        value_name = "URI",
        value_delimiter = ',',
        default_value = "amqp://127.0.0.1:5672"
    )]
    pub(crate) uris: Vec<Uri>,
    /// How long to try again while nobody listens, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    pub(crate) connect_timeout: f64,
    /// Heartbeat to ask for, in seconds; 0 for none
    #[arg(long, short = 'b', value_name = "SECONDS", default_value_t = 0)]
    pub(crate) heartbeat: u16,
    /// Largest frame to ask for, in bytes; 0 for what the broker proposes
    #[arg(long, short = 'M', value_name = "BYTES", default_value_t = 0)]
    pub(crate) framemax: u32,
    /// Processes of the broker: report their CPU time, memory and written bytes
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub(crate) server_pid: Vec<u32>,
    /// Print one line of JSON on standard output instead of a summary
    #[arg(long)]
    pub(crate) json: bool,
    /// Copied to the JSON
    #[arg(long, short = 'd', visible_alias = "id", value_name = "TEXT", default_value = "")]
    pub(crate) label: String,
    /// Seconds between lines of progress on standard error; 0 for none
    #[arg(long, short = 'i', value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub(crate) interval: f64,
    /// Threads of this tool [default: half of the processors]
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

impl CommonArgs {
    pub(crate) fn link_options(&self) -> LinkOptions {
        LinkOptions {
            heartbeat_s: self.heartbeat,
            frame_max: self.framemax,
            connect_timeout: Duration::from_secs_f64(self.connect_timeout),
        }
    }

    /// The broker of the client with this number.
    pub(crate) fn uri(&self, client: usize) -> &Uri {
        &self.uris[client % self.uris.len()]
    }
}

/// How queues are declared.
#[derive(Debug, Clone, Args)]
pub(crate) struct QueueArgs {
    /// Queues survive a restart
    #[arg(long)]
    pub(crate) durable: bool,
    /// Queues go with their last consumer
    #[arg(long, short = 'a')]
    pub(crate) auto_delete: bool,
    /// Type of the queues: classic, quorum or stream
    #[arg(long, value_name = "TYPE")]
    pub(crate) queue_type: Option<String>,
    /// Durable quorum queues: short for --durable --queue-type quorum
    #[arg(long)]
    pub(crate) quorum_queue: bool,
    /// Arguments of the queues; numbers and true or false are sent as such
    #[arg(long, visible_alias = "queue-arg", value_name = "KEY=VALUE", value_delimiter = ',', value_parser = argument)]
    pub(crate) queue_args: Vec<(String, AMQPValue)>,
}

impl QueueArgs {
    pub(crate) fn is_durable(&self) -> bool {
        self.durable || self.quorum_queue
    }

    pub(crate) fn arguments(&self) -> FieldTable {
        let mut table = FieldTable::default();
        let queue_type = if self.quorum_queue { Some("quorum") } else { self.queue_type.as_deref() };
        if let Some(queue_type) = queue_type {
            table.insert("x-queue-type".into(), AMQPValue::LongString(queue_type.into()));
        }
        for (key, value) in &self.queue_args {
            table.insert(key.as_str().into(), value.clone());
        }
        table
    }
}

/// Publish and consume.
#[derive(Debug, Clone, Args)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    pub(crate) queue_args: QueueArgs,
    /// Publishers of each queue (with --fanout: of all), a connection each
    #[arg(long, short = 'x', value_name = "N", default_value_t = 1)]
    pub(crate) producers: usize,
    /// Consumers of each queue, a connection each
    #[arg(long, short = 'y', value_name = "N", default_value_t = 1)]
    pub(crate) consumers: usize,
    /// Name of the queue [default: perf-RUN, deleted afterwards]
    #[arg(long, short = 'u', value_name = "NAME", conflicts_with = "queue_pattern")]
    pub(crate) queue: Option<String>,
    /// How many queues
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) queues: usize,
    /// Names of the queues; %d or %i stands for the number
    #[arg(long, value_name = "PATTERN")]
    pub(crate) queue_pattern: Option<String>,
    /// Number of the first queue
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) queue_pattern_from: usize,
    /// Number of the last queue; goes before --queues
    #[arg(long, value_name = "N")]
    pub(crate) queue_pattern_to: Option<usize>,
    /// Publish to one fanout exchange, to which all queues are bound
    #[arg(long)]
    pub(crate) fanout: bool,
    /// Name of the fanout exchange
    #[arg(long, short = 'e', value_name = "NAME", default_value = "perf.fanout", requires = "fanout")]
    pub(crate) exchange: String,
    /// Queues and exchange are there already: declare and bind nothing
    #[arg(long, short = 'p')]
    pub(crate) predeclared: bool,
    /// Purge the queues before the run
    #[arg(long)]
    pub(crate) purge: bool,
    /// Delete the queues after the run, also those that were named
    #[arg(long)]
    pub(crate) delete: bool,
    /// Prefetch: unacknowledged deliveries of each consumer; 0 for no limit
    #[arg(long, short = 'q', value_name = "N", default_value_t = 0)]
    pub(crate) qos: u16,
    /// Deliveries need no acknowledgement
    #[arg(long)]
    pub(crate) autoack: bool,
    /// Acknowledge every N-th delivery, with all before it
    #[arg(long, short = 'A', value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) multi_ack_every: u32,
    /// Consumers keep what they get, up to the prefetch, and acknowledge it only at the end
    #[arg(long, conflicts_with_all = ["autoack", "multi_ack_every"])]
    pub(crate) hold: bool,
    /// Publisher confirms, with at most N publishes open
    #[arg(long, short = 'c', value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) confirm: Option<u32>,
    /// Flags of messages: persistent, mandatory
    #[arg(long, short = 'f', value_name = "FLAG", value_delimiter = ',')]
    pub(crate) flag: Vec<Flag>,
    /// Bytes of a body, at least 16; or FROM-TO for sizes drawn evenly
    #[arg(long, short = 's', value_name = "BYTES", default_value = "16", value_parser = sizes)]
    pub(crate) size: RangeInclusive<usize>,
    /// Messages per second of each publisher [default: as fast as it goes]
    #[arg(long, short = 'r', value_name = "RATE", value_parser = rate)]
    pub(crate) rate: Option<f64>,
    /// Messages of each publisher [default: until --time]
    #[arg(long, short = 'C', value_name = "N")]
    pub(crate) pmessages: Option<u64>,
    /// Messages after which each consumer stops
    #[arg(long, short = 'D', value_name = "N")]
    pub(crate) cmessages: Option<u64>,
    /// Publish for this long, in seconds [default: 10 when there is no --pmessages]
    #[arg(long, short = 'z', value_name = "SECONDS", value_parser = seconds)]
    pub(crate) time: Option<f64>,
    /// Give up on missing messages when nothing came for this long, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) drain_timeout: f64,
    /// Number of the run on the messages: consumers count only those; the same for the two halves of a split run
    #[arg(long, value_name = "N")]
    pub(crate) run_id: Option<u16>,
}

/// Flags of a message, as PerfTest names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Flag {
    /// Delivery mode 2
    Persistent,
    /// Return what reaches no queue
    Mandatory,
}

impl LoadArgs {
    /// Names of all queues.
    pub(crate) fn queue_names(&self, run: u16) -> Vec<String> {
        let first = self.queue_pattern_from;
        let last = self.queue_pattern_to.unwrap_or(first + self.queues - 1);
        if let Some(pattern) = &self.queue_pattern {
            return (first..=last)
                .map(|n| pattern.replace("%d", &n.to_string()).replace("%i", &n.to_string()))
                .collect();
        }
        let base = self.queue.clone().unwrap_or_else(|| format!("perf-{run}"));
        if first == last { vec![base] } else { (first..=last).map(|n| format!("{base}-{n}")).collect() }
    }

    /// What options mean together.
    ///
    /// # Errors
    /// In words, for combinations that cannot work.
    pub(crate) fn check(&self) -> Result<(), String> {
        let last = self.queue_pattern_to.unwrap_or(self.queue_pattern_from + self.queues.max(1) - 1);
        if self.queues == 0 || last < self.queue_pattern_from {
            return Err("no queues".to_owned());
        }
        let many = last > self.queue_pattern_from;
        if many && self.queue_pattern.as_deref().is_some_and(|p| !p.contains("%d") && !p.contains("%i")) {
            return Err("--queue-pattern needs %d or %i where the number is to stand".to_owned());
        }
        let queues = last - self.queue_pattern_from + 1;
        let publishers = if self.fanout { Some(self.producers) } else { self.producers.checked_mul(queues) };
        if publishers.is_none_or(|n| n > usize::from(u16::MAX)) {
            return Err("more than 65,535 publishers".to_owned());
        }
        if self.qos > 0 && !self.hold && !self.autoack && self.multi_ack_every > u32::from(self.qos) {
            return Err("--multi-ack-every larger than --qos: no acknowledgement would ever be sent".to_owned());
        }
        Ok(())
    }
}

/// Requests and answers.
#[derive(Debug, Args)]
pub(crate) struct RpcArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Clients, each with one request open
    #[arg(long, short = 'x', visible_alias = "producers", value_name = "N", default_value_t = 1)]
    pub(crate) clients: usize,
    /// Servers, all on one queue
    #[arg(long, short = 'y', visible_alias = "consumers", value_name = "N", default_value_t = 1)]
    pub(crate) servers: usize,
    /// For how long, in seconds
    #[arg(long, short = 'z', value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) time: f64,
    /// Bytes of requests and answers, at least 16
    #[arg(long, short = 's', value_name = "BYTES", default_value = "16", value_parser = sizes)]
    pub(crate) size: RangeInclusive<usize>,
}

/// Connections that come and go.
#[derive(Debug, Args)]
pub(crate) struct ChurnArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// Clients that do so at the same time
    #[arg(long, short = 'x', value_name = "N", default_value_t = 1)]
    pub(crate) clients: usize,
    /// For how long, in seconds
    #[arg(long, short = 'z', value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub(crate) time: f64,
}

/// Queues that are declared, and deleted again.
#[derive(Debug, Args)]
pub(crate) struct QueueChurnArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    #[command(flatten)]
    pub(crate) queue_args: QueueArgs,
    /// How many queues
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) queues: usize,
    /// Connections that declare them
    #[arg(long, short = 'x', value_name = "N", default_value_t = 1)]
    pub(crate) clients: usize,
    /// Names of the queues; %d or %i stands for the number
    #[arg(long, value_name = "PATTERN", default_value = "perf-churn-%d")]
    pub(crate) queue_pattern: String,
    /// Leave the queues there rather than delete them
    #[arg(long, conflicts_with = "only_delete")]
    pub(crate) keep: bool,
    /// Delete the queues without declaring them first
    #[arg(long)]
    pub(crate) only_delete: bool,
}

/// Connections that do nothing.
#[derive(Debug, Args)]
pub(crate) struct IdleArgs {
    #[command(flatten)]
    pub(crate) common: CommonArgs,
    /// How many connections, a channel each
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) connections: usize,
    /// How many are opened at the same time
    #[arg(long, short = 'x', value_name = "N", default_value_t = 20)]
    pub(crate) clients: usize,
    /// How long they are held, in seconds
    #[arg(long, short = 'z', value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    pub(crate) time: f64,
}

/// A time that a clock can be set to; a day is longer than any run.
fn seconds(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if (0.0..=86_400.0).contains(&number) { Ok(number) } else { Err("expected 0 to 86400 seconds".to_owned()) }
}

fn rate(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if number > 0.0 && number.is_finite() { Ok(number) } else { Err("expected a number above 0".to_owned()) }
}

fn sizes(text: &str) -> Result<RangeInclusive<usize>, String> {
    let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{text}: not a number of bytes"));
    let (least, most) = match text.split_once('-') {
        Some((least, most)) => (number(least)?, number(most)?),
        None => (number(text)?, number(text)?),
    };
    if least < STAMP_BYTES || most < least || most > MAX_BODY_BYTES {
        return Err(format!("expected {STAMP_BYTES} to {MAX_BODY_BYTES} bytes"));
    }
    Ok(least..=most)
}

fn argument(text: &str) -> Result<(String, AMQPValue), String> {
    let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE")?;
    if key.is_empty() || key.len() > 255 {
        return Err("a key has 1 to 255 bytes".to_owned());
    }
    let value = match (value, value.parse::<i64>()) {
        ("true", _) => AMQPValue::Boolean(true),
        ("false", _) => AMQPValue::Boolean(false),
        (_, Ok(number)) => AMQPValue::LongLongInt(number),
        (text, Err(_)) => AMQPValue::LongString(text.into()),
    };
    Ok((key.to_owned(), value))
}
