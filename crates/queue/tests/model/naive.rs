//! What a shard should do, written down as plainly as possible: lists that are searched from the front, counts that are
//! counted, a clock that says since when a consumer waits. Slow, and easy to check against the rules by reading.

use std::collections::{BTreeMap, BTreeSet};

use queue::{Admission, ConsumerId, ConsumerSpec, Counts, Message, Outcome, QueueId, Sequence, Settings};
use warrenmq_queue as queue;

/// What can be seen of a shard's effects on one queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seen {
    Deliver(ConsumerId, Sequence, bool, Vec<u8>),
    Got(Option<(Sequence, bool, Vec<u8>, u64)>),
    Counts(u64, u64, u32),
    Purged(u64),
    Deleted(u64),
    Attached,
    Detached,
    InUse,
    NotEmpty,
    Gone,
    Cancelled(ConsumerId),
    QueueGone,
}

/// Turns a consumer away when its allowance is used up; one without an allowance may have all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gate {
    allowances: BTreeMap<ConsumerId, u32>,
}

impl Gate {
    pub(crate) fn set(&mut self, consumer: ConsumerId, allowance: Option<u32>) {
        match allowance {
            Some(messages) => self.allowances.insert(consumer, messages),
            None => self.allowances.remove(&consumer),
        };
    }
}

impl Admission for Gate {
    fn admit(&mut self, consumer: ConsumerId, _bytes: usize) -> bool {
        match self.allowances.get_mut(&consumer) {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Ready,
    Out(ConsumerId),
}

#[derive(Debug)]
struct Entry {
    sequence: Sequence,
    message: Message,
    state: State,
    redelivered: bool,
}

#[derive(Debug)]
struct Waiter {
    id: ConsumerId,
    spec: ConsumerSpec,
    parked: bool,
    /// When it last joined those who wait for a message; `None` while it can take none.
    since: Option<u64>,
}

#[derive(Debug)]
struct Naive {
    settings: Settings,
    /// Live messages, by sequence.
    messages: Vec<Entry>,
    next: u64,
    /// In order of arrival.
    consumers: Vec<Waiter>,
    clock: u64,
    seen: Vec<Seen>,
}

impl Naive {
    fn new(settings: Settings) -> Self {
        Self { settings, messages: Vec::new(), next: 0, consumers: Vec::new(), clock: 0, seen: Vec::new() }
    }

    fn ready(&self) -> u64 {
        self.messages.iter().filter(|entry| entry.state == State::Ready).count() as u64
    }

    fn out_with(&self, holder: ConsumerId) -> u32 {
        self.messages.iter().filter(|entry| entry.state == State::Out(holder)).count() as u32
    }

    fn counts(&self) -> Counts {
        let ready = self.ready();
        let unacked = self.messages.len() as u64 - ready;
        Counts { ready, unacked, consumers: self.consumers.len() as u32 }
    }

    fn holders(&self) -> BTreeSet<ConsumerId> {
        let consumers = self.consumers.iter().map(|consumer| consumer.id);
        let others = self.messages.iter().filter_map(|entry| match entry.state {
            State::Out(holder) => Some(holder),
            State::Ready => None,
        });
        consumers.chain(others).collect()
    }

    /// Who can take a message joins the end of the waiting, if it does not stand there; who cannot leaves.
    fn line_up(&mut self) {
        for at in 0..self.consumers.len() {
            let Waiter { id, spec, parked, .. } = self.consumers[at];
            let active = at == 0 || !self.settings.single_active_consumer;
            let room = spec.no_ack || spec.prefetch == 0 || self.out_with(id) < spec.prefetch;
            let since = &mut self.consumers[at].since;
            if !active || parked || !room {
                *since = None;
            } else if since.is_none() {
                *since = Some(self.clock);
                self.clock += 1;
            }
        }
    }

    /// Takes the oldest ready message out for `holder`.
    fn take(&mut self, holder: ConsumerId, no_ack: bool) -> Option<(Sequence, bool, Vec<u8>)> {
        let at = self.messages.iter().position(|entry| entry.state == State::Ready)?;
        let entry = &mut self.messages[at];
        let taken = (entry.sequence, entry.redelivered, bytes(&entry.message));
        if no_ack {
            self.messages.remove(at);
        } else {
            entry.state = State::Out(holder);
        }
        Some(taken)
    }

    fn pump(&mut self, gate: &mut Gate) {
        self.line_up();
        while self.ready() > 0 {
            let waiting = self.consumers.iter_mut().filter(|consumer| consumer.since.is_some());
            let Some(consumer) = waiting.min_by_key(|consumer| (-i64::from(consumer.spec.priority), consumer.since))
            else {
                break;
            };
            let (id, no_ack) = (consumer.id, consumer.spec.no_ack);
            consumer.since = None;
            if gate.admit(id, 0) {
                let (sequence, redelivered, bytes) = self.take(id, no_ack).expect("a message is ready");
                self.seen.push(Seen::Deliver(id, sequence, redelivered, bytes));
            } else {
                consumer.parked = true;
            }
            self.line_up();
        }
    }

    fn requeue(&mut self, holder: ConsumerId, which: impl Fn(Sequence) -> bool) {
        for entry in &mut self.messages {
            if entry.state == State::Out(holder) && which(entry.sequence) {
                entry.state = State::Ready;
                entry.redelivered = true;
            }
        }
    }

    /// Answers whether the queue goes with its last consumer.
    fn detach(&mut self, holder: ConsumerId, requeue: bool) -> bool {
        let before = self.consumers.len();
        self.consumers.retain(|consumer| consumer.id != holder);
        if requeue {
            self.requeue(holder, |_| true);
        }
        self.line_up();
        self.settings.auto_delete && before > 0 && self.consumers.len() < before && self.consumers.is_empty()
    }
}

/// A message as one run of bytes, with the lengths of its parts in front.
pub(crate) fn bytes(message: &Message) -> Vec<u8> {
    let lengths = [message.envelope().len() as u8, message.properties().len() as u8];
    [&lengths, message.envelope(), message.properties(), message.body_bytes()].concat()
}

/// A shard.
#[derive(Debug, Default)]
pub(crate) struct Model {
    queues: BTreeMap<QueueId, Naive>,
    /// What was seen of queues that are gone since.
    gone: BTreeMap<QueueId, Vec<Seen>>,
    pub(crate) gate: Gate,
}

impl Model {
    pub(crate) fn create(&mut self, queue: QueueId, settings: Settings) {
        self.queues.entry(queue).or_insert_with(|| Naive::new(settings));
    }

    pub(crate) fn counts(&self) -> Vec<(QueueId, Counts)> {
        self.queues.iter().map(|(&id, queue)| (id, queue.counts())).collect()
    }

    /// Everyone who consumes or holds a message.
    pub(crate) fn holders(&self) -> Vec<(QueueId, ConsumerId)> {
        self.queues
            .iter()
            .flat_map(|(&id, queue)| queue.holders().into_iter().map(move |holder| (id, holder)))
            .collect()
    }

    /// What is out with `holder`, by sequence.
    pub(crate) fn out_with(&self, queue: QueueId, holder: ConsumerId) -> Vec<Sequence> {
        let entries = self.queues.get(&queue).into_iter().flat_map(|queue| &queue.messages);
        entries.filter(|entry| entry.state == State::Out(holder)).map(|entry| entry.sequence).collect()
    }

    pub(crate) fn enqueue(&mut self, queues: &[QueueId], message: &Message) {
        for id in queues {
            if let Some(queue) = self.queues.get_mut(id) {
                let sequence = Sequence(queue.next);
                queue.next += 1;
                let (message, state) = (message.clone(), State::Ready);
                queue.messages.push(Entry { sequence, message, state, redelivered: false });
            }
        }
    }

    pub(crate) fn settle(&mut self, queue: QueueId, holder: ConsumerId, outcome: Outcome, sequences: &[Sequence]) {
        let Some(queue) = self.queues.get_mut(&queue) else { return };
        match outcome {
            Outcome::Requeue => queue.requeue(holder, |sequence| sequences.contains(&sequence)),
            Outcome::Ack | Outcome::Discard => {
                queue.messages.retain(|entry| entry.state != State::Out(holder) || !sequences.contains(&entry.sequence))
            }
        }
        queue.line_up();
    }

    /// The queue, after it delivered what it can: any command sees what its consumers left. Without a queue the answer is `Gone`.
    fn command(&mut self, id: QueueId) -> Option<&mut Naive> {
        match self.queues.get_mut(&id) {
            Some(queue) => {
                queue.pump(&mut self.gate);
                Some(queue)
            }
            None => {
                self.gone.entry(id).or_default().push(Seen::Gone);
                None
            }
        }
    }

    pub(crate) fn count(&mut self, id: QueueId) {
        let Some(queue) = self.command(id) else { return };
        let Counts { ready, unacked, consumers } = queue.counts();
        queue.seen.push(Seen::Counts(ready, unacked, consumers));
    }

    pub(crate) fn get(&mut self, id: QueueId, holder: ConsumerId, no_ack: bool) {
        let Some(queue) = self.command(id) else { return };
        let got = queue.take(holder, no_ack);
        let remaining = queue.ready();
        queue.seen.push(Seen::Got(got.map(|(sequence, again, bytes)| (sequence, again, bytes, remaining))));
    }

    pub(crate) fn purge(&mut self, id: QueueId) {
        let Some(queue) = self.command(id) else { return };
        let ready = queue.ready();
        queue.messages.retain(|entry| entry.state != State::Ready);
        queue.seen.push(Seen::Purged(ready));
    }

    pub(crate) fn attach(&mut self, id: QueueId, consumer: ConsumerId, spec: ConsumerSpec) {
        let Some(queue) = self.command(id) else { return };
        let alone = queue.consumers.iter().any(|other| other.spec.exclusive);
        let cannot_be = !queue.consumers.is_empty() || queue.settings.single_active_consumer;
        if alone || (spec.exclusive && cannot_be) {
            queue.seen.push(Seen::InUse);
            return;
        }
        queue.consumers.push(Waiter { id: consumer, spec, parked: false, since: None });
        queue.line_up();
        queue.seen.push(Seen::Attached);
    }

    pub(crate) fn detach(&mut self, id: QueueId, holder: ConsumerId, requeue: bool) {
        let Some(queue) = self.command(id) else { return };
        if queue.detach(holder, requeue) {
            self.drop_queue(id, &[Seen::QueueGone, Seen::Detached]);
        } else {
            queue.seen.push(Seen::Detached);
        }
    }

    pub(crate) fn resume(&mut self, id: QueueId, consumer: ConsumerId) {
        // There is no answer to this one, not even that the queue is gone.
        if !self.queues.contains_key(&id) {
            return;
        }
        let Some(queue) = self.command(id) else { return };
        for other in &mut queue.consumers {
            other.parked &= other.id != consumer;
        }
        queue.line_up();
    }

    pub(crate) fn delete(&mut self, id: QueueId, if_unused: bool, if_empty: bool) {
        let Some(queue) = self.command(id) else { return };
        let ready = queue.ready();
        if if_unused && !queue.consumers.is_empty() {
            queue.seen.push(Seen::InUse);
        } else if if_empty && ready > 0 {
            queue.seen.push(Seen::NotEmpty);
        } else {
            let mut seen = vec![Seen::QueueGone, Seen::Deleted(ready)];
            let mut cancelled: Vec<_> = queue.consumers.iter().map(|consumer| Seen::Cancelled(consumer.id)).collect();
            cancelled.sort();
            seen.append(&mut cancelled);
            self.drop_queue(id, &seen);
        }
    }

    pub(crate) fn forget_connection(&mut self, connection: u64) {
        let ids: Vec<QueueId> = self.queues.keys().copied().collect();
        for id in ids {
            let queue = self.queues.get_mut(&id).expect("listed above");
            let mut goes = false;
            for holder in queue.holders().into_iter().filter(|holder| holder.connection == connection) {
                goes |= queue.detach(holder, true);
            }
            if goes {
                self.drop_queue(id, &[Seen::QueueGone]);
            }
        }
    }

    /// Everything that can be delivered is; then what was seen of each queue since the last time.
    pub(crate) fn finish(&mut self) -> BTreeMap<QueueId, Vec<Seen>> {
        let mut all = std::mem::take(&mut self.gone);
        for (&id, queue) in &mut self.queues {
            queue.pump(&mut self.gate);
            all.entry(id).or_default().append(&mut queue.seen);
        }
        all.retain(|_, seen| !seen.is_empty());
        all
    }

    fn drop_queue(&mut self, id: QueueId, last: &[Seen]) {
        let mut queue = self.queues.remove(&id).expect("only queues that are there are dropped");
        queue.seen.extend_from_slice(last);
        self.gone.entry(id).or_default().append(&mut queue.seen);
    }
}
