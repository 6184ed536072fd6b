//! The replicated state of a group in the simulator: queues of messages, and how far each client's batches were applied.
//!
//! It is as small as can be and still has what the broker's shard has: entries are batches of ops for many queues; a batch
//! that is sent again is applied once; a snapshot has a manifest, and leaves out bodies that the receiver holds. The broker's
//! own shard can take its place: what the simulator needs of it is [`Machine::apply`], [`Machine::hash`], and the two
//! directions of a snapshot.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{Hash, Hasher},
};

use bytes::Bytes;

/// Something that is done to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A message comes. Its id is given by the client, and never given again.
    Enqueue {
        /// To this queue.
        queue: u64,
        /// Its id.
        id: u64,
    },
    /// A message leaves, if it is there.
    Remove {
        /// This queue.
        queue: u64,
        /// Its id.
        id: u64,
    },
}

/// What a client wants done at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Who.
    pub client: u64,
    /// Rises by one from batch to batch.
    pub number: u64,
    /// What.
    pub ops: Vec<Op>,
}

/// The longest body.
const BODY_BYTES: u64 = 700;

/// The body of a message follows from its id.
pub fn body(id: u64) -> Vec<u8> {
    let length = id.wrapping_mul(0x9e37_79b9) % BODY_BYTES;
    (0..length).map(|at| (id + at) as u8).collect()
}

impl Batch {
    /// As the payload of an entry.
    pub fn encode(&self) -> Bytes {
        let mut out = Vec::new();
        for number in [self.client, self.number] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        for op in &self.ops {
            let (kind, queue, id) = match op {
                Op::Enqueue { queue, id } => (1, queue, id),
                Op::Remove { queue, id } => (2, queue, id),
            };
            out.push(kind);
            out.extend_from_slice(&queue.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
            if kind == 1 {
                let body = body(*id);
                out.extend_from_slice(&(body.len() as u16).to_le_bytes());
                out.extend_from_slice(&body);
            }
        }
        out.into()
    }

    /// Reads a payload.
    ///
    /// # Panics
    /// If it is not what was encoded: something between was wrong.
    pub fn decode(bytes: &[u8]) -> Batch {
        let mut input = bytes;
        let number = |input: &mut &[u8]| {
            let (head, rest) = input.split_first_chunk().expect("a whole number");
            *input = rest;
            u64::from_le_bytes(*head)
        };
        let (client, batch) = (number(&mut input), number(&mut input));
        let mut ops = Vec::new();
        while let Some((kind, rest)) = input.split_first() {
            input = rest;
            let (queue, id) = (number(&mut input), number(&mut input));
            if *kind == 1 {
                let length = usize::from(u16::from_le_bytes([input[0], input[1]]));
                assert_eq!(input[2..2 + length], body(id), "the body of {id}");
                input = &input[2 + length..];
                ops.push(Op::Enqueue { queue, id });
            } else {
                ops.push(Op::Remove { queue, id });
            }
        }
        Batch { client, number: batch, ops }
    }
}

/// The state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The last entry that it contains.
    pub applied: u64,
    /// Queues with their messages in order of arrival: id and body.
    queues: BTreeMap<u64, Vec<(u64, Bytes)>>,
    /// The last batch of each client.
    clients: BTreeMap<u64, u64>,
    /// Of all that was applied, in order.
    history: u64,
}

impl Machine {
    /// The state of a group that has just begun.
    pub fn new() -> Machine {
        Machine::default()
    }

    /// Applies an entry. False if its batch was applied before.
    pub fn apply(&mut self, index: u64, batch: &Batch) -> bool {
        assert!(index > self.applied, "entry {index} comes after {}", self.applied);
        self.applied = index;
        let last = self.clients.entry(batch.client).or_default();
        if batch.number <= *last {
            return false;
        }
        *last = batch.number;
        for op in &batch.ops {
            match op {
                Op::Enqueue { queue, id } => self.queues.entry(*queue).or_default().push((*id, body(*id).into())),
                Op::Remove { queue, id } => {
                    if let Some(queue) = self.queues.get_mut(queue) {
                        queue.retain(|(message, _)| message != id);
                    }
                }
            }
        }
        self.history = mix(&(self.history, batch.client, batch.number));
        true
    }

    /// Moves over entries that mean nothing to it.
    pub fn skip_to(&mut self, index: u64) {
        self.applied = self.applied.max(index);
    }

    /// The last batch of a client that was applied.
    pub fn last_of(&self, client: u64) -> u64 {
        self.clients.get(&client).copied().unwrap_or_default()
    }

    /// The messages of a queue.
    pub fn ids(&self, queue: u64) -> Vec<u64> {
        self.queues.get(&queue).into_iter().flatten().map(|(id, _)| *id).collect()
    }

    /// Equal for equal states, and hardly ever for others.
    pub fn hash(&self) -> u64 {
        // Bodies follow from ids, which is checked where they are read.
        let ids = |messages: &Vec<(u64, Bytes)>| messages.iter().map(|(id, _)| *id).collect::<Vec<_>>();
        let queues = self.queues.iter().filter(|(_, messages)| !messages.is_empty());
        let queues: Vec<_> = queues.map(|(queue, messages)| (*queue, ids(messages))).collect();
        mix(&(self.history, queues, &self.clients))
    }

    /// All ids that it holds bodies of: what a sender need not send.
    pub fn have(&self) -> Bytes {
        let ids = self.queues.values().flatten().map(|(id, _)| id.to_le_bytes());
        ids.collect::<Vec<_>>().concat().into()
    }

    /// The whole state, or without the bodies that a receiver has.
    pub fn encode(&self, have: &[u8]) -> Bytes {
        let held: BTreeSet<u64> = have.chunks_exact(8).map(number).collect();
        let mut out = Vec::new();
        let put = |out: &mut Vec<u8>, number: u64| out.extend_from_slice(&number.to_le_bytes());
        for head in [self.applied, self.history, self.clients.len() as u64] {
            put(&mut out, head);
        }
        self.clients.iter().flat_map(|(client, last)| [*client, *last]).for_each(|number| put(&mut out, number));
        for (queue, messages) in &self.queues {
            for (id, body) in messages {
                put(&mut out, *queue);
                put(&mut out, *id);
                if held.contains(id) {
                    put(&mut out, u64::MAX);
                } else {
                    put(&mut out, body.len() as u64);
                    out.extend_from_slice(body);
                }
            }
        }
        out.into()
    }

    /// Reads a state, with the bodies that were left out from `own`. `None` if one is missing or bytes are wrong.
    pub fn decode(bytes: &[u8], own: &Machine) -> Option<Machine> {
        let own: BTreeMap<u64, &Bytes> = own.queues.values().flatten().map(|(id, body)| (*id, body)).collect();
        let mut input = bytes;
        let next = |input: &mut &[u8]| {
            let (head, rest) = input.split_first_chunk()?;
            *input = rest;
            Some(u64::from_le_bytes(*head))
        };
        let (applied, history, clients) = (next(&mut input)?, next(&mut input)?, next(&mut input)?);
        let mut machine = Machine { applied, history, ..Machine::default() };
        for _ in 0..clients {
            let client = next(&mut input)?;
            machine.clients.insert(client, next(&mut input)?);
        }
        while !input.is_empty() {
            let (queue, id, length) = (next(&mut input)?, next(&mut input)?, next(&mut input)?);
            let body = if length == u64::MAX {
                (*own.get(&id)?).clone()
            } else {
                let (body, rest) = input.split_at_checked(usize::try_from(length).ok()?)?;
                input = rest;
                Bytes::copy_from_slice(body)
            };
            machine.queues.entry(queue).or_default().push((id, body));
        }
        Some(machine)
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"))
}

/// A hash that is the same in every run.
fn mix(value: &impl Hash) -> u64 {
    struct Fnv(u64);
    impl Hasher for Fnv {
        fn finish(&self) -> u64 {
            self.0
        }
        fn write_u64(&mut self, number: u64) {
            self.0 = (self.0 ^ number).wrapping_mul(0x0100_0000_01b3).rotate_left(29);
        }
        fn write(&mut self, bytes: &[u8]) {
            for byte in bytes {
                self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
        }
    }
    let mut hasher = Fnv(0xcbf2_9ce4_8422_2325);
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_survives_a_snapshot_with_the_bodies_that_the_receiver_holds_left_out() {
        let mut machine = Machine::new();
        for number in 1..20 {
            let ops = vec![Op::Enqueue { queue: number % 3, id: number }, Op::Remove { queue: 0, id: number / 2 }];
            assert!(machine.apply(number, &Batch { client: 1, number, ops }));
        }
        let mut own = Machine::new();
        own.apply(1, &Batch { client: 1, number: 1, ops: vec![Op::Enqueue { queue: 1, id: 7 }] });
        let whole = machine.encode(&[]);
        let part = machine.encode(&own.have());
        assert!(part.len() < whole.len());
        assert_eq!(Machine::decode(&whole, &Machine::new()), Some(machine.clone()));
        assert_eq!(Machine::decode(&part, &own), Some(machine.clone()));
        assert_eq!(Machine::decode(&part, &Machine::new()), None);
    }

    #[test]
    fn a_batch_that_comes_again_changes_nothing() {
        let mut machine = Machine::new();
        let batch = Batch { client: 1, number: 1, ops: vec![Op::Enqueue { queue: 1, id: 7 }] };
        assert_eq!(Batch::decode(&batch.encode()), batch);
        assert!(machine.apply(2, &batch));
        let before = machine.hash();
        assert!(!machine.apply(3, &batch));
        assert_eq!(machine.hash(), before);
        assert_eq!(machine.ids(1), [7]);
    }
}
