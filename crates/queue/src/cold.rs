//! The part of a durable queue that is on disk only: a deep backlog that nobody has touched.
//!
//! It lies behind what is in memory and is kept as [`Chunk`]s, one for all that a log entry brought, so a message in it costs
//! a fraction of a byte of memory. It is brought back chunk by chunk, from the front, when what is in memory runs out.
//! Messages that are removed while they are here (found out in a recovery) are noted as intervals. When the file that a chunk
//! lies in is given up, its messages are found elsewhere and new chunks take its place ([`Cold::relocate`]).

use std::collections::{BTreeMap, VecDeque};

/// What a [`Chunk`] points at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChunkKind {
    /// A log entry, which says itself what is in it.
    #[default]
    Entry,
    /// The bytes of one message.
    Message {
        /// Length of its envelope.
        envelope_bytes: u16,
        /// Length of its properties.
        properties_bytes: u32,
    },
    /// Messages in a segment, which are found by their sequences. Of the chunk's numbers, those without a record are removed.
    Run {
        /// How many records there are.
        records: u32,
    },
}

/// A run in a segment does not grow beyond so many bytes by taking in the next one: it is brought back as a whole.
const MAX_RUN_BYTES: u32 = 512 * 1024;

/// Messages of a queue that lie together on disk: those that one log entry brought, or a single one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Bytes of the bodies among them, as far as they are known; else all bytes.
    pub body_bytes: u32,
    /// When they entered the queue, in milliseconds since 1970. In a run each record says so itself.
    pub enqueued_at_ms: u64,
    /// One of them may have a time to live of its own.
    pub timed: bool,
}

impl Chunk {
    /// The sequence behind its last.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// How many messages lie there; fewer than its numbers if some were removed before it was written.
    #[must_use]
    pub fn records(&self) -> u32 {
        match self.kind {
            ChunkKind::Run { records } => records,
            ChunkKind::Entry | ChunkKind::Message { .. } => self.count,
        }
    }

    /// Takes in a run of the same segment that follows, after a gap in which nothing is alive, unless both together are too large to be
    /// brought back at once. Answers whether it did.
    pub fn absorb(&mut self, next: &Self) -> bool {
        let (ChunkKind::Run { records }, ChunkKind::Run { records: more }) = (self.kind, next.kind) else {
            return false;
        };
        let Ok(count) = u32::try_from(next.end() - self.first) else { return false };
        if self.file != next.file || self.bytes.saturating_add(next.bytes) > MAX_RUN_BYTES {
            return false;
        }
        self.kind = ChunkKind::Run { records: records + more };
        self.count = count;
        self.bytes += next.bytes;
        self.body_bytes = self.body_bytes.saturating_add(next.body_bytes);
        self.timed |= next.timed;
        true
    }

    pub(crate) fn release(&self) -> Release {
        Release { file: self.file, bytes: u64::from(self.bytes), messages: u64::from(self.records()) }
    }
}

/// What of a file is needed no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The file.
    pub file: u64,
    /// How many bytes: what counts in a file of the log.
    pub bytes: u64,
    /// How many messages: what counts in a segment.
    pub messages: u64,
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

    /// The numbers of `first..=last` that are not in the set, as intervals.
    pub(crate) fn gaps_within(&self, first: u64, last: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut next = first;
        let before = self.runs.range(..first).next_back();
        for (&from, &to) in before.into_iter().chain(self.runs.range(first..=last)) {
            if from > next {
                gaps.push((next, from - 1));
            }
            next = next.max(to.saturating_add(1));
        }
        if next <= last {
            gaps.push((next, last));
        }
        gaps
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
/// Invariants: chunks follow each other; numbers between two of them, behind the last one and below `end`, and numbers of a run without a
/// record are in `removed`; `live` is the count of the chunks' numbers less the removed ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cold {
    chunks: VecDeque<Chunk>,
    /// The sequence behind the last; says nothing while there is no chunk.
    end: u64,
    removed: IntervalSet,
    live: u64,
    /// Numbers of the chunks, and bytes of their bodies: removed ones included.
    numbers: u64,
    body_bytes: u64,
}

impl Cold {
    fn count_in(&mut self, chunk: &Chunk) {
        self.numbers += u64::from(chunk.count);
        self.body_bytes += u64::from(chunk.body_bytes);
    }

    fn count_out(&mut self, chunk: &Chunk) {
        self.numbers -= u64::from(chunk.count);
        self.body_bytes -= u64::from(chunk.body_bytes);
    }

    /// Bytes of the bodies that are there: an estimate while some of them are removed.
    pub(crate) fn live_body_bytes(&self) -> u64 {
        if self.live >= self.numbers {
            return self.body_bytes;
        }
        let share = u128::from(self.body_bytes) * u128::from(self.live) / u128::from(self.numbers.max(1));
        u64::try_from(share).unwrap_or(u64::MAX)
    }

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
        (!self.chunks.is_empty()).then_some(self.end)
    }

    /// Adds a chunk behind the others, or its messages to the last one if they came with the same entry.
    pub(crate) fn push(&mut self, chunk: Chunk) {
        debug_assert!(self.end().is_none_or(|end| end == chunk.first), "chunks follow each other");
        self.live += u64::from(chunk.count);
        self.count_in(&chunk);
        self.end = chunk.end();
        match self.chunks.back_mut() {
            Some(last)
                if last.end() == chunk.first
                    && last.kind == ChunkKind::Entry
                    && (last.file, last.offset) == (chunk.file, chunk.offset) =>
            {
                last.count += chunk.count;
                last.bytes += chunk.bytes;
                last.body_bytes += chunk.body_bytes;
                last.timed |= chunk.timed;
            }
            _ => self.chunks.push_back(chunk),
        }
    }

    /// Adds a chunk from a snapshot: what lies between it and the last one is gone.
    pub(crate) fn push_after_gap(&mut self, chunk: Chunk) {
        debug_assert!(self.end().is_none_or(|end| end <= chunk.first), "chunks follow each other");
        self.live += u64::from(chunk.count);
        self.count_in(&chunk);
        if let Some(end) = self.end().filter(|&end| end < chunk.first) {
            self.removed.insert(end, chunk.first - 1);
        }
        self.end = chunk.end();
        self.chunks.push_back(chunk);
    }

    /// Uses up all numbers below `next`: what is behind the last chunk is gone. Means nothing while there is no chunk.
    pub(crate) fn advance_to(&mut self, next: u64) {
        if let Some(end) = self.end().filter(|&end| end < next) {
            self.removed.insert(end, next - 1);
            self.end = next;
        }
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
    /// is only for the front. Answers the sequence up to which nothing is left.
    pub(crate) fn drop_dead_front(&mut self, releases: &mut Vec<Release>) -> Option<u64> {
        let mut end = None;
        while let Some(&chunk) = self.chunks.front() {
            if self.removed.count_within(chunk.first, chunk.end() - 1) < u64::from(chunk.count) {
                break;
            }
            releases.push(chunk.release());
            end = Some(chunk.end());
            self.count_out(&chunk);
            self.chunks.pop_front();
        }
        let end = if self.chunks.is_empty() { end.map(|_| self.end) } else { end };
        if let Some(end) = end {
            self.removed.forget_below(end);
            self.shrink();
        }
        end
    }

    /// Puts other chunks in the place of those for which `found` has an answer: where what is alive of their messages lies now, in order.
    /// What of a chunk is not found is removed: answers how many such messages were alive.
    pub(crate) fn relocate(
        &mut self,
        found: &mut dyn FnMut(&Chunk) -> Option<Vec<Chunk>>,
        releases: &mut Vec<Release>,
    ) -> u64 {
        let mut lost = 0;
        for chunk in std::mem::take(&mut self.chunks) {
            let Some(pieces) = found(&chunk) else {
                self.chunks.push_back(chunk);
                continue;
            };
            releases.push(chunk.release());
            let mut next = chunk.first;
            for piece in pieces {
                debug_assert!(next <= piece.first && piece.end() <= chunk.end(), "pieces lie within their chunk");
                if next < piece.first {
                    lost += self.removed.insert(next, piece.first - 1);
                }
                next = piece.end();
                self.push_piece(piece);
            }
            if next < chunk.end() {
                lost += self.removed.insert(next, chunk.end() - 1);
            }
        }
        self.live -= lost;
        (self.numbers, self.body_bytes) = self.chunks.iter().fold((0, 0), |(numbers, bytes), chunk| {
            (numbers + u64::from(chunk.count), bytes + u64::from(chunk.body_bytes))
        });
        if self.chunks.is_empty() {
            self.removed.forget_below(self.end);
        }
        lost
    }

    /// Adds a run, or extends the last one by it if they lie in the same segment and nothing alive is between them.
    fn push_piece(&mut self, piece: Chunk) {
        if let Some(last) = self.chunks.back_mut() {
            let gap = piece.first - last.end();
            let dead = gap == 0 || self.removed.count_within(last.end(), piece.first - 1) == gap;
            if dead && last.absorb(&piece) {
                return;
            }
        }
        self.chunks.push_back(piece);
    }

    /// Takes the first chunk out, with what of it was removed.
    pub(crate) fn pop_front(&mut self) -> Option<(Chunk, IntervalSet)> {
        let chunk = self.chunks.pop_front()?;
        self.count_out(&chunk);
        let end = chunk.end();
        let mut removed = IntervalSet::default();
        for (first, last) in self.removed.runs() {
            if first < end {
                removed.insert(first, last.min(end - 1));
            }
        }
        self.removed.forget_below(if self.chunks.is_empty() { self.end } else { end });
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
        Chunk {
            kind: ChunkKind::Entry,
            first,
            count,
            bytes: count * 10,
            file: 3,
            offset,
            length: 100,
            ..Chunk::default()
        }
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
        assert_eq!(releases, [Release { file: 3, bytes: 30, messages: 3 }]);
        let (front, removed) = cold.pop_front().expect("one chunk is left");
        assert_eq!((front.first, front.count), (3, 3));
        assert_eq!(removed.runs().collect::<Vec<_>>(), [(3, 4)]);
        assert_eq!(cold.live(), 0);
    }
    fn run(first: u64, count: u32, records: u32, file: u64) -> Chunk {
        Chunk { kind: ChunkKind::Run { records }, first, count, bytes: records * 10, file, ..Chunk::default() }
    }

    #[test]
    fn gaps_are_what_is_not_in_the_set() {
        let mut set = IntervalSet::default();
        set.insert(3, 4);
        set.insert(8, 8);
        assert_eq!(set.gaps_within(0, 9), [(0, 2), (5, 7), (9, 9)]);
        assert_eq!(set.gaps_within(4, 8), [(5, 7)]);
        assert_eq!(set.gaps_within(3, 4), []);
        assert_eq!(set.gaps_within(20, 21), [(20, 21)]);
    }

    #[test]
    fn chunks_that_moved_are_runs_and_what_is_not_found_is_lost() {
        let mut cold = Cold::default();
        cold.push(chunk(0, 4, 0));
        cold.push(chunk(4, 4, 500));
        cold.push(chunk(8, 4, 900));
        cold.remove(1, 2);
        let mut releases = Vec::new();
        let lost = cold.relocate(
            &mut |chunk| match chunk.first {
                0 => Some(vec![run(0, 1, 1, 90), run(3, 1, 1, 90)]),
                4 => Some(vec![run(4, 3, 3, 90)]),
                _ => None,
            },
            &mut releases,
        );
        assert_eq!(lost, 1, "message 7");
        assert_eq!(releases.iter().map(|release| release.messages).sum::<u64>(), 8);
        let chunks: Vec<_> = cold.chunks().map(|chunk| (chunk.first, chunk.count, chunk.records())).collect();
        assert_eq!(chunks, [(0, 7, 5), (8, 4, 4)]);
        assert_eq!((cold.live(), cold.end()), (9, Some(12)));
    }

    #[test]
    fn numbers_are_not_given_again_when_the_last_messages_are_gone() {
        let mut cold = Cold::default();
        cold.push(chunk(0, 4, 0));
        cold.relocate(&mut |_| Some(vec![run(0, 2, 2, 90)]), &mut Vec::new());
        assert_eq!(cold.end(), Some(4));
        cold.push(chunk(4, 1, 700));
        assert_eq!(cold.live(), 3);
        cold.remove(4, 4);
        cold.remove(0, 1);
        assert_eq!(cold.drop_dead_front(&mut Vec::new()), Some(5));
    }
}
