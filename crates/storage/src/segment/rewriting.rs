//! New segments: out of the log's oldest files, and out of segments that are mostly dead or too small.

use std::collections::BTreeMap;

use super::{Run, Segments, Shared, Survivor, format::SEGMENT_RECORD_BYTES, writer::SegmentWriter};
use crate::{
    error::StorageError,
    interval::{self, Interval},
    log::Log,
    types::{GroupId, QueueKey, SegmentNumber},
};

/// Segments rewritten at once.
const REWRITE_FILES: usize = 8;

impl Segments {
    /// Copies messages out of the log into new segments of a group, sorted. Blocks for as long as the disk takes: call it
    /// from a background thread, with the survivors of the files that [`Log::copy_out_due`] names.
    ///
    /// Everything read is checked. The messages are then in two places; the shard moves its queues to the runs, calls
    /// [`Segments::adopt`], and releases the old places in the log.
    ///
    /// # Errors
    /// `Full`: nothing was kept; try again when there is space.
    pub fn copy_out(&self, log: &Log, group: GroupId, mut survivors: Vec<Survivor>) -> Result<Vec<Run>, StorageError> {
        // First in the order of the log, so that each of its chunks is read and checked once; then in the order of the
        // segment, from the page cache, against the checksums just taken.
        survivors.sort_unstable_by_key(|survivor| survivor.location);
        let mut checked = Vec::with_capacity(survivors.len());
        for survivor in survivors {
            checked.push((survivor, crc32c::crc32c(&log.read(survivor.location)?)));
        }
        checked.sort_unstable_by_key(|(survivor, _)| (survivor.queue, survivor.sequence));
        checked.dedup_by_key(|(survivor, _)| (survivor.queue, survivor.sequence));
        let mut output = Output::new(&self.shared, group);
        for (survivor, crc) in checked {
            let body = log.read_again(survivor.location, crc)?;
            output.add(survivor.queue, survivor.sequence, &body)?;
        }
        output.finish(Vec::new())
    }

    /// Segments of a group that are due to be rewritten: less than half alive, or too many small ones.
    pub fn rewrite_due(&self, group: GroupId) -> Vec<SegmentNumber> {
        let state = self.shared.state.read();
        let options = &self.shared.options;
        let mut due = Vec::new();
        let mut small = Vec::new();
        for (&number, segment) in state.segments.iter().filter(|(_, segment)| segment.group == group) {
            match segment.live {
                None | Some(0) => {}
                Some(live) if live * 2 < segment.records => due.push(number),
                Some(_) if segment.bytes < u64::from(options.segment_bytes / 4) => small.push(number),
                Some(_) => {}
            }
        }
        if small.len() >= options.merge_files {
            due.extend(small);
        }
        due.truncate(REWRITE_FILES);
        due
    }

    /// Writes what is alive in segments of a group into new ones, and drops the old. `live` as in [`Segments::recount`]: it
    /// is asked now, so messages that die meanwhile are copied, and found dead by [`Segments::adopt`], which the shard
    /// calls with the runs returned once its queues have moved to them.
    pub fn rewrite(
        &self,
        group: GroupId,
        segments: &[SegmentNumber],
        live: &mut dyn FnMut(QueueKey) -> Vec<Interval>,
    ) -> Result<Vec<Run>, StorageError> {
        // Sorted by queue and sequence over all of them; only places are kept in memory, not bodies.
        let mut places = BTreeMap::new();
        let mut of_queue: Option<(QueueKey, Vec<Interval>)> = None;
        for &segment in segments {
            let Some(mut cursor) = self.shared.cursor_over(segment)? else { continue };
            while let Some(message) = cursor.next()? {
                let (_, alive) = match &mut of_queue {
                    Some(known) if known.0 == message.queue => known,
                    other => other.insert((message.queue, live(message.queue))),
                };
                if interval::contains(alive, message.sequence) {
                    places.insert((message.queue, message.sequence), message.location);
                }
            }
        }
        let mut output = Output::new(&self.shared, group);
        for ((queue, sequence), location) in places {
            output.add(queue, sequence, &self.read(location)?.body)?;
        }
        let runs = output.finish(segments.to_vec())?;
        for &segment in segments {
            self.shared.delete(segment)?;
        }
        Ok(runs)
    }
}

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

    fn add(&mut self, queue: QueueKey, sequence: u64, body: &[u8]) -> Result<(), StorageError> {
        let limit = u64::from(self.shared.options.segment_bytes);
        let length = (SEGMENT_RECORD_BYTES + body.len()) as u64;
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
        self.current.as_mut().expect("made just now").add(queue, sequence, body)
    }

    fn end_segment(&mut self, replaces: Vec<SegmentNumber>) -> Result<(), StorageError> {
        let Some(current) = self.current.take() else { return Ok(()) };
        let bytes = current.length();
        let (header, index) = current.finish(replaces)?;
        self.finished.push(header.number);
        let size = bytes + u64::from(header.index_length);
        self.runs.extend(self.shared.state.write().add(header.number, self.group, size, index));
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
