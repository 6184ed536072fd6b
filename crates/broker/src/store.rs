//! The node's log as the broker uses it: one directory, one log, a group for the metadata and one for each durable shard.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use storage::{
    Completion, DiskFs, FileSystem, GroupId, Identity, Log, LogOptions, LogThreads, Placed, Recovered, SegmentOptions,
    Segments, Snapshots, StorageError, Ticket, Written,
};

/// The group of the metadata.
pub(crate) const METADATA: GroupId = GroupId(0);

/// The group of a durable shard.
pub(crate) fn shard_group(durable_shard: u32) -> GroupId {
    GroupId(durable_shard + 1)
}

/// Who hears what became of a group's submissions. Called by the log's writer thread: must be quick.
pub(crate) trait GroupListener: Send + Sync {
    /// All submissions up to this ticket are durable.
    fn written(&self, up_to: Ticket, placed: &[Placed]);
    /// Nothing of this submission was written.
    fn failed(&self, ticket: Ticket, error: &StorageError);
}

/// The open data directory.
pub(crate) struct Store {
    log: Log,
    snapshots: Snapshots,
    segments: Segments,
    fs: Arc<dyn FileSystem>,
    dir: PathBuf,
    threads: Mutex<Option<LogThreads>>,
    accept_damage: bool,
    listeners: Arc<Listeners>,
    _lock: Box<dyn storage::fs::Lock>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("usage", &self.log.usage()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Listeners {
    groups: RwLock<FxHashMap<GroupId, Arc<dyn GroupListener>>>,
}

impl Completion for Listeners {
    fn written(&self, written: Written<'_>) {
        if let Some(listener) = self.groups.read().get(&written.group) {
            listener.written(written.up_to, written.placed);
        }
    }

    fn failed(&self, group: GroupId, ticket: Ticket, error: &StorageError) {
        if let Some(listener) = self.groups.read().get(&group) {
            listener.failed(ticket, error);
        }
    }
}

impl Store {
    /// Opens or makes the data directory and recovers its log. Nothing is written before [`Store::start`].
    ///
    /// # Errors
    /// A directory that is in use, cannot be written, is of a newer format, or is damaged.
    pub(crate) fn open(dir: &Path, options: LogOptions) -> Result<(Self, storage::Writer, Recovered), StorageError> {
        let fs: Arc<dyn FileSystem> = Arc::new(DiskFs);
        fs.create_dir(dir).map_err(refusal("create", dir))?;
        let lock = fs.lock(&dir.join("lock")).map_err(refusal("lock", dir))?;
        let identity = match Identity::load(&*fs, dir)? {
            Some(identity) => identity,
            // With a new identity what is there would be another node's.
            None if holds_data(&*fs, dir) => {
                let lost = "the file is missing, and with it the identity of the node whose data is here";
                return Err(StorageError::damaged(dir.join("identity"), 0, lost));
            }
            None => {
                sync_parent(&*fs, dir);
                Identity::create(&*fs, dir)?
            }
        };
        let snapshots = Snapshots::open(Arc::clone(&fs), &dir.join("snapshots"), identity.node)?;
        let accept_damage = options.accept_damage;
        let options_of_segments = SegmentOptions { accept_damage, ..SegmentOptions::default() };
        let (segments, _) = Segments::open(Arc::clone(&fs), &dir.join("segments"), identity.node, options_of_segments)?;
        let listeners = Arc::new(Listeners::default());
        let completion = Arc::clone(&listeners) as Arc<dyn Completion>;
        let (log, writer, recovered) = Log::open(Arc::clone(&fs), &dir.join("log"), identity, options, completion)?;
        // The directories that were just made: what is promised of their contents holds for them, too.
        fs.sync_dir(dir).map_err(io("sync", dir))?;
        let (dir, threads) = (dir.to_path_buf(), Mutex::new(None));
        let store = Self { log, snapshots, segments, fs, dir, threads, accept_damage, listeners, _lock: lock };
        Ok((store, writer, recovered))
    }

    /// Starts the log's threads.
    ///
    /// # Errors
    /// No thread could be started.
    pub(crate) fn start(&self, writer: storage::Writer) -> std::io::Result<()> {
        *self.threads.lock() = Some(LogThreads::start(self.log.clone(), writer)?);
        Ok(())
    }

    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    pub(crate) fn snapshots(&self) -> &Snapshots {
        &self.snapshots
    }

    pub(crate) fn segments(&self) -> &Segments {
        &self.segments
    }

    pub(crate) fn fs(&self) -> &Arc<dyn FileSystem> {
        &self.fs
    }

    /// Whether the node is to start without what is lost.
    pub(crate) fn accepts_damage(&self) -> bool {
        self.accept_damage
    }

    /// The data directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Names who hears of a group. Comes before its first submission.
    pub(crate) fn listen(&self, group: GroupId, listener: Arc<dyn GroupListener>) {
        self.listeners.groups.write().insert(group, listener);
    }

    /// Writes what was submitted and ends the log's threads. Blocks for as long as that takes.
    pub(crate) fn close(&self) {
        if let Some(threads) = self.threads.lock().take() {
            threads.close();
        }
    }
}

/// Whether a node has used the data directory.
fn holds_data(fs: &dyn FileSystem, dir: &Path) -> bool {
    ["log", "snapshots", "segments"].iter().any(|part| fs.list(&dir.join(part)).is_ok_and(|files| !files.is_empty()))
}

/// The name of a new data directory is to last as well. Its parent may be somebody else's, and not to be opened: then that is their affair.
fn sync_parent(fs: &dyn FileSystem, dir: &Path) {
    if let Some(parent) = dir.parent()
        && let Err(error) = fs.sync_dir(parent)
    {
        tracing::debug!(dir = %parent.display(), %error, "the directory of the data directory cannot be synced");
    }
}

fn refusal<'a>(action: &'static str, dir: &'a Path) -> impl FnOnce(std::io::Error) -> StorageError + 'a {
    move |error| {
        let dir = dir.to_path_buf();
        match error.kind() {
            ErrorKind::WouldBlock => StorageError::InUse { dir },
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                StorageError::NotWritable { dir, source: Arc::new(error) }
            }
            _ => io(action, &dir)(error),
        }
    }
}

fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> StorageError + 'a {
    move |error| StorageError::Io { action, path: path.to_path_buf(), source: Arc::new(error) }
}
