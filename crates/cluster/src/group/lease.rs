//! The leader's lease: until when nobody else can have been elected.
//!
//! A heartbeat carries the leader's clock, and its answer brings it back. A follower that heard of its leader elects no other
//! within the election timeout, so from the moment that a quorum's answered heartbeats were *sent* the leader is alone for
//! that long. Three things could break this, and are seen to:
//!
//! - a leader that asks another to take over gives its lease up first; if that comes to nothing it steps down, since the
//!   request may still be on its way;
//! - a member that restarts no longer knows whom it heard of, so it does not vote during its first election timeout;
//! - a member whose link to the leader was closed by the other side takes the leader for dead. A process learns that its
//!   links are closed no later than its peers, and then no longer counts them.

use std::{collections::BTreeMap, time::Duration};

use crate::member::{Configuration, MemberId};

/// When each peer's latest answered heartbeat was sent.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    contact: BTreeMap<MemberId, Duration>,
}

impl Lease {
    /// Nobody was heard of: a new leader.
    pub(crate) fn clear(&mut self) {
        self.contact.clear();
    }

    /// A peer answered what was sent at that time.
    pub(crate) fn heard(&mut self, peer: MemberId, sent: Duration) {
        let latest = self.contact.entry(peer).or_default();
        *latest = sent.max(*latest);
    }

    /// A peer's link is closed.
    pub(crate) fn forget(&mut self, peer: MemberId) {
        self.contact.remove(&peer);
    }

    /// The latest time at which a quorum was surely reached; `None` if never, `MAX` if `me` is a quorum.
    pub(crate) fn quorum_contact(&self, me: MemberId, configuration: &Configuration) -> Option<Duration> {
        let of = |members: &[MemberId]| {
            if members.is_empty() {
                return Some(Duration::MAX);
            }
            let latest = |member: &MemberId| {
                if *member == me { Some(Duration::MAX) } else { self.contact.get(member).copied() }
            };
            let mut times: Vec<Option<Duration>> = members.iter().map(latest).collect();
            times.sort_unstable();
            // A majority was heard of at this time or later.
            times[(members.len() - 1) / 2]
        };
        Some(of(&configuration.voters)?.min(of(&configuration.outgoing)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(raw: u64) -> MemberId {
        MemberId::from_raw(raw).unwrap()
    }

    #[test]
    fn a_quorum_includes_the_leader_itself() {
        let ms = Duration::from_millis;
        let three = Configuration::of_voters([1, 2, 3].map(member));
        let mut lease = Lease::default();
        assert_eq!(lease.quorum_contact(member(1), &three), None);
        lease.heard(member(2), ms(70));
        lease.heard(member(2), ms(60));
        assert_eq!(lease.quorum_contact(member(1), &three), Some(ms(70)));
        let five = Configuration::of_voters([1, 2, 3, 4, 5].map(member));
        assert_eq!(lease.quorum_contact(member(1), &five), None);
        lease.heard(member(4), ms(50));
        assert_eq!(lease.quorum_contact(member(1), &five), Some(ms(50)));
        lease.forget(member(2));
        assert_eq!(lease.quorum_contact(member(1), &three), None);
        let one = Configuration::of_voters([member(1)]);
        assert_eq!(lease.quorum_contact(member(1), &one), Some(Duration::MAX));
    }

    #[test]
    fn a_joint_configuration_needs_contact_with_both() {
        let mut lease = Lease::default();
        let joint = Configuration {
            voters: [1, 2, 3].map(member).to_vec(),
            outgoing: [1, 4, 5].map(member).to_vec(),
            ..Configuration::default()
        };
        lease.heard(member(2), Duration::from_millis(9));
        assert_eq!(lease.quorum_contact(member(1), &joint), None);
        lease.heard(member(5), Duration::from_millis(7));
        assert_eq!(lease.quorum_contact(member(1), &joint), Some(Duration::from_millis(7)));
    }
}
