//! What a node does with its metadata when it starts: the newest good snapshot, then the entries behind it.

use queue::{QueueId, Settings};
use rustc_hash::FxHashSet;
use storage::{Index, LoadedSnapshot, Log, Snapshots, StorageError};

use super::admin;
use super::apply::apply;
use super::op::{Change, Changes, Op, OpError, WITHOUT_VHOSTS, check_format};
use super::pipeline::PLACE_BITS;
use super::snapshot;
use super::task::SnapshotState;
use crate::directory::Directory;
use crate::store::METADATA;

/// Bytes of entries that are read at once.
const READ_BYTES: u64 = 4 << 20;

/// Why the metadata cannot be recovered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// The log or a snapshot cannot be read.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The log begins behind what the snapshots contain: one that is needed is damaged or missing.
    #[error(
        "exchanges, queues and bindings are lost: {what}, and the log begins at its entry {first}, behind entry {contained} \
         that the next older snapshot ends with; restore the file from a backup of the data directory"
    )]
    Gap {
        /// What is damaged or missing.
        what: String,
        /// The first entry in the log.
        first: Index,
        /// The last entry in the snapshots.
        contained: Index,
    },
    /// The bytes are whole, but not what this release writes.
    #[error("{place} of the exchanges, queues and bindings cannot be read: {source}")]
    Unreadable {
        /// Which entry, or the snapshot.
        place: String,
        /// What is wrong.
        source: OpError,
    },
    /// A queue with an identity that is taken, or that does not fit its place.
    #[error("{place} of the exchanges, queues and bindings makes the queue '{name}' with the impossible id {id}")]
    QueueId {
        /// Which entry, or the snapshot.
        place: String,
        /// The queue's name.
        name: Box<str>,
        /// The identity.
        id: u64,
    },
    /// The node is set to fewer shards than the data directory was made for.
    #[error("the queue '{name}' lives on durable shard {shard}, but the node is set to {shards} durable shards")]
    Shards {
        /// The queue.
        name: Box<str>,
        /// Its shard, from 0.
        shard: u32,
        /// The number of shards.
        shards: u32,
    },
}

/// By durable shard: the queues that are on it, and how they behave.
pub(crate) type RecoveredQueues = Vec<Vec<(QueueId, Settings)>>;

/// Where the metadata stands after recovery.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recovered {
    pub(super) applied: Index,
    /// The log has to be told to go on behind the snapshot.
    pub(super) ahead_of_log: bool,
    pub(super) snapshots: SnapshotState,
}

/// Fills the directory with what is durable.
///
/// # Errors
/// Damage that loses something, unless `accept_damage`; data of a newer release or for more shards.
pub(crate) fn recover(
    log: &Log,
    snapshots: &Snapshots,
    directory: &Directory,
    local_shards: u32,
    durable_shards: u32,
    accept_damage: bool,
) -> Result<Recovered, RecoveryError> {
    let mut replay = Replay { directory, local_shards, durable_shards, ids: FxHashSet::default() };
    let status = log.status(METADATA);
    let (compacted, last) = status.map_or((Index(0), Index(0)), |status| (status.compacted.0, status.last));
    let loaded = match snapshots.load(snapshot::NAME) {
        Err(StorageError::Damaged(damage)) if compacted == Index(0) => {
            tracing::error!(%damage, "no snapshot is good, but the log goes back to the beginning");
            None
        }
        Err(StorageError::Damaged(damage)) if accept_damage => {
            tracing::error!(%damage, "no snapshot is good: started with what the log still has");
            None
        }
        loaded => loaded?,
    };
    let mut state = SnapshotState::default();
    if let Some(LoadedSnapshot { contents, .. }) = &loaded {
        let place = || "the snapshot".to_owned();
        let unreadable = |source| RecoveryError::Unreadable { place: place(), source };
        let (version, index, changes) = snapshot::decode(contents).map_err(unreadable)?;
        for change in changes {
            replay.apply(version, &change.map_err(unreadable)?, &place)?;
        }
        state.newest = index;
        state.bytes = contents.len() as u64;
    }
    let gap = compacted > state.newest;
    if gap {
        let (what, first, contained) = (missing(loaded.as_ref()), compacted.next(), state.newest);
        let error = RecoveryError::Gap { what, first, contained };
        if !accept_damage {
            return Err(error);
        }
        tracing::error!(%error, "started without what is lost");
        state.newest = compacted;
    }
    // Whatever contains up to there, the log does not need it: if it is a snapshot, it is there.
    state.older = compacted;
    state.compacted = compacted;
    let mut applied = state.newest;
    while applied < last {
        let entries = log.entries(METADATA, applied.next(), READ_BYTES)?;
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            replay.entry(entry.index, &entry.payload)?;
            state.entry_bytes += entry.payload.len() as u64;
            applied = entry.index;
        }
    }
    if gap {
        // From now on it is whole: the next start need not accept anything.
        let mut builder = snapshot::Builder::new(applied, local_shards);
        builder.add_directory(directory);
        snapshots.store(snapshot::NAME, &[builder.finish()])?;
        state.newest = applied;
    }
    // After damage that was accepted the log may end before the snapshot.
    let ahead_of_log = applied > last;
    Ok(Recovered { applied, ahead_of_log, snapshots: state })
}

fn missing(loaded: Option<&LoadedSnapshot>) -> String {
    let damaged: Vec<String> =
        loaded.iter().flat_map(|loaded| &loaded.damaged).map(|damage| damage.file.display().to_string()).collect();
    if damaged.is_empty() { "a snapshot is missing".to_owned() } else { format!("{} is damaged", damaged.join(", ")) }
}

/// The queues of all virtual hosts by shard.
pub(crate) fn recovered_queues(directory: &Directory, local_shards: u32, durable_shards: u32) -> RecoveredQueues {
    let mut queues: RecoveredQueues = (0..durable_shards).map(|_| Vec::new()).collect();
    for vhost in directory.vhosts() {
        for record in vhost.read().queues() {
            queues[(record.shard - local_shards) as usize].push((record.id, record.machine_settings()));
        }
    }
    queues.iter_mut().for_each(|queues| queues.sort_unstable_by_key(|(id, _)| *id));
    queues
}

/// The application of what was written before.
struct Replay<'a> {
    directory: &'a Directory,
    local_shards: u32,
    durable_shards: u32,
    /// Of all queues that were ever made.
    ids: FxHashSet<QueueId>,
}

impl Replay<'_> {
    fn entry(&mut self, index: Index, payload: &[u8]) -> Result<(), RecoveryError> {
        let place = || format!("entry {index}");
        let unreadable = |source| RecoveryError::Unreadable { place: place(), source };
        let (&version, changes) = payload.split_first().ok_or_else(|| unreadable(OpError::Length))?;
        check_format(version).map_err(unreadable)?;
        for (number, change) in Changes(changes).enumerate() {
            let change = change.map_err(unreadable)?;
            if let Op::DeclareQueue(declare) = &change.op
                && declare.id.0 != index.0 << PLACE_BITS | number as u64
            {
                let (name, id) = (declare.name.clone(), declare.id.0);
                return Err(RecoveryError::QueueId { place: place(), name, id });
            }
            self.apply(version, &change, &place)?;
        }
        Ok(())
    }

    fn apply(&mut self, version: u8, change: &Change, place: &dyn Fn() -> String) -> Result<(), RecoveryError> {
        // What was refused at the time is refused again, and who asked is gone.
        if let Op::Admin(op) = &change.op {
            let _ = admin::apply(self.directory, &change.vhost, op);
            return Ok(());
        }
        if let Op::DeclareQueue(declare) = &change.op {
            let (name, id, shard, shards) = (&declare.name, declare.id, declare.shard, self.durable_shards);
            if shard >= shards {
                return Err(RecoveryError::Shards { name: name.clone(), shard, shards });
            }
            if !self.ids.insert(id) {
                return Err(RecoveryError::QueueId { place: place(), name: name.clone(), id: id.0 });
            }
        }
        if version == WITHOUT_VHOSTS {
            self.directory.put_vhost(&change.vhost, None);
        }
        // A change that was on its way when its virtual host was deleted found it gone.
        let Some(vhost) = self.directory.vhost(&change.vhost) else { return Ok(()) };
        // Exchanges that are used up now were deleted by a change of their own, if they were not in use in memory.
        vhost.replay(|topology| {
            let _ = apply(topology, &change.op, self.local_shards, &mut |_| {});
        });
        Ok(())
    }
}
