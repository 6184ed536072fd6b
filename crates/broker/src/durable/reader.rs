//! Reading messages of a queue back from disk.

use bytes::Bytes;
use queue::{Chunk, ChunkKind, MessageRef, Paged, Place, QueueId};
use storage::{FileId, Location, Log};

use super::entry::{self, Logged};

/// Reads what a chunk holds for a queue, in order. What cannot be read is lost: it is reported, once, with file and place, and stands
/// as `None`.
pub(crate) fn read_chunk(log: &Log, queue: QueueId, chunk: &Chunk) -> Vec<Option<Paged>> {
    let location = Location { file: FileId::from_raw(chunk.file), offset: chunk.offset, length: chunk.length };
    let messages = match log.read(location) {
        Ok(bytes) => messages(queue, chunk, &bytes),
        Err(error) => {
            tracing::error!(?queue, ?location, count = chunk.count, %error, "messages cannot be read: they are lost");
            None
        }
    };
    messages.unwrap_or_else(|| vec![None; chunk.count as usize])
}

fn messages(queue: QueueId, chunk: &Chunk, bytes: &Bytes) -> Option<Vec<Option<Paged>>> {
    let paged = |message: &MessageRef| {
        let place = Place { file: chunk.file, offset: chunk.offset + message.start };
        message.resolve(std::slice::from_ref(bytes)).map(|message| Paged { message, place })
    };
    if let ChunkKind::Message { envelope_bytes, properties_bytes } = chunk.kind {
        let message = MessageRef { buffer: 0, start: 0, len: chunk.length, envelope_bytes, properties_bytes };
        return Some(vec![paged(&message)]);
    }
    let Some(ops) = entry::decode(bytes) else {
        tracing::error!(?queue, ?chunk, "a log entry cannot be decoded: its messages are lost");
        return None;
    };
    let mut messages = Vec::with_capacity(chunk.count as usize);
    for op in ops {
        if let Logged::Enqueue { targets, message } = op
            && targets.contains(&queue)
        {
            messages.push(paged(&message));
        }
    }
    let (skip, count) = (chunk.skip as usize, chunk.count as usize);
    if messages.len() < skip + count {
        tracing::error!(?queue, ?chunk, found = messages.len(), "a log entry has not what the queue has of it");
        return None;
    }
    messages.truncate(skip + count);
    messages.drain(..skip);
    Some(messages)
}
