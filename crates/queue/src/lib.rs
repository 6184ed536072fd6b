//! The queue state machine: ops in, effects out. No I/O, no clock, no randomness, no runtime.
//!
//! A [`Shard`] owns many queues, one [`Machine`] each. It is given [`Op`]s in batches ([`Batch`]) and answers with
//! [`Effect`]s, which the task that drives it carries out: deliveries, replies, the end of a batch.
//!
//! What a machine holds falls in two parts, and the split is what makes replication possible:
//! - *replicated state*: which messages are live, their order, and how often they were handed out. It changes only by
//!   [`Machine::enqueue`] and [`Machine::remove`], which in a replicated shard run after the op is committed;
//! - *leader-local state*: consumers, credit, and which live message is ready and which is out with a consumer. It changes at
//!   once ([`Machine::settle`], [`Machine::attach`], [`Machine::pump`]) and is rebuilt by a new leader.
//!
//! A message keeps its sequence number for life. Messages that were never handed out lie at and above the *cursor*; those
//! handed out and given back lie below it, in a small ordered set. So the next message to deliver is the lowest returned one,
//! else the one at the cursor: a requeued message takes its old place, whatever the order in which it came back. In a queue with
//! priorities all messages are in that set, and those with a higher priority come first in it.
//!
//! Time is an input: the task says what time it is before each turn ([`Shard::set_now`]), and each message of a log has the time at which
//! it was published. What a queue does because of time or length, in `upkeep.rs`, is decided by its owner and becomes removals.

mod cold;
mod consumers;
mod intervals;
mod live;
mod machine;
mod message;
mod op;
mod settings;
mod shard;
mod upkeep;

pub use cold::{Chunk, ChunkKind, Release};
pub use consumers::ConsumerSpec;
pub use intervals::Intervals;
pub use live::Place;
pub use machine::{Admission, AttachRefused, Journal, Machine, Paged};
pub use message::{Message, MessageRef, Stamp};
pub use op::{
    Batch, ConsumerId, Counts, Delivery, Effect, Enqueue, GetReply, Letter, Op, Outcome, Reason, Reply, Targets, Token,
};
pub use settings::{Overflow, Rules, Settings};
pub use shard::{Logged, MemoryChange, Shard, Taken};
pub use upkeep::LETTERS_IN_FLIGHT;

/// The identity of a queue: the metadata index of its creation, so a re-declared name is never the old queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub u64);

/// The place of a message in its queue. Given at enqueue, kept for life, never given again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(pub u64);
