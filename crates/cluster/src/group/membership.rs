//! Who is in the group: the leader brings the configuration, step by step, to what is desired.

use super::Group;
use crate::member::{ConfigurationChange, MemberChange, MemberId};

/// A learner has caught up when it lacks no more entries than this. It then votes without holding commits up for long.
const CAUGHT_UP: u64 = 256;

impl Group {
    /// Who should vote in the group. The leader sees to it; others remember it for when they lead.
    pub(crate) fn set_desired(&mut self, mut voters: Vec<MemberId>) {
        voters.sort_unstable();
        voters.dedup();
        self.desired = (!voters.is_empty()).then_some(voters);
    }

    /// One step towards the desired members, if none is under way. New ones learn first; when all have caught up they
    /// begin to vote and superfluous ones leave, in one change.
    pub(super) fn reconcile(&mut self) {
        if !self.is_leader() || !self.leading || self.hold.is_some() || self.raft.raft.has_pending_conf() {
            return;
        }
        if self.configuration().is_joint() {
            // Fails only if the moment is not good: the next tick tries again.
            let _ = self.change_members(&ConfigurationChange::default());
            return;
        }
        let Some(desired) = self.desired.clone() else { return };
        let configuration = self.configuration().clone();
        let missing = desired.iter().find(|member| !configuration.contains(**member));
        if let Some(member) = missing {
            let _ = self.change_members(&ConfigurationChange(vec![MemberChange::Learner(*member)]));
            return;
        }
        let learning: Vec<_> = desired.iter().filter(|member| configuration.learners.contains(member)).collect();
        let committed = self.committed();
        let caught_up = |member: MemberId| self.matched(member).is_some_and(|matched| matched + CAUGHT_UP >= committed);
        if !learning.iter().all(|member| caught_up(**member)) {
            return;
        }
        let mut changes: Vec<_> = learning.into_iter().map(|member| MemberChange::Voter(*member)).collect();
        let superfluous = configuration.members().into_iter().filter(|member| !desired.contains(member));
        changes.extend(superfluous.map(MemberChange::Remove));
        if changes.contains(&MemberChange::Remove(self.me)) {
            // Whoever leaves cannot lead; the heir will remove this member.
            if let Some(heir) = self.heir(|member| desired.contains(&member)) {
                self.transfer(heir);
            }
            return;
        }
        if !changes.is_empty() {
            let _ = self.change_members(&ConfigurationChange(changes));
        }
    }
}
