//! The log of a group as raft sees it: what is on disk ([`storage::Log`]) and what is on its way there ([`EntryCache`]) as
//! one, plus hard state and configuration.
//!
//! Raft asks for entries in two ways. For a follower it can wait: entries that are not in memory are fetched by whoever
//! drives the group ([`Fetch`]), and raft asks again. For itself (to hand out committed entries after a start, to look for
//! changes of members) it cannot, and they are read at once.

use std::cell::RefCell;

use raft::{
    GetEntriesContext, RaftState, Storage, StorageError as RaftStorageError,
    eraftpb::{Entry, HardState as RaftHardState, Snapshot},
};
use storage::{GroupId, Index, Location, Log, StorageError, StoredEntry};

use super::{
    cache::{self, EntryCache},
    hard_state::HardState,
    snapshots,
};

/// Read at once where nobody limits it.
const READ_BYTES: u64 = 1 << 20;
/// Followers for whom the same entries can be fetched; more wait for the next heartbeat.
const MAX_WAITING: usize = 16;

/// Entries for a follower that have to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// From here on.
    pub from: Index,
    /// As for [`Log::entries`].
    pub max_bytes: u64,
}

/// What raft's reads leave behind. In a cell, since raft reads through a shared reference.
#[derive(Default)]
struct Reads {
    /// To be told to the driver.
    wanted: Vec<Fetch>,
    /// Being read, and who waits.
    waiting: Vec<(u64, GetEntriesContext)>,
    /// Just read.
    fetched: Vec<Entry>,
    /// Places of entries that were read for raft itself.
    locations: Vec<(u64, Location)>,
    /// Raft wants to send a snapshot to this member, and there is none.
    snapshot_wanted: bool,
    /// A read failed: damage, or a bug.
    failed: Option<StorageError>,
}

/// The log.
pub(crate) struct ReplicaLog {
    group: GroupId,
    log: Log,
    /// Of the last entry that is not here: index and term.
    compacted: (u64, u64),
    last: u64,
    pub(crate) cache: EntryCache,
    pub(crate) hard: HardState,
    /// What can be sent to a follower that is too far behind.
    pub(crate) offer: Option<Snapshot>,
    reads: RefCell<Reads>,
}

impl ReplicaLog {
    pub(crate) fn new(
        group: GroupId,
        log: Log,
        compacted: (u64, u64),
        last: u64,
        hard: HardState,
        cache_bytes: usize,
    ) -> ReplicaLog {
        let cache = EntryCache::new(last + 1, cache_bytes);
        ReplicaLog { group, log, compacted, last, cache, hard, offer: None, reads: RefCell::default() }
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn compacted(&self) -> (u64, u64) {
        self.compacted
    }

    /// Takes entries over that are on their way to disk.
    pub(crate) fn append(&mut self, index: u64, entry: cache::Cached) {
        self.cache.put(index, entry);
        self.last = index;
    }

    /// The log begins anew after a snapshot.
    pub(crate) fn restart(&mut self, index: u64, term: u64) {
        self.compacted = (index, term);
        self.last = index;
        self.cache.clear(index + 1);
    }

    /// Forgets entries up to an index that is in the log.
    pub(crate) fn compact(&mut self, index: u64, term: u64) {
        self.compacted = (index, term);
    }

    /// Reads that somebody has to do.
    pub(crate) fn take_wanted(&mut self) -> Vec<Fetch> {
        std::mem::take(&mut self.reads.get_mut().wanted)
    }

    /// The contexts that waited for entries from `from` on, which are now to be had until the next call.
    pub(crate) fn fetched(&mut self, from: u64, entries: Vec<StoredEntry>) -> Vec<GetEntriesContext> {
        let reads = self.reads.get_mut();
        let known = entries.into_iter().map_while(|entry| {
            let kind = cache::kind(entry.tag)?;
            Some(cache::raft_entry(entry.index.0, entry.term.0, kind, entry.payload))
        });
        // What was read may have been overwritten meanwhile: only entries of before the cache are surely as read.
        let first = self.cache.first();
        reads.fetched = known.take_while(|entry| entry.index < first).collect();
        let mut contexts = Vec::new();
        let mut at = 0;
        while at < reads.waiting.len() {
            if reads.waiting[at].0 == from { contexts.push(reads.waiting.swap_remove(at).1) } else { at += 1 }
        }
        contexts
    }

    pub(crate) fn forget_fetched(&mut self) {
        self.reads.get_mut().fetched.clear();
    }

    pub(crate) fn take_snapshot_wanted(&mut self) -> bool {
        std::mem::take(&mut self.reads.get_mut().snapshot_wanted)
    }

    pub(crate) fn take_failed(&mut self) -> Option<StorageError> {
        self.reads.get_mut().failed.take()
    }

    pub(crate) fn take_locations(&mut self) -> Vec<(u64, Location)> {
        std::mem::take(&mut self.reads.get_mut().locations)
    }

    /// Reads from disk, at once.
    fn read(&self, low: u64, high: u64, max_bytes: Option<u64>, out: &mut Vec<Entry>) -> Result<u64, StorageError> {
        let mut used = 0;
        let mut next = low;
        while next < high {
            let budget = max_bytes.map_or(READ_BYTES, |max| max.saturating_sub(used));
            let entries = self.log.entries(self.group, Index(next), budget)?;
            if entries.is_empty() {
                let lost = format!("entry {next} of group {}", self.group);
                return Err(StorageError::Gone { what: lost });
            }
            for entry in entries {
                if next >= high {
                    break;
                }
                let length = entry.payload.len() as u64;
                if max_bytes.is_some_and(|max| used + length > max) && !out.is_empty() {
                    return Ok(used);
                }
                used += length;
                let Some(kind) = cache::kind(entry.tag) else {
                    return Err(StorageError::Gone { what: format!("entry {next}, whose kind is unknown,") });
                };
                let mut payload = entry.payload;
                if max_bytes.is_some() {
                    self.reads.borrow_mut().locations.push((next, entry.location));
                } else if kind == raft::eraftpb::EntryType::EntryNormal {
                    // Raft only looks for changes of members, maybe through all that a start has to apply again.
                    payload = bytes::Bytes::new();
                }
                out.push(cache::raft_entry(next, entry.term.0, kind, payload));
                next += 1;
            }
        }
        Ok(used)
    }
}

impl Storage for ReplicaLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        let mut hard = RaftHardState::default();
        (hard.term, hard.vote, hard.commit) = (self.hard.term, self.hard.vote, self.hard.commit);
        Ok(RaftState::new(hard, self.hard.configuration.to_raft()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let max_size = max_size.into().filter(|max| *max != raft::NO_LIMIT);
        // A member that has nothing needs the configuration with the first entry, so it gets a snapshot.
        if low <= self.compacted.0 || low == 1 && context.can_async() {
            return Err(RaftStorageError::Compacted.into());
        }
        let first = self.cache.first();
        let mut out = Vec::new();
        let mut used = 0;
        if low < first {
            if context.can_async() {
                let mut reads = self.reads.borrow_mut();
                let skip = reads.fetched.partition_point(|entry| entry.index < low);
                if reads.fetched.get(skip).is_some_and(|entry| entry.index == low) {
                    return Ok(reads.fetched[skip..].iter().take_while(|entry| entry.index < high).cloned().collect());
                }
                if reads.waiting.len() < MAX_WAITING {
                    if !reads.waiting.iter().any(|waiting| waiting.0 == low) {
                        let max_bytes = max_size.unwrap_or(READ_BYTES);
                        reads.wanted.push(Fetch { from: Index(low), max_bytes });
                    }
                    reads.waiting.push((low, context));
                }
                return Err(RaftStorageError::LogTemporarilyUnavailable.into());
            }
            match self.read(low, high.min(first), max_size, &mut out) {
                Ok(bytes) => used = bytes,
                Err(error) => {
                    // Raft would panic. Instead it gets nothing to hand out, or a change of members that keeps it from
                    // standing for election; the group is stopped as soon as it returns.
                    self.reads.borrow_mut().failed = Some(error);
                    let kind = raft::eraftpb::EntryType::EntryConfChangeV2;
                    let stop = || cache::raft_entry(low, self.compacted.1, kind, bytes::Bytes::new());
                    return Ok(if max_size.is_some() { Vec::new() } else { vec![stop()] });
                }
            }
            if (out.len() as u64) < high.min(first) - low {
                return Ok(out);
            }
        }
        let next = low + out.len() as u64;
        self.cache.collect(next, high, max_size.unwrap_or(u64::MAX), &mut out, &mut used);
        Ok(out)
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.compacted.0 {
            return Ok(self.compacted.1);
        }
        if index < self.compacted.0 {
            return Err(RaftStorageError::Compacted.into());
        }
        if index > self.last {
            return Err(RaftStorageError::Unavailable.into());
        }
        let cached = self.cache.get(index).map(|entry| entry.term);
        let term = cached.or_else(|| self.log.term(self.group, Index(index)).map(|term| term.0));
        term.ok_or_else(|| RaftStorageError::Unavailable.into())
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.compacted.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last)
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        match &self.offer {
            Some(offer) if offer.get_metadata().index >= request_index.max(self.compacted.0) => {
                // Who is to get it may be a member since a moment only.
                let metadata = offer.get_metadata();
                let hard = &self.hard;
                Ok(snapshots::make(metadata.index, metadata.term, &hard.configuration, hard.configured_at))
            }
            _ => {
                self.reads.borrow_mut().snapshot_wanted = true;
                Err(RaftStorageError::SnapshotTemporarilyUnavailable.into())
            }
        }
    }
}
