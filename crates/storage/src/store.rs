//! A data directory: one node's identity, lock, log, segments and snapshots.
//!
//! ```text
//! identity                         who the node is
//! lock                             held while a process has it open
//! log/00000000000000000001.log     the log; free-N and reserve-N wait to become part of it
//! segments/0...1.segment           bodies that outlived their log file
//! snapshots/meta.0...1.snapshot    states
//! ```

use std::{
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    error::StorageError,
    fs::{FileSystem, Lock},
    identity::Identity,
    log::{Completion, Log, LogOptions, Recovered, Writer},
    segment::{SegmentOptions, Segments, SegmentsRecovered},
    snapshot::Snapshots,
};

/// Options of all parts.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// Of the log.
    pub log: LogOptions,
    /// Of the segments.
    pub segments: SegmentOptions,
}

impl StoreOptions {
    /// Open a damaged store without what is lost.
    pub fn accept_damage(mut self) -> StoreOptions {
        self.log.accept_damage = true;
        self.segments.accept_damage = true;
        self
    }
}

/// What opening found to mend or to report.
#[derive(Clone, Debug, Default)]
pub struct StoreRecovered {
    /// In the log.
    pub log: Recovered,
    /// In the segments.
    pub segments: SegmentsRecovered,
}

/// An open data directory.
pub struct Store {
    /// Where it is.
    pub dir: PathBuf,
    /// Whose it is.
    pub identity: Identity,
    /// Its log.
    pub log: Log,
    /// Its segments.
    pub segments: Segments,
    /// Its snapshots.
    pub snapshots: Snapshots,
    fs: Arc<dyn FileSystem>,
    _lock: Box<dyn Lock>,
}

impl Store {
    /// Opens a data directory, or makes one. Drive the writer, or start it with [`crate::LogThreads`].
    ///
    /// # Errors
    /// `InUse`, `NotWritable`, `NewerFormat`, `Foreign`, `Damaged`: refusals that say what is wrong with which file.
    pub fn open(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        options: StoreOptions,
        completion: Arc<dyn Completion>,
    ) -> Result<(Store, Writer, StoreRecovered), StorageError> {
        fs.create_dir(dir).map_err(|error| refusal(dir, "create", error))?;
        let lock = fs.lock(&dir.join("lock")).map_err(|error| refusal(dir, "lock", error))?;
        let (log_dir, segments_dir) = (dir.join("log"), dir.join("segments"));
        let identity = match Identity::load(&*fs, dir)? {
            Some(identity) => identity,
            None if fs.list(&log_dir).is_ok_and(|files| !files.is_empty()) => {
                return Err(StorageError::damaged(
                    dir.join("identity"),
                    0,
                    "the identity of the node: the file is missing",
                ));
            }
            None => Identity::create(&*fs, dir).map_err(|error| match error {
                StorageError::Io { source, .. } if is_read_only(&source) => {
                    StorageError::NotWritable { dir: dir.to_path_buf(), source }
                }
                error => error,
            })?,
        };
        let snapshots = Snapshots::open(fs.clone(), &dir.join("snapshots"), identity.node)?;
        let (segments, of_segments) = Segments::open(fs.clone(), &segments_dir, identity.node, options.segments)?;
        let (log, writer, of_log) = Log::open(fs.clone(), &log_dir, identity, options.log, completion)?;
        fs.sync_dir(dir).map_err(StorageError::io("sync", dir))?;
        let store = Store { dir: dir.to_path_buf(), identity, log, segments, snapshots, fs, _lock: lock };
        Ok((store, writer, StoreRecovered { log: of_log, segments: of_segments }))
    }

    /// The node becomes a member of a cluster. A member stays one: another cluster needs an empty data directory.
    ///
    /// # Errors
    /// `Foreign` if the node is a member of another cluster.
    pub fn join_cluster(&mut self, cluster: [u8; 16]) -> Result<(), StorageError> {
        if self.identity.cluster == cluster {
            return Ok(());
        }
        if self.identity.cluster != [0; 16] {
            return Err(StorageError::Foreign { file: self.dir.join("identity") });
        }
        let identity = Identity { cluster, ..self.identity };
        identity.store(&*self.fs, &self.dir)?;
        self.identity = identity;
        Ok(())
    }

    /// Bytes that may still be allocated on the file system of the data directory.
    pub fn free_bytes(&self) -> Result<u64, StorageError> {
        self.fs.free_bytes(&self.dir).map_err(StorageError::io("look at", &self.dir))
    }
}

fn is_read_only(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

fn refusal(dir: &Path, action: &'static str, error: std::io::Error) -> StorageError {
    let dir = dir.to_path_buf();
    match error.kind() {
        ErrorKind::WouldBlock => StorageError::InUse { dir },
        _ if is_read_only(&error) => StorageError::NotWritable { dir, source: Arc::new(error) },
        _ => StorageError::io(action, dir)(error),
    }
}
