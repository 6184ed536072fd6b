//! The task that owns the queues of a durable shard, and its line of entries that wait for the disk.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use queue::{Batch, Effect, Intervals, Logged, Op, Place, QueueId, Release, Shard, Stamp};
use rustc_hash::{FxHashMap, FxHashSet};
use storage::{
    Admission as LogAdmission, Entry, FileKind, GroupId, Index, Location, Log, Operation, Placed, StorageError,
    Submission, Term, Ticket,
};

use super::entry::{self, Ops};
use super::moving::{self, Files, Guard, Moved};
use super::reader::Reader;
use super::recovery::Recovered;
use super::snapshot;
use crate::broker::Broker;
use crate::clock;
use crate::mailbox::Mailbox;
use crate::peers::Peers;
use crate::shard::{ShardInput, wait_for_work};
use crate::store::{GroupListener, shard_group};

/// The term of a group with one voter.
const TERM: Term = Term(1);
/// A snapshot is due when this much was logged since the last one, and four times its size: replaying the log after a
/// crash takes well under a second, and snapshots cost little beside what they let go.
const SNAPSHOT_AFTER_BYTES: u64 = 128 * 1024 * 1024;
const SNAPSHOT_AFTER_SIZES: u64 = 4;
/// While the log takes nothing for want of space, it is asked again so often.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// What waits for the disk, in the order in which it takes effect.
#[derive(Debug)]
struct Waiting {
    /// `None`: it waits only for what is before it.
    submitted: Option<Submitted>,
    work: Work,
}

/// A submission that is not reported yet.
#[derive(Debug)]
struct Submitted {
    ticket: u64,
    index: u64,
    payload: Bytes,
    /// It frees space: a removal.
    critical: bool,
    lazy: bool,
    /// Where the entry lies, once it is written.
    location: Option<Location>,
}

#[derive(Debug)]
enum Work {
    /// Ops of a connection.
    Batch(Batch),
    /// Removals, and the batches that are done with them.
    Removals { removals: Vec<(QueueId, Intervals)>, done: Vec<Half> },
}

/// A batch that is done when removals are, or half of it.
#[derive(Clone, Copy, Debug)]
struct Half {
    connection: u64,
    number: u64,
    /// It has a place of its own in the line, too: it is done when both are.
    also_in_line: bool,
}

/// Removals of a turn.
#[derive(Debug)]
struct Removals {
    /// Their entry.
    payload: Bytes,
    removals: Vec<(QueueId, Intervals)>,
    /// Batches that are done with them.
    done: Vec<Half>,
}

/// What the log refused for want of space, and all that came after it.
#[derive(Debug, Default)]
struct Held {
    /// Whether it did, and does not take everything yet.
    refused: bool,
    /// In the order in which they are to be applied; each with whether it has messages. Bounded by what connections may have in flight.
    batches: VecDeque<(Batch, bool)>,
    /// They are submitted again as soon as that may succeed, and then later ones at once.
    removals: Vec<Removals>,
}

/// The task.
pub(crate) struct DurableShardTask {
    broker: Arc<Broker>,
    /// Among all shards of the node.
    index: u32,
    /// Among the durable ones.
    durable_shard: u32,
    group: GroupId,
    inbox: Arc<Mailbox<ShardInput>>,
    log: Log,
    reader: Reader,
    shard: Shard,
    peers: Peers,
    effects: Vec<Effect>,
    waiting: VecDeque<Waiting>,
    /// Batches in the line, by connection: later ones of the same connection must not overtake them.
    waiting_of: FxHashMap<u64, u32>,
    /// Batches that are done when this turn's removals are.
    done_with_removals: Vec<Half>,
    /// Batches of which one half is done.
    half_done: FxHashSet<(u64, u64)>,
    next_index: u64,
    next_ticket: u64,
    applied: u64,
    /// What the log refused, and what came after it.
    held: Held,
    bytes_since_snapshot: u64,
    snapshot_bytes: u64,
    snapshot_under_way: bool,
}

/// Puts what the log's writer reports into the shard's inbox.
struct Listener(Arc<Mailbox<ShardInput>>);

impl GroupListener for Listener {
    fn written(&self, up_to: Ticket, placed: &[Placed]) {
        self.0.send(ShardInput::Written { up_to: up_to.0, placed: placed.to_vec() });
    }

    fn failed(&self, ticket: Ticket, error: &StorageError) {
        self.0.send(ShardInput::Failed { ticket: ticket.0, error: error.clone() });
    }
}

impl DurableShardTask {
    pub(crate) fn new(broker: Arc<Broker>, durable_shard: u32, recovered: Recovered) -> Self {
        let index = broker.durable_shard(durable_shard);
        let inbox = broker.shard_inbox(index as usize);
        let log = broker.store().log().clone();
        let group = shard_group(durable_shard);
        let reader = Reader::new(log.clone(), broker.store().segments().clone(), group);
        broker.store().listen(group, Arc::new(Listener(Arc::clone(&inbox))));
        Self {
            peers: Peers::new(Some(reader.clone())),
            reader,
            broker,
            index,
            durable_shard,
            group,
            inbox,
            log,
            shard: recovered.shard,
            effects: Vec::new(),
            waiting: VecDeque::new(),
            waiting_of: FxHashMap::default(),
            done_with_removals: Vec::new(),
            half_done: FxHashSet::default(),
            next_index: recovered.last + 1,
            next_ticket: 1,
            applied: recovered.last,
            held: Held::default(),
            bytes_since_snapshot: recovered.bytes_since_snapshot,
            snapshot_bytes: 0,
            snapshot_under_way: false,
        }
    }

    /// Runs for as long as the node does.
    pub(crate) async fn run(mut self) {
        let mut inputs = Vec::new();
        self.shard.begin(clock::now_ms());
        self.turn(&mut inputs);
        loop {
            wait_for_work(&self.inbox, &mut inputs, self.shard.next_timer()).await;
            self.shard.set_now(clock::now_ms());
            self.turn(&mut inputs);
            tokio::task::yield_now().await;
        }
    }

    fn turn(&mut self, inputs: &mut Vec<ShardInput>) {
        let mut flushed = Vec::new();
        for input in inputs.drain(..) {
            match input {
                ShardInput::Batch(batch) => self.take(batch),
                ShardInput::Ops(ops) => {
                    for op in ops {
                        self.shard.execute(0, op, &mut self.peers, &mut self.effects);
                    }
                }
                ShardInput::Written { up_to, placed } => self.written(up_to, &placed),
                ShardInput::Failed { ticket, error } => self.failed(ticket, &error),
                ShardInput::Retry => self.retry(),
                ShardInput::Flush(done) => flushed.push(done),
                ShardInput::MakeSnapshot => self.make_snapshot(),
                ShardInput::SnapshotStored { applied } => self.snapshot_stored(applied),
                ShardInput::Leave { files, guard } => self.leave(files, guard),
                ShardInput::Moved { moved, guard } => self.moved(moved, guard),
                ShardInput::Register(handle) => self.peers.register(handle),
                ShardInput::Unregister(connection) => {
                    self.dispatch();
                    self.peers.unregister(connection);
                }
                ShardInput::Lost(connection) => {
                    self.shard.forget_connection(connection, &mut self.effects);
                    self.dispatch();
                    self.peers.unregister(connection);
                }
                ShardInput::Limit(consumer, limiter) => self.peers.limit(consumer, limiter),
            }
        }
        self.shard.deliver(&mut self.peers, &mut self.effects);
        self.log_journals();
        self.settle_accounts();
        self.dispatch();
        for done in flushed {
            // Whoever asked may have stopped waiting.
            let _ = done.send(());
        }
        if self.bytes_since_snapshot > SNAPSHOT_AFTER_BYTES.max(self.snapshot_bytes * SNAPSHOT_AFTER_SIZES) {
            self.make_snapshot();
        }
    }

    fn dispatch(&mut self) {
        self.peers.dispatch(&self.broker, self.index, &mut self.effects);
    }

    // ---- batches ----------------------------------------------------------------------------------------------------

    /// Settlements count at once; the rest of a batch waits for its messages to be on disk, and for what its connection sent
    /// before.
    fn take(&mut self, mut batch: Batch) {
        batch.ops.retain_mut(|op| match op {
            Op::Settle { queue, consumer, outcome, sequences } => {
                self.shard.settle(*queue, *consumer, sequences, *outcome);
                false
            }
            _ => true,
        });
        let has_messages = batch.ops.iter().any(|op| matches!(op, Op::Enqueue(_)));
        let in_line = has_messages || self.waiting_of.contains_key(&batch.connection);
        if batch.urgent {
            let Batch { connection, number, .. } = batch;
            self.done_with_removals.push(Half { connection, number, also_in_line: in_line });
        }
        if in_line {
            self.wait(batch, has_messages);
        } else {
            let Batch { connection, number, urgent, .. } = batch;
            self.carry_out(batch, None);
            if !urgent {
                self.effects.push(Effect::BatchDone { connection, number });
            }
        }
    }

    /// Puts a batch into the line; `logged`: it has messages, which are to be written.
    fn wait(&mut self, batch: Batch, logged: bool) {
        *self.waiting_of.entry(batch.connection).or_default() += 1;
        if self.held.refused {
            self.held.batches.push_back((batch, logged));
        } else {
            self.line_up(batch, logged);
        }
    }

    fn line_up(&mut self, batch: Batch, logged: bool) {
        let submitted = logged.then(|| self.submit(batch.buffers[0].clone(), false, false));
        self.waiting.push_back(Waiting { submitted, work: Work::Batch(batch) });
    }

    /// Ops whose time has come.
    fn carry_out(&mut self, batch: Batch, location: Option<Location>) {
        let Batch { connection, number, ops, buffers, .. } = batch;
        // The time in the entry, so that it is the same after a restart.
        let enqueued_at_ms = if location.is_some() { entry::time_of(&buffers[0]) } else { 0 };
        let mut retained = 0;
        for op in ops {
            match op {
                Op::Enqueue(enqueue) => {
                    let location = location.expect("a batch with messages was written");
                    let message = enqueue.message.resolve(&buffers).expect("a message lies in its batch's buffers");
                    let timed = enqueue.ttl_ms != Stamp::NO_TTL;
                    let chunk = entry::chunk_of(location, &enqueue.message, enqueued_at_ms, timed);
                    let place = Place { file: chunk.file, offset: location.offset + enqueue.message.start };
                    let hot = self.broker.has_room_for_bodies();
                    let targets = enqueue.targets.as_slice();
                    let stamp = Stamp { enqueued_at_ms, ttl_ms: enqueue.ttl_ms, priority: enqueue.priority };
                    let logged = Logged { targets, message: &message, stamp, place, chunk, hot };
                    let taken = self.shard.enqueue_logged(&logged, &mut self.peers, &mut self.effects);
                    retained += taken.queues * u64::from(enqueue.message.len);
                    if taken.refused && enqueue.publish != 0 {
                        self.effects.push(Effect::Rejected { connection, number, publish: enqueue.publish });
                    }
                }
                other => self.shard.execute(connection, other, &mut self.peers, &mut self.effects),
            }
        }
        if retained > 0
            && let Some(FileKind::Log(file)) = location.map(|location| location.file.kind())
        {
            self.log.retain(file, retained);
        }
    }

    /// One half of a batch is done.
    fn finish_half(&mut self, connection: u64, number: u64) {
        if self.half_done.remove(&(connection, number)) {
            self.effects.push(Effect::BatchDone { connection, number });
        } else {
            self.half_done.insert((connection, number));
        }
    }

    fn finish_removals(&mut self, done: Vec<Half>) {
        for Half { connection, number, also_in_line } in done {
            if also_in_line {
                self.finish_half(connection, number);
            } else {
                self.effects.push(Effect::BatchDone { connection, number });
            }
        }
    }

    // ---- the log ----------------------------------------------------------------------------------------------------

    /// Hands an entry to the log's writer.
    fn submit(&mut self, payload: Bytes, critical: bool, lazy: bool) -> Submitted {
        let submitted =
            Submitted { ticket: self.next_ticket, index: self.next_index, payload, critical, lazy, location: None };
        self.next_ticket += 1;
        self.next_index += 1;
        self.bytes_since_snapshot += submitted.payload.len() as u64;
        self.log.submit(submission(self.group, &submitted));
        submitted
    }

    /// What consumers settled and were handed since the last time, as one entry. It hurries only if somebody waits for it.
    fn log_journals(&mut self) {
        let mut ops = Ops::new(clock::now_ms());
        let mut removals = Vec::new();
        self.shard.take_journals(|queue, journal| {
            if !journal.removed.is_empty() {
                ops.remove(queue, &journal.removed);
                removals.push((queue, journal.removed));
            }
            if !journal.failed.is_empty() {
                ops.failed(queue, &journal.failed);
            }
            if let Some(up_to) = journal.delivered_up_to {
                ops.delivered(queue, up_to);
            }
        });
        let done = std::mem::take(&mut self.done_with_removals);
        if ops.is_empty() {
            // Nothing came of the settlements of this turn, but there may be earlier ones on their way.
            if !done.is_empty() {
                self.await_removals(done);
            }
            return;
        }
        let mut payload = Vec::new();
        ops.finish(&mut payload);
        let removals = Removals { payload: Bytes::from(payload), removals, done };
        if self.held.refused && !self.held.removals.is_empty() {
            self.held.removals.push(removals);
        } else {
            self.log_removals(removals);
        }
    }

    /// Has these batches wait for the removals that are on their way, and hurries those.
    fn await_removals(&mut self, mut done: Vec<Half>) {
        if let Some(last) = self.held.removals.last_mut() {
            last.done.append(&mut done);
            return;
        }
        let on_their_way = self.waiting.iter_mut().rev().find_map(|waiting| match &mut waiting.work {
            Work::Removals { done, .. } => Some(done),
            Work::Batch(_) => None,
        });
        let Some(last) = on_their_way else { return self.finish_removals(done) };
        last.append(&mut done);
        // The log does not hurry for what is lazy; it does for this, which has nothing in it.
        self.log.submit(Submission {
            group: self.group,
            ticket: Ticket(self.next_ticket),
            critical: true,
            lazy: false,
            operations: Vec::new(),
        });
        self.next_ticket += 1;
    }

    /// Removals make space, so they go ahead of messages that wait for it, and may use the log's reserve.
    fn log_removals(&mut self, removals: Removals) {
        let Removals { payload, removals, done } = removals;
        let lazy = done.is_empty();
        let submitted = self.submit(payload, true, lazy);
        self.waiting.push_back(Waiting { submitted: Some(submitted), work: Work::Removals { removals, done } });
    }

    /// Applies what is on disk by now, in order.
    fn written(&mut self, up_to: u64, placed: &[Placed]) {
        let mut placed = placed.iter();
        for waiting in &mut self.waiting {
            let Some(submitted) = &mut waiting.submitted else { continue };
            if submitted.ticket > up_to {
                break;
            }
            if submitted.location.is_none() {
                let entry = placed.next().expect("each submission has an entry");
                assert_eq!(entry.index.0, submitted.index, "entries are reported in the order of submission");
                submitted.location = Some(entry.location);
            }
        }
        while let Some(front) = self.waiting.front() {
            if front.submitted.as_ref().is_some_and(|submitted| submitted.location.is_none()) {
                break;
            }
            let Waiting { submitted, work } = self.waiting.pop_front().expect("looked at above");
            let location = submitted.as_ref().and_then(|submitted| submitted.location);
            if let Some(submitted) = submitted {
                self.applied = submitted.index;
            }
            match work {
                Work::Batch(batch) => {
                    let Batch { connection, number, urgent, .. } = batch;
                    self.carry_out(batch, location);
                    if urgent {
                        self.finish_half(connection, number);
                    } else {
                        self.effects.push(Effect::BatchDone { connection, number });
                    }
                    self.one_less_waits(connection);
                }
                Work::Removals { removals, done } => {
                    for (queue, sequences) in removals {
                        self.shard.remove(queue, &sequences);
                    }
                    self.finish_removals(done);
                }
            }
        }
    }

    fn one_less_waits(&mut self, connection: u64) {
        if let Some(count) = self.waiting_of.get_mut(&connection) {
            *count -= 1;
            if *count == 0 {
                self.waiting_of.remove(&connection);
            }
        }
    }

    /// Nothing of a submission was written, nor of what the group submitted after it: all that is held back. Reports about submissions that
    /// are held already, or that had no entry, change nothing.
    fn failed(&mut self, ticket: u64, error: &StorageError) {
        let refused =
            |waiting: &Waiting| waiting.submitted.as_ref().is_some_and(|submitted| submitted.ticket == ticket);
        let Some(first) = self.waiting.iter().position(refused) else { return };
        if let Some(submitted) = &self.waiting[first].submitted {
            self.next_index = submitted.index;
        }
        let mut batches = VecDeque::new();
        for Waiting { submitted, work } in self.waiting.split_off(first) {
            match work {
                Work::Batch(batch) => batches.push_back((batch, submitted.is_some())),
                Work::Removals { removals, done } => {
                    let payload = submitted.map(|submitted| submitted.payload).unwrap_or_default();
                    self.held.removals.push(Removals { payload, removals, done });
                }
            }
        }
        // They came before what is held already.
        batches.append(&mut self.held.batches);
        self.held.batches = batches;
        let again = std::mem::replace(&mut self.held.refused, true);
        if error.is_full() {
            if !again {
                tracing::warn!(shard = self.durable_shard, %error, "no space for the log: publishes wait");
                self.ask_again();
            }
        } else {
            let shard = self.durable_shard;
            tracing::error!(shard, ticket, %error, "the log takes no more: nothing durable is confirmed from now on");
            self.broker.log_failed();
        }
    }

    fn ask_again(&self) {
        let inbox = Arc::clone(&self.inbox);
        tokio::spawn(async move {
            tokio::time::sleep(RETRY_INTERVAL).await;
            inbox.send(ShardInput::Retry);
        });
    }

    /// Submits what was held back, as far as the log takes it now: removals first.
    fn retry(&mut self) {
        let admission = self.log.admission();
        if !self.held.refused || admission == LogAdmission::Stopped {
            return;
        }
        self.log.resume(self.group);
        for removals in std::mem::take(&mut self.held.removals) {
            self.log_removals(removals);
        }
        if admission != LogAdmission::Open {
            return self.ask_again();
        }
        self.held.refused = false;
        for (batch, logged) in std::mem::take(&mut self.held.batches) {
            self.line_up(batch, logged);
        }
    }

    // ---- accounts and snapshots ---------------------------------------------------------------------------------------

    fn settle_accounts(&mut self) {
        let releases = self.shard.take_releases();
        self.release(&releases);
        let change = self.shard.take_memory_change();
        self.broker.bodies.fetch_add(change.added, Ordering::Relaxed);
        self.broker.bodies.fetch_sub(change.removed, Ordering::Relaxed);
    }

    /// Gives up what is needed no more on disk.
    fn release(&self, releases: &[Release]) {
        for release in releases {
            match storage::FileId::from_raw(release.file).kind() {
                FileKind::Log(file) => self.log.release(file, release.bytes),
                FileKind::Segment(segment) => self.reader.segments().release(segment, release.messages),
            }
        }
    }

    /// Has what the shard needs of these files copied.
    fn leave(&mut self, files: Files, guard: Guard) {
        let listed = moving::list(&self.shard, &files);
        if listed.is_empty() && matches!(files, Files::Log(_)) {
            return;
        }
        let (reader, inbox, shard) = (self.reader.clone(), Arc::clone(&self.inbox), self.durable_shard);
        tokio::task::spawn_blocking(move || {
            let moved = moving::copy(&reader, files, listed);
            if let Err(error) = &moved {
                tracing::error!(shard, %error, "messages cannot be copied: they stay where they are");
            }
            inbox.send(ShardInput::Moved { moved: moved.ok(), guard });
        });
    }

    /// The messages lie in new places from now on, and the old ones are given up: should the node go down before its next snapshot, they are
    /// found by queue and sequence.
    fn moved(&mut self, moved: Option<Moved>, guard: Guard) {
        if let Some(moved) = moved {
            // What is released by now is so in the old places.
            self.settle_accounts();
            let mut releases = Vec::new();
            let alive = moving::move_queues(&mut self.shard, &moved, &mut releases);
            let segments = alive.into_iter().filter_map(|(file, alive)| match storage::FileId::from_raw(file).kind() {
                FileKind::Segment(segment) => Some((segment, alive)),
                FileKind::Log(_) => None,
            });
            self.reader.segments().adopt(segments);
            self.release(&releases);
        }
        drop(guard);
    }

    fn make_snapshot(&mut self) {
        if self.snapshot_under_way {
            return;
        }
        self.snapshot_under_way = true;
        let applied = self.applied;
        let bytes = snapshot::encode(&self.shard, applied);
        self.snapshot_bytes = bytes.len() as u64;
        self.bytes_since_snapshot = 0;
        let (broker, inbox, durable_shard) = (Arc::clone(&self.broker), Arc::clone(&self.inbox), self.durable_shard);
        tokio::task::spawn_blocking(move || {
            let store = broker.store();
            let stored = snapshot::store(&**store.fs(), store.dir(), durable_shard, &bytes);
            if let Err(error) = &stored {
                tracing::error!(shard = durable_shard, %error, "a snapshot could not be stored: the log keeps its entries");
            }
            inbox.send(ShardInput::SnapshotStored { applied: stored.is_ok().then_some(applied) });
        });
    }

    fn snapshot_stored(&mut self, applied: Option<u64>) {
        self.snapshot_under_way = false;
        let Some(applied) = applied.filter(|&applied| applied > 0) else { return };
        self.log.submit(Submission {
            group: self.group,
            ticket: Ticket(self.next_ticket),
            critical: true,
            lazy: false,
            operations: vec![Operation::CompactTo { index: Index(applied), term: TERM }],
        });
        self.next_ticket += 1;
    }
}

fn submission(group: GroupId, submitted: &Submitted) -> Submission {
    let payload = submitted.payload.clone();
    Submission {
        group,
        ticket: Ticket(submitted.ticket),
        critical: submitted.critical,
        lazy: submitted.lazy,
        operations: vec![Operation::Append(Entry { index: Index(submitted.index), term: TERM, tag: 0, payload })],
    }
}
