//! The main mode: declares queues, attaches consumers, lets publishers publish, waits until all that must come has come,
//! and says what did not.

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::drive::{Phase, drive};
use crate::error::Error;
use crate::link::Link;
use crate::message::Clock;
use crate::meters::{Sums, Times, histogram};
use crate::options::LoadArgs;
use crate::process::Watch;
use crate::publisher::{Published, PublisherShared};
use crate::report::LoadReport;
use crate::setup::{Layout, attach_all, delete, prepare};

/// How often it is looked whether the run is over: what is measured is the time of the last delivery, not of the look.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How often the broker's memory is looked at.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// How long publishers without --time and --pmessages publish, in seconds.
const DEFAULT_TIME_S: f64 = 10.0;
/// How long connections may take to close at the end.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Errors that are told; of the others only the number.
const TOLD_ERRORS: usize = 5;

/// How a task ended, as its set tells it.
pub(crate) type Joined = Result<Ended, tokio::task::JoinError>;

/// What tasks tell at their end.
pub(crate) enum Ended {
    Publisher(usize, Published, Result<(), Error>),
    Consumer(Result<(), Error>),
}

/// Runs the load.
///
/// # Errors
/// What keeps the run from starting. What goes wrong later is in the report.
pub(crate) async fn run(args: &LoadArgs) -> Result<LoadReport, Error> {
    let run = args.run_id.unwrap_or_else(random_run);
    let layout = Layout::new(args, run);
    let link_options = args.common.link_options();
    let mut setup = Link::open(args.common.uri(0), &link_options).await?;
    setup.open_channel(1).await?;
    prepare(&mut setup, args, &layout.queues).await?;

    let shared = Arc::new(PublisherShared {
        clock: Clock::start(),
        sums: Sums::default(),
        confirm_times: Times::new(),
        latencies: Times::new(),
    });
    let (phase, phases) = watch::channel(Phase::Attach);
    let mut tasks = JoinSet::new();
    // Consumers alone are at work as soon as they are attached, publishers when all are there.
    let consumes_only = layout.publishers.is_empty();
    let before = if consumes_only { Watch::start(&args.common.server_pid)? } else { None };
    let (publishers, early) = attach_all(args, &layout, run, &shared, &phases, &mut tasks).await?;
    for (publisher, mut link) in publishers {
        let mut phases = phases.clone();
        let (number, mut role) = publisher;
        tasks.spawn(async move {
            let result = drive(&mut link, &mut role, &mut phases).await;
            let result = match result {
                // All that was sent is worked off when the broker has answered.
                Ok(()) => link.close().await,
                error => error,
            };
            Ended::Publisher(number, role.outcome(), result)
        });
    }
    let watch = if consumes_only { before } else { Watch::start(&args.common.server_pid)? };
    let mut load = Load::new(args, run, layout, shared, phase, tasks, watch);
    for ended in early {
        load.ended(ended);
    }
    load.work().await;
    let mut report = load.finish().await;
    let is_ours = args.queue.is_none() && args.queue_pattern.is_none() && !args.predeclared;
    if (args.delete || is_ours)
        && let Err(error) = delete(&mut setup, args, &report.queues).await
    {
        report.errors.push(format!("deleting queues: {error}"));
    }
    let _ = setup.close().await;
    Ok(report)
}

/// A run under way.
struct Load<'a> {
    args: &'a LoadArgs,
    run: u16,
    layout: Layout,
    shared: Arc<PublisherShared>,
    phase: watch::Sender<Phase>,
    tasks: JoinSet<Ended>,
    published: Vec<Option<Published>>,
    publishers_left: usize,
    consumers_left: usize,
    watch: Option<Watch>,
    errors: Vec<String>,
    more_errors: u64,
    confirm_times: Histogram<u64>,
    latencies: Histogram<u64>,
    started: Instant,
    progress: Progress,
}

/// Sums at the last line of progress.
#[derive(Default)]
struct Progress {
    at: Option<Instant>,
    published: u64,
    confirmed: u64,
    received: u64,
}

impl<'a> Load<'a> {
    fn new(
        args: &'a LoadArgs,
        run: u16,
        layout: Layout,
        shared: Arc<PublisherShared>,
        phase: watch::Sender<Phase>,
        tasks: JoinSet<Ended>,
        watch: Option<Watch>,
    ) -> Self {
        Self {
            args,
            run,
            published: vec![None; layout.publishers.len()],
            publishers_left: layout.publishers.len(),
            consumers_left: layout.queues.len() * args.consumers,
            layout,
            shared,
            phase,
            tasks,
            watch,
            errors: Vec::new(),
            more_errors: 0,
            confirm_times: histogram(),
            latencies: histogram(),
            started: Instant::now(),
            progress: Progress::default(),
        }
    }

    /// From the first publish until nothing more is to be expected.
    async fn work(&mut self) {
        self.started = if self.layout.publishers.is_empty() { self.shared.clock.started() } else { Instant::now() };
        self.phase.send_replace(Phase::Publish);
        let limit_s = self.args.time.or((self.args.pmessages.is_none()).then_some(DEFAULT_TIME_S));
        // Consumers alone take what is there: until nothing comes, unless a time is given.
        let limit_s = if self.layout.publishers.is_empty() { self.args.time } else { limit_s };
        let stop_at = limit_s.map(|s| self.started + Duration::from_secs_f64(s));
        let drain_timeout = Duration::from_secs_f64(self.args.drain_timeout);
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut last_watch, mut last_received, mut last_progress) = (self.started, 0, self.started);
        let mut interrupted = false;
        while self.publishers_left + self.consumers_left > 0 {
            tokio::select! {
                Some(ended) = self.tasks.join_next() => self.ended(ended),
                _ = tokio::signal::ctrl_c(), if !interrupted => {
                    interrupted = true;
                    self.phase.send_replace(Phase::Finish);
                }
                _ = look.tick() => {}
            }
            let now = Instant::now();
            if stop_at.is_some_and(|at| now >= at) || !self.errors.is_empty() {
                self.phase.send_if_modified(|phase| {
                    let modified = *phase < Phase::Finish;
                    *phase = (*phase).max(Phase::Finish);
                    modified
                });
            }
            if now - last_watch >= WATCH_EVERY {
                last_watch = now;
                self.watch.iter_mut().for_each(Watch::look);
            }
            self.tell(now);
            let received = self.shared.sums.received.load(Relaxed) + self.shared.sums.confirmed.load(Relaxed);
            if received != last_received || (self.publishers_left > 0 && *self.phase.borrow() < Phase::Finish) {
                (last_received, last_progress) = (received, now);
            }
            if self.is_over(stop_at, now)
                || (interrupted && self.publishers_left == 0)
                || now - last_progress >= drain_timeout
            {
                break;
            }
        }
    }

    /// Whether all has come that must.
    fn is_over(&self, stop_at: Option<Instant>, now: Instant) -> bool {
        if self.publishers_left > 0 {
            return false;
        }
        if self.layout.publishers.is_empty() {
            return stop_at.is_some_and(|at| now >= at);
        }
        if self.args.hold || self.consumers_left == 0 {
            return true;
        }
        self.args.cmessages.is_none() && self.layout.missing(&self.published) == 0
    }

    fn ended(&mut self, ended: Joined) {
        let result = match ended {
            Ok(Ended::Publisher(number, outcome, result)) => {
                self.publishers_left -= 1;
                self.published[number] = Some(outcome);
                result.map_err(|error| format!("publisher {number}: {error}"))
            }
            Ok(Ended::Consumer(result)) => {
                self.consumers_left -= 1;
                result.map_err(|error| format!("consumer: {error}"))
            }
            Err(error) => {
                // A panic: nobody knows which counts it took with it, so the run ends.
                (self.publishers_left, self.consumers_left) = (0, 0);
                Err(format!("a task: {error}"))
            }
        };
        if let Err(error) = result {
            if self.errors.len() < TOLD_ERRORS {
                self.errors.push(error);
            } else {
                self.more_errors += 1;
            }
        }
    }

    /// Stops what still runs, and gathers the figures.
    async fn finish(mut self) -> LoadReport {
        let (messages, payload) = {
            let sums = &self.shared.sums;
            let (received, published) = (sums.received.load(Relaxed), sums.published.load(Relaxed));
            // Without consumers what counts is what was taken in.
            let messages = if received > 0 { received } else { published };
            (messages, sums.published_bytes.load(Relaxed).max(sums.received_bytes.load(Relaxed)))
        };
        let server = self.watch.as_mut().map(|watch| watch.report(messages, payload));
        let server = match server {
            Some(Ok(server)) => Some(server),
            Some(Err(error)) => {
                self.errors.push(error.to_string());
                None
            }
            None => None,
        };
        self.phase.send_replace(Phase::Stop);
        let deadline = tokio::time::Instant::now() + CLOSE_TIMEOUT;
        while self.publishers_left + self.consumers_left > 0 {
            match tokio::time::timeout_at(deadline, self.tasks.join_next()).await {
                Ok(Some(ended)) => self.ended(ended),
                Ok(None) => break,
                Err(_) => {
                    self.errors.push(format!("connections did not close within {} s", CLOSE_TIMEOUT.as_secs()));
                    break;
                }
            }
        }
        self.tasks.abort_all();
        self.gather();
        if self.more_errors > 0 {
            self.errors.push(format!("and {} more", self.more_errors));
        }
        // Only who consumes all can say that something is lost.
        let counts_losses = self.args.consumers > 0 && !self.args.hold && self.args.cmessages.is_none();
        let lost = (counts_losses && !self.published.is_empty()).then(|| self.layout.missing(&self.published));
        LoadReport {
            label: self.args.common.label.clone(),
            run: self.run,
            queues: self.layout.queues,
            publishers: self.layout.publishers.len(),
            confirms: self.args.confirm.is_some(),
            published: self.published.into_iter().flatten().collect(),
            lost,
            started_us: self.started.duration_since(self.shared.clock.started()).as_micros() as u64,
            shared: self.shared,
            confirm_times: self.confirm_times,
            latencies: self.latencies,
            server,
            errors: self.errors,
        }
    }

    /// Moves times from the shared histograms into the run's; answers those of the interval.
    fn gather(&mut self) -> (Histogram<u64>, Histogram<u64>) {
        let (confirms, latencies) = (self.shared.confirm_times.take(), self.shared.latencies.take());
        // Equal bounds, so nothing can be out of range.
        let _ = self.confirm_times.add(&confirms);
        let _ = self.latencies.add(&latencies);
        (confirms, latencies)
    }

    /// A line of progress, when it is time.
    fn tell(&mut self, now: Instant) {
        let every = self.args.common.interval;
        let before = *self.progress.at.get_or_insert(self.started);
        let seconds = (now - before).as_secs_f64();
        if every == 0.0 || seconds < every {
            return;
        }
        let (confirms, latencies) = self.gather();
        let sums = &self.shared.sums;
        let current = Progress {
            at: Some(now),
            published: sums.published.load(Relaxed),
            confirmed: sums.confirmed.load(Relaxed),
            received: sums.received.load(Relaxed),
        };
        let rate = |after: u64, before: u64| ((after - before) as f64 / seconds).round();
        let times = |times: &Histogram<u64>| {
            let at = |q| times.value_at_quantile(q);
            format!("{}/{}/{}", at(0.5), at(0.95), at(0.99))
        };
        let mut line = format!(
            "{:7.1} s  published {:>9}/s  received {:>9}/s",
            (now - self.started).as_secs_f64(),
            rate(current.published, self.progress.published),
            rate(current.received, self.progress.received),
        );
        if !latencies.is_empty() {
            line += &format!("  latency p50/p95/p99 {} µs", times(&latencies));
        }
        if self.args.confirm.is_some() {
            let rate = rate(current.confirmed, self.progress.confirmed);
            line += &format!("  confirmed {rate:>9}/s after {} µs", times(&confirms));
        }
        let _ = writeln!(std::io::stderr(), "{line}");
        self.progress = current;
    }
}

/// A number that differs from run to run: time and process.
pub(crate) fn random_run() -> u16 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new().build_hasher().finish() as u16
}
