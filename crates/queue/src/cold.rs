//! The part of a durable queue that is on disk only: a deep backlog that nobody has touched.
//!
//! It lies behind what is in memory and is kept as [`Chunk`]s, one for all that a log entry brought, so a message in it costs
//! a fraction of a byte of memory. It is brought back chunk by chunk, from the front, when what is in memory runs out.
//! Messages that are removed while they are here (found out in a recovery) are noted as intervals.

use std::collections::{BTreeMap, VecDeque};

/// What a [`Chunk`] points at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// A log entry, which says itself what is in it.
    Entry,
    /// The bytes of one message.
    Message {
        /// Length of its envelope.
        envelope_bytes: u16,
        /// Length of its properties.
        properties_bytes: u32,
    },
}

/// Messages of a queue that lie together on disk: those that one log entry brought, or a single one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// What it points at.
    pub kind: ChunkKind,
    /// Sequence of the first.
    pub first: u64,
    /// Messages of the queue in the entry before the first of the chunk.
    pub skip: u32,
    /// How many; their sequences follow each other.
    pub count: u32,
    /// Bytes of the messages, as they are counted in the file.
    pub bytes: u32,
    /// The file that it lies in.
    pub file: u64,
    /// Where in it the entry or message begins.
    pub offset: u32,
    /// Length of the entry or message.
    pub length: u32,
}

/// Bytes of a file that are needed no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The file.
    pub file: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Sequence numbers, as intervals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntervalSet {
    /// First to last, inclusive; no two touch.
    runs: BTreeMap<u64, u64>,
}

impl IntervalSet {
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.runs.iter().map(|(&first, &last)| (first, last))
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        self.runs.range(..=number).next_back().is_some_and(|(_, &last)| number <= last)
    }

    /// How many numbers of `first..=last` are in the set.
    pub(crate) fn count_within(&self, first: u64, last: u64) -> u64 {
        let before = self.runs.range(..first).next_back();
        before
            .into_iter()
            .chain(self.runs.range(first..=last))
            .map(|(&from, &to)| (to.min(last) + 1).saturating_sub(from.max(first)))
            .sum()
    }

    /// Adds `first..=last`. Answers how many were not there before.
    pub(crate) fn insert(&mut self, first: u64, last: u64) -> u64 {
        let added = last - first + 1 - self.count_within(first, last);
        let (mut from, mut to) = (first, last);
        if let Some((&before, &end)) = self.runs.range(..first).next_back()
            && end + 1 >= first
        {
            from = before;
            to = to.max(end);
        }
        while let Some((&next, &end)) = self.runs.range(from..=to.saturating_add(1)).next() {
            to = to.max(end);
            self.runs.remove(&next);
        }
        self.runs.insert(from, to);
        added
    }

    /// Forgets all numbers below `end`.
    pub(crate) fn forget_below(&mut self, end: u64) {
        let keep = self.runs.split_off(&end);
        let crossing = self.runs.values().next_back().copied().filter(|&last| last >= end);
        self.runs = keep;
        if let Some(last) = crossing {
            self.runs.insert(end, last);
        }
    }
}

/// The cold part of a queue.
///
/// Invariants: chunks follow each other, with gaps in sequence only where a snapshot left out what was gone; `removed` holds numbers of the chunks only; `live` is their
/// count less the removed ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cold {
    chunks: VecDeque<Chunk>,
    removed: IntervalSet,
    live: u64,
}

impl Cold {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Messages that are there.
    pub(crate) fn live(&self) -> u64 {
        self.live
    }

    pub(crate) fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.chunks.iter()
    }

    pub(crate) fn removed(&self) -> &IntervalSet {
        &self.removed
    }

    pub(crate) fn front(&self) -> Option<&Chunk> {
        self.chunks.front()
    }

    /// The sequence behind the last, if there is one.
    pub(crate) fn end(&self) -> Option<u64> {
        self.chunks.back().map(|chunk| chunk.first + u64::from(chunk.count))
    }

    /// Adds a chunk behind the others, or its messages to the last one if they came with the same entry.
    pub(crate) fn push(&mut self, chunk: Chunk) {
        debug_assert!(self.end().is_none_or(|end| end == chunk.first), "chunks follow each other");
        self.live += u64::from(chunk.count);
        match self.chunks.back_mut() {
            Some(last) if last.kind == ChunkKind::Entry && (last.file, last.offset) == (chunk.file, chunk.offset) => {
                last.count += chunk.count;
                last.bytes += chunk.bytes;
            }
            _ => self.chunks.push_back(chunk),
        }
    }

    /// Adds a chunk from a snapshot: what lies between it and the last one is gone.
    pub(crate) fn push_after_gap(&mut self, chunk: Chunk) {
        debug_assert!(self.end().is_none_or(|end| end <= chunk.first), "chunks follow each other");
        self.live += u64::from(chunk.count);
        if let Some(end) = self.end().filter(|&end| end < chunk.first) {
            self.removed.insert(end, chunk.first - 1);
        }
        self.chunks.push_back(chunk);
    }

    /// Notes that `first..=last` are removed, as far as they are here.
    pub(crate) fn remove(&mut self, first: u64, last: u64) {
        let (Some(start), Some(end)) = (self.chunks.front().map(|chunk| chunk.first), self.end()) else { return };
        let (first, last) = (first.max(start), last.min(end - 1));
        if first <= last {
            self.live -= self.removed.insert(first, last);
        }
    }

    /// Drops the chunks of which nothing is left, and says what they no longer need. A chunk in the middle leaves a gap, so this
    /// is only for the front.
    pub(crate) fn drop_dead_front(&mut self, releases: &mut Vec<Release>) -> Option<u64> {
        let mut end = None;
        while let Some(chunk) = self.chunks.front() {
            let last = chunk.first + u64::from(chunk.count) - 1;
            if self.removed.count_within(chunk.first, last) < u64::from(chunk.count) {
                break;
            }
            releases.push(Release { file: chunk.file, bytes: u64::from(chunk.bytes) });
            end = Some(last + 1);
            self.chunks.pop_front();
        }
        if let Some(end) = end {
            self.removed.forget_below(end);
            self.shrink();
        }
        end
    }

    /// Takes the first chunk out, with what of it was removed.
    pub(crate) fn pop_front(&mut self) -> Option<(Chunk, IntervalSet)> {
        let chunk = self.chunks.pop_front()?;
        let end = chunk.first + u64::from(chunk.count);
        let mut removed = IntervalSet::default();
        for (first, last) in self.removed.runs() {
            if first < end {
                removed.insert(first, last.min(end - 1));
            }
        }
        self.removed.forget_below(end);
        self.live -= u64::from(chunk.count) - removed.count_within(chunk.first, end - 1);
        self.shrink();
        Some((chunk, removed))
    }

    fn shrink(&mut self) {
        const KEEP: usize = 1024;
        if self.chunks.capacity() > KEEP && self.chunks.len() * 4 < self.chunks.capacity() {
            self.chunks.shrink_to(self.chunks.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(first: u64, count: u32, offset: u32) -> Chunk {
        Chunk { kind: ChunkKind::Entry, first, skip: 0, count, bytes: count * 10, file: 3, offset, length: 100 }
    }

    #[test]
    fn intervals_merge_and_count() {
        let mut set = IntervalSet::default();
        assert_eq!(set.insert(5, 7), 3);
        assert_eq!(set.insert(10, 12), 3);
        assert_eq!(set.insert(8, 9), 2);
        assert_eq!(set.runs().collect::<Vec<_>>(), [(5, 12)]);
        assert_eq!(set.insert(1, 20), 12);
        assert!(set.contains(1) && set.contains(20) && !set.contains(21) && !set.contains(0));
        assert_eq!(set.count_within(15, 30), 6);
        set.forget_below(10);
        assert_eq!(set.runs().collect::<Vec<_>>(), [(10, 20)]);
    }

    #[test]
    fn messages_of_one_entry_are_one_chunk_and_dead_chunks_go() {
        let mut cold = Cold::default();
        cold.push(chunk(0, 2, 0));
        cold.push(chunk(2, 1, 0));
        cold.push(chunk(3, 3, 500));
        assert_eq!(cold.live(), 6);
        cold.remove(1, 4);
        assert_eq!(cold.live(), 2);
        let mut releases = Vec::new();
        assert_eq!(cold.drop_dead_front(&mut releases), None, "message 0 is left");
        cold.remove(0, 0);
        assert_eq!(cold.drop_dead_front(&mut releases), Some(3));
        assert_eq!(releases, [Release { file: 3, bytes: 30 }]);
        let (front, removed) = cold.pop_front().expect("one chunk is left");
        assert_eq!((front.first, front.count), (3, 3));
        assert_eq!(removed.runs().collect::<Vec<_>>(), [(3, 4)]);
        assert_eq!(cold.live(), 0);
    }
}
