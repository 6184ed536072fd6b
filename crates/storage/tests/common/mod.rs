//! What the tests of the log share: small options, a completion that remembers, and a model of a group.

#![allow(dead_code, unreachable_pub, missing_docs)] // each test file uses a part of it

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use parking_lot::Mutex;
use warrenmq_storage::{
    Completion, Entry, GroupId, Index, Location, Log, LogOptions, Operation, StorageError, Submission, Term, Ticket,
    Verify, Written,
};

/// Small files, so that a test goes through many.
pub fn small_options() -> LogOptions {
    LogOptions {
        file_bytes: 32 << 10,
        reserve_bytes: 16 << 10,
        reserve_files: 2,
        frame_bytes: 4 << 10,
        chunk_bytes: 4 << 10,
        cache_bytes: 16 << 10,
        budget_bytes: 256 << 10,
        slack_bytes: 64 << 10,
        verify: Verify::All,
        ..LogOptions::default()
    }
}

/// What the writer reported.
#[derive(Clone, Debug)]
pub enum Event {
    Written { group: GroupId, up_to: Ticket, placed: Vec<(Index, Location)> },
    Failed { group: GroupId, ticket: Ticket, error: StorageError },
}

/// Remembers every report.
#[derive(Default)]
pub struct Events(Mutex<Vec<Event>>);

impl Events {
    pub fn new() -> Arc<Events> {
        Arc::new(Events::default())
    }

    pub fn take(&self) -> Vec<Event> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Completion for Events {
    fn written(&self, written: Written<'_>) {
        let placed = written.placed.iter().map(|placed| (placed.index, placed.location)).collect();
        self.0.lock().push(Event::Written { group: written.group, up_to: written.up_to, placed });
    }

    fn failed(&self, group: GroupId, ticket: Ticket, error: &StorageError) {
        self.0.lock().push(Event::Failed { group, ticket, error: error.clone() });
    }
}

/// What a group's log should contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    pub compacted: (Index, Term),
    pub entries: VecDeque<Entry>,
    pub hard_state: Bytes,
}

impl Model {
    pub fn last(&self) -> Index {
        Index(self.compacted.0.0 + self.entries.len() as u64)
    }

    pub fn term(&self, index: Index) -> Term {
        match index.0.checked_sub(self.compacted.0.0 + 1) {
            None => self.compacted.1,
            Some(at) => self.entries[at as usize].term,
        }
    }

    pub fn apply(&mut self, operation: &Operation) {
        let keep = |from: Index, model: &Model| (from.0 - model.compacted.0.0 - 1) as usize;
        match operation {
            Operation::Append(entry) => {
                self.entries.truncate(keep(entry.index, self));
                self.entries.push_back(entry.clone());
            }
            Operation::HardState(state) => self.hard_state = state.clone(),
            Operation::Truncate { from } => self.entries.truncate(keep(*from, self)),
            Operation::CompactTo { index, term } => {
                while self.compacted.0 < *index {
                    self.entries.pop_front();
                    self.compacted.0 = self.compacted.0.next();
                }
                self.compacted.1 = *term;
            }
            Operation::SnapshotMark { index, term } => {
                self.compacted = (*index, *term);
                self.entries.clear();
            }
            Operation::Forget => *self = Model::default(),
        }
    }

    /// What the log has of the group.
    pub fn read(log: &Log, group: GroupId) -> Result<Model, StorageError> {
        let Some(status) = log.status(group) else { return Ok(Model::default()) };
        let mut model = Model { compacted: status.compacted, entries: VecDeque::new(), hard_state: status.hard_state };
        while model.last() < status.last {
            for entry in log.entries(group, model.last().next(), 5000)? {
                assert_eq!(entry.index, model.last().next());
                assert_eq!(log.term(group, entry.index), Some(entry.term));
                let payload = Bytes::copy_from_slice(&entry.payload);
                model.entries.push_back(Entry { index: entry.index, term: entry.term, tag: entry.tag, payload });
            }
        }
        Ok(model)
    }
}

/// An ordinary submission.
pub fn submission(group: u32, ticket: u64, operations: Vec<Operation>) -> Submission {
    Submission { group: GroupId(group), ticket: Ticket(ticket), critical: false, lazy: false, operations }
}

/// Appends one entry.
pub fn append(index: u64, term: u64, payload: impl Into<Bytes>) -> Operation {
    Operation::Append(Entry { index: Index(index), term: Term(term), tag: 0, payload: payload.into() })
}
