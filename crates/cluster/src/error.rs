//! What can go wrong, by what the caller does next.

use storage::{GroupId, Index, StorageError};

/// Failures of opening and driving groups.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The log of a group ends before what was promised from it: entries that were on disk are gone. This replica must not
    /// vote or answer; the node has to leave the cluster and come back as a new member.
    #[error("group {group} has lost entries: its log ends at {last}, but {needed} was committed here")]
    LogShortened {
        /// Which group.
        group: GroupId,
        /// Where its log ends.
        last: Index,
        /// What it had.
        needed: Index,
    },
    /// The log no longer has what follows the state that the caller gave: the state must come from a received snapshot, or
    /// is lost.
    #[error("group {group} has its state up to {applied}, but its log begins after {compacted}")]
    StateMissing {
        /// Which group.
        group: GroupId,
        /// The caller's state.
        applied: Index,
        /// The last index that the log forgot.
        compacted: Index,
    },
    /// The record of votes and members of a group cannot be read.
    #[error("the hard state of group {group} cannot be read")]
    HardState {
        /// Which group.
        group: GroupId,
    },
    /// Nobody told the members of a group that has none.
    #[error("group {group} has no members yet")]
    NotBootstrapped {
        /// Which group.
        group: GroupId,
    },
    /// The log.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// The consensus core refused its settings.
    #[error("raft: {0}")]
    Raft(String),
}

impl From<raft::Error> for ClusterError {
    fn from(error: raft::Error) -> ClusterError {
        ClusterError::Raft(error.to_string())
    }
}

/// Why a proposal was not taken. Nothing of it will be committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProposeError {
    /// This node does not lead the group, or not yet ([`crate::Event::Leading`] comes first). Ask the leader.
    #[error("not the leader")]
    NotLeader,
    /// The leadership is being handed over. Keep the proposal for the next leader.
    #[error("the leadership is being handed over")]
    Transferring,
    /// Too much is under way. Propose again after the next commit.
    #[error("too many bytes are uncommitted")]
    Busy,
    /// Larger than [`crate::Config::max_entry_bytes`], or empty.
    #[error("the payload has no acceptable size")]
    Size,
    /// Another change of members is under way.
    #[error("another change of members is under way")]
    ChangePending,
    /// No such group on this node.
    #[error("no such group")]
    NoGroup,
}
