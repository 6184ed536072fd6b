//! What a peer's message must be like before raft sees it. Raft trusts its peers and panics where an invariant is broken from
//! outside: by a forged message, or by a log that was shortened. Here such a message is dropped, or the group stopped.
//!
//! A forged message of somebody who knows the cluster's secret can still make a replica wrong (raft does not survive liars),
//! but it cannot end the process.

use raft::{
    RawNode, StateRole,
    eraftpb::{Message, MessageType},
};

use super::replica_log::ReplicaLog;
use crate::member::Configuration;

/// Terms and indexes from outside stay below this, so that adding to them never overflows.
pub(crate) const MAX_NUMBER: u64 = 1 << 60;

/// What to do with a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Give it to raft.
    Step,
    /// Forget it: stale, or forged.
    Drop(&'static str),
    /// The leader knows that this replica had entries which it no longer has: up to this index.
    LostLog(u64),
}

use Verdict::{Drop, LostLog, Step};

/// Looks at a message of an authenticated peer. May take out of it what is stale.
pub(crate) fn check(raft: &RawNode<ReplicaLog>, message: &mut Message) -> Verdict {
    if message.to != raft.raft.id || message.from == raft.raft.id || message.from == 0 {
        return Drop("not for this member");
    }
    if message.term == 0 {
        return Drop("without a term");
    }
    let numbers = [message.term, message.log_term, message.index, message.commit, message.commit_term];
    if numbers.iter().any(|number| *number > MAX_NUMBER) || message.reject_hint > MAX_NUMBER {
        return Drop("a number out of range");
    }
    if message.priority != 0 || message.deprecated_priority != 0 || message.request_snapshot != 0 {
        return Drop("fields that nobody sets");
    }
    match message.get_msg_type() {
        MessageType::MsgAppend => check_append(raft, message),
        MessageType::MsgHeartbeat => check_heartbeat(raft, message),
        MessageType::MsgSnapshot => check_snapshot(raft, message),
        MessageType::MsgAppendResponse => check_append_response(raft, message),
        MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => check_vote(raft),
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => Step,
        MessageType::MsgHeartbeatResponse | MessageType::MsgTimeoutNow => Step,
        // Forwarded proposals and reads, and what raft tells itself.
        _ => Drop("a kind that is never sent"),
    }
}

fn check_append(raft: &RawNode<ReplicaLog>, message: &Message) -> Verdict {
    if message.log_term > message.term {
        return Drop("an earlier term above a later one");
    }
    // Raft takes term 0 for that of any entry it does not have.
    if (message.log_term == 0) != (message.index == 0) {
        return Drop("an entry without a term");
    }
    let (mut index, mut term) = (message.index, message.log_term);
    for entry in message.get_entries() {
        if entry.index != index + 1 || entry.term < term || entry.term > message.term || entry.term == 0 {
            return Drop("entries that do not follow one another");
        }
        (index, term) = (entry.index, entry.term);
    }
    // Raft answers what is at or below the commit index itself; beyond it only the leader of this term may overwrite.
    let same_term = message.term == raft.raft.term;
    if same_term && raft.raft.leader_id != 0 && raft.raft.leader_id != message.from {
        return Drop("two leaders in one term");
    }
    Step
}

fn check_heartbeat(raft: &RawNode<ReplicaLog>, message: &Message) -> Verdict {
    if message.term < raft.raft.term || raft.raft.state == StateRole::Leader && message.term == raft.raft.term {
        return Step;
    }
    if message.term == raft.raft.term && raft.raft.leader_id != 0 && raft.raft.leader_id != message.from {
        return Drop("two leaders in one term");
    }
    // A leader tells nobody to commit what it has not acknowledged.
    if message.commit > raft.raft.raft_log.last_index() { LostLog(message.commit) } else { Step }
}

fn check_snapshot(raft: &RawNode<ReplicaLog>, message: &Message) -> Verdict {
    let metadata = message.get_snapshot().get_metadata();
    if metadata.index == 0 || metadata.index > MAX_NUMBER || metadata.term == 0 || metadata.term > message.term {
        return Drop("a snapshot of nothing");
    }
    let configuration = Configuration::from_raft(metadata.get_conf_state());
    if configuration.is_empty() || !configuration.is_valid() || metadata.get_conf_state().auto_leave {
        return Drop("a snapshot without a valid configuration");
    }
    if raft.raft.term == message.term && raft.raft.state == StateRole::Leader {
        return Drop("two leaders in one term");
    }
    Step
}

fn check_append_response(raft: &RawNode<ReplicaLog>, message: &mut Message) -> Verdict {
    if raft.raft.state != StateRole::Leader || message.term != raft.raft.term {
        return Step;
    }
    let last = raft.raft.raft_log.last_index();
    if message.commit > last || !message.reject && message.index > last {
        return Drop("an acknowledgement of what was never sent");
    }
    if !message.reject {
        return Step;
    }
    let Some(progress) = raft.raft.prs().get(message.from) else { return Drop("of nobody") };
    if message.index <= progress.matched {
        return Drop("a refusal that was overtaken");
    }
    if message.reject_hint < progress.matched {
        // Its log is longer by now: going back further than what matched would resend for nothing, or even ask for a
        // snapshot.
        (message.reject_hint, message.log_term) = (progress.matched, 0);
    }
    Step
}

fn check_vote(raft: &RawNode<ReplicaLog>) -> Verdict {
    // A candidate asks when all that it has is on disk; an answer before is none.
    let on_disk = raft.raft.raft_log.persisted == raft.raft.raft_log.last_index();
    if raft.raft.state == StateRole::Candidate && !on_disk { Drop("a vote that was not asked for") } else { Step }
}
