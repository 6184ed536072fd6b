//! What a node keeps on disk: its log, segments, state snapshots, and their recovery. It knows groups, indexes and bytes,
//! but neither AMQP nor raft.
//!
//! # How it is used
//!
//! [`Store::open`] locks a data directory, recovers it, and returns the [`Log`] with its [`Writer`], the [`Segments`] and
//! the [`Snapshots`]. A shard then lives like this (`tests/copy_out_power_loss.rs` is a small complete one):
//!
//! 1. It submits entries, hard state and so on ([`Log::submit`]). All groups share the writer: one turn writes what has been
//!    submitted since the last as one frame and one fdatasync, and tells each group what is durable and where
//!    ([`Completion`]).
//! 2. It applies an entry, and its queues keep the [`Location`] of a body instead of the body: [`Log::retain`] on enqueue,
//!    [`Log::release`] when the message is settled.
//! 3. Now and then it stores its state ([`Snapshots::store`]) and compacts its log up to there
//!    ([`Operation::CompactTo`]). Log files without entries or bodies that somebody needs are recycled by themselves.
//! 4. When [`Log::copy_out_due`] names files, it copies its messages in them into segments ([`Segments::copy_out`]), points its
//!    queues there, counts ([`Segments::adopt`]), and releases the old places. [`Segments::rewrite_due`] likewise.
//! 5. After a start it loads the snapshot, replays the entries behind it ([`Log::entries`]), and only then looks where its
//!    messages are: in the log if the file is not older than [`Log::oldest_file`], else in a segment
//!    ([`Segments::find`], [`Segments::runs`]). It retains the former, has the latter counted ([`Segments::recount`]); when all
//!    shards have, [`Log::accounting_complete`] allows files to go. Places in a snapshot may be out of date, queue and
//!    sequence never are.
//!
//! # When the disk is full
//!
//! The next log file is prepared ahead, so [`Log::admission`] says [`Admission::CriticalOnly`] while what is in flight still
//! fits: propose nothing then but what frees space. A submission that does not fit fails as [`StorageError::Full`], and all
//! later ones of its group, until [`Log::resume`]; a small reserve stays for submissions marked critical. A failed write or
//! sync stops the log for good.
//!
//! # What the device rewards
//!
//! Measured with `cargo bench -p warrenmq-storage --bench device` (ext4 on a virtual disk, 2 cores, quiet; compare within a
//! row, medians of one sync):
//!
//! | | 1.1 KB | 64 KiB | 1 MiB |
//! |---|---|---|---|
//! | growing / allocated / zeroed file, µs | 176 / 133 / 142 | 369 / 395 / 208 | 2389 / 2395 / 1596 |
//! | 1 / 2 / 4 lanes, MB/s | 4.8 / 7.4 / 8.7 | 249 / 274 / 306 | 559 / 644 / 624 |
//!
//! So files are written once with zeros and recycled: a sync of 64 KiB then costs half, for there is no extent to convert. And
//! one lane is enough: several lanes make more syncs, but hardly more bytes where it counts, and each waits longer; the
//! same gain comes from larger frames without splitting the order of the log. With eight submitters of 64 KiB each a
//! group commit took 0.54 ms per batch where a bare write and fdatasync of one took 4.0 ms and one submitter 4.1 ms
//! (`--bench log`, on a busy machine).
//!
//! The formats are drawn in `docs/formats.md`.

mod cache;
mod codec;
mod error;
pub mod fs;
pub mod identity;
mod interval;
pub mod log;
pub mod segment;
mod sim_fs;
mod sim_rng;
mod slow_sync;
pub mod snapshot;
mod store;
mod types;

pub use error::{Damage, StorageError};
pub use fs::{DiskFs, File, FileSystem};
pub use identity::Identity;
pub use interval::Interval;
pub use log::{
    Admission, Completion, Entry, GroupStatus, Log, LogOptions, LogThreads, LogUsage, Operation, Placed, Recovered,
    StoredEntry, Submission, TornTail, Turn, Verify, Writer, Written,
};
pub use segment::{Alive, HEAD_BYTES, Message, RUN_BYTES, Run, SegmentOptions, Segments, SegmentsRecovered, Survivor};
pub use sim_fs::{SECTOR_BYTES, SimFault, SimFs};
pub use sim_rng::SimRng;
pub use slow_sync::SlowSync;
pub use snapshot::{LoadedSnapshot, Snapshots};
pub use store::{Store, StoreOptions, StoreRecovered};
pub use types::{
    FileId, FileKind, FileNumber, FrameNumber, GroupId, Index, Location, QueueKey, SegmentNumber, Term, Ticket,
};
