//! One queue: its messages, its consumers, and who gets what.

use std::collections::{BTreeMap, BTreeSet};

use rustc_hash::FxHashMap;

use crate::cold::{Chunk, Cold, Release};
use crate::consumers::Consumers;
use crate::live::{Live, Place, Slot, State};
use crate::upkeep::Upkeep;
use crate::{
    ConsumerId, ConsumerSpec, Counts, Delivery, Effect, GetReply, Intervals, Message, Outcome, QueueId, Reason,
    Sequence, Settings, Stamp,
};

/// What a durable queue wants in its log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Journal {
    /// Messages that are settled: to be removed.
    pub removed: Intervals,
    /// Messages that came back once more, in a queue that counts that.
    pub failed: Intervals,
    /// Everything below was handed out; `None`: nothing new was since the last time.
    pub delivered_up_to: Option<Sequence>,
}

/// A message that was brought back from disk, and where it lies there.
#[derive(Clone, Debug)]
pub struct Paged {
    /// The message.
    pub message: Message,
    /// Its place.
    pub place: Place,
    /// What it said when it entered.
    pub stamp: Stamp,
}

/// Decides, at the moment of delivery, whether a consumer's connection can take one more message. This is how a slow reader
/// stops its deliveries: bytes wait in the queue, not in front of its socket.
pub trait Admission {
    /// Whether `consumer` may be given a message of `bytes`. After a `false` the consumer gets nothing until it is resumed.
    fn admit(&mut self, consumer: ConsumerId, bytes: usize) -> bool;

    /// Reads a chunk of a durable queue back from disk: all messages that its entry brought for the queue, in order; `None`
    /// stands for one that is lost. Queues in memory have no chunks.
    fn read_chunk(&mut self, _queue: QueueId, _chunk: &Chunk) -> Vec<Option<Paged>> {
        Vec::new()
    }
}

/// Why a consumer cannot be attached: another one, or this one, wants the queue for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttachRefused;

/// A queue.
///
/// Invariants:
/// - every message at or above `cursor` is `Ready`, but for those that were refused when they came;
/// - `returned` holds exactly the `Ready` messages below `cursor`, by rank and sequence: in a queue with priorities these are all;
/// - `ready` and `unacked` count the `Ready` and the `Out` messages in memory, `ready_bytes` the bodies of the `Ready` ones;
/// - what is cold follows what is in memory and was not handed out since the node started; below `purged_up_to` it is settled.
#[derive(Debug)]
pub struct Machine {
    pub(crate) id: QueueId,
    pub(crate) settings: Settings,
    pub(crate) live: Live,
    cursor: Sequence,
    /// By rank: 0 in a queue without priorities; else 0 is the highest.
    pub(crate) returned: BTreeSet<(u8, Sequence)>,
    pub(crate) ready: u64,
    pub(crate) ready_bytes: u64,
    unacked: u64,
    pub(crate) consumers: Consumers,
    pub(crate) cold: Cold,
    /// How often messages came back, in a queue that counts that.
    pub(crate) failures: BTreeMap<u64, u32>,
    /// What more there is to do; most queues have none.
    pub(crate) upkeep: Option<Box<Upkeep>>,
    /// Cold messages below this were purged and wait for their removal.
    purged_up_to: u64,
    /// Everything below was handed out before the node started: redelivered.
    delivered_up_to: Sequence,
    pub(crate) journal: Journal,
    /// The log entry that brought the last message, and how many it brought so far.
    last_entry: (u64, u32, u32),
}

impl Machine {
    /// An empty queue.
    #[must_use]
    pub fn new(id: QueueId, settings: Settings) -> Self {
        let consumers = Consumers::new(settings.single_active_consumer);
        let upkeep = settings.need_upkeep().then(Box::default);
        Self {
            id,
            settings,
            live: Live::default(),
            cursor: Sequence(0),
            returned: BTreeSet::new(),
            ready: 0,
            ready_bytes: 0,
            unacked: 0,
            consumers,
            cold: Cold::default(),
            failures: BTreeMap::new(),
            upkeep,
            purged_up_to: 0,
            delivered_up_to: Sequence(0),
            journal: Journal::default(),
            last_entry: (0, 0, 0),
        }
    }

    /// A durable queue as a snapshot has it: `next` is the number of its next message unless `chunks` end later.
    #[must_use]
    pub fn restore(
        id: QueueId,
        settings: Settings,
        next: Sequence,
        handed_out_up_to: Sequence,
        chunks: Vec<Chunk>,
        removed: &[(u64, u64)],
    ) -> Self {
        let mut machine = Self::new(id, settings);
        let first = chunks.first().map_or(next.0, |chunk| chunk.first);
        machine.live.advance_to(Sequence(first));
        machine.cursor = Sequence(first);
        machine.delivered_up_to = handed_out_up_to;
        for chunk in chunks {
            machine.cold.push_after_gap(chunk);
        }
        machine.cold.advance_to(next.0);
        for &(first, last) in removed {
            machine.cold.remove(first, last);
        }
        machine
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
            ready: self.ready + self.cold_ready(),
            unacked: self.unacked,
            consumers: u32::try_from(self.consumers.len()).unwrap_or(u32::MAX),
        }
    }

    /// Whether there is something to deliver and somebody who can take it.
    #[must_use]
    pub fn can_deliver(&self) -> bool {
        self.ready + self.cold_ready() > 0 && self.consumers.next().is_some()
    }

    /// Whether a message that comes now would be delivered at once: then it need not go to disk only, whatever the budget says.
    #[must_use]
    pub fn is_hungry(&self) -> bool {
        self.ready == 0 && self.cold.is_empty() && self.consumers.next().is_some()
    }

    /// The chunk that must be brought back before anything can be delivered or got.
    #[must_use]
    pub fn wanted_chunk(&self) -> Option<Chunk> {
        if self.ready > 0 || self.cold_ready() == 0 { None } else { self.cold.front().copied() }
    }

    pub(crate) fn cold_ready(&self) -> u64 {
        let purged = self.cold.front().is_some_and(|chunk| chunk.first < self.purged_up_to);
        if purged { 0 } else { self.cold.live() }
    }

    // ---- replicated state -------------------------------------------------------------------------------------------

    /// Puts a message at the end. While there is a cold part that is not possible: see [`Machine::enqueue_cold`].
    pub fn enqueue(&mut self, message: Message, stamp: Stamp, place: Option<Place>) -> Sequence {
        debug_assert!(self.cold.is_empty(), "what is in memory comes before what is cold");
        if stamp.ttl_ms != Stamp::NO_TTL {
            self.need_upkeep();
        }
        self.push_ready(Slot { message, state: State::Ready, redelivered: false, stamp, place })
    }

    fn push_ready(&mut self, slot: Slot) -> Sequence {
        self.ready += 1;
        self.ready_bytes += slot.message.body_len() as u64;
        let rank = self.rank_of(&slot.stamp);
        let sequence = self.live.push(slot);
        if let Some(rank) = rank {
            self.returned.insert((rank, sequence));
            self.cursor = self.live.next_sequence();
        }
        sequence
    }

    /// The rank of a message in a queue with priorities.
    fn rank_of(&self, stamp: &Stamp) -> Option<u8> {
        let max = self.settings.rules.as_deref()?.max_priority?;
        Some(max - stamp.priority.min(max))
    }

    /// Messages of this queue stay in memory: only all of them together say which comes first.
    #[must_use]
    pub fn has_priorities(&self) -> bool {
        self.settings.rule(|rules| rules.max_priority).is_some()
    }

    /// Whether new messages go behind a cold part.
    #[must_use]
    pub fn is_cold(&self) -> bool {
        !self.cold.is_empty()
    }

    /// Puts a message at the end that is on disk only; `skip` is how many its entry brought before. `first` of the chunk is set here.
    pub fn enqueue_cold(&mut self, chunk: Chunk, skip: u32) {
        let first = self.cold.end().unwrap_or(self.live.next_sequence().0);
        if chunk.timed {
            self.need_upkeep();
        }
        self.cold.push(Chunk { first, skip, ..chunk });
    }

    /// The entry at this place brings a message. Answers how many it brought before.
    pub fn count_in_entry(&mut self, file: u64, offset: u32) -> u32 {
        let (last_file, last_offset, count) = self.last_entry;
        let before = if (last_file, last_offset) == (file, offset) { count } else { 0 };
        self.last_entry = (file, offset, before + 1);
        before
    }

    /// The number that the next message will get.
    #[must_use]
    pub fn next_sequence(&self) -> Sequence {
        self.cold.end().map_or(self.live.next_sequence(), Sequence)
    }

    /// Takes messages out, whatever their state, and says which bytes on disk are needed no more. Answers how many bytes of
    /// memory they had.
    pub fn remove(&mut self, sequences: &Intervals, releases: &mut Vec<Release>) -> u64 {
        let mut bytes = 0;
        for &(first, last) in sequences.runs() {
            let cold_from = self.live.next_sequence().0;
            for sequence in first..=last.min(cold_from.saturating_sub(1)) {
                bytes += self.remove_one(Sequence(sequence), releases);
            }
            if last >= cold_from {
                self.cold.remove(first.max(cold_from), last);
            }
        }
        self.drop_dead_chunks(releases);
        bytes
    }

    fn drop_dead_chunks(&mut self, releases: &mut Vec<Release>) {
        if self.cold.is_empty() {
            return;
        }
        if let Some(end) = self.cold.drop_dead_front(releases) {
            self.live.advance_to(Sequence(end));
            self.cursor = self.cursor.max(self.live.next_sequence());
        }
    }

    fn remove_one(&mut self, sequence: Sequence, releases: &mut Vec<Release>) -> u64 {
        if !self.failures.is_empty() {
            self.failures.remove(&sequence.0);
        }
        let Some(slot) = self.live.remove(sequence) else { return 0 };
        let bytes = slot.message.len() as u64;
        if let Some(place) = slot.place {
            releases.push(Release { file: place.file, bytes, messages: 1 });
        }
        match slot.state {
            State::Ready => {
                self.ready -= 1;
                self.ready_bytes -= slot.message.body_len() as u64;
                if sequence < self.cursor {
                    self.returned.remove(&(self.rank_of(&slot.stamp).unwrap_or(0), sequence));
                }
            }
            State::Out(consumer) => {
                self.unacked -= 1;
                self.consumers.credit(consumer, 1);
            }
            State::Settled | State::Leaving => {}
        }
        bytes
    }

    /// The queue is deleted: says what it needs no more, and how many bytes of memory it had.
    pub fn forget_all(&mut self, releases: &mut Vec<Release>) -> u64 {
        let mut bytes = 0;
        for (_, slot) in self.live.iter() {
            bytes += slot.message.len() as u64;
            releases.extend(slot.release());
        }
        releases.extend(self.cold.chunks().map(Chunk::release));
        bytes
    }

    /// Brings the first chunk back. `messages` are all that the entry has for this queue, in order; `None` stands for one that could
    /// not be read and is lost. Answers how many bytes of memory they take.
    pub fn page_in(&mut self, messages: Vec<Option<Paged>>, releases: &mut Vec<Release>) -> u64 {
        let Some(end) = self.cold.end() else { return 0 };
        let Some((chunk, removed)) = self.cold.pop_front() else { return 0 };
        let (mut bytes, mut alive) = (0, 0);
        let mut messages = messages.into_iter();
        self.live.advance_to(Sequence(chunk.first));
        if self.ready == 0 && self.returned.is_empty() {
            self.cursor = self.cursor.max(self.live.next_sequence());
        }
        for sequence in chunk.first..chunk.end() {
            debug_assert_eq!(self.live.next_sequence().0, sequence, "what is cold follows what is in memory");
            match messages.next().flatten() {
                Some(Paged { message, place, stamp }) if !removed.contains(sequence) => {
                    bytes += message.len() as u64;
                    alive += 1;
                    let redelivered =
                        Sequence(sequence) < self.delivered_up_to || self.failures.contains_key(&sequence);
                    if stamp.ttl_ms != Stamp::NO_TTL {
                        self.need_upkeep();
                    }
                    self.push_ready(Slot { message, state: State::Ready, redelivered, stamp, place: Some(place) });
                }
                _ => self.live.push_hole(),
            }
        }
        if self.cold.is_empty() {
            self.live.advance_to(Sequence(end));
        }
        // What is not in memory now was removed, or is lost. A segment may have records of removed messages that nobody counted, so this
        // goes by what was counted, not by what was read.
        let gone = u64::from(chunk.records()).saturating_sub(alive);
        if gone > 0 {
            let bytes = u64::from(chunk.bytes).saturating_sub(bytes);
            releases.push(Release { file: chunk.file, bytes, messages: gone });
        }
        bytes
    }

    /// Everything below was handed out before the node started.
    pub fn set_delivered_up_to(&mut self, sequence: Sequence) {
        self.delivered_up_to = self.delivered_up_to.max(sequence);
    }

    /// Messages came back once more.
    pub fn note_failures(&mut self, sequences: &Intervals) {
        for sequence in sequences.iter() {
            self.set_failures(sequence, self.failures.get(&sequence.0).map_or(1, |count| count.saturating_add(1)));
        }
    }

    /// A message came back so often.
    pub fn set_failures(&mut self, sequence: Sequence, count: u32) {
        if sequence < self.next_sequence() {
            self.failures.insert(sequence.0, count);
        }
    }

    /// How often messages came back, of those that did.
    pub fn failures(&self) -> impl Iterator<Item = (Sequence, u32)> + '_ {
        self.failures.iter().map(|(&sequence, &count)| (Sequence(sequence), count))
    }

    /// What is to be written to the log since the last call.
    pub fn take_journal(&mut self) -> Journal {
        std::mem::take(&mut self.journal)
    }

    /// A message in memory, its place and whether it was handed out before: for snapshots and moves.
    pub fn messages(&self) -> impl Iterator<Item = (Sequence, &Message, Option<Place>, Stamp)> {
        self.live.iter().map(|(sequence, slot)| (sequence, &slot.message, slot.place, slot.stamp))
    }

    /// The cold part: for snapshots and moves.
    pub fn cold_chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.cold.chunks()
    }

    /// Runs of numbers of the cold part that are removed.
    pub fn cold_removed(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.cold.removed().runs()
    }

    /// Everything below was handed out, now or before the node started.
    #[must_use]
    pub fn handed_out_up_to(&self) -> Sequence {
        self.cursor.max(self.delivered_up_to)
    }

    /// What lies in files for which `from` says so lies elsewhere now: in `runs`, chunks of segments, sorted, none of which goes
    /// over the end of a cold chunk. `alive` counts the messages found in each segment. Answers how many messages are lost, because
    /// they are cold and in no run.
    pub fn relocate(
        &mut self,
        from: &dyn Fn(u64) -> bool,
        runs: &[Chunk],
        releases: &mut Vec<Release>,
        alive: &mut FxHashMap<u64, u64>,
    ) -> u64 {
        for run in runs {
            for (_, slot) in self.live.within(run.first, run.end()) {
                if slot.place.is_some_and(|place| from(place.file)) {
                    releases.extend(slot.release());
                    slot.place = Some(Place { file: run.file, offset: 0 });
                    // One that is held for long shall not keep a buffer that others shared with it. Those that wait do so together.
                    if let State::Out(_) = slot.state {
                        slot.message = slot.message.detached();
                    }
                    *alive.entry(run.file).or_default() += 1;
                }
            }
        }
        let mut found = |chunk: &Chunk| {
            if !from(chunk.file) {
                return None;
            }
            let start = runs.partition_point(|run| run.first < chunk.first);
            let within: Vec<Chunk> = runs[start..].iter().take_while(|run| run.end() <= chunk.end()).copied().collect();
            for run in &within {
                *alive.entry(run.file).or_default() += u64::from(run.records());
            }
            Some(within)
        };
        self.relocate_cold(&mut found, releases)
    }

    /// Lets go of cold chunks of which nothing is alive, wherever they are: after a recovery, before anybody counts.
    pub fn forget_dead_chunks(&mut self) {
        let removed = self.cold.removed().clone();
        let dead = |chunk: &Chunk| removed.count_within(chunk.first, chunk.end() - 1) == u64::from(chunk.count);
        self.relocate_cold(&mut |chunk| dead(chunk).then(Vec::new), &mut Vec::new());
    }

    fn relocate_cold(
        &mut self,
        found: &mut dyn FnMut(&Chunk) -> Option<Vec<Chunk>>,
        releases: &mut Vec<Release>,
    ) -> u64 {
        let Some(end) = self.cold.end() else { return 0 };
        let lost = self.cold.relocate(found, releases);
        if self.cold.is_empty() {
            self.live.advance_to(Sequence(end));
            self.cursor = self.cursor.max(self.live.next_sequence());
        }
        lost
    }

    /// What is alive of a cold chunk, as intervals.
    #[must_use]
    pub fn cold_alive(&self, chunk: &Chunk) -> Vec<(u64, u64)> {
        self.cold.removed().gaps_within(chunk.first, chunk.end() - 1)
    }

    // ---- leader-local state -----------------------------------------------------------------------------------------

    /// Settles deliveries that are out with `consumer`, and answers which of them are now to be removed. Those that go back to the queue
    /// are not; nor are dead letters, which go when they have arrived. Stale numbers are passed over.
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
                Outcome::Discard if self.settings.dead_letters() => self.dispose(sequence, Reason::Rejected),
                Outcome::Ack | Outcome::Discard => {
                    slot.state = State::Settled;
                    settled.push(sequence);
                    if self.settings.durable {
                        self.journal.removed.push(sequence);
                    }
                }
                Outcome::Requeue => self.give_back(sequence),
            }
        }
        self.unacked -= u64::from(count);
        self.consumers.credit(consumer, count);
        settled
    }

    /// A message that was out is ready again, unless it came back too often.
    fn give_back(&mut self, sequence: Sequence) {
        if let Some(limit) = self.settings.rule(|rules| rules.delivery_limit) {
            let failures = self.failures.entry(sequence.0).or_insert(0);
            *failures = failures.saturating_add(1);
            if *failures > limit {
                return self.dispose(sequence, Reason::DeliveryLimit);
            }
            if self.settings.durable {
                self.journal.failed.push(sequence);
            }
        }
        let slot = self.live.get_mut(sequence).expect("what is out is live");
        slot.state = State::Ready;
        slot.redelivered = true;
        let (stamp, bytes) = (slot.stamp, slot.message.body_len());
        self.ready += 1;
        self.ready_bytes += bytes as u64;
        self.returned.insert((self.rank_of(&stamp).unwrap_or(0), sequence));
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
            let left = usize::try_from(held.map_or(u64::MAX, u64::from).min(self.unacked)).unwrap_or(usize::MAX);
            let below = self.live.below(self.cursor);
            let out = below.filter(|(_, slot)| slot.state == State::Out(consumer)).map(|(sequence, _)| sequence);
            let out: Vec<Sequence> = out.take(left).collect();
            self.unacked -= out.len() as u64;
            out.into_iter().for_each(|sequence| self.give_back(sequence));
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
        let sequence = self.next_ready().filter(|&sequence| !self.is_stale(sequence))?;
        let failures = self.failures_of(sequence);
        let (message, redelivered) = self.hand_out(sequence, holder, no_ack);
        Some(GetReply { queue: self.id, sequence, redelivered, failures, message, remaining: self.counts().ready })
    }

    /// Settles all ready messages, and answers which: they are to be removed.
    pub fn purge(&mut self) -> Intervals {
        let returned = std::mem::take(&mut self.returned);
        let mut sequences: Intervals = returned.into_iter().map(|(_, sequence)| sequence).collect();
        let mut from = self.cursor;
        while let Some(sequence) = self.live.next_at(from) {
            if self.is_ready(sequence) {
                sequences.push(sequence);
            }
            from = Sequence(sequence.0 + 1);
        }
        for sequence in sequences.iter() {
            self.live.get_mut(sequence).expect("ready messages are live").state = State::Settled;
        }
        self.cursor = self.cursor.max(self.live.next_sequence());
        self.ready = 0;
        self.ready_bytes = 0;
        if let (Some(front), Some(end)) = (self.cold.front(), self.cold.end()) {
            if front.first >= self.purged_up_to {
                sequences.push_run(front.first, end - 1);
            }
            self.purged_up_to = end;
        }
        if self.settings.durable {
            sequences.runs().iter().for_each(|&(first, last)| self.journal.removed.push_run(first, last));
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
            let Some(sequence) = self.next_ready() else { break };
            if self.upkeep.is_some() && self.is_stale(sequence) {
                self.expire(false);
                // Of what has expired not all can go now: it is not delivered either.
                if self.next_ready() == Some(sequence) {
                    break;
                }
                continue;
            }
            let consumer = self.consumers.get(slot);
            let (id, no_ack) = (consumer.id, consumer.spec.no_ack);
            let bytes = self.live.get_mut(sequence).expect("ready messages are live").message.len();
            if !admission.admit(id, bytes) {
                self.consumers.park(slot);
                continue;
            }
            let failures = self.failures_of(sequence);
            let (message, redelivered) = self.hand_out(sequence, id, no_ack);
            self.consumers.served(slot);
            let delivery = Delivery { consumer: id, queue: self.id, sequence, redelivered, failures, message };
            effects.push(Effect::Deliver(delivery));
            delivered += 1;
        }
        delivered
    }

    fn failures_of(&self, sequence: Sequence) -> u32 {
        if self.failures.is_empty() { 0 } else { self.failures.get(&sequence.0).copied().unwrap_or(0) }
    }

    fn is_ready(&self, sequence: Sequence) -> bool {
        self.live.get(sequence).is_some_and(|slot| slot.state == State::Ready)
    }

    pub(crate) fn next_ready(&mut self) -> Option<Sequence> {
        if let Some(&(_, sequence)) = self.returned.first() {
            return Some(sequence);
        }
        loop {
            let sequence = self.live.next_at(self.cursor)?;
            // Holes that a purge left, and messages that were refused, are passed over once, not at every look.
            self.cursor = sequence;
            if self.upkeep.is_none() || self.is_ready(sequence) {
                return Some(sequence);
            }
            self.cursor = Sequence(sequence.0 + 1);
        }
    }

    /// A ready message is ready no more.
    pub(crate) fn take_out(&mut self, sequence: Sequence) {
        let slot = self.live.get(sequence).expect("ready messages are live");
        debug_assert_eq!(slot.state, State::Ready, "only ready messages are handed out");
        self.ready_bytes -= slot.message.body_len() as u64;
        self.ready -= 1;
        if sequence < self.cursor {
            let rank = self.rank_of(&slot.stamp).unwrap_or(0);
            self.returned.remove(&(rank, sequence));
        } else {
            self.cursor = Sequence(sequence.0 + 1);
        }
    }

    fn hand_out(&mut self, sequence: Sequence, to: ConsumerId, no_ack: bool) -> (Message, bool) {
        self.take_out(sequence);
        if !self.failures.is_empty() && no_ack && !self.settings.durable {
            self.failures.remove(&sequence.0);
        }
        if no_ack && !self.settings.durable {
            let slot = self.live.remove(sequence).expect("ready messages are live");
            return (slot.message, slot.redelivered);
        }
        let slot = self.live.get_mut(sequence).expect("ready messages are live");
        if no_ack {
            slot.state = State::Settled;
            self.journal.removed.push(sequence);
        } else {
            self.unacked += 1;
            slot.state = State::Out(to);
            if self.settings.durable {
                self.journal.delivered_up_to = Some(self.cursor);
            }
        }
        (slot.message.clone(), slot.redelivered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOLDER: ConsumerId = ConsumerId { connection: 1, local: 1 };

    fn chunk(count: u32, offset: u32) -> Chunk {
        Chunk { count, bytes: count * 4, file: 1, offset, length: 100, ..Chunk::default() }
    }

    /// The messages of a chunk as they would come back from disk; each body is its sequence number.
    fn read(chunk: &Chunk) -> Vec<Option<Paged>> {
        (chunk.first..chunk.first + u64::from(chunk.count))
            .map(|sequence| {
                let message = Message::from_parts(b"\0\0", b"\0\0", sequence.to_string().as_bytes());
                let place = Place { file: chunk.file, offset: chunk.offset };
                Some(Paged { message, place, stamp: Stamp::default() })
            })
            .collect()
    }

    fn get_all(machine: &mut Machine) -> Vec<u64> {
        let mut got = Vec::new();
        loop {
            while let Some(chunk) = machine.wanted_chunk() {
                machine.page_in(read(&chunk), &mut Vec::new());
            }
            let Some(reply) = machine.get(HOLDER, false) else { return got };
            let text = String::from_utf8_lossy(reply.message.body_bytes()).into_owned();
            got.push(text.parse().expect("a number"));
            assert_eq!(reply.sequence.0, *got.last().expect("just pushed"));
        }
    }

    #[test]
    fn a_backlog_with_removed_messages_comes_back_without_them_and_in_order() {
        let mut machine = Machine::new(QueueId(1), Settings { durable: true, ..Settings::default() });
        for (count, offset) in [(1, 0), (405, 1000), (114, 2000)] {
            machine.enqueue_cold(chunk(count, offset), 0);
        }
        let even: Intervals = (0..520).step_by(2).map(Sequence).collect();
        machine.remove(&even, &mut Vec::new());
        machine.enqueue_cold(chunk(1, 3000), 0);
        machine.enqueue_cold(chunk(300, 4000), 0);
        let expected: Vec<u64> = (1..520).step_by(2).chain(520..821).collect();
        assert_eq!(machine.counts().ready, expected.len() as u64);
        assert_eq!(get_all(&mut machine), expected);
    }
}
