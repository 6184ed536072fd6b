//! A node of three and a peer that knows the secret and lies: whatever it says, the node goes on, or stops a group with a
//! reason. (What it then believes is another matter: raft does not survive liars.)

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use raft::eraftpb::{EntryType, MessageType};
use storage::{Completion, LogOptions, SimFs, SimRng, Written};

use super::*;
use crate::{
    event::SnapshotId,
    group::raft_entry,
    wire::{RaftBatch, SnapshotMessage},
};

const GROUP: GroupId = GroupId(0);
const KINDS: [MessageType; 9] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
    MessageType::MsgTimeoutNow,
];

#[derive(Default)]
struct Reports(Mutex<Vec<(GroupId, Ticket, Vec<Placed>)>>);

impl Completion for Reports {
    fn written(&self, written: Written<'_>) {
        self.0.lock().unwrap().push((written.group, written.up_to, written.placed.to_vec()));
    }

    fn failed(&self, _: GroupId, _: Ticket, error: &StorageError) {
        panic!("the log refused what raft made of it: {error}");
    }
}

struct Lied {
    node: Node,
    writer: storage::Writer,
    log: Log,
    reports: Arc<Reports>,
    now: Duration,
    rng: SimRng,
    led: bool,
    failed: bool,
    committed: u64,
}

impl Lied {
    fn new(seed: u64) -> Lied {
        let reports = Arc::new(Reports::default());
        let options = LogOptions {
            file_bytes: 256 << 10,
            reserve_bytes: 16 << 10,
            reserve_files: 0,
            free_files: 0,
            ..LogOptions::default()
        };
        let identity = storage::Identity { node: [1; 16], cluster: [0; 16] };
        let completion = Arc::clone(&reports) as Arc<dyn Completion>;
        let fs = Arc::new(SimFs::new(seed));
        let (log, writer, _) = Log::open(fs, Path::new("log"), identity, options, completion).unwrap();
        let members = [1, 2, 3].map(|id| MemberId::of([id; 16]));
        let bootstrap = Some(Configuration::of_voters(members));
        let start = GroupStart { group: GROUP, applied: Index(0), bootstrap };
        let now = Duration::ZERO;
        let config = Config { cache_bytes: 200, append_bytes: 100, seed, ..Config::default() };
        let mut node = Node::open(members[0], config, log.clone(), &[start], now).unwrap();
        node.link_up(members[1], now);
        let rng = SimRng::new(seed);
        Lied { node, writer, log, reports, now, rng, led: false, failed: false, committed: 0 }
    }

    /// A number that is near what the node knows, most of the time.
    fn near(&mut self, of: u64) -> u64 {
        match self.rng.below(12) {
            0 => self.rng.next_u64() >> self.rng.below(64),
            1 => 0,
            _ => (of + self.rng.below(4)).saturating_sub(self.rng.below(4)),
        }
    }

    fn lie(&mut self) -> Outgoing {
        let view = self.node.view(GROUP).unwrap();
        let (me, peer) = (MemberId::of([1; 16]), MemberId::of([2; 16]));
        let (term, last, commit) = (view.term.0, view.last.0, view.committed.0);
        if self.rng.one_in(12) {
            let snapshot = SnapshotId { index: Index(self.near(last + 2)), term: Term(self.near(term)), maker: peer };
            let voters = [me, peer].into_iter().take(1 + self.rng.below(2) as usize);
            let configuration = Configuration::of_voters(voters);
            let offset = self.near(0);
            let message = match self.rng.below(3) {
                0 => SnapshotMessage::Offer {
                    snapshot,
                    term: self.near(term),
                    configuration,
                    configured_at: self.near(1),
                },
                1 => SnapshotMessage::Accept {
                    snapshot: SnapshotId { maker: me, ..snapshot },
                    offset,
                    have: Bytes::new(),
                },
                _ => SnapshotMessage::Piece {
                    snapshot,
                    offset,
                    last: self.rng.one_in(2),
                    bytes: Bytes::from_static(b"x"),
                },
            };
            return wire::encode_snapshot(GROUP, &message);
        }
        let mut message = Message::default();
        let kind = KINDS[self.rng.below(9) as usize];
        message.set_msg_type(kind);
        message.term = match kind {
            MessageType::MsgRequestVoteResponse if !self.rng.one_in(4) => term,
            MessageType::MsgRequestPreVoteResponse if !self.rng.one_in(4) => term + 1,
            _ => self.near(term),
        };
        (message.index, message.log_term) = (self.near(last), self.near(term));
        (message.commit, message.commit_term) = (self.near(commit), self.near(term));
        (message.reject, message.reject_hint) = (self.rng.one_in(3), self.near(last));
        message.context = match kind {
            MessageType::MsgRequestVote if self.rng.one_in(3) => Bytes::from_static(raft::CAMPAIGN_TRANSFER),
            _ => self.rng.next_u64().to_le_bytes().to_vec().into(),
        };
        if kind == MessageType::MsgHeartbeat && !self.rng.one_in(50) {
            // Beyond the last it is taken for proof of a lost log, and the group stops.
            message.commit = message.commit.min(last);
        }
        if kind == MessageType::MsgAppend {
            // The encoding numbers them itself.
            let count = self.rng.below(4);
            let base = self.near(term).min(message.term);
            (message.log_term, message.index) = match self.rng.below(3) {
                0 => (message.log_term, message.index),
                _ => (self.log.term(GROUP, Index(last)).map_or(1, |term| term.0), last),
            };
            let entries = (0..count).map(|_| {
                let kind = if self.rng.one_in(6) { EntryType::EntryConfChangeV2 } else { EntryType::EntryNormal };
                let payload = match self.rng.below(4) {
                    0 => Bytes::new(),
                    1 => Bytes::from_static(&[1, 3, 1, 1, 1, 1, 1, 1, 1, 1]),
                    _ => Bytes::from_static(b"a payload"),
                };
                raft_entry(0, base.max(1), kind, payload)
            });
            message.set_entries(entries.collect::<Vec<_>>().into());
        }
        let mut batch = RaftBatch::new(Class::Control);
        batch.add(GROUP, &message);
        batch.finish().unwrap()
    }

    /// The peer behaves until the node leads.
    fn elect(&mut self) {
        for _ in 0..60 {
            self.now += Duration::from_millis(150);
            self.node.tick(self.now);
            self.work();
            let view = self.node.view(GROUP).unwrap();
            let mut batch = RaftBatch::new(Class::Control);
            for (kind, term) in [
                (MessageType::MsgRequestPreVoteResponse, view.term.0 + 1),
                (MessageType::MsgRequestVoteResponse, view.term.0),
                (MessageType::MsgAppendResponse, view.term.0),
            ] {
                let mut message = Message::default();
                message.set_msg_type(kind);
                (message.term, message.index) = (term, view.last.0);
                batch.add(GROUP, &message);
            }
            let bytes = batch.finish().unwrap().to_bytes();
            self.node.receive(MemberId::of([2; 16]), &bytes, self.now).unwrap();
            if self.led {
                return;
            }
        }
    }

    fn work(&mut self) {
        for _ in 0..3 {
            let outputs = self.node.turn(self.now);
            for (group, event) in outputs.events {
                match event {
                    Event::Committed { up_to, .. } => {
                        self.committed = up_to.0;
                        self.node.applied(group, up_to);
                    }
                    Event::Leading { .. } => self.led = true,
                    Event::Failed(_) => self.failed = true,
                    Event::SnapshotOffered { snapshot } => {
                        self.node.accept_snapshot(group, snapshot, 0, Bytes::new(), self.now);
                    }
                    Event::SnapshotPiece { snapshot, offset, bytes, .. } => {
                        self.node.snapshot_stored(group, snapshot, offset + bytes.len() as u64, self.now);
                    }
                    Event::SnapshotWanted => {
                        let applied = self.node.view(group).unwrap().applied;
                        self.node.offer_snapshot(group, applied, self.now);
                    }
                    Event::PieceWanted { to, snapshot, offset, .. } => {
                        self.node.snapshot_piece(group, to, snapshot, offset, Bytes::from_static(b"x"), true);
                    }
                    _ => {}
                }
            }
            for (group, fetch) in outputs.fetches {
                let entries = self.log.entries(group, fetch.from, fetch.max_bytes);
                self.node.fetched(group, fetch.from, entries);
            }
            if self.rng.one_in(2) {
                continue;
            }
            self.writer.turn();
            for (group, up_to, placed) in std::mem::take(&mut *self.reports.0.lock().unwrap()) {
                self.node.written(group, up_to, &placed);
            }
        }
    }
}

#[test]
fn a_lying_peer_does_not_end_the_node() {
    let (mut led, mut committed, mut failed) = (0, 0, 0);
    for seed in 0..400 {
        let mut lied = Lied::new(seed);
        if seed % 2 == 0 {
            lied.elect();
        }
        for _ in 0..150 {
            let lie = lied.lie().to_bytes();
            // Numbers out of all bounds are refused as malformed, and the link would be closed.
            let _ = lied.node.receive(MemberId::of([2; 16]), &lie, lied.now);
            // Now and then it is quiet for long enough to stand for election.
            let ticks = if lied.rng.one_in(10) { 14 } else { lied.rng.below(2) };
            for _ in 0..ticks {
                lied.now += Duration::from_millis(150);
                lied.node.tick(lied.now);
            }
            if lied.rng.one_in(4) {
                let _ = lied.node.propose(GROUP, Bytes::from_static(b"mine"));
            }
            if lied.rng.one_in(20) {
                let applied = lied.node.view(GROUP).unwrap().applied;
                lied.node.compact(GROUP, Index(applied.0.saturating_sub(2)), lied.now);
            }
            lied.work();
        }
        led += u32::from(lied.led);
        committed += u32::from(lied.committed > 5);
        failed += u32::from(lied.failed);
    }
    assert!(led > 100 && committed > 100 && failed < 400, "lies were believed: {led} {committed} {failed}");
}
