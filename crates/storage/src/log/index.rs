//! What is known in memory about a group's log: its bounds, its terms, and sparse points from which its entries are found.
//!
//! A *point* says: the entry with this index stands in the frame at this place, and the following indexes, up to the next
//! point, stand there or later. There is a point where the group's entries begin in a file, where a truncation made them
//! begin anew, and otherwise every `spacing` bytes (the size of a chunk); so memory follows the bytes of the log, not its entries.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::{
    log::record::{GroupState, Record},
    types::{FileNumber, Index, Term},
};

/// Where a frame begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FramePlace {
    pub(crate) file: FileNumber,
    pub(crate) offset: u32,
}

#[derive(Clone, Copy, Debug)]
struct Point {
    index: Index,
    place: FramePlace,
}

/// A record that does not follow from those before it: numbers of entries, or of files for an oldest-file record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) got: Index,
    pub(crate) last: Index,
}

/// The log of one group.
///
/// Invariants:
/// - `compacted.0 <= last`;
/// - points rise strictly in index, and never fall in place;
/// - term runs rise strictly in index and, as raft's terms do, in term.
#[derive(Debug, Default)]
pub(crate) struct GroupIndex {
    compacted: (Index, Term),
    last: Index,
    /// Entries before this index were in files that are gone; beyond `compacted` only while recovery is still reading.
    available_from: Index,
    terms: VecDeque<(Index, Term)>,
    points: VecDeque<Point>,
    /// The next append begins anew, after a truncation.
    begins_anew: bool,
    pub(crate) hard_state: Bytes,
}

impl GroupIndex {
    /// A group known only by the state that a file's first frame gives.
    pub(crate) fn from_state(state: &GroupState) -> GroupIndex {
        GroupIndex {
            compacted: state.compacted,
            last: state.last.0,
            available_from: state.last.0.next(),
            terms: VecDeque::from([(state.last.0, state.last.1)]),
            hard_state: state.hard_state.clone(),
            ..GroupIndex::default()
        }
    }

    pub(crate) fn compacted(&self) -> (Index, Term) {
        self.compacted
    }

    pub(crate) fn last(&self) -> Index {
        self.last
    }

    /// Term of an entry that is in the log, or of the last one compacted.
    pub(crate) fn term(&self, index: Index) -> Option<Term> {
        if index == self.compacted.0 {
            return Some(self.compacted.1);
        }
        if index < self.compacted.0 || index > self.last {
            return None;
        }
        let run = self.terms.partition_point(|&(first, _)| first <= index).checked_sub(1)?;
        Some(self.terms[run].1)
    }

    pub(crate) fn state(&self, group: crate::types::GroupId) -> GroupState {
        GroupState {
            group,
            compacted: self.compacted,
            last: (self.last, self.term(self.last).unwrap_or_default()),
            hard_state: self.hard_state.clone(),
        }
    }

    /// Takes over a record of this group that stands in the frame at `place`.
    pub(crate) fn apply(&mut self, record: &Record, place: FramePlace, spacing: u32) -> Result<(), Gap> {
        match record {
            Record::Entry(entry) => return self.append(entry.index, entry.term, place, spacing),
            Record::HardState { state, .. } => self.hard_state = state.clone(),
            Record::Truncate { from, .. } => {
                if *from <= self.compacted.0 {
                    return Err(Gap { got: *from, last: self.last });
                }
                self.truncate(*from);
            }
            Record::Compact { index, term, .. } => {
                if *index > self.last {
                    return Err(Gap { got: *index, last: self.last });
                }
                self.compact(*index, *term);
            }
            Record::SnapshotMark { index, term, .. } => self.restart(*index, *term),
            Record::GroupState(state) => {
                // Says nothing new about a group whose records have all been read.
                if state.last.0 != self.last {
                    return Err(Gap { got: state.last.0.next(), last: self.last });
                }
            }
            Record::Forget { .. } | Record::OldestFile(_) | Record::Sealed { .. } => {}
        }
        Ok(())
    }

    fn append(&mut self, index: Index, term: Term, place: FramePlace, spacing: u32) -> Result<(), Gap> {
        if index > self.last.next() || index <= self.compacted.0 {
            return Err(Gap { got: index, last: self.last });
        }
        if index <= self.last {
            self.truncate(index);
        }
        self.last = index;
        if self.terms.back().is_none_or(|&(_, last)| last != term) {
            self.terms.push_back((index, term));
        }
        let needs_point = self.begins_anew
            || self
                .points
                .back()
                .is_none_or(|point| point.place.file != place.file || place.offset - point.place.offset >= spacing);
        if needs_point {
            assert!(self.points.back().is_none_or(|point| point.index < index && point.place <= place));
            self.points.push_back(Point { index, place });
            self.begins_anew = false;
        }
        Ok(())
    }

    fn truncate(&mut self, from: Index) {
        if from > self.last {
            return;
        }
        assert!(from > self.compacted.0, "compacted entries are committed and never truncated");
        self.last = from.previous();
        self.available_from = self.available_from.min(from);
        while self.points.back().is_some_and(|point| point.index >= from) {
            self.points.pop_back();
        }
        while self.terms.back().is_some_and(|&(first, _)| first >= from) {
            self.terms.pop_back();
        }
        self.begins_anew = true;
    }

    fn compact(&mut self, index: Index, term: Term) {
        if index <= self.compacted.0 {
            return;
        }
        self.compacted = (index, term);
        while self.points.get(1).is_some_and(|second| second.index <= index.next()) {
            self.points.pop_front();
        }
        while self.terms.get(1).is_some_and(|&(second, _)| second <= index.next()) {
            self.terms.pop_front();
        }
        if index == self.last {
            self.points.clear();
            self.begins_anew = true;
        }
    }

    fn restart(&mut self, index: Index, term: Term) {
        self.compacted = (index, term);
        self.last = index;
        self.available_from = index.next();
        self.terms.clear();
        self.points.clear();
        self.begins_anew = true;
    }

    /// Whether all entries that are not compacted are in the files that were read.
    pub(crate) fn is_complete(&self) -> bool {
        self.available_from <= self.compacted.0.next()
    }

    /// Where to begin reading for an entry, and the last index that can be found from there.
    pub(crate) fn find(&self, index: Index) -> Option<(FramePlace, Index)> {
        if index <= self.compacted.0 || index > self.last {
            return None;
        }
        let next = self.points.partition_point(|point| point.index <= index);
        let point = self.points.get(next.checked_sub(1)?)?;
        let until = self.points.get(next).map_or(self.last, |point| point.index.previous());
        Some((point.place, until))
    }

    /// The file of the oldest entry that is not compacted.
    pub(crate) fn oldest_file(&self) -> Option<FileNumber> {
        self.points.front().map(|point| point.place.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{log::record::EntryRecord, types::GroupId};

    const GROUP: GroupId = GroupId(1);
    const POINT_SPACING: u32 = 128 << 10;

    fn append(log: &mut GroupIndex, index: u64, term: u64, file: u64, offset: u32) -> Result<(), Gap> {
        let entry = EntryRecord { group: GROUP, index: Index(index), term: Term(term), tag: 0, length: 0, crc: 0 };
        log.apply(&Record::Entry(entry), place(file, offset), POINT_SPACING)
    }

    fn place(file: u64, offset: u32) -> FramePlace {
        FramePlace { file: FileNumber(file), offset }
    }

    #[test]
    fn an_entry_is_found_from_the_point_before_it() {
        let mut log = GroupIndex::default();
        for index in 1..=100 {
            append(&mut log, index, 1 + index / 50, 1, 4096 + index as u32 * 8192).unwrap();
        }
        append(&mut log, 101, 3, 2, 4096).unwrap();
        assert_eq!(log.find(Index(1)), Some((place(1, 12288), Index(16))));
        assert_eq!(log.find(Index(20)), Some((place(1, 12288 + POINT_SPACING), Index(32))));
        assert_eq!(log.find(Index(101)), Some((place(2, 4096), Index(101))));
        assert_eq!(log.find(Index(102)), None);
        assert_eq!(log.term(Index(49)), Some(Term(1)));
        assert_eq!(log.term(Index(50)), Some(Term(2)));
    }

    #[test]
    fn overwritten_entries_are_found_in_their_new_place() {
        let mut log = GroupIndex::default();
        for index in 1..=10 {
            append(&mut log, index, 1, 1, 4096 + 64 * index as u32).unwrap();
        }
        append(&mut log, 6, 2, 1, 9000).unwrap();
        assert_eq!(log.last(), Index(6));
        assert_eq!(log.find(Index(5)), Some((place(1, 4160), Index(5))));
        assert_eq!(log.find(Index(6)), Some((place(1, 9000), Index(6))));
        assert_eq!(log.find(Index(7)), None);
        assert_eq!(log.term(Index(6)), Some(Term(2)));
    }

    #[test]
    fn gaps_and_compacted_entries_are_refused() {
        let mut log = GroupIndex::default();
        append(&mut log, 1, 1, 1, 4096).unwrap();
        assert_eq!(append(&mut log, 3, 1, 1, 4200), Err(Gap { got: Index(3), last: Index(1) }));
        log.apply(&Record::Compact { group: GROUP, index: Index(1), term: Term(1) }, place(1, 4300), POINT_SPACING)
            .unwrap();
        assert!(append(&mut log, 1, 1, 1, 4400).is_err());
        append(&mut log, 2, 1, 1, 4400).unwrap();
        assert_eq!(log.find(Index(2)), Some((place(1, 4400), Index(2))));
        assert_eq!(log.term(Index(1)), Some(Term(1)));
    }

    #[test]
    fn a_group_known_by_its_state_is_complete_once_compacted_up_to_there() {
        let state = GroupState {
            group: GROUP,
            compacted: (Index(3), Term(1)),
            last: (Index(7), Term(2)),
            hard_state: Bytes::new(),
        };
        let mut log = GroupIndex::from_state(&state);
        append(&mut log, 8, 2, 4, 4096).unwrap();
        assert!(!log.is_complete());
        log.apply(&Record::Compact { group: GROUP, index: Index(7), term: Term(2) }, place(4, 5000), POINT_SPACING)
            .unwrap();
        assert!(log.is_complete());
        assert_eq!(log.term(Index(8)), Some(Term(2)));
    }
}
