//! The bookkeeping of snapshots under way: who sends what to whom, and how far it is.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use raft::eraftpb::Snapshot;
use storage::GroupId;

use crate::{event::SnapshotId, member::MemberId};

/// Bytes of a piece, at most: what waits behind it on the link waits a moment only.
pub(super) const PIECE_BYTES: usize = 256 << 10;
/// Bytes that may be sent and not stored: what the receiver holds in memory at most.
pub(super) const WINDOW_BYTES: u64 = 1 << 20;
/// What was not answered is said again after so long.
pub(super) const AGAIN: Duration = Duration::from_millis(500);
/// Without any progress for so long a transfer is given up; raft starts another.
pub(super) const GIVE_UP: Duration = Duration::from_secs(30);
/// A view that nobody reads is released after so long; a follower that comes a little later finds it.
pub(super) const KEEP_OFFER: Duration = Duration::from_secs(10);

/// A snapshot on its way to a member.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) snapshot: SnapshotId,
    /// The leader's term, and what raft said of the snapshot.
    pub(super) term: u64,
    pub(super) contents: Snapshot,
    /// The receiver has answered the offer.
    pub(super) accepted: bool,
    pub(super) have: Option<Bytes>,
    pub(super) sent: u64,
    pub(super) stored: u64,
    /// The user was asked for the piece at `sent`.
    pub(super) asked: bool,
    /// The last piece is sent.
    pub(super) finished: bool,
    pub(super) heard_at: Duration,
    pub(super) said_at: Duration,
}

/// A snapshot that comes in.
#[derive(Debug)]
pub(super) struct Receiving {
    pub(super) snapshot: SnapshotId,
    pub(super) term: u64,
    pub(super) contents: Snapshot,
    /// The user has agreed, and holds this.
    pub(super) accepted: bool,
    pub(super) have: Bytes,
    /// Bytes handed to the user.
    pub(super) received: u64,
    /// Bytes that the user has stored.
    pub(super) stored: u64,
    /// The last piece was handed to the user.
    pub(super) complete: bool,
    /// Raft has it and it is on its way to disk.
    pub(super) installing: bool,
    pub(super) heard_at: Duration,
    pub(super) said_at: Duration,
}

/// A view of the user's state that is kept for those who need it.
#[derive(Debug)]
pub(super) struct Offer {
    pub(super) snapshot: SnapshotId,
    pub(super) used_at: Duration,
}

/// All that is under way on this node.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    pub(super) sending: BTreeMap<(GroupId, MemberId), Sending>,
    pub(super) receiving: BTreeMap<GroupId, Receiving>,
    pub(super) offers: BTreeMap<GroupId, Offer>,
    /// The user was asked to make a view at that time.
    pub(super) wanted: BTreeMap<GroupId, Duration>,
}
