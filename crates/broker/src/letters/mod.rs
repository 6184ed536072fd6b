//! Dead letters: publishes what leaves queues to their dead-letter exchanges, and tells the queues when it has arrived.
//!
//! One task of the node does so for all queues. To shards it is a connection like others: it hands them batches, and a batch is done when
//! its messages are where a publisher would have its confirm. Only then the letter leaves its queue, so none is lost on the way: after
//! a crash it is still in its queue, and may arrive twice. How a letter's history is written is in [`death`].
//!
//! With the strategy `at-least-once` a letter that reaches no queue, or one that refuses it, stays and is tried again; else it is dropped,
//! as with RabbitMQ.

mod death;

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use amqp::Properties;
use queue::{Intervals, Letter, Op, QueueId, Reason};
use rustc_hash::FxHashMap;
use tokio::time::Instant;

use crate::broker::Broker;
use crate::clock;
use crate::connection::{ConnectionHandle, Event, MessageHeaders, Route, Staging, Turns};
use crate::mailbox::Mailbox;
use crate::topology::{DeadLetterStrategy, QueueRecord, RouteSet};
use crate::vhost::Vhost;

/// Letters that are published in one turn: they are confirmed together, so that a slow target holds up few.
const TURN_LETTERS: usize = 256;
/// Bytes that are on their way to targets at a time. Beyond that letters wait in their queues' memory.
const IN_FLIGHT_BYTES: usize = 16 * 1024 * 1024;
/// How long a letter waits that nobody took, with the strategy `at-least-once`.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A letter, and the shard that its queue is on.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) shard: u32,
    pub(crate) letter: Letter,
}

/// A letter on its way.
#[derive(Debug)]
struct Sent {
    due: Due,
    /// It comes back if it is refused.
    insists: bool,
}

/// The task.
pub(crate) struct Postman {
    broker: Arc<Broker>,
    handle: Arc<ConnectionHandle>,
    inbox: Arc<Mailbox<Due>>,
    waiting: VecDeque<Due>,
    staging: Staging,
    turns: Turns,
    /// What was published in each turn. A letter's place in it, from 1, is its name in its batches.
    sent: FxHashMap<u64, Vec<Sent>>,
    in_flight_bytes: usize,
    /// In the order of their times.
    again: VecDeque<(Instant, Due)>,
    routes: RouteSet,
}

impl Postman {
    pub(crate) fn new(broker: Arc<Broker>) -> Self {
        let handle = ConnectionHandle::new(broker.new_connection_id());
        Self {
            inbox: broker.letters(),
            staging: Staging::new(handle.id.0, broker.shard_count()),
            broker,
            handle,
            waiting: VecDeque::new(),
            turns: Turns::default(),
            sent: FxHashMap::default(),
            in_flight_bytes: 0,
            again: VecDeque::new(),
            routes: RouteSet::new(),
        }
    }

    /// Runs for as long as the node does.
    pub(crate) async fn run(mut self) {
        let (mut letters, mut events) = (Vec::new(), Vec::new());
        loop {
            let retry = self.again.front().map(|(when, _)| *when);
            tokio::select! {
                () = wait(&self.inbox, &self.handle, &mut letters, &mut events) => {}
                () = tokio::time::sleep_until(retry.unwrap_or_else(Instant::now)), if retry.is_some() => {}
            }
            self.waiting.extend(letters.drain(..));
            for event in events.drain(..) {
                self.event(event);
            }
            let now = Instant::now();
            while self.again.front().is_some_and(|(when, _)| *when <= now) {
                self.waiting.extend(self.again.pop_front().map(|(_, due)| due));
            }
            while !self.waiting.is_empty() && self.in_flight_bytes < IN_FLIGHT_BYTES {
                self.turn();
            }
            tokio::task::yield_now().await;
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Rejected { shard, number, publish } => self.turns.refused(shard, number, publish),
            Event::BatchDone { shard, number } => {
                let (bytes, done) = self.turns.batch_done(shard, number);
                self.in_flight_bytes -= bytes;
                if let Some(turn) = done {
                    let refused: Vec<u64> = turn.refused().collect();
                    self.arrived(turn.id, &refused);
                }
            }
            // It asks nothing, and consumes nothing.
            _ => {}
        }
    }

    /// Publishes some of the letters that wait.
    fn turn(&mut self) {
        let turn = self.turns.current();
        let mut sent = Vec::new();
        let mut vhosts: FxHashMap<QueueId, Option<Arc<Vhost>>> = FxHashMap::default();
        let mut bytes = 0;
        while sent.len() < TURN_LETTERS
            && bytes < IN_FLIGHT_BYTES
            && let Some(due) = self.waiting.pop_front()
        {
            bytes += due.letter.message.len();
            let queue = due.letter.queue;
            let vhost = vhosts.entry(queue).or_insert_with(|| self.broker.vhost_of(queue)).clone();
            let Some(vhost) = vhost else { continue };
            let Some(record) = vhost.read().find_queue_by_id(queue).cloned() else { continue };
            let insists = record.settings.dead_letter_strategy == Some(DeadLetterStrategy::AtLeastOnce);
            let name = sent.len() as u64 + 1;
            if self.publish(&vhost, &record, &due.letter, name) == Reached::Nobody && insists {
                self.again.push_back((Instant::now() + RETRY_INTERVAL, due));
            } else {
                sent.push(Sent { due, insists });
            }
        }
        self.sent.insert(turn, sent);
        let mut batches = Vec::new();
        self.staging.flush(&self.broker, &self.handle, false, |batch| {
            batches.push((batch.shard, batch.number, batch.bytes));
        });
        self.in_flight_bytes += batches.iter().map(|&(_, _, bytes)| bytes).sum::<usize>();
        if self.turns.end(batches, Vec::new()).is_some() {
            self.arrived(turn, &[]);
        }
    }

    /// Stages a letter for its targets.
    fn publish(&mut self, vhost: &Vhost, record: &QueueRecord, letter: &Letter, name: u64) -> Reached {
        // The exchange may have been taken away by a policy meanwhile: then the letter is dropped, as new ones are.
        let Some(exchange) = record.settings.dead_letter_exchange.as_deref() else { return Reached::Dropped };
        let key = record.settings.dead_letter_routing_key.as_deref();
        let dead = death::dead(&letter.message, &record.name, letter.reason, key, clock::now_ms() / 1000);
        let keys: Vec<&str> = dead.keys.iter().map(String::as_str).collect();
        let headers = MessageHeaders::new(Properties::from_raw_trusted(&dead.properties).headers());
        self.routes.clear();
        vhost.read().route_internally(exchange, &keys, &headers, &mut self.routes);
        let found = self.routes.as_slice();
        if found.is_empty() {
            return Reached::Nobody;
        }
        let goes_round = |target: &Arc<QueueRecord>| {
            letter.reason != Reason::Rejected && death::is_cycle(&dead.properties, &target.name)
        };
        let targets: Vec<Arc<QueueRecord>> = found.iter().filter(|target| !goes_round(target)).cloned().collect();
        if targets.is_empty() {
            tracing::debug!(queue = &*record.name, reason = ?letter.reason, "a dead letter goes round: dropped");
            return Reached::Dropped;
        }
        let body = letter.message.body_bytes();
        let mut bytes = Vec::with_capacity(exchange.len() + keys[0].len() + 2 + dead.properties.len() + body.len());
        for text in [exchange, keys[0]] {
            bytes.push(u8::try_from(text.len()).expect("names and keys are short strings"));
            bytes.extend_from_slice(text.as_bytes());
        }
        let envelope_bytes = u16::try_from(bytes.len()).expect("two short strings are at most 512 bytes");
        bytes.extend_from_slice(&dead.properties);
        bytes.extend_from_slice(body);
        let properties_bytes = u32::try_from(dead.properties.len()).expect("headers are smaller than 4 GiB");
        let message = self.broker.memory().hold(bytes);
        for (shard, targets) in Route::to(&targets).shards {
            self.staging.enqueue_own(shard, targets, message.clone(), envelope_bytes, properties_bytes, name);
        }
        Reached::Somebody
    }

    /// All that was published in a turn is where it was to go, or was refused.
    fn arrived(&mut self, turn: u64, refused: &[u64]) {
        let mut done: BTreeMap<(u32, QueueId), Intervals> = BTreeMap::new();
        for (name, Sent { due, insists }) in (1..).zip(self.sent.remove(&turn).unwrap_or_default()) {
            if insists && refused.contains(&name) {
                self.again.push_back((Instant::now() + RETRY_INTERVAL, due));
            } else {
                done.entry((due.shard, due.letter.queue)).or_default().push(due.letter.sequence);
            }
        }
        for ((shard, queue), sequences) in done {
            self.broker.send_ops(shard, vec![Op::Posted { queue, sequences }]);
        }
    }
}

/// Whom a letter is on its way to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// At least one queue.
    Somebody,
    /// No queue, for now.
    Nobody,
    /// No queue, for good.
    Dropped,
}

/// Takes letters and events as soon as there are some of either.
async fn wait(inbox: &Mailbox<Due>, handle: &ConnectionHandle, letters: &mut Vec<Due>, events: &mut Vec<Event>) {
    poll_fn(|context| {
        let letters = inbox.poll_take(context, letters);
        let events = handle.mailbox.poll_take(context, events);
        if letters.is_ready() || events.is_ready() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
