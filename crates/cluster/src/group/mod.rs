//! One Raft group's member on this node: the consensus core of the crate `raft`, its log on this node's disk, and all that the
//! core leaves to its user: when messages may leave, what is handed out when, who may vote, and how long a leader may deliver.
//!
//! A group never waits. Inputs change its state; [`Group::turn`] then gives writes to the log, and messages and events to the
//! caller. What is written while the log syncs is the next turn.

mod cache;
mod election;
mod guard;
mod hard_state;
mod lease;
mod membership;
mod open;
mod replica_log;
mod snapshots;
mod turn;
mod writes;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use raft::{
    Error as RaftError, RawNode, StateRole,
    eraftpb::{Entry as RaftEntry, EntryType, Message, MessageType},
};
use storage::{Admission, GroupId, Index, Location, Log, Placed, StorageError, StoredEntry, Term, Ticket};

use crate::{
    config::Config,
    error::ProposeError,
    event::{Event, Fault, Proposed},
    member::{Configuration, ConfigurationChange, MemberId},
};

pub(crate) use cache::{kind, payload, raft_entry, tag};
pub(crate) use guard::MAX_NUMBER;
pub use hard_state::fuzz_records;
pub use open::GroupStart;
pub use replica_log::Fetch;
pub(crate) use snapshots::{configured_at, make as make_snapshot};

use guard::Verdict;
use lease::Lease;
use replica_log::ReplicaLog;
use writes::Writes;

/// What a turn brings.
#[derive(Default)]
pub(crate) struct Output {
    pub(crate) messages: Vec<Message>,
    pub(crate) events: Vec<Event>,
    pub(crate) fetches: Vec<Fetch>,
}

/// The member.
///
/// Invariants:
/// - `handed` never falls, and is never beyond what is on disk here and committed;
/// - a message of raft's turn `n` that promises something leaves after all writes up to turn `n` are on disk;
/// - proposals are made here only while this member leads: raft never forwards one.
pub(crate) struct Group {
    id: GroupId,
    me: MemberId,
    config: Arc<Config>,
    raft: RawNode<ReplicaLog>,
    writes: Writes,
    /// Committed, not handed out yet; with their places.
    pending: VecDeque<(RaftEntry, Location)>,
    /// The write that has to be on disk before anything more is handed out: a new configuration.
    hold: Option<u64>,
    /// Handed out up to here.
    handed: u64,
    /// As leader: the first entry of the term. When it is handed out, the user may lead.
    lead_from: Option<u64>,
    /// The user was told that it leads.
    leading: bool,
    /// What the user was told last of another's leadership.
    told: Option<(u64, Option<MemberId>)>,
    lease: Lease,
    lease_until: Duration,
    /// A request to take over has left in this term.
    timeout_now_sent: bool,
    /// Was asked to hand over.
    transferring: bool,
    /// No votes before: it may have promised a leader, before it was restarted, to elect no other.
    deaf_until: Duration,
    /// To stand for election then, because the leader's link was closed; and how many more times.
    campaign_at: Option<Duration>,
    campaigns_left: u32,
    /// Counts role changes, so that election timeouts differ and yet follow from the seed.
    draws: u64,
    last_soft: (u64, StateRole),
    election_timeout: usize,
    /// The commit index that is on disk, or on its way there.
    commit_written: u64,
    ticks_since_commit: u32,
    /// Who should be in the group, if somebody said so.
    desired: Option<Vec<MemberId>>,
    dirty: bool,
    failed: bool,
}

impl Group {
    pub(crate) fn term(&self) -> u64 {
        self.raft.raft.term
    }

    pub(crate) fn is_leader(&self) -> bool {
        self.raft.raft.state == StateRole::Leader && !self.failed
    }

    /// The user leads.
    pub(crate) fn is_leading(&self) -> bool {
        self.leading
    }

    pub(crate) fn leader(&self) -> Option<MemberId> {
        MemberId::from_raw(self.raft.raft.leader_id)
    }

    pub(crate) fn configuration(&self) -> &Configuration {
        &self.raft.raft.store().hard.configuration
    }

    pub(crate) fn committed(&self) -> u64 {
        self.raft.raft.raft_log.committed
    }

    pub(crate) fn last(&self) -> u64 {
        self.raft.raft.raft_log.last_index()
    }

    pub(crate) fn compacted(&self) -> u64 {
        self.raft.raft.store().compacted().0
    }

    pub(crate) fn handed(&self) -> u64 {
        self.handed
    }

    pub(crate) fn applied(&self) -> u64 {
        self.raft.raft.raft_log.applied
    }

    pub(crate) fn is_failed(&self) -> bool {
        self.failed
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    /// How long the oldest write takes already.
    pub(crate) fn write_waits_for(&self, now: Duration) -> Duration {
        self.writes.waiting_for(now)
    }

    pub(crate) fn unwritten(&self) -> usize {
        self.writes.len()
    }

    /// The disk is full.
    pub(crate) fn is_blocked(&self) -> bool {
        self.writes.is_blocked()
    }

    /// How far the other members of the group are known to be, on a leader.
    pub(crate) fn matched(&self, member: MemberId) -> Option<u64> {
        self.raft.raft.prs().get(member.raw()).map(|progress| progress.matched)
    }

    fn log(&self) -> Log {
        self.raft.raft.store().log().clone()
    }

    // ---- inputs -------------------------------------------------------------------------------------------------------

    /// Takes a payload for the next turn.
    pub(crate) fn propose(&mut self, payload: Bytes) -> Result<Proposed, ProposeError> {
        if !self.is_leader() || !self.leading {
            return Err(ProposeError::NotLeader);
        }
        if payload.is_empty() || payload.len() > self.config.max_entry_bytes {
            return Err(ProposeError::Size);
        }
        if self.transferring || self.raft.raft.lead_transferee.is_some() {
            return Err(ProposeError::Transferring);
        }
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.me.raw();
        message.set_entries(vec![raft_entry(0, 0, EntryType::EntryNormal, payload)].into());
        let proposed = self.raft.raft.step(message);
        self.proposed(proposed)
    }

    fn proposed(&mut self, proposed: raft::Result<()>) -> Result<Proposed, ProposeError> {
        self.after_raft();
        match proposed {
            Ok(()) => Ok(Proposed { index: Index(self.last()), term: Term(self.term()) }),
            Err(RaftError::ProposalDropped) => Err(ProposeError::Busy),
            Err(_) => Err(ProposeError::NotLeader),
        }
    }

    /// Proposes a change of members.
    pub(crate) fn change_members(&mut self, change: &ConfigurationChange) -> Result<Proposed, ProposeError> {
        if !self.is_leader() || !self.leading {
            return Err(ProposeError::NotLeader);
        }
        if self.raft.raft.has_pending_conf() || self.hold.is_some() {
            return Err(ProposeError::ChangePending);
        }
        if self.configuration().is_joint() != change.0.is_empty() || change.0.len() > crate::member::MAX_MEMBERS {
            return Err(ProposeError::ChangePending);
        }
        if self.transferring || self.raft.raft.lead_transferee.is_some() {
            return Err(ProposeError::Transferring);
        }
        let context = if change.0.is_empty() { Vec::new() } else { change.encode() };
        let proposed = self.raft.propose_conf_change(context, change.to_raft());
        self.proposed(proposed)
    }

    /// A message of an authenticated peer.
    pub(crate) fn receive(&mut self, mut message: Message, now: Duration, out: &mut Output) {
        if self.failed {
            return;
        }
        let kind = message.get_msg_type();
        match guard::check(&self.raft, &mut message) {
            Verdict::Step => {}
            Verdict::Drop(why) => {
                tracing::debug!(group = %self.id, from = message.from, ?kind, why, "a raft message was dropped");
                return;
            }
            Verdict::LostLog(needed) => {
                let last = Index(self.last());
                return self.fail(Fault::LostLog { last, needed: Index(needed) }, out);
            }
        }
        match kind {
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote if !self.may_vote(&message, now) => return,
            MessageType::MsgTimeoutNow if !self.may_take_over(&message) => return,
            MessageType::MsgHeartbeatResponse if message.term == self.term() && self.is_leader() => {
                self.lease_heard(&message, now);
            }
            _ => {}
        }
        // Errors are about messages of former members, and the like: nothing to do.
        let _ = self.raft.step(message);
        self.after_raft();
    }

    /// All of the group's submissions up to a ticket are on disk.
    pub(crate) fn written(&mut self, up_to: Ticket, placed: &[Placed], out: &mut Output) {
        let done = self.writes.written(up_to, placed);
        self.finish(done, out);
    }

    /// The log has not written a submission.
    pub(crate) fn write_failed(&mut self, ticket: Ticket, error: &StorageError, out: &mut Output) {
        if !self.writes.refused(ticket) || self.failed {
            return;
        }
        if error.is_full() {
            tracing::warn!(group = %self.id, %error, "no space for the log: the group waits");
            return;
        }
        self.fail(Fault::Disk(error.clone()), out);
    }

    /// The user has applied all up to an index that was handed out.
    pub(crate) fn set_applied(&mut self, index: Index) {
        let index = index.0.min(self.handed);
        if index > self.applied() {
            self.raft.advance_apply_to(index);
            self.after_raft();
        }
    }

    /// Entries that a [`Fetch`] asked for.
    pub(crate) fn fetched(&mut self, from: Index, entries: Vec<StoredEntry>) {
        let contexts = self.raft.mut_store().fetched(from.0, entries);
        if !self.failed {
            contexts.into_iter().for_each(|context| self.raft.on_entries_fetched(context));
        }
        self.raft.mut_store().forget_fetched();
        self.after_raft();
    }

    /// Entries up to an index are no longer needed by the user, whose state up to there is durable. Returns up to where the
    /// log forgets: not what a snapshot under way is followed by.
    pub(crate) fn compact(&mut self, index: Index, now: Duration) -> Index {
        let offered = self.raft.raft.store().offer.as_ref().map_or(u64::MAX, |offer| offer.get_metadata().index);
        let index = index.0.min(self.applied()).min(offered);
        let compacted = self.compacted();
        if index <= compacted || self.failed {
            return Index(compacted);
        }
        let term = self.raft.raft.raft_log.term(index).expect("applied entries are known by their term");
        self.raft.mut_store().compact(index, term);
        let operations = vec![storage::Operation::CompactTo { index: Index(index), term: Term(term) }];
        let log = self.log();
        self.writes.add(&log, writes::Write { operations, lazy: true, ..writes::Write::default() }, now);
        Index(index)
    }

    /// Stops for good.
    pub(crate) fn fail(&mut self, fault: Fault, out: &mut Output) {
        if self.failed {
            return;
        }
        tracing::error!(group = %self.id, ?fault, "the group stops on this node");
        if self.raft.raft.state == StateRole::Leader && matches!(fault, Fault::Disk(_)) {
            // To ask another to take over needs no disk.
            if let Some(heir) = self.heir(|_| true) {
                self.raft.transfer_leader(heir.raw());
            }
            let ask = std::mem::take(&mut self.raft.raft.msgs);
            out.messages.extend(ask.into_iter().filter(|message| message.get_msg_type() == MessageType::MsgTimeoutNow));
        }
        self.failed = true;
        self.leading = false;
        self.dirty = false;
        out.events.push(Event::Failed(fault));
    }

    /// To be called after whatever may have changed raft.
    fn after_raft(&mut self) {
        let soft = (self.raft.raft.term, self.raft.raft.state);
        if soft != self.last_soft {
            self.last_soft = soft;
            self.draw_election_timeout();
        }
        // Raft may have drawn one of its own meanwhile.
        self.raft.raft.set_randomized_election_timeout(self.election_timeout);
        self.dirty = true;
    }
}

/// Whether the log takes entries at present.
fn admits(log: &Log) -> bool {
    log.admission() != Admission::Stopped
}
