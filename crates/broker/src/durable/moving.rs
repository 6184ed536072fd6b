//! Moving messages of a shard out of files that are to go: survivors of the oldest log files into segments, and those of mostly dead
//! segments into new ones.
//!
//! The shard lists what it has in these files ([`list`]); a thread copies it ([`copy`]) while the shard works on;
//! then the shard moves its queues to the new places, as far as they still have the messages ([`move_queues`]).

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use queue::{Chunk, ChunkKind, Machine, QueueId, Release, Shard};
use rustc_hash::FxHashMap;
use storage::{Alive, FileId, FileKind, FileNumber, Interval, QueueKey, Run, SegmentNumber, StorageError, Survivor};

use super::reader::{self, Reader};

/// Files that are to go.
#[derive(Clone, Debug)]
pub(crate) enum Files {
    /// Of the log.
    Log(RangeInclusive<FileNumber>),
    /// Segments of the shard.
    Segments(Vec<SegmentNumber>),
}

impl Files {
    /// Whether a file, as chunks name it, is one of them.
    pub(super) fn contains(&self, file: u64) -> bool {
        match (self, FileId::from_raw(file).kind()) {
            (Self::Log(files), FileKind::Log(file)) => files.contains(&file),
            (Self::Segments(segments), FileKind::Segment(segment)) => segments.contains(&segment),
            _ => false,
        }
    }
}

/// Alive as long as somebody moves messages: whoever started it knows when all are done.
pub(crate) type Guard = Arc<()>;

/// What a queue has in the files that are to go.
#[derive(Debug)]
pub(super) struct Listed {
    queue: QueueId,
    /// In order.
    parts: Vec<Part>,
}

/// A chunk, or a message in memory.
#[derive(Debug)]
struct Part {
    chunk: Chunk,
    /// What of it is alive, as intervals.
    alive: Vec<(u64, u64)>,
    /// It is a cold chunk, which is replaced as a whole: no run goes over its ends.
    cold: bool,
}

/// Messages were copied.
#[derive(Debug)]
pub(crate) struct Moved {
    /// What they were copied out of.
    files: Files,
    /// Where they lie now, by queue and in order.
    queues: Vec<(QueueId, Vec<Chunk>)>,
}

/// A message in memory as a chunk of its own.
pub(super) fn chunk_of(
    sequence: queue::Sequence,
    message: &queue::Message,
    place: queue::Place,
    stamp: queue::Stamp,
) -> Chunk {
    let bytes = u32::try_from(message.len()).expect("messages are limited to less than 4 GiB");
    let (kind, length) = match FileId::from_raw(place.file).kind() {
        FileKind::Log(_) => {
            let envelope_bytes = u16::try_from(message.envelope().len()).expect("two short strings");
            let properties_bytes = u32::try_from(message.properties().len()).expect("properties fit a frame");
            (ChunkKind::Message { envelope_bytes, properties_bytes }, bytes)
        }
        FileKind::Segment(_) => (ChunkKind::Run { records: 1 }, 0),
    };
    Chunk {
        kind,
        first: sequence.0,
        skip: 0,
        count: 1,
        bytes,
        file: place.file,
        offset: place.offset,
        length,
        body_bytes: u32::try_from(message.body_len()).expect("less than the message"),
        enqueued_at_ms: stamp.enqueued_at_ms,
        timed: stamp.ttl_ms != queue::Stamp::NO_TTL,
    }
}

/// All that a shard has in these files.
pub(super) fn list(shard: &Shard, files: &Files) -> Vec<Listed> {
    let mut listed = Vec::new();
    for (queue, machine) in shard.queues() {
        let in_memory = machine.messages().filter_map(|(sequence, message, place, stamp)| {
            let place = place.filter(|place| files.contains(place.file))?;
            let (chunk, alive) = (chunk_of(sequence, message, place, stamp), vec![(sequence.0, sequence.0)]);
            Some(Part { chunk, alive, cold: false })
        });
        let cold = machine.cold_chunks().filter(|chunk| files.contains(chunk.file));
        let cold = cold.map(|chunk| Part { chunk: *chunk, alive: machine.cold_alive(chunk), cold: true });
        let parts: Vec<_> = in_memory.chain(cold).collect();
        if !parts.is_empty() {
            listed.push(Listed { queue, parts });
        }
    }
    listed
}

/// Copies what was listed into segments. Blocks.
pub(super) fn copy(reader: &Reader, files: Files, listed: Vec<Listed>) -> Result<Moved, StorageError> {
    let mut queues: Vec<(QueueId, Vec<Chunk>)> = listed.iter().map(|listed| (listed.queue, Vec::new())).collect();
    queues.sort_unstable_by_key(|(queue, _)| *queue);
    let runs = match &files {
        Files::Log(_) => reader.segments().copy_out(reader.log(), reader.group(), survivors(reader, listed)?)?,
        Files::Segments(segments) => {
            let mut alive: FxHashMap<QueueKey, Alive> = listed.into_iter().map(alive_of).collect();
            reader
                .segments()
                .rewrite(reader.group(), segments, &mut |queue| alive.remove(&queue).unwrap_or_default())?
        }
    };
    for run in &runs {
        let of_queue = queues.binary_search_by_key(&run.queue.0, |(queue, _)| queue.0);
        if let (Ok(at), Some(chunk)) = (of_queue, chunk_of_run(run)) {
            queues[at].1.push(chunk);
        }
    }
    Ok(Moved { files, queues })
}

fn alive_of(listed: Listed) -> (QueueKey, Alive) {
    let mut alive = Alive::default();
    for part in &listed.parts {
        if let (Some(&(first, _)), true) = (part.alive.first(), part.cold) {
            alive.starts.push(first);
        }
        alive.intervals.extend(part.alive.iter().map(|&(first, last)| Interval { first, last }));
    }
    (QueueKey(listed.queue.0), alive)
}

/// Where each listed message lies in the log. Entries are looked into in the order in which they lie there, so that those that several
/// queues share are read once.
fn survivors(reader: &Reader, listed: Vec<Listed>) -> Result<Vec<Survivor>, StorageError> {
    let flat = listed.into_iter().flat_map(|listed| {
        let queue = listed.queue;
        listed.parts.into_iter().map(move |part| (queue, part))
    });
    let mut parts: Vec<(QueueId, Part)> = flat.collect();
    parts.sort_unstable_by_key(|(_, part)| (part.chunk.file, part.chunk.offset));
    let mut survivors = Vec::new();
    for (queue, Part { chunk, alive, cold }) in parts {
        let entry = reader::location(&chunk);
        let bytes = match chunk.kind {
            ChunkKind::Entry => reader.log().read(entry),
            ChunkKind::Message { .. } | ChunkKind::Run { .. } => Ok(Bytes::new()),
        };
        let messages = match bytes {
            Ok(bytes) => reader::messages_of(queue, &chunk, &bytes),
            Err(error @ StorageError::Damaged(_)) => {
                tracing::error!(?queue, ?chunk, %error, "messages cannot be copied: they are lost");
                None
            }
            Err(error) => return Err(error),
        };
        let Some(messages) = messages else { continue };
        let mut starts_run = cold;
        for sequence in alive.into_iter().flat_map(|(first, last)| first..=last) {
            let index = usize::try_from(sequence - chunk.first).ok();
            let Some(message) = index.and_then(|index| messages.get(index)) else { continue };
            survivors.push(Survivor {
                queue: QueueKey(queue.0),
                sequence,
                location: entry.slice(message.start, message.len),
                head: Some(reader::head(message.envelope_bytes, message.properties_bytes, chunk.enqueued_at_ms)),
                starts_run: std::mem::take(&mut starts_run),
            });
        }
    }
    Ok(survivors)
}

/// A run as a chunk of its queue.
pub(super) fn chunk_of_run(run: &Run) -> Option<Chunk> {
    Some(Chunk {
        kind: ChunkKind::Run { records: u32::try_from(run.count).ok()? },
        first: run.first,
        skip: 0,
        count: u32::try_from(run.last - run.first).ok()?.checked_add(1)?,
        bytes: u32::try_from(run.bytes).ok()?,
        file: FileId::segment(run.segment).to_raw(),
        offset: 0,
        length: 0,
        // Each record says more; what is not known here is taken to be so.
        body_bytes: u32::try_from(run.bytes).ok()?,
        enqueued_at_ms: 0,
        timed: true,
    })
}

/// Moves queues to where their messages lie now. Answers how many are alive in each new segment.
pub(super) fn move_queues(shard: &mut Shard, moved: &Moved, releases: &mut Vec<Release>) -> FxHashMap<u64, u64> {
    let mut alive: FxHashMap<u64, u64> = FxHashMap::default();
    for (queue, runs) in &moved.queues {
        // What dies meanwhile, or goes with its queue, is dead in the new segment from the start.
        runs.iter().for_each(|run| *alive.entry(run.file).or_default() += 0);
        if let Some(machine) = shard.queue_mut(*queue) {
            relocate(*queue, machine, moved, runs, releases, &mut alive);
        }
    }
    alive
}

fn relocate(
    queue: QueueId,
    machine: &mut Machine,
    moved: &Moved,
    runs: &[Chunk],
    releases: &mut Vec<Release>,
    alive: &mut FxHashMap<u64, u64>,
) {
    let lost = machine.relocate(&|file| moved.files.contains(file), runs, releases, alive);
    if lost > 0 {
        tracing::error!(?queue, lost, files = ?moved.files, "messages are lost: they could not be read");
    }
}
