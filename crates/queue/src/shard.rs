//! Many queues and the ops on them: what one shard task owns.

use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::{
    Admission, Batch, Chunk, ConsumerId, Effect, Enqueue, Intervals, Journal, Machine, Message, Op, Outcome, Place,
    QueueId, Release, Reply, Token,
};

/// The queues of a shard.
#[derive(Debug, Default)]
pub struct Shard {
    queues: FxHashMap<QueueId, Entry>,
    /// Queues that may have something to deliver, each once.
    dirty: Vec<QueueId>,
    /// Durable queues whose journal may have something, perhaps more than once.
    journaled: Vec<QueueId>,
    releases: Vec<Release>,
    memory: MemoryChange,
}

/// How much memory the messages of a shard's durable queues took and gave back, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryChange {
    /// Came into memory.
    pub added: u64,
    /// Went out of it.
    pub removed: u64,
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
        let Batch { connection, number, ops, buffers, .. } = batch;
        for op in ops {
            match op {
                Op::Enqueue(enqueue) => self.enqueue(&enqueue, &buffers),
                Op::Settle { queue, consumer, outcome, sequences } => {
                    if let Some(entry) = self.queues.get_mut(&queue) {
                        let settled = entry.machine.settle(consumer, &sequences, outcome);
                        if outcome != Outcome::Requeue {
                            entry.machine.remove(&settled, &mut self.releases);
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
                let durable = entry.machine.settings().durable;
                self.pump(queue, admission, effects);
                if durable {
                    self.journaled.push(queue);
                }
            }
        }
    }

    /// Delivers what one queue can, bringing back from disk what it needs.
    fn pump<A: Admission>(&mut self, queue: QueueId, admission: &mut A, effects: &mut Vec<Effect>) {
        let Some(entry) = self.queues.get_mut(&queue) else { return };
        loop {
            entry.machine.pump(usize::MAX, admission, effects);
            let Some(chunk) = entry.machine.wanted_chunk().filter(|_| entry.machine.can_deliver()) else { return };
            let messages = admission.read_chunk(queue, &chunk);
            self.memory.added += entry.machine.page_in(messages, &mut self.releases);
        }
    }

    // ---- durable queues: the steps of which a shard with a log makes its turn -------------------------------------------

    /// Makes a queue from a snapshot, or an empty one.
    pub fn restore(&mut self, queue: QueueId, machine: Machine) {
        self.queues.insert(queue, Entry { machine, dirty: false });
    }

    /// The queues.
    pub fn queues(&self) -> impl Iterator<Item = (QueueId, &Machine)> {
        self.queues.iter().map(|(&queue, entry)| (queue, &entry.machine))
    }

    /// One of the queues, for what only its own methods can do.
    pub fn queue_mut(&mut self, queue: QueueId) -> Option<&mut Machine> {
        self.queues.get_mut(&queue).map(|entry| &mut entry.machine)
    }

    /// Settles deliveries at once; their removal waits in the journal.
    pub fn settle(&mut self, queue: QueueId, consumer: ConsumerId, sequences: &Intervals, outcome: Outcome) {
        if let Some(entry) = self.queues.get_mut(&queue) {
            entry.machine.settle(consumer, sequences, outcome);
            self.journaled.push(queue);
            self.mark(queue);
        }
    }

    /// Carries out an op that is neither an enqueue nor a settle.
    pub fn execute<A: Admission>(&mut self, connection: u64, op: Op, admission: &mut A, effects: &mut Vec<Effect>) {
        self.command(connection, op, admission, effects);
    }

    /// Puts a message that is in the log into its queues: into memory, or (`hot` is false) only its place, unless somebody waits for
    /// it.
    /// Answers how many queues took it.
    pub fn enqueue_logged(
        &mut self,
        targets: &[QueueId],
        message: &Message,
        place: Place,
        chunk: Chunk,
        hot: bool,
    ) -> u64 {
        let mut taken = 0;
        for &queue in targets {
            let Some(entry) = self.queues.get_mut(&queue) else { continue };
            let machine = &mut entry.machine;
            let skip = machine.count_in_entry(chunk.file, chunk.offset);
            if !machine.is_cold() && (hot || machine.is_hungry()) {
                machine.enqueue(message.clone(), Some(place));
                self.memory.added += message.len() as u64;
            } else {
                machine.enqueue_cold(chunk, skip);
            }
            taken += 1;
            if !entry.dirty {
                entry.dirty = true;
                self.dirty.push(queue);
            }
        }
        taken
    }

    /// Takes messages out whose removal is in the log.
    pub fn remove(&mut self, queue: QueueId, sequences: &Intervals) {
        if let Some(entry) = self.queues.get_mut(&queue) {
            self.memory.removed += entry.machine.remove(sequences, &mut self.releases);
            self.mark(queue);
        }
    }

    /// What the durable queues want in the log since the last call.
    pub fn take_journals(&mut self, mut each: impl FnMut(QueueId, Journal)) {
        let mut journaled = std::mem::take(&mut self.journaled);
        for queue in journaled.drain(..) {
            if let Some(entry) = self.queues.get_mut(&queue) {
                let journal = entry.machine.take_journal();
                if journal != Journal::default() {
                    each(queue, journal);
                }
            }
        }
        self.journaled = journaled;
    }

    /// Bytes on disk that are needed no more, since the last call.
    pub fn take_releases(&mut self) -> Vec<Release> {
        std::mem::take(&mut self.releases)
    }

    /// Memory taken and given back since the last call.
    pub fn take_memory_change(&mut self) -> MemoryChange {
        std::mem::take(&mut self.memory)
    }

    // ---- within a turn ------------------------------------------------------------------------------------------------

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
                self.drop_queue(queue, effects);
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

    fn enqueue_one(&mut self, queue: QueueId, message: Message) {
        let Some(entry) = self.queues.get_mut(&queue) else { return };
        entry.machine.enqueue(message, None);
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
        if !self.queues.contains_key(&queue) {
            return answer(token, Reply::Gone, effects);
        }
        self.pump(queue, admission, effects);
        let machine = &mut self.queues.get_mut(&queue).expect("looked for above").machine;
        if machine.settings().durable {
            self.journaled.push(queue);
        }
        match op {
            Op::Count { .. } => answer(token, Reply::Counts(machine.counts()), effects),
            Op::Purge { .. } => {
                let ready = machine.counts().ready;
                let purged = machine.purge();
                if !machine.settings().durable {
                    machine.remove(&purged, &mut self.releases);
                }
                answer(token, Reply::Purged(ready), effects);
            }
            Op::Get { holder, no_ack, .. } => {
                while let Some(chunk) = machine.wanted_chunk() {
                    let messages = admission.read_chunk(queue, &chunk);
                    self.memory.added += machine.page_in(messages, &mut self.releases);
                }
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
                    self.drop_queue(queue, effects);
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
                    self.drop_queue(queue, effects);
                    answer(token, Reply::Deleted(counts.ready), effects);
                    effects.extend(consumers.into_iter().map(|consumer| Effect::CancelConsumer { consumer }));
                }
            }
            Op::Enqueue(_) | Op::Settle { .. } | Op::Create { .. } => unreachable!("carried out above"),
        }
    }

    fn drop_queue(&mut self, queue: QueueId, effects: &mut Vec<Effect>) {
        if let Some(mut entry) = self.queues.remove(&queue) {
            // A queue of the log gives back what it has there.
            self.memory.removed += entry.machine.forget_all(&mut self.releases);
        }
        if self.dirty.last() == Some(&queue) {
            self.dirty.pop();
        }
        effects.push(Effect::QueueGone { queue });
    }
}
