//! What nodes say to each other, as bytes. Numbers are little-endian. `docs/formats.md` has the tables.
//!
//! A message lies in one frame of the link ([`crate::link`]), which knows its length, who sent it and which version of this
//! encoding was agreed on. Decoding checks every count and length against what is there, copies no payload (they are slices
//! of the frame's buffer), and builds nothing that a frame could not contain. What a message *means* is checked by its
//! receiver; a raft message by the group, before raft sees it.

mod raft_message;
mod snapshot;

use bytes::{BufMut, Bytes, BytesMut};
use raft::eraftpb::Message;
use storage::GroupId;

use crate::{
    input::{Input, Malformed},
    member::MemberId,
};

pub use snapshot::{MAX_HAVE_BYTES, SnapshotMessage};

/// The version of this encoding.
pub const WIRE_VERSION: u16 = 1;

/// Largest message. An append message holds at most one entry beyond [`crate::Config::append_bytes`].
pub const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// Most raft messages in one frame: a node has a few dozen groups.
pub const MAX_BATCH: usize = 4096;

/// Who goes first on a link. Frames of one class keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// Votes, heartbeats, acknowledgements: small, and somebody's patience ends without them.
    Control = 0,
    /// Entries.
    Append = 1,
    /// What the user of the link sends: forwarded batches, deliveries, requests.
    User = 2,
    /// Snapshots.
    Bulk = 3,
}

impl Class {
    /// All, first things first.
    pub const ALL: [Class; 4] = [Class::Control, Class::Append, Class::User, Class::Bulk];

    /// From its number.
    pub fn from_raw(raw: u8) -> Option<Class> {
        Class::ALL.get(usize::from(raw)).copied()
    }
}

/// A message on its way out: its class and its bytes, in parts so that payloads are not copied.
#[derive(Clone, Debug)]
pub struct Outgoing {
    /// Who goes first.
    pub class: Class,
    /// One after the other.
    pub parts: Vec<Bytes>,
}

impl Outgoing {
    /// Bytes of all parts.
    pub fn len(&self) -> usize {
        self.parts.iter().map(Bytes::len).sum()
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(Bytes::is_empty)
    }

    /// As one piece.
    pub fn to_bytes(&self) -> Bytes {
        match &self.parts[..] {
            [one] => one.clone(),
            parts => parts.concat().into(),
        }
    }
}

/// How a node is, for the others' choice of leaders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStatus {
    /// It is about to stop.
    pub draining: bool,
    /// Its disk stalls, or is full.
    pub stalled: bool,
}

/// A message of a peer.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// Messages of some groups.
    Raft(Vec<(GroupId, Message)>),
    /// About a snapshot.
    Snapshot(GroupId, SnapshotMessage),
    /// How the peer is.
    Status(NodeStatus),
    /// Something of the user's, in the user's encoding.
    User(Bytes),
}

const KIND_RAFT: u8 = 1;
const KIND_SNAPSHOT: u8 = 2;
const KIND_STATUS: u8 = 3;
const KIND_USER: u8 = 4;

const STATUS_DRAINING: u8 = 1;
const STATUS_STALLED: u8 = 2;

/// Reads a message that `from` sent to `to`.
///
/// # Errors
/// Bytes that are no message. Whoever sends such is of another version, or means ill: close the link.
pub fn decode(bytes: &Bytes, from: MemberId, to: MemberId) -> Result<PeerMessage, Malformed> {
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(Malformed("too long"));
    }
    let mut input = Input::new(bytes);
    let message = match input.u8()? {
        KIND_RAFT => {
            let count = usize::from(input.u16()?);
            if count > MAX_BATCH || count * raft_message::LEAST_BYTES > input.len() {
                return Err(Malformed("more messages than bytes"));
            }
            let messages = (0..count).map(|_| raft_message::decode(&mut input, bytes, from, to));
            PeerMessage::Raft(messages.collect::<Result<_, _>>()?)
        }
        KIND_SNAPSHOT => {
            let group = GroupId(input.u32()?);
            PeerMessage::Snapshot(group, SnapshotMessage::decode(&mut input, bytes, from)?)
        }
        KIND_STATUS => {
            let flags = input.u8()?;
            PeerMessage::Status(NodeStatus {
                draining: flags & STATUS_DRAINING != 0,
                stalled: flags & STATUS_STALLED != 0,
            })
        }
        KIND_USER => {
            let length = input.len();
            PeerMessage::User(input.shared(length, bytes)?)
        }
        _ => return Err(Malformed("a kind that is not known")),
    };
    input.end()?;
    Ok(message)
}

/// The status message.
pub fn encode_status(status: NodeStatus) -> Outgoing {
    let flags = (u8::from(status.draining) * STATUS_DRAINING) | (u8::from(status.stalled) * STATUS_STALLED);
    Outgoing { class: Class::Control, parts: vec![Bytes::from(vec![KIND_STATUS, flags])] }
}

/// Something of the user's.
pub fn encode_user(parts: impl IntoIterator<Item = Bytes>, class: Class) -> Outgoing {
    let head = Bytes::from_static(&[KIND_USER]);
    Outgoing { class, parts: std::iter::once(head).chain(parts).collect() }
}

/// A message about a snapshot.
pub fn encode_snapshot(group: GroupId, message: &SnapshotMessage) -> Outgoing {
    let mut head = BytesMut::with_capacity(64);
    head.put_u8(KIND_SNAPSHOT);
    head.put_u32_le(group.0);
    let tail = message.encode(&mut head);
    let parts = std::iter::once(head.freeze()).chain(tail.filter(|tail| !tail.is_empty())).collect();
    Outgoing { class: Class::Bulk, parts }
}

/// Raft messages for one peer and of one class, gathered into one message.
#[derive(Debug)]
pub(crate) struct RaftBatch {
    class: Class,
    head: BytesMut,
    parts: Vec<Bytes>,
    count: u16,
    bytes: usize,
}

impl RaftBatch {
    pub(crate) fn new(class: Class) -> RaftBatch {
        let mut head = BytesMut::with_capacity(256);
        head.put_u8(KIND_RAFT);
        head.put_u16_le(0);
        RaftBatch { class, head, parts: Vec::new(), count: 0, bytes: 0 }
    }

    /// The class that a raft message belongs to.
    pub(crate) fn class_of(message: &Message) -> Class {
        if message.get_entries().is_empty() { Class::Control } else { Class::Append }
    }

    pub(crate) fn add(&mut self, group: GroupId, message: &Message) {
        let before = self.head.len();
        let payloads = raft_message::encode(group, message, &mut self.head);
        self.bytes += self.head.len() - before;
        if !payloads.is_empty() {
            self.parts.push(self.head.split().freeze());
            self.bytes += payloads.iter().map(Bytes::len).sum::<usize>();
            self.parts.extend(payloads);
        }
        self.count += 1;
    }

    pub(crate) fn is_full(&self, more: usize) -> bool {
        usize::from(self.count) >= MAX_BATCH || self.count > 0 && self.bytes + more > BATCH_BYTES
    }

    /// `None` if nothing was added.
    pub(crate) fn finish(mut self) -> Option<Outgoing> {
        if self.count == 0 {
            return None;
        }
        if !self.head.is_empty() {
            self.parts.push(self.head.freeze());
        }
        let mut first = self.parts[0].to_vec();
        first[1..3].copy_from_slice(&self.count.to_le_bytes());
        self.parts[0] = first.into();
        Some(Outgoing { class: self.class, parts: self.parts })
    }
}

/// A batch is not filled beyond this, unless by one message: what waits behind it should not wait long.
const BATCH_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests;
