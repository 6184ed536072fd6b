//! Requests and answers by direct reply-to: how long from a request until its answer is there.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use amqp::methods::{AMQPClass, basic, queue};
use amqp::{ContentHeader, FieldTable, PropertiesBuilder, encode};
use bytes::BytesMut;
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::content::Content;
use crate::drive::{Frames, Next, Phase, Role, drive};
use crate::error::Error;
use crate::link::{IntoClass as _, Link};
use crate::load::random_run;
use crate::message::{Stamp, Template};
use crate::meters::{Times, percentiles};
use crate::options::RpcArgs;
use crate::process::Watch;
use crate::report::{Outcome, Verdict, errors, line, per_second, server, times};
use crate::setup::deletion;
use crate::wire::Incoming;

/// Where a client gets its answers, by RabbitMQ's extension.
const REPLY_TO: &str = "amq.rabbitmq.reply-to";
/// Addresses for which a server keeps a prepared answer. Beyond that it begins anew; nothing is lost but time.
const PREPARED_ANSWERS: usize = 4096;
/// How long answers to the last requests may take.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// Sends requests, one after the other.
struct Client {
    run: u16,
    number: u16,
    template: Template,
    times: Arc<Times>,
    content: Content,
    consumption: Consumption,
    /// When the request that is open was sent.
    open: Option<Instant>,
    /// The number of the open request, or of the next one.
    sequence: u64,
    wrong: u64,
}

/// Answers requests.
struct Server {
    content: Content,
    consumption: Consumption,
    /// The address in the header of the message under way.
    reply_to: Vec<u8>,
    prepared: HashMap<Vec<u8>, Template>,
    args: Arc<RpcArgs>,
    frame_max: u32,
    unanswerable: u64,
}

/// How far `basic.consume` is.
enum Consumption {
    Due { queue: String, attached: mpsc::Sender<()> },
    Asked { attached: mpsc::Sender<()> },
    Attached,
}

impl Consumption {
    fn ask(&mut self, out: &mut BytesMut) {
        if let Self::Due { queue, attached } = self {
            let consume = basic::Consume {
                queue: queue.as_str().into(),
                consumer_tag: "p".into(),
                no_local: false,
                no_ack: true,
                exclusive: false,
                nowait: false,
                arguments: FieldTable::default(),
            };
            encode::method(out, 1, &basic::AMQPMethod::Consume(consume).into_class());
            *self = Self::Asked { attached: attached.clone() };
        }
    }

    fn method(&mut self, method: &AMQPClass) {
        if let (AMQPClass::Basic(basic::AMQPMethod::ConsumeOk(_)), Self::Asked { attached }) = (method, &*self) {
            // There is room for all; if nobody listens, the run is over.
            let _ = attached.try_send(());
            *self = Self::Attached;
        }
    }
}

impl Role for Client {
    fn turn(&mut self, frames: &mut Frames<'_>, _out: &mut BytesMut) -> Result<(), Error> {
        while let Some((_, incoming)) = frames.next()? {
            let complete = match incoming {
                Incoming::Deliver { .. } => self.content.begin().map(|()| None),
                Incoming::Header(payload) => self.content.header(payload),
                Incoming::Body(piece) => self.content.body(piece),
                Incoming::Other(method) => {
                    self.consumption.method(&method);
                    Ok(None)
                }
                _ => Err(Error::Protocol("not what a requester gets".to_owned())),
            };
            let Some(complete) = complete? else { continue };
            let expected = (self.run, self.number, self.sequence);
            let is_due = complete.stamp.is_some_and(|s| (s.run, s.publisher, s.sequence) == expected);
            match self.open.take() {
                Some(sent) if is_due => {
                    self.sequence += 1;
                    let us = sent.elapsed().as_micros() as u64;
                    self.times.part(self.number.into()).saturating_record(us.max(1));
                }
                open => {
                    self.wrong += 1;
                    self.open = open;
                }
            }
        }
        Ok(())
    }

    fn produce(&mut self, phase: Phase, now: Instant, out: &mut BytesMut) -> Next {
        self.consumption.ask(out);
        match phase {
            Phase::Stop => return Next::Done,
            Phase::Finish if self.open.is_none() => return Next::Done,
            Phase::Publish if self.open.is_none() && matches!(self.consumption, Consumption::Attached) => {
                self.open = Some(now);
                let stamp = Stamp { run: self.run, publisher: self.number, sequence: self.sequence, sent_us: 0 };
                self.template.write(out, stamp);
            }
            _ => {}
        }
        Next::Wait
    }
}

impl Role for Server {
    fn turn(&mut self, frames: &mut Frames<'_>, out: &mut BytesMut) -> Result<(), Error> {
        while let Some((_, incoming)) = frames.next()? {
            let complete = match incoming {
                Incoming::Deliver { .. } => self.content.begin().map(|()| None),
                Incoming::Header(payload) => {
                    let header = ContentHeader::decode(payload).map_err(crate::link::protocol)?;
                    self.reply_to.clear();
                    self.reply_to.extend_from_slice(header.properties.reply_to().unwrap_or_default());
                    self.content.header(payload)
                }
                Incoming::Body(piece) => self.content.body(piece),
                Incoming::Other(method) => {
                    self.consumption.method(&method);
                    Ok(None)
                }
                _ => Err(Error::Protocol("not what a server gets".to_owned())),
            };
            let Some(complete) = complete? else { continue };
            match (complete.stamp, std::str::from_utf8(&self.reply_to)) {
                (Some(stamp), Ok(address)) if !address.is_empty() => {
                    if self.prepared.len() >= PREPARED_ANSWERS {
                        self.prepared.clear();
                    }
                    if !self.prepared.contains_key(&self.reply_to) {
                        let template = template(&self.args, self.frame_max, address, None);
                        self.prepared.insert(self.reply_to.clone(), template);
                    }
                    if let Some(template) = self.prepared.get_mut(&self.reply_to) {
                        template.write(out, stamp);
                    }
                }
                _ => self.unanswerable += 1,
            }
        }
        Ok(())
    }

    fn produce(&mut self, phase: Phase, _now: Instant, out: &mut BytesMut) -> Next {
        self.consumption.ask(out);
        if phase == Phase::Stop { Next::Done } else { Next::Wait }
    }
}

/// Messages to a queue or address by the default exchange.
fn template(args: &RpcArgs, frame_max: u32, key: &str, reply_to: Option<&str>) -> Template {
    let publish = basic::Publish { exchange: "".into(), routing_key: key.into(), mandatory: false, immediate: false };
    let mut properties = PropertiesBuilder::new().set_delivery_mode(1);
    if let Some(reply_to) = reply_to {
        properties = properties.set_reply_to(reply_to.as_bytes());
    }
    Template::new(1, frame_max, publish, &properties.build(), args.size.clone(), 1)
}

/// Runs requests and answers.
///
/// # Errors
/// What keeps the run from starting.
pub(crate) async fn run(args: RpcArgs) -> Result<Outcome, Error> {
    let args = Arc::new(args);
    if args.clients > usize::from(u16::MAX) {
        return Err(Error::Internal("more than 65,535 clients"));
    }
    let (run, options) = (random_run(), args.common.link_options());
    let name = format!("perf-rpc-{run}");
    let mut setup = Link::open(args.common.uri(0), &options).await?;
    setup.open_channel(1).await?;
    let declare = queue::Declare {
        queue: name.as_str().into(),
        passive: false,
        durable: false,
        exclusive: false,
        auto_delete: true,
        nowait: false,
        arguments: FieldTable::default(),
    };
    setup.call(1, queue::AMQPMethod::Declare(declare).into_class()).await?;

    let latencies = Arc::new(Times::new());
    let (phase, phases) = watch::channel(Phase::Attach);
    let (attached, mut all_attached) = mpsc::channel(args.clients + args.servers + 1);
    let mut tasks: JoinSet<Result<(u64, u64), Error>> = JoinSet::new();
    for number in 0..args.servers + args.clients {
        let mut link = Link::open(args.common.uri(number), &options).await?;
        link.open_channel(1).await?;
        let mut phases = phases.clone();
        if number < args.servers {
            let mut role = Server {
                content: Content::default(),
                consumption: Consumption::Due { queue: name.clone(), attached: attached.clone() },
                reply_to: Vec::new(),
                prepared: HashMap::new(),
                args: Arc::clone(&args),
                frame_max: link.frame_max,
                unanswerable: 0,
            };
            tasks.spawn(async move {
                drive(&mut link, &mut role, &mut phases).await?;
                link.close().await?;
                Ok((0, role.unanswerable))
            });
        } else {
            let mut role = Client {
                run,
                number: (number - args.servers) as u16,
                template: template(&args, link.frame_max, &name, Some(REPLY_TO)),
                times: Arc::clone(&latencies),
                content: Content::default(),
                consumption: Consumption::Due { queue: REPLY_TO.to_owned(), attached: attached.clone() },
                open: None,
                sequence: 0,
                wrong: 0,
            };
            tasks.spawn(async move {
                drive(&mut link, &mut role, &mut phases).await?;
                link.close().await?;
                Ok((role.sequence, role.wrong + u64::from(role.open.is_some())))
            });
        }
    }
    drop(attached);
    let mut problems = Vec::new();
    for _ in 0..args.clients + args.servers {
        tokio::select! {
            _ = all_attached.recv() => {}
            Some(Ok(Err(error))) = tasks.join_next() => return Err(error),
        }
    }
    let mut watch = Watch::start(&args.common.server_pid)?;
    let started = Instant::now();
    phase.send_replace(Phase::Publish);
    tokio::time::sleep(Duration::from_secs_f64(args.time)).await;
    phase.send_replace(Phase::Finish);
    let (mut calls, mut wrong, mut clients_left) = (0, 0, args.clients);
    let deadline = tokio::time::Instant::now() + LAST_ANSWERS;
    let elapsed_s = started.elapsed().as_secs_f64();
    while !tasks.is_empty() {
        match tokio::time::timeout_at(deadline, tasks.join_next()).await {
            Ok(Some(Ok(Ok((done, odd))))) => (calls, wrong) = (calls + done, wrong + odd),
            Ok(Some(Ok(Err(error)))) => problems.push(error.to_string()),
            Ok(Some(Err(error))) => problems.push(error.to_string()),
            Ok(None) => break,
            Err(_) => {
                problems.push("the last answers did not come".to_owned());
                break;
            }
        }
        // Servers go when all clients have gone.
        clients_left = clients_left.saturating_sub(1);
        if clients_left == 0 {
            phase.send_replace(Phase::Stop);
        }
    }
    if let Err(error) = setup.call(1, queue::AMQPMethod::Delete(deletion(&name)).into_class()).await {
        problems.push(format!("deleting the queue: {error}"));
    }
    let usage = watch.as_mut().map(|watch| watch.report(calls, 0)).transpose()?;
    let json = json!({
        "mode": "rpc",
        "label": args.common.label,
        "clients": args.clients,
        "servers": args.servers,
        "calls": calls,
        "wrong": wrong,
        "rate": per_second(calls, elapsed_s),
        "latency_us": percentiles(&latencies.take()),
        "server": usage,
        "errors": problems,
    });
    let mut text = String::new();
    line(&mut text, "calls", &json, &["calls", "rate", "wrong"]);
    times(&mut text, "latency", &json["latency_us"]);
    server(&mut text, &json["server"]);
    errors(&mut text, &problems);
    let verdict = match (wrong, problems.is_empty() && calls > 0) {
        (1.., _) => Verdict::Miscounted,
        (0, true) => Verdict::Good,
        (0, false) => Verdict::Failed,
    };
    Ok(Outcome { json, text, verdict })
}
