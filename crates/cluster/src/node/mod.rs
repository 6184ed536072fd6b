//! All groups of a node: one clock, one frame per peer and turn, one disk whose stalls concern all.
//!
//! The driver (a thread of the broker, or the simulator) calls a method per thing that happens, then [`Node::turn`], and
//! carries out what comes back. Nothing here blocks, reads a clock, or draws a random number.

mod balance;
mod peers;
mod snapshots;
mod transfer;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use raft::eraftpb::{Message, MessageType};
use storage::{GroupId, Index, Log, Placed, StorageError, StoredEntry, Term, Ticket};

use crate::{
    config::Config,
    error::{ClusterError, ProposeError},
    event::{Event, Fault, Proposed},
    group::{Fetch, Group, GroupStart, Output},
    input::Malformed,
    member::{Configuration, ConfigurationChange, MemberId},
    wire::{self, Class, NodeStatus, Outgoing, PeerMessage},
};

use peers::Peers;
use transfer::Transfers;

/// After the driver was away (a stopped process, a suspended machine), raft's clock goes on by so many ticks at most, so
/// that a follower hears its leader before it gives it up.
const MAX_TICKS: u32 = 3;

/// What a turn brings, to be carried out by the driver.
#[derive(Debug, Default)]
pub struct Outputs {
    /// To be put in the peers' outboxes, in this order. What does not fit may be dropped.
    pub sends: Vec<(MemberId, Outgoing)>,
    /// For the users of the groups, in this order.
    pub events: Vec<(GroupId, Event)>,
    /// Reads of the log ([`Log::entries`]) to be done on another thread and answered by [`Node::fetched`].
    pub fetches: Vec<(GroupId, Fetch)>,
    /// What peers sent to the user of the links.
    pub user: Vec<(MemberId, Bytes)>,
}

/// How a group stands.
#[derive(Clone, Debug)]
pub struct GroupView {
    /// Its term.
    pub term: Term,
    /// Who leads, as far as is known here.
    pub leader: Option<MemberId>,
    /// This node leads, and takes proposals.
    pub leading: bool,
    /// A transfer of the leadership is under way.
    pub transferring: bool,
    /// The last committed index that is known here.
    pub committed: Index,
    /// Handed out up to here.
    pub handed: Index,
    /// Applied by the user up to here.
    pub applied: Index,
    /// The last entry.
    pub last: Index,
    /// The last entry that the log forgot.
    pub compacted: Index,
    /// Its members.
    pub configuration: Configuration,
    /// On a leader: how far each other member is known to be.
    pub matched: Vec<(MemberId, Index)>,
    /// Writes that the log has not reported yet.
    pub unwritten: usize,
    /// The log refused a write for want of space; it is tried again and again.
    pub blocked: bool,
    /// It has stopped on this node.
    pub failed: bool,
}

/// The node.
pub struct Node {
    me: MemberId,
    config: Arc<Config>,
    log: Log,
    groups: BTreeMap<GroupId, Group>,
    peers: Peers,
    transfers: Transfers,
    outputs: Outputs,
    next_tick: Duration,
    /// What this node last told of itself.
    status: NodeStatus,
    draining: bool,
    stalled_at: Option<Duration>,
    balanced_at: Duration,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("me", &self.me).field("groups", &self.groups.len()).finish_non_exhaustive()
    }
}

impl Node {
    /// Opens the groups. `log` is this node's, whose [`storage::Completion`] the driver passes on to [`Node::written`] and
    /// [`Node::write_failed`].
    ///
    /// # Errors
    /// The log has lost entries, or does not fit the state that the user has.
    pub fn open(
        me: MemberId,
        config: Config,
        log: Log,
        starts: &[GroupStart],
        now: Duration,
    ) -> Result<Node, ClusterError> {
        let mut node = Node {
            me,
            next_tick: now + config.tick,
            config: Arc::new(config),
            log,
            groups: BTreeMap::new(),
            peers: Peers::default(),
            transfers: Transfers::default(),
            outputs: Outputs::default(),
            status: NodeStatus::default(),
            draining: false,
            stalled_at: None,
            balanced_at: now,
        };
        starts.iter().try_for_each(|start| node.open_group(start, now))?;
        Ok(node)
    }

    /// Opens one more group.
    ///
    /// # Errors
    /// As [`Node::open`].
    pub fn open_group(&mut self, start: &GroupStart, now: Duration) -> Result<(), ClusterError> {
        let group = Group::open(self.me, &self.config, &self.log, start, now)?;
        self.groups.insert(start.group, group);
        Ok(())
    }

    /// This node.
    pub fn me(&self) -> MemberId {
        self.me
    }

    /// How a group stands.
    pub fn view(&self, group: GroupId) -> Option<GroupView> {
        let group = self.groups.get(&group)?;
        let others = group.configuration().members().into_iter().filter(|member| *member != self.me);
        let matched = others.filter_map(|member| Some((member, Index(group.matched(member)?))));
        Some(GroupView {
            term: Term(group.term()),
            leader: group.leader(),
            leading: group.is_leading(),
            transferring: group.is_transferring(),
            committed: Index(group.committed()),
            handed: Index(group.handed()),
            applied: Index(group.applied()),
            last: Index(group.last()),
            compacted: Index(group.compacted()),
            configuration: group.configuration().clone(),
            matched: if group.is_leader() { matched.collect() } else { Vec::new() },
            unwritten: group.unwritten(),
            blocked: group.is_blocked(),
            failed: group.is_failed(),
        })
    }

    /// Until when this node may deliver for a group; in the past if it may not.
    pub fn lease_until(&self, group: GroupId) -> Duration {
        self.groups.get(&group).map_or(Duration::ZERO, Group::lease_until)
    }

    // ---- time ---------------------------------------------------------------------------------------------------------

    /// When [`Node::tick`] is to be called next.
    pub fn deadline(&self) -> Duration {
        let groups = self.groups.values().filter_map(Group::deadline);
        groups.fold(self.next_tick, Duration::min)
    }

    /// Time went on. To be called at [`Node::deadline`], or more often.
    pub fn tick(&mut self, now: Duration) {
        let mut ticks = 0;
        while self.next_tick <= now && ticks < MAX_TICKS {
            ticks += 1;
            self.next_tick += self.config.tick;
            self.each_group(|group, out| group.tick(now, out));
        }
        if self.next_tick <= now {
            self.next_tick = now + self.config.tick;
        }
        self.each_group(|group, _| group.poll(now));
        if ticks > 0 {
            self.poll_transfers(now);
            self.watch_disk(now);
            self.balance(now);
        }
    }

    fn each_group(&mut self, mut act: impl FnMut(&mut Group, &mut Output)) {
        let mut out = Output::default();
        for (id, group) in &mut self.groups {
            act(group, &mut out);
            collect(*id, &mut out, &mut self.outputs, &mut self.peers, &mut Vec::new());
        }
    }

    fn with_group<T>(&mut self, id: GroupId, act: impl FnOnce(&mut Group, &mut Output) -> T) -> Option<T> {
        let mut out = Output::default();
        let result = act(self.groups.get_mut(&id)?, &mut out);
        // Snapshots are only announced in a turn.
        collect(id, &mut out, &mut self.outputs, &mut self.peers, &mut Vec::new());
        Some(result)
    }

    // ---- the turn -----------------------------------------------------------------------------------------------------

    /// Works off what has come up. Writes have been given to the log when this returns.
    pub fn turn(&mut self, now: Duration) -> Outputs {
        let mut announced = Vec::new();
        for (id, group) in &mut self.groups {
            if group.is_dirty() {
                let mut out = Output::default();
                group.turn(now, &mut out);
                collect(*id, &mut out, &mut self.outputs, &mut self.peers, &mut announced);
            }
        }
        for (group, message) in announced {
            self.send_snapshot(group, message, now);
        }
        self.look_at_events(now);
        self.peers.flush(&mut self.outputs.sends);
        std::mem::take(&mut self.outputs)
    }

    // ---- peers --------------------------------------------------------------------------------------------------------

    /// There is an authenticated link to a peer; one that there was is given up for it.
    pub fn link_up(&mut self, peer: MemberId, now: Duration) {
        if self.peers.is_up(peer) {
            self.link_down(peer, false, now);
        }
        self.peers.up(peer, now);
        self.outputs.sends.push((peer, wire::encode_status(self.status)));
        self.each_group(|group, _| group.ping());
        self.resume_transfers(peer, now);
    }

    /// The link to a peer is gone. Not to be told once there is a newer link to it.
    ///
    /// `closed_by_peer`: the other side closed it (end of file, or a reset). A live peer does not do that to a working link, so
    /// it is taken for dead and what it led is elected anew at once. False if this side gave the link up.
    pub fn link_down(&mut self, peer: MemberId, closed_by_peer: bool, now: Duration) {
        self.peers.down(peer);
        self.each_group(|group, _| group.link_down(peer, closed_by_peer, now));
        self.pause_transfers(peer);
    }

    /// A message of an authenticated peer.
    ///
    /// # Errors
    /// The message is none: the link should be closed.
    pub fn receive(&mut self, peer: MemberId, bytes: &Bytes, now: Duration) -> Result<(), Malformed> {
        match wire::decode(bytes, peer, self.me)? {
            PeerMessage::Raft(messages) => {
                for (group, message) in messages {
                    self.with_group(group, |group, out| group.receive(message, now, out));
                }
            }
            PeerMessage::Snapshot(group, message) => self.snapshot_message(group, peer, message, now),
            PeerMessage::Status(status) => self.peers.set_status(peer, status, now),
            PeerMessage::User(bytes) => self.outputs.user.push((peer, bytes)),
        }
        Ok(())
    }

    /// Sends something of the user's to a peer. False if there is no link; it may be lost all the same.
    pub fn send_user(&mut self, peer: MemberId, parts: impl IntoIterator<Item = Bytes>, class: Class) -> bool {
        let connected = self.peers.is_up(peer);
        if connected {
            self.outputs.sends.push((peer, wire::encode_user(parts, class)));
        }
        connected
    }

    // ---- the log ------------------------------------------------------------------------------------------------------

    /// From [`storage::Completion::written`].
    pub fn written(&mut self, group: GroupId, up_to: Ticket, placed: &[Placed]) {
        self.with_group(group, |group, out| group.written(up_to, placed, out));
    }

    /// From [`storage::Completion::failed`].
    pub fn write_failed(&mut self, group: GroupId, ticket: Ticket, error: &StorageError) {
        self.with_group(group, |group, out| group.write_failed(ticket, error, out));
    }

    /// The answer to a [`Fetch`]. An error other than `Gone` stops the group: its log cannot be read.
    pub fn fetched(&mut self, group: GroupId, from: Index, entries: Result<Vec<StoredEntry>, StorageError>) {
        self.with_group(group, |group, out| match entries {
            Ok(entries) => group.fetched(from, entries),
            Err(StorageError::Gone { .. }) => group.fetched(from, Vec::new()),
            Err(error) => group.fail(Fault::Disk(error), out),
        });
    }

    // ---- the user -----------------------------------------------------------------------------------------------------

    /// Proposes an entry; all that is proposed between two turns goes out together. It was committed when an
    /// [`Event::Committed`] has an entry of the same index and term, and was not when one of that index has another term.
    ///
    /// # Errors
    /// Nothing was proposed.
    pub fn propose(&mut self, group: GroupId, payload: Bytes) -> Result<Proposed, ProposeError> {
        self.groups.get_mut(&group).ok_or(ProposeError::NoGroup)?.propose(payload)
    }

    /// The user has applied what was handed out, up to this index.
    pub fn applied(&mut self, group: GroupId, index: Index) {
        self.with_group(group, |group, _| group.set_applied(index));
    }

    /// The user's state up to `index` is durable, and the log may forget entries up to there. Returns up to where it does.
    pub fn compact(&mut self, group: GroupId, index: Index, now: Duration) -> Index {
        self.with_group(group, |group, _| group.compact(index, now)).unwrap_or_default()
    }

    /// Who should vote in a group. Its leader makes it so, step by step: tell all nodes.
    pub fn set_members(&mut self, group: GroupId, voters: Vec<MemberId>) {
        self.with_group(group, |group, _| group.set_desired(voters));
    }

    /// One change of a group's members, at once.
    ///
    /// # Errors
    /// Not the leader, or another change is under way.
    pub fn change_members(&mut self, group: GroupId, change: &ConfigurationChange) -> Result<Proposed, ProposeError> {
        self.groups.get_mut(&group).ok_or(ProposeError::NoGroup)?.change_members(change)
    }

    /// Hands the leadership of a group over. False if this node does not lead, or the other is not near enough.
    pub fn transfer_leader(&mut self, group: GroupId, to: MemberId) -> bool {
        self.with_group(group, |group, _| group.transfer(to)).unwrap_or(false)
    }

    fn look_at_events(&mut self, now: Duration) {
        let mut installed = Vec::new();
        let mut lost = Vec::new();
        for (group, event) in &self.outputs.events {
            match event {
                Event::SnapshotInstalled { index, .. } => installed.push((*group, *index)),
                Event::Following { .. } | Event::Failed(_) => lost.push(*group),
                _ => {}
            }
        }
        installed.into_iter().for_each(|(group, index)| self.snapshot_installed(group, index, now));
        lost.into_iter().for_each(|group| self.stop_sending(group));
        self.filter_wanted(now);
    }
}

/// Sorts what a group brought: messages to the peers' batches, snapshots to those who send them, the rest to the outputs.
fn collect(
    group: GroupId,
    out: &mut Output,
    outputs: &mut Outputs,
    peers: &mut Peers,
    announced: &mut Vec<(GroupId, Message)>,
) {
    outputs.events.extend(out.events.drain(..).map(|event| (group, event)));
    outputs.fetches.extend(out.fetches.drain(..).map(|fetch| (group, fetch)));
    for message in out.messages.drain(..) {
        if message.get_msg_type() == MessageType::MsgSnapshot {
            announced.push((group, message));
        } else {
            peers.add(group, &message, &mut outputs.sends);
        }
    }
}

#[cfg(test)]
mod tests;
