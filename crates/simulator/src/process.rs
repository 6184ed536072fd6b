//! A running node: production storage and consensus over a simulated disk, and the users of its groups.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use cluster::{ClusterError, Config, Configuration, Event, Fault, GroupStart, MemberId, Node, Outputs, SnapshotId};
use storage::{
    Completion, GroupId, Index, LogOptions, Placed, SegmentOptions, SimFs, StorageError, Store, StoreOptions, Ticket,
    Verify, Writer, Written,
};

use crate::machine::{Batch, Machine};

/// Applied entries between two snapshots of a group.
const SNAPSHOT_EVERY: u64 = 40;
/// Entries that the log keeps for followers that were away for a moment.
const KEPT: u64 = 25;
/// Pieces of snapshots are small, so that there are some.
const PIECE: usize = 900;

/// What the log's writer reported.
enum Report {
    Written(GroupId, Ticket, Vec<Placed>),
    Failed(GroupId, Ticket, StorageError),
}

#[derive(Default)]
struct Reports(Mutex<Vec<Report>>);

impl Completion for Reports {
    fn written(&self, written: Written<'_>) {
        let report = Report::Written(written.group, written.up_to, written.placed.to_vec());
        self.0.lock().expect("one thread").push(report);
    }

    fn failed(&self, group: GroupId, ticket: Ticket, error: &StorageError) {
        self.0.lock().expect("one thread").push(Report::Failed(group, ticket, error.clone()));
    }
}

/// Something that the checker has to know.
#[derive(Debug)]
pub(crate) enum Note {
    /// An entry was applied: of this batch, anew or again; the state's hash after it.
    Applied { group: GroupId, index: u64, term: u64, batch: Batch, hash: u64 },
    /// The state came by a snapshot.
    Installed { group: GroupId, index: u64, hash: u64 },
    /// Began to lead.
    Leading { group: GroupId, term: u64 },
    /// A batch is settled: an answer for its client.
    Confirmed { group: GroupId, client: u64, number: u64 },
}

/// A snapshot that comes in.
struct Incoming {
    snapshot: SnapshotId,
    bytes: Vec<u8>,
    /// What was held when it was accepted: the sender leaves it out.
    held: Machine,
}

/// A group's user.
struct Replica {
    machine: Machine,
    since_snapshot: u64,
    /// The frozen view, and how it was cut for each receiver.
    view: Option<(SnapshotId, Machine)>,
    streams: BTreeMap<MemberId, Bytes>,
    incoming: Option<Incoming>,
}

/// Why a process ended by itself.
#[derive(Debug)]
pub(crate) enum End {
    /// Its disk failed, or lost power under it.
    Disk,
    /// Its replica is not to be trusted any more: it has to come back as a new member.
    LostLog,
}

/// The process.
pub(crate) struct Process {
    store: Store,
    writer: Writer,
    reports: Arc<Reports>,
    pub(crate) node: Node,
    replicas: BTreeMap<GroupId, Replica>,
    pub(crate) notes: Vec<Note>,
    pub(crate) end: Option<End>,
}

fn options() -> StoreOptions {
    let log = LogOptions {
        file_bytes: 64 << 10,
        reserve_bytes: 16 << 10,
        reserve_files: 1,
        free_files: 1,
        frame_bytes: 4 << 10,
        chunk_bytes: 4 << 10,
        cache_bytes: 16 << 10,
        budget_bytes: 1 << 20,
        verify: Verify::All,
        ..LogOptions::default()
    };
    StoreOptions { log, segments: SegmentOptions { segment_bytes: 16 << 10, merge_files: 4, accept_damage: false } }
}

/// The member that a disk makes its node.
pub(crate) fn identify(fs: &SimFs) -> Result<MemberId, StorageError> {
    let (store, ..) = Store::open(Arc::new(fs.clone()), Path::new("data"), options(), Arc::new(Reports::default()))?;
    Ok(MemberId::of(store.identity.node))
}

fn name(group: GroupId) -> String {
    format!("shard-{}", group.0)
}

fn incoming_name(group: GroupId) -> String {
    format!("incoming-{}", group.0)
}

impl Process {
    /// Starts a node from its disk.
    pub(crate) fn start(
        fs: &SimFs,
        groups: u32,
        bootstrap: &Configuration,
        config: Config,
        now: Duration,
    ) -> Result<Process, ClusterError> {
        let reports = Arc::new(Reports::default());
        let completion = Arc::clone(&reports) as Arc<dyn Completion>;
        let (store, writer, _) = Store::open(Arc::new(fs.clone()), Path::new("data"), options(), completion)?;
        let me = MemberId::of(store.identity.node);
        let mut replicas = BTreeMap::new();
        let mut starts = Vec::new();
        for group in (0..groups).map(GroupId) {
            let machine = restore(&store, group)?;
            let applied = Index(machine.applied);
            starts.push(GroupStart { group, applied, bootstrap: Some(bootstrap.clone()) });
            let replica = Replica { machine, since_snapshot: 0, view: None, streams: BTreeMap::new(), incoming: None };
            replicas.insert(group, replica);
        }
        let node = Node::open(me, config, store.log.clone(), &starts, now)?;
        store.log.accounting_complete();
        Ok(Process { store, writer, reports, node, replicas, notes: Vec::new(), end: None })
    }

    /// The log's writer takes a turn: whatever was submitted is on disk, or has failed.
    pub(crate) fn write(&mut self) {
        self.writer.turn();
        for report in std::mem::take(&mut *self.reports.0.lock().expect("one thread")) {
            match report {
                Report::Written(group, up_to, placed) => self.node.written(group, up_to, &placed),
                Report::Failed(group, ticket, error) => self.node.write_failed(group, ticket, &error),
            }
        }
        if self.store.log.maintain().is_err_and(|error| !error.is_full()) {
            self.end = Some(End::Disk);
        }
    }

    /// Works off all that has come up. Returns what is to be sent.
    pub(crate) fn turn(&mut self, now: Duration) -> Outputs {
        let mut all = Outputs::default();
        loop {
            let outputs = self.node.turn(now);
            let idle = outputs.events.is_empty() && outputs.fetches.is_empty();
            all.sends.extend(outputs.sends);
            all.user.extend(outputs.user);
            for (group, fetch) in outputs.fetches {
                let entries = self.store.log.entries(group, fetch.from, fetch.max_bytes);
                self.node.fetched(group, fetch.from, entries);
            }
            for (group, event) in outputs.events {
                if self.event(group, event, now).is_err() {
                    self.end = Some(End::Disk);
                }
            }
            if idle || self.end.is_some() {
                return all;
            }
        }
    }

    fn event(&mut self, group: GroupId, event: Event, now: Duration) -> Result<(), StorageError> {
        let replica = self.replicas.get_mut(&group).expect("all groups are here");
        match event {
            Event::Committed { entries, up_to } => {
                for entry in entries {
                    let batch = Batch::decode(&entry.payload);
                    // Whoever keeps the place finds the payload there.
                    match self.store.log.read(entry.location) {
                        Ok(read) => assert_eq!(read, entry.payload, "at {:?}", entry.location),
                        Err(error @ StorageError::Io { .. }) => return Err(error),
                        Err(error) => panic!("the place of entry {} cannot be read: {error}", entry.index),
                    }
                    replica.machine.apply(entry.index.0, &batch);
                    let hash = replica.machine.hash();
                    let (index, term) = (entry.index.0, entry.term.0);
                    if self.node.view(group).is_some_and(|view| view.leading) {
                        let (client, number) = (batch.client, batch.number);
                        self.notes.push(Note::Confirmed { group, client, number });
                    }
                    self.notes.push(Note::Applied { group, index, term, batch, hash });
                    replica.since_snapshot += 1;
                }
                replica.machine.skip_to(up_to.0);
                self.node.applied(group, up_to);
                if replica.since_snapshot >= SNAPSHOT_EVERY {
                    replica.since_snapshot = 0;
                    match self.store.snapshots.store(&name(group), &[replica.machine.encode(&[])]) {
                        Ok(_) => _ = self.node.compact(group, Index(replica.machine.applied.saturating_sub(KEPT)), now),
                        // The log keeps its entries.
                        Err(error) if error.is_full() => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            Event::Leading { term } => self.notes.push(Note::Leading { group, term: term.0 }),
            Event::SnapshotWanted => {
                let view = replica.machine.clone();
                let offered = self.node.offer_snapshot(group, Index(view.applied), now);
                replica.view = offered.map(|snapshot| (snapshot, view));
                replica.streams.clear();
            }
            Event::SnapshotReleased { .. } => (replica.view, replica.streams) = (None, BTreeMap::new()),
            Event::PieceWanted { to, snapshot, offset, max_bytes, have } => {
                let Some((_, view)) = replica.view.as_ref().filter(|(id, _)| *id == snapshot) else { return Ok(()) };
                if let Some(have) = have {
                    replica.streams.insert(to, view.encode(&have));
                }
                let Some(stream) = replica.streams.get(&to) else { return Ok(()) };
                let from = stream.len().min(offset as usize);
                let piece = stream.slice(from..stream.len().min(from + max_bytes.min(PIECE)));
                let last = from + piece.len() == stream.len();
                self.node.snapshot_piece(group, to, snapshot, offset, piece, last);
            }
            Event::SnapshotOffered { snapshot } => {
                replica.incoming = Some(Incoming { snapshot, bytes: Vec::new(), held: replica.machine.clone() });
                self.node.accept_snapshot(group, snapshot, 0, replica.machine.have(), now);
            }
            Event::SnapshotPiece { snapshot, offset, bytes, last } => {
                let incoming = replica.incoming.as_mut().filter(|incoming| incoming.snapshot == snapshot);
                let incoming = incoming.expect("a piece of what was accepted");
                assert_eq!(incoming.bytes.len() as u64, offset, "pieces come in order");
                incoming.bytes.extend_from_slice(&bytes);
                let stored = incoming.bytes.len() as u64;
                if last {
                    let machine = Machine::decode(&incoming.bytes, &incoming.held).expect("a whole state was sent");
                    assert_eq!(machine.applied, snapshot.index.0);
                    self.store.snapshots.store(&incoming_name(group), &[machine.encode(&[])])?;
                }
                self.node.snapshot_stored(group, snapshot, stored, now);
            }
            Event::SnapshotInstalled { index, .. } => {
                replica.incoming = None;
                replica.machine = promote(&self.store, group, index.0)?.expect("it was stored before");
                let hash = replica.machine.hash();
                self.notes.push(Note::Installed { group, index: index.0, hash });
            }
            Event::SnapshotDropped { .. } => {
                replica.incoming = None;
                self.store.snapshots.remove(&incoming_name(group))?;
            }
            Event::Failed(Fault::LostLog { .. }) => self.end = Some(End::LostLog),
            Event::Failed(Fault::Disk(_)) => self.end = Some(End::Disk),
            Event::Failed(fault) => panic!("{fault:?}"),
            _ => {}
        }
        Ok(())
    }

    /// A client's batch: proposed if this node leads, refused if not (`None`), or confirmed at once if it was applied
    /// before.
    pub(crate) fn submit(&mut self, group: GroupId, batch: &Batch) -> Option<bool> {
        let view = self.node.view(group)?;
        if !view.leading {
            return None;
        }
        if self.replicas[&group].machine.last_of(batch.client) >= batch.number {
            return Some(true);
        }
        self.node.propose(group, batch.encode()).ok().map(|_| false)
    }

    pub(crate) fn machine(&self, group: GroupId) -> &Machine {
        &self.replicas[&group].machine
    }
}

/// The state of a group on disk. One that came in and was taken over by the log, but not by us yet, is taken over now.
fn restore(store: &Store, group: GroupId) -> Result<Machine, StorageError> {
    let own = match store.snapshots.load(&name(group))? {
        Some(loaded) => Machine::decode(&loaded.contents, &Machine::new()).expect("a whole state was stored"),
        None => Machine::new(),
    };
    let compacted = store.log.status(group).map_or(0, |status| status.compacted.0.0);
    // 1 is where a new group begins.
    if own.applied < compacted && compacted > 1 {
        return Ok(promote(store, group, compacted)?.unwrap_or(own));
    }
    Ok(own)
}

fn promote(store: &Store, group: GroupId, index: u64) -> Result<Option<Machine>, StorageError> {
    let Some(loaded) = store.snapshots.load(&incoming_name(group))? else { return Ok(None) };
    let machine = Machine::decode(&loaded.contents, &Machine::new()).expect("a whole state was stored");
    if machine.applied != index {
        return Ok(None);
    }
    store.snapshots.store(&name(group), &[machine.encode(&[])])?;
    store.snapshots.remove(&incoming_name(group))?;
    Ok(Some(machine))
}
