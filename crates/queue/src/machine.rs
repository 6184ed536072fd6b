//! One queue: its messages, its consumers, and who gets what.

use std::collections::BTreeSet;

use crate::consumers::Consumers;
use crate::live::{Live, Slot, State};
use crate::{
    ConsumerId, ConsumerSpec, Counts, Delivery, Effect, GetReply, Intervals, Message, Outcome, QueueId, Sequence,
};

/// How a queue behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The queue goes when its last consumer goes.
    pub auto_delete: bool,
    /// Only one consumer at a time gets messages; the next one takes over when it goes.
    pub single_active_consumer: bool,
}

/// Decides, at the moment of delivery, whether a consumer's connection can take one more message. This is how a slow reader
/// stops its deliveries: bytes wait in the queue, not in front of its socket.
pub trait Admission {
    /// Whether `consumer` may be given a message of `bytes`. After a `false` the consumer gets nothing until it is resumed.
    fn admit(&mut self, consumer: ConsumerId, bytes: usize) -> bool;
}

/// Why a consumer cannot be attached: another one, or this one, wants the queue for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachRefused;

/// A queue.
///
/// Invariants:
/// - every message at or above `cursor` is `Ready`;
/// - `returned` holds exactly the `Ready` messages below `cursor`;
/// - `ready` and `unacked` count the `Ready` and the `Out` messages.
#[derive(Debug)]
pub struct Machine {
    id: QueueId,
    settings: Settings,
    live: Live,
    cursor: Sequence,
    returned: BTreeSet<Sequence>,
    ready: u64,
    unacked: u64,
    consumers: Consumers,
}

impl Machine {
    /// An empty queue.
    #[must_use]
    pub fn new(id: QueueId, settings: Settings) -> Self {
        let consumers = Consumers::new(settings.single_active_consumer);
        Self {
            id,
            settings,
            live: Live::default(),
            cursor: Sequence(0),
            returned: BTreeSet::new(),
            ready: 0,
            unacked: 0,
            consumers,
        }
    }

    /// How it behaves.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Ready messages, unacked messages and consumers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            ready: self.ready,
            unacked: self.unacked,
            consumers: u32::try_from(self.consumers.len()).unwrap_or(u32::MAX),
        }
    }

    /// Whether there is something to deliver and somebody who can take it.
    #[must_use]
    pub fn can_deliver(&self) -> bool {
        self.ready > 0 && self.consumers.next().is_some()
    }

    // ---- replicated state -------------------------------------------------------------------------------------------

    /// Puts a message at the end.
    pub fn enqueue(&mut self, message: Message) -> Sequence {
        self.ready += 1;
        self.live.push(Slot { message, state: State::Ready, redelivered: false })
    }

    /// Takes messages out, whatever their state.
    pub fn remove(&mut self, sequences: &Intervals) {
        for sequence in sequences.iter() {
            self.remove_one(sequence);
        }
    }

    fn remove_one(&mut self, sequence: Sequence) {
        let Some(slot) = self.live.remove(sequence) else { return };
        match slot.state {
            State::Ready => {
                self.ready -= 1;
                if sequence < self.cursor {
                    self.returned.remove(&sequence);
                }
            }
            State::Out(consumer) => {
                self.unacked -= 1;
                self.consumers.credit(consumer, 1);
            }
            State::Settled => {}
        }
    }

    // ---- leader-local state -----------------------------------------------------------------------------------------

    /// Settles deliveries that are out with `consumer`, and answers which of them are now to be removed: all that were out,
    /// unless they go back to the queue. Stale numbers are passed over.
    pub fn settle(&mut self, consumer: ConsumerId, sequences: &Intervals, outcome: Outcome) -> Intervals {
        let mut settled = Intervals::default();
        let mut count = 0;
        for sequence in sequences.iter() {
            let Some(slot) = self.live.get_mut(sequence) else { continue };
            if slot.state != State::Out(consumer) {
                continue;
            }
            count += 1;
            match outcome {
                Outcome::Ack | Outcome::Discard => {
                    slot.state = State::Settled;
                    settled.push(sequence);
                }
                Outcome::Requeue => {
                    slot.state = State::Ready;
                    slot.redelivered = true;
                    self.returned.insert(sequence);
                    self.ready += 1;
                }
            }
        }
        self.unacked -= u64::from(count);
        self.consumers.credit(consumer, count);
        settled
    }

    /// Starts a consumer.
    ///
    /// # Errors
    /// When it or another one wants to be alone, or an exclusive one meets a single active consumer queue.
    pub fn attach(&mut self, consumer: ConsumerId, spec: ConsumerSpec) -> Result<(), AttachRefused> {
        if self.consumers.has_exclusive()
            || (spec.exclusive && (self.consumers.len() > 0 || self.settings.single_active_consumer))
        {
            return Err(AttachRefused);
        }
        self.consumers.add(consumer, spec);
        Ok(())
    }

    /// Ends a consumer, or gives back what a holder got. Answers whether a consumer went.
    pub fn detach(&mut self, consumer: ConsumerId, requeue: bool) -> bool {
        let held = self.consumers.remove(consumer);
        if requeue {
            // A consumer's deliveries are counted, a holder's are not: it has as many as there are.
            let mut left = held.map_or(u64::MAX, u64::from).min(self.unacked);
            let mut below = self.live.below(self.cursor);
            while left > 0
                && let Some((sequence, slot)) = below.next()
            {
                if slot.state == State::Out(consumer) {
                    slot.state = State::Ready;
                    slot.redelivered = true;
                    self.returned.insert(sequence);
                    self.ready += 1;
                    self.unacked -= 1;
                    left -= 1;
                }
            }
        }
        held.is_some()
    }

    /// The consumers of a connection, and whoever else of it holds messages.
    #[must_use]
    pub fn holders(&mut self, connection: u64) -> Vec<ConsumerId> {
        let mut holders: BTreeSet<ConsumerId> = self.consumers.ids().collect();
        for (_, slot) in self.live.below(self.cursor) {
            if let State::Out(holder) = slot.state {
                holders.insert(holder);
            }
        }
        holders.into_iter().filter(|holder| holder.connection == connection).collect()
    }

    /// The consumers.
    pub fn consumers(&self) -> impl Iterator<Item = ConsumerId> + '_ {
        self.consumers.ids()
    }

    /// A consumer that admission turned away can take messages again.
    pub fn resume(&mut self, consumer: ConsumerId) {
        self.consumers.resume(consumer);
    }

    /// Takes the next message for `holder`, which is not one of the consumers.
    pub fn get(&mut self, holder: ConsumerId, no_ack: bool) -> Option<GetReply> {
        let sequence = self.next_ready()?;
        let (message, redelivered) = self.hand_out(sequence, holder, no_ack);
        Some(GetReply { queue: self.id, sequence, redelivered, message, remaining: self.ready })
    }

    /// The ready messages, to be removed: what a purge drops.
    #[must_use]
    pub fn ready_sequences(&self) -> Intervals {
        let mut sequences: Intervals = self.returned.iter().copied().collect();
        let mut from = self.cursor;
        while let Some(sequence) = self.live.next_at(from) {
            sequences.push(sequence);
            from = Sequence(sequence.0 + 1);
        }
        sequences
    }

    /// Delivers while there are messages and consumers with room, at most `limit` messages. Answers how many went.
    pub fn pump<A: Admission>(&mut self, limit: usize, admission: &mut A, effects: &mut Vec<Effect>) -> usize {
        let mut delivered = 0;
        while delivered < limit {
            if self.ready == 0 {
                break;
            }
            let Some(slot) = self.consumers.next() else { break };
            let sequence = self.next_ready().expect("a ready message was counted");
            let consumer = self.consumers.get(slot);
            let (id, no_ack) = (consumer.id, consumer.spec.no_ack);
            let bytes = self.live.get_mut(sequence).expect("ready messages are live").message.len();
            if !admission.admit(id, bytes) {
                self.consumers.park(slot);
                continue;
            }
            let (message, redelivered) = self.hand_out(sequence, id, no_ack);
            self.consumers.served(slot);
            effects.push(Effect::Deliver(Delivery { consumer: id, queue: self.id, sequence, redelivered, message }));
            delivered += 1;
        }
        delivered
    }

    fn next_ready(&mut self) -> Option<Sequence> {
        if let Some(&sequence) = self.returned.first() {
            return Some(sequence);
        }
        let sequence = self.live.next_at(self.cursor)?;
        // Holes that a purge left are passed over once, not at every look.
        self.cursor = sequence;
        Some(sequence)
    }

    fn hand_out(&mut self, sequence: Sequence, to: ConsumerId, no_ack: bool) -> (Message, bool) {
        if sequence < self.cursor {
            self.returned.remove(&sequence);
        } else {
            self.cursor = Sequence(sequence.0 + 1);
        }
        self.ready -= 1;
        if no_ack {
            let slot = self.live.remove(sequence).expect("ready messages are live");
            return (slot.message, slot.redelivered);
        }
        self.unacked += 1;
        let slot = self.live.get_mut(sequence).expect("ready messages are live");
        debug_assert_eq!(slot.state, State::Ready, "only ready messages are handed out");
        slot.state = State::Out(to);
        (slot.message.clone(), slot.redelivered)
    }
}
