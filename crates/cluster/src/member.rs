//! Who takes part: members, and the configuration of a group.
//!
//! A member is a node with its data directory. Its id comes from the UUID in there, so a node that lost its disk is another
//! member, and can never be taken for the voter that it was.

use std::fmt;

use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState};

use crate::input::{Input, Malformed};

/// Most members that a group can have, of any kind.
pub const MAX_MEMBERS: usize = 32;

/// A member, as raft names it. Never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(u64);

impl MemberId {
    /// The member that a node's UUID stands for: its first 60 random bits.
    pub fn of(node: [u8; 16]) -> MemberId {
        let half = u64::from_be_bytes(*node.first_chunk().expect("sixteen bytes"));
        // The version digit is the same in all UUIDs; 0 is not a member.
        MemberId(half.max(1))
    }

    /// From a number, unless it is 0.
    pub fn from_raw(raw: u64) -> Option<MemberId> {
        (raw != 0).then_some(MemberId(raw))
    }

    /// As a number.
    pub fn raw(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

/// The members of a group.
///
/// Invariants of a valid one:
/// - lists are sorted, without repetition; a member is in one of `voters` and `learners` at most;
/// - `outgoing` is empty, or the voters of the configuration that is being left;
/// - `learners_next` are among `outgoing`, and neither voters nor learners.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Those whose majority decides.
    pub voters: Vec<MemberId>,
    /// Those who get entries and decide nothing.
    pub learners: Vec<MemberId>,
    /// During a joint change: the voters so far, whose majority is needed as well.
    pub outgoing: Vec<MemberId>,
    /// During a joint change: outgoing voters that will be learners.
    pub learners_next: Vec<MemberId>,
}

impl Configuration {
    /// A configuration of voters alone.
    pub fn of_voters(voters: impl IntoIterator<Item = MemberId>) -> Configuration {
        let mut voters: Vec<MemberId> = voters.into_iter().collect();
        voters.sort_unstable();
        voters.dedup();
        Configuration { voters, ..Configuration::default() }
    }

    /// Nobody is in it: a member that waits to be told.
    pub fn is_empty(&self) -> bool {
        self.voters.is_empty()
    }

    /// Two majorities are needed.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Whether a member takes part in any role.
    pub fn contains(&self, member: MemberId) -> bool {
        self.voters.contains(&member) || self.learners.contains(&member) || self.outgoing.contains(&member)
    }

    /// All members, each once.
    pub fn members(&self) -> Vec<MemberId> {
        let mut all = [&self.voters[..], &self.learners, &self.outgoing].concat();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether `has` holds for a majority of the voters, and of the outgoing voters if there are any.
    pub fn quorum(&self, mut has: impl FnMut(MemberId) -> bool) -> bool {
        let mut majority = |members: &[MemberId]| {
            members.is_empty() || members.iter().filter(|member| has(**member)).count() > members.len() / 2
        };
        majority(&self.voters) && majority(&self.outgoing)
    }

    /// Whether the invariants hold. An empty one is valid only if wholly empty.
    pub fn is_valid(&self) -> bool {
        let sorted = |list: &[MemberId]| list.windows(2).all(|pair| pair[0] < pair[1]) && list.len() <= MAX_MEMBERS;
        let lists = [&self.voters, &self.learners, &self.outgoing, &self.learners_next];
        lists.iter().all(|list| sorted(list))
            && (!self.voters.is_empty() || lists.iter().all(|list| list.is_empty()))
            && !self.learners.iter().any(|learner| self.voters.contains(learner) || self.outgoing.contains(learner))
            && self.learners_next.iter().all(|next| self.outgoing.contains(next) && !self.voters.contains(next))
    }

    pub(crate) fn to_raft(&self) -> ConfState {
        let raw = |list: &[MemberId]| list.iter().map(|member| member.0).collect::<Vec<u64>>();
        let mut state = ConfState::default();
        state.set_voters(raw(&self.voters));
        state.set_learners(raw(&self.learners));
        state.set_voters_outgoing(raw(&self.outgoing));
        state.set_learners_next(raw(&self.learners_next));
        state
    }

    pub(crate) fn from_raft(state: &ConfState) -> Configuration {
        let list = |raw: &[u64]| {
            let mut list: Vec<MemberId> = raw.iter().map(|raw| MemberId(*raw)).collect();
            list.sort_unstable();
            list
        };
        Configuration {
            voters: list(state.get_voters()),
            learners: list(state.get_learners()),
            outgoing: list(state.get_voters_outgoing()),
            learners_next: list(state.get_learners_next()),
        }
    }

    /// Appends the encoding: four times a count (u8) and so many ids (u64).
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        for list in [&self.voters, &self.learners, &self.outgoing, &self.learners_next] {
            out.push(u8::try_from(list.len()).expect("at most MAX_MEMBERS"));
            list.iter().for_each(|member| out.extend_from_slice(&member.0.to_le_bytes()));
        }
    }

    pub(crate) fn decode(input: &mut Input<'_>) -> Result<Configuration, Malformed> {
        let mut list = || {
            let count = usize::from(input.u8()?);
            if count > MAX_MEMBERS {
                return Err(Malformed("too many members"));
            }
            (0..count).map(|_| MemberId::from_raw(input.u64()?).ok_or(Malformed("member 0"))).collect()
        };
        let configuration =
            Configuration { voters: list()?, learners: list()?, outgoing: list()?, learners_next: list()? };
        if configuration.is_valid() { Ok(configuration) } else { Err(Malformed("no valid configuration")) }
    }
}

/// What is asked of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// Is to vote; new members should have caught up as learners before.
    Voter(MemberId),
    /// Is to learn without a vote.
    Learner(MemberId),
    /// Is to leave.
    Remove(MemberId),
}

/// A change of a group's members. Several at once go through a joint configuration, which the leader leaves by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigurationChange(pub Vec<MemberChange>);

impl ConfigurationChange {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![u8::try_from(self.0.len()).expect("at most MAX_MEMBERS changes")];
        for change in &self.0 {
            let (kind, member) = match change {
                MemberChange::Voter(member) => (1, member),
                MemberChange::Learner(member) => (2, member),
                MemberChange::Remove(member) => (3, member),
            };
            out.push(kind);
            out.extend_from_slice(&member.0.to_le_bytes());
        }
        out
    }

    /// Reads the payload of a log entry. Empty: leave the joint configuration.
    pub(crate) fn decode(bytes: &[u8]) -> Result<ConfigurationChange, Malformed> {
        if bytes.is_empty() {
            return Ok(ConfigurationChange::default());
        }
        let mut input = Input::new(bytes);
        let count = usize::from(input.u8()?);
        if count > MAX_MEMBERS {
            return Err(Malformed("too many changes"));
        }
        let mut changes = Vec::with_capacity(count);
        for _ in 0..count {
            let kind = input.u8()?;
            let member = MemberId::from_raw(input.u64()?).ok_or(Malformed("member 0"))?;
            changes.push(match kind {
                1 => MemberChange::Voter(member),
                2 => MemberChange::Learner(member),
                3 => MemberChange::Remove(member),
                _ => return Err(Malformed("an unknown change")),
            });
        }
        input.end()?;
        Ok(ConfigurationChange(changes))
    }

    pub(crate) fn to_raft(&self) -> ConfChangeV2 {
        let mut change = ConfChangeV2::default();
        // The leader proposes to leave the joint configuration itself: raft's own way can forget to, after an election.
        let joint = self.0.len() > 1;
        change.set_transition(if joint { ConfChangeTransition::Explicit } else { ConfChangeTransition::Auto });
        let singles = self.0.iter().map(|change| {
            let mut single = ConfChangeSingle::default();
            let (kind, member) = match change {
                MemberChange::Voter(member) => (ConfChangeType::AddNode, member),
                MemberChange::Learner(member) => (ConfChangeType::AddLearnerNode, member),
                MemberChange::Remove(member) => (ConfChangeType::RemoveNode, member),
            };
            single.set_change_type(kind);
            single.node_id = member.0;
            single
        });
        change.set_changes(singles.collect::<Vec<_>>().into());
        change
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(raw: &[u64]) -> Vec<MemberId> {
        raw.iter().map(|raw| MemberId(*raw)).collect()
    }

    #[test]
    fn a_configuration_survives_its_encoding() {
        let configuration = Configuration {
            voters: members(&[1, 2, 3]),
            learners: members(&[5]),
            outgoing: members(&[1, 2, 4]),
            learners_next: members(&[4]),
        };
        let mut bytes = Vec::new();
        configuration.encode(&mut bytes);
        assert_eq!(Configuration::decode(&mut Input::new(&bytes)), Ok(configuration.clone()));
        assert_eq!(Configuration::from_raft(&configuration.to_raft()), configuration);
    }

    #[test]
    fn what_raft_would_panic_at_is_not_valid() {
        let valid = Configuration { voters: members(&[1, 2]), ..Configuration::default() };
        assert!(valid.is_valid());
        for broken in [
            Configuration { voters: members(&[2, 1]), ..valid.clone() },
            Configuration { voters: members(&[1, 1]), ..valid.clone() },
            Configuration { learners: members(&[2]), ..valid.clone() },
            Configuration { voters: Vec::new(), learners: members(&[2]), ..valid.clone() },
            Configuration { learners_next: members(&[3]), ..valid.clone() },
            Configuration { outgoing: members(&[3]), learners: members(&[3]), ..valid.clone() },
        ] {
            assert!(!broken.is_valid(), "{broken:?}");
        }
    }

    #[test]
    fn a_joint_configuration_needs_both_majorities() {
        let joint =
            Configuration { voters: members(&[1, 2, 3]), outgoing: members(&[1, 4, 5]), ..Configuration::default() };
        assert!(!joint.quorum(|member| [1, 2, 3].contains(&member.0)));
        assert!(joint.quorum(|member| [1, 2, 4].contains(&member.0)));
    }
}
