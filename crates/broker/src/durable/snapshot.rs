//! The state of a durable shard as one file, so that the log can forget the entries that led to it.
//!
//! ```text
//! ┌───────────────────┬────────────┬──────────────┬─────────────────┬──────────────┐
//! │ magic "WMQSHARD"  │ u32 format │ u64 applied  │ queues          │ u32 CRC32C   │
//! └───────────────────┴────────────┴──────────────┴─────────────────┴──────────────┘
//! queue = id, next sequence, handed out up to, chunks, removed runs, failures   (varints; lists with their count in front)
//! chunk = kind (0 entry, 1 message, 2 run; 4 more if timed), first (less the end of the one before), skip, count, bytes, file, offset,
//!         length, for a message its envelope and properties lengths, for a run its records; bytes of bodies, time of the entry
//! failure = sequence, how often it came back
//! ```
//! A message in memory is written as a chunk of its own. Version 1 had no runs, version 2 no failures, and nothing of chunks behind
//! the records. The file is written aside, synced and renamed, so it is whole or not there.

use std::io;
use std::path::{Path, PathBuf};

use queue::{Chunk, ChunkKind, Machine, QueueId, Sequence, Settings, Shard};
use storage::{FileSystem, StorageError};

use super::moving::chunk_of;
use super::varint;

const MAGIC: &[u8; 8] = b"WMQSHARD";
const FORMAT: u32 = 3;
const OLDEST_FORMAT: u32 = 1;

const ENTRY: u8 = 0;
const MESSAGE: u8 = 1;
const RUN: u8 = 2;
/// Added to the kind of a chunk in which a message may have a time to live of its own.
const TIMED: u8 = 4;
/// Since this version chunks say how large their bodies are and when they came, and queues how often messages came back.
const FORMAT_WITH_TIMES: u32 = 3;
const HEADER_BYTES: usize = MAGIC.len() + 4 + 8;
const CRC_BYTES: usize = 4;

/// A queue as a snapshot has it.
#[derive(Debug)]
pub(crate) struct SavedQueue {
    pub(crate) id: QueueId,
    next: Sequence,
    handed_out_up_to: Sequence,
    chunks: Vec<Chunk>,
    removed: Vec<(u64, u64)>,
    failures: Vec<(u64, u32)>,
}

impl SavedQueue {
    pub(crate) fn into_machine(self, settings: Settings) -> Machine {
        let mut machine =
            Machine::restore(self.id, settings, self.next, self.handed_out_up_to, self.chunks, &self.removed);
        self.failures.into_iter().for_each(|(sequence, count)| machine.set_failures(Sequence(sequence), count));
        machine
    }
}

/// Where the snapshot of a shard lies.
pub(crate) fn path(dir: &Path, durable_shard: u32) -> PathBuf {
    dir.join(format!("shard-{durable_shard}.snapshot"))
}

/// The state of a shard after the entry `applied`.
pub(crate) fn encode(shard: &Shard, applied: u64) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&FORMAT.to_le_bytes());
    out.extend_from_slice(&applied.to_le_bytes());
    for (id, machine) in shard.queues() {
        encode_queue(&mut out, id, machine);
    }
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out
}

fn encode_queue(out: &mut Vec<u8>, id: QueueId, machine: &Machine) {
    for number in [id.0, machine.next_sequence().0, machine.handed_out_up_to().0] {
        varint::put(out, number);
    }
    let in_memory = machine
        .messages()
        .filter_map(|(sequence, message, place, stamp)| Some(chunk_of(sequence, message, place?, stamp)));
    let mut chunks: Vec<Chunk> = Vec::new();
    for chunk in in_memory.chain(machine.cold_chunks().copied()) {
        let follows = chunks.last().is_some_and(|last| last.end() == chunk.first);
        if !follows || !chunks.last_mut().is_some_and(|last| last.absorb(&chunk)) {
            chunks.push(chunk);
        }
    }
    varint::put(out, chunks.len() as u64);
    let mut end = 0;
    for chunk in &chunks {
        encode_chunk(out, chunk, end);
        end = chunk.first + u64::from(chunk.count);
    }
    let removed: Vec<(u64, u64)> = machine.cold_removed().collect();
    varint::put(out, removed.len() as u64);
    for (first, last) in removed {
        varint::put(out, first);
        varint::put(out, last - first);
    }
    let failures: Vec<(Sequence, u32)> = machine.failures().collect();
    varint::put(out, failures.len() as u64);
    for (sequence, count) in failures {
        varint::put(out, sequence.0);
        varint::put(out, u64::from(count));
    }
}

fn encode_chunk(out: &mut Vec<u8>, chunk: &Chunk, end: u64) {
    let kind = match chunk.kind {
        ChunkKind::Entry => ENTRY,
        ChunkKind::Message { .. } => MESSAGE,
        ChunkKind::Run { .. } => RUN,
    };
    out.push(if chunk.timed { kind | TIMED } else { kind });
    varint::put(out, chunk.first - end);
    for number in [chunk.skip, chunk.count, chunk.bytes] {
        varint::put(out, u64::from(number));
    }
    varint::put(out, chunk.file);
    varint::put(out, u64::from(chunk.offset));
    varint::put(out, u64::from(chunk.length));
    match chunk.kind {
        ChunkKind::Entry => {}
        ChunkKind::Message { envelope_bytes, properties_bytes } => {
            varint::put(out, u64::from(envelope_bytes));
            varint::put(out, u64::from(properties_bytes));
        }
        ChunkKind::Run { records } => varint::put(out, u64::from(records)),
    }
    varint::put(out, u64::from(chunk.body_bytes));
    varint::put(out, chunk.enqueued_at_ms);
}

/// Takes a snapshot apart: the entry it was made after, and the queues. `None`: it is damaged.
pub(crate) fn decode(bytes: &[u8]) -> Option<(u64, Vec<SavedQueue>)> {
    let body_end = bytes.len().checked_sub(CRC_BYTES)?;
    let crc = u32::from_le_bytes(bytes[body_end..].try_into().ok()?);
    let body = bytes.get(..body_end)?;
    if body.len() < HEADER_BYTES || !body.starts_with(MAGIC) || crc32c::crc32c(body) != crc {
        return None;
    }
    let format = u32::from_le_bytes(body[8..12].try_into().ok()?);
    if !(OLDEST_FORMAT..=FORMAT).contains(&format) {
        return None;
    }
    let applied = u64::from_le_bytes(body[12..20].try_into().ok()?);
    let mut input = &body[HEADER_BYTES..];
    let mut queues = Vec::new();
    while !input.is_empty() {
        queues.push(decode_queue(&mut input, format)?);
    }
    Some((applied, queues))
}

fn decode_queue(input: &mut &[u8], format: u32) -> Option<SavedQueue> {
    let id = QueueId(varint::take(input)?);
    let next = Sequence(varint::take(input)?);
    let handed_out_up_to = Sequence(varint::take(input)?);
    let count: usize = varint::take_as(input)?;
    if count > input.len() {
        return None;
    }
    let mut chunks = Vec::with_capacity(count);
    let mut end = 0;
    for _ in 0..count {
        let chunk = decode_chunk(input, end, format)?;
        end = chunk.first.checked_add(u64::from(chunk.count))?;
        chunks.push(chunk);
    }
    let runs: usize = varint::take_as(input)?;
    if runs > input.len() {
        return None;
    }
    let mut removed = Vec::with_capacity(runs);
    for _ in 0..runs {
        let first = varint::take(input)?;
        removed.push((first, first.checked_add(varint::take(input)?).filter(|&last| last < u64::MAX)?));
    }
    let mut failures = Vec::new();
    if format >= FORMAT_WITH_TIMES {
        let count: usize = varint::take_as(input)?;
        if count > input.len() {
            return None;
        }
        for _ in 0..count {
            failures.push((varint::take(input)?, varint::take_as(input)?));
        }
    }
    Some(SavedQueue { id, next, handed_out_up_to, chunks, removed, failures })
}

fn decode_chunk(input: &mut &[u8], end: u64, format: u32) -> Option<Chunk> {
    let (&kind, rest) = input.split_first()?;
    *input = rest;
    let mut chunk = Chunk {
        kind: ChunkKind::Entry,
        first: end.checked_add(varint::take(input)?)?,
        skip: varint::take_as(input)?,
        count: varint::take_as::<u32>(input).filter(|&count| count > 0)?,
        bytes: varint::take_as(input)?,
        file: varint::take(input)?,
        offset: varint::take_as(input)?,
        length: varint::take_as(input)?,
        ..Chunk::default()
    };
    chunk.timed = format >= FORMAT_WITH_TIMES && kind & TIMED != 0;
    match if chunk.timed { kind & !TIMED } else { kind } {
        ENTRY => {}
        MESSAGE => {
            let envelope_bytes = varint::take_as(input)?;
            let properties_bytes = varint::take_as(input)?;
            chunk.kind = ChunkKind::Message { envelope_bytes, properties_bytes };
        }
        RUN => {
            let records = varint::take_as(input).filter(|&records| records <= chunk.count)?;
            chunk.kind = ChunkKind::Run { records };
        }
        _ => return None,
    }
    if format >= FORMAT_WITH_TIMES {
        chunk.body_bytes = varint::take_as(input)?;
        chunk.enqueued_at_ms = varint::take(input)?;
    } else {
        (chunk.body_bytes, chunk.timed) = (chunk.bytes, true);
    }
    Some(chunk)
}

/// Stores a snapshot: durably, and in the place of the one before.
pub(crate) fn store(fs: &dyn FileSystem, dir: &Path, durable_shard: u32, bytes: &[u8]) -> Result<(), StorageError> {
    let target = path(dir, durable_shard);
    let aside = target.with_extension("new");
    let fail = |action: &'static str, path: &Path| {
        let path = path.to_path_buf();
        move |error: io::Error| StorageError::Io { action, path, source: std::sync::Arc::new(error) }
    };
    match fs.remove(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail("remove", &aside)(error)),
        _ => {}
    }
    let file = fs.create(&aside).map_err(fail("create", &aside))?;
    file.write_at(&[io::IoSlice::new(bytes)], 0).map_err(fail("write", &aside))?;
    file.sync().map_err(fail("sync", &aside))?;
    fs.rename(&aside, &target).map_err(fail("rename", &aside))?;
    fs.sync_dir(dir).map_err(fail("sync", dir))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: u64 = 1 << 63 | 4;

    fn machine() -> Machine {
        let mut machine = Machine::new(QueueId(5), Settings { durable: true, ..Settings::default() });
        let message = queue::Message::from_parts(b"\0\0", b"\0\0", b"hello");
        let stamp = queue::Stamp { enqueued_at_ms: 99, ttl_ms: 5, priority: 0 };
        machine.enqueue(message, stamp, Some(queue::Place { file: 3, offset: 700 }));
        let chunk = Chunk { count: 4, bytes: 40, body_bytes: 24, file: 3, offset: 900, length: 80, ..Chunk::default() };
        let chunk = Chunk { enqueued_at_ms: 1234, timed: true, ..chunk };
        machine.enqueue_cold(chunk, 2);
        let run = Chunk { kind: ChunkKind::Run { records: 2 }, count: 3, file: SEGMENT, offset: 0, length: 0, ..chunk };
        machine.enqueue_cold(run, 0);
        machine.remove(&[Sequence(6)].into_iter().collect(), &mut Vec::new());
        machine.note_failures(&[Sequence(2), Sequence(3)].into_iter().collect());
        machine.note_failures(&[Sequence(3)].into_iter().collect());
        machine
    }

    #[test]
    fn a_snapshot_comes_back() {
        let mut shard = Shard::new();
        shard.restore(QueueId(5), machine());
        let bytes = encode(&shard, 77);
        let (applied, queues) = decode(&bytes).expect("it is whole");
        assert_eq!((applied, queues.len()), (77, 1));
        let settings = Settings { durable: true, ..Settings::default() };
        let restored = queues.into_iter().next().expect("one queue").into_machine(settings);
        assert_eq!(restored.next_sequence(), Sequence(8));
        assert_eq!(restored.counts().ready, 7);
        let chunks: Vec<_> = restored.cold_chunks().map(|c| (c.first, c.skip, c.count, c.records(), c.file)).collect();
        assert_eq!(chunks, [(0, 0, 1, 1, 3), (1, 2, 4, 4, 3), (5, 0, 3, 2, SEGMENT)]);
        let times: Vec<_> = restored.cold_chunks().map(|c| (c.enqueued_at_ms, c.timed, c.body_bytes)).collect();
        assert_eq!(times, [(99, true, 5), (1234, true, 24), (1234, true, 24)]);
        assert_eq!(restored.failures().collect::<Vec<_>>(), [(Sequence(2), 1), (Sequence(3), 2)]);
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        let mut shard = Shard::new();
        shard.restore(QueueId(5), machine());
        let good = encode(&shard, 77);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            assert!(decode(&bad).is_none(), "byte {at}");
            assert!(decode(&good[..at]).is_none(), "cut at {at}");
        }
    }
}
