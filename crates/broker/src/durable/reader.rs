//! Reading messages of a queue back from disk.

use bytes::Bytes;
use queue::{Chunk, ChunkKind, MessageRef, Paged, Place, QueueId};
use storage::{FileId, GroupId, HEAD_BYTES, Location, Log, QueueKey, Segments, StorageError};

use super::entry::{self, Logged};
use crate::stamps::stamp_of;

/// A segment can be rewritten while it is looked for, and the new one, too; not many times within one look.
const MAX_REWRITES: u32 = 16;
/// Messages are copied out of what was read when they are less than one part in so many of it, so that few do not keep much.
const SMALL_PART: usize = 4;

/// Reads for one durable shard.
#[derive(Clone)]
pub(crate) struct Reader {
    log: Log,
    segments: Segments,
    group: GroupId,
}

impl Reader {
    pub(crate) fn new(log: Log, segments: Segments, group: GroupId) -> Self {
        Self { log, segments, group }
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    /// Reads what a chunk holds for a queue, in order: one for each of its numbers. What cannot be read is lost: it is reported, once,
    /// with file and place, and stands as `None`; so does what has no record.
    pub(crate) fn read_chunk(&self, queue: QueueId, chunk: &Chunk) -> Vec<Option<Paged>> {
        let lost = || vec![None; chunk.count as usize];
        if let ChunkKind::Run { .. } = chunk.kind {
            return self.read_run(queue, chunk);
        }
        let bytes = match self.log.read(location(chunk)) {
            Ok(bytes) => bytes,
            Err(error) => {
                tracing::error!(?queue, ?chunk, %error, "messages cannot be read: they are lost");
                return lost();
            }
        };
        let Some(messages) = messages_of(queue, chunk, &bytes) else { return lost() };
        let wanted: usize = messages.iter().map(|message| message.len as usize).sum();
        let few = wanted < bytes.len() / SMALL_PART;
        messages
            .iter()
            .map(|reference| {
                let message = reference.resolve(std::slice::from_ref(&bytes))?;
                let place = Place { file: chunk.file, offset: chunk.offset + reference.start };
                let stamp = stamp_of(message.properties(), chunk.enqueued_at_ms);
                Some(Paged { message: if few { message.detached() } else { message }, place, stamp })
            })
            .collect()
    }

    fn read_run(&self, queue: QueueId, chunk: &Chunk) -> Vec<Option<Paged>> {
        let mut found = vec![None; chunk.count as usize];
        let (mut next, mut rewrites) = (chunk.first, 0);
        while next < chunk.end() {
            let read = self.segments.read_queue(self.group, QueueKey(queue.0), next, u64::from(chunk.bytes));
            let messages = match read {
                Ok(messages) => messages,
                Err(StorageError::Gone { .. }) if rewrites < MAX_REWRITES => {
                    rewrites += 1;
                    continue;
                }
                Err(error) => {
                    tracing::error!(?queue, ?chunk, from = next, %error, "messages cannot be read: they are lost");
                    break;
                }
            };
            let Some(last) = messages.last() else { break };
            next = last.sequence.saturating_add(1);
            for message in messages {
                let index = usize::try_from(message.sequence - chunk.first).ok();
                let Some(slot) = index.and_then(|index| found.get_mut(index)) else { break };
                let Some((reference, enqueued_at_ms)) = split(&message.body) else {
                    tracing::error!(
                        ?queue,
                        sequence = message.sequence,
                        "a message in a segment is too short: it is lost"
                    );
                    continue;
                };
                let place = Place { file: chunk.file, offset: 0 };
                *slot = reference.resolve(&[message.body]).map(|message| {
                    let stamp = stamp_of(message.properties(), enqueued_at_ms);
                    Paged { message, place, stamp }
                });
            }
        }
        found
    }
}

/// Where a chunk of the log lies.
pub(super) fn location(chunk: &Chunk) -> Location {
    Location { file: FileId::from_raw(chunk.file), offset: chunk.offset, length: chunk.length }
}

/// The messages of a chunk of the log within its bytes, in order. `None`, and an error is logged: it is not what the queue has of it.
pub(super) fn messages_of(queue: QueueId, chunk: &Chunk, bytes: &Bytes) -> Option<Vec<MessageRef>> {
    if let ChunkKind::Message { envelope_bytes, properties_bytes } = chunk.kind {
        return Some(vec![MessageRef { buffer: 0, start: 0, len: chunk.length, envelope_bytes, properties_bytes }]);
    }
    let Some(decoded) = entry::decode(bytes) else {
        tracing::error!(?queue, ?chunk, "a log entry cannot be decoded: its messages are lost");
        return None;
    };
    let (skip, count) = (chunk.skip as usize, chunk.count as usize);
    let of_queue = decoded.ops.into_iter().filter_map(|op| match op {
        Logged::Enqueue { targets, message, .. } if targets.contains(&queue) => Some(message),
        _ => None,
    });
    let messages: Vec<MessageRef> = of_queue.skip(skip).take(count).collect();
    if messages.len() < count {
        tracing::error!(?queue, ?chunk, found = messages.len(), "a log entry has not what the queue has of it");
        return None;
    }
    Some(messages)
}

/// Set in the length of the envelope in a head that has the time. Envelopes are at most 512 bytes.
const HAS_TIME: u16 = 1 << 15;
/// Length of a head without the time, as earlier versions wrote it.
const SHORT_HEAD_BYTES: usize = 6;

/// What is put before a message in a segment: the lengths of its envelope and properties, and when it entered its queue.
pub(super) fn head(envelope_bytes: u16, properties_bytes: u32, enqueued_at_ms: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..2].copy_from_slice(&(envelope_bytes | HAS_TIME).to_le_bytes());
    head[2..6].copy_from_slice(&properties_bytes.to_le_bytes());
    head[6..].copy_from_slice(&enqueued_at_ms.to_le_bytes());
    head
}

/// Where the message is in a segment's record, and when it entered its queue (0: not known).
fn split(record: &[u8]) -> Option<(MessageRef, u64)> {
    let (head, rest) = record.split_first_chunk::<SHORT_HEAD_BYTES>()?;
    let [a, b, properties @ ..] = *head;
    let (marked, properties_bytes) = (u16::from_le_bytes([a, b]), u32::from_le_bytes(properties));
    let (enqueued_at_ms, message) = if marked & HAS_TIME == 0 {
        (0, rest)
    } else {
        let (time, message) = rest.split_first_chunk()?;
        (u64::from_le_bytes(*time), message)
    };
    let len = u32::try_from(message.len()).ok()?;
    let start = u32::try_from(record.len() - message.len()).ok()?;
    let envelope_bytes = marked & !HAS_TIME;
    Some((MessageRef { buffer: 0, start, len, envelope_bytes, properties_bytes }, enqueued_at_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_both_versions_are_read() {
        let message = MessageRef { buffer: 0, start: 14, len: 5, envelope_bytes: 3, properties_bytes: 2 };
        let record = [&head(3, 2, 1_700_000_000_000)[..], b"12345"].concat();
        assert_eq!(split(&record), Some((message, 1_700_000_000_000)));
        let old = [&[3, 0, 2, 0, 0, 0][..], b"12345"].concat();
        assert_eq!(split(&old), Some((MessageRef { start: 6, ..message }, 0)));
        assert_eq!(split(&record[..13]), None);
    }
}
