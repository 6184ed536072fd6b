//! How a group begins: from its log, or from the members that formation agreed on.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use raft::{Config as RaftConfig, RawNode, StateRole};
use storage::{GroupId, Index, Log, Operation, Term};

use super::{
    Group, cache,
    hard_state::HardState,
    lease::Lease,
    replica_log::ReplicaLog,
    writes::{Write, Writes},
};
use crate::{
    config::Config,
    error::ClusterError,
    logger::logger,
    member::{Configuration, MemberId},
};

/// Where a new group's log begins: after an entry that never was. So a member that has nothing is always given a snapshot, and
/// with it the members.
const BEGINNING: (u64, u64) = (1, 1);

/// A group to open.
#[derive(Clone, Debug)]
pub struct GroupStart {
    /// Which one. 0 is the metadata's.
    pub group: GroupId,
    /// The user's durable state is that of this index. 0: it has none.
    pub applied: Index,
    /// The voters that formation agreed on, if the group is to be made by this start. A group that is there keeps its own.
    /// Empty on a node that joins: a leader will add it.
    pub bootstrap: Option<Configuration>,
}

impl Group {
    /// Opens the group's log on this node, or begins it.
    pub(crate) fn open(
        me: MemberId,
        config: &Arc<Config>,
        log: &Log,
        start: &GroupStart,
        now: Duration,
    ) -> Result<Group, ClusterError> {
        let group = start.group;
        let mut writes = Writes::new(group);
        let status = log.status(group);
        let (mut compacted, mut last) =
            status.as_ref().map_or(((0, 0), 0), |status| ((status.compacted.0.0, status.compacted.1.0), status.last.0));
        let remembered = status.map(|status| status.hard_state).filter(|hard_state| !hard_state.is_empty());
        let is_new = remembered.is_none();
        let mut operations = Vec::new();
        let mut hard = match (&remembered, &start.bootstrap) {
            (Some(bytes), _) => HardState::decode(bytes).map_err(|_| ClusterError::HardState { group })?,
            (None, None) => return Err(ClusterError::NotBootstrapped { group }),
            (None, Some(members)) if members.is_empty() => HardState::default(),
            (None, Some(members)) if last == 0 => {
                (compacted, last) = (BEGINNING, BEGINNING.0);
                operations.push(Operation::SnapshotMark { index: Index(BEGINNING.0), term: Term(BEGINNING.1) });
                begin(BEGINNING, members)
            }
            // A log of a node that was alone, without raft: all of it is committed.
            (None, Some(members)) => {
                let term = log.term(group, Index(last)).unwrap_or(Term(1));
                begin((last, term.0), members)
            }
        };
        let mut applied = start.applied.0;
        if applied == 0 && compacted == BEGINNING {
            applied = BEGINNING.0;
        }
        if applied < compacted.0 {
            let (applied, compacted) = (Index(applied), Index(compacted.0));
            return Err(ClusterError::StateMissing { group, applied, compacted });
        }
        let needed = hard.commit.max(applied);
        if needed > last {
            return Err(ClusterError::LogShortened { group, last: Index(last), needed: Index(needed) });
        }
        hard.commit = needed;
        if is_new && !hard.configuration.is_empty() {
            operations.push(Operation::HardState(hard.encode()));
            writes.add(log, Write { operations, ..Write::default() }, now);
        }
        // A member with a past may have promised its patience to a leader just before it ended.
        let deaf_until = if is_new { now } else { now + config.election_timeout() };
        let commit_written = hard.commit;
        let store = ReplicaLog::new(group, log.clone(), compacted, last, hard, config.cache_bytes);
        let raft = RawNode::new(&raft_config(me, config, applied), store, &logger(group.0))?;
        let mut opened = Group {
            id: group,
            me,
            config: Arc::clone(config),
            raft,
            writes,
            pending: VecDeque::new(),
            hold: None,
            handed: applied,
            lead_from: None,
            leading: false,
            told: None,
            lease: Lease::default(),
            lease_until: Duration::ZERO,
            timeout_now_sent: false,
            transferring: false,
            deaf_until,
            campaign_at: None,
            campaigns_left: 0,
            draws: 0,
            last_soft: (0, StateRole::Follower),
            election_timeout: 0,
            commit_written,
            ticks_since_commit: 0,
            desired: None,
            dirty: true,
            failed: false,
        };
        if opened.is_sole_voter() {
            // Nobody else could have been promised anything.
            opened.deaf_until = now;
            opened.campaign_at = Some(now);
        }
        opened.draw_election_timeout();
        opened.after_raft();
        Ok(opened)
    }
}

fn begin((commit, term): (u64, u64), members: &Configuration) -> HardState {
    HardState { term, vote: 0, commit, configured_at: commit, configuration: members.clone() }
}

fn raft_config(me: MemberId, config: &Config, applied: u64) -> RaftConfig {
    RaftConfig {
        id: me.raw(),
        election_tick: config.election_ticks as usize,
        heartbeat_tick: config.heartbeat_ticks as usize,
        applied,
        max_size_per_msg: config.append_bytes,
        max_inflight_msgs: config.inflight_appends,
        check_quorum: true,
        pre_vote: true,
        max_uncommitted_size: config.uncommitted_bytes.max(config.append_bytes),
        max_committed_size_per_ready: config.handout_bytes,
        ..RaftConfig::default()
    }
}

// The log's tags are part of its format: what is written with one is read with it for ever.
const _: () = assert!(matches!(cache::kind(0), Some(raft::eraftpb::EntryType::EntryNormal)));
