//! Snapshots under way: the leader's side and the receiver's. Contents are the user's; here are order, credit, and what
//! happens when a link, a leader or a patience ends.
//!
//! ```text
//! leader                                   receiver
//!   user: offer_snapshot
//!   Offer ───────────────────────────────▶ user: SnapshotOffered, accept_snapshot(have, offset)
//!   user: PieceWanted(have)  ◀──────────── Accept
//!   user: snapshot_piece
//!   Piece ───────────────────────────────▶ user: SnapshotPiece, snapshot_stored
//!   more, within a window    ◀──────────── Stored
//!   ...                                    the last is stored: raft takes it, the log begins anew
//!   raft goes on with entries ◀─────────── Stored(done), and raft's own acknowledgement
//! ```

use std::time::Duration;

use bytes::Bytes;
use raft::eraftpb::Message;
use storage::{GroupId, Index, Term};

use super::{
    Node,
    transfer::{AGAIN, GIVE_UP, KEEP_OFFER, Offer, PIECE_BYTES, Receiving, Sending, WINDOW_BYTES},
};
use crate::{
    event::{Event, SnapshotId},
    group,
    member::{Configuration, MemberId},
    wire::{self, SnapshotMessage},
};

impl Node {
    // ---- the user of the sending side ---------------------------------------------------------------------------------

    /// Answers [`Event::SnapshotWanted`]: the user has frozen a view of its state as it is at `index`, which it has applied.
    /// It keeps the view until [`Event::SnapshotReleased`]. `None`: nobody needs it any more.
    pub fn offer_snapshot(&mut self, group: GroupId, index: Index, now: Duration) -> Option<SnapshotId> {
        self.transfers.wanted.remove(&group);
        let snapshot = self.groups.get_mut(&group)?.offer(index)?;
        self.transfers.offers.insert(group, Offer { snapshot, used_at: now });
        Some(snapshot)
    }

    /// Answers [`Event::PieceWanted`] with what follows `offset`. What comes late, or twice, is ignored.
    pub fn snapshot_piece(
        &mut self,
        group: GroupId,
        to: MemberId,
        snapshot: SnapshotId,
        offset: u64,
        bytes: Bytes,
        last: bool,
    ) {
        let Some(sending) = self.transfers.sending.get_mut(&(group, to)) else { return };
        if sending.snapshot != snapshot || sending.sent != offset || !sending.asked || sending.finished {
            return;
        }
        sending.asked = false;
        sending.sent += bytes.len() as u64;
        sending.finished = last;
        let piece = SnapshotMessage::Piece { snapshot, offset, last, bytes };
        self.outputs.sends.push((to, wire::encode_snapshot(group, &piece)));
        self.ask_for_piece(group, to);
    }

    fn ask_for_piece(&mut self, group: GroupId, to: MemberId) {
        let Some(sending) = self.transfers.sending.get_mut(&(group, to)) else { return };
        let full = sending.sent - sending.stored >= WINDOW_BYTES;
        if sending.asked || sending.finished || !sending.accepted || full {
            return;
        }
        sending.asked = true;
        let (snapshot, offset, have) = (sending.snapshot, sending.sent, sending.have.take());
        let event = Event::PieceWanted { to, snapshot, offset, max_bytes: PIECE_BYTES, have };
        self.outputs.events.push((group, event));
    }

    // ---- the user of the receiving side -------------------------------------------------------------------------------

    /// Answers [`Event::SnapshotOffered`]. `offset` bytes of this very snapshot are stored already (0, unless it was begun
    /// before); `have` tells the sender's user what of the state need not be sent, at most 1 MiB.
    pub fn accept_snapshot(&mut self, group: GroupId, snapshot: SnapshotId, offset: u64, have: Bytes, now: Duration) {
        let Some(receiving) = self.transfers.receiving.get_mut(&group) else { return };
        if receiving.snapshot != snapshot || receiving.accepted {
            return;
        }
        (receiving.accepted, receiving.have) = (true, have);
        (receiving.received, receiving.stored) = (offset, offset);
        self.say_accept(group, now);
    }

    /// So many bytes of a snapshot that comes in are stored, durably if it is all.
    pub fn snapshot_stored(&mut self, group: GroupId, snapshot: SnapshotId, offset: u64, now: Duration) {
        let Some(receiving) = self.transfers.receiving.get_mut(&group) else { return };
        if receiving.snapshot != snapshot || offset < receiving.stored || offset > receiving.received {
            return;
        }
        receiving.stored = offset;
        receiving.heard_at = now;
        if !receiving.complete || receiving.stored < receiving.received {
            let stored = SnapshotMessage::Stored { snapshot, offset, done: false };
            return self.outputs.sends.push((snapshot.maker, wire::encode_snapshot(group, &stored)));
        }
        if receiving.installing {
            return;
        }
        let (term, contents) = (receiving.term, receiving.contents.clone());
        receiving.installing = true;
        let taken = self.groups.get_mut(&group).is_some_and(|group| group.install(snapshot, term, contents));
        if !taken {
            self.drop_receiving(group);
            self.say_done(group, snapshot);
        }
    }

    // ---- raft ---------------------------------------------------------------------------------------------------------

    /// Raft wants to send what is on offer.
    pub(super) fn send_snapshot(&mut self, group: GroupId, mut message: Message, now: Duration) {
        let Some(to) = MemberId::from_raw(message.to) else { return };
        let contents = message.take_snapshot();
        let (index, term) = (Index(contents.get_metadata().index), Term(contents.get_metadata().term));
        let snapshot = SnapshotId { index, term, maker: self.me };
        let known = self.transfers.offers.get_mut(&group).filter(|offer| offer.snapshot == snapshot);
        match known {
            Some(offer) => offer.used_at = now,
            None => return self.give_up_sending(group, to),
        }
        let sending = Sending {
            snapshot,
            term: message.term,
            contents,
            accepted: false,
            have: None,
            sent: 0,
            stored: 0,
            asked: false,
            finished: false,
            heard_at: now,
            said_at: now,
        };
        self.transfers.sending.insert((group, to), sending);
        self.say_offer(group, to);
    }

    pub(super) fn snapshot_installed(&mut self, group: GroupId, index: Index, now: Duration) {
        let Some(receiving) = self.transfers.receiving.get(&group) else { return };
        let snapshot = receiving.snapshot;
        if snapshot.index == index {
            self.transfers.receiving.remove(&group);
            self.say_done(group, snapshot);
        }
        self.balanced_at = now;
    }

    /// Only a leader sends snapshots.
    pub(super) fn stop_sending(&mut self, group: GroupId) {
        self.transfers.sending.retain(|(of, _), _| *of != group);
    }

    /// Lets the user hear only once that a snapshot is wanted, and not while there is one.
    pub(super) fn filter_wanted(&mut self, now: Duration) {
        let (wanted, offers) = (&mut self.transfers.wanted, &self.transfers.offers);
        self.outputs.events.retain(|(group, event)| match event {
            Event::SnapshotWanted if wanted.contains_key(group) || offers.contains_key(group) => false,
            Event::SnapshotWanted => {
                wanted.insert(*group, now);
                true
            }
            _ => true,
        });
    }

    // ---- the peer -----------------------------------------------------------------------------------------------------

    pub(super) fn snapshot_message(&mut self, group: GroupId, peer: MemberId, message: SnapshotMessage, now: Duration) {
        match message {
            SnapshotMessage::Offer { snapshot, term, configuration, configured_at } => {
                let contents = group::make_snapshot(snapshot.index.0, snapshot.term.0, &configuration, configured_at);
                self.offered(group, snapshot, term, &configuration, contents, now);
            }
            SnapshotMessage::Accept { snapshot, offset, have } => {
                let Some(sending) = self.transfers.sending.get_mut(&(group, peer)) else { return };
                if sending.snapshot != snapshot {
                    return;
                }
                sending.accepted = true;
                sending.have = Some(have);
                (sending.sent, sending.stored) = (offset, offset);
                (sending.asked, sending.finished) = (false, false);
                sending.heard_at = now;
                self.ask_for_piece(group, peer);
            }
            SnapshotMessage::Refuse { snapshot } => {
                if self.transfers.sending.get(&(group, peer)).is_some_and(|sending| sending.snapshot == snapshot) {
                    self.give_up_sending(group, peer);
                }
            }
            SnapshotMessage::Piece { snapshot, offset, last, bytes } => {
                let Some(receiving) = self.transfers.receiving.get_mut(&group) else { return };
                let next = receiving.snapshot == snapshot && receiving.received == offset;
                if !next || !receiving.accepted || receiving.complete {
                    return;
                }
                receiving.received += bytes.len() as u64;
                receiving.complete = last;
                receiving.heard_at = now;
                self.outputs.events.push((group, Event::SnapshotPiece { snapshot, offset, bytes, last }));
            }
            SnapshotMessage::Stored { snapshot, offset, done } => {
                let Some(sending) = self.transfers.sending.get_mut(&(group, peer)) else { return };
                if sending.snapshot != snapshot || offset > sending.sent && !done {
                    return;
                }
                sending.stored = sending.stored.max(offset.min(sending.sent));
                sending.heard_at = now;
                if done {
                    self.transfers.sending.remove(&(group, peer));
                    self.with_group(group, |group, _| group.snapshot_sent(peer, true));
                } else {
                    self.ask_for_piece(group, peer);
                }
            }
        }
    }

    fn offered(
        &mut self,
        group: GroupId,
        snapshot: SnapshotId,
        term: u64,
        configuration: &Configuration,
        contents: raft::eraftpb::Snapshot,
        now: Duration,
    ) {
        let Some(member) = self.groups.get(&group) else { return };
        if !configuration.contains(self.me) {
            return self.say_refuse(group, snapshot);
        }
        if !member.wants(snapshot) {
            return self.say_done(group, snapshot);
        }
        match self.transfers.receiving.get_mut(&group) {
            Some(receiving) if receiving.snapshot == snapshot => {
                // The leader's term may have changed, if it was elected again.
                receiving.term = term.max(receiving.term);
                receiving.heard_at = now;
                if receiving.accepted && !receiving.installing {
                    self.say_accept(group, now);
                }
            }
            Some(receiving) if receiving.installing || receiving.term > term => self.say_refuse(group, snapshot),
            found => {
                if found.is_some() {
                    self.drop_receiving(group);
                }
                let receiving = Receiving {
                    snapshot,
                    term,
                    contents,
                    accepted: false,
                    have: Bytes::new(),
                    received: 0,
                    stored: 0,
                    complete: false,
                    installing: false,
                    heard_at: now,
                    said_at: now,
                };
                self.transfers.receiving.insert(group, receiving);
                self.outputs.events.push((group, Event::SnapshotOffered { snapshot }));
            }
        }
    }

    fn drop_receiving(&mut self, group: GroupId) {
        if let Some(receiving) = self.transfers.receiving.remove(&group) {
            self.outputs.events.push((group, Event::SnapshotDropped { snapshot: receiving.snapshot }));
        }
    }

    fn give_up_sending(&mut self, group: GroupId, to: MemberId) {
        self.transfers.sending.remove(&(group, to));
        self.with_group(group, |group, _| group.snapshot_sent(to, false));
    }

    // ---- links and time -----------------------------------------------------------------------------------------------

    pub(super) fn resume_transfers(&mut self, peer: MemberId, now: Duration) {
        let again: Vec<GroupId> = self.sending_to(peer);
        for group in again {
            if let Some(sending) = self.transfers.sending.get_mut(&(group, peer)) {
                sending.said_at = now;
            }
            self.say_offer(group, peer);
        }
    }

    /// What was in flight is lost; the receiver says where it is when it is offered the rest.
    pub(super) fn pause_transfers(&mut self, peer: MemberId) {
        for group in self.sending_to(peer) {
            if let Some(sending) = self.transfers.sending.get_mut(&(group, peer)) {
                (sending.accepted, sending.asked) = (false, false);
            }
        }
    }

    fn sending_to(&self, peer: MemberId) -> Vec<GroupId> {
        self.transfers.sending.keys().filter(|(_, to)| *to == peer).map(|(group, _)| *group).collect()
    }

    pub(super) fn poll_transfers(&mut self, now: Duration) {
        let waited = |since: Duration| now.saturating_sub(since);
        let mut again = Vec::new();
        let mut given_up = Vec::new();
        for (&(group, to), sending) in &mut self.transfers.sending {
            if waited(sending.heard_at) > GIVE_UP {
                given_up.push((group, to));
            } else if waited(sending.heard_at) > AGAIN && waited(sending.said_at) > AGAIN {
                // The offer was lost, or its answer, or a piece, or the news that all is stored: the receiver says.
                sending.said_at = now;
                again.push((group, to));
            }
            if let Some(offer) = self.transfers.offers.get_mut(&group) {
                offer.used_at = now;
            }
        }
        again.into_iter().for_each(|(group, to)| self.say_offer(group, to));
        given_up.into_iter().for_each(|(group, to)| self.give_up_sending(group, to));
        self.poll_receiving(now);
        let unused = self.transfers.offers.iter().filter(|(_, offer)| waited(offer.used_at) > KEEP_OFFER);
        for group in unused.map(|(group, _)| *group).collect::<Vec<_>>() {
            let offer = self.transfers.offers.remove(&group).expect("just found");
            self.with_group(group, |group, _| group.withdraw_offer());
            self.outputs.events.push((group, Event::SnapshotReleased { snapshot: offer.snapshot }));
        }
        self.transfers.wanted.retain(|_, since| waited(*since) <= GIVE_UP);
    }

    fn poll_receiving(&mut self, now: Duration) {
        let waited = |since: Duration| now.saturating_sub(since);
        let receiving = self.transfers.receiving.iter();
        let idle = receiving.filter(|(_, receiving)| !receiving.installing && waited(receiving.heard_at) > AGAIN);
        let idle: Vec<_> = idle.map(|(group, receiving)| (*group, waited(receiving.heard_at) > GIVE_UP)).collect();
        for (group, too_long) in idle {
            if too_long {
                self.drop_receiving(group);
                continue;
            }
            let receiving = &self.transfers.receiving[&group];
            if receiving.accepted && !receiving.complete && waited(receiving.said_at) > AGAIN {
                // A piece was lost, or the leader has not heard: it goes on from here.
                self.say_accept(group, now);
            }
        }
    }

    fn say_offer(&mut self, group: GroupId, to: MemberId) {
        let Some(sending) = self.transfers.sending.get(&(group, to)) else { return };
        let message = SnapshotMessage::Offer {
            snapshot: sending.snapshot,
            term: sending.term,
            configuration: Configuration::from_raft(sending.contents.get_metadata().get_conf_state()),
            configured_at: group::configured_at(&sending.contents),
        };
        self.outputs.sends.push((to, wire::encode_snapshot(group, &message)));
    }

    fn say_accept(&mut self, group: GroupId, now: Duration) {
        let Some(receiving) = self.transfers.receiving.get_mut(&group) else { return };
        receiving.said_at = now;
        let (snapshot, offset, have) = (receiving.snapshot, receiving.received, receiving.have.clone());
        let accept = SnapshotMessage::Accept { snapshot, offset, have };
        self.outputs.sends.push((snapshot.maker, wire::encode_snapshot(group, &accept)));
    }

    fn say_refuse(&mut self, group: GroupId, snapshot: SnapshotId) {
        let refuse = SnapshotMessage::Refuse { snapshot };
        self.outputs.sends.push((snapshot.maker, wire::encode_snapshot(group, &refuse)));
    }

    fn say_done(&mut self, group: GroupId, snapshot: SnapshotId) {
        let done = SnapshotMessage::Stored { snapshot, offset: 0, done: true };
        self.outputs.sends.push((snapshot.maker, wire::encode_snapshot(group, &done)));
    }
}
