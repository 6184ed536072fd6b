//! What a queue needs beyond delivering: messages expire at its head, too many go, dead letters leave, and an unused queue ends.
//!
//! All of it is decided by whoever owns the queue, and becomes removals in its log: followers need no clock. Time comes from the shard
//! with each turn. A queue that needs nothing of this has no [`Upkeep`], and pays one look at an empty pointer per turn.
//!
//! A message that came since the last turn is *fresh*: a consumer that waits may get it although its time to live is zero.
//!
//! A dead letter is live until its targets have it. Until then it is `Leaving`: nobody gets it, and should the node go down, it is
//! ready again afterwards and leaves once more. Not more than [`LETTERS_IN_FLIGHT`] of a queue leave at a time; what should expire or go
//! beyond that waits, undelivered, for its turn.

use std::collections::VecDeque;

use crate::live::{Slot, State};
use crate::{Chunk, Effect, Intervals, Letter, Machine, Message, Overflow, Place, Reason, Sequence, Stamp};

/// Dead letters of a queue that are on their way at a time: each is in memory twice, in its queue and with its new headers.
pub const LETTERS_IN_FLIGHT: usize = 1000;

/// The state that only some queues have.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// The time of this turn, in milliseconds since 1970.
    now: u64,
    /// From here on messages are fresh.
    fresh_from: Sequence,
    /// When the queue was last used.
    used_at: u64,
    letters: Letters,
}

#[derive(Debug, Default)]
struct Letters {
    /// Not handed out yet. Beyond the limit only by what consumers refused, which had the room while it was out with them.
    waiting: VecDeque<Waiting>,
    in_flight: usize,
}

#[derive(Debug)]
struct Waiting {
    sequence: Sequence,
    reason: Reason,
    /// Of one that has no place in memory.
    message: Option<Message>,
}

impl Machine {
    /// Whether there is more to do than delivering.
    #[must_use]
    pub fn has_upkeep(&self) -> bool {
        self.upkeep.is_some()
    }

    /// The time of this turn.
    pub(crate) fn set_now(&mut self, now: u64) {
        if let Some(upkeep) = &mut self.upkeep {
            upkeep.now = now;
        }
    }

    /// It is used: its time without use begins anew.
    pub(crate) fn used(&mut self, now: u64) {
        if let Some(upkeep) = &mut self.upkeep {
            upkeep.used_at = now;
        }
    }

    /// It was declared again, which may be a use.
    pub(crate) fn declared(&mut self, now: u64) {
        if self.settings.rule(|rules| (!rules.expires_though_declared).then_some(())).is_some() {
            self.used(now);
        }
    }

    /// The node starts, or takes the queue over: time begins to count.
    pub(crate) fn begin(&mut self, now: u64) {
        if self.cold.front().is_some_and(|chunk| chunk.timed) {
            self.need_upkeep();
        }
        self.used(now);
    }

    pub(crate) fn need_upkeep(&mut self) -> &mut Upkeep {
        let fresh_from = self.next_sequence();
        self.upkeep.get_or_insert_with(|| Box::new(Upkeep { fresh_from, ..Upkeep::default() }))
    }

    /// Other settings count from now on.
    pub(crate) fn configure(&mut self, settings: crate::Settings, now: u64) {
        let had_expiry = self.settings.rule(|rules| rules.expires_ms).is_some();
        self.settings = settings;
        if self.settings.need_upkeep() {
            self.need_upkeep();
        }
        if !had_expiry {
            self.used(now);
        }
        self.set_now(now);
    }

    /// The end of a turn: what comes from now on is fresh.
    pub(crate) fn end_turn(&mut self) {
        let next = self.next_sequence();
        if let Some(upkeep) = &mut self.upkeep {
            upkeep.fresh_from = next;
        }
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    fn deadline_of(&self, sequence: Sequence) -> Option<u64> {
        let ttl = self.settings.rule(|rules| rules.message_ttl_ms);
        self.live.get(sequence)?.stamp.deadline(ttl)
    }

    /// Whether the message that would be delivered next has expired. A fresh one has not, yet.
    pub(crate) fn is_stale(&self, sequence: Sequence) -> bool {
        let Some(upkeep) = &self.upkeep else { return false };
        sequence < upkeep.fresh_from && self.deadline_of(sequence).is_some_and(|deadline| deadline <= upkeep.now)
    }

    /// Lets go of what has expired at the head; in a queue with priorities, at the head of each. `fresh_too`: also what came in this turn.
    pub(crate) fn expire(&mut self, fresh_too: bool) {
        let Some(upkeep) = &self.upkeep else { return };
        let (now, fresh_from) = (upkeep.now, upkeep.fresh_from);
        let mut rank = Some(0);
        while let Some(from) = rank {
            let Some((found, head)) = self.head_from(from) else { break };
            let expired = (fresh_too || head < fresh_from)
                && self.deadline_of(head).is_some_and(|deadline| deadline <= now)
                && self.may_leave();
            if expired {
                self.take_out(head);
                self.dispose(head, Reason::Expired);
            } else {
                rank = found.checked_add(1);
            }
        }
    }

    /// The next ready message of this rank or a later one.
    fn head_from(&mut self, rank: u8) -> Option<(u8, Sequence)> {
        if self.has_priorities() {
            return self.returned.range((rank, Sequence(0))..).next().copied();
        }
        if rank > 0 { None } else { self.next_ready().map(|sequence| (0, sequence)) }
    }

    /// When something is to be done next, if nobody asks for anything before.
    pub(crate) fn deadline(&mut self) -> Option<u64> {
        self.upkeep.as_ref()?;
        // While letters wait for others to arrive, their arrival is what goes on from.
        let mut next = self.abandoned_at();
        let mut rank = if self.may_leave() { Some(0) } else { None };
        while let Some(from) = rank {
            let Some((found, head)) = self.head_from(from) else { break };
            next = [next, self.deadline_of(head)].into_iter().flatten().min();
            rank = found.checked_add(1);
        }
        next
    }

    /// Whether the queue was without use for so long that it ends.
    pub(crate) fn is_abandoned(&self) -> bool {
        let now = self.upkeep.as_ref().map(|upkeep| upkeep.now);
        self.abandoned_at().is_some_and(|at| now >= Some(at))
    }

    /// When the queue ends unless it is used before.
    fn abandoned_at(&self) -> Option<u64> {
        let used_at = self.upkeep.as_ref()?.used_at;
        let expires_ms = self.settings.rule(|rules| rules.expires_ms).filter(|_| self.consumers.len() == 0)?;
        Some(used_at.saturating_add(expires_ms))
    }

    // ---- length -----------------------------------------------------------------------------------------------------

    fn is_beyond(&self, messages: u64, bytes: u64) -> bool {
        let Some(rules) = self.settings.rules.as_deref() else { return false };
        rules.max_length.is_some_and(|max| messages > max) || rules.max_length_bytes.is_some_and(|max| bytes > max)
    }

    /// Bytes in the bodies of ready messages; what is on disk only is an estimate.
    fn ready_body_bytes(&self) -> u64 {
        let cold = if self.cold_ready() == 0 { 0 } else { self.cold.live_body_bytes() };
        self.ready_bytes + cold
    }

    /// Whether a new message with such a body is refused.
    pub(crate) fn is_full_for(&self, body_bytes: u64) -> bool {
        self.settings.refuses_publishes()
            && self.is_beyond(self.ready + self.cold_ready() + 1, self.ready_body_bytes() + body_bytes)
    }

    fn is_too_long(&self) -> bool {
        self.settings.rule(|rules| (rules.overflow == Overflow::DropHead).then_some(())).is_some()
            && self.is_beyond(self.ready + self.cold_ready(), self.ready_body_bytes())
    }

    /// Lets go of what has expired, and of the oldest ready messages while there are too many. Behind these there may be expired ones.
    pub(crate) fn shed(&mut self) {
        self.expire(true);
        if self.drop_excess() {
            self.expire(true);
        }
    }

    /// Answers whether there were too many.
    fn drop_excess(&mut self) -> bool {
        let mut dropped = false;
        while self.is_too_long()
            && self.may_leave()
            && let Some(head) = self.next_ready()
        {
            self.take_out(head);
            self.dispose(head, Reason::MaxLen);
            dropped = true;
        }
        dropped
    }

    /// A message that came while the queue was full. One of the log has its number all the same, and is removed.
    pub(crate) fn refuse(&mut self, message: Message, stamp: Stamp, place: Option<Place>) {
        let leaves = self.refused_leave();
        if leaves || self.settings.durable {
            let state = if leaves { State::Leaving } else { State::Settled };
            let sequence = self.live.push(Slot { message, state, redelivered: false, stamp, place });
            if leaves {
                self.letter(sequence, Reason::MaxLen, None);
            } else {
                self.journal.removed.push(sequence);
            }
        }
    }

    /// The same for a message whose place is behind others that are on disk only.
    pub(crate) fn refuse_cold(&mut self, message: &Message, chunk: Chunk, skip: u32) {
        let sequence = self.next_sequence();
        self.enqueue_cold(chunk, skip);
        self.cold.remove(sequence.0, sequence.0);
        if self.refused_leave() {
            self.letter(sequence, Reason::MaxLen, Some(message.detached()));
        } else {
            self.journal.removed.push(sequence);
        }
    }

    fn refused_leave(&self) -> bool {
        let overflow = self.settings.rule(|rules| Some(rules.overflow));
        overflow == Some(Overflow::RejectPublishDlx) && self.settings.dead_letters()
    }

    // ---- letters ----------------------------------------------------------------------------------------------------

    /// Whether a message may go that need not go now.
    fn may_leave(&self) -> bool {
        !self.settings.dead_letters()
            || self
                .upkeep
                .as_ref()
                .is_none_or(|upkeep| upkeep.letters.waiting.len() + upkeep.letters.in_flight < LETTERS_IN_FLIGHT)
    }

    /// A message that nobody has and nobody shall get goes, as a dead letter if the queue has an exchange for these.
    pub(crate) fn dispose(&mut self, sequence: Sequence, reason: Reason) {
        if !self.settings.dead_letters() {
            return self.discard(sequence);
        }
        self.live.get_mut(sequence).expect("only live messages go").state = State::Leaving;
        self.letter(sequence, reason, None);
    }

    fn letter(&mut self, sequence: Sequence, reason: Reason, message: Option<Message>) {
        self.need_upkeep().letters.waiting.push_back(Waiting { sequence, reason, message });
    }

    /// A message goes for good: at once, or, if it is in the log, when its removal is.
    pub(crate) fn discard(&mut self, sequence: Sequence) {
        if self.settings.durable {
            self.journal.removed.push(sequence);
            if let Some(slot) = self.live.get_mut(sequence) {
                slot.state = State::Settled;
            }
        } else {
            self.live.remove(sequence);
            self.failures.remove(&sequence.0);
        }
    }

    /// Hands out letters, as many as may be on their way.
    pub(crate) fn post(&mut self, effects: &mut Vec<Effect>) {
        let Some(upkeep) = &mut self.upkeep else { return };
        let letters = &mut upkeep.letters;
        while letters.in_flight < LETTERS_IN_FLIGHT
            && let Some(Waiting { sequence, reason, message }) = letters.waiting.pop_front()
        {
            let leaving = || self.live.get(sequence).filter(|slot| slot.state == State::Leaving);
            let Some(message) = message.or_else(|| leaving().map(|slot| slot.message.clone())) else { continue };
            letters.in_flight += 1;
            effects.push(Effect::DeadLetter(Box::new(Letter { queue: self.id, sequence, reason, message })));
        }
    }

    /// Letters have arrived.
    pub(crate) fn posted(&mut self, sequences: &Intervals) {
        for sequence in sequences.iter() {
            if let Some(upkeep) = &mut self.upkeep {
                upkeep.letters.in_flight = upkeep.letters.in_flight.saturating_sub(1);
            }
            // One without a slot had no place in memory. The log has it, and is to have its removal.
            if self.live.get(sequence).is_none_or(|slot| slot.state == State::Leaving) {
                self.discard(sequence);
            }
        }
    }

    // ---- what is on disk only -----------------------------------------------------------------------------------------

    /// The chunk that must be brought back although nobody may want its messages: its first one may expire or be one too many, or
    /// only priorities say what comes first.
    pub(crate) fn chunk_for_upkeep(&self) -> Option<Chunk> {
        self.upkeep.as_ref()?;
        if self.cold_ready() == 0 {
            return None;
        }
        let front = self.cold.front().copied()?;
        if self.has_priorities() {
            return Some(front);
        }
        let timed = front.timed || self.settings.rule(|rules| rules.message_ttl_ms).is_some();
        (self.ready == 0 && (timed || self.is_too_long())).then_some(front)
    }
}
