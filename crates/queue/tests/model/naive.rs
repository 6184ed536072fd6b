//! What a shard should do, written down as plainly as possible: lists that are searched from the front, counts that are
//! counted, a clock that says since when a consumer waits. Slow, and easy to check against the rules by reading.

use std::collections::{BTreeMap, BTreeSet};

use queue::{
    Admission, ConsumerId, ConsumerSpec, Counts, Message, Outcome, Overflow, QueueId, Reason, Rules, Sequence,
    Settings, Stamp,
};
use warrenmq_queue as queue;

/// What can be seen of a shard's effects on one queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Seen {
    Deliver(ConsumerId, Sequence, bool, u32, Vec<u8>),
    Got(Option<(Sequence, bool, u32, Vec<u8>, u64)>),
    Letter(Sequence, Reason, Vec<u8>),
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
    Leaving,
}

#[derive(Debug)]
struct Entry {
    sequence: Sequence,
    message: Message,
    state: State,
    redelivered: bool,
    failures: u32,
    stamp: Stamp,
    /// It came since the queue was last looked after.
    fresh: bool,
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
    used_at: u64,
    letters: Vec<(Sequence, Reason)>,
}

impl Naive {
    fn new(settings: Settings, now: u64) -> Self {
        Self {
            settings,
            messages: Vec::new(),
            next: 0,
            consumers: Vec::new(),
            clock: 0,
            seen: Vec::new(),
            used_at: now,
            letters: Vec::new(),
        }
    }

    fn rules(&self) -> Rules {
        self.settings.rules.as_deref().cloned().unwrap_or_default()
    }

    /// Ready messages in the order in which they go: highest priority first.
    fn line(&self) -> Vec<usize> {
        let max = self.rules().max_priority.unwrap_or(0);
        let mut line: Vec<usize> =
            (0..self.messages.len()).filter(|&at| self.messages[at].state == State::Ready).collect();
        line.sort_by_key(|&at| (max - self.messages[at].stamp.priority.min(max), self.messages[at].sequence));
        line
    }

    fn deadline(&self, at: usize) -> Option<u64> {
        self.messages[at].stamp.deadline(self.rules().message_ttl_ms)
    }

    /// The first of the line, and in a queue with priorities the first of each.
    fn heads(&self) -> Vec<usize> {
        let max = self.rules().max_priority.unwrap_or(0);
        let mut heads: Vec<usize> = Vec::new();
        for at in self.line() {
            let priority = |at: usize| self.messages[at].stamp.priority.min(max);
            if heads.last().is_none_or(|&head| priority(head) != priority(at)) {
                heads.push(at);
            }
        }
        heads
    }

    fn dispose(&mut self, at: usize, reason: Reason) {
        if self.rules().dead_letters {
            self.messages[at].state = State::Leaving;
            self.letters.push((self.messages[at].sequence, reason));
        } else {
            self.messages.remove(at);
        }
    }

    fn is_stale(&self, at: usize, now: u64, fresh_too: bool) -> bool {
        (fresh_too || !self.messages[at].fresh) && self.deadline(at).is_some_and(|deadline| deadline <= now)
    }

    fn expire(&mut self, now: u64, fresh_too: bool) {
        while let Some(at) = self.heads().into_iter().find(|&at| self.is_stale(at, now, fresh_too)) {
            self.dispose(at, Reason::Expired);
        }
    }

    fn is_beyond(&self, more: u64, bytes: u64) -> bool {
        let rules = self.rules();
        let body = |at: &usize| self.messages[*at].message.body_len() as u64;
        let bytes = bytes + self.line().iter().map(body).sum::<u64>();
        rules.max_length.is_some_and(|max| self.ready() + more > max)
            || rules.max_length_bytes.is_some_and(|max| bytes > max)
    }

    fn is_full_for(&self, message: &Message) -> bool {
        self.rules().overflow != Overflow::DropHead && self.is_beyond(1, message.body_len() as u64)
    }

    fn is_abandoned(&self, now: u64) -> bool {
        self.consumers.is_empty() && self.rules().expires_ms.is_some_and(|ms| self.used_at + ms <= now)
    }

    /// All that the queue does by itself.
    fn service(&mut self, now: u64, gate: &mut Gate) {
        self.expire(now, false);
        self.pump(now, gate);
        self.expire(now, true);
        while self.rules().overflow == Overflow::DropHead && self.is_beyond(0, 0) {
            self.dispose(self.line()[0], Reason::MaxLen);
        }
        // What was hidden behind those.
        self.expire(now, true);
        for (sequence, reason) in std::mem::take(&mut self.letters) {
            let entry = self.messages.iter().find(|entry| entry.sequence == sequence).expect("letters are live");
            self.seen.push(Seen::Letter(sequence, reason, bytes(&entry.message)));
        }
        self.messages.iter_mut().for_each(|entry| entry.fresh = false);
    }

    /// When it does something by itself, if nobody asks it for anything.
    fn timer(&self) -> Option<u64> {
        let heads = self.heads();
        let unused = self.rules().expires_ms.filter(|_| self.consumers.is_empty()).map(|ms| self.used_at + ms);
        heads.into_iter().filter_map(|at| self.deadline(at)).chain(unused).min()
    }

    fn ready(&self) -> u64 {
        self.messages.iter().filter(|entry| entry.state == State::Ready).count() as u64
    }

    fn out_with(&self, holder: ConsumerId) -> u32 {
        self.messages.iter().filter(|entry| entry.state == State::Out(holder)).count() as u32
    }

    fn counts(&self) -> Counts {
        let ready = self.ready();
        let unacked = self.messages.iter().filter(|entry| matches!(entry.state, State::Out(_))).count() as u64;
        Counts { ready, unacked, consumers: self.consumers.len() as u32 }
    }

    fn holders(&self) -> BTreeSet<ConsumerId> {
        let consumers = self.consumers.iter().map(|consumer| consumer.id);
        let others = self.messages.iter().filter_map(|entry| match entry.state {
            State::Out(holder) => Some(holder),
            State::Ready | State::Leaving => None,
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

    /// Takes the next ready message out for `holder`.
    fn take(&mut self, holder: ConsumerId, no_ack: bool) -> Option<(Sequence, bool, u32, Vec<u8>)> {
        let at = *self.line().first()?;
        let entry = &mut self.messages[at];
        let taken = (entry.sequence, entry.redelivered, entry.failures, bytes(&entry.message));
        if no_ack {
            self.messages.remove(at);
        } else {
            entry.state = State::Out(holder);
        }
        Some(taken)
    }

    fn pump(&mut self, now: u64, gate: &mut Gate) {
        self.line_up();
        while self.ready() > 0 {
            if self.consumers.iter().any(|consumer| consumer.since.is_some())
                && self.is_stale(self.line()[0], now, false)
            {
                self.expire(now, false);
                continue;
            }
            let waiting = self.consumers.iter_mut().filter(|consumer| consumer.since.is_some());
            let Some(consumer) = waiting.min_by_key(|consumer| (-i64::from(consumer.spec.priority), consumer.since))
            else {
                break;
            };
            let (id, no_ack) = (consumer.id, consumer.spec.no_ack);
            consumer.since = None;
            if gate.admit(id, 0) {
                let (sequence, redelivered, failures, bytes) = self.take(id, no_ack).expect("a message is ready");
                self.seen.push(Seen::Deliver(id, sequence, redelivered, failures, bytes));
            } else {
                consumer.parked = true;
            }
            self.line_up();
        }
    }

    /// In the order of `sequences`.
    fn requeue(&mut self, holder: ConsumerId, sequences: &[Sequence]) {
        let limit = self.rules().delivery_limit;
        for sequence in sequences {
            let out = |entry: &Entry| entry.state == State::Out(holder) && entry.sequence == *sequence;
            let Some(at) = self.messages.iter().position(out) else { continue };
            let entry = &mut self.messages[at];
            entry.failures += u32::from(limit.is_some());
            if limit.is_some_and(|limit| entry.failures > limit) {
                self.dispose(at, Reason::DeliveryLimit);
            } else {
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
            let all: Vec<Sequence> = self.messages.iter().map(|entry| entry.sequence).collect();
            self.requeue(holder, &all);
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
    pub(crate) now: u64,
}

impl Model {
    pub(crate) fn create(&mut self, queue: QueueId, settings: Settings) {
        let now = self.now;
        self.queues.entry(queue).or_insert_with(|| Naive::new(settings, now));
    }

    /// When some queue does something by itself.
    pub(crate) fn timer(&self) -> Option<u64> {
        self.queues.values().filter_map(Naive::timer).min()
    }

    /// Letters that were handed out and have not arrived.
    pub(crate) fn letters(&self) -> Vec<(QueueId, Sequence)> {
        let leaving = |queue: &Naive| -> Vec<Sequence> {
            queue.messages.iter().filter(|entry| entry.state == State::Leaving).map(|entry| entry.sequence).collect()
        };
        self.queues.iter().flat_map(|(&id, queue)| leaving(queue).into_iter().map(move |at| (id, at))).collect()
    }

    pub(crate) fn posted(&mut self, id: QueueId, sequence: Sequence) {
        if !self.queues.contains_key(&id) {
            return;
        }
        match self.command(id) {
            Some(queue) => queue.messages.retain(|entry| entry.sequence != sequence || entry.state != State::Leaving),
            None => drop(self.gone.get_mut(&id).expect("it has just gone").pop()),
        }
    }

    pub(crate) fn declared(&mut self, id: QueueId) {
        let now = self.now;
        let Some(queue) = self.command(id) else { return };
        if !queue.rules().expires_though_declared {
            queue.used_at = now;
        }
        let Counts { ready, unacked, consumers } = queue.counts();
        queue.seen.push(Seen::Counts(ready, unacked, consumers));
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

    /// Answers whether a queue was full and refused it.
    pub(crate) fn enqueue(&mut self, queues: &[QueueId], message: &Message, stamp: Stamp) -> bool {
        let mut refused = false;
        for id in queues {
            let Some(queue) = self.queues.get_mut(id) else { continue };
            let mut full = queue.is_full_for(message);
            if full {
                queue.pump(self.now, &mut self.gate);
                full = queue.is_full_for(message);
            }
            refused |= full;
            let rules = queue.rules();
            if full && !(rules.overflow == Overflow::RejectPublishDlx && rules.dead_letters) {
                continue;
            }
            let sequence = Sequence(queue.next);
            queue.next += 1;
            let (message, state) = (message.clone(), State::Ready);
            let entry = Entry { sequence, message, state, redelivered: false, failures: 0, stamp, fresh: true };
            queue.messages.push(entry);
            if full {
                queue.dispose(queue.messages.len() - 1, Reason::MaxLen);
            }
        }
        refused
    }

    pub(crate) fn settle(&mut self, queue: QueueId, holder: ConsumerId, outcome: Outcome, sequences: &[Sequence]) {
        let Some(queue) = self.queues.get_mut(&queue) else { return };
        match outcome {
            Outcome::Requeue => queue.requeue(holder, sequences),
            Outcome::Ack | Outcome::Discard => {
                for sequence in sequences {
                    let out = |entry: &Entry| entry.state == State::Out(holder) && entry.sequence == *sequence;
                    match queue.messages.iter().position(out) {
                        Some(at) if outcome == Outcome::Discard => queue.dispose(at, Reason::Rejected),
                        Some(at) => drop(queue.messages.remove(at)),
                        None => {}
                    }
                }
            }
        }
        queue.line_up();
    }

    /// The queue, after it delivered what it can: any command sees what its consumers left. Without a queue the answer is `Gone`.
    fn command(&mut self, id: QueueId) -> Option<&mut Naive> {
        if self.queues.get(&id).is_some_and(|queue| queue.is_abandoned(self.now)) {
            self.drop_queue(id, &[Seen::QueueGone]);
        }
        match self.queues.get_mut(&id) {
            Some(queue) => {
                queue.service(self.now, &mut self.gate);
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
        let now = self.now;
        let Some(queue) = self.command(id) else { return };
        queue.used_at = now;
        let got = queue.take(holder, no_ack);
        let remaining = queue.ready();
        let got = got.map(|(sequence, again, failures, bytes)| (sequence, again, failures, bytes, remaining));
        queue.seen.push(Seen::Got(got));
    }

    pub(crate) fn purge(&mut self, id: QueueId) {
        let Some(queue) = self.command(id) else { return };
        let ready = queue.ready();
        queue.messages.retain(|entry| entry.state != State::Ready);
        queue.seen.push(Seen::Purged(ready));
    }

    pub(crate) fn attach(&mut self, id: QueueId, consumer: ConsumerId, spec: ConsumerSpec) {
        let now = self.now;
        let Some(queue) = self.command(id) else { return };
        queue.used_at = now;
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
        let now = self.now;
        let Some(queue) = self.command(id) else { return };
        queue.used_at = now;
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
        let Some(queue) = self.command(id) else {
            self.gone.get_mut(&id).expect("it has just gone").pop();
            return;
        };
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
                queue.used_at = self.now;
                goes |= queue.detach(holder, true);
            }
            if goes {
                self.drop_queue(id, &[Seen::QueueGone]);
            }
        }
    }

    /// Everything that can be delivered is; then what was seen of each queue since the last time.
    pub(crate) fn finish(&mut self) -> BTreeMap<QueueId, Vec<Seen>> {
        let ids: Vec<QueueId> = self.queues.keys().copied().collect();
        for id in ids {
            if self.queues[&id].is_abandoned(self.now) {
                self.drop_queue(id, &[Seen::QueueGone]);
            }
        }
        let mut all = std::mem::take(&mut self.gone);
        for (&id, queue) in &mut self.queues {
            queue.service(self.now, &mut self.gate);
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
