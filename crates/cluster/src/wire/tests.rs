use raft::eraftpb::{EntryType, MessageType};
use storage::{Index, Term};

use super::*;
use crate::{event::SnapshotId, group::raft_entry, member::Configuration};

fn member(raw: u64) -> MemberId {
    MemberId::from_raw(raw).unwrap()
}

fn raft(kind: MessageType, set: impl FnOnce(&mut Message)) -> (GroupId, Message) {
    let mut message = Message::default();
    message.set_msg_type(kind);
    (message.from, message.to, message.term) = (1, 2, 7);
    set(&mut message);
    (GroupId(3), message)
}

fn one_of_each() -> Vec<(GroupId, Message)> {
    vec![
        raft(MessageType::MsgAppend, |message| {
            (message.log_term, message.index, message.commit) = (6, 40, 39);
            let entries = vec![
                raft_entry(41, 6, EntryType::EntryNormal, Bytes::from_static(b"first")),
                raft_entry(42, 7, EntryType::EntryNormal, Bytes::new()),
                raft_entry(43, 7, EntryType::EntryConfChangeV2, Bytes::from_static(b"change")),
            ];
            message.set_entries(entries.into());
        }),
        raft(MessageType::MsgAppendResponse, |message| {
            (message.index, message.commit, message.reject, message.reject_hint, message.log_term) = (9, 8, true, 5, 4);
        }),
        raft(MessageType::MsgHeartbeat, |message| {
            (message.commit, message.context) = (12, Bytes::from_static(&[1, 2, 3, 4, 5, 6, 7, 8]));
        }),
        raft(MessageType::MsgHeartbeatResponse, |message| {
            (message.commit, message.context) = (12, Bytes::from_static(&[1, 2, 3, 4, 5, 6, 7, 8]));
        }),
        raft(MessageType::MsgRequestVote, |message| {
            (message.index, message.log_term, message.commit, message.commit_term) = (9, 6, 8, 5);
            message.context = Bytes::from_static(raft::CAMPAIGN_TRANSFER);
        }),
        raft(MessageType::MsgRequestPreVote, |message| message.index = 9),
        raft(MessageType::MsgRequestVoteResponse, |message| (message.commit, message.commit_term) = (8, 5)),
        raft(MessageType::MsgRequestPreVoteResponse, |message| message.reject = true),
        raft(MessageType::MsgTimeoutNow, |_| ()),
    ]
}

fn batch(messages: &[(GroupId, Message)]) -> Bytes {
    let mut batch = RaftBatch::new(Class::Append);
    messages.iter().for_each(|(group, message)| batch.add(*group, message));
    batch.finish().unwrap().to_bytes()
}

#[test]
fn raft_messages_survive_their_encoding_in_one_frame() {
    let messages = one_of_each();
    let bytes = batch(&messages);
    assert_eq!(decode(&bytes, member(1), member(2)), Ok(PeerMessage::Raft(messages)));
}

#[test]
fn payloads_are_slices_of_the_frame() {
    let bytes = batch(&one_of_each()[..1]);
    let Ok(PeerMessage::Raft(messages)) = decode(&bytes, member(1), member(2)) else { panic!("a batch") };
    let payload = &messages[0].1.get_entries()[0].data;
    assert!(bytes.as_ptr_range().contains(&payload.as_ptr()));
}

#[test]
fn nothing_shorter_than_a_message_is_one() {
    let whole = batch(&one_of_each());
    for end in 0..whole.len() {
        assert!(decode(&whole.slice(..end), member(1), member(2)).is_err(), "{end} of {}", whole.len());
    }
}

#[test]
fn counts_beyond_the_bytes_are_refused_before_anything_is_allocated() {
    let mut bytes = vec![KIND_RAFT, 1, 0, 1, 0];
    bytes.extend_from_slice(&[0; 4 + 8 + 3 * 8]);
    bytes.extend_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decode(&bytes.into(), member(1), member(2)), Err(Malformed("more entries than bytes")));
    let bytes = Bytes::from_static(&[KIND_RAFT, 0xff, 0x0f]);
    assert_eq!(decode(&bytes, member(1), member(2)), Err(Malformed("more messages than bytes")));
}

#[test]
fn messages_about_snapshots_survive_their_encoding() {
    let own = SnapshotId { index: Index(50), term: Term(4), maker: member(1) };
    let theirs = SnapshotId { maker: member(2), ..own };
    let configuration = Configuration::of_voters([member(1), member(2)]);
    for message in [
        SnapshotMessage::Offer { snapshot: own, term: 5, configuration, configured_at: 44 },
        SnapshotMessage::Accept { snapshot: theirs, offset: 77, have: Bytes::from_static(b"all") },
        SnapshotMessage::Refuse { snapshot: theirs },
        SnapshotMessage::Piece { snapshot: own, offset: 3, last: true, bytes: Bytes::from_static(b"piece") },
        SnapshotMessage::Piece { snapshot: own, offset: 3, last: false, bytes: Bytes::new() },
        SnapshotMessage::Stored { snapshot: theirs, offset: 8, done: true },
    ] {
        let bytes = encode_snapshot(GroupId(9), &message).to_bytes();
        assert_eq!(decode(&bytes, member(1), member(2)), Ok(PeerMessage::Snapshot(GroupId(9), message)));
    }
}

#[test]
fn nobody_sends_a_snapshot_of_somebody_else() {
    let snapshot = SnapshotId { index: Index(50), term: Term(4), maker: member(3) };
    let piece = SnapshotMessage::Piece { snapshot, offset: 0, last: true, bytes: Bytes::new() };
    let bytes = encode_snapshot(GroupId(9), &piece).to_bytes();
    assert!(decode(&bytes, member(1), member(2)).is_err());
}

#[test]
fn status_and_user_messages_survive_their_encoding() {
    let status = NodeStatus { draining: true, stalled: false };
    assert_eq!(decode(&encode_status(status).to_bytes(), member(1), member(2)), Ok(PeerMessage::Status(status)));
    let user = encode_user([Bytes::from_static(b"hello "), Bytes::from_static(b"there")], Class::User);
    let expected = PeerMessage::User(Bytes::from_static(b"hello there"));
    assert_eq!(decode(&user.to_bytes(), member(1), member(2)), Ok(expected));
}
