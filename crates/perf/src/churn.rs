//! Connections and queues that come and go, and connections that do nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use amqp::methods::queue;
use serde_json::json;
use tokio::task::JoinSet;

use crate::error::Error;
use crate::link::{IntoClass as _, Link};
use crate::meters::{Times, percentiles};
use crate::options::{ChurnArgs, IdleArgs, QueueChurnArgs};
use crate::process::{Usage, Watch};
use crate::report::{Outcome, Verdict, errors, line, per_second, server, times};
use crate::setup::{declaration, deletion};

/// Waits for all tasks; answers what went wrong.
async fn all(mut tasks: JoinSet<Result<(), Error>>) -> Vec<String> {
    let mut problems = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => problems.push(error.to_string()),
            Err(error) => problems.push(error.to_string()),
        }
    }
    problems
}

fn verdict(problems: &[String]) -> Verdict {
    if problems.is_empty() { Verdict::Good } else { Verdict::Failed }
}

/// Opens a connection and a channel, closes them, and so on.
///
/// # Errors
/// Processes that are not there.
pub(crate) async fn connections(args: &ChurnArgs) -> Result<Outcome, Error> {
    let mut watch = Watch::start(&args.common.server_pid)?;
    let (opening, whole) = (Arc::new(Times::new()), Arc::new(Times::new()));
    let cycles = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let end = started + Duration::from_secs_f64(args.time);
    let mut tasks = JoinSet::new();
    for client in 0..args.clients {
        let (uri, options) = (args.common.uri(client).clone(), args.common.link_options());
        let (opening, whole, cycles) = (Arc::clone(&opening), Arc::clone(&whole), Arc::clone(&cycles));
        tasks.spawn(async move {
            while Instant::now() < end {
                let began = Instant::now();
                let mut link = Link::open(&uri, &options).await?;
                link.open_channel(1).await?;
                opening.part(client).saturating_record((began.elapsed().as_micros() as u64).max(1));
                link.close().await?;
                whole.part(client).saturating_record((began.elapsed().as_micros() as u64).max(1));
                cycles.fetch_add(1, Relaxed);
            }
            Ok(())
        });
    }
    let problems = all(tasks).await;
    let (cycles, elapsed_s) = (cycles.load(Relaxed), started.elapsed().as_secs_f64());
    let json = json!({
        "mode": "churn",
        "label": args.common.label,
        "clients": args.clients,
        "cycles": cycles,
        "rate": per_second(cycles, elapsed_s),
        "open_us": percentiles(&opening.take()),
        "cycle_us": percentiles(&whole.take()),
        "server": watch.as_mut().map(|watch| watch.report(cycles, 0)).transpose()?,
        "errors": problems,
    });
    let mut text = String::new();
    line(&mut text, "cycles", &json, &["cycles", "rate"]);
    times(&mut text, "open", &json["open_us"]);
    times(&mut text, "cycle", &json["cycle_us"]);
    server(&mut text, &json["server"]);
    errors(&mut text, &problems);
    Ok(Outcome { json, text, verdict: verdict(&problems) })
}

/// Declares many queues, and deletes them again.
///
/// # Errors
/// Processes that are not there.
pub(crate) async fn queues(args: &QueueChurnArgs) -> Result<Outcome, Error> {
    let mut watch = Watch::start(&args.common.server_pid)?;
    let mut problems = Vec::new();
    let mut figures = [json!(null), json!(null)];
    let steps = [!args.only_delete, !args.keep];
    for (step, figure) in figures.iter_mut().enumerate().filter(|(step, _)| steps[*step]) {
        let times = Arc::new(Times::new());
        let (next, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        let started = Instant::now();
        for client in 0..args.clients {
            let (uri, options) = (args.common.uri(client).clone(), args.common.link_options());
            let (next, done, times) = (Arc::clone(&next), Arc::clone(&done), Arc::clone(&times));
            let (queues, pattern, queue_args) = (args.queues, args.queue_pattern.clone(), args.queue_args.clone());
            tasks.spawn(async move {
                let mut link = Link::open(&uri, &options).await?;
                link.open_channel(1).await?;
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= queues {
                        return link.close().await;
                    }
                    let number = (number + 1).to_string();
                    let name = pattern.replace("%d", &number).replace("%i", &number);
                    let method = match step {
                        0 => queue::AMQPMethod::Declare(declaration(&queue_args, &name)),
                        _ => queue::AMQPMethod::Delete(deletion(&name)),
                    };
                    let began = Instant::now();
                    link.call(1, method.into_class()).await?;
                    times.part(client).saturating_record((began.elapsed().as_micros() as u64).max(1));
                    done.fetch_add(1, Relaxed);
                }
            });
        }
        problems.extend(all(tasks).await);
        let (done, elapsed_s) = (done.load(Relaxed), started.elapsed().as_secs_f64());
        *figure = json!({
            "queues": done,
            "s": elapsed_s,
            "rate": per_second(done, elapsed_s),
            "us": percentiles(&times.take()),
        });
        if !problems.is_empty() {
            break;
        }
    }
    let [declare, delete] = figures;
    let calls = declare["queues"].as_u64().unwrap_or(0) + delete["queues"].as_u64().unwrap_or(0);
    let json = json!({
        "mode": "queue-churn",
        "label": args.common.label,
        "clients": args.clients,
        "declare": declare,
        "delete": delete,
        "server": watch.as_mut().map(|watch| watch.report(calls, 0)).transpose()?,
        "errors": problems,
    });
    let mut text = String::new();
    for step in ["declare", "delete"] {
        if json[step].is_object() {
            line(&mut text, step, &json[step], &["queues", "rate"]);
            times(&mut text, "", &json[step]["us"]);
        }
    }
    server(&mut text, &json["server"]);
    errors(&mut text, &problems);
    Ok(Outcome { json, text, verdict: verdict(&problems) })
}

/// Opens connections with a channel each and holds them.
///
/// # Errors
/// Processes that are not there.
pub(crate) async fn idle(args: &IdleArgs) -> Result<Outcome, Error> {
    let mut watch = Watch::start(&args.common.server_pid)?;
    let before = Usage::of(&args.common.server_pid)?;
    let times_of_open = Arc::new(Times::new());
    let next = Arc::new(AtomicUsize::new(0));
    let started = Instant::now();
    let mut opening = JoinSet::new();
    for client in 0..args.clients.max(1) {
        let (common, times, next) = (args.common.clone(), Arc::clone(&times_of_open), Arc::clone(&next));
        let connections = args.connections;
        opening.spawn(async move {
            let mut links = Vec::new();
            loop {
                let number = next.fetch_add(1, Relaxed);
                if number >= connections {
                    return Ok::<_, Error>(links);
                }
                let began = Instant::now();
                let mut link = Link::open(common.uri(number), &common.link_options()).await?;
                link.open_channel(1).await?;
                times.part(client).saturating_record((began.elapsed().as_micros() as u64).max(1));
                // An idle connection costs this tool nothing but its socket.
                (link.input, link.output) = Default::default();
                links.push(link);
            }
        });
    }
    let (mut links, mut problems) = (Vec::new(), Vec::new());
    while let Some(ended) = opening.join_next().await {
        match ended {
            Ok(Ok(some)) => links.extend(some),
            Ok(Err(error)) => problems.push(error.to_string()),
            Err(error) => problems.push(error.to_string()),
        }
    }
    let open_s = started.elapsed().as_secs_f64();
    let opened = Usage::of(&args.common.server_pid)?;
    let hold = Duration::from_secs_f64(args.time);
    match args.common.heartbeat {
        0 => tokio::time::sleep(hold).await,
        // Ends before its time only when the broker hung up, which closing tells below.
        heartbeat_s => drop(tokio::time::timeout(hold, beat(&mut links, heartbeat_s)).await),
    }
    let held = Usage::of(&args.common.server_pid)?;
    let connections = links.len();
    let per_connection = (connections > 0 && !args.common.server_pid.is_empty())
        .then(|| held.rss_bytes.saturating_sub(before.rss_bytes) / connections as u64);
    let usage = watch.as_mut().map(|watch| watch.report(connections as u64, 0)).transpose()?;
    for link in links {
        if let Err(error) = link.close().await {
            problems.push(error.to_string());
        }
    }
    let json = json!({
        "mode": "idle",
        "label": args.common.label,
        "connections": connections,
        "open_rate": per_second(connections as u64, open_s),
        "open_us": percentiles(&times_of_open.take()),
        "hold_s": args.time,
        "cpu_s_while_held": held.cpu_s - opened.cpu_s,
        "rss_bytes_per_connection": per_connection,
        "server": usage,
        "errors": problems,
    });
    let mut text = String::new();
    line(&mut text, "idle", &json, &["connections", "open_rate", "rss_bytes_per_connection", "cpu_s_while_held"]);
    times(&mut text, "open", &json["open_us"]);
    server(&mut text, &json["server"]);
    errors(&mut text, &problems);
    Ok(Outcome { json, text, verdict: verdict(&problems) })
}

/// Sends the signs of life that were promised, until one cannot be sent.
async fn beat(links: &mut [Link], heartbeat_s: u16) {
    let mut beat = tokio::time::interval(Duration::from_secs_f64(f64::from(heartbeat_s) / 2.0));
    loop {
        beat.tick().await;
        for link in links.iter_mut() {
            amqp::encode::heartbeat(&mut link.output);
            if link.write().is_err() {
                return;
            }
        }
    }
}
