//! What a group tells its user.

use std::time::Duration;

use bytes::Bytes;
use storage::{Index, Location, StorageError, Term};

use crate::member::{Configuration, MemberId};

/// A committed entry: on disk on a majority, and here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its place in the order of the group.
    pub index: Index,
    /// The term in which it was proposed. A proposal was committed if index and term are those of its [`Proposed`].
    pub term: Term,
    /// As proposed. Shares the memory of the proposal on the leader, of the received frame elsewhere, and of a piece of the
    /// log after a start: copy what is kept long.
    pub payload: Bytes,
    /// Where the payload lies on this node's disk.
    pub location: Location,
}

/// A proposal on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proposed {
    /// The index that it will have, if it is committed.
    pub index: Index,
    /// Its term.
    pub term: Term,
}

/// What happened in a group, in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// Apply these, in order, then call `applied` with `up_to`. Entries without meaning to the user are left out, so
    /// `up_to` may be beyond the last, and `entries` may be empty.
    Committed {
        /// What is to be applied.
        entries: Vec<Committed>,
        /// The state is that of this index when they are applied.
        up_to: Index,
    },
    /// This node leads the group, and all that earlier leaders committed has been handed out. Proposals are taken.
    Leading {
        /// Its term.
        term: Term,
    },
    /// This node does not lead the group (any more). What it proposed and has not seen committed may or may not be committed
    /// by another leader.
    Following {
        /// The term.
        term: Term,
        /// Who leads, if that is known.
        leader: Option<MemberId>,
    },
    /// A leader may deliver until then, on the clock that is given to `tick`. Comes again and again; `ZERO` ends it at once.
    Lease {
        /// Until when.
        until: Duration,
    },
    /// The group has other members.
    Members(Configuration),
    /// The leader needs a snapshot of the user's state for a member that is far behind: freeze a view of it, and call
    /// `offer_snapshot`.
    SnapshotWanted,
    /// A leader has a snapshot for this member: answer with `accept_snapshot`. Pieces follow as [`Event::SnapshotPiece`].
    SnapshotOffered {
        /// Which one.
        snapshot: SnapshotId,
    },
    /// A piece of a snapshot that comes in. Store it durably beside the state, then call `snapshot_stored`; after the last one
    /// the whole must be durable.
    SnapshotPiece {
        /// Of which one.
        snapshot: SnapshotId,
        /// Bytes before it.
        offset: u64,
        /// The piece.
        bytes: Bytes,
        /// It is the last.
        last: bool,
    },
    /// The snapshot that came in is now the state of the group: use it in place of what is there, durably. The log has
    /// nothing up to its index any more.
    SnapshotInstalled {
        /// Its last entry.
        index: Index,
        /// That one's term.
        term: Term,
    },
    /// What came in of a snapshot is of no use: remove it.
    SnapshotDropped {
        /// Which one.
        snapshot: SnapshotId,
    },
    /// A member's pieces are wanted: call `snapshot_piece` with what follows, at most so many bytes, until it says enough.
    PieceWanted {
        /// To whom.
        to: MemberId,
        /// Of which one.
        snapshot: SnapshotId,
        /// Bytes of it that have been sent.
        offset: u64,
        /// At most so many.
        max_bytes: usize,
        /// What the receiver already holds, in the user's own words (see `accept_snapshot`); with the first piece only.
        have: Option<Bytes>,
    },
    /// Nobody needs the view of this snapshot any more.
    SnapshotReleased {
        /// Which one.
        snapshot: SnapshotId,
    },
    /// The group has stopped on this node, for good.
    Failed(Fault),
}

/// A snapshot, by what it contains and who made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId {
    /// Its last entry.
    pub index: Index,
    /// That one's term.
    pub term: Term,
    /// Who made it.
    pub maker: MemberId,
}

/// Why a group stopped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The log takes nothing more, or cannot be read. The node has to be restarted.
    Disk(StorageError),
    /// Entries that this replica acknowledged are gone. The node must come back as a new member.
    LostLog {
        /// Where its log ends.
        last: Index,
        /// What it had.
        needed: Index,
    },
    /// A committed change of members cannot be read: written by a newer release, or damage.
    Unreadable {
        /// Which entry.
        index: Index,
    },
}
