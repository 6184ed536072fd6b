//! What a group has given to the log and not heard of yet, in order.
//!
//! A turn of raft becomes one write: entries and hard state that must be on disk together, and the messages that may leave
//! only then. If the log refuses for want of space, this line is what is submitted again; under new tickets, so that late
//! news of the first attempt is not taken for news of the second.

use std::{collections::VecDeque, time::Duration};

use raft::eraftpb::Message;
use storage::{GroupId, Location, Log, Operation, Placed, Submission, Ticket};

/// Something that has to be on disk.
#[derive(Default)]
pub(crate) struct Write {
    /// Rises from write to write, and stays through attempts.
    pub(crate) id: u64,
    /// Of the latest attempt; `None` if there is nothing to write, or it was not submitted yet.
    pub(crate) ticket: Option<Ticket>,
    /// Raft's number for the turn, if it is one.
    pub(crate) ready: Option<u64>,
    pub(crate) operations: Vec<Operation>,
    /// Leave when this is on disk.
    pub(crate) messages: Vec<Message>,
    /// The snapshot that the log begins anew with.
    pub(crate) restored: Option<(u64, u64)>,
    /// Does not hurry the log's writer.
    pub(crate) lazy: bool,
    /// When it came in line.
    pub(crate) since: Duration,
}

/// A write that is on disk.
pub(crate) struct Done {
    pub(crate) id: u64,
    pub(crate) ready: Option<u64>,
    pub(crate) messages: Vec<Message>,
    pub(crate) restored: Option<(u64, u64)>,
    pub(crate) placed: Vec<(u64, Location)>,
}

/// The line.
pub(crate) struct Writes {
    group: GroupId,
    line: VecDeque<Write>,
    next_id: u64,
    next_ticket: u64,
    /// The log refused for want of space: nothing is submitted until [`Writes::retry`].
    blocked: bool,
}

impl Writes {
    pub(crate) fn new(group: GroupId) -> Writes {
        Writes { group, line: VecDeque::new(), next_id: 1, next_ticket: 1, blocked: false }
    }

    /// The id that the next write will have.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Puts a write in line, and submits it.
    pub(crate) fn add(&mut self, log: &Log, mut write: Write, now: Duration) {
        write.id = self.next_id;
        self.next_id += 1;
        write.since = now;
        if !self.blocked {
            self.submit(log, &mut write);
        }
        self.line.push_back(write);
    }

    fn submit(&mut self, log: &Log, write: &mut Write) {
        if write.operations.is_empty() {
            return;
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        write.ticket = Some(ticket);
        // A vote, a compaction, the truth about members: never refused for want of space, as long as the reserve lasts.
        let critical = !write.operations.iter().any(|operation| matches!(operation, Operation::Append(_)));
        let operations = write.operations.clone();
        log.submit(Submission { group: self.group, ticket, critical, lazy: write.lazy, operations });
    }

    /// What is done, now that all up to `up_to` is on disk.
    pub(crate) fn written(&mut self, up_to: Ticket, placed: &[Placed]) -> Vec<Done> {
        let mut placed = placed.iter();
        let mut done = Vec::new();
        while let Some(front) = self.line.front() {
            let on_disk = match front.ticket {
                Some(ticket) => ticket <= up_to,
                None => front.operations.is_empty(),
            };
            if !on_disk {
                break;
            }
            let write = self.line.pop_front().expect("looked at");
            let appends = write.operations.iter().filter(|operation| matches!(operation, Operation::Append(_))).count();
            let places = placed.by_ref().take(appends).map(|placed| (placed.index.0, placed.location)).collect();
            done.push(Done {
                id: write.id,
                ready: write.ready,
                messages: write.messages,
                restored: write.restored,
                placed: places,
            });
        }
        done
    }

    /// What is done because there is nothing to wait for.
    pub(crate) fn empty_ones(&mut self) -> Vec<Done> {
        self.written(Ticket(0), &[])
    }

    /// The log has not written this submission. Whether that is news.
    pub(crate) fn refused(&mut self, ticket: Ticket) -> bool {
        let ours = self.line.iter().any(|write| write.ticket == Some(ticket));
        let news = ours && !self.blocked;
        if news {
            self.blocked = true;
            // Nothing of the line from here on was written: earlier ones are.
            self.line.iter_mut().filter(|write| write.ticket >= Some(ticket)).for_each(|write| write.ticket = None);
        }
        news
    }

    /// Submits again what was refused.
    pub(crate) fn retry(&mut self, log: &Log) {
        if !self.blocked {
            return;
        }
        self.blocked = false;
        log.resume(self.group);
        let mut line = std::mem::take(&mut self.line);
        for write in line.iter_mut().filter(|write| write.ticket.is_none()) {
            self.submit(log, write);
        }
        self.line = line;
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(crate) fn len(&self) -> usize {
        self.line.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Whether entries or a snapshot are on their way to disk.
    pub(crate) fn has_entries(&self) -> bool {
        let log = |operation: &Operation| matches!(operation, Operation::Append(_) | Operation::SnapshotMark { .. });
        self.line.iter().any(|write| write.operations.iter().any(log))
    }

    /// How long the oldest write takes already.
    pub(crate) fn waiting_for(&self, now: Duration) -> Duration {
        let waits = |write: &&Write| !write.operations.is_empty() && !write.lazy;
        self.line.iter().find(waits).map_or(Duration::ZERO, |write| now.saturating_sub(write.since))
    }
}
