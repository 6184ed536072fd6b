//! The log of a node: one sequence of frames in preallocated files, for all groups.
//!
//! Any thread submits ([`Log::submit`]); the [`Writer`], on a thread of its own, takes all that has been submitted since
//! its last turn, writes it as one frame (or a few), syncs once, and reports per group what is durable. What is submitted
//! meanwhile is the next turn, so a slow device makes larger frames and no timer is needed. The writer is a plain object
//! with a [`Writer::turn`], so the simulator drives it without a thread.
//!
//! A file is needed while a group has not compacted past its entries, or a queue still has a body in it
//! ([`Log::retain`], [`Log::release`]). Files leave only at the old end, and only after a frame that says so is synced;
//! bodies that keep the oldest file alive too long are copied into segments ([`Log::copy_out_due`]).

pub mod frame;
pub mod header;
pub mod record;

mod builder;
mod files;
mod index;
mod maintenance;
mod pool;
mod reader;
mod recovery;
mod scan;
mod threads;
mod writer;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::{
    cache::ChunkCache,
    error::StorageError,
    fs::FileSystem,
    identity::Identity,
    types::{FileNumber, GroupId, Index, Location, Term, Ticket},
};

pub use reader::StoredEntry;
pub use recovery::{Recovered, TornTail};
pub use threads::LogThreads;
pub use writer::{Turn, Writer};

use files::LogFile;
use index::{FramePlace, Gap, GroupIndex};
use pool::Pool;
use record::{EntryRecord, GroupState, MAX_HARD_STATE_BYTES, Record};

/// What the log may use, and how careful it is when it opens. Sizes in bytes.
#[derive(Clone, Debug)]
pub struct LogOptions {
    /// Size of a file. 64 MiB: a switch costs four syncs, which is then nothing, and an idle node holds one file.
    pub file_bytes: u32,
    /// Size of a reserve file. Acks and votes are small; two of 8 MiB hold some hundred thousand of them.
    pub reserve_bytes: u32,
    /// Reserve files to hold for critical submissions on a full disk.
    pub reserve_files: usize,
    /// Recycled files to keep. The next file is prepared before it is needed, so that a switch need not wait for zeros; an
    /// idle node gives these back ([`Log::release_free_files`]).
    pub free_files: usize,
    /// New files are made only while so much stays free for the rest of the node (snapshots, segments).
    pub min_free_bytes: u64,
    /// A turn's submissions are cut into frames of about this size, so that a frame can be checked in one piece.
    pub frame_bytes: u32,
    /// Log size beyond which the oldest files are due to be copied out. 16 GiB: most backlogs drain from the log and are written once;
    /// opening reads the headers of its frames, some hundred thousand.
    pub budget_bytes: u64,
    /// The log may also be this much larger than twice what is live in it before copying out is due: space must follow
    /// live data (one old message must not pin gigabytes), but copying early is wasted when queues drain soon. 128 MiB: a
    /// device's work of half a second.
    pub slack_bytes: u64,
    /// Files are read and checked in chunks of about this size: what has to be read at most before a wanted entry, and what
    /// a sequential reader gets ahead. An index point of 24 bytes per group and chunk stays in memory: 3 MiB for 16 GiB.
    pub chunk_bytes: u32,
    /// Memory for chunks that were read.
    pub cache_bytes: usize,
    /// Which payloads are checked when the log opens. Frame headers and records always are.
    pub verify: Verify,
    /// Open a damaged log with what comes before the damage; what is lost is reported.
    pub accept_damage: bool,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            file_bytes: 64 << 20,
            reserve_bytes: 8 << 20,
            reserve_files: 2,
            free_files: 2,
            min_free_bytes: 0,
            frame_bytes: 1 << 20,
            budget_bytes: 16 << 30,
            slack_bytes: 128 << 20,
            chunk_bytes: 128 << 10,
            cache_bytes: 16 << 20,
            verify: Verify::Newest,
            accept_damage: false,
        }
    }
}

/// Which payloads are checked when the log opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// Those of the newest file, where a crash can have torn one. Older ones are checked when they are read: damage
    /// there is found late, but never passed on.
    Newest,
    /// All.
    All,
}

/// An entry to append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// At most the group's last index plus one; at or below the last it replaces the entry there and all after it.
    pub index: Index,
    /// Its term.
    pub term: Term,
    /// The caller's, stored as it is (raft's entry type).
    pub tag: u8,
    /// Written from where it is, without a copy.
    pub payload: Bytes,
}

/// Something to write for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Append an entry.
    Append(Entry),
    /// Remember the group's hard state (term, vote, commit): at most 4096 bytes.
    HardState(Bytes),
    /// Entries from here on are void.
    Truncate {
        /// The first void one.
        from: Index,
    },
    /// Entries up to here are no longer needed: a state snapshot that contains them is durable.
    CompactTo {
        /// The last one not needed.
        index: Index,
        /// Its term.
        term: Term,
    },
    /// A snapshot from elsewhere, already durable, replaces the group's log.
    SnapshotMark {
        /// The last index that it contains.
        index: Index,
        /// Its term.
        term: Term,
    },
    /// The group leaves this node: nothing of it is needed.
    Forget,
}

/// What is written all or not at all: the operations of one group (one raft `Ready`).
#[derive(Clone, Debug)]
pub struct Submission {
    /// Whose.
    pub group: GroupId,
    /// The caller's number; [`Completion`] names it. Must rise within a group.
    pub ticket: Ticket,
    /// May use the reserve when the disk is full: acks, removals, votes.
    pub critical: bool,
    /// Does not wake the writer: rides along with the next turn (a commit index, a compaction).
    pub lazy: bool,
    /// In order.
    pub operations: Vec<Operation>,
}

/// Where an entry's payload was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The entry.
    pub index: Index,
    /// Its payload; parts of it are `location.slice(..)`.
    pub location: Location,
}

/// What became durable for a group.
#[derive(Clone, Copy, Debug)]
pub struct Written<'a> {
    /// Whose.
    pub group: GroupId,
    /// This submission and all before it (except those reported as failed) are durable.
    pub up_to: Ticket,
    /// The entries among them, in the order of submission.
    pub placed: &'a [Placed],
}

/// Who hears what became of submissions. Called by the writer's thread between two turns: must be quick (push to a
/// mailbox) and must not call into the log except [`Log::submit`].
pub trait Completion: Send + Sync {
    /// Once per group and sync.
    fn written(&self, written: Written<'_>);
    /// Nothing of this submission was written, nor will be of the group's later ones until [`Log::resume`]. After
    /// [`StorageError::Stopped`] it may or may not be found at the next start.
    fn failed(&self, group: GroupId, ticket: Ticket, error: &StorageError);
}

/// What submissions the log takes at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// All.
    Open,
    /// No space for a next file: propose only what frees space. What is in flight still fits, or fails as `Full`.
    CriticalOnly,
    /// None, for good.
    Stopped,
}

/// Where a group's log stands, as far as it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupStatus {
    /// The last compacted index and its term; (0, 0) if none.
    pub compacted: (Index, Term),
    /// The last index; equal to the compacted one if there is no entry.
    pub last: Index,
    /// The latest hard state; empty if none.
    pub hard_state: Bytes,
}

/// Sizes, for metrics and for decisions about space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogUsage {
    /// Bytes of all files in the log's directory.
    pub disk_bytes: u64,
    /// Bytes of the files that hold the log, without free and reserve files.
    pub log_bytes: u64,
    /// Bytes that queues need ([`Log::retain`]).
    pub live_bytes: u64,
    /// Number of files that hold the log.
    pub files: usize,
    /// Bytes of payload submitted and not yet reported.
    pub pending_bytes: u64,
}

/// The handle: submit, read, account. Cheap to clone.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
}

/// What is in the log's mailbox.
enum Message {
    Submit(Submission),
    Resume(GroupId),
    /// From maintenance: files before this one will leave.
    Oldest(FileNumber),
}

#[derive(Default)]
struct Inbox {
    messages: Vec<Message>,
    /// Something in it wants to be written now.
    urgent: bool,
    closed: bool,
    pending_bytes: u64,
}

struct State {
    /// As in the options.
    chunk_bytes: u32,
    groups: BTreeMap<GroupId, GroupIndex>,
    files: BTreeMap<FileNumber, LogFile>,
    /// All groups have reported what they need of each file.
    accounted: bool,
    /// The durable announcement: files before this one may leave.
    oldest: FileNumber,
}

struct Shared {
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    options: LogOptions,
    identity: Identity,
    inbox: Mutex<Inbox>,
    wake_writer: Condvar,
    state: RwLock<State>,
    pool: Pool,
    cache: Mutex<ChunkCache>,
    stopped: RwLock<Option<StorageError>>,
    /// Set when there is something for maintenance to look at.
    maintenance: Mutex<bool>,
    wake_maintenance: Condvar,
}

impl Log {
    /// Opens or creates the log in `dir`, which the caller has locked. The writer must be driven for anything to be written.
    pub fn open(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        identity: Identity,
        options: LogOptions,
        completion: Arc<dyn Completion>,
    ) -> Result<(Log, Writer, Recovered), StorageError> {
        recovery::open(fs, dir, identity, options, completion)
    }

    /// Hands operations to the writer and returns at once. What becomes of them is told to the [`Completion`].
    pub fn submit(&self, submission: Submission) {
        let bytes = submission.payload_bytes();
        let mut inbox = self.shared.inbox.lock();
        inbox.pending_bytes += bytes;
        let first = inbox.messages.is_empty();
        let urgent = !submission.lazy && !inbox.urgent;
        inbox.urgent |= urgent;
        inbox.messages.push(Message::Submit(submission));
        drop(inbox);
        if first || urgent {
            self.shared.wake_writer.notify_one();
        }
    }

    /// Takes submissions of the group again after one failed. Until then all later ones of the group fail, too, so that
    /// nothing is written over a gap; the caller then submits again from the failed one on.
    pub fn resume(&self, group: GroupId) {
        let mut inbox = self.shared.inbox.lock();
        inbox.messages.push(Message::Resume(group));
    }

    /// What the log takes at the moment.
    pub fn admission(&self) -> Admission {
        if self.shared.stopped.read().is_some() {
            return Admission::Stopped;
        }
        if self.shared.pool.is_exhausted() { Admission::CriticalOnly } else { Admission::Open }
    }

    /// The error that stopped the log, if one did.
    pub fn stopped(&self) -> Option<StorageError> {
        self.shared.stopped.read().clone()
    }

    /// The groups that the log knows.
    pub fn groups(&self) -> Vec<GroupId> {
        self.shared.state.read().groups.keys().copied().collect()
    }

    /// Where a group stands; `None` if the log has nothing of it.
    pub fn status(&self, group: GroupId) -> Option<GroupStatus> {
        let state = self.shared.state.read();
        let log = state.groups.get(&group)?;
        Some(GroupStatus { compacted: log.compacted(), last: log.last(), hard_state: log.hard_state.clone() })
    }

    /// The term of a durable entry, or of the last compacted one.
    pub fn term(&self, group: GroupId, index: Index) -> Option<Term> {
        self.shared.state.read().groups.get(&group)?.term(index)
    }

    /// A queue needs so many bytes of a file. Must be called before the group compacts past the entry they are in.
    /// Bytes of files that are gone are ignored: they are in a segment.
    pub fn retain(&self, file: FileNumber, bytes: u64) {
        if let Some(file) = self.shared.state.read().files.get(&file) {
            file.retain(bytes);
        }
    }

    /// A queue no longer needs bytes that it retained.
    ///
    /// # Panics
    /// If more is released than was retained: the next step would be to lose a message.
    pub fn release(&self, file: FileNumber, bytes: u64) {
        let emptied = self.shared.state.read().files.get(&file).is_some_and(|file| file.release(bytes));
        if emptied {
            self.shared.wake_maintenance();
        }
    }

    /// After opening: all groups have restored their state and retained what they need. Before this no file leaves.
    pub fn accounting_complete(&self) {
        self.shared.state.write().accounted = true;
        self.shared.wake_maintenance();
    }

    /// Sizes.
    pub fn usage(&self) -> LogUsage {
        let free_bytes = self.shared.pool.bytes();
        let pending_bytes = self.shared.inbox.lock().pending_bytes;
        let state = self.shared.state.read();
        let log_bytes = state.log_bytes();
        LogUsage {
            disk_bytes: log_bytes + free_bytes,
            log_bytes,
            live_bytes: state.files.values().map(LogFile::live).sum(),
            files: state.files.len(),
            pending_bytes,
        }
    }
}

impl State {
    /// Notes where a durable frame is.
    fn note_frame(&mut self, place: FramePlace, length: u32) {
        let file = self.files.get_mut(&place.file).expect("frames are in files of the log");
        file.note_frame(place.offset, length, self.chunk_bytes);
    }

    /// Takes over a durable record.
    fn apply(&mut self, record: &Record, place: FramePlace) -> Result<(), Gap> {
        match record {
            Record::Entry(EntryRecord { group, index, .. }) => {
                let file = self.files.get_mut(&place.file).expect("frames are in files of the log");
                file.note_entry(*group, *index);
            }
            Record::Truncate { group, from } => {
                self.files.values_mut().for_each(|file| file.forget_from(*group, *from));
            }
            Record::Forget { group } | Record::SnapshotMark { group, .. } => {
                self.files.values_mut().for_each(|file| file.forget_from(*group, Index(0)));
            }
            _ => {}
        }
        match record {
            Record::OldestFile(file) => {
                if *file > place.file {
                    return Err(Gap { got: Index(file.0), last: Index(place.file.0) });
                }
                self.oldest = self.oldest.max(*file);
            }
            Record::Forget { group } => {
                self.groups.remove(group);
            }
            Record::GroupState(state) if !self.groups.contains_key(&state.group) => {
                if state.compacted.0 > state.last.0 {
                    return Err(Gap { got: state.compacted.0, last: state.last.0 });
                }
                self.groups.insert(state.group, GroupIndex::from_state(state));
            }
            Record::Sealed { .. } => {}
            Record::Entry(EntryRecord { group, .. })
            | Record::GroupState(GroupState { group, .. })
            | Record::HardState { group, .. }
            | Record::Truncate { group, .. }
            | Record::Compact { group, .. }
            | Record::SnapshotMark { group, .. } => {
                self.groups.entry(*group).or_default().apply(record, place, self.chunk_bytes)?
            }
        }
        Ok(())
    }

    fn log_bytes(&self) -> u64 {
        self.files.values().map(|file| u64::from(file.header.capacity)).sum()
    }
}

impl Shared {
    fn wake_maintenance(&self) {
        *self.maintenance.lock() = true;
        self.wake_maintenance.notify_one();
    }
}

impl Submission {
    fn payload_bytes(&self) -> u64 {
        self.operations
            .iter()
            .map(|operation| if let Operation::Append(entry) = operation { entry.payload.len() as u64 } else { 0 })
            .sum()
    }

    fn oversized_state(&self) -> Option<u64> {
        self.operations.iter().find_map(|operation| match operation {
            Operation::HardState(state) if state.len() > MAX_HARD_STATE_BYTES => Some(state.len() as u64),
            _ => None,
        })
    }
}
