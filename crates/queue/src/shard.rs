//! Many queues and the ops on them: what one shard task owns.

use std::collections::BTreeSet;

use bytes::Bytes;
use rustc_hash::FxHashMap;

use crate::{
    Admission, Batch, Chunk, ConsumerId, Effect, Enqueue, Intervals, Journal, Machine, Message, Op, Outcome, Place,
    QueueId, Release, Reply, Stamp, Token,
};

/// The queues of a shard.
#[derive(Debug, Default)]
pub struct Shard {
    queues: FxHashMap<QueueId, Entry>,
    /// Queues that may have something to deliver, each once.
    dirty: Vec<QueueId>,
    /// Durable queues whose journal may have something, perhaps more than once.
    journaled: Vec<QueueId>,
    accounts: Accounts,
    /// The time of this turn, in milliseconds since 1970.
    now: u64,
    /// When queues want to be looked at though nobody asks anything of them; each at most once.
    timers: BTreeSet<(u64, QueueId)>,
}

/// A message that is in the log, on its way into queues.
#[derive(Clone, Copy, Debug)]
pub struct Logged<'a> {
    /// Where it goes.
    pub targets: &'a [QueueId],
    /// The message.
    pub message: &'a Message,
    /// What it said when it was published.
    pub stamp: Stamp,
    /// Where it lies.
    pub place: Place,
    /// Its entry.
    pub chunk: Chunk,
    /// Whether it may stay in memory.
    pub hot: bool,
}

/// What became of a [`Logged`] message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// How many queues hold its bytes on disk now.
    pub queues: u64,
    /// A queue was full and refused it.
    pub refused: bool,
}

/// How much memory the messages of a shard's durable queues took and gave back, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryChange {
    /// Came into memory.
    pub added: u64,
    /// Went out of it.
    pub removed: u64,
}

/// What queues took and gave back since somebody asked.
#[derive(Debug, Default)]
struct Accounts {
    releases: Vec<Release>,
    memory: MemoryChange,
}

#[derive(Debug)]
struct Entry {
    machine: Machine,
    dirty: bool,
    /// Its place among the shard's timers.
    timer: Option<u64>,
}

impl Entry {
    fn new(machine: Machine) -> Self {
        Self { machine, dirty: false, timer: None }
    }

    /// Puts the queue, once, among those to be looked at.
    fn mark_dirty(&mut self, queue: QueueId, dirty: &mut Vec<QueueId>) {
        if !self.dirty {
            self.dirty = true;
            dirty.push(queue);
        }
    }

    /// Brings the first chunk back from disk.
    fn page_in<A: Admission>(&mut self, queue: QueueId, chunk: &Chunk, admission: &mut A, accounts: &mut Accounts) {
        let messages = admission.read_chunk(queue, chunk);
        accounts.memory.added += self.machine.page_in(messages, &mut accounts.releases);
    }

    /// Delivers what the queue can, bringing back from disk what it needs.
    fn pump<A: Admission>(
        &mut self,
        queue: QueueId,
        admission: &mut A,
        accounts: &mut Accounts,
        effects: &mut Vec<Effect>,
    ) {
        loop {
            self.machine.pump(usize::MAX, admission, effects);
            let Some(chunk) = self.machine.wanted_chunk().filter(|_| self.machine.can_deliver()) else { return };
            self.page_in(queue, &chunk, admission, accounts);
        }
    }

    /// Whether the queue refuses a message with such a body, after it delivered what it could.
    fn refuses<A: Admission>(
        &mut self,
        queue: QueueId,
        body_bytes: u64,
        admission: &mut A,
        accounts: &mut Accounts,
        effects: &mut Vec<Effect>,
    ) -> bool {
        if !self.machine.is_full_for(body_bytes) {
            return false;
        }
        self.pump(queue, admission, accounts, effects);
        self.machine.is_full_for(body_bytes)
    }
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

    // ---- time -------------------------------------------------------------------------------------------------------

    /// What time it is, in milliseconds since 1970: said before each turn. Time that went back stands still.
    pub fn set_now(&mut self, now_ms: u64) {
        self.now = self.now.max(now_ms);
        while let Some(&(deadline, queue)) = self.timers.first()
            && deadline <= self.now
        {
            self.timers.pop_first();
            if let Some(entry) = self.queues.get_mut(&queue) {
                entry.timer = None;
            }
            self.mark(queue);
        }
    }

    /// When the shard wants to know what time it is, if nothing is asked of it before.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        self.timers.first().map(|&(deadline, _)| deadline)
    }

    /// The queues that were restored are in use from now on.
    pub fn begin(&mut self, now_ms: u64) {
        self.set_now(now_ms);
        let queues: Vec<QueueId> = self.queues.keys().copied().collect();
        for queue in queues {
            self.queues.get_mut(&queue).expect("just listed").machine.begin(self.now);
            self.mark(queue);
        }
    }

    // ---- ops --------------------------------------------------------------------------------------------------------

    /// Carries out a batch, in order, and appends what it asks of the world. Deliveries that its messages give rise to
    /// wait until [`Shard::deliver`], so that many batches share them.
    pub fn apply<A: Admission>(&mut self, batch: Batch, admission: &mut A, effects: &mut Vec<Effect>) {
        let Batch { connection, number, ops, buffers, .. } = batch;
        for op in ops {
            match op {
                Op::Enqueue(enqueue) => {
                    if self.enqueue(&enqueue, &buffers, admission, effects) && enqueue.publish != 0 {
                        effects.push(Effect::Rejected { connection, number, publish: enqueue.publish });
                    }
                }
                Op::Settle { queue, consumer, outcome, sequences } => {
                    if let Some(entry) = self.queues.get_mut(&queue) {
                        let settled = entry.machine.settle(consumer, &sequences, outcome);
                        if outcome != Outcome::Requeue {
                            entry.machine.remove(&settled, &mut self.accounts.releases);
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
                self.service(queue, admission, effects);
                if durable {
                    self.journaled.push(queue);
                }
            }
        }
    }

    /// Does what one queue has to do: delivers, and if there is more, that. Answers `false` if the queue ended.
    fn service<A: Admission>(&mut self, queue: QueueId, admission: &mut A, effects: &mut Vec<Effect>) -> bool {
        let Self { queues, accounts, timers, .. } = self;
        let Some(entry) = queues.get_mut(&queue) else { return false };
        if !entry.machine.has_upkeep() {
            entry.pump(queue, admission, accounts, effects);
            return true;
        }
        entry.machine.set_now(self.now);
        if entry.machine.is_abandoned() {
            self.drop_queue(queue, effects);
            return false;
        }
        while entry.machine.has_priorities()
            && let Some(chunk) = entry.machine.chunk_for_upkeep()
        {
            entry.page_in(queue, &chunk, admission, accounts);
        }
        entry.machine.expire(false);
        entry.pump(queue, admission, accounts, effects);
        loop {
            entry.machine.shed();
            let Some(chunk) = entry.machine.chunk_for_upkeep() else { break };
            entry.page_in(queue, &chunk, admission, accounts);
        }
        entry.machine.post(effects);
        entry.machine.end_turn();
        let deadline = entry.machine.deadline();
        if entry.timer != deadline {
            if let Some(old) = entry.timer {
                timers.remove(&(old, queue));
            }
            timers.extend(deadline.map(|deadline| (deadline, queue)));
            entry.timer = deadline;
        }
        true
    }

    // ---- durable queues: the steps of which a shard with a log makes its turn -------------------------------------------

    /// Makes a queue from a snapshot, or an empty one.
    pub fn restore(&mut self, queue: QueueId, machine: Machine) {
        self.queues.insert(queue, Entry::new(machine));
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

    /// Puts a message that is in the log into its queues: into memory, or (if it is not hot) only its place, unless somebody waits for
    /// it.
    pub fn enqueue_logged<A: Admission>(
        &mut self,
        logged: &Logged<'_>,
        admission: &mut A,
        effects: &mut Vec<Effect>,
    ) -> Taken {
        let &Logged { targets, message, stamp, place, chunk, hot } = logged;
        let Self { queues, accounts, dirty, .. } = self;
        let mut taken = Taken::default();
        for &queue in targets {
            let Some(entry) = queues.get_mut(&queue) else { continue };
            taken.queues += 1;
            let skip = entry.machine.count_in_entry(chunk.file, chunk.offset);
            let refused = entry.refuses(queue, message.body_len() as u64, admission, accounts, effects);
            let machine = &mut entry.machine;
            let stays = !machine.is_cold() && (hot || machine.is_hungry() || machine.has_priorities());
            match (refused, stays) {
                (false, true) => {
                    machine.enqueue(message.clone(), stamp, Some(place));
                }
                (false, false) => machine.enqueue_cold(chunk, skip),
                (true, true) => machine.refuse(message.clone(), stamp, Some(place)),
                (true, false) => machine.refuse_cold(message, chunk, skip),
            }
            if stays {
                accounts.memory.added += message.len() as u64;
            }
            taken.refused |= refused;
            entry.mark_dirty(queue, dirty);
        }
        taken
    }

    /// Takes messages out whose removal is in the log.
    pub fn remove(&mut self, queue: QueueId, sequences: &Intervals) {
        if let Some(entry) = self.queues.get_mut(&queue) {
            self.accounts.memory.removed += entry.machine.remove(sequences, &mut self.accounts.releases);
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
        std::mem::take(&mut self.accounts.releases)
    }

    /// Memory taken and given back since the last call.
    pub fn take_memory_change(&mut self) -> MemoryChange {
        std::mem::take(&mut self.accounts.memory)
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
                machine.used(self.now);
                was_consumer |= machine.detach(holder, true);
            }
            if was_consumer && machine.settings().auto_delete && machine.counts().consumers == 0 {
                self.drop_queue(queue, effects);
            } else {
                self.mark(queue);
            }
        }
    }

    /// Answers whether a queue was full and refused it.
    fn enqueue<A: Admission>(
        &mut self,
        enqueue: &Enqueue,
        buffers: &[Bytes],
        admission: &mut A,
        effects: &mut Vec<Effect>,
    ) -> bool {
        // A batch is made by this node's connections: a reference that points nowhere is a fault of ours.
        let message = enqueue.message.resolve(buffers).expect("a message lies in its batch's buffers");
        let stamp = Stamp { enqueued_at_ms: self.now, ttl_ms: enqueue.ttl_ms, priority: enqueue.priority };
        let (last, others) = enqueue.targets.as_slice().split_last().expect("a message has a target");
        let mut refused = false;
        for queue in others {
            refused |= self.enqueue_one(*queue, message.clone(), stamp, admission, effects);
        }
        refused | self.enqueue_one(*last, message, stamp, admission, effects)
    }

    fn enqueue_one<A: Admission>(
        &mut self,
        queue: QueueId,
        message: Message,
        stamp: Stamp,
        admission: &mut A,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Self { queues, accounts, dirty, .. } = self;
        let Some(entry) = queues.get_mut(&queue) else { return false };
        let refused = entry.refuses(queue, message.body_len() as u64, admission, accounts, effects);
        if refused {
            entry.machine.refuse(message, stamp, None);
        } else {
            entry.machine.enqueue(message, stamp, None);
        }
        entry.mark_dirty(queue, dirty);
        refused
    }

    fn mark(&mut self, queue: QueueId) {
        if let Some(entry) = self.queues.get_mut(&queue)
            && (entry.machine.can_deliver() || entry.machine.has_upkeep())
        {
            entry.mark_dirty(queue, &mut self.dirty);
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
            let now = self.now;
            self.queues.entry(queue).or_insert_with(|| {
                let mut machine = Machine::new(queue, settings);
                machine.used(now);
                Entry::new(machine)
            });
            return self.mark(queue);
        }
        let (queue, token) = match &op {
            Op::Delete { queue, token, .. }
            | Op::Purge { queue, token }
            | Op::Attach { queue, token, .. }
            | Op::Detach { queue, token, .. } => (*queue, *token),
            Op::Count { queue, token } | Op::Declared { queue, token } | Op::Get { queue, token, .. } => {
                (*queue, Some(*token))
            }
            Op::Resume { queue, .. } | Op::Configure { queue, .. } | Op::Posted { queue, .. } => (*queue, None),
            Op::Enqueue(_) | Op::Settle { .. } | Op::Create { .. } => unreachable!("carried out above"),
        };
        if !self.queues.contains_key(&queue) || !self.service(queue, admission, effects) {
            return answer(token, Reply::Gone, effects);
        }
        let now = self.now;
        let entry = self.queues.get_mut(&queue).expect("looked for above");
        let machine = &mut entry.machine;
        if machine.settings().durable {
            self.journaled.push(queue);
        }
        match op {
            Op::Count { .. } => answer(token, Reply::Counts(machine.counts()), effects),
            Op::Declared { .. } => {
                machine.declared(now);
                answer(token, Reply::Counts(machine.counts()), effects);
                self.mark(queue);
            }
            Op::Configure { settings, .. } => {
                machine.configure(settings, now);
                self.mark(queue);
            }
            Op::Posted { sequences, .. } => {
                machine.posted(&sequences);
                self.mark(queue);
            }
            Op::Purge { .. } => {
                let ready = machine.counts().ready;
                let purged = machine.purge();
                if !machine.settings().durable {
                    machine.remove(&purged, &mut self.accounts.releases);
                }
                answer(token, Reply::Purged(ready), effects);
                self.mark(queue);
            }
            Op::Get { holder, no_ack, .. } => {
                entry.machine.used(now);
                while let Some(chunk) = entry.machine.wanted_chunk() {
                    entry.page_in(queue, &chunk, admission, &mut self.accounts);
                    entry.machine.expire(false);
                }
                let got = entry.machine.get(holder, no_ack);
                answer(token, Reply::Get(got), effects);
                self.mark(queue);
            }
            Op::Attach { consumer, spec, .. } => {
                machine.used(now);
                let reply = if machine.attach(consumer, spec).is_ok() { Reply::Attached } else { Reply::InUse };
                answer(token, reply, effects);
                self.mark(queue);
            }
            Op::Detach { consumer, requeue, .. } => {
                machine.used(now);
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
            if let Some(deadline) = entry.timer {
                self.timers.remove(&(deadline, queue));
            }
            // A queue of the log gives back what it has there.
            self.accounts.memory.removed += entry.machine.forget_all(&mut self.accounts.releases);
        }
        if self.dirty.last() == Some(&queue) {
            self.dirty.pop();
        }
        effects.push(Effect::QueueGone { queue });
    }
}
