//! Reading messages from segments: one by its place, or a queue's in order. Files are opened for each call, so that
//! thousands of segments need no open files and a deleted one frees its space at once.

use std::sync::Arc;

use bytes::Bytes;

use super::{
    Segments, Shared,
    format::{SEGMENT_RECORD_BYTES, SegmentRecord},
    segment_path,
};
use crate::{
    error::StorageError,
    fs::{File, read_up_to},
    types::{FileId, FileKind, GroupId, Location, QueueKey, SegmentNumber},
};

/// Read at once by a reader in order: what it gets ahead.
const READ_AHEAD_BYTES: usize = 256 << 10;

/// A message as read from a segment. The body is a slice of what was read at once: copy what is kept long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its queue.
    pub queue: QueueKey,
    /// Its sequence.
    pub sequence: u64,
    /// As the queue stored it.
    pub body: Bytes,
    /// Where the body lies.
    pub location: Location,
}

impl Segments {
    /// The message whose body lies at a place.
    ///
    /// # Errors
    /// `Gone` if the segment was rewritten or deleted: find the message by queue and sequence. `Damaged` if its checksum
    /// does not fit.
    pub fn read(&self, location: Location) -> Result<Message, StorageError> {
        let gone = || StorageError::Gone { what: format!("{:?}", location.file) };
        let FileKind::Segment(segment) = location.file.kind() else { return Err(gone()) };
        let start = location.offset.checked_sub(SEGMENT_RECORD_BYTES as u32).ok_or_else(gone)?;
        let end = u32::try_from(location.end()).map_err(|_| gone())?;
        let mut cursor = self.shared.cursor(segment, start, end)?;
        let message = cursor.next()?.ok_or_else(gone)?;
        if message.location == location { Ok(message) } else { Err(gone()) }
    }

    /// Where a message lies, if it is in a segment.
    pub fn find(&self, group: GroupId, queue: QueueKey, sequence: u64) -> Result<Option<Location>, StorageError> {
        let found = self.read_queue(group, queue, sequence, 0)?;
        Ok(found.first().filter(|message| message.sequence == sequence).map(|message| message.location))
    }

    /// A queue's messages in order, from a sequence on (or the next one there is), dead ones included, as long as the bodies
    /// stay within `max_bytes`, but at least one.
    pub fn read_queue(
        &self,
        group: GroupId,
        queue: QueueKey,
        from: u64,
        max_bytes: u64,
    ) -> Result<Vec<Message>, StorageError> {
        let runs = self.runs(group, queue);
        let mut runs = runs.iter().filter(|run| run.last >= from).peekable();
        // Runs may overlap, so those that have begun are merged by sequence.
        let mut begun: Vec<(Message, Cursor)> = Vec::new();
        let mut found: Vec<Message> = Vec::new();
        let mut bytes = 0;
        loop {
            let lowest = begun.iter().map(|(message, _)| message.sequence).min();
            while let Some(run) = runs.next_if(|run| lowest.is_none_or(|lowest| run.first <= lowest)) {
                let Some(mut cursor) = self.shared.cursor_at(run.segment, queue, from)? else { continue };
                if let Some(message) = cursor.next_from(from)? {
                    begun.push((message, cursor));
                }
                if lowest.is_none() {
                    break;
                }
            }
            let Some(at) = (0..begun.len()).min_by_key(|&at| begun[at].0.sequence) else {
                if runs.peek().is_none() { return Ok(found) } else { continue }
            };
            if runs.peek().is_some_and(|run| run.first <= begun[at].0.sequence) {
                continue;
            }
            let (message, mut cursor) = begun.swap_remove(at);
            bytes += message.body.len() as u64;
            if bytes > max_bytes && !found.is_empty() {
                return Ok(found);
            }
            if let Some(next) = cursor.next()? {
                begun.push((next, cursor));
            }
            // A crash may have left a message in two segments.
            if found.last().is_none_or(|last| last.sequence < message.sequence) {
                found.push(message);
            }
        }
    }
}

/// Reads the records of a run one after the other, many at once from disk.
pub(super) struct Cursor {
    segment: SegmentNumber,
    file: Arc<dyn File>,
    path: std::path::PathBuf,
    /// Offset of the next record, and where the last one ends.
    offset: u32,
    end: u32,
    buffer: Bytes,
    buffer_start: u32,
}

impl Cursor {
    /// The next record.
    pub(super) fn next(&mut self) -> Result<Option<Message>, StorageError> {
        if self.offset >= self.end {
            return Ok(None);
        }
        self.fill(SEGMENT_RECORD_BYTES)?;
        let at = (self.offset - self.buffer_start) as usize;
        let length = self.buffer[at..].first_chunk().map_or(0, |length| u32::from_le_bytes(*length) as usize);
        self.fill(SEGMENT_RECORD_BYTES.saturating_add(length))?;
        let at = (self.offset - self.buffer_start) as usize;
        let Ok(SegmentRecord { queue, sequence, body }) = SegmentRecord::decode(&self.buffer[at..], self.segment)
        else {
            return Err(StorageError::damaged(&self.path, u64::from(self.offset), "a message"));
        };
        let body = self.buffer.slice_ref(body);
        let start = self.offset + SEGMENT_RECORD_BYTES as u32;
        let location = Location { file: FileId::segment(self.segment), offset: start, length: body.len() as u32 };
        self.offset = start + location.length;
        Ok(Some(Message { queue, sequence, body, location }))
    }

    /// The next record with at least that sequence.
    fn next_from(&mut self, sequence: u64) -> Result<Option<Message>, StorageError> {
        while let Some(message) = self.next()? {
            if message.sequence >= sequence {
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Has so many bytes from the offset on in the buffer, as far as the run goes.
    fn fill(&mut self, length: usize) -> Result<(), StorageError> {
        let have = (self.buffer_start as usize + self.buffer.len()).saturating_sub(self.offset as usize);
        let rest = (self.end - self.offset) as usize;
        if have >= length.min(rest) {
            return Ok(());
        }
        let length = length.max(READ_AHEAD_BYTES).min(rest);
        let bytes = read_up_to(&*self.file, u64::from(self.offset), length);
        self.buffer = bytes.map_err(StorageError::io("read", &self.path))?.into();
        self.buffer_start = self.offset;
        Ok(())
    }
}

impl Shared {
    fn cursor(&self, segment: SegmentNumber, offset: u32, end: u32) -> Result<Cursor, StorageError> {
        let path = segment_path(&self.dir, segment);
        let file = self.fs.open(&path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => StorageError::Gone { what: format!("segment {segment}") },
            _ => StorageError::io("open", &path)(error),
        })?;
        Ok(Cursor { segment, file, path, offset, end, buffer: Bytes::new(), buffer_start: offset })
    }

    /// A cursor near a sequence of a queue, at or before it; `None` if the segment has nothing of the queue.
    fn cursor_at(
        &self,
        segment: SegmentNumber,
        queue: QueueKey,
        sequence: u64,
    ) -> Result<Option<Cursor>, StorageError> {
        let place = {
            let state = self.state.read();
            state.segments.get(&segment).and_then(|known| known.run(queue)).map(|run| {
                let next = run.points.partition_point(|&(point, _)| point <= sequence);
                (run.points[next.saturating_sub(1)].1, run.end)
            })
        };
        place.map(|(offset, end)| self.cursor(segment, offset, end)).transpose()
    }

    /// A cursor over all records of a segment.
    pub(super) fn cursor_over(&self, segment: SegmentNumber) -> Result<Option<Cursor>, StorageError> {
        let ends = {
            let state = self.state.read();
            state.segments.get(&segment).map(|known| {
                let start = known.runs.first().map_or(0, |run| run.points[0].1);
                (start, known.runs.last().map_or(0, |run| run.end))
            })
        };
        ends.map(|(start, end)| self.cursor(segment, start, end)).transpose()
    }
}
