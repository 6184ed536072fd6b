//! A group's turn: what raft has ready goes to the log, to the peers and to the user, each in its order.

use std::time::Duration;

use raft::{
    StateRole,
    eraftpb::{Entry as RaftEntry, EntryType, Message, MessageType},
};
use storage::{Entry, Index, Operation, Term};

use super::{
    Group, Output,
    cache::{self, Cached},
    writes::{Done, Write},
};
use crate::{
    event::{Committed, Event, Fault},
    member::{Configuration, ConfigurationChange, MemberId},
};

impl Group {
    /// Works off all that has come up since the last turn.
    pub(crate) fn turn(&mut self, now: Duration, out: &mut Output) {
        while !self.failed {
            let done = self.writes.empty_ones();
            self.finish(done, out);
            if self.raft.has_ready() {
                self.take_ready(now, out);
            } else if !self.hand_out(now, out) {
                break;
            }
            if let Some(error) = self.raft.mut_store().take_failed() {
                self.fail(Fault::Disk(error), out);
            }
        }
        out.fetches.extend(self.raft.mut_store().take_wanted());
        if self.raft.mut_store().take_snapshot_wanted() && !self.failed {
            out.events.push(Event::SnapshotWanted);
        }
        self.tell_lease(now, out);
        self.dirty = false;
    }

    fn take_ready(&mut self, now: Duration, out: &mut Output) {
        let mut ready = self.raft.ready();
        self.send(ready.take_messages(), now, out);
        if ready.ss().is_some() {
            self.tell_role(out);
        }
        let mut write = Write { ready: Some(ready.number()), ..Write::default() };
        let mut must_remember = false;
        if let Some(hard) = ready.hs() {
            let known = &mut self.raft.mut_store().hard;
            must_remember = (hard.term, hard.vote) != (known.term, known.vote);
            (known.term, known.vote, known.commit) = (hard.term, hard.vote, hard.commit);
        }
        if !ready.snapshot().is_empty() {
            self.take_snapshot(ready.snapshot(), &mut write);
            must_remember = true;
        }
        if must_remember {
            write.operations.push(self.hard_state());
        }
        for entry in ready.take_entries() {
            self.append(&entry, &mut write);
        }
        // Entries are committed only when they are on disk here, so their places are known.
        let read = self.raft.mut_store().take_locations();
        for entry in ready.take_committed_entries() {
            let cached = self.raft.raft.store().cache.get(entry.index).and_then(|cached| cached.location);
            let read = || read.iter().rev().find(|(index, _)| *index == entry.index).map(|(_, location)| *location);
            let location = cached.or_else(read).expect("a committed entry is on disk: in memory, or just read");
            self.pending.push_back((entry, location));
        }
        write.messages = ready.take_persisted_messages();
        let log = self.log();
        self.writes.add(&log, write, now);
        self.raft.advance_append_async(ready);
        self.after_raft();
    }

    fn append(&mut self, entry: &RaftEntry, write: &mut Write) {
        let (term, kind, payload) = (entry.term, entry.get_entry_type(), cache::payload(entry));
        let cached = Cached { term, kind, payload: payload.clone(), write: self.writes.next_id(), location: None };
        self.raft.mut_store().append(entry.index, cached);
        let (index, term) = (Index(entry.index), Term(entry.term));
        write.operations.push(Operation::Append(Entry { index, term, tag: cache::tag(kind), payload }));
    }

    fn take_snapshot(&mut self, snapshot: &raft::eraftpb::Snapshot, write: &mut Write) {
        let metadata = snapshot.get_metadata();
        let (index, term) = (metadata.index, metadata.term);
        let store = self.raft.mut_store();
        store.hard.configuration = Configuration::from_raft(metadata.get_conf_state());
        store.hard.configured_at = super::snapshots::configured_at(snapshot);
        store.restart(index, term);
        self.pending.clear();
        self.hold = None;
        self.handed = index;
        write.operations.push(Operation::SnapshotMark { index: Index(index), term: Term(term) });
        write.restored = Some((index, term));
    }

    /// The hard state as it is to be remembered from now on.
    pub(super) fn hard_state(&mut self) -> Operation {
        let hard = &self.raft.raft.store().hard;
        self.commit_written = hard.commit;
        Operation::HardState(hard.encode())
    }

    // ---- to the user --------------------------------------------------------------------------------------------------

    fn tell_role(&mut self, out: &mut Output) {
        let raft = &self.raft.raft;
        let (term, leader) = (raft.term, MemberId::from_raw(raft.leader_id));
        if raft.state == StateRole::Leader {
            // Its first entry is the last one now; it commits all that is before it.
            self.lead_from = Some(raft.raft_log.last_index());
            (self.transferring, self.timeout_now_sent) = (false, false);
            (self.campaign_at, self.campaigns_left) = (None, 0);
            self.lease.clear();
            self.lease_until = Duration::ZERO;
            self.told = None;
            return;
        }
        if leader.is_some() {
            (self.campaign_at, self.campaigns_left) = (None, 0);
        }
        self.lead_from = None;
        self.leading = false;
        self.transferring = false;
        if self.told != Some((term, leader)) {
            self.told = Some((term, leader));
            out.events.push(Event::Following { term: Term(term), leader });
        }
    }

    /// Hands out what is committed, up to a change of members that is not remembered on disk yet. Whether it changed raft.
    fn hand_out(&mut self, now: Duration, out: &mut Output) -> bool {
        let mut changed = false;
        let mut entries = Vec::new();
        let before = self.handed;
        let mut leads = false;
        while self.hold.is_none() {
            let Some((entry, location)) = self.pending.pop_front() else { break };
            let index = entry.index;
            match entry.get_entry_type() {
                EntryType::EntryNormal if entry.data.is_empty() => {}
                EntryType::EntryNormal => {
                    let (index, term) = (Index(index), Term(entry.term));
                    entries.push(Committed { index, term, payload: entry.data, location });
                }
                _ => match ConfigurationChange::decode(&entry.context) {
                    Ok(change) => changed |= self.reconfigure(index, &change, now, out),
                    Err(_) => {
                        // Nothing of this index or after is given out.
                        self.fail(Fault::Unreadable { index: Index(index) }, out);
                        break;
                    }
                },
            }
            self.handed = index;
            leads |= self.lead_from == Some(index);
        }
        if self.handed > before {
            out.events.push(Event::Committed { entries, up_to: Index(self.handed) });
            let handed = self.handed;
            self.raft.mut_store().cache.trim(handed);
        }
        if leads && self.is_leader() {
            self.lead_from = None;
            self.leading = true;
            out.events.push(Event::Leading { term: Term(self.term()) });
        }
        changed
    }

    /// Takes a committed change of members over. It is remembered on disk before anything after it is handed out, so the
    /// user's state is never ahead of the members on disk.
    fn reconfigure(&mut self, index: u64, change: &ConfigurationChange, now: Duration, out: &mut Output) -> bool {
        if index <= self.raft.raft.store().hard.configured_at {
            return false;
        }
        match self.raft.apply_conf_change(&change.to_raft()) {
            Ok(state) => self.raft.mut_store().hard.configuration = Configuration::from_raft(&state),
            // The same on all members: the change is no longer possible.
            Err(error) => tracing::warn!(group = %self.id, %error, "a change of members came to nothing"),
        }
        self.raft.mut_store().hard.configured_at = index;
        self.after_raft();
        out.events.push(Event::Members(self.configuration().clone()));
        let operations = vec![self.hard_state()];
        self.hold = Some(self.writes.next_id());
        let log = self.log();
        self.writes.add(&log, Write { operations, ..Write::default() }, now);
        true
    }

    // ---- to the peers and back from the log ---------------------------------------------------------------------------

    pub(super) fn send(&mut self, messages: Vec<Message>, now: Duration, out: &mut Output) {
        for mut message in messages {
            match message.get_msg_type() {
                MessageType::MsgHeartbeat => {
                    // Comes back with the answer: what the lease is counted from.
                    let clock = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
                    message.context = clock.to_le_bytes().to_vec().into();
                }
                MessageType::MsgTimeoutNow => self.timeout_now_sent = true,
                _ => {}
            }
            out.messages.push(message);
        }
    }

    /// Writes that are on disk.
    pub(super) fn finish(&mut self, done: Vec<Done>, out: &mut Output) {
        let mut ready = None;
        for done in done {
            let store = self.raft.mut_store();
            for (index, location) in &done.placed {
                store.cache.placed(*index, done.id, *location);
            }
            if self.hold.is_some_and(|hold| done.id >= hold) {
                self.hold = None;
            }
            // Entries that another write replaced meanwhile are not to be taken for what raft has there now: the later
            // write speaks for both.
            let last = done.placed.last().and_then(|(index, _)| store.cache.get(*index));
            let superseded = last.is_some_and(|cached| cached.write != done.id);
            if !superseded && done.ready.is_some() {
                ready = done.ready;
            }
            if self.failed {
                continue;
            }
            out.messages.extend(done.messages);
            if let Some((index, term)) = done.restored {
                let number = done.ready.expect("a snapshot comes with a turn of raft");
                self.raft.on_persist_ready(number);
                if index > self.applied() {
                    self.raft.advance_apply_to(index);
                }
                out.events.push(Event::Members(self.configuration().clone()));
                out.events.push(Event::SnapshotInstalled { index: Index(index), term: Term(term) });
            }
        }
        if let Some(number) = ready
            && !self.failed
        {
            self.raft.on_persist_ready(number);
        }
        self.after_raft();
    }
}
