//! The node's log, segments, state snapshots, and their recovery. See ARCHITECTURE.md.

mod cache;
mod codec;
mod error;
pub mod fs;
pub mod identity;
pub mod log;
mod slow_sync;
mod types;

pub use error::{Damage, StorageError};
pub use fs::{DiskFs, File, FileSystem};
pub use identity::Identity;
pub use log::{
    Admission, Completion, Entry, GroupStatus, Log, LogOptions, LogThreads, LogUsage, Operation, Placed, Recovered,
    StoredEntry, Submission, TornTail, Turn, Verify, Writer, Written,
};
pub use slow_sync::SlowSync;
pub use types::{
    FileId, FileKind, FileNumber, FrameNumber, GroupId, Index, Location, QueueKey, SegmentNumber, Term, Ticket,
};
