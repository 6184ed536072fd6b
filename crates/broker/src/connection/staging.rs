//! Where a connection gathers what it will hand to the shards at the end of its turn.
//!
//! The messages of a turn are copied out of the read buffer once, one after the other into one buffer that all batches of the turn
//! share. A message that does not arrive whole within the turn is moved out and grows in a buffer of its own.

use std::sync::Arc;

use bytes::Bytes;
use queue::{Batch, ConsumerId, Enqueue, Intervals, MessageRef, Op, Outcome, QueueId, Sequence, Targets};

use super::pool;
use crate::broker::Broker;
use crate::budget::MessageMemory;
use crate::durable::entry;
use crate::shard::ShardInput;
use crate::{clock, stamps};

/// A turn's buffer with less than this in it is not handed over but copied.
const HAND_OVER_BYTES: usize = 32 * 1024;
/// A message this large gets a buffer of its own when it is complete.
pub(crate) const OWN_BUFFER_BYTES: usize = 16 * 1024;
/// What an op counts for in the bytes in flight, beside its message.
const OP_BYTES: usize = 96;

/// A message being put together: envelope, properties and as much of the body as is there.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) bytes: Vec<u8>,
    pub(crate) envelope_bytes: u16,
    pub(crate) properties_bytes: u32,
}

/// The message at the end of the turn's buffer that is being put together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OpenRecord {
    pub(crate) channel: u16,
    pub(crate) start: usize,
    pub(crate) envelope_bytes: u16,
    pub(crate) properties_bytes: u32,
}

#[derive(Debug, Default)]
struct Stage {
    ops: Vec<Op>,
    /// Buffers beside the turn's own, which is number 0.
    own: Vec<Bytes>,
    own_bytes: usize,
    registered: bool,
}

/// What is gathered.
#[derive(Debug)]
pub(crate) struct Staging {
    data: Vec<u8>,
    open: Option<OpenRecord>,
    stages: Vec<Stage>,
    next_number: u64,
    connection: u64,
}

/// A batch that was handed over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) shard: u32,
    pub(crate) number: u64,
    pub(crate) bytes: usize,
}

impl Staging {
    pub(crate) fn new(connection: u64, shards: u32) -> Self {
        let stages = (0..shards).map(|_| Stage::default()).collect();
        Self { data: Vec::new(), open: None, stages, next_number: 1, connection }
    }

    /// The turn's buffer, to append messages to.
    pub(crate) fn data(&mut self) -> &mut Vec<u8> {
        if self.data.capacity() == 0 {
            self.data = pool::take_stage();
        }
        &mut self.data
    }

    /// The turn's buffer, to look at.
    pub(crate) fn turn_data(&self) -> &[u8] {
        &self.data
    }

    /// Begins a message at the end of the turn's buffer. The one before it is complete or was spilled.
    pub(crate) fn begin(&mut self, channel: u16, envelope: &[u8]) {
        debug_assert!(self.open.is_none(), "one message at a time grows at the end of the buffer");
        let data = self.data();
        let start = data.len();
        data.extend_from_slice(envelope);
        let envelope_bytes = u16::try_from(envelope.len()).expect("two short strings are at most 512 bytes");
        self.open = Some(OpenRecord { channel, start, envelope_bytes, properties_bytes: 0 });
    }

    /// The message at the end of the buffer, if it is this channel's.
    pub(crate) fn open_record(&mut self, channel: u16) -> Option<&mut OpenRecord> {
        self.open.as_mut().filter(|open| open.channel == channel)
    }

    /// The same, no longer open.
    pub(crate) fn take_open(&mut self, channel: u16) -> Option<OpenRecord> {
        self.open.take_if(|open| open.channel == channel)
    }

    /// Takes the message that is not complete out of the buffer.
    pub(crate) fn spill(&mut self) -> Option<(OpenRecord, Vec<u8>)> {
        let open = self.open.take()?;
        Some((open, self.data.split_off(open.start)))
    }

    /// Forgets the message that is not complete, if it is this channel's.
    pub(crate) fn discard(&mut self, channel: u16) {
        if let Some(open) = self.take_open(channel) {
            self.data.truncate(open.start);
        }
    }

    /// Stages a message that lies at the end of the turn's buffer. `publish` names it if a queue refuses it; 0: nobody wants to know.
    pub(crate) fn enqueue(
        &mut self,
        shard: u32,
        targets: Targets,
        start: usize,
        envelope_bytes: u16,
        properties_bytes: u32,
        publish: u64,
    ) {
        let properties = start + usize::from(envelope_bytes);
        let (ttl_ms, priority) =
            stamps::ttl_and_priority(&self.data[properties..properties + properties_bytes as usize]);
        let message = MessageRef {
            buffer: 0,
            start: u32::try_from(start).expect("a turn gathers less than 4 GiB"),
            len: u32::try_from(self.data.len() - start).expect("a turn gathers less than 4 GiB"),
            envelope_bytes,
            properties_bytes,
        };
        let enqueue = Enqueue { targets, message, ttl_ms, priority, publish };
        self.stages[shard as usize].ops.push(Op::Enqueue(enqueue));
    }

    /// Stages a message that lies in a buffer of its own.
    pub(crate) fn enqueue_own(
        &mut self,
        shard: u32,
        targets: Targets,
        buffer: Bytes,
        envelope_bytes: u16,
        properties_bytes: u32,
        publish: u64,
    ) {
        let properties = usize::from(envelope_bytes);
        let (ttl_ms, priority) = stamps::ttl_and_priority(&buffer[properties..properties + properties_bytes as usize]);
        let stage = &mut self.stages[shard as usize];
        let message = MessageRef {
            buffer: u32::try_from(stage.own.len() + 1).expect("fewer buffers than messages in a turn"),
            start: 0,
            len: u32::try_from(buffer.len()).expect("messages are limited to less than 4 GiB"),
            envelope_bytes,
            properties_bytes,
        };
        stage.own_bytes += buffer.len();
        stage.own.push(buffer);
        stage.ops.push(Op::Enqueue(Enqueue { targets, message, ttl_ms, priority, publish }));
    }

    /// Stages the settling of one delivery. A run of them for the same consumer is one op.
    pub(crate) fn settle(
        &mut self,
        shard: u32,
        queue: QueueId,
        consumer: ConsumerId,
        outcome: Outcome,
        sequence: Sequence,
    ) {
        let ops = &mut self.stages[shard as usize].ops;
        if let Some(Op::Settle { queue: q, consumer: c, outcome: o, sequences }) = ops.last_mut()
            && (*q, *c, *o) == (queue, consumer, outcome)
        {
            sequences.push(sequence);
            return;
        }
        ops.push(Op::Settle { queue, consumer, outcome, sequences: Intervals::one(sequence) });
    }

    /// Stages any other op.
    pub(crate) fn op(&mut self, shard: u32, op: Op) {
        self.stages[shard as usize].ops.push(op);
    }

    /// Makes sure that the shard knows the connection; needed before its first batch.
    pub(crate) fn register(&mut self, shard: u32, broker: &Broker, handle: &Arc<super::ConnectionHandle>) {
        let stage = &mut self.stages[shard as usize];
        if !stage.registered {
            stage.registered = true;
            broker.shard(shard).send(ShardInput::Register(Arc::clone(handle)));
        }
    }

    /// Hands everything over, and tells of each batch that went. `urgent`: somebody waits for what is settled in it.
    pub(crate) fn flush(
        &mut self,
        broker: &Broker,
        handle: &Arc<super::ConnectionHandle>,
        urgent: bool,
        mut sent: impl FnMut(Sent),
    ) {
        // With one shard the turn's buffer can go as it is; else the local shards share it, and a durable shard gets a copy of its
        // part, because its batch is what goes to the log.
        let busy = |stage: &&Stage| !stage.ops.is_empty();
        let sole = self.stages.iter().filter(busy).count() == 1;
        let durable = self.stages.iter().skip(broker.local_shard_count() as usize).any(|stage| busy(&stage));
        let mut shared: Option<Bytes> = None;
        for shard in 0..self.stages.len() {
            if self.stages[shard].ops.is_empty() {
                continue;
            }
            let index = u32::try_from(shard).expect("a handful of shards");
            self.register(index, broker, handle);
            let stage = &mut self.stages[shard];
            let ops = std::mem::take(&mut stage.ops);
            let own = std::mem::take(&mut stage.own);
            let own_bytes = std::mem::take(&mut stage.own_bytes);
            let mut send = |number: &mut u64, ops: Vec<Op>, buffers: Vec<Bytes>, bytes: usize| {
                let bytes = bytes + ops.len() * OP_BYTES;
                let batch = Batch { connection: self.connection, number: *number, urgent, ops, buffers };
                sent(Sent { shard: index, number: *number, bytes });
                *number += 1;
                broker.shard(index).send(ShardInput::Batch(batch));
            };
            if broker.is_durable(index) {
                let turn = if sole && own.is_empty() { Turn::Whole(&mut self.data) } else { Turn::Part(&self.data) };
                for entry in durable_entries(ops, turn, &own) {
                    let bytes = entry.payload.len();
                    let buffers =
                        if entry.payload.is_empty() { Vec::new() } else { vec![hold(entry.payload, broker.memory())] };
                    send(&mut self.next_number, entry.ops, buffers, bytes);
                }
                continue;
            }
            let data = shared.get_or_insert_with(|| freeze(&mut self.data, durable, broker.memory())).clone();
            let bytes = data.len() + own_bytes;
            let buffers = std::iter::once(data).chain(own).collect();
            send(&mut self.next_number, ops, buffers, bytes);
        }
        if self.data.capacity() > 0 {
            pool::put_stage(std::mem::take(&mut self.data));
        }
    }

    /// The connection ends: no shard needs to know it any more. Comes after the last flush.
    pub(crate) fn unregister(&mut self, broker: &Broker) {
        for (shard, stage) in self.stages.iter_mut().enumerate() {
            if std::mem::take(&mut stage.registered) {
                let shard = u32::try_from(shard).expect("a handful of shards");
                broker.shard(shard).send(ShardInput::Unregister(self.connection));
            }
        }
    }
}

/// Makes the turn's buffer shareable: as it is, or (`keep`, or it is mostly empty) as a copy of its exact size, so that a few small
/// messages do not pin a large buffer.
fn freeze(data: &mut Vec<u8>, keep: bool, memory: &Arc<MessageMemory>) -> Bytes {
    if data.is_empty() {
        Bytes::new()
    } else if keep || data.len() < HAND_OVER_BYTES {
        memory.hold(data.to_vec())
    } else {
        memory.hold(std::mem::take(data))
    }
}

/// Makes a buffer shareable, in a buffer of its size if it wastes much.
fn hold(mut buffer: Vec<u8>, memory: &Arc<MessageMemory>) -> Bytes {
    if buffer.len() * 2 < buffer.capacity() {
        buffer.shrink_to_fit();
    }
    memory.hold(buffer)
}

/// The turn's buffer, for a durable shard.
enum Turn<'a> {
    /// All of it is for this shard: it can be taken.
    Whole(&'a mut Vec<u8>),
    /// It is shared with others.
    Part(&'a [u8]),
}

/// A batch for a durable shard: its payload is what goes to the log.
struct DurableEntry {
    ops: Vec<Op>,
    payload: Vec<u8>,
}

/// Cuts ops into batches whose messages make log entries of a bounded size.
fn durable_entries(ops: Vec<Op>, turn: Turn<'_>, own: &[Bytes]) -> Vec<DurableEntry> {
    let messages = ops.iter().any(|op| matches!(op, Op::Enqueue(_)));
    let data = match turn {
        Turn::Whole(data) if messages => {
            // The messages lie already as they are to be logged.
            let mut payload = std::mem::take(data);
            entry::ops_of(&ops, clock::now_ms()).finish(&mut payload);
            return vec![DurableEntry { ops, payload }];
        }
        Turn::Whole(data) => &*data,
        Turn::Part(data) => data,
    };
    let mut entries = Vec::new();
    let mut current = DurableEntry { ops: Vec::new(), payload: Vec::new() };
    let close = |entry: &mut DurableEntry, entries: &mut Vec<DurableEntry>| {
        if entry.ops.is_empty() {
            return;
        }
        let mut entry = std::mem::replace(entry, DurableEntry { ops: Vec::new(), payload: Vec::new() });
        let logged = entry::ops_of(&entry.ops, clock::now_ms());
        if !logged.is_empty() {
            logged.finish(&mut entry.payload);
        }
        entries.push(entry);
    };
    for mut op in ops {
        if let Op::Enqueue(enqueue) = &mut op {
            let message = &mut enqueue.message;
            let range = message.start as usize..(message.start + message.len) as usize;
            let bytes = match message.buffer.checked_sub(1) {
                None => &data[range],
                Some(buffer) => &own[buffer as usize][range],
            };
            if !current.payload.is_empty() && current.payload.len() + bytes.len() > entry::ENTRY_BYTES {
                close(&mut current, &mut entries);
            }
            message.buffer = 0;
            message.start = u32::try_from(current.payload.len()).expect("entries are smaller than 4 GiB");
            current.payload.extend_from_slice(bytes);
        }
        current.ops.push(op);
    }
    close(&mut current, &mut entries);
    entries
}
