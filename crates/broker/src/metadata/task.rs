//! The task that takes changes, has them written, applies them and answers; and now and then stores a snapshot.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use amqp::{Exception, MethodId, ReplyCode};
use queue::Op as QueueOp;
use storage::{Admission, Index, Operation, Placed, StorageError, Submission, Ticket};
use tokio::time::{Instant, timeout_at};

use super::admin;
use super::apply::{Applied, apply};
use super::op::{Change, Op};
use super::pipeline::{Asker, Earlier, Item, Pipeline, TERM};
use super::recovery::Recovered;
use super::snapshot;
use crate::broker::Broker;
use crate::connection::Event;
use crate::mailbox::Mailbox;
use crate::store::{GroupListener, METADATA};
use crate::topology::QueueRecord;

/// On a full disk space is looked for so often. Clients that declare wait this long at most once there is some.
const FULL_RETRY: Duration = Duration::from_millis(100);
/// A snapshot is due when this much was written since the last one, or as much as that one was large, whichever is more: so
/// the entries are read again in tens of milliseconds at a start, and snapshots at most double what is written.
const SNAPSHOT_BYTES: u64 = 4 << 20;
/// How often it is looked whether the metadata keeps old files of the log. A fast device fills one in a quarter of a second.
const RETENTION_CHECK: Duration = Duration::from_millis(250);

/// What the task can be sent.
#[derive(Debug)]
pub(crate) enum Input {
    /// To be written and applied. `asker` is answered then.
    Change { change: Change, asker: Option<Asker> },
    /// To be answered when what was asked for before has taken effect.
    Barrier { after: Earlier, asker: Asker },
    /// The log has these submissions on disk, and those before.
    Written(Ticket),
    /// The log did not write this submission.
    Failed(Ticket, StorageError),
    /// A snapshot up to this entry is on disk, or cannot be.
    Stored(Index, Result<(), StorageError>),
}

/// Puts what the log says into the task's mailbox.
struct Listener(Arc<Mailbox<Input>>);

impl GroupListener for Listener {
    fn written(&self, up_to: Ticket, _placed: &[Placed]) {
        self.0.send(Input::Written(up_to));
    }

    fn failed(&self, ticket: Ticket, error: &StorageError) {
        self.0.send(Input::Failed(ticket, error.clone()));
    }
}

/// The task.
pub(crate) struct Metadata {
    broker: Arc<Broker>,
    inbox: Arc<Mailbox<Input>>,
    pipeline: Pipeline,
    /// The last entry that was applied.
    applied: Index,
    /// Deletions of used-up exchanges that are on their way because of changes that were applied. Answers wait for them, so that who
    /// removed the last binding does not find the exchange any more.
    cascading: usize,
    snapshots: SnapshotState,
    retry_at: Option<Instant>,
    stopped: Option<StorageError>,
}

/// What is known of snapshots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SnapshotState {
    /// The last entry that the newest one contains. 0: none.
    pub(super) newest: Index,
    /// The last entry that the one before contains: up to here the log may forget, since either of the two may go bad.
    pub(super) older: Index,
    /// Bytes of the newest one.
    pub(super) bytes: u64,
    /// Bytes of the entries since.
    pub(super) entry_bytes: u64,
    /// One is being stored.
    storing: bool,
    /// The last one could not be stored.
    failing: bool,
    /// The log was told to forget up to here.
    pub(super) compacted: Index,
    /// With this submission.
    compaction: Option<Ticket>,
}

impl Metadata {
    pub(crate) fn new(broker: Arc<Broker>, recovered: Recovered) -> Self {
        let inbox = Arc::clone(broker.metadata());
        broker.store().listen(METADATA, Arc::new(Listener(Arc::clone(&inbox))));
        let mut pipeline = Pipeline::new(recovered.applied, broker.settings().durable_shards);
        if recovered.ahead_of_log {
            let mark = Operation::SnapshotMark { index: recovered.applied, term: TERM };
            let ticket = pipeline.take_ticket();
            let submission =
                Submission { group: METADATA, ticket, critical: true, lazy: false, operations: vec![mark] };
            broker.store().log().submit(submission);
        }
        Self {
            broker,
            inbox,
            pipeline,
            applied: recovered.applied,
            cascading: 0,
            snapshots: recovered.snapshots,
            retry_at: None,
            stopped: None,
        }
    }

    /// Runs for as long as the node does.
    pub(crate) async fn run(mut self) {
        let mut inputs = Vec::new();
        let mut check_at = Instant::now() + RETENTION_CHECK;
        loop {
            let take = poll_fn(|context| self.inbox.poll_take(context, &mut inputs));
            let may_retain = self.applied > self.snapshots.compacted && self.stopped.is_none();
            match self.retry_at.or_else(|| may_retain.then_some(check_at)) {
                Some(deadline) => {
                    // In time or not: there may be something to take either way.
                    let _ = timeout_at(deadline, take).await;
                }
                None => take.await,
            }
            self.turn(&mut inputs);
            let now = Instant::now();
            if self.retry_at.is_some_and(|at| at <= now) {
                self.look_for_space();
            }
            if check_at <= now {
                check_at = now + RETENTION_CHECK;
                self.check_retention();
            }
            // The connections that were answered run before the next turn.
            tokio::task::yield_now().await;
        }
    }

    fn turn(&mut self, inputs: &mut Vec<Input>) {
        for input in inputs.drain(..) {
            match input {
                Input::Change { change, asker } => {
                    self.pipeline.add(Item::Change { change, asker, cascade: false });
                }
                Input::Barrier { after, asker } => {
                    self.pipeline.add(Item::Answer { after, asker, applied: Applied::Unchanged });
                }
                Input::Written(up_to) => self.written(up_to),
                Input::Failed(ticket, error) => self.failed(ticket, error),
                Input::Stored(index, result) => self.stored(index, result),
            }
        }
        self.submit();
    }

    // ---- to the log -------------------------------------------------------------------------------------------------

    fn submit(&mut self) {
        if self.stopped.is_some() {
            return self.refuse_all();
        }
        loop {
            let mut due = Vec::new();
            for submission in self.pipeline.submissions(&mut due) {
                self.snapshots.entry_bytes += payload_bytes(&submission);
                self.broker.store().log().submit(submission);
            }
            if due.is_empty() {
                return;
            }
            due.into_iter().for_each(|item| self.take_effect(item));
        }
    }

    fn failed(&mut self, ticket: Ticket, error: StorageError) {
        if error.is_full() {
            let of_compaction = self.snapshots.compaction.take_if(|compaction| *compaction == ticket).is_some();
            // Submissions behind a failed compaction have failed with it, and resume the log themselves.
            if self.pipeline.no_space(ticket) || of_compaction && self.pipeline.is_idle() {
                self.broker.store().log().resume(METADATA);
                if self.pipeline.is_short_of_space() && self.retry_at.is_none() {
                    tracing::warn!(%error, "declarations of durable exchanges, queues and bindings wait for disk space");
                    self.retry_at = Some(Instant::now() + FULL_RETRY);
                }
            }
        } else if self.stopped.is_none() && (self.pipeline.has(ticket) || matches!(error, StorageError::Stopped { .. }))
        {
            tracing::error!(%error, "durable exchanges, queues and bindings can no longer be changed");
            self.stopped = Some(error);
        }
    }

    fn look_for_space(&mut self) {
        let open = self.broker.store().log().admission() == Admission::Open;
        self.pipeline.look_for_space(open);
        self.retry_at = self.pipeline.is_short_of_space().then(|| Instant::now() + FULL_RETRY);
        self.submit();
    }

    /// The log has stopped: what cannot be written any more is refused.
    fn refuse_all(&mut self) {
        let error = self.stopped.as_ref().expect("the log has stopped");
        let exception =
            Exception::new(ReplyCode::ResourceError, format!("the node's log has stopped: {error}"), MethodId::NONE);
        self.retry_at = None;
        for item in self.pipeline.give_up() {
            let asker = match item {
                Item::Change { asker, .. } => asker,
                Item::Answer { asker, .. } => Some(asker),
            };
            answer(asker, Err(exception.clone()));
        }
    }

    // ---- from the log -----------------------------------------------------------------------------------------------

    fn written(&mut self, up_to: Ticket) {
        for (index, items) in self.pipeline.written(up_to) {
            items.into_iter().for_each(|item| self.take_effect(item));
            self.applied = index;
        }
        let due = SNAPSHOT_BYTES.max(self.snapshots.bytes);
        if self.snapshots.entry_bytes >= due {
            self.store_snapshot();
        }
    }

    fn take_effect(&mut self, item: Item) {
        match item {
            Item::Change { change, asker, cascade } => {
                let result = self.apply(&change);
                self.cascading -= usize::from(cascade);
                match (asker, result) {
                    (Some(asker), Ok(applied)) => self.answer_later(Earlier::Removals, asker, applied),
                    (asker, result) => answer(asker, result),
                }
            }
            Item::Answer { after, asker, applied } => self.answer_later(after, asker, applied),
        }
    }

    /// Answers when the deletions that earlier changes gave rise to have taken effect.
    fn answer_later(&mut self, after: Earlier, asker: Asker, applied: Applied) {
        if self.cascading == 0 {
            answer(Some(asker), Ok(applied));
        } else {
            self.pipeline.add(Item::Answer { after, asker, applied });
        }
    }

    fn apply(&mut self, change: &Change) -> Result<Applied, Exception> {
        if let Op::Admin(op) = &change.op {
            let (applied, consequences) = admin::apply(self.broker.directory(), &change.vhost, op)?;
            self.broker.carry_out(consequences);
            return Ok(applied);
        }
        let Some(vhost) = self.broker.vhost(&change.vhost) else {
            let text = format!("vhost '{}' is down", change.vhost);
            return Err(Exception::new(ReplyCode::InternalError, text, MethodId::NONE));
        };
        let (broker, local_shards) = (&self.broker, self.broker.durable_shard(0));
        let mut created = |record: &Arc<QueueRecord>| {
            // Under the lock: whoever finds the record later sends its ops behind this one.
            let create = QueueOp::Create { queue: record.id, settings: record.machine_settings() };
            broker.send_ops(record.shard, vec![create]);
        };
        let (result, used_up) = vhost.apply(|topology| {
            vhost.claims().release(&change.op);
            apply(topology, &change.op, local_shards, &mut created)
        });
        self.cascading += used_up.len();
        for change in used_up {
            self.pipeline.add(Item::Change { change, asker: None, cascade: true });
        }
        result
    }

    // ---- snapshots --------------------------------------------------------------------------------------------------

    /// Stores all that is durable as it is after the last applied entry. Made here and now, written by a thread that may block.
    fn store_snapshot(&mut self) {
        if std::mem::replace(&mut self.snapshots.storing, true) {
            return;
        }
        let mut builder = snapshot::Builder::new(self.applied, self.broker.durable_shard(0));
        builder.add_directory(self.broker.directory());
        let contents = builder.finish();
        self.snapshots.bytes = contents.len() as u64;
        self.snapshots.entry_bytes = 0;
        let (snapshots, inbox, index) =
            (self.broker.store().snapshots().clone(), Arc::clone(&self.inbox), self.applied);
        tokio::task::spawn_blocking(move || {
            let stored = snapshots.store(snapshot::NAME, &[contents]);
            inbox.send(Input::Stored(index, stored.map(|_| ())));
        });
    }

    fn stored(&mut self, index: Index, result: Result<(), StorageError>) {
        self.snapshots.storing = false;
        if let Err(error) = result {
            // The log keeps its entries, so nothing is lost; the next occasion tries again.
            // Said once: on a full disk the next occasion is in a moment.
            if !std::mem::replace(&mut self.snapshots.failing, true) {
                tracing::error!(%error, "cannot store a snapshot of exchanges, queues and bindings: tried again until it can");
            }
            return;
        }
        self.snapshots.failing = false;
        self.snapshots.older = std::mem::replace(&mut self.snapshots.newest, index);
        if self.snapshots.older > self.snapshots.compacted {
            let ticket = self.pipeline.take_ticket();
            self.snapshots.compacted = self.snapshots.older;
            self.snapshots.compaction = Some(ticket);
            let compact = Operation::CompactTo { index: self.snapshots.older, term: TERM };
            // Critical: it frees space.
            let submission =
                Submission { group: METADATA, ticket, critical: true, lazy: false, operations: vec![compact] };
            self.broker.store().log().submit(submission);
        }
    }

    /// An entry keeps its file of the log, and all later ones, until it is in two snapshots. When messages fill file after file and
    /// hardly anything is declared, size alone would not make a snapshot for days.
    fn check_retention(&mut self) {
        let log = self.broker.store().log();
        let (newest, _) = log.end();
        let retained = log.most_retentive_group();
        if self.stopped.is_none() && retained.is_some_and(|(group, file)| group == METADATA && file < newest) {
            self.store_snapshot();
        }
    }
}

fn answer(asker: Option<Asker>, result: Result<Applied, Exception>) {
    if let Some(Asker { handle, token }) = asker {
        handle.mailbox.send(Event::Metadata { token, result });
    }
}

fn payload_bytes(submission: &Submission) -> u64 {
    let payload = |operation: &Operation| match operation {
        Operation::Append(entry) => entry.payload.len() as u64,
        _ => 0,
    };
    submission.operations.iter().map(payload).sum()
}
