//! What can be asked of a shard ([`Op`], in [`Batch`]es) and what it asks of the world ([`Effect`]).

use std::sync::Arc;

use bytes::Bytes;

use crate::{ConsumerSpec, Intervals, Message, MessageRef, QueueId, Sequence, Settings, Stamp};

/// A consumer, or a channel that holds messages it got with `basic.get`: unique over the life of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConsumerId {
    /// The connection that holds it.
    pub connection: u64,
    /// Its number on that connection, never used twice.
    pub local: u32,
}

/// Made up by the asker and given back in the [`Reply`], so that it knows what is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub u64);

/// The queues of one shard that a message goes to.
#[derive(Clone, Debug)]
pub enum Targets {
    /// The common case.
    One(QueueId),
    /// A fan-out. Shared, because the publisher keeps it for the next message with the same route.
    Many(Arc<[QueueId]>),
}

impl Targets {
    /// The queues, one after the other.
    #[must_use]
    pub fn as_slice(&self) -> &[QueueId] {
        match self {
            Self::One(queue) => std::slice::from_ref(queue),
            Self::Many(queues) => queues,
        }
    }
}

/// A message on its way into queues.
#[derive(Clone, Debug)]
pub struct Enqueue {
    /// Where it goes.
    pub targets: Targets,
    /// Where it lies in the batch's buffers.
    pub message: MessageRef,
    /// Its own time to live in milliseconds; [`Stamp::NO_TTL`]: none.
    pub ttl_ms: u32,
    /// Its priority.
    pub priority: u8,
    /// Names the publish in [`Effect::Rejected`]; 0: nobody wants to know.
    pub publish: u64,
}

impl Enqueue {
    /// A message with no time to live of its own, no priority, and no publisher that waits.
    #[must_use]
    pub fn plain(targets: Targets, message: MessageRef) -> Self {
        Self { targets, message, ttl_ms: Stamp::NO_TTL, priority: 0, publish: 0 }
    }
}

/// What becomes of a delivered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Processed: it leaves the queue.
    Ack,
    /// Back to its place in the queue, with the redelivered flag.
    Requeue,
    /// Refused for good: it leaves the queue, as a dead letter if the queue has an exchange for these.
    Discard,
}

/// Why a message leaves a queue as a dead letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// A consumer refused it.
    Rejected,
    /// Its time to live is over.
    Expired,
    /// The queue was too long.
    MaxLen,
    /// It came back too often.
    DeliveryLimit,
}

/// A message on its way to a dead-letter exchange. It is live in its queue until [`Op::Posted`] says that it has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    /// The queue it leaves.
    pub queue: QueueId,
    /// Its place there.
    pub sequence: Sequence,
    /// Why.
    pub reason: Reason,
    /// The message.
    pub message: Message,
}

/// One thing asked of a shard.
#[derive(Clone, Debug)]
pub enum Op {
    /// Puts a message into queues. Queues that are not there (any more) are passed over.
    Enqueue(Enqueue),
    /// Settles deliveries of a consumer. What is not out with that consumer is passed over.
    Settle {
        /// The queue.
        queue: QueueId,
        /// Whose deliveries.
        consumer: ConsumerId,
        /// What becomes of them.
        outcome: Outcome,
        /// Which.
        sequences: Intervals,
    },
    /// Makes a queue. One that is there stays as it is.
    Create {
        /// Its identity.
        queue: QueueId,
        /// How it behaves.
        settings: Settings,
    },
    /// Other settings count for a queue from now on, because a policy changed.
    Configure {
        /// The queue.
        queue: QueueId,
        /// How it behaves.
        settings: Settings,
    },
    /// Dead letters have arrived wherever they were to go: they leave the queue.
    Posted {
        /// The queue.
        queue: QueueId,
        /// Which.
        sequences: Intervals,
    },
    /// It was declared again: a use of it, answered as [`Op::Count`] is.
    Declared {
        /// The queue.
        queue: QueueId,
        /// For the reply.
        token: Token,
    },
    /// Removes a queue with all its messages; its consumers are told. Answered with [`Reply::Deleted`], [`Reply::InUse`],
    /// [`Reply::NotEmpty`] or [`Reply::Gone`].
    Delete {
        /// The queue.
        queue: QueueId,
        /// Only if it has no consumers.
        if_unused: bool,
        /// Only if it has no ready messages.
        if_empty: bool,
        /// For the reply.
        token: Option<Token>,
    },
    /// Asks for [`Reply::Counts`].
    Count {
        /// The queue.
        queue: QueueId,
        /// For the reply.
        token: Token,
    },
    /// Drops all ready messages. Answered with [`Reply::Purged`].
    Purge {
        /// The queue.
        queue: QueueId,
        /// For the reply.
        token: Option<Token>,
    },
    /// Takes one ready message. Answered with [`Reply::Get`].
    Get {
        /// The queue.
        queue: QueueId,
        /// Who holds the message until it is settled.
        holder: ConsumerId,
        /// Settled at once.
        no_ack: bool,
        /// For the reply.
        token: Token,
    },
    /// Starts a consumer. Answered with [`Reply::Attached`], [`Reply::InUse`] or [`Reply::Gone`], before its first delivery.
    Attach {
        /// The queue.
        queue: QueueId,
        /// The consumer.
        consumer: ConsumerId,
        /// How it wants to be served.
        spec: ConsumerSpec,
        /// For the reply.
        token: Option<Token>,
    },
    /// Ends a consumer, or gives back what a holder got. Answered with [`Reply::Detached`], after its last delivery.
    Detach {
        /// The queue.
        queue: QueueId,
        /// The consumer or holder.
        consumer: ConsumerId,
        /// Its unsettled deliveries go back to the queue; else they stay out with it.
        requeue: bool,
        /// For the reply.
        token: Option<Token>,
    },
    /// A consumer that [`Admission`](crate::Admission) turned away can take messages again.
    Resume {
        /// The queue.
        queue: QueueId,
        /// The consumer.
        consumer: ConsumerId,
    },
}

/// Ops handed over at once by one connection, with the bytes that its messages lie in. Its end is reported as
/// [`Effect::BatchDone`], which stands for all its enqueues: that is what publisher confirms are made of.
#[derive(Debug)]
pub struct Batch {
    /// The connection.
    pub connection: u64,
    /// Counts up by one for each batch of the connection.
    pub number: u64,
    /// Somebody waits for its end: settlements in it are to be on disk by then.
    pub urgent: bool,
    /// What is asked, in order.
    pub ops: Vec<Op>,
    /// What [`MessageRef`]s point into.
    pub buffers: Vec<Bytes>,
}

/// A message for a consumer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The consumer.
    pub consumer: ConsumerId,
    /// Where it comes from.
    pub queue: QueueId,
    /// Its place there: what the consumer settles it by.
    pub sequence: Sequence,
    /// It may have been seen before.
    pub redelivered: bool,
    /// How often it came back, in a queue that counts that.
    pub failures: u32,
    /// The message.
    pub message: Message,
}

/// Ready messages and consumers of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Messages that are ready.
    pub ready: u64,
    /// Messages that are out with a consumer or holder.
    pub unacked: u64,
    /// Consumers.
    pub consumers: u32,
}

/// A message that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetReply {
    /// Where it comes from.
    pub queue: QueueId,
    /// Its place there.
    pub sequence: Sequence,
    /// It may have been seen before.
    pub redelivered: bool,
    /// How often it came back, in a queue that counts that.
    pub failures: u32,
    /// The message.
    pub message: Message,
    /// Messages still ready after it.
    pub remaining: u64,
}

/// An answer to an op that had a [`Token`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `Count`.
    Counts(Counts),
    /// To `Purge`: how many were dropped.
    Purged(u64),
    /// To `Delete`: how many ready messages went with the queue.
    Deleted(u64),
    /// To `Get`; `None` when no message was ready.
    Get(Option<GetReply>),
    /// To `Attach`.
    Attached,
    /// To `Detach`.
    Detached,
    /// To `Attach`: an exclusive consumer is in the way. To `Delete`: consumers are.
    InUse,
    /// To `Delete`: messages are in the way.
    NotEmpty,
    /// To anything: there is no such queue.
    Gone,
}

/// What a shard wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Hand a message to a consumer.
    Deliver(Delivery),
    /// Answer the connection that asked.
    Reply {
        /// The connection.
        connection: u64,
        /// What it gave.
        token: Token,
        /// The answer.
        reply: Reply,
    },
    /// All ops of a batch took effect.
    BatchDone {
        /// The connection.
        connection: u64,
        /// The batch's number.
        number: u64,
    },
    /// A queue is full and refused a message of this batch. Comes before the batch is done.
    Rejected {
        /// The connection.
        connection: u64,
        /// The batch's number.
        number: u64,
        /// The publish, as the connection named it.
        publish: u64,
    },
    /// Publish a message to its queue's dead-letter exchange, and say so with [`Op::Posted`].
    DeadLetter(Box<Letter>),
    /// A queue is gone under a consumer.
    CancelConsumer {
        /// The consumer.
        consumer: ConsumerId,
    },
    /// A queue is gone: its name and bindings go too. Comes before the reply to what removed it.
    QueueGone {
        /// The queue.
        queue: QueueId,
    },
}
