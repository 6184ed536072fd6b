//! The messages of a queue that are live, found by sequence number in constant time.
//!
//! Sequence numbers are dense when a queue is young: a ring indexed by number is the fastest and smallest table there is. A message
//! that stays for long while millions pass would stretch the ring, so when most of the ring is holes its old end is moved
//! to a tree: one old message pins one record, not a range.

use std::collections::{BTreeMap, VecDeque};

use crate::cold::Release;
use crate::{ConsumerId, Message, Sequence, Stamp};

/// Below this length a ring is left alone, whatever its holes: it costs a few pages.
const SMALL_RING: usize = 1024;
/// A ring is thinned when more than this share of it (in quarters) is holes.
const MAX_HOLES_QUARTERS: usize = 3;
/// An empty ring with more room than this gives it back, so that a queue that was deep once is small again.
const KEEP_CAPACITY: usize = 4096;

/// Who has a live message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Nobody: it can be delivered.
    Ready,
    /// A consumer, or a channel that got it.
    Out(ConsumerId),
    /// Nobody any more: it was settled and leaves when its removal takes effect.
    Settled,
    /// Nobody: it is on its way to a dead-letter exchange, and is settled when it has arrived.
    Leaving,
}

/// A live message.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) message: Message,
    pub(crate) state: State,
    /// It was handed out before and came back.
    pub(crate) redelivered: bool,
    pub(crate) stamp: Stamp,
    /// Where it lies on disk; `None` in a queue that lives in memory.
    pub(crate) place: Option<Place>,
}

impl Slot {
    /// What it needs on disk, as long as it is there.
    pub(crate) fn release(&self) -> Option<Release> {
        self.place.map(|place| Release { file: place.file, bytes: self.message.len() as u64, messages: 1 })
    }
}

/// Where a message of a durable queue lies on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file.
    pub file: u64,
    /// Where in it the envelope begins; properties and body follow. 0 in a segment, where messages are found by their sequence.
    pub offset: u32,
}

/// The table of live messages.
///
/// Invariants:
/// - `ring[i]` is the message with sequence `base + i`; the ring's first entry, if there is one, is not a hole;
/// - every sequence in `stragglers` is below `base`;
/// - `holes` is the number of `None` in `ring`.
#[derive(Debug, Default)]
pub(crate) struct Live {
    base: u64,
    ring: VecDeque<Option<Slot>>,
    holes: usize,
    stragglers: BTreeMap<u64, Slot>,
}

impl Live {
    /// Adds a message behind all others.
    pub(crate) fn push(&mut self, slot: Slot) -> Sequence {
        let sequence = self.next_sequence();
        self.ring.push_back(Some(slot));
        sequence
    }

    /// Keeps a number for a message that is gone already.
    pub(crate) fn push_hole(&mut self) {
        self.ring.push_back(None);
        self.holes += 1;
        self.trim();
    }

    /// Uses up all numbers below `next`.
    pub(crate) fn advance_to(&mut self, next: Sequence) {
        if self.ring.is_empty() {
            self.base = self.base.max(next.0);
        }
        while self.next_sequence() < next {
            self.push_hole();
        }
    }

    /// Every live message, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Sequence, &Slot)> {
        let old = self.stragglers.iter().map(|(&sequence, slot)| (Sequence(sequence), slot));
        let base = self.base;
        let young = self
            .ring
            .iter()
            .enumerate()
            .filter_map(move |(index, slot)| Some((Sequence(base + index as u64), slot.as_ref()?)));
        old.chain(young)
    }

    /// The number that the next message will get.
    pub(crate) fn next_sequence(&self) -> Sequence {
        Sequence(self.base + self.ring.len() as u64)
    }

    pub(crate) fn get(&self, sequence: Sequence) -> Option<&Slot> {
        match sequence.0.checked_sub(self.base) {
            Some(index) => self.ring.get(usize::try_from(index).ok()?)?.as_ref(),
            None => self.stragglers.get(&sequence.0),
        }
    }

    pub(crate) fn get_mut(&mut self, sequence: Sequence) -> Option<&mut Slot> {
        match sequence.0.checked_sub(self.base) {
            Some(index) => self.ring.get_mut(usize::try_from(index).ok()?)?.as_mut(),
            None => self.stragglers.get_mut(&sequence.0),
        }
    }

    /// Takes a message out.
    pub(crate) fn remove(&mut self, sequence: Sequence) -> Option<Slot> {
        let Some(index) = sequence.0.checked_sub(self.base) else { return self.stragglers.remove(&sequence.0) };
        let slot = self.ring.get_mut(usize::try_from(index).ok()?)?.take()?;
        self.holes += 1;
        self.trim();
        Some(slot)
    }

    /// The first live sequence at or above `from`.
    pub(crate) fn next_at(&self, from: Sequence) -> Option<Sequence> {
        if from.0 < self.base
            && let Some((&sequence, _)) = self.stragglers.range(from.0..).next()
        {
            return Some(Sequence(sequence));
        }
        let start = usize::try_from(from.0.saturating_sub(self.base)).ok()?;
        let offset = self.ring.range(start.min(self.ring.len())..).position(Option::is_some)?;
        Some(Sequence(self.base + (start + offset) as u64))
    }

    /// Every live message below `end`, oldest first.
    pub(crate) fn below(&mut self, end: Sequence) -> impl Iterator<Item = (Sequence, &mut Slot)> {
        let base = self.base;
        let ring_end = usize::try_from(end.0.saturating_sub(base)).unwrap_or(usize::MAX).min(self.ring.len());
        let old = self.stragglers.range_mut(..end.0).map(|(&sequence, slot)| (Sequence(sequence), slot));
        let young = self.ring.range_mut(..ring_end).enumerate().filter_map(move |(index, slot)| {
            let slot = slot.as_mut()?;
            Some((Sequence(base + index as u64), slot))
        });
        old.chain(young)
    }

    /// Every live message from `first` to before `end`, oldest first.
    pub(crate) fn within(&mut self, first: u64, end: u64) -> impl Iterator<Item = (Sequence, &mut Slot)> {
        let base = self.base;
        let index =
            |sequence: u64| usize::try_from(sequence.saturating_sub(base)).unwrap_or(usize::MAX).min(self.ring.len());
        let (from, to) = (index(first), index(end));
        let old = self.stragglers.range_mut(first..end.max(first)).map(|(&sequence, slot)| (Sequence(sequence), slot));
        let young = self.ring.range_mut(from..to.max(from)).enumerate().filter_map(move |(offset, slot)| {
            let slot = slot.as_mut()?;
            Some((Sequence(base + (from + offset) as u64), slot))
        });
        old.chain(young)
    }

    /// How many messages are live.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.ring.len() - self.holes + self.stragglers.len()
    }

    /// Restores the invariants after a removal.
    fn trim(&mut self) {
        while let Some(None) = self.ring.front() {
            self.ring.pop_front();
            self.base += 1;
            self.holes -= 1;
        }
        if self.ring.len() > SMALL_RING && self.holes * 4 > self.ring.len() * MAX_HOLES_QUARTERS {
            self.thin();
        }
        if self.ring.is_empty() && self.ring.capacity() > KEEP_CAPACITY {
            self.ring.shrink_to(SMALL_RING);
        }
    }

    /// Moves the old end of the ring to the tree, until at most half of what is left is holes. Each entry moves once in its life.
    fn thin(&mut self) {
        while self.ring.len() > SMALL_RING && self.holes * 2 > self.ring.len() {
            match self.ring.pop_front().expect("the ring is longer than a small one") {
                Some(slot) => {
                    self.stragglers.insert(self.base, slot);
                }
                None => self.holes -= 1,
            }
            self.base += 1;
        }
        while let Some(None) = self.ring.front() {
            self.ring.pop_front();
            self.base += 1;
            self.holes -= 1;
        }
        if self.ring.capacity() > KEEP_CAPACITY && self.ring.len() * 4 < self.ring.capacity() {
            self.ring.shrink_to(self.ring.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(body: u64) -> Slot {
        Slot {
            message: Message::from_parts(b"\0\0", b"\0\0", &body.to_be_bytes()),
            state: State::Ready,
            redelivered: false,
            stamp: Stamp::default(),
            place: None,
        }
    }

    #[test]
    fn one_old_message_does_not_stretch_the_ring() {
        let mut live = Live::default();
        let old = live.push(slot(0));
        for n in 1..200_000 {
            let sequence = live.push(slot(n));
            assert!(live.remove(sequence).is_some());
        }
        assert!(live.ring.len() <= SMALL_RING + 1, "ring is {} long", live.ring.len());
        assert_eq!(live.len(), 1);
        assert_eq!(live.next_at(Sequence(0)), Some(old));
        assert_eq!(live.remove(old).map(|s| s.message), Some(slot(0).message));
        assert_eq!(live.len(), 0);
        assert_eq!(live.next_sequence(), Sequence(200_000));
    }

    #[test]
    fn finds_the_next_live_message_over_holes_and_stragglers() {
        let mut live = Live::default();
        for n in 0..5000 {
            live.push(slot(n));
        }
        for n in 0..5000 {
            if n % 1000 != 7 {
                live.remove(Sequence(n));
            }
        }
        let mut found = Vec::new();
        let mut from = Sequence(0);
        while let Some(sequence) = live.next_at(from) {
            found.push(sequence.0);
            from = Sequence(sequence.0 + 1);
        }
        assert_eq!(found, [7, 1007, 2007, 3007, 4007]);
        assert_eq!(live.below(Sequence(2007)).map(|(s, _)| s.0).collect::<Vec<_>>(), [7, 1007]);
    }
}
