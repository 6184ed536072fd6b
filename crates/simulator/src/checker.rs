//! What must be true of a cluster, whatever happens to it.
//!
//! - One order: an entry that anybody applied at an index is what everybody applies there, and the state after it is the same.
//! - Once: of a batch that was sent again, and of the entries it made, one takes effect.
//! - Nothing confirmed is lost: at the end it is in everybody's state.
//! - One leader per term, and no delivery under a lease after somebody delivered in a later term.

use std::collections::BTreeMap;

use cluster::MemberId;
use storage::GroupId;

use crate::{
    machine::{Batch, Machine, Op},
    process::Note,
};

struct Entry {
    term: u64,
    batch: Batch,
    hash: u64,
}

/// What was seen so far.
#[derive(Default)]
pub(crate) struct Checker {
    entries: BTreeMap<(GroupId, u64), Entry>,
    leaders: BTreeMap<(GroupId, u64), MemberId>,
    delivered: BTreeMap<GroupId, (u64, MemberId)>,
    /// Of each group and client: the last confirmed batch.
    confirmed: BTreeMap<(GroupId, u64), u64>,
    /// How often something of interest happened.
    pub(crate) installed: u64,
    pub(crate) applied: u64,
}

impl Checker {
    /// A node did something.
    pub(crate) fn note(&mut self, by: MemberId, note: Note) {
        match note {
            Note::Applied { group, index, term, batch, hash } => {
                self.applied += 1;
                let known =
                    self.entries.entry((group, index)).or_insert_with(|| Entry { term, batch: batch.clone(), hash });
                assert_eq!((known.term, &known.batch), (term, &batch), "entry {index} of group {group} at {by}");
                assert_eq!(known.hash, hash, "the state of group {group} after entry {index} at {by}");
            }
            Note::Installed { group, index, hash } => {
                self.installed += 1;
                let before = self.entries.range((group, 0)..=(group, index)).next_back();
                if let Some((_, entry)) = before {
                    assert_eq!(entry.hash, hash, "the snapshot of group {group} up to {index} at {by}");
                }
            }
            Note::Leading { group, term } => {
                let leader = *self.leaders.entry((group, term)).or_insert(by);
                assert_eq!(leader, by, "two leaders of group {group} in term {term}");
            }
            Note::Confirmed { .. } => {}
        }
    }

    /// A client was told that its batch is safe.
    pub(crate) fn confirmed(&mut self, group: GroupId, client: u64, number: u64) {
        let last = self.confirmed.entry((group, client)).or_default();
        *last = number.max(*last);
    }

    /// A leader delivers, in this term.
    pub(crate) fn delivers(&mut self, by: MemberId, group: GroupId, term: u64) {
        let (latest, whom) = *self.delivered.entry(group).or_insert((term, by));
        assert!(
            term > latest || term == latest && whom == by,
            "{by} delivers for group {group} in term {term}, after {whom} has in term {latest}"
        );
        self.delivered.insert(group, (term, by));
    }

    /// How far a group came.
    pub(crate) fn last(&self, group: GroupId) -> u64 {
        self.entries.range((group, 0)..=(group, u64::MAX)).next_back().map_or(0, |((_, index), _)| *index)
    }

    /// All is quiet, and everybody has everything: is it the right thing?
    pub(crate) fn finish(&self, group: GroupId, by: MemberId, machine: &Machine) {
        let mut model: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut done: BTreeMap<u64, u64> = BTreeMap::new();
        for ((_, _), entry) in self.entries.range((group, 0)..=(group, u64::MAX)) {
            let last = done.entry(entry.batch.client).or_default();
            if entry.batch.number <= *last {
                continue;
            }
            assert_eq!(entry.batch.number, *last + 1, "a client's batches of group {group} take effect in order");
            *last = entry.batch.number;
            for op in &entry.batch.ops {
                match op {
                    Op::Enqueue { queue, id } => model.entry(*queue).or_default().push(*id),
                    Op::Remove { queue, id } => model.entry(*queue).or_default().retain(|message| message != id),
                }
            }
        }
        for (queue, ids) in &model {
            assert_eq!(machine.ids(*queue), *ids, "queue {queue} of group {group} at {by}");
        }
        for ((_, client), number) in self.confirmed.iter().filter(|((of, _), _)| *of == group) {
            let last = machine.last_of(*client);
            assert!(
                last >= *number,
                "batch {number} of client {client} in group {group} was confirmed, {by} has {last}"
            );
        }
    }
}
