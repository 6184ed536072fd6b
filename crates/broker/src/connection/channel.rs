//! A channel: what it has open, and what it waits for.

use std::sync::Arc;

use amqp::methods::AMQPClass;
use amqp::{Assembler, FieldTable, MethodId};
use queue::QueueId;
use rustc_hash::FxHashMap;

use super::confirms::Confirms;
use super::direct_reply::ReplyConsumer;
use super::handle::Limiter;
use super::staging::Record;
use super::transaction::Transaction;
use super::unacked::UnackedTable;

/// Where a channel is in its life.
///
/// ```text
/// (none) ──open──▶ Open ──close──▶ (none)
///                   │ exception
///                   ▼
///                Closing ──close-ok──▶ (none)
/// ```
/// `Unopened` is a number on which a publish came without an open: the error is due when its content is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelState {
    Open,
    /// `channel.close` was sent: all but close and close-ok is dropped.
    Closing,
    Unopened,
}

/// A method whose answer comes from a shard or from the metadata. While it waits, nothing more of the channel is taken from the socket.
#[derive(Debug)]
pub(crate) enum Pending {
    /// A declare of a queue that was there; kept whole, because it starts again if the queue has gone meanwhile.
    Declare(Box<amqp::methods::queue::Declare>),
    Purge {
        name: Box<str>,
        nowait: bool,
    },
    Delete {
        name: Box<str>,
        nowait: bool,
        durable: bool,
    },
    /// A declare of a durable queue that was not there.
    DeclareDurable {
        name: Box<str>,
        declare: Box<amqp::methods::queue::Declare>,
    },
    /// Any other change; `ok` is the answer to the client, if it wants one.
    Change {
        ok: Option<Box<AMQPClass>>,
    },
    /// A method that found something in its way that is gone soon, and is handled again then.
    Retry(Box<AMQPClass>),
    Get {
        name: Box<str>,
        shard: u32,
        holder: Option<(QueueId, u32)>,
    },
    Consume {
        name: Box<str>,
        local: u32,
        nowait: bool,
    },
    Cancel {
        tag: Arc<str>,
        local: u32,
        nowait: bool,
    },
    Commit {
        turn: u64,
    },
    /// The client closes the channel: close-ok follows when what was acknowledged on it is on disk.
    Close {
        turn: u64,
    },
}

impl Pending {
    /// The turn whose batches are to be done first.
    pub(crate) fn turn(&self) -> Option<u64> {
        match self {
            Self::Commit { turn } | Self::Close { turn } => Some(*turn),
            _ => None,
        }
    }
}

/// A publish of which not all content is there.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    /// What has arrived of it, where it is not at the end of the turn's buffer.
    pub(crate) record: Record,
    pub(crate) mandatory: bool,
    /// Whole size of the body, in bytes, once the header is there.
    pub(crate) body_bytes: u64,
    /// It is larger than allowed: its body is counted and not kept.
    pub(crate) oversized: bool,
}

/// A consumer, as its connection knows it.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) channel: u16,
    pub(crate) tag: Arc<str>,
    pub(crate) no_ack: bool,
    pub(crate) exclusive: bool,
    pub(crate) prefetch: u32,
    pub(crate) arguments: FieldTable,
    pub(crate) queue: QueueId,
    pub(crate) shard: u32,
}

/// An open channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) state: ChannelState,
    /// Tells this use of the channel's number from earlier ones.
    pub(crate) epoch: u32,
    pub(crate) pending: Option<Pending>,
    pub(crate) assembler: Assembler,
    pub(crate) incoming: Incoming,
    pub(crate) next_delivery_tag: u64,
    pub(crate) unacked: UnackedTable,
    /// By tag.
    pub(crate) consumers: FxHashMap<Arc<str>, u32>,
    /// For consumers that start from now on; 0 is no limit.
    pub(crate) prefetch: u32,
    pub(crate) limiter: Option<Arc<Limiter>>,
    pub(crate) confirms: Option<Box<Confirms>>,
    pub(crate) transaction: Option<Box<Transaction>>,
    /// The queue that was declared last: what an empty name stands for.
    pub(crate) last_queue: Option<Box<str>>,
    /// Takes direct replies.
    pub(crate) reply_consumer: Option<Box<ReplyConsumer>>,
    /// Who holds what came by `basic.get`.
    pub(crate) holder: Option<u32>,
    /// Shards with a log in which something of this channel was settled, each once.
    pub(crate) settled_in: Vec<u32>,
}

impl Channel {
    pub(crate) fn new(state: ChannelState, epoch: u32) -> Self {
        Self {
            state,
            epoch,
            pending: None,
            assembler: Assembler::new(),
            incoming: Incoming::default(),
            next_delivery_tag: 1,
            unacked: UnackedTable::default(),
            consumers: FxHashMap::default(),
            prefetch: 0,
            limiter: None,
            confirms: None,
            transaction: None,
            last_queue: None,
            reply_consumer: None,
            holder: None,
            settled_in: Vec::new(),
        }
    }

    /// The tag for the next delivery or get.
    pub(crate) fn delivery_tag(&mut self) -> u64 {
        let tag = self.next_delivery_tag;
        self.next_delivery_tag += 1;
        tag
    }
}

/// Why the handling of a frame ended without success.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The peer is told.
    Exception(amqp::Exception),
    /// RabbitMQ drops the socket without a word here, and so do we.
    Drop(String),
}

impl From<amqp::Exception> for Fault {
    fn from(exception: amqp::Exception) -> Self {
        Self::Exception(exception)
    }
}

impl From<amqp::DecodeError> for Fault {
    fn from(error: amqp::DecodeError) -> Self {
        match error {
            amqp::DecodeError::Exception(exception) => Self::Exception(exception),
            amqp::DecodeError::Drop { method: MethodId { class, method }, reason } => {
                Self::Drop(format!("method {class},{method}: {reason}"))
            }
        }
    }
}
