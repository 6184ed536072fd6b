//! Many queues and the ops on them: what one shard task owns.

use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::{Admission, Batch, Effect, Enqueue, Machine, Op, Outcome, QueueId, Reply, Token};

/// The queues of a shard.
#[derive(Debug, Default)]
pub struct Shard {
    queues: FxHashMap<QueueId, Entry>,
    /// Queues that may have something to deliver, each once.
    dirty: Vec<QueueId>,
}

#[derive(Debug)]
struct Entry {
    machine: Machine,
    dirty: bool,
}

impl Shard {
    /// A shard without queues.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many queues there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queues.len()
    }

    /// Whether there is no queue.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// One of the queues.
    #[must_use]
    pub fn queue(&self, queue: QueueId) -> Option<&Machine> {
        self.queues.get(&queue).map(|entry| &entry.machine)
    }

    /// Carries out a batch, in order, and appends what it asks of the world. Deliveries that its messages give rise to
    /// wait until [`Shard::deliver`], so that many batches share them.
    pub fn apply<A: Admission>(&mut self, batch: Batch, admission: &mut A, effects: &mut Vec<Effect>) {
        let Batch { connection, number, ops, buffers } = batch;
        for op in ops {
            match op {
                Op::Enqueue(enqueue) => self.enqueue(&enqueue, &buffers),
                Op::Settle { queue, consumer, outcome, sequences } => {
                    if let Some(entry) = self.queues.get_mut(&queue) {
                        let settled = entry.machine.settle(consumer, &sequences, outcome);
                        if outcome != Outcome::Requeue {
                            entry.machine.remove(&settled);
                        }
                        self.mark(queue);
                    }
                }
                other => self.command(connection, other, admission, effects),
            }
        }
        effects.push(Effect::BatchDone { connection, number });
    }

    /// Delivers what can be delivered.
    pub fn deliver<A: Admission>(&mut self, admission: &mut A, effects: &mut Vec<Effect>) {
        while let Some(queue) = self.dirty.pop() {
            if let Some(entry) = self.queues.get_mut(&queue) {
                entry.dirty = false;
                entry.machine.pump(usize::MAX, admission, effects);
            }
        }
    }

    /// Ends all consumers of a connection and sends back what is out with it. Looks at every queue: for connections that went without
    /// saying what they held.
    pub fn forget_connection(&mut self, connection: u64, effects: &mut Vec<Effect>) {
        let queues: Vec<QueueId> = self.queues.keys().copied().collect();
        for queue in queues {
            let Some(entry) = self.queues.get_mut(&queue) else { continue };
            let machine = &mut entry.machine;
            let mut was_consumer = false;
            for holder in machine.holders(connection) {
                was_consumer |= machine.detach(holder, true);
            }
            if was_consumer && machine.settings().auto_delete && machine.counts().consumers == 0 {
                self.remove(queue, effects);
            } else {
                self.mark(queue);
            }
        }
    }

    fn enqueue(&mut self, enqueue: &Enqueue, buffers: &[Bytes]) {
        // A batch is made by this node's connections: a reference that points nowhere is a fault of ours.
        let message = enqueue.message.resolve(buffers).expect("a message lies in its batch's buffers");
        let (last, others) = enqueue.targets.as_slice().split_last().expect("a message has a target");
        for queue in others {
            self.enqueue_one(*queue, message.clone());
        }
        self.enqueue_one(*last, message);
    }

    fn enqueue_one(&mut self, queue: QueueId, message: crate::Message) {
        let Some(entry) = self.queues.get_mut(&queue) else { return };
        entry.machine.enqueue(message);
        if !entry.dirty {
            entry.dirty = true;
            self.dirty.push(queue);
        }
    }

    fn mark(&mut self, queue: QueueId) {
        if let Some(entry) = self.queues.get_mut(&queue)
            && !entry.dirty
            && entry.machine.can_deliver()
        {
            entry.dirty = true;
            self.dirty.push(queue);
        }
    }

    /// The ops that are not on the hot path. What was enqueued before is delivered first, so that counts and gets see what a
    /// consumer would have left.
    fn command<A: Admission>(&mut self, connection: u64, op: Op, admission: &mut A, effects: &mut Vec<Effect>) {
        let answer = |token: Option<Token>, reply: Reply, effects: &mut Vec<Effect>| {
            if let Some(token) = token {
                effects.push(Effect::Reply { connection, token, reply });
            }
        };
        if let Op::Create { queue, settings } = op {
            self.queues.entry(queue).or_insert_with(|| Entry { machine: Machine::new(queue, settings), dirty: false });
            return;
        }
        let (queue, token) = match &op {
            Op::Delete { queue, token, .. }
            | Op::Purge { queue, token }
            | Op::Attach { queue, token, .. }
            | Op::Detach { queue, token, .. } => (*queue, *token),
            Op::Count { queue, token } | Op::Get { queue, token, .. } => (*queue, Some(*token)),
            Op::Resume { queue, .. } => (*queue, None),
            Op::Enqueue(_) | Op::Settle { .. } | Op::Create { .. } => unreachable!("carried out above"),
        };
        let Some(entry) = self.queues.get_mut(&queue) else { return answer(token, Reply::Gone, effects) };
        let machine = &mut entry.machine;
        machine.pump(usize::MAX, admission, effects);
        match op {
            Op::Count { .. } => answer(token, Reply::Counts(machine.counts()), effects),
            Op::Purge { .. } => {
                let ready = machine.ready_sequences();
                machine.remove(&ready);
                answer(token, Reply::Purged(ready.count()), effects);
            }
            Op::Get { holder, no_ack, .. } => {
                let got = machine.get(holder, no_ack);
                answer(token, Reply::Get(got), effects);
            }
            Op::Attach { consumer, spec, .. } => {
                let reply = if machine.attach(consumer, spec).is_ok() { Reply::Attached } else { Reply::InUse };
                answer(token, reply, effects);
                self.mark(queue);
            }
            Op::Detach { consumer, requeue, .. } => {
                let was_consumer = machine.detach(consumer, requeue);
                if was_consumer && machine.settings().auto_delete && machine.counts().consumers == 0 {
                    self.remove(queue, effects);
                } else {
                    self.mark(queue);
                }
                answer(token, Reply::Detached, effects);
            }
            Op::Resume { consumer, .. } => {
                machine.resume(consumer);
                self.mark(queue);
            }
            Op::Delete { if_unused, if_empty, .. } => {
                let counts = machine.counts();
                if if_unused && counts.consumers > 0 {
                    answer(token, Reply::InUse, effects);
                } else if if_empty && counts.ready > 0 {
                    answer(token, Reply::NotEmpty, effects);
                } else {
                    let consumers: Vec<_> = machine.consumers().collect();
                    self.remove(queue, effects);
                    answer(token, Reply::Deleted(counts.ready), effects);
                    effects.extend(consumers.into_iter().map(|consumer| Effect::CancelConsumer { consumer }));
                }
            }
            Op::Enqueue(_) | Op::Settle { .. } | Op::Create { .. } => unreachable!("carried out above"),
        }
    }

    fn remove(&mut self, queue: QueueId, effects: &mut Vec<Effect>) {
        self.queues.remove(&queue);
        if self.dirty.last() == Some(&queue) {
            self.dirty.pop();
        }
        effects.push(Effect::QueueGone { queue });
    }
}
