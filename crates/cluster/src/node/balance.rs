//! Who leads what: leaders are spread evenly, come back after an outage, and leave a node that drains or whose disk stalls.

use std::time::Duration;

use storage::GroupId;

use super::Node;
use crate::{
    group::Group,
    member::MemberId,
    wire::{self, NodeStatus},
};

/// Between two moves that only make the balance better.
const MOVE_INTERVAL: Duration = Duration::from_millis(200);

impl Node {
    /// This node is about to stop: others take over what it leads. Call until [`Node::is_drained`], with turns in between.
    pub fn drain(&mut self) {
        self.draining = true;
        self.announce();
    }

    /// This node leads nothing that another could.
    pub fn is_drained(&self) -> bool {
        !self.groups.values().any(|group| group.is_leader() && self.heir(group).is_some())
    }

    /// The disk of this node stalls, or is full.
    pub fn is_stalled(&self) -> bool {
        self.stalled_at.is_some()
    }

    pub(super) fn watch_disk(&mut self, now: Duration) {
        let limit = self.config.stall_after;
        let stalls = self.groups.values().any(|group| group.is_blocked() || group.write_waits_for(now) > limit);
        if stalls {
            if self.stalled_at.is_none() {
                tracing::warn!("the disk does not keep up: what this node leads is handed over");
            }
            self.stalled_at = Some(now);
        } else if self.stalled_at.is_some_and(|at| now.saturating_sub(at) > self.config.recovered_after) {
            tracing::info!("the disk keeps up again");
            self.stalled_at = None;
        }
        self.announce();
    }

    /// Tells the peers how this node is, if that is news.
    fn announce(&mut self) {
        let status = NodeStatus { draining: self.draining, stalled: self.stalled_at.is_some() };
        if status != self.status {
            self.status = status;
            for peer in self.peers.connected() {
                self.outputs.sends.push((peer, wire::encode_status(status)));
            }
        }
    }

    fn heir(&self, group: &Group) -> Option<MemberId> {
        group.heir(|member| self.peers.is_good(member))
    }

    pub(super) fn balance(&mut self, now: Duration) {
        let unfit = self.draining || self.stalled_at.is_some();
        let mut moves: Vec<(GroupId, MemberId)> = Vec::new();
        for (id, group) in self.groups.iter().filter(|(_, group)| group.is_leading() && !group.is_transferring()) {
            let to = if unfit { self.heir(group) } else { self.better_leader(*id, group, now) };
            moves.extend(to.map(|to| (*id, to)));
        }
        if !unfit {
            if now.saturating_sub(self.balanced_at) < MOVE_INTERVAL {
                return;
            }
            moves.truncate(1);
        }
        for (id, to) in moves {
            self.balanced_at = now;
            if let Some(group) = self.groups.get_mut(&id) {
                group.transfer(to);
            }
        }
    }

    /// Another node that should lead a group which this one leads, and has been able to for long enough.
    fn better_leader(&self, id: GroupId, group: &Group, now: Duration) -> Option<MemberId> {
        let voters = &group.configuration().voters;
        let preferred = preferred_leader(id, voters, |member| member == self.me || self.peers.is_good(member))?;
        let long_enough = self.peers.good_for(preferred, now) >= self.config.balance_after;
        // It must have all, so that the move takes one round.
        let near = group.matched(preferred).is_some_and(|matched| matched + 1024 >= group.last());
        (preferred != self.me && long_enough && near).then_some(preferred)
    }
}

/// Who should lead a group: each voter an equal share, and what one that is away would lead spread over the others.
pub(super) fn preferred_leader(
    group: GroupId,
    voters: &[MemberId],
    is_good: impl Fn(MemberId) -> bool,
) -> Option<MemberId> {
    let count = voters.len().max(1);
    let first = *voters.get(group.0 as usize % count)?;
    if is_good(first) {
        return Some(first);
    }
    let good: Vec<MemberId> = voters.iter().copied().filter(|voter| is_good(*voter)).collect();
    good.get(group.0 as usize / count % good.len().max(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaders_are_spread_evenly_and_a_dead_nodes_share_too() {
        let voters: Vec<MemberId> = (1..=3).filter_map(MemberId::from_raw).collect();
        let led = |by: u64, dead: u64| {
            let groups = (1..=12).map(GroupId);
            let leaders = groups.map(|group| preferred_leader(group, &voters, |member| member.raw() != dead));
            leaders.filter(|leader| leader.is_some_and(|leader| leader.raw() == by)).count()
        };
        assert_eq!([led(1, 0), led(2, 0), led(3, 0)], [4, 4, 4]);
        assert_eq!([led(1, 2), led(2, 2), led(3, 2)], [6, 0, 6]);
    }
}
