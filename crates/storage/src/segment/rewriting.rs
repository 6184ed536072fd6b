//! New segments: out of the log's oldest files, and out of segments that are mostly dead or too small.

use std::{cmp::Ordering, collections::BinaryHeap};

use super::{
    Alive, Message, Run, Segments, Shared, Survivor, format::SEGMENT_RECORD_BYTES, reading::Cursor,
    writer::SegmentWriter,
};
use crate::{
    error::StorageError,
    interval,
    log::Log,
    types::{GroupId, Location, QueueKey, SegmentNumber},
};

/// The runs that are reported are cut at this size, in bytes: what is brought back into memory at once.
pub const RUN_BYTES: u64 = 512 << 10;

/// Messages in the log are read so many bytes at once when they are copied out, if they lie there one behind the other.
const READ_BYTES: u64 = 256 << 10;
/// So many bytes between two messages are read for nothing rather than make another call.
const GAP_BYTES: u64 = 4 << 10;

/// Segments rewritten at once.
const REWRITE_FILES: usize = 8;

impl Segments {
    /// Copies messages out of the log into new segments of a group, sorted. Blocks for as long as the disk takes: call it
    /// from a background thread, with the survivors of the files that [`Log::copy_out_due`] names.
    ///
    /// Everything read is checked; a message that turns out to be damaged is reported and left out. The messages are then in two places; the shard moves its queues to the runs, calls
    /// [`Segments::adopt`], and releases the old places in the log. A run is never longer than [`RUN_BYTES`], unless a single message is.
    ///
    /// # Errors
    /// `Full`: nothing was kept; try again when there is space.
    pub fn copy_out(&self, log: &Log, group: GroupId, mut survivors: Vec<Survivor>) -> Result<Vec<Run>, StorageError> {
        // First in the order of the log, so that each of its chunks is read and checked once; then in the order of the
        // segment, from the page cache, against the checksums just taken.
        survivors.sort_unstable_by_key(|survivor| survivor.location);
        let mut checked = Vec::with_capacity(survivors.len());
        for survivor in survivors {
            match log.read(survivor.location) {
                Ok(body) => checked.push((survivor, crc32c::crc32c(&body))),
                // The others must not be kept where they are by one that is lost.
                Err(error @ StorageError::Damaged(_)) => {
                    tracing::error!(queue = %survivor.queue, sequence = survivor.sequence, %error, "a message cannot be copied");
                }
                Err(error) => return Err(error),
            }
        }
        checked.sort_unstable_by_key(|(survivor, _)| (survivor.queue, survivor.sequence));
        checked.dedup_by_key(|(survivor, _)| (survivor.queue, survivor.sequence));
        let mut output = Output::new(&self.shared, group);
        let mut rest = checked.as_slice();
        while let Some((first, _)) = rest.first() {
            let length = neighbours(rest);
            let (together, others) = rest.split_at(length);
            let end = together.last().map_or(0, |(last, _)| last.location.end());
            let all = log.read_unchecked(first.location.file, first.location.offset, end)?;
            for (survivor, crc) in together {
                let start = (survivor.location.offset - first.location.offset) as usize;
                let body = all.get(start..start + survivor.location.length as usize).unwrap_or_default();
                if crc32c::crc32c(body) != *crc {
                    return Err(log.reads_differently(survivor.location));
                }
                let head = survivor.head.as_ref().map_or(&[][..], |head| head);
                output.add(survivor.queue, survivor.sequence, [head, body], survivor.starts_run)?;
            }
            rest = others;
        }
        output.finish(Vec::new())
    }

    /// Segments of a group that are due to be rewritten: less than half alive, or too many small ones. With each how many messages are
    /// alive: one that is being drained is better left alone, for soon there will be none.
    pub fn rewrite_due(&self, group: GroupId) -> Vec<(SegmentNumber, u64)> {
        let state = self.shared.state.read();
        let options = &self.shared.options;
        let mut due = Vec::new();
        let mut small = Vec::new();
        for (&number, segment) in state.segments.iter().filter(|(_, segment)| segment.group == group) {
            match segment.live {
                None | Some(0) => {}
                Some(live) if live * 2 < segment.records => due.push((number, live)),
                Some(live) if segment.bytes < u64::from(options.segment_bytes / 4) => small.push((number, live)),
                Some(_) => {}
            }
        }
        if small.len() >= options.merge_files {
            due.extend(small);
        }
        due.truncate(REWRITE_FILES);
        due
    }

    /// Writes what is alive in segments of a group into new ones, and drops the old. `alive` is asked now, so messages that
    /// die meanwhile are copied; the shard says with [`Segments::adopt`] what is alive of the runs returned once its queues have
    /// moved to them.
    pub fn rewrite(
        &self,
        group: GroupId,
        segments: &[SegmentNumber],
        alive: &mut dyn FnMut(QueueKey) -> Alive,
    ) -> Result<Vec<Run>, StorageError> {
        // Each segment is sorted by queue and sequence, so they are merged; one message of each is in memory at a time.
        let mut sources = BinaryHeap::new();
        for &segment in segments {
            if let Some(cursor) = self.shared.cursor_over(segment)? {
                sources.extend(Source::next_of(cursor)?);
            }
        }
        let mut output = Output::new(&self.shared, group);
        let mut of_queue: Option<(QueueKey, Alive)> = None;
        let mut last = None;
        while let Some(Source { message, cursor }) = sources.pop() {
            let (_, known) = match &mut of_queue {
                Some(known) if known.0 == message.queue => known,
                other => other.insert((message.queue, alive(message.queue))),
            };
            let place = Some((message.queue, message.sequence));
            // A crash may have left a message in two segments.
            if last != place && interval::contains(&known.intervals, message.sequence) {
                last = place;
                let starts_run = known.starts.binary_search(&message.sequence).is_ok();
                output.add(message.queue, message.sequence, [&[], &message.body], starts_run)?;
            }
            sources.extend(Source::next_of(cursor)?);
        }
        let runs = output.finish(segments.to_vec())?;
        for &segment in segments {
            self.shared.delete(segment)?;
        }
        Ok(runs)
    }
}

/// How many of the first survivors lie one behind the other, near enough to be read at once.
fn neighbours(survivors: &[(Survivor, u32)]) -> usize {
    let Some((first, _)) = survivors.first() else { return 0 };
    let mut end = first.location.end();
    let follows = |(survivor, _): &&(Survivor, u32)| {
        let place = survivor.location;
        let near = place.file == first.location.file
            && u64::from(place.offset) >= end
            && u64::from(place.offset) <= end + GAP_BYTES
            && place.end() <= u64::from(first.location.offset) + READ_BYTES;
        end = place.end();
        near
    };
    1 + survivors[1..].iter().take_while(follows).count()
}

/// A segment that is merged with others: its next message. The lowest one is the greatest, for the heap.
struct Source {
    message: Message,
    cursor: Cursor,
}

impl Source {
    fn next_of(mut cursor: Cursor) -> Result<Option<Source>, StorageError> {
        Ok(cursor.next()?.map(|message| Source { message, cursor }))
    }

    fn place(&self) -> (QueueKey, u64, Location) {
        (self.message.queue, self.message.sequence, self.message.location)
    }
}

impl Ord for Source {
    fn cmp(&self, other: &Source) -> Ordering {
        other.place().cmp(&self.place())
    }
}

impl PartialOrd for Source {
    fn partial_cmp(&self, other: &Source) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Source {
    fn eq(&self, other: &Source) -> bool {
        self.place() == other.place()
    }
}

impl Eq for Source {}

/// One or more segments in the making. Those that are finished become known together, at the end.
struct Output<'a> {
    shared: &'a Shared,
    group: GroupId,
    current: Option<SegmentWriter<'a>>,
    finished: Vec<SegmentNumber>,
    runs: Vec<Run>,
}

impl<'a> Output<'a> {
    fn new(shared: &'a Shared, group: GroupId) -> Output<'a> {
        Output { shared, group, current: None, finished: Vec::new(), runs: Vec::new() }
    }

    fn add(&mut self, queue: QueueKey, sequence: u64, body: [&[u8]; 2], starts_run: bool) -> Result<(), StorageError> {
        let limit = u64::from(self.shared.options.segment_bytes);
        let body_bytes = (body[0].len() + body[1].len()) as u64;
        let length = SEGMENT_RECORD_BYTES as u64 + body_bytes;
        if self.current.as_ref().is_some_and(|current| current.length() + length > limit) {
            self.end_segment(Vec::new())?;
        }
        if self.current.is_none() {
            let number = {
                let mut state = self.shared.state.write();
                state.next_number += 1;
                SegmentNumber(state.next_number - 1)
            };
            let Shared { fs, dir, node, .. } = self.shared;
            self.current = Some(SegmentWriter::create(&**fs, dir, *node, number, self.group)?);
        }
        let current = self.current.as_mut().expect("made just now");
        current.add(queue, sequence, body)?;
        let segment = current.number();
        match self.runs.last_mut() {
            Some(run)
                if !starts_run
                    && (run.queue, run.segment) == (queue, segment)
                    && run.bytes + body_bytes <= RUN_BYTES =>
            {
                run.last = sequence;
                run.count += 1;
                run.bytes += body_bytes;
            }
            _ => {
                self.runs.push(Run { queue, first: sequence, last: sequence, count: 1, bytes: body_bytes, segment });
            }
        }
        Ok(())
    }

    fn end_segment(&mut self, replaces: Vec<SegmentNumber>) -> Result<(), StorageError> {
        let Some(current) = self.current.take() else { return Ok(()) };
        let bytes = current.length();
        let (header, index) = current.finish(replaces)?;
        self.finished.push(header.number);
        let size = bytes + u64::from(header.index_length);
        self.shared.state.write().add(header.number, self.group, size, index);
        Ok(())
    }

    /// Ends the last segment, which names those that are superfluous now that all are durable.
    fn finish(mut self, replaces: Vec<SegmentNumber>) -> Result<Vec<Run>, StorageError> {
        self.end_segment(replaces)?;
        self.finished.clear();
        Ok(std::mem::take(&mut self.runs))
    }
}

impl Drop for Output<'_> {
    /// After an error: what was written is superfluous.
    fn drop(&mut self) {
        if let Some(current) = self.current.take() {
            current.discard();
        }
        for number in self.finished.drain(..) {
            if let Err(error) = self.shared.delete(number) {
                tracing::warn!(%error, "cannot remove a superfluous segment");
            }
        }
    }
}
