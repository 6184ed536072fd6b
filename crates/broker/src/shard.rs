//! The task that owns the queues of one shard: takes what waits in its inbox, applies it, and hands each connection what is for it,
//! all at once.

use std::future::poll_fn;
use std::sync::Arc;

use queue::{Batch, ConsumerId, Effect, Op, Shard};
use storage::{Placed, StorageError};

use crate::broker::Broker;
use crate::clock;
use crate::connection::{ConnectionHandle, Limiter};
use crate::durable::{Files, Guard, Moved};
use crate::mailbox::Mailbox;
use crate::peers::Peers;

/// Effects are handed to connections at least this often within a turn, so that a long inbox does not hold them back.
const DISPATCH_AT: usize = 4096;

/// What a shard can be sent.
#[derive(Debug)]
pub(crate) enum ShardInput {
    /// Ops of a connection.
    Batch(Batch),
    /// Ops that nobody waits for.
    Ops(Vec<Op>),
    /// A connection that will send batches; comes before its first one.
    Register(Arc<ConnectionHandle>),
    /// A connection is gone; comes after its last batch.
    Unregister(u64),
    /// A connection is gone without having given back what it held.
    Lost(u64),
    /// A consumer shares a limit with the others of its channel.
    Limit(ConsumerId, Arc<Limiter>),
    /// To a durable shard: its submissions up to this ticket are synced.
    Written { up_to: u64, placed: Vec<Placed> },
    /// To a durable shard: nothing of this submission was written.
    Failed { ticket: u64, error: StorageError },
    /// To a durable shard: a snapshot of its state after this entry is stored; `None`: it could not be.
    SnapshotStored { applied: Option<u64> },
    /// To a durable shard: the log wants to be rid of old entries.
    MakeSnapshot,
    /// To a durable shard: these files are to go.
    Leave { files: Files, guard: Guard },
    /// To a durable shard: messages are copied, or (`None`) could not be.
    Moved { moved: Option<Moved>, guard: Guard },
    /// To a durable shard: see whether the log takes submissions again.
    Retry,
    /// To a durable shard: tell when all that came before is in the log's hands.
    Flush(tokio::sync::oneshot::Sender<()>),
}

/// Takes what waits in a shard's inbox as soon as there is something; or takes nothing when it is time to look at the queues.
pub(crate) async fn wait_for_work(inbox: &Mailbox<ShardInput>, inputs: &mut Vec<ShardInput>, timer: Option<u64>) {
    let mut take = std::pin::pin!(poll_fn(|context| inbox.poll_take(context, inputs)));
    match timer {
        None => take.await,
        Some(deadline) => tokio::select! {
            biased;
            () = &mut take => {}
            () = clock::sleep_until(deadline) => {}
        },
    }
}

/// The task.
pub(crate) struct ShardTask {
    broker: Arc<Broker>,
    index: u32,
    inbox: Arc<Mailbox<ShardInput>>,
    shard: Shard,
    peers: Peers,
    effects: Vec<Effect>,
}

impl ShardTask {
    pub(crate) fn new(broker: Arc<Broker>, index: usize) -> Self {
        let inbox = broker.shard_inbox(index);
        let index = u32::try_from(index).expect("a handful of shards");
        Self { broker, index, inbox, shard: Shard::new(), peers: Peers::new(None), effects: Vec::new() }
    }

    /// Runs for as long as the node does.
    pub(crate) async fn run(mut self) {
        let mut inputs = Vec::new();
        loop {
            wait_for_work(&self.inbox, &mut inputs, self.shard.next_timer()).await;
            self.shard.set_now(clock::now_ms());
            self.turn(&mut inputs);
            // The connections that were woken run before the next turn, even under a flood.
            tokio::task::yield_now().await;
        }
    }

    /// Applies all inputs and hands out the effects.
    fn turn(&mut self, inputs: &mut Vec<ShardInput>) {
        for input in inputs.drain(..) {
            match input {
                ShardInput::Batch(batch) => self.shard.apply(batch, &mut self.peers, &mut self.effects),
                ShardInput::Ops(ops) => {
                    // Connection 0 is nobody: its replies go nowhere.
                    let batch = Batch { connection: 0, number: 0, urgent: false, ops, buffers: Vec::new() };
                    self.shard.apply(batch, &mut self.peers, &mut self.effects);
                }
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
                ShardInput::Written { .. }
                | ShardInput::Failed { .. }
                | ShardInput::SnapshotStored { .. }
                | ShardInput::MakeSnapshot
                | ShardInput::Leave { .. }
                | ShardInput::Moved { .. }
                | ShardInput::Retry
                | ShardInput::Flush(_) => unreachable!("only durable shards have a log"),
            }
            if self.effects.len() >= DISPATCH_AT {
                self.shard.deliver(&mut self.peers, &mut self.effects);
                self.dispatch();
            }
        }
        self.shard.deliver(&mut self.peers, &mut self.effects);
        self.dispatch();
    }

    fn dispatch(&mut self) {
        self.peers.dispatch(&self.broker, self.index, &mut self.effects);
    }
}
