//! The queue state machine: ops in, effects out. No I/O, no clock, no randomness.

/// The identity of a queue: the metadata index of its creation, so a re-declared name is never the old queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QueueId(pub u64);
