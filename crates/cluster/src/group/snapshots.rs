//! Snapshots as the consensus sees them: index, term and members. Their contents travel elsewhere ([`crate::transfer`]).

use bytes::Bytes;
use raft::{
    SnapshotStatus,
    eraftpb::{Message, MessageType, Snapshot},
};
use storage::{Index, Term};

use super::Group;
use crate::{
    event::SnapshotId,
    member::{Configuration, MemberId},
};

impl Group {
    /// The user has frozen a view of its state at an index up to which it has applied. `None` if nobody could use it.
    pub(crate) fn offer(&mut self, index: Index) -> Option<SnapshotId> {
        let index = index.0;
        if index == 0 || index < self.compacted() || index > self.handed {
            return None;
        }
        let term = self.raft.raft.raft_log.term(index).ok().filter(|term| *term > 0)?;
        let hard = &self.raft.raft.store().hard;
        let snapshot = make(index, term, &hard.configuration, hard.configured_at);
        self.raft.mut_store().offer = Some(snapshot);
        Some(SnapshotId { index: Index(index), term: Term(term), maker: self.me })
    }

    /// Nothing is on offer any more.
    pub(crate) fn withdraw_offer(&mut self) {
        self.raft.mut_store().offer = None;
    }

    /// What became of a snapshot that raft wanted to send.
    pub(crate) fn snapshot_sent(&mut self, to: MemberId, arrived: bool) {
        let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        if !self.failed {
            self.raft.report_snapshot(to.raw(), status);
            self.after_raft();
        }
    }

    /// A snapshot of the leader that has come in whole and is durable. Whether the group begins anew with it; then
    /// [`crate::Event::SnapshotInstalled`] follows. If not, the group has moved on.
    pub(crate) fn install(&mut self, snapshot: SnapshotId, term: u64, offered: Snapshot) -> bool {
        if self.failed || term != self.term() || self.leader() != Some(snapshot.maker) {
            return false;
        }
        let mut message = message(snapshot.maker, self.me, term, offered);
        if super::guard::check(&self.raft, &mut message) != super::Verdict::Step {
            return false;
        }
        let _ = self.raft.step(message);
        self.after_raft();
        self.raft.snap().is_some_and(|pending| pending.get_metadata().index == snapshot.index.0)
    }

    /// Asks followers whether they are there: a link is up again.
    pub(crate) fn ping(&mut self) {
        if self.is_leader() {
            self.raft.ping();
            self.after_raft();
        }
    }

    /// Whether a snapshot would bring this member anything.
    pub(crate) fn wants(&self, snapshot: SnapshotId) -> bool {
        !self.failed && snapshot.index.0 > self.committed()
    }
}

/// What raft is told of a snapshot.
pub(crate) fn make(index: u64, term: u64, configuration: &Configuration, configured_at: u64) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let metadata = snapshot.mut_metadata();
    (metadata.index, metadata.term) = (index, term);
    metadata.set_conf_state(configuration.to_raft());
    snapshot.data = Bytes::from(configured_at.to_le_bytes().to_vec());
    snapshot
}

/// The entry that made the snapshot's configuration. It may be later than the snapshot: changes up to it are contained.
pub(crate) fn configured_at(snapshot: &Snapshot) -> u64 {
    snapshot.data.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Raft's message that announces a snapshot.
pub(crate) fn message(from: MemberId, to: MemberId, term: u64, snapshot: Snapshot) -> Message {
    let mut message = Message::default();
    message.set_msg_type(MessageType::MsgSnapshot);
    (message.from, message.to, message.term) = (from.raw(), to.raw(), term);
    message.set_snapshot(snapshot);
    message
}
