//! A node of three, and a peer that knows the secret and sends whatever it likes: the node may be led astray, but not end.
//! The input is a sequence of messages, each after its length; between them time passes and the disk writes.

#![no_main]

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use cluster::{Config, Configuration, Event, GroupStart, MemberId, Node};
use libfuzzer_sys::fuzz_target;
use storage::{Completion, GroupId, Index, LogOptions, Placed, SimFs, StorageError, Ticket, Written};

#[derive(Default)]
struct Reports(Mutex<Vec<(GroupId, Ticket, Vec<Placed>)>>);

impl Completion for Reports {
    fn written(&self, written: Written<'_>) {
        self.0.lock().unwrap().push((written.group, written.up_to, written.placed.to_vec()));
    }

    fn failed(&self, _: GroupId, _: Ticket, error: &StorageError) {
        panic!("{error}");
    }
}

fuzz_target!(|input: &[u8]| {
    let (me, peer, third) = (MemberId::of([1; 16]), MemberId::of([2; 16]), MemberId::of([3; 16]));
    let reports = Arc::new(Reports::default());
    let options = LogOptions {
        file_bytes: 256 << 10,
        reserve_bytes: 16 << 10,
        reserve_files: 0,
        free_files: 0,
        ..LogOptions::default()
    };
    let identity = storage::Identity { node: [1; 16], cluster: [0; 16] };
    let fs = Arc::new(SimFs::new(1));
    let (log, mut writer, _) =
        storage::Log::open(fs, Path::new("log"), identity, options, Arc::clone(&reports) as Arc<dyn Completion>).unwrap();
    let start = GroupStart {
        group: GroupId(0),
        applied: Index(0),
        bootstrap: Some(Configuration::of_voters([me, peer, third])),
    };
    let mut now = Duration::ZERO;
    let mut node = Node::open(me, Config::default(), log.clone(), &[start], now).unwrap();
    node.link_up(peer, now);
    let mut rest = input;
    while let Some((&length, after)) = rest.split_first() {
        let (message, after) = after.split_at(after.len().min(usize::from(length & 0x7f)));
        rest = after;
        let _ = node.receive(peer, &bytes::Bytes::copy_from_slice(message), now);
        if length & 0x80 != 0 {
            now += Duration::from_millis(400);
            node.tick(now);
            let _ = node.propose(GroupId(0), bytes::Bytes::from_static(b"x"));
        }
        for _ in 0..4 {
            let outputs = node.turn(now);
            for (group, event) in outputs.events {
                match event {
                    Event::Committed { up_to, .. } => node.applied(group, up_to),
                    Event::SnapshotOffered { snapshot } => {
                        node.accept_snapshot(group, snapshot, 0, bytes::Bytes::new(), now);
                    }
                    Event::SnapshotPiece { snapshot, offset, bytes, .. } => {
                        node.snapshot_stored(group, snapshot, offset + bytes.len() as u64, now);
                    }
                    Event::SnapshotWanted => _ = node.offer_snapshot(group, node.view(group).unwrap().applied, now),
                    Event::PieceWanted { to, snapshot, offset, .. } => {
                        node.snapshot_piece(group, to, snapshot, offset, bytes::Bytes::new(), true);
                    }
                    _ => {}
                }
            }
            for (group, fetch) in outputs.fetches {
                node.fetched(group, fetch.from, log.entries(group, fetch.from, fetch.max_bytes));
            }
            writer.turn();
            for (group, up_to, placed) in std::mem::take(&mut *reports.0.lock().unwrap()) {
                node.written(group, up_to, &placed);
            }
        }
    }
});
