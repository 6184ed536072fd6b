//! The workloads. Those under load share a broker and are run in turns; the others each start their own.

use std::io::{self, BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::broker::{Installed, Running};
use crate::context::{Context, Figures, bare_sync_us, disk_bytes, figure, number, peak_disk_bytes};

/// Bytes of a body in the workloads about the disk.
const BODY_BYTES: usize = 1024;
/// WarrenMQ's memory for bodies when the backlog is deep.
const SMALL_BUDGET: &str = "body_budget.absolute = 64MB\n";
/// How long a broker is given to clear up before its directory is measured again.
const REST: Duration = Duration::from_secs(3);
/// How long a broker may take from its start to the first delivery.
const FIRST_DELIVERY_TIMEOUT: Duration = Duration::from_secs(120);
/// Confirms, prefetch and acknowledgements as in most of the workloads.
const STEADY: &str = "-c 1000 -f persistent -q 1000 -A 100";

/// A workload on a running broker.
pub(crate) type Steady = fn(&Context, &Running) -> io::Result<Figures>;
/// A workload that starts its broker.
pub(crate) type Whole = fn(&Context, &Installed) -> io::Result<Figures>;

/// How a workload is run.
pub(crate) enum Run {
    /// In turns, several rounds, on brokers that stay.
    Steady(Steady),
    /// Once for each broker.
    Whole(Whole),
}

/// All workloads: name, what it is, how it is run.
pub(crate) const WORKLOADS: &[(&str, &str, Run)] = &[
    ("durable", "1 KiB persistent, 1,000 confirms open, ack of every 100", Run::Steady(durable)),
    ("one-in-flight", "1 KiB persistent, one publish open, against a bare fdatasync", Run::Steady(one_in_flight)),
    (
        "queues-100",
        "100 durable queues, 1 KiB persistent, 100 confirms open, ack of every 10",
        Run::Steady(hundred_queues),
    ),
    ("transient-16", "16 B transient, auto-ack", Run::Steady(|c, b| transient(c, b, 16))),
    ("transient-1k", "1 KiB transient, auto-ack", Run::Steady(|c, b| transient(c, b, 1024))),
    ("fanout-600", "16 B to 600 transient queues by one fanout exchange", Run::Steady(fanout)),
    ("rpc", "16 B, one request open, direct reply-to", Run::Steady(rpc)),
    ("backlog", "1 KiB persistent, nobody consumes; SIGKILL; drain", Run::Whole(backlog)),
    ("queues", "durable queues declared by 10 connections; SIGKILL", Run::Whole(queues)),
    ("space", "one message stays unacknowledged while others pass", Run::Whole(space)),
];

/// Workloads that are not there yet, and why.
pub(crate) const LEFT_OUT: &[(&str, &str)] =
    &[("slow-sync", "20 publishers while each fdatasync takes 2 ms longer: the broker has no option for slower syncs")];

fn durable(context: &Context, broker: &Running) -> io::Result<Figures> {
    let seconds = context.sizes.seconds;
    let durable = context.durable(broker);
    let json = context.perf(broker, &format!("-z {seconds} -s {BODY_BYTES} {STEADY} {durable}"))?;
    Ok(vec![
        figure("messages per CPU second", number(&json, "/server/messages_per_cpu_s")?),
        figure("messages per second", number(&json, "/receive_rate")?),
        figure("confirm p99, µs", number(&json, "/confirm_us/p99")?),
        figure("bytes written per payload byte", number(&json, "/server/written_per_payload_byte")?),
    ])
}

fn one_in_flight(context: &Context, broker: &Running) -> io::Result<Figures> {
    // Before and after: a disk that others use, too, is not the same from second to second.
    let mut bare = bare_sync_us(broker.directory(), BODY_BYTES)?;
    let (seconds, durable) = (context.sizes.seconds, context.durable(broker));
    let json =
        context.perf(broker, &format!("-z {seconds} -s {BODY_BYTES} -c 1 -f persistent -q 1000 -A 100 {durable}"))?;
    bare.extend(bare_sync_us(broker.directory(), BODY_BYTES)?);
    bare.sort_by(f64::total_cmp);
    let (bare_p50, bare_p99) = (bare[bare.len() / 2], bare[bare.len() * 99 / 100]);
    let (p50, p99) = (number(&json, "/confirm_us/p50")?, number(&json, "/confirm_us/p99")?);
    Ok(vec![
        figure("confirm p50, µs", p50),
        figure("confirm p99, µs", p99),
        figure("bare fdatasync p50, µs", bare_p50),
        figure("bare fdatasync p99, µs", bare_p99),
        figure("confirm p50 / bare p50", p50 / bare_p50),
        figure("confirm p99 / bare p99", p99 / bare_p99),
    ])
}

fn hundred_queues(context: &Context, broker: &Running) -> io::Result<Figures> {
    let (seconds, durable) = (context.sizes.seconds, context.durable(broker));
    let load = format!("-z {seconds} --queues 100 -s {BODY_BYTES} -c 100 -f persistent -q 100 -A 10 {durable}");
    let json = context.perf(broker, &load)?;
    Ok(vec![
        figure("messages per CPU second", number(&json, "/server/messages_per_cpu_s")?),
        figure("messages per second", number(&json, "/receive_rate")?),
    ])
}

fn transient(context: &Context, broker: &Running, size: usize) -> io::Result<Figures> {
    let seconds = context.sizes.seconds;
    let json = context.perf(broker, &format!("-z {seconds} -s {size} --autoack --drain-timeout 30"))?;
    Ok(vec![
        figure("messages per CPU second", number(&json, "/server/messages_per_cpu_s")?),
        figure("messages per second", number(&json, "/receive_rate")?),
    ])
}

fn fanout(context: &Context, broker: &Running) -> io::Result<Figures> {
    let seconds = context.sizes.seconds;
    let json =
        context.perf(broker, &format!("-z {seconds} --fanout --queues 600 --autoack -c 100 --drain-timeout 30"))?;
    Ok(vec![
        figure("deliveries per CPU second", number(&json, "/server/messages_per_cpu_s")?),
        figure("deliveries per second", number(&json, "/receive_rate")?),
    ])
}

fn rpc(context: &Context, broker: &Running) -> io::Result<Figures> {
    let json = context.perf(broker, &format!("rpc -z {}", context.sizes.seconds))?;
    Ok(vec![
        figure("answer p50, µs", number(&json, "/latency_us/p50")?),
        figure("answer p99, µs", number(&json, "/latency_us/p99")?),
        figure("calls per second", number(&json, "/rate")?),
    ])
}

fn backlog(context: &Context, installed: &Installed) -> io::Result<Figures> {
    let mut broker = installed.start(&context.parent, SMALL_BUDGET)?;
    let (messages, durable) = (context.sizes.backlog, context.durable(&broker));
    let load = format!("-u q -y 0 -C {messages} -s {BODY_BYTES} -c 1000 -f persistent --run-id 1 {durable}");
    let filled = context.perf(&broker, &load)?;
    broker.kill();
    let began = Instant::now();
    broker.launch()?;
    first_delivery(context, &broker, began)?;
    let first_s = began.elapsed().as_secs_f64();
    let rest = messages - 1;
    let drained =
        context.perf(&broker, &format!("-x 0 -u q -p -q 1000 -A 100 -D {rest} --run-id 1 --drain-timeout 30"))?;
    let distinct = number(&drained, "/distinct")?;
    if distinct != rest as f64 {
        return Err(io::Error::other(format!("of {messages} confirmed messages {} came back", distinct + 1.0)));
    }
    let mib = |path: &str| number(&filled, path).map(|bytes| bytes / f64::from(1 << 20));
    let (first, last) = (number(&filled, "/publish_rate_first_tenth")?, number(&filled, "/publish_rate_last_tenth")?);
    Ok(vec![
        figure("publishes per second", number(&filled, "/publish_rate")?),
        figure("rate of the last tenth / first tenth", last / first),
        figure("memory at most, MiB", mib("/server/rss_peak_bytes")?),
        figure("bytes written per payload byte", number(&filled, "/server/written_per_payload_byte")?),
        figure("start to first delivery, s", first_s),
        figure("drained messages per second", number(&drained, "/receive_rate")?),
    ])
}

/// Waits until a message was delivered and acknowledged. While a broker recovers, it may listen and yet refuse.
fn first_delivery(context: &Context, broker: &Running, began: Instant) -> io::Result<()> {
    loop {
        match context.perf(broker, "-x 0 -u q -p -q 1 -D 1 --run-id 1") {
            Ok(json) if number(&json, "/received")? == 1.0 => return Ok(()),
            Ok(_) => {}
            Err(error) if began.elapsed() > FIRST_DELIVERY_TIMEOUT => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn queues(context: &Context, installed: &Installed) -> io::Result<Figures> {
    let mut broker = installed.start(&context.parent, "")?;
    let count = context.sizes.queues;
    // One replicated group per queue is not what anybody does with so many: classic queues, on RabbitMQ.
    let declared = context.perf(&broker, &format!("queue-churn --queues {count} -x 10 --durable --keep"))?;
    broker.kill();
    let began = Instant::now();
    broker.launch()?;
    loop {
        match context.perf(&broker, "queue-churn --queues 1 --durable --keep") {
            Ok(_) => break,
            Err(error) if began.elapsed() > FIRST_DELIVERY_TIMEOUT => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    let ready_s = began.elapsed().as_secs_f64();
    let mib = |path: &str| number(&declared, path).map(|bytes| bytes / f64::from(1 << 20));
    Ok(vec![
        figure("declares per second", number(&declared, "/declare/rate")?),
        figure("memory, MiB", mib("/server/rss_bytes")?),
        figure("start to first declare-ok, s", ready_s),
    ])
}

/// Ends the consumer that holds a message.
struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn space(context: &Context, installed: &Installed) -> io::Result<Figures> {
    let broker = installed.start(&context.parent, SMALL_BUDGET)?;
    let (messages, durable) = (context.sizes.space, context.durable(&broker));
    context.perf(&broker, &format!("-u q -y 0 -C 1 -s {BODY_BYTES} -c 1 -f persistent {durable}"))?;
    let _holder = hold(context, &broker)?;
    let load = format!("-u q -p -C {messages} -s {BODY_BYTES} {STEADY}");
    let (peak, passed) = peak_disk_bytes(broker.directory(), || context.perf(&broker, &load));
    passed?;
    // Not a measured time: what is asked is whether space comes back at all, soon.
    std::thread::sleep(REST);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    Ok(vec![
        figure("disk at most, MiB", mib(peak)),
        figure("disk afterwards, MiB", mib(disk_bytes(broker.directory()))),
    ])
}

/// A consumer that takes one message and keeps it; answers when it has it.
fn hold(context: &Context, broker: &Running) -> io::Result<Holder> {
    let arguments = "-x 0 -u q -p -q 1 --hold -z 3600 --drain-timeout 3600 -i 0.05";
    let arguments: Vec<String> = arguments.split(' ').map(str::to_owned).collect();
    let mut child = context.tool(broker, &arguments).stderr(Stdio::piped()).spawn()?;
    let progress = child.stderr.take().ok_or_else(|| io::Error::other("no pipe"))?;
    let holder = Holder(child);
    let mut lines = BufReader::new(progress).lines();
    // Each line of progress says how many were received since the last.
    while let Some(line) = lines.next().transpose()? {
        let received = line.split_once("received").map_or("", |(_, rest)| rest.trim_start());
        if received.starts_with(|digit: char| matches!(digit, '1'..='9')) {
            // Its lines must go somewhere, or it would wait for room in the pipe.
            std::thread::spawn(move || lines.for_each(drop));
            return Ok(holder);
        }
    }
    Err(io::Error::other("the consumer that was to hold a message ended"))
}
