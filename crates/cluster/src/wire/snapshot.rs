//! Messages about a snapshot under way.

use bytes::{BufMut, Bytes, BytesMut};
use storage::{Index, Term};

use crate::{
    event::SnapshotId,
    group::MAX_NUMBER,
    input::{Input, Malformed},
    member::{Configuration, MemberId},
};

/// Most bytes in which a receiver says what it holds already.
pub const MAX_HAVE_BYTES: usize = 1 << 20;

/// From the leader to a member that is far behind, and back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotMessage {
    /// Leader: there is this snapshot for you. Said again and again until answered.
    Offer {
        /// Which one.
        snapshot: SnapshotId,
        /// The leader's term.
        term: u64,
        /// The members.
        configuration: Configuration,
        /// The entry that made them the members.
        configured_at: u64,
    },
    /// Receiver: send from this place on.
    Accept {
        /// Which one.
        snapshot: SnapshotId,
        /// Bytes that it has stored of it.
        offset: u64,
        /// What it holds of the state already, in the user's own words.
        have: Bytes,
    },
    /// Receiver: not this one. It needs none, or is busy with another.
    Refuse {
        /// Which one.
        snapshot: SnapshotId,
    },
    /// Leader: a piece.
    Piece {
        /// Of which one.
        snapshot: SnapshotId,
        /// Bytes before it.
        offset: u64,
        /// The last.
        last: bool,
        /// The piece.
        bytes: Bytes,
    },
    /// Receiver: so much is stored, send on. After the last piece: the snapshot is in use, or was of no use.
    Stored {
        /// Of which one.
        snapshot: SnapshotId,
        /// Bytes stored.
        offset: u64,
        /// All is done.
        done: bool,
    },
}

const OFFER: u8 = 1;
const ACCEPT: u8 = 2;
const REFUSE: u8 = 3;
const PIECE: u8 = 4;
const STORED: u8 = 5;

impl SnapshotMessage {
    /// Which snapshot it is about.
    pub fn snapshot(&self) -> SnapshotId {
        match self {
            SnapshotMessage::Offer { snapshot, .. }
            | SnapshotMessage::Accept { snapshot, .. }
            | SnapshotMessage::Refuse { snapshot }
            | SnapshotMessage::Piece { snapshot, .. }
            | SnapshotMessage::Stored { snapshot, .. } => *snapshot,
        }
    }

    /// Appends all but the bytes that come last, which are returned.
    pub(super) fn encode(&self, out: &mut BytesMut) -> Option<Bytes> {
        let code = match self {
            SnapshotMessage::Offer { .. } => OFFER,
            SnapshotMessage::Accept { .. } => ACCEPT,
            SnapshotMessage::Refuse { .. } => REFUSE,
            SnapshotMessage::Piece { .. } => PIECE,
            SnapshotMessage::Stored { .. } => STORED,
        };
        out.put_u8(code);
        let id = self.snapshot();
        [id.index.0, id.term.0, id.maker.raw()].iter().for_each(|number| out.put_u64_le(*number));
        match self {
            SnapshotMessage::Offer { term, configuration, configured_at, .. } => {
                out.put_u64_le(*term);
                out.put_u64_le(*configured_at);
                let mut bytes = Vec::new();
                configuration.encode(&mut bytes);
                out.extend_from_slice(&bytes);
                None
            }
            SnapshotMessage::Accept { offset, have, .. } => {
                out.put_u64_le(*offset);
                Some(have.clone())
            }
            SnapshotMessage::Refuse { .. } => None,
            SnapshotMessage::Piece { offset, last, bytes, .. } => {
                out.put_u64_le(*offset);
                out.put_u8(u8::from(*last));
                Some(bytes.clone())
            }
            SnapshotMessage::Stored { offset, done, .. } => {
                out.put_u64_le(*offset);
                out.put_u8(u8::from(*done));
                None
            }
        }
    }

    /// Reads a message. Only whoever made a snapshot speaks of it as its own.
    pub(super) fn decode(input: &mut Input<'_>, whole: &Bytes, from: MemberId) -> Result<SnapshotMessage, Malformed> {
        let code = input.u8()?;
        let (index, term) = (number(input)?, number(input)?);
        let maker = MemberId::from_raw(input.u64()?).ok_or(Malformed("member 0"))?;
        if matches!(code, OFFER | PIECE) != (maker == from) {
            return Err(Malformed("a snapshot of somebody else"));
        }
        let snapshot = SnapshotId { index: Index(index), term: Term(term), maker };
        let message = match code {
            OFFER => {
                let (term, configured_at) = (number(input)?, number(input)?);
                let configuration = Configuration::decode(input)?;
                SnapshotMessage::Offer { snapshot, term, configuration, configured_at }
            }
            ACCEPT => {
                let offset = number(input)?;
                if input.len() > MAX_HAVE_BYTES {
                    return Err(Malformed("too much is held"));
                }
                let length = input.len();
                SnapshotMessage::Accept { snapshot, offset, have: input.shared(length, whole)? }
            }
            REFUSE => SnapshotMessage::Refuse { snapshot },
            PIECE => {
                let (offset, last) = (number(input)?, flag(input)?);
                let length = input.len();
                SnapshotMessage::Piece { snapshot, offset, last, bytes: input.shared(length, whole)? }
            }
            STORED => SnapshotMessage::Stored { snapshot, offset: number(input)?, done: flag(input)? },
            _ => return Err(Malformed("an unknown message about a snapshot")),
        };
        Ok(message)
    }
}

fn number(input: &mut Input<'_>) -> Result<u64, Malformed> {
    input.u64().and_then(|number| if number <= MAX_NUMBER { Ok(number) } else { Err(Malformed("a huge number")) })
}

fn flag(input: &mut Input<'_>) -> Result<bool, Malformed> {
    match input.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Malformed("neither yes nor no")),
    }
}
