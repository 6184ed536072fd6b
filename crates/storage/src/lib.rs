//! The node's log, segments, state snapshots, and their recovery. See ARCHITECTURE.md.

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
pub use segment::{Message, Run, SegmentOptions, Segments, SegmentsRecovered, Survivor};
pub use sim_fs::{SECTOR_BYTES, SimFault, SimFs};
pub use sim_rng::SimRng;
pub use slow_sync::SlowSync;
pub use snapshot::{LoadedSnapshot, Snapshots};
pub use store::{Store, StoreOptions, StoreRecovered};
pub use types::{
    FileId, FileKind, FileNumber, FrameNumber, GroupId, Index, Location, QueueKey, SegmentNumber, Term, Ticket,
};
