//! The other nodes, as far as links go: who is there, how it is, and what is gathered for it in this turn.

use std::{collections::BTreeMap, time::Duration};

use raft::eraftpb::Message;
use storage::GroupId;

use crate::{
    member::MemberId,
    wire::{Class, NodeStatus, Outgoing, RaftBatch},
};

#[derive(Debug, Default)]
struct Peer {
    /// There is a link.
    up: bool,
    status: NodeStatus,
    /// It has a link and a good status since then.
    good_since: Duration,
    control: Option<RaftBatch>,
    append: Option<RaftBatch>,
}

/// All of them that ever had a link.
#[derive(Debug, Default)]
pub(super) struct Peers(BTreeMap<MemberId, Peer>);

impl Peers {
    pub(super) fn up(&mut self, peer: MemberId, now: Duration) {
        let peer = self.0.entry(peer).or_default();
        *peer = Peer { up: true, good_since: now, ..Peer::default() };
    }

    pub(super) fn down(&mut self, peer: MemberId) {
        self.0.insert(peer, Peer::default());
    }

    pub(super) fn is_up(&self, peer: MemberId) -> bool {
        self.0.get(&peer).is_some_and(|peer| peer.up)
    }

    pub(super) fn connected(&self) -> Vec<MemberId> {
        self.0.iter().filter(|(_, peer)| peer.up).map(|(member, _)| *member).collect()
    }

    pub(super) fn set_status(&mut self, peer: MemberId, status: NodeStatus, now: Duration) {
        if let Some(peer) = self.0.get_mut(&peer) {
            if peer.status != NodeStatus::default() && status == NodeStatus::default() {
                peer.good_since = now;
            }
            peer.status = status;
        }
    }

    /// May lead.
    pub(super) fn is_good(&self, peer: MemberId) -> bool {
        self.0.get(&peer).is_some_and(|peer| peer.up && peer.status == NodeStatus::default())
    }

    /// For how long it could have led.
    pub(super) fn good_for(&self, peer: MemberId, now: Duration) -> Duration {
        self.0.get(&peer).map_or(Duration::ZERO, |peer| now.saturating_sub(peer.good_since))
    }

    /// Adds a raft message to what its receiver gets in this turn. Without a link it is lost, which raft expects.
    pub(super) fn add(&mut self, group: GroupId, message: &Message, sends: &mut Vec<(MemberId, Outgoing)>) {
        let Some(to) = MemberId::from_raw(message.to) else { return };
        let Some(peer) = self.0.get_mut(&to).filter(|peer| peer.up) else { return };
        let class = RaftBatch::class_of(message);
        let batch = if class == Class::Control { &mut peer.control } else { &mut peer.append };
        let bytes: usize = message.get_entries().iter().map(|entry| entry.data.len() + entry.context.len()).sum();
        if batch.as_ref().is_some_and(|batch| batch.is_full(bytes)) {
            sends.extend(batch.take().and_then(RaftBatch::finish).map(|outgoing| (to, outgoing)));
        }
        batch.get_or_insert_with(|| RaftBatch::new(class)).add(group, message);
    }

    /// Ends the turn: a message per peer and class.
    pub(super) fn flush(&mut self, sends: &mut Vec<(MemberId, Outgoing)>) {
        for (member, peer) in &mut self.0 {
            let batches = [peer.control.take(), peer.append.take()].into_iter().flatten();
            sends.extend(batches.filter_map(RaftBatch::finish).map(|outgoing| (*member, outgoing)));
        }
    }
}
