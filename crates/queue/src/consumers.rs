//! The consumers of a queue and whose turn it is: highest priority first, round robin among equals, those without room passed over.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::ConsumerId;

/// How a consumer wants to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ConsumerSpec {
    /// Deliveries count as settled when they are handed over.
    pub no_ack: bool,
    /// No other consumer beside it.
    pub exclusive: bool,
    /// Most deliveries that may be out with it; 0 is no limit. Means nothing with `no_ack`.
    pub prefetch: u32,
    /// Consumers with a higher one are served first.
    pub priority: i32,
}

/// A consumer and what it holds.
#[derive(Debug)]
pub(crate) struct Consumer {
    pub(crate) id: ConsumerId,
    pub(crate) spec: ConsumerSpec,
    /// Deliveries that are out with it.
    pub(crate) unacked: u32,
    /// It stands in its priority's line.
    in_line: bool,
    /// Admission turned it away; it comes back by a resume.
    parked: bool,
}

impl Consumer {
    fn has_room(&self) -> bool {
        !self.parked && (self.spec.no_ack || self.spec.prefetch == 0 || self.unacked < self.spec.prefetch)
    }
}

/// Consumers of one priority that have room, in the order in which they are served.
#[derive(Debug)]
struct Line {
    priority: i32,
    waiting: VecDeque<u32>,
}

/// The consumers of one queue.
///
/// Invariants: a consumer stands in the line of its priority exactly when `in_line` is set; whoever has room is in line
/// (with a single active consumer: only the active one is).
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    slots: Vec<Option<Consumer>>,
    free: Vec<u32>,
    index: FxHashMap<ConsumerId, u32>,
    /// Highest priority first.
    lines: Vec<Line>,
    single_active: bool,
    /// With a single active consumer: all, in the order in which they came; the first one is active.
    arrival: VecDeque<ConsumerId>,
}

impl Consumers {
    pub(crate) fn new(single_active: bool) -> Self {
        Self { single_active, ..Self::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    pub(crate) fn has_exclusive(&self) -> bool {
        self.slots.iter().flatten().any(|consumer| consumer.spec.exclusive)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ConsumerId> + '_ {
        self.slots.iter().flatten().map(|consumer| consumer.id)
    }

    pub(crate) fn add(&mut self, id: ConsumerId, spec: ConsumerSpec) {
        let consumer = Consumer { id, spec, unacked: 0, in_line: false, parked: false };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(consumer);
                slot
            }
            None => {
                self.slots.push(Some(consumer));
                u32::try_from(self.slots.len() - 1).expect("fewer consumers than four thousand million")
            }
        };
        self.index.insert(id, slot);
        if self.single_active {
            self.arrival.push_back(id);
        }
        self.line_up(slot);
    }

    /// Takes a consumer away. Answers how many deliveries are out with it, if it was there.
    pub(crate) fn remove(&mut self, id: ConsumerId) -> Option<u32> {
        let slot = self.index.remove(&id)?;
        let consumer = self.slots[slot as usize].take().expect("the index points at consumers");
        if consumer.in_line {
            let line = self.line_mut(consumer.spec.priority);
            line.waiting.retain(|&waiting| waiting != slot);
        }
        // Clients choose priorities: lines in which nobody stands are made again when somebody does.
        self.lines.retain(|line| !line.waiting.is_empty());
        self.free.push(slot);
        if self.single_active {
            self.arrival.retain(|&other| other != id);
            if let Some(next) = self.arrival.front() {
                self.line_up(self.index[next]);
            }
        }
        if self.index.is_empty() {
            // A queue without consumers keeps nothing of them.
            *self = Self::new(self.single_active);
        }
        Some(consumer.unacked)
    }

    /// Whose turn it is, without taking it.
    pub(crate) fn next(&self) -> Option<u32> {
        self.lines.iter().find_map(|line| line.waiting.front().copied())
    }

    pub(crate) fn get(&self, slot: u32) -> &Consumer {
        self.slots[slot as usize].as_ref().expect("lines hold consumers that are there")
    }

    /// The consumer whose turn it was took a message: it goes to the end of its line, if it has room for more.
    pub(crate) fn served(&mut self, slot: u32) {
        let consumer = self.slots[slot as usize].as_mut().expect("lines hold consumers that are there");
        if !consumer.spec.no_ack {
            consumer.unacked += 1;
        }
        let (priority, stays) = (consumer.spec.priority, consumer.has_room());
        consumer.in_line = stays;
        let line = self.line_mut(priority);
        debug_assert_eq!(line.waiting.front(), Some(&slot), "only the first in line is served");
        if line.waiting.len() == 1 && stays {
            return;
        }
        line.waiting.pop_front();
        if stays {
            line.waiting.push_back(slot);
        }
    }

    /// The consumer whose turn it was cannot take more now: out of line until [`Consumers::resume`].
    pub(crate) fn park(&mut self, slot: u32) {
        let consumer = self.slots[slot as usize].as_mut().expect("lines hold consumers that are there");
        consumer.parked = true;
        consumer.in_line = false;
        let priority = consumer.spec.priority;
        let line = self.line_mut(priority);
        line.waiting.retain(|&waiting| waiting != slot);
    }

    pub(crate) fn resume(&mut self, id: ConsumerId) {
        let Some(&slot) = self.index.get(&id) else { return };
        self.slots[slot as usize].as_mut().expect("the index points at consumers").parked = false;
        self.line_up(slot);
    }

    /// `count` deliveries of the consumer were settled.
    pub(crate) fn credit(&mut self, id: ConsumerId, count: u32) {
        let Some(&slot) = self.index.get(&id) else { return };
        let consumer = self.slots[slot as usize].as_mut().expect("the index points at consumers");
        consumer.unacked = consumer.unacked.saturating_sub(count);
        self.line_up(slot);
    }

    fn line_up(&mut self, slot: u32) {
        let consumer = self.slots[slot as usize].as_mut().expect("only consumers that are there line up");
        if consumer.in_line || !consumer.has_room() {
            return;
        }
        if self.single_active && self.arrival.front() != Some(&consumer.id) {
            return;
        }
        consumer.in_line = true;
        let priority = consumer.spec.priority;
        self.line_mut(priority).waiting.push_back(slot);
    }

    fn line_mut(&mut self, priority: i32) -> &mut Line {
        let at = match self.lines.binary_search_by(|line| priority.cmp(&line.priority)) {
            Ok(at) => at,
            Err(at) => {
                self.lines.insert(at, Line { priority, waiting: VecDeque::new() });
                at
            }
        };
        &mut self.lines[at]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn priorities_that_were_used_once_leave_nothing_behind() {
        let mut consumers = Consumers::new(false);
        let id = |local| ConsumerId { connection: 1, local };
        consumers.add(id(0), ConsumerSpec::default());
        for local in 1..100u16 {
            let priority = i32::from(local);
            consumers.add(id(local.into()), ConsumerSpec { priority, ..ConsumerSpec::default() });
            consumers.remove(id(local.into()));
        }
        assert_eq!(consumers.lines.len(), 1);
        let first = consumers.next().expect("the first one still waits");
        assert_eq!(consumers.get(first).id, id(0));
    }
}
