//! What can go wrong, by what the caller does next.

use std::{fmt, io, path::PathBuf, sync::Arc};

use crate::types::{GroupId, Index};

/// Failures of the store. Cloneable, because one failed sync fails many submissions.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// No space. Nothing of the submission was written; call `Log::resume` and submit again when there is space, or
    /// submit it as critical.
    #[error("no space left on the device of {}", dir.display())]
    Full {
        /// The directory that could not grow.
        dir: PathBuf,
    },
    /// The log takes no more writes until the process restarts: a write or a sync failed, and what the device holds of
    /// it is unknown. Trying again would prove nothing.
    #[error("the log is stopped: {reason}")]
    Stopped {
        /// What failed, with the file.
        reason: Arc<str>,
    },
    /// Bytes that were synced are gone or changed. A replica of a cluster must not vote and has to be added anew; a
    /// single node can be started with `accept_damage`.
    #[error("{0}")]
    Damaged(Arc<Damage>),
    /// The file that the location names was recycled or deleted: look the message up in the segments.
    #[error("{} is gone", what)]
    Gone {
        /// Which file, and why it was wanted.
        what: String,
    },
    /// A submission that does not continue its group's log: a bug of the caller. Nothing of it was written.
    #[error("group {group}: index {got} does not continue the log, which ends at {last}")]
    OutOfOrder {
        /// Whose.
        group: GroupId,
        /// The index that was submitted.
        got: Index,
        /// The last index of the group.
        last: Index,
    },
    /// A submission that no file can hold. Nothing of it was written.
    #[error("a submission of {bytes} bytes is larger than a log file holds ({limit})")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The largest possible.
        limit: u64,
    },
    /// Another process has the data directory open.
    #[error("the data directory {} is in use by another process", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The data directory cannot be written: its owner, its rights, or a file system mounted read-only.
    #[error("the data directory {} is not writable: {source}", dir.display())]
    NotWritable {
        /// The directory.
        dir: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// Written by a newer release: upgrade, or restore from a backup.
    #[error("{} has format {found}; this release reads formats up to {supported}", file.display())]
    NewerFormat {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format known here.
        supported: u32,
    },
    /// A file of another node or cluster lies in the data directory.
    #[error("{} belongs to another node or cluster", file.display())]
    Foreign {
        /// The file.
        file: PathBuf,
    },
    /// The system refused; `source` says why. Rights, a read error, a missing directory.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was tried: "open", "read".
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: Arc<io::Error>,
    },
}

/// Synced bytes that are gone or changed: where, and what is lost with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file.
    pub file: PathBuf,
    /// Where the damage begins, in bytes from the start of the file.
    pub offset: u64,
    /// What is lost, in words for an operator.
    pub lost: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged at offset {}: {}", self.file.display(), self.offset, self.lost)
    }
}

impl StorageError {
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> StorageError {
        let path = path.into();
        move |source| {
            if is_full(&source) {
                let dir = path.parent().map(PathBuf::from).unwrap_or(path);
                return StorageError::Full { dir };
            }
            StorageError::Io { action, path, source: Arc::new(source) }
        }
    }

    pub(crate) fn damaged(file: impl Into<PathBuf>, offset: u64, lost: impl Into<String>) -> StorageError {
        StorageError::Damaged(Arc::new(Damage { file: file.into(), offset, lost: lost.into() }))
    }

    /// Whether waiting for space, and nothing else, helps.
    pub fn is_full(&self) -> bool {
        matches!(self, StorageError::Full { .. })
    }
}

/// Whether the system said "no space": ENOSPC or EDQUOT.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
