//! The newest entries of a group, in memory: all that are not on disk yet, and of the others as many as the budget allows.

use std::collections::VecDeque;

use bytes::Bytes;
use raft::eraftpb::{Entry, EntryType};
use storage::Location;

/// What an entry costs beside its payload.
const ENTRY_BYTES: usize = 64;

/// An entry in memory.
#[derive(Clone, Debug)]
pub(crate) struct Cached {
    pub(crate) term: u64,
    pub(crate) kind: EntryType,
    pub(crate) payload: Bytes,
    /// The write that puts it on disk.
    pub(crate) write: u64,
    /// Where it lies, once it is on disk.
    pub(crate) location: Option<Location>,
}

impl Cached {
    fn bytes(&self) -> usize {
        self.payload.len() + ENTRY_BYTES
    }
}

/// The entries from `first` on, without a gap, up to the group's last.
#[derive(Debug)]
pub(crate) struct EntryCache {
    first: u64,
    entries: VecDeque<Cached>,
    bytes: usize,
    budget: usize,
}

impl EntryCache {
    /// An empty cache; the next entry has the index `first`.
    pub(crate) fn new(first: u64, budget: usize) -> EntryCache {
        EntryCache { first, entries: VecDeque::new(), bytes: 0, budget }
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    pub(crate) fn get(&self, index: u64) -> Option<&Cached> {
        self.entries.get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }

    /// Adds an entry after the last, or in place of one and all after it.
    pub(crate) fn put(&mut self, index: u64, entry: Cached) {
        if index < self.first {
            self.clear(index);
        }
        let keep = usize::try_from(index - self.first).expect("indexes of one cache are near");
        assert!(keep <= self.entries.len(), "entries come without a gap: {index} after {}", self.last());
        for gone in self.entries.drain(keep..) {
            self.bytes -= gone.bytes();
        }
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
    }

    fn last(&self) -> u64 {
        self.first + self.entries.len() as u64 - 1
    }

    /// Forgets all; the next entry has the index `first`.
    pub(crate) fn clear(&mut self, first: u64) {
        self.entries.clear();
        (self.first, self.bytes) = (first, 0);
    }

    /// Entry `index` is on disk, if it is still the one of that write.
    pub(crate) fn placed(&mut self, index: u64, write: u64, location: Location) {
        let at = index.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some(entry) = at.and_then(|at| self.entries.get_mut(at))
            && entry.write == write
        {
            entry.location = Some(location);
        }
    }

    /// Drops the oldest entries that are on disk and up to `done`, until the rest is within the budget.
    pub(crate) fn trim(&mut self, done: u64) {
        while self.bytes > self.budget && self.first <= done {
            match self.entries.front() {
                Some(entry) if entry.location.is_some() => {
                    self.bytes -= entry.bytes();
                    self.entries.pop_front();
                    self.first += 1;
                }
                _ => return,
            }
        }
    }

    /// Entries from `low` on, below `high`, up to `max_bytes` but at least one.
    pub(crate) fn collect(&self, low: u64, high: u64, max_bytes: u64, out: &mut Vec<Entry>, used: &mut u64) {
        for index in low..high {
            let Some(cached) = self.get(index) else { return };
            *used += cached.bytes() as u64;
            if *used > max_bytes && !out.is_empty() {
                return;
            }
            out.push(raft_entry(index, cached.term, cached.kind, cached.payload.clone()));
        }
    }
}

/// The entry as raft wants it. A change of members has its payload, which is in our encoding, in the context; what raft
/// once had as data is not kept.
pub(crate) fn raft_entry(index: u64, term: u64, kind: EntryType, payload: Bytes) -> Entry {
    let mut entry = Entry::default();
    (entry.index, entry.term) = (index, term);
    entry.set_entry_type(kind);
    match kind {
        EntryType::EntryNormal => entry.data = payload,
        _ => entry.context = payload,
    }
    entry
}

/// The part of an entry that is kept and sent.
pub(crate) fn payload(entry: &Entry) -> Bytes {
    match entry.get_entry_type() {
        EntryType::EntryNormal => entry.data.clone(),
        _ => entry.context.clone(),
    }
}

/// The log's tag of an entry, and the kind on the wire.
pub(crate) fn tag(kind: EntryType) -> u8 {
    match kind {
        EntryType::EntryNormal => 0,
        _ => 1,
    }
}

/// The inverse of [`tag`].
pub(crate) const fn kind(tag: u8) -> Option<EntryType> {
    match tag {
        0 => Some(EntryType::EntryNormal),
        1 => Some(EntryType::EntryConfChangeV2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use storage::{FileId, FileNumber};

    use super::*;

    fn cached(write: u64) -> Cached {
        let payload = Bytes::from(vec![0; 100 - ENTRY_BYTES]);
        Cached { term: write, kind: EntryType::EntryNormal, payload, write, location: None }
    }

    fn place() -> Location {
        Location { file: FileId::log(FileNumber(1)), offset: 0, length: 1 }
    }

    #[test]
    fn only_what_is_on_disk_leaves() {
        let mut cache = EntryCache::new(5, 150);
        (5..9).for_each(|index| cache.put(index, cached(index)));
        cache.placed(5, 5, place());
        cache.trim(8);
        assert_eq!(cache.first(), 6, "6 is not on disk");
        (6..9).for_each(|index| cache.placed(index, index, place()));
        cache.trim(6);
        assert_eq!(cache.first(), 7, "7 is not done");
        cache.trim(8);
        assert_eq!(cache.first(), 8);
    }

    #[test]
    fn an_overwritten_entry_is_not_on_disk_by_its_predecessors_write() {
        let mut cache = EntryCache::new(1, 0);
        (1..4).for_each(|index| cache.put(index, cached(1)));
        cache.put(2, cached(2));
        (1..4).for_each(|index| cache.placed(index, 1, place()));
        cache.trim(3);
        assert_eq!(cache.first(), 2);
        assert!(cache.get(3).is_none());
        assert_eq!(cache.get(2).unwrap().location, None);
    }
}
