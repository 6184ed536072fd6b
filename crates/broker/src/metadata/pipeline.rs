//! The way of changes into the log and back: gathered into entries, submitted, kept until they are durable, and, when the disk is full,
//! kept back until there is space.
//!
//! ```text
//!            submissions            written
//! waiting ───────────────▶ in flight ──────▶ to be applied
//!    ▲                         │ failed: no space
//!    └─────────────────────────┘
//! ```
//! On a full disk changes that take something away go first, with the log's reserve, and those that add wait: a client is then neither
//! refused nor told of something that is not on disk. Changes that overtake each other so are of different channels, which promise each
//! other no order; what depends on an earlier change was asked for after that one took effect.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::BytesMut;
use queue::{QueueId, Token};
use storage::{Entry, Index, Operation, Submission, Term, Ticket};

use super::apply::Applied;
use super::op::{Change, ENTRY_FORMAT, Op};
use crate::connection::ConnectionHandle;
use crate::store::METADATA;

/// Changes in an entry at most: their places in it are the low 16 bits of the ids of queues.
const MAX_ENTRY_CHANGES: usize = 1 << PLACE_BITS;
/// Bits of a queue's id that say which change of the entry made it.
pub(super) const PLACE_BITS: u32 = 16;
/// An entry this large is not added to. As with those of queues, a follower gets it in one piece.
const ENTRY_BYTES: usize = 256 * 1024;
/// The only term there is, as long as a node is alone.
pub(super) const TERM: Term = Term(1);

/// Who waits for an answer.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    /// The connection.
    pub(crate) handle: Arc<ConnectionHandle>,
    /// What the answer is known by there.
    pub(crate) token: Token,
}

/// What an asker waits for, when it asked for no change of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Earlier {
    /// All changes that were asked for before.
    All,
    /// Those of them that take something away: on a full disk the others may take long.
    Removals,
}

/// Something on its way.
#[derive(Debug)]
pub(super) enum Item {
    /// A change. `cascade`: the task itself asked for it, because of a change that was applied.
    Change { change: Change, asker: Option<Asker>, cascade: bool },
    /// An answer that is due when earlier changes have taken effect.
    Answer { after: Earlier, asker: Asker, applied: Applied },
}

impl Item {
    /// Whether it need not wait for changes that add something.
    fn is_removal(&self) -> bool {
        match self {
            Self::Change { change, .. } => change.op.is_removal(),
            Self::Answer { after, .. } => *after == Earlier::Removals,
        }
    }
}

/// An entry on its way to the disk, and what takes effect when it is there.
#[derive(Debug)]
struct Batch {
    ticket: Ticket,
    index: Index,
    critical: bool,
    items: Vec<Item>,
}

/// How much space the log has, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Space {
    Enough,
    /// A submission failed: only the reserve is left.
    Reserve,
    /// One that may use the reserve failed, too.
    None,
}

/// The pipeline.
///
/// Invariants:
/// - the batches in flight have consecutive indexes and rising tickets, and `next_index` is the one after them;
/// - an answer behind the last change in flight is in that change's batch.
#[derive(Debug)]
pub(super) struct Pipeline {
    next_index: Index,
    next_ticket: Ticket,
    waiting: Vec<Item>,
    in_flight: VecDeque<Batch>,
    space: Space,
    durable_shards: u32,
}

impl Pipeline {
    /// A pipeline behind a log whose last entry has this index.
    pub(super) fn new(last: Index, durable_shards: u32) -> Self {
        Self {
            next_index: last.next(),
            next_ticket: Ticket(1),
            waiting: Vec::new(),
            in_flight: VecDeque::new(),
            space: Space::Enough,
            durable_shards,
        }
    }

    /// Takes something in.
    pub(super) fn add(&mut self, item: Item) {
        self.waiting.push(item);
    }

    /// Makes submissions of what waits, as far as there is space. What is due at once, because nothing is before it, is appended to `due`.
    pub(super) fn submissions(&mut self, due: &mut Vec<Item>) -> Vec<Submission> {
        let mut items = match self.space {
            Space::Enough => std::mem::take(&mut self.waiting),
            Space::Reserve => self.waiting.extract_if(.., |item| item.is_removal()).collect(),
            Space::None => return Vec::new(),
        }
        .into_iter()
        .peekable();
        let mut submissions = Vec::new();
        while items.peek().is_some() {
            let entry = self.fill_entry(&mut items);
            if let Some(submission) = self.submission(entry, due) {
                submissions.push(submission);
            }
        }
        submissions
    }

    /// Takes as much as fits an entry, and encodes it.
    fn fill_entry(&mut self, items: &mut impl Iterator<Item = Item>) -> FilledEntry {
        let mut entry = FilledEntry { payload: BytesMut::from(&[ENTRY_FORMAT][..]), ..FilledEntry::default() };
        for mut item in items {
            if let Item::Change { change, .. } = &mut item {
                self.identify(&mut change.op, entry.changes);
                change.encode(&mut entry.payload);
                entry.changes += 1;
                entry.adds |= !change.op.is_removal();
            }
            entry.items.push(item);
            if entry.changes == MAX_ENTRY_CHANGES || entry.payload.len() >= ENTRY_BYTES {
                break;
            }
        }
        entry
    }

    /// Gives a new queue its identity, and from that its shard.
    fn identify(&self, op: &mut Op, place: usize) {
        if let Op::DeclareQueue(declare) = op {
            let place = u64::try_from(place).expect("at most 65,535");
            declare.id = QueueId(self.next_index.0 << PLACE_BITS | place);
            declare.shard = shard_of(declare.id, self.durable_shards);
        }
    }

    fn submission(&mut self, entry: FilledEntry, due: &mut Vec<Item>) -> Option<Submission> {
        let FilledEntry { payload, items, changes, adds } = entry;
        if changes == 0 {
            match self.in_flight.back_mut() {
                Some(last) => last.items.extend(items),
                None => due.extend(items),
            }
            return None;
        }
        let (ticket, index, critical) = (self.take_ticket(), self.next_index, !adds);
        self.next_index = index.next();
        self.in_flight.push_back(Batch { ticket, index, critical, items });
        let entry = Entry { index, term: TERM, tag: 0, payload: payload.freeze() };
        let operations = vec![Operation::Append(entry)];
        Some(Submission { group: METADATA, ticket, critical, lazy: false, operations })
    }

    /// All submissions up to the ticket are durable: what takes effect now, with the index of its entry.
    pub(super) fn written(&mut self, up_to: Ticket) -> Vec<(Index, Vec<Item>)> {
        let durable = self.in_flight.iter().take_while(|batch| batch.ticket <= up_to).count();
        self.in_flight.drain(..durable).map(|batch| (batch.index, batch.items)).collect()
    }

    /// There was no space for a submission, and all later ones fail with it: their changes wait again. Answers whether that is news,
    /// so that the log is to be resumed; a later submission of the same failure is none.
    pub(super) fn no_space(&mut self, ticket: Ticket) -> bool {
        let Some(at) = self.in_flight.iter().position(|batch| batch.ticket == ticket) else { return false };
        let failed = self.in_flight.split_off(at);
        let first = failed.front().expect("the failed one is among them");
        self.next_index = first.index;
        self.space = if first.critical { Space::None } else { Space::Reserve };
        let items = failed.into_iter().flat_map(|batch| batch.items);
        self.waiting.splice(..0, items);
        true
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Whether this submission is in flight.
    pub(super) fn has(&self, ticket: Ticket) -> bool {
        self.in_flight.iter().any(|batch| batch.ticket == ticket)
    }

    /// A ticket for a submission without changes.
    pub(super) fn take_ticket(&mut self) -> Ticket {
        let ticket = self.next_ticket;
        self.next_ticket.0 += 1;
        ticket
    }

    /// Whether something waits for space.
    pub(super) fn is_short_of_space(&self) -> bool {
        self.space != Space::Enough
    }

    /// Time to look for space again: `open` if the log takes all submissions.
    pub(super) fn look_for_space(&mut self, open: bool) {
        self.space = if open { Space::Enough } else { Space::Reserve };
    }

    /// Everything that waits or is in flight, in order: the log has stopped.
    pub(super) fn give_up(&mut self) -> Vec<Item> {
        let in_flight = std::mem::take(&mut self.in_flight).into_iter().flat_map(|batch| batch.items);
        let mut items: Vec<Item> = in_flight.collect();
        items.append(&mut self.waiting);
        items
    }
}

/// An entry in the making.
#[derive(Default)]
struct FilledEntry {
    payload: BytesMut,
    items: Vec<Item>,
    changes: usize,
    /// At least one change adds something.
    adds: bool,
}

/// Spreads queues over the shards: neighbours in the log are mixed, or queues that are made in turns would share a shard.
fn shard_of(id: QueueId, shards: u32) -> u32 {
    // The finalizer of MurmurHash3: every bit of the id reaches every bit of the result.
    let mut hash = id.0;
    hash = (hash ^ hash >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    hash = (hash ^ hash >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    hash ^= hash >> 33;
    u32::try_from(hash % u64::from(shards)).expect("less than the shards")
}
