//! When a member stands for election, votes, hands over, and may trust its lease.

use std::time::Duration;

use raft::{CAMPAIGN_TRANSFER, INVALID_ID, ProgressState, StateRole, eraftpb::Message};
use storage::{Operation, SimRng};

use super::{Group, Output, admits, writes::Write};
use crate::{
    event::{Event, Fault},
    member::MemberId,
};

/// After a leader's link was closed, a member asks for votes again so often: the others may learn of it a little later.
const CAMPAIGNS: u32 = 4;
/// And after such a time.
const CAMPAIGN_AGAIN: Duration = Duration::from_millis(60);
/// Members ask one after the other, so far apart that the first one's votes are usually back.
const STAGGER: Duration = Duration::from_millis(25);

impl Group {
    /// Raft's clock goes on by one.
    pub(crate) fn tick(&mut self, now: Duration, out: &mut Output) {
        if self.failed {
            return;
        }
        let log = self.log();
        if !admits(&log) {
            let error = log.stopped().expect("it takes nothing because it stopped");
            return self.fail(Fault::Disk(error), out);
        }
        self.writes.retry(&log);
        // A sole voter is elected at once, which raft allows only when all that it has is on disk.
        if !(self.is_sole_voter() && !self.is_leader() && self.writes.has_entries()) {
            self.raft.tick();
        }
        self.after_raft();
        self.watch_transfer();
        self.reconcile();
        self.remember_commit(now);
    }

    /// What is due at a time rather than at a tick.
    pub(crate) fn poll(&mut self, now: Duration) {
        let Some(_) = self.campaign_at.take_if(|at| *at <= now) else { return };
        if self.failed || self.leader().is_some() || !self.raft.raft.promotable() || now < self.deaf_until {
            return;
        }
        if self.is_sole_voter() && self.writes.has_entries() {
            self.campaign_at = Some(now + CAMPAIGN_AGAIN);
            return;
        }
        // Fails only where it is no use.
        let _ = self.raft.campaign();
        self.after_raft();
        if let Some(left) = self.campaigns_left.checked_sub(1) {
            self.campaigns_left = left;
            self.campaign_at = Some(now + CAMPAIGN_AGAIN);
        }
    }

    /// When [`Group::poll`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.campaign_at
    }

    pub(super) fn is_sole_voter(&self) -> bool {
        let configuration = self.configuration();
        configuration.voters == [self.me] && !configuration.is_joint()
    }

    /// The other side closed its link, or the link was given up (`closed_by_peer` is false).
    pub(crate) fn link_down(&mut self, peer: MemberId, closed_by_peer: bool, now: Duration) {
        self.lease.forget(peer);
        if self.failed {
            return;
        }
        self.raft.report_unreachable(peer.raw());
        let raft = &mut self.raft.raft;
        if closed_by_peer && raft.state == StateRole::Follower && raft.leader_id == peer.raw() {
            // The process is gone. Nobody is owed patience any more.
            let term = raft.term;
            raft.become_follower(term, INVALID_ID);
            if raft.promotable() {
                self.campaigns_left = CAMPAIGNS;
                self.campaign_at = Some(now + self.stagger(peer));
            }
        }
        self.after_raft();
    }

    /// Who is first differs from group to group, so that what a dead node led is spread over the others.
    fn stagger(&mut self, dead: MemberId) -> Duration {
        let voters: Vec<_> = self.configuration().voters.iter().filter(|voter| **voter != dead).copied().collect();
        let mine = voters.iter().position(|voter| *voter == self.me).unwrap_or_default();
        let count = voters.len().max(1);
        let rank = (mine + self.id.0 as usize) % count;
        STAGGER * u32::try_from(rank).unwrap_or(0) + Duration::from_micros(self.draw() % 3000)
    }

    fn draw(&mut self) -> u64 {
        self.draws += 1;
        let mixed = self.config.seed ^ self.me.raw().rotate_left(32) ^ (u64::from(self.id.0) << 48) ^ self.draws;
        SimRng::new(mixed).next_u64()
    }

    pub(super) fn draw_election_timeout(&mut self) {
        let least = self.config.election_ticks as usize;
        self.election_timeout = least + (self.draw() % least as u64) as usize;
    }

    // ---- votes --------------------------------------------------------------------------------------------------------

    /// Whether a request for a vote may be answered.
    pub(super) fn may_vote(&self, request: &Message, now: Duration) -> bool {
        now >= self.deaf_until || request.context == CAMPAIGN_TRANSFER
    }

    /// Whether a request to take over is the present leader's.
    pub(super) fn may_take_over(&self, request: &Message) -> bool {
        let raft = &self.raft.raft;
        request.term == raft.term && raft.leader_id == request.from && !self.writes.is_blocked()
    }

    // ---- the lease ----------------------------------------------------------------------------------------------------

    pub(super) fn lease_heard(&mut self, answer: &Message, now: Duration) {
        let Some(clock) = answer.context.first_chunk() else { return };
        let sent = Duration::from_micros(u64::from_le_bytes(*clock));
        if let Some(peer) = MemberId::from_raw(answer.from)
            && sent <= now
        {
            self.lease.heard(peer, sent);
        }
    }

    pub(super) fn tell_lease(&mut self, now: Duration, out: &mut Output) {
        if !self.leading {
            self.lease_until = Duration::ZERO;
            return;
        }
        let contact = self.lease.quorum_contact(self.me, self.configuration());
        let until = match contact {
            _ if self.transferring => Duration::ZERO,
            Some(contact) => contact.saturating_add(self.config.lease()),
            None => Duration::ZERO,
        };
        // What is over was known to end; only what is taken back has to be said.
        let shorter = until < self.lease_until && self.lease_until > now;
        if until > self.lease_until || shorter {
            self.lease_until = until;
            out.events.push(Event::Lease { until });
        }
    }

    /// Until when this leader may deliver.
    pub(crate) fn lease_until(&self) -> Duration {
        if self.leading && !self.transferring { self.lease_until } else { Duration::ZERO }
    }

    // ---- handing over -------------------------------------------------------------------------------------------------

    /// The voter that knows most, among those that may lead.
    pub(crate) fn heir(&self, may_lead: impl Fn(MemberId) -> bool) -> Option<MemberId> {
        let progress = |member: MemberId| self.raft.raft.prs().get(member.raw());
        let others = self.configuration().voters.iter().copied().filter(|voter| *voter != self.me && may_lead(*voter));
        let able = others.filter(|voter| progress(*voter).is_some_and(|it| it.state == ProgressState::Replicate));
        able.max_by_key(|voter| (progress(*voter).map_or(0, |it| it.matched), std::cmp::Reverse(*voter)))
    }

    /// Asks another to take over. Until that has happened, or has come to nothing, this leader takes no proposals and has no
    /// lease. False if it cannot be asked.
    pub(crate) fn transfer(&mut self, to: MemberId) -> bool {
        let able = self.raft.raft.prs().get(to.raw()).is_some_and(|it| it.state == ProgressState::Replicate);
        if !self.is_leader()
            || self.transferring
            || to == self.me
            || !able
            || !self.configuration().voters.contains(&to)
        {
            return false;
        }
        self.transferring = true;
        self.raft.transfer_leader(to.raw());
        self.after_raft();
        true
    }

    pub(crate) fn is_transferring(&self) -> bool {
        self.transferring
    }

    /// A transfer that came to nothing: a request that has left may still arrive, and let another be elected against all
    /// patience. So whoever asked leads no longer in this term.
    fn watch_transfer(&mut self) {
        if !self.transferring || self.raft.raft.lead_transferee.is_some() || !self.is_leader() {
            return;
        }
        self.transferring = false;
        if self.timeout_now_sent {
            let term = self.term();
            self.raft.raft.become_follower(term, INVALID_ID);
        }
        self.after_raft();
    }

    /// Now and then an idle group's commit index goes to disk, so that a start need not wait for a leader to know it.
    fn remember_commit(&mut self, now: Duration) {
        self.ticks_since_commit += 1;
        let news = self.committed() > self.commit_written;
        if !news || self.ticks_since_commit < self.config.election_ticks || !self.writes.is_empty() {
            return;
        }
        self.ticks_since_commit = 0;
        let committed = self.committed();
        self.raft.mut_store().hard.commit = committed;
        let operations: Vec<Operation> = vec![self.hard_state()];
        let log = self.log();
        self.writes.add(&log, Write { operations, lazy: true, ..Write::default() }, now);
    }
}
