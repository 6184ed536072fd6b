//! Publisher confirms of a channel: which publishes are safe, told with as few `basic.ack` as possible.
//!
//! What a channel published within one turn forms a *group*; it is complete when all batches of that turn are done. Groups at the front
//! are acknowledged together with `multiple`, never past the lowest one that is still open; a group that is done
//! before an older one (which waits for another shard) is acknowledged number by number. What a queue refused because it is full is
//! told with `basic.nack`, one by one.

use std::collections::{BTreeSet, VecDeque};

/// A publish is named by its channel above, and its number in, so many bits.
pub(crate) const PUBLISH_NUMBER_BITS: u32 = 48;

/// What a publisher is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirm {
    /// `basic.ack`.
    Ack { tag: u64, multiple: bool },
    /// `basic.nack`.
    Nack { tag: u64 },
}

/// A range of publish sequence numbers, inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Group {
    first: u64,
    last: u64,
    /// The turn whose batches it waits for.
    turn: u64,
    done: bool,
}

/// The confirm state of a channel.
#[derive(Debug)]
pub(crate) struct Confirms {
    /// The number of the next publish; the first is 1.
    next: u64,
    /// The first number that is in no group yet.
    ungrouped: u64,
    groups: VecDeque<Group>,
}

impl Confirms {
    pub(crate) fn new() -> Self {
        Self { next: 1, ungrouped: 1, groups: VecDeque::new() }
    }

    /// The number that the next publish will have.
    pub(crate) fn next_number(&self) -> u64 {
        self.next
    }

    /// Counts a publish.
    pub(crate) fn published(&mut self) {
        self.next += 1;
    }

    /// How many publishes are not confirmed, those confirmed out of order left out.
    pub(crate) fn unconfirmed(&self) -> u64 {
        let waiting = self.groups.iter().filter(|group| !group.done);
        waiting.map(|group| group.last - group.first + 1).sum::<u64>() + self.next - self.ungrouped
    }

    /// Puts what was published since the last call into a group that waits for `turn`. Answers whether there was anything.
    pub(crate) fn close_group(&mut self, turn: u64) -> bool {
        if self.ungrouped == self.next {
            return false;
        }
        self.groups.push_back(Group { first: self.ungrouped, last: self.next - 1, turn, done: false });
        self.ungrouped = self.next;
        true
    }

    /// All batches of `turn` are done: appends what is to be told. `refused` are numbers that queues refused, in any order.
    pub(crate) fn turn_done(&mut self, turn: u64, refused: impl Iterator<Item = u64>, told: &mut Vec<Confirm>) {
        let Ok(at) = self.groups.binary_search_by_key(&turn, |group| group.turn) else { return };
        let group = &mut self.groups[at];
        let refused: BTreeSet<u64> = refused.filter(|number| (group.first..=group.last).contains(number)).collect();
        let answer = |number: u64| {
            if refused.contains(&number) {
                Confirm::Nack { tag: number }
            } else {
                Confirm::Ack { tag: number, multiple: false }
            }
        };
        if at > 0 {
            group.done = true;
            told.extend((group.first..=group.last).map(answer));
            return;
        }
        let front = self.groups.pop_front().expect("the group was found");
        // What is done behind it was told already.
        while self.groups.front().is_some_and(|group| group.done) {
            self.groups.pop_front();
        }
        // Up to each refused one all are acknowledged together.
        let mut first = front.first;
        for number in refused {
            if first < number {
                told.push(Confirm::Ack { tag: number - 1, multiple: number - 1 > first });
            }
            told.push(Confirm::Nack { tag: number });
            first = number + 1;
        }
        if first <= front.last {
            told.push(Confirm::Ack { tag: front.last, multiple: front.last > first });
        }
    }
}

/// The turns of a connection whose batches are not all done.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    next: u64,
    open: VecDeque<Turn>,
}

#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) id: u64,
    batches: Vec<(u32, u64, usize)>,
    /// Channels that wait for it, with the epoch that tells a reopened channel from the old one.
    pub(crate) waiting: Vec<(u16, u32)>,
    /// Publishes that a queue refused, as [`queue::Enqueue::publish`] names them.
    refused: Vec<u64>,
}

impl Turn {
    /// All publishes that a queue refused.
    pub(crate) fn refused(&self) -> impl Iterator<Item = u64> + '_ {
        self.refused.iter().copied()
    }

    /// The numbers of a channel's publishes that a queue refused.
    pub(crate) fn refused_of(&self, channel: u16) -> impl Iterator<Item = u64> + '_ {
        let of_channel = move |publish: &&u64| *publish >> PUBLISH_NUMBER_BITS == u64::from(channel);
        self.refused.iter().filter(of_channel).map(|publish| publish & ((1 << PUBLISH_NUMBER_BITS) - 1))
    }
}

impl Turns {
    /// The number of the turn that is being gathered.
    pub(crate) fn current(&self) -> u64 {
        self.next
    }

    /// The turn ends: `batches` (shard, number, bytes) were handed over, `waiting` want to know when they are done.
    pub(crate) fn end(&mut self, batches: Vec<(u32, u64, usize)>, waiting: Vec<(u16, u32)>) -> Option<Turn> {
        let turn = Turn { id: self.next, batches, waiting, refused: Vec::new() };
        self.next += 1;
        if turn.batches.is_empty() {
            return Some(turn);
        }
        self.open.push_back(turn);
        None
    }

    /// A queue refused a publish of a batch that is not done.
    pub(crate) fn refused(&mut self, shard: u32, number: u64, publish: u64) {
        let has_batch = |turn: &&mut Turn| turn.batches.iter().any(|&(s, n, _)| (s, n) == (shard, number));
        if let Some(turn) = self.open.iter_mut().find(has_batch) {
            turn.refused.push(publish);
        }
    }

    /// A batch is done. Answers its bytes, and its turn if that is done with it.
    pub(crate) fn batch_done(&mut self, shard: u32, number: u64) -> (usize, Option<Turn>) {
        for at in 0..self.open.len() {
            let turn = &mut self.open[at];
            if let Some(batch) = turn.batches.iter().position(|&(s, n, _)| (s, n) == (shard, number)) {
                let (_, _, bytes) = turn.batches.swap_remove(batch);
                let done = if turn.batches.is_empty() { self.open.remove(at) } else { None };
                return (bytes, done);
            }
        }
        (0, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(confirms: &mut Confirms, count: u64, turn: u64) {
        for _ in 0..count {
            confirms.published();
        }
        assert!(confirms.close_group(turn));
    }

    fn done(confirms: &mut Confirms, turn: u64) -> Vec<(u64, bool)> {
        let mut told = Vec::new();
        confirms.turn_done(turn, std::iter::empty(), &mut told);
        let ack = |told| match told {
            Confirm::Ack { tag, multiple } => (tag, multiple),
            Confirm::Nack { tag } => panic!("{tag} was not refused"),
        };
        told.into_iter().map(ack).collect()
    }

    #[test]
    fn what_was_refused_is_nacked_and_no_ack_covers_it_first() {
        use Confirm::{Ack, Nack};
        let mut confirms = Confirms::new();
        publish(&mut confirms, 6, 0);
        publish(&mut confirms, 3, 1);
        publish(&mut confirms, 1, 2);
        let mut told = Vec::new();
        confirms.turn_done(1, [8].into_iter(), &mut told);
        assert_eq!(told, [Ack { tag: 7, multiple: false }, Nack { tag: 8 }, Ack { tag: 9, multiple: false }]);
        told.clear();
        confirms.turn_done(0, [5, 1, 4, 77].into_iter(), &mut told);
        let expected = [
            Nack { tag: 1 },
            Ack { tag: 3, multiple: true },
            Nack { tag: 4 },
            Nack { tag: 5 },
            Ack { tag: 6, multiple: false },
        ];
        assert_eq!(told, expected);
        told.clear();
        confirms.turn_done(2, [10].into_iter(), &mut told);
        assert_eq!(told, [Nack { tag: 10 }]);
    }

    #[test]
    fn a_turn_is_one_cumulative_ack_and_a_single_message_a_plain_one() {
        let mut confirms = Confirms::new();
        publish(&mut confirms, 1, 0);
        publish(&mut confirms, 5, 1);
        assert!(!confirms.close_group(2));
        assert_eq!(done(&mut confirms, 0), [(1, false)]);
        assert_eq!(done(&mut confirms, 1), [(6, true)]);
    }

    #[test]
    fn an_ack_never_covers_a_publish_that_is_still_open() {
        let mut confirms = Confirms::new();
        publish(&mut confirms, 2, 0);
        publish(&mut confirms, 2, 1);
        publish(&mut confirms, 1, 2);
        assert_eq!(done(&mut confirms, 1), [(3, false), (4, false)]);
        assert_eq!(done(&mut confirms, 2), [(5, false)]);
        assert_eq!(done(&mut confirms, 0), [(2, true)]);
        publish(&mut confirms, 1, 3);
        assert_eq!(done(&mut confirms, 3), [(6, false)]);
    }

    #[test]
    fn a_turn_is_done_with_its_last_batch() {
        let mut turns = Turns::default();
        assert!(turns.end(Vec::new(), vec![(1, 0)]).is_some(), "nothing to wait for");
        let turn = turns.current();
        assert!(turns.end(vec![(0, 1, 10), (1, 2, 20)], vec![(1, 0)]).is_none());
        let (bytes, done) = turns.batch_done(1, 2);
        assert!(bytes == 20 && done.is_none());
        let (bytes, done) = turns.batch_done(0, 1);
        assert!(bytes == 10 && done.is_some_and(|done| done.id == turn));
    }
}
