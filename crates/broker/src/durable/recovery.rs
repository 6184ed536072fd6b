//! A durable shard at a start: its snapshot, then what the log has after it.

use queue::{Chunk, ChunkKind, Machine, QueueId, Settings, Shard};
use rustc_hash::FxHashMap;
use storage::{Index, Log, StorageError};

use super::entry::{self, Logged};
use super::snapshot;
use crate::store::{Store, shard_group};

/// How much of the log is read at once.
const READ_BYTES: u64 = 8 * 1024 * 1024;

/// A shard as it was when the node stopped.
pub(crate) struct Recovered {
    pub(crate) shard: Shard,
    /// The last entry of the log; all are applied.
    pub(crate) last: u64,
    /// Bytes of the log since the snapshot.
    pub(crate) bytes_since_snapshot: u64,
}

/// Recovers a shard. `queues` are those that exist; what the log has for others is passed over.
///
/// # Errors
/// A log that cannot be read, or a snapshot that is damaged while the log no longer has what led to it.
pub(crate) fn recover(
    store: &Store,
    durable_shard: u32,
    queues: Vec<(QueueId, Settings)>,
) -> Result<Recovered, StorageError> {
    let log = store.log();
    let group = shard_group(durable_shard);
    let status = log.status(group);
    let compacted = status.as_ref().map_or(0, |status| status.compacted.0.0);
    let last = status.as_ref().map_or(0, |status| status.last.0);
    let (applied, mut shard) = restore(store, durable_shard, queues, compacted)?;
    let mut bytes = 0;
    let mut next = applied.max(compacted) + 1;
    while next <= last {
        let entries = log.entries(group, Index(next), READ_BYTES)?;
        if entries.is_empty() {
            break;
        }
        for stored in entries {
            next = stored.index.0 + 1;
            bytes += u64::from(stored.location.length);
            apply(&mut shard, &stored)?;
        }
    }
    retain(log, &shard);
    Ok(Recovered { shard, last, bytes_since_snapshot: bytes })
}

fn restore(
    store: &Store,
    durable_shard: u32,
    queues: Vec<(QueueId, Settings)>,
    compacted: u64,
) -> Result<(u64, Shard), StorageError> {
    let path = snapshot::path(store.dir(), durable_shard);
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => Some(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => {
            return Err(StorageError::Io { action: "read", path, source: std::sync::Arc::new(error) });
        }
    };
    let decoded = bytes.as_deref().map(|bytes| snapshot::decode(bytes).ok_or(bytes.len()));
    let (applied, saved) = match decoded {
        Some(Ok((applied, saved))) if applied >= compacted => (applied, saved),
        None if compacted == 0 => (0, Vec::new()),
        // The log starts later than what is here: the state in between is lost.
        _ => {
            let what = format!("the state of durable shard {durable_shard} up to entry {compacted}");
            return Err(StorageError::damaged(path, 0, what));
        }
    };
    let mut settings: FxHashMap<QueueId, Settings> = queues.into_iter().collect();
    let mut shard = Shard::new();
    for queue in saved {
        if let Some(settings) = settings.remove(&queue.id) {
            shard.restore(queue.id, queue.into_machine(settings));
        }
    }
    for (id, settings) in settings {
        shard.restore(id, Machine::new(id, settings));
    }
    Ok((applied, shard))
}

fn apply(shard: &mut Shard, stored: &storage::StoredEntry) -> Result<(), StorageError> {
    let Some(ops) = entry::decode(&stored.payload) else {
        let what = format!("entry {} of a durable shard is of a format that this version does not know", stored.index);
        return Err(StorageError::damaged("log", u64::from(stored.location.offset), what));
    };
    for op in ops {
        match op {
            Logged::Enqueue { targets, message } => {
                let chunk = Chunk {
                    kind: ChunkKind::Entry,
                    first: 0,
                    skip: 0,
                    count: 1,
                    bytes: message.len,
                    file: stored.location.file.to_raw(),
                    offset: stored.location.offset,
                    length: stored.location.length,
                };
                for queue in targets {
                    if let Some(machine) = shard.queue_mut(queue) {
                        let skip = machine.count_in_entry(chunk.file, chunk.offset);
                        machine.enqueue_cold(chunk, skip);
                    }
                }
            }
            Logged::Remove { queue, sequences } => {
                if let Some(machine) = shard.queue_mut(queue) {
                    // What was never retained need not be released.
                    machine.remove(&sequences, &mut Vec::new());
                }
            }
            Logged::Delivered { queue, up_to } => {
                if let Some(machine) = shard.queue_mut(queue) {
                    machine.set_delivered_up_to(up_to);
                }
            }
        }
    }
    Ok(())
}

/// Tells the log which of its bytes are needed.
fn retain(log: &Log, shard: &Shard) {
    let mut files: FxHashMap<u64, u64> = FxHashMap::default();
    for (_, machine) in shard.queues() {
        for chunk in machine.cold_chunks() {
            *files.entry(chunk.file).or_default() += u64::from(chunk.bytes);
        }
    }
    for (file, bytes) in files {
        if let storage::FileKind::Log(file) = storage::FileId::from_raw(file).kind() {
            log.retain(file, bytes);
        }
    }
}
