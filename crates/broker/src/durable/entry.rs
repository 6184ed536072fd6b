//! A log entry of a durable shard.
//!
//! ```text
//! ┌──────────────────────────┬───────────────────────────┬───────────────┐
//! │ messages, one after the  │ ops: what becomes of them │ u32 LE: bytes │
//! │ other, as on the wire    │ and of earlier ones       │ of the ops    │
//! └──────────────────────────┴───────────────────────────┴───────────────┘
//! ```
//! The messages come first so that they can be gathered before it is known how many there are, and so that they lie in the file as
//! they will be delivered. Numbers in the ops are varints. The log's frame has the checksum.
//!
//! Before the ops is the time at which the entry was made, by the clock of the node of whoever published: followers and replays take it
//! from there. Entries of version 1 have none.

use bytes::Bytes;
use queue::{Chunk, ChunkKind, Intervals, MessageRef, Op, QueueId, Sequence, Stamp};
use storage::Location;

use super::varint;

/// Version of the format of the ops; the first byte of them.
const FORMAT: u8 = 2;
/// The oldest version that is still read.
const OLDEST_FORMAT: u8 = 1;
/// Bytes of the length at the end.
const LENGTH_BYTES: usize = 4;
/// An entry is closed when it has this many bytes of messages, so that no single one holds up the disk for long.
pub(crate) const ENTRY_BYTES: usize = 1024 * 1024;

const ENQUEUE: u8 = 1;
const REMOVE: u8 = 2;
const DELIVERED: u8 = 3;
const ENQUEUE_TIMED: u8 = 4;
const FAILED: u8 = 5;

/// An op as it is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Logged {
    /// A message and its queues; `timed`: it has a time to live of its own.
    Enqueue { targets: Vec<QueueId>, message: MessageRef, timed: bool },
    /// Messages that left a queue.
    Remove { queue: QueueId, sequences: Intervals },
    /// Everything below was handed out.
    Delivered { queue: QueueId, up_to: Sequence },
    /// Messages that came back once more.
    Failed { queue: QueueId, sequences: Intervals },
}

/// An entry, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// When it was made, in milliseconds since 1970; 0: it does not say.
    pub(crate) now_ms: u64,
    /// What is in it.
    pub(crate) ops: Vec<Logged>,
}

/// Gathers the ops of an entry.
#[derive(Debug)]
pub(crate) struct Ops {
    bytes: Vec<u8>,
    /// Length of what comes before the first op.
    start: usize,
}

impl Ops {
    pub(crate) fn new(now_ms: u64) -> Self {
        let mut bytes = vec![FORMAT];
        varint::put(&mut bytes, now_ms);
        Self { start: bytes.len(), bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() == self.start
    }

    pub(crate) fn enqueue(&mut self, targets: &[QueueId], message: &MessageRef, timed: bool) {
        self.bytes.push(if timed { ENQUEUE_TIMED } else { ENQUEUE });
        varint::put(&mut self.bytes, targets.len() as u64);
        for target in targets {
            varint::put(&mut self.bytes, target.0);
        }
        for number in [message.start, message.len, u32::from(message.envelope_bytes), message.properties_bytes] {
            varint::put(&mut self.bytes, u64::from(number));
        }
    }

    pub(crate) fn remove(&mut self, queue: QueueId, sequences: &Intervals) {
        self.intervals(REMOVE, queue, sequences);
    }

    pub(crate) fn failed(&mut self, queue: QueueId, sequences: &Intervals) {
        self.intervals(FAILED, queue, sequences);
    }

    fn intervals(&mut self, kind: u8, queue: QueueId, sequences: &Intervals) {
        self.bytes.push(kind);
        varint::put(&mut self.bytes, queue.0);
        varint::put(&mut self.bytes, sequences.runs().len() as u64);
        for &(first, last) in sequences.runs() {
            varint::put(&mut self.bytes, first);
            varint::put(&mut self.bytes, last - first);
        }
    }

    pub(crate) fn delivered(&mut self, queue: QueueId, up_to: Sequence) {
        self.bytes.push(DELIVERED);
        varint::put(&mut self.bytes, queue.0);
        varint::put(&mut self.bytes, up_to.0);
    }

    /// Closes the entry whose messages are in `payload`.
    pub(crate) fn finish(self, payload: &mut Vec<u8>) {
        payload.extend_from_slice(&self.bytes);
        let length = u32::try_from(self.bytes.len()).expect("ops of an entry are less than 4 GiB");
        payload.extend_from_slice(&length.to_le_bytes());
    }
}

/// The ops of a batch that are enqueues, as an entry's.
pub(crate) fn ops_of(batch: &[Op], now_ms: u64) -> Ops {
    let mut ops = Ops::new(now_ms);
    for op in batch {
        if let Op::Enqueue(enqueue) = op {
            ops.enqueue(enqueue.targets.as_slice(), &enqueue.message, enqueue.ttl_ms != Stamp::NO_TTL);
        }
    }
    ops
}

/// A message of an entry that lies there, as a chunk for its queues. `timed`: it may have a time to live of its own.
pub(crate) fn chunk_of(location: Location, message: &MessageRef, enqueued_at_ms: u64, timed: bool) -> Chunk {
    Chunk {
        kind: ChunkKind::Entry,
        count: 1,
        bytes: message.len,
        file: location.file.to_raw(),
        offset: location.offset,
        length: location.length,
        body_bytes: message.body_len(),
        enqueued_at_ms,
        timed,
        ..Chunk::default()
    }
}

/// When an entry was made that this node made itself.
pub(crate) fn time_of(payload: &Bytes) -> u64 {
    let time = || {
        let (rest, length) = payload.split_last_chunk::<LENGTH_BYTES>()?;
        let start = rest.len().checked_sub(u32::from_le_bytes(*length) as usize)?;
        varint::take(&mut rest.get(start + 1..)?)
    };
    time().expect("entries of this version begin with their time")
}

/// Takes an entry apart. `None`: it is not one, or of a newer format. Never trusts a length.
pub(crate) fn decode(payload: &Bytes) -> Option<Decoded> {
    let end = payload.len().checked_sub(LENGTH_BYTES)?;
    let length = u32::from_le_bytes(payload[end..].try_into().ok()?) as usize;
    let start = end.checked_sub(length)?;
    let mut input = &payload[start..end];
    let (&format, rest) = input.split_first()?;
    if !(OLDEST_FORMAT..=FORMAT).contains(&format) {
        return None;
    }
    input = rest;
    let now_ms = if format == OLDEST_FORMAT { 0 } else { varint::take(&mut input)? };
    let mut ops = Vec::new();
    while let Some((&kind, rest)) = input.split_first() {
        input = rest;
        ops.push(decode_op(kind, &mut input, start)?);
    }
    Some(Decoded { now_ms, ops })
}

fn decode_op(kind: u8, input: &mut &[u8], messages_bytes: usize) -> Option<Logged> {
    match kind {
        ENQUEUE | ENQUEUE_TIMED => {
            let count: usize = varint::take_as(input)?;
            // Each takes a byte at least: a count beyond that is a lie.
            if count == 0 || count > input.len() {
                return None;
            }
            let targets = (0..count).map(|_| varint::take(input).map(QueueId)).collect::<Option<Vec<_>>>()?;
            let message = MessageRef {
                buffer: 0,
                start: varint::take_as(input)?,
                len: varint::take_as(input)?,
                envelope_bytes: varint::take_as(input)?,
                properties_bytes: varint::take_as(input)?,
            };
            let end = message.start.checked_add(message.len)?;
            let timed = kind == ENQUEUE_TIMED;
            (end as usize <= messages_bytes).then_some(Logged::Enqueue { targets, message, timed })
        }
        REMOVE | FAILED => {
            let queue = QueueId(varint::take(input)?);
            let count: usize = varint::take_as(input)?;
            if count > input.len() {
                return None;
            }
            let mut sequences = Intervals::default();
            for _ in 0..count {
                let first = varint::take(input)?;
                let last = first.checked_add(varint::take(input)?)?;
                if last == u64::MAX {
                    return None;
                }
                sequences.push_run(first, last);
            }
            Some(if kind == FAILED { Logged::Failed { queue, sequences } } else { Logged::Remove { queue, sequences } })
        }
        DELIVERED => {
            let queue = QueueId(varint::take(input)?);
            Some(Logged::Delivered { queue, up_to: Sequence(varint::take(input)?) })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(start: u32, len: u32) -> MessageRef {
        MessageRef { buffer: 0, start, len, envelope_bytes: 3, properties_bytes: 2 }
    }

    #[test]
    fn an_entry_comes_back() {
        let mut payload = b"..first....second...".to_vec();
        let mut ops = Ops::new(1_700_000_000_123);
        let sequences: Intervals = [1, 2, 3, 9].map(Sequence).into_iter().collect();
        ops.enqueue(&[QueueId(7), QueueId(1 << 40)], &message(0, 10), false);
        ops.enqueue(&[QueueId(7)], &message(10, 10), true);
        ops.remove(QueueId(7), &sequences);
        ops.delivered(QueueId(7), Sequence(12));
        ops.failed(QueueId(7), &sequences);
        ops.finish(&mut payload);
        let payload = Bytes::from(payload);
        assert_eq!(time_of(&payload), 1_700_000_000_123);
        let decoded = decode(&payload).expect("it is an entry");
        assert_eq!(decoded.now_ms, 1_700_000_000_123);
        assert_eq!(
            decoded.ops,
            [
                Logged::Enqueue { targets: vec![QueueId(7), QueueId(1 << 40)], message: message(0, 10), timed: false },
                Logged::Enqueue { targets: vec![QueueId(7)], message: message(10, 10), timed: true },
                Logged::Remove { queue: QueueId(7), sequences: sequences.clone() },
                Logged::Delivered { queue: QueueId(7), up_to: Sequence(12) },
                Logged::Failed { queue: QueueId(7), sequences },
            ]
        );
    }

    #[test]
    fn an_entry_of_the_first_version_is_read() {
        let mut payload = b"0123456789".to_vec();
        let ops = [1, ENQUEUE, 1, 7, 0, 10, 3, 2];
        payload.extend_from_slice(&ops);
        payload.extend_from_slice(&(ops.len() as u32).to_le_bytes());
        let enqueue = Logged::Enqueue { targets: vec![QueueId(7)], message: message(0, 10), timed: false };
        assert_eq!(decode(&Bytes::from(payload)), Some(Decoded { now_ms: 0, ops: vec![enqueue] }));
    }

    #[test]
    fn a_message_outside_its_entry_is_refused() {
        let mut payload = b"0123456789".to_vec();
        let mut ops = Ops::new(0);
        ops.enqueue(&[QueueId(7)], &message(5, 6), false);
        ops.finish(&mut payload);
        assert_eq!(decode(&Bytes::from(payload)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&Bytes::from(bytes));
        }

        #[test]
        fn any_ops_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let mut payload = vec![0; 20];
            let ops = Ops { bytes: [vec![FORMAT], bytes].concat(), start: 1 };
            ops.finish(&mut payload);
            let _ = decode(&Bytes::from(payload));
        }
    }
}
